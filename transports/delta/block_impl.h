/* What each version of the inner loops of block.c provides; block.c picks one by what the processor can do.
 * All give the same numbers. Elements are little-endian unsigned integers of `width` bytes (1, 2 or 4) at
 * any address; changes are zigzag of (new - old) modulo 2^(8 width), less one, since no change is zero. */
#ifndef WS_TRANSPORTS_DELTA_BLOCK_IMPL_H
#define WS_TRANSPORTS_DELTA_BLOCK_IMPL_H
#include "transports/delta/block.h" /* WS_DELTA_PAD_BYTES */
#include <stddef.h>
#include <stdint.h>

#define WS_DELTA_SLACK 64 /* elements that `find` may write and `apply` may read beyond the end */

struct ws_delta_block_impl {
    const char *name;
    /* Stores first + i for each of the n elements i that differs, ascending; returns how many. */
    size_t (*find)(uint32_t *at, const unsigned char *a, const unsigned char *b, size_t n, unsigned width,
                   uint32_t first);
    /* The same from element 0 on, and each one's change. Both lists have the slack. */
    size_t (*find_changes)(uint32_t *at, uint32_t *changes, const unsigned char *a, const unsigned char *b,
                           size_t n, unsigned width);
    /* Places to gaps, in place: at[i] - at[i - 1] - 1. */
    void (*gaps)(uint32_t *at, size_t n);
    /* The other way round. Returns the last place + 1, which is over 2^32 when the gaps are wrong. */
    uint64_t (*places)(uint32_t *gaps, size_t n);
    /* n_of_length[l] += how many of v[0], v[step], v[2 step] ... have l significant bits (0 to 32). */
    void (*lengths)(uint32_t n_of_length[33], const uint32_t *v, size_t n, size_t step);
    /* The low `bits` (0 to 32) of each number, one after the other from the lowest bit up. unpack may read
     * WS_DELTA_PAD_BYTES bytes after them. */
    void (*pack)(unsigned char *out, const uint32_t *v, size_t n, unsigned bits);
    void (*unpack)(uint32_t *out, const unsigned char *in, size_t n, unsigned bits);
    /* Writes the patches of the numbers that have more than `bits`; returns how many bytes, SIZE_MAX: more than room. */
    size_t (*patches)(unsigned char *out, size_t room, const uint32_t *v, size_t n, unsigned bits);
    /* Adds changes to the elements at[] of p that lie before element `end`, which is at most the last place
     * + 1; returns how many of the n it has done. */
    size_t (*apply)(unsigned char *p, const uint32_t *at, const uint32_t *changes, size_t n, unsigned width,
                    uint32_t end);
};
extern const struct ws_delta_block_impl ws_delta_block_portable, ws_delta_block_avx2, ws_delta_block_avx512;
extern const struct ws_delta_block_impl *const ws_delta_block_impls[]; /* by enum ws_vector */

#endif
