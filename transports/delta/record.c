#include "transports/delta/record.h"
#include "transports/delta/stream.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zstd.h>

struct ws_delta_record *ws_delta_record_new(size_t bytes)
{
    struct ws_delta_record *r = malloc(sizeof(*r) + bytes + WS_DELTA_PAD_BYTES);
    if (r) {
        *r = (struct ws_delta_record){.bytes = (uint32_t)bytes};
        memset(r->data + bytes, 0, WS_DELTA_PAD_BYTES);
    }
    return r;
}

/* The frame, when it saves enough; NULL. */
static struct ws_delta_record *pack(const unsigned char *raw, uint32_t n, int level)
{
    size_t most = n - n / 50;
    struct ws_delta_record *r = level && n > 64 ? ws_delta_record_new(most) : NULL;
    size_t bytes = r ? ZSTD_compress(r->data, most, raw, n, level) : 0;
    if (!r || ZSTD_isError(bytes)) {
        free(r);
        return NULL;
    }
    struct ws_delta_record *fitting = realloc(r, sizeof(*r) + bytes + WS_DELTA_PAD_BYTES);
    if (fitting)
        r = fitting;
    r->bytes = (uint32_t)bytes;
    memset(r->data + bytes, 0, WS_DELTA_PAD_BYTES);
    return r;
}

struct ws_delta_record *ws_delta_record_make(uint32_t file, uint32_t block, enum ws_delta_kind kind,
                                             uint32_t n_changed, const unsigned char *raw, uint32_t n,
                                             int level)
{
    struct ws_delta_record *r = pack(raw, n, level);
    const bool packed = r;
    if (!r && !(r = ws_delta_record_new(n)))
        return NULL;
    if (!packed)
        memcpy(r->data, raw, n);
    r->file = file;
    r->block = block;
    r->kind = (uint8_t)kind;
    r->packed = packed;
    r->n_changed = n_changed;
    r->raw_bytes = n;
    r->hash = ws_delta_record_hash(r);
    return r;
}

uint64_t ws_delta_record_hash(const struct ws_delta_record *r)
{
    unsigned char head[WS_DELTA_RECORD_BYTES];
    ws_delta_stream_record_head(r, head);
    return XXH3_64bits_withSeed(r->data, r->bytes,
                                XXH3_64bits(head, WS_DELTA_RECORD_BYTES - sizeof(r->hash)));
}

const unsigned char *ws_delta_record_raw(const struct ws_delta_record *r, unsigned char *room)
{
    if (!r->packed)
        return r->raw_bytes == r->bytes ? r->data : NULL;
    size_t n = ZSTD_decompress(room, r->raw_bytes, r->data, r->bytes);
    if (ZSTD_isError(n) || n != r->raw_bytes)
        return NULL;
    memset(room + n, 0, WS_DELTA_PAD_BYTES);
    return room;
}
