/* Sink: puts pieces of a block into a slot's memory and hashes them where they make the block whole. What is
 * short, gathered or converted is staged in the first-level cache, so that memory sees long streaming stores
 * only. One thread's; lives on its stack. */
#ifndef WS_TRAINER_OFFLOAD_BLOCK_WRITER_H
#define WS_TRAINER_OFFLOAD_BLOCK_WRITER_H
#include "transports/simd/box.h"
#include "transports/simd/copy.h"

#define WS_SINK_BYTES 4096UL

struct ws_sink {
    unsigned char *dst;       /* the file's memory; NULL: what is put is hashed only */
    struct ws_hasher *hasher; /* NULL: nothing is hashed; else pieces come in order and without gaps */
    uint64_t at;              /* in the file: where what is staged goes */
    size_t staged;
    unsigned char stage[WS_SINK_BYTES] __attribute__((aligned(64)));
};

void ws_sink_init(struct ws_sink *s, unsigned char *dst, struct ws_hasher *hasher);
/* The next n bytes of a cursor, n <= ready, of a tensor that begins at that byte of the file. Returns the
 * overflows. */
uint64_t ws_sink_put(struct ws_sink *s, uint64_t tensor_begin, struct ws_cursor *c, uint64_t n);
void ws_sink_flush(struct ws_sink *s); /* before the end */

#endif
