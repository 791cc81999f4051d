/* Copy and compare: one pass that puts a block into a slot, hashes it, and finds what differs from the same block of the
 * version before, which another slot holds. The pieces come in order and without gaps, as to the block writer.
 *
 * Where it is certain what the block's place holds (line_map.h), only the lines are stored that differ from it: those
 * that change now, and those that the versions in between changed. The hash is of what the source has. That the place
 * then has it, too, is the caller's to know.
 *
 * The record is byte for byte that of ws_delta_block_encode over both blocks. It belongs to one thread. */
#ifndef WS_TRAINER_OFFLOAD_COPY_COMPARE_H
#define WS_TRAINER_OFFLOAD_COPY_COMPARE_H
#include "transports/delta/block.h"
#include "transports/delta/record.h"
#include "transports/simd/lines.h"

#define WS_LINE_WORDS (WS_BLOCK_BYTES / WS_LINE_PAGE_BYTES) /* of a block: a bit a line */

struct ws_copy_compare;
struct ws_copy_compare *ws_copy_compare_new(
    void); /* NULL: no memory. 8 MiB of address space, touched as it is used */
void ws_copy_compare_free(struct ws_copy_compare *c); /* NULL is fine */

struct ws_copy_compare_block {
    unsigned char *to;         /* aligned to WS_LINE_BYTES */
    const unsigned char *base; /* the block in the version before */
    size_t len;
    const struct ws_element_widths *widths; /* of its file */
    uint64_t offset;                        /* in the file */
    /* The lines in which `to` may differ from base, WS_LINE_WORDS words; NULL: all. */
    const uint64_t *stale;
    uint64_t *changed; /* as many words, zero: gets the lines that differ from base */
    struct ws_hasher *hasher;
};
/* b is copied; what it points to is borrowed until end. */
void ws_copy_compare_begin(struct ws_copy_compare *c, const struct ws_copy_compare_block *b);
/* The next n bytes of the block. They are ordered (ws_copy_order) after end. */
void ws_copy_compare_put(struct ws_copy_compare *c, const unsigned char *src, size_t n);
/* All bytes were put. *out NULL: nothing differs; the caller owns it. *n_changed: elements. -E2BIG: too much differs for a
 * record, -ENOMEM: there is none either; what was copied and hashed is right all the same. */
WS_MUST_USE int ws_copy_compare_end(struct ws_copy_compare *c, uint32_t file, uint32_t block,
                                    struct ws_delta_record **out, uint32_t *n_changed);

#endif
