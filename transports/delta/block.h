/* Block: the difference of one block (up to WS_BLOCK_BYTES) between two versions.
 *
 * Elements are bit patterns, so NaNs, infinities and -0 are as good as any: applying encode(a, b) to a gives
 * b, bit for bit. After a training step most changes of a bf16 weight are one unit in the last place: of each
 * change the gap to the one before and the zigzagged difference are kept, both as numbers packed with as many
 * bits as most of them need; those that need more are patched in afterwards (patched frame of reference:
 * Zukowski, Heman, Nes, Boncz, Super-Scalar RAM-CPU Cache Compression, ICDE 2006).
 *
 * The bytes, little endian. A block's delta is one or more segments; what lies in none is unchanged. A
 * segment is elements of one width, one after the other, which need not be aligned in the block:
 *
 *     u32 begin                byte in the block where element 0 of the segment begins
 *     u32 n                    changed elements, at least 1
 *     u8  width                bytes of an element: 1, 2 or 4
 *     u8  gap_bits             0 to 32
 *     u8  change_bits          0 to 32
 *     u8  0
 *     u32 gap_patch_bytes
 *     u32 change_patch_bytes
 *     gaps                     n numbers of gap_bits bits each
 *     changes                  n numbers of change_bits bits each
 *     gap patches              gap_patch_bytes
 *     change patches           change_patch_bytes
 *
 * The next segment follows at once. It begins at or after the end of this one's last changed element.
 *
 * Packed numbers: (n * bits + 7) / 8 bytes, read as one long little-endian number: number i is its bits
 * i * bits to (i + 1) * bits - 1. A writer leaves the bits behind the last number zero.
 *
 * A patch gives one of the numbers, which are taken in ascending order, its high bits. It is two numbers of
 * variable length (seven bits a byte, the lowest first; the eighth bit says that more follow; under 2^32):
 *
 *     skip                     how many numbers lie between the last that was patched (or the beginning)
 *                              and this one
 *     high                     at least 1: the number is what was packed + high * 2^bits, under 2^32
 *
 * gap:    the unchanged elements between the last changed one (or element 0, which may be changed itself:
 *         then its gap is 0) and this one: element number = sum of the gaps so far + number of changes
 * before. change: z - 1, where z is the zigzag of d = new - old modulo 2^(8 width), seen as signed: z = 2 d
 * for d > 0, z = -2 d - 1 for d < 0. So z is 1 to 2^(8 width) - 1. A reader that meets another may do with
 * the element what it likes: the block's hash will differ.
 *
 * Pure functions over memory. One thread at a time uses an encoder or an edit. */
#ifndef WS_TRANSPORTS_DELTA_BLOCK_H
#define WS_TRANSPORTS_DELTA_BLOCK_H
#include "transports/base/error.h"
#include "transports/format/element_widths.h"
#include "transports/simd/copy.h"
#include <stdbool.h>

#define WS_DELTA_PAD_BYTES 8 /* that have to be readable behind a delta */

/* Memory to encode one block after the other: up to 64 MiB of address space, of which as much is touched as
 * the changes of a block take. */
struct ws_delta_block_encoder;
struct ws_delta_block_encoder *ws_delta_block_encoder_new(void); /* NULL: no memory */
void ws_delta_block_encoder_free(struct ws_delta_block_encoder *c);
const char *ws_delta_block_impl_name(
    void); /* "avx512", "avx2", "portable"; WSYNC_DELTA=... overrides for tests */

/* Which of the n elements of a and b differ, ascending; at has room for n + WS_DELTA_SLACK (block_impl.h). */
size_t ws_delta_block_find(uint32_t *at, const unsigned char *a, const unsigned char *b, size_t n,
                           unsigned width);
/* The same of elements [first, first + n) of a span, with their zigzagged changes less one, which have the same room. a and
 * b point to element `first`. Returns how many; at counts from the span's beginning. */
size_t ws_delta_block_find_changes(uint32_t *at, uint32_t *changes, const unsigned char *a,
                                   const unsigned char *b, size_t n, unsigned width, uint32_t first);
/* The delta from a to b, both len bytes (at most WS_BLOCK_BYTES) that lie at `offset` of a file with widths
 * w. out has room for len bytes. *out_bytes 0: they are equal. -E2BIG: the delta would not be shorter than
 * the block. *n_changed is set in all cases: elements. */
WS_MUST_USE int ws_delta_block_encode(struct ws_delta_block_encoder *e, const unsigned char *a,
                                      const unsigned char *b, size_t len, const struct ws_element_widths *w,
                                      uint64_t offset, unsigned char *out, size_t *out_bytes,
                                      uint32_t *n_changed);

