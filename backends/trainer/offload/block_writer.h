/* Block writer: puts pieces of a block into a slot's memory, and hashes them where they make up the whole
 * block. What is short, gathered, or converted without a hash is staged in the first-level cache, so that memory
 * only sees long streaming stores. It belongs to one thread and lives on its stack. */
#ifndef WS_TRAINER_OFFLOAD_BLOCK_WRITER_H
#define WS_TRAINER_OFFLOAD_BLOCK_WRITER_H
#include "backends/trainer/offload/copy_compare.h"
#include "transports/simd/box.h"
#include "transports/simd/copy.h"

#define WS_BLOCK_WRITER_BYTES 4096UL

struct ws_block_writer {
    unsigned char *dst;       /* the file's memory; NULL: pieces are only hashed */
    struct ws_hasher *hasher; /* NULL: nothing is hashed; else pieces come in order and without gaps */
    struct ws_copy_compare
        *compare; /* set after init: pieces go through it, which has the same hasher; NULL: they do not */
    uint64_t at;  /* the place in the file that the staged bytes go to */
    size_t staged;
    unsigned char stage[WS_BLOCK_WRITER_BYTES] __attribute__((aligned(64)));
};

void ws_block_writer_init(struct ws_block_writer *s, unsigned char *dst, struct ws_hasher *hasher);
/* Writes the cursor's next n bytes (n <= ready) into the tensor that begins at that byte of the file. Returns
 * how many elements overflowed. */
uint64_t ws_block_writer_put(struct ws_block_writer *s, uint64_t tensor_begin, struct ws_box_cursor *c,
                             uint64_t n);
void ws_block_writer_flush(struct ws_block_writer *s); /* before the end */

#endif
