#include "backends/trainer/offload/block_writer.h"
#include <string.h>

#define LINE_BYTES   64
#define DIRECT_BYTES 1024 /* as it is from here on: staging costs a copy within the cache */
#define STREAM_BYTES 256  /* shorter stores go through the cache, which puts lines together */

void ws_block_writer_init(struct ws_block_writer *s, unsigned char *dst, struct ws_hasher *hasher)
{
    s->dst = dst;
    s->hasher = hasher;
    s->compare = NULL;
    s->at = 0;
    s->staged = 0;
}

static void store(struct ws_block_writer *s, uint64_t at, const unsigned char *src, size_t n)
{
    if (s->compare)
        ws_copy_compare_put(s->compare, src, n);
    else if (!s->dst)
        ws_hasher_add(s->hasher, src, n);
    else if (s->hasher)
        ws_hasher_copy(s->hasher, s->dst + at, src, n);
    else if (n >= STREAM_BYTES)
        ws_copy_stream(s->dst + at, src, n);
    else
        memcpy(s->dst + at, src, n);
}

void ws_block_writer_flush(struct ws_block_writer *s)
{
    if (s->staged > 0)
        store(s, s->at, s->stage, s->staged);
    s->at += s->staged;
    s->staged = 0;
}

/* What can be staged still, so that a full stage ends with a cache line. */
static size_t room(const struct ws_block_writer *s)
{
    return WS_BLOCK_WRITER_BYTES - (((uintptr_t)s->dst + s->at) & (LINE_BYTES - 1)) - s->staged;
}

/* Of the next n bytes those that are converted in the same pass as they are hashed and stored. */
static size_t direct(const struct ws_block_writer *s, uint64_t to, const struct ws_box_cursor *c, uint64_t n)
{
    const size_t each = c->extents->element_bytes;
    if (!s->dst || !s->hasher || s->compare || n < DIRECT_BYTES || !ws_box_cursor_unconverted(c) ||
        ((uintptr_t)s->dst + to) % each)
        return 0;
    return n - n % each;
}

uint64_t ws_block_writer_put(struct ws_block_writer *s, uint64_t tensor_begin, struct ws_box_cursor *c,
                             uint64_t n)
{
    const unsigned char *plain = ws_box_cursor_plain(c);
    uint64_t to = tensor_begin + c->dst + c->at, overflows = 0;
    const size_t convert = plain ? 0 : direct(s, to, c, n);
    if (to != s->at + s->staged || (plain && n >= DIRECT_BYTES) || convert > 0) {
        ws_block_writer_flush(s);
        s->at = to;
    }
    if (plain && n >= DIRECT_BYTES) {
        store(s, to, plain, n);
        s->at = to + n;
        ws_box_cursor_skip(c, n);
        return 0;
    }
    if (convert > 0) {
        overflows += ws_hasher_convert(s->hasher, c->extents->conversion, s->dst + to,
                                       ws_box_cursor_unconverted(c), convert / c->extents->element_bytes);
        ws_box_cursor_skip(c, convert);
        s->at = to + convert;
        n -= convert;
    }
    for (size_t part; n > 0; n -= part) {
        if (room(s) == 0)
            ws_block_writer_flush(s);
        part = n < room(s) ? n : room(s);
        overflows += ws_box_cursor_copy(c, s->stage + s->staged, part);
        s->staged += part;
    }
    return overflows;
}