/* The spans of a block whose changes make a segment each, at most: encode's way of cutting it. */
struct ws_delta_span {
    uint32_t begin, n; /* byte in the block; elements */
    unsigned width;
};
/* The first span at or after byte *at of the block; *at moves behind it. false: there is none. */
bool ws_delta_span_next(struct ws_delta_span *out, size_t *at, size_t len, const struct ws_element_widths *w,
                        uint64_t offset);
/* What changed in a span, where something else compared it (device/block_diff.h): numbers of elements,
 * ascending, and their zigzagged changes less one. */
struct ws_delta_span_changes {
    struct ws_delta_span span;
    uint32_t n;
    uint32_t *at; /* overwritten */
    const uint32_t *changes;
};
/* The same bytes as ws_delta_block_encode's, from the changes of the block's spans. */
WS_MUST_USE int ws_delta_block_encode_changes(const struct ws_delta_span_changes *spans, size_t n_spans,
                                              size_t len, unsigned char *out, size_t *out_bytes,
                                              uint32_t *n_changed);

/* A block's delta, read and checked: nothing of it lies outside the block. */
struct ws_delta_edit;
/* The WS_DELTA_PAD_BYTES bytes after n_bytes are readable. -EBADMSG with a sentence, -ENOMEM. The edit holds
 * what it needs of `bytes`; one edit serves one block after the other. */
WS_MUST_USE int ws_delta_edit_read(struct ws_delta_edit *e, const unsigned char *bytes, size_t n_bytes,
                                   size_t len, struct ws_error *err);
struct ws_delta_edit *ws_delta_edit_new(void);
void ws_delta_edit_free(struct ws_delta_edit *e);
uint32_t ws_delta_edit_changed(const struct ws_delta_edit *e);
/* Each changed element, in order: where it begins in the block, its width, and its zigzagged change less one.
 */
void ws_delta_edit_each(const struct ws_delta_edit *e,
                        void (*fn)(void *arg, uint32_t byte, unsigned width, uint32_t change), void *arg);

/* The same by runs of elements of one width: element at[i] of a run begins at byte begin + at[i] * width. The lists are
 * the edit's, until it is read into again. false: it has no k-th run. */
struct ws_delta_edit_run {
    uint32_t begin;
    unsigned width;
    size_t n;
    const uint32_t *at, *changes;
};
bool ws_delta_edit_run(const struct ws_delta_edit *e, size_t k, struct ws_delta_edit_run *out);
/* What an element of that width was before a change of it to v; of v, only its lower bytes count. */
static inline uint32_t ws_delta_undone(uint32_t v, uint32_t change)
{
    const uint32_t zigzag = change + 1;
    return v - ((zigzag >> 1) ^ (0U - (zigzag & 1)));
}

/* Applies n edits one after the other to the block of len bytes at dst, after it was copied from src where
 * src is not NULL (the edits were read for this len), and returns the XXH3-64 of the result: one pass over
 * memory. h: to work with. */
uint64_t ws_delta_edit_apply(struct ws_hasher *h, unsigned char *dst, const unsigned char *src, size_t len,
                             struct ws_delta_edit *const *edits, size_t n);
/* For a block that is elsewhere: its bytes are brought to dst shortly before they are patched, and taken from there when
 * they are hashed, piece by piece and in order, while they are in the cache. */
struct ws_delta_flow {
    void (*load)(void *arg, size_t at, size_t n, unsigned char *to);
    void (*store)(void *arg, size_t at, size_t n, const unsigned char *from);
    void *arg;
};
/* The same where the block is brought and taken so, or with src not NULL only taken; dst is a buffer of len bytes. */
uint64_t ws_delta_edit_apply_by(struct ws_hasher *h, unsigned char *dst, const unsigned char *src, size_t len,
                                struct ws_delta_edit *const *edits, size_t n,
                                const struct ws_delta_flow *flow);
/* For a block that lies in several runs of memory, whose bytes follow each other in the block. */
struct ws_delta_run {
    unsigned char *place;
    size_t n;
};
struct ws_delta_runs {
    const struct ws_delta_run *runs;
    size_t n;
    /* n bytes of a run from its byte `at` on are patched, and still in the cache. In order; they end where the run does, or
     * at an address that is a multiple of WS_SUM_BYTES. */
    void (*patched)(void *arg, size_t run, size_t at, size_t n);
    void *arg;
};
/* Lies each element that the edits change in one run? */
bool ws_delta_edit_fits_runs(struct ws_delta_edit *const *edits, size_t n, const struct ws_delta_runs *runs);
/* The same where the block lies so, and the edits fit: what does not change is not written. With src not NULL it is copied
 * from there first. */
uint64_t ws_delta_edit_apply_runs(struct ws_hasher *h, const struct ws_delta_runs *runs,
                                  const unsigned char *src, struct ws_delta_edit *const *edits, size_t n);

#endif
