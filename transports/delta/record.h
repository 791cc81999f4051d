/* Record: the change of one block as it is stored and sent: a delta (block.h) or, where that would not be
 * shorter, the block itself; either compressed with zstd where that pays. A record never changes once it is
 * made. */
#ifndef WS_TRANSPORTS_DELTA_RECORD_H
#define WS_TRANSPORTS_DELTA_RECORD_H
#include "transports/delta/block.h"

enum ws_delta_kind { WS_DELTA_EDIT = 1, WS_DELTA_BLOCK = 2 };

struct ws_delta_record {
    uint32_t file, block; /* of the target's manifest */
    uint8_t kind;
    uint8_t packed;     /* one zstd frame */
    uint32_t n_changed; /* elements; 0 where that was not counted */
    uint32_t raw_bytes, bytes;
    uint64_t hash;        /* ws_delta_record_hash */
    unsigned char data[]; /* bytes, and WS_DELTA_PAD_BYTES zeros */
};

/* A record whose data is to be filled in. NULL: no memory. free() frees it. */
struct ws_delta_record *ws_delta_record_new(size_t bytes);
/* Makes a record of n raw bytes. level 0: never compressed; else zstd's level, and compressed where it saves
 * a fiftieth. NULL: no memory. */
struct ws_delta_record *ws_delta_record_make(uint32_t file, uint32_t block, enum ws_delta_kind kind,
                                             uint32_t n_changed, const unsigned char *raw, uint32_t n,
                                             int level);
/* XXH3-64 of the record's head on the wire (stream.h) without the hash, and its data. */
uint64_t ws_delta_record_hash(const struct ws_delta_record *r);
/* Its raw bytes: its own data, or unpacked into `room` of raw_bytes and WS_DELTA_PAD_BYTES. NULL: it is
 * damaged. */
const unsigned char *ws_delta_record_raw(const struct ws_delta_record *r, unsigned char *room);

#endif
