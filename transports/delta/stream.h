/* A delta on the wire and in a file, format version 1. Numbers are little endian.
 *
 * A head, records in any order, an end; nothing behind.
 *
 *     head, 200 bytes
 *         8    "wsdelta\n"
 *         u32  1, the format version
 *         u32  200, bytes of this head
 *         u64  the base's version
 *         u64  the target's version
 *         u64  blocks of all files of the target
 *         u32  part      this stream has the blocks (counted over all files, in the order of the target's
 *         u32  parts     manifest, from 0) that leave `part` when divided by `parts`; all of them: 0, 1.
 *                        A client that asked for some blocks alone (only=, delta/filter.h) may get those alone
 *         40   the base's lineage, filled with zeros
 *         40   the target's
 *         32   the digest of the base's manifest, in lower-case hex
 *         32   the target's
 *         u64  XXH3-64 of the 192 bytes before it
 *
 *     record, 32 bytes and its data; at most one for a block
 *         u32  file      its number in the target's manifest, from 0
 *         u32  block     of that file, from 0
 *         u8   kind      1: the data is a delta as in block.h, to the block at the same place of the
 *                        base's file with that name and size; 2: it is the block itself
 *         u8   packed    1: the data is a zstd frame of what kind says; 0: it is that
 *         u16  0
 *         u32  changed elements; of kind 2 it may be 0, not counted
 *         u32  raw_bytes what kind says has, unpacked: 1 to 4 MiB
 *         u32  bytes     of data, at least 1, at most raw_bytes
 *         u64  XXH3-64 of the data, with the XXH3-64 of the record's 24 bytes before this as its seed
 *         bytes of data
 *
 *     end, 32 bytes: a record of no block and no data
 *         u32  2^32 - 1
 *         u32  0: the delta is whole: a block without a record is as in the base;
 *              1: its maker gave it up: a block without a record may be anything
 *         u32  0, u32 0, u32 0
 *         u32  how many records were before
 *         u64  XXH3-64 of the hashes of all records, 8 bytes each, in the order of the stream
 *
 * In the middle of a record a sender that cannot go on has no word for it here: its carrier says so (tcp/delta_body.h).
 *
 * Sources of the idea: the base and the result are named by digests, so a delta is never applied to what it
 * was not made from (as in git's packs and RFC 3284's VCDIFF with checksums). */
#ifndef WS_TRANSPORTS_DELTA_STREAM_H
#define WS_TRANSPORTS_DELTA_STREAM_H
#include "transports/delta/delta.h"
#include "transports/delta/filter.h"

#define WS_DELTA_HEAD_BYTES   200
#define WS_DELTA_RECORD_BYTES 32

/* --- writing --- */
void ws_delta_stream_record_head(const struct ws_delta_record *r, unsigned char out[WS_DELTA_RECORD_BYTES]);

/* Walks a delta as a stream of bytes. */
struct ws_delta_stream_writer {
    struct ws_delta *delta; /* borrowed */
    unsigned part, parts;
    const struct ws_delta_filter *filter; /* borrowed; NULL: all records; set by the caller after init */
    size_t next;                          /* place in the order of arrival */
    const struct ws_delta_record *record; /* whose data goes out now */
    struct ws_delta_coming *coming;       /* counted: that record is still coming; NULL: it is the delta's */
    const struct ws_delta_record *ahead;  /* went out before its turn, which has not come yet; NULL: none */
    unsigned char head[WS_DELTA_HEAD_BYTES];
    size_t head_bytes, head_at, data_at; /* what is out of both */
    uint32_t n_records;
    void *hashes; /* of the records that went out */
    bool ended;
};
/* -ENOMEM. */
WS_MUST_USE int ws_delta_stream_writer_init(struct ws_delta_stream_writer *w, struct ws_delta *delta,
                                            unsigned part, unsigned parts);
void ws_delta_stream_writer_free(struct ws_delta_stream_writer *w);
/* Up to n bytes; 0: none are there yet; -1: it has ended; -2: it cannot go on, since a record that it was sending is not to be had. */
ssize_t ws_delta_stream_write(struct ws_delta_stream_writer *w, unsigned char *out, size_t n);
/* Bytes of such a stream; the delta has ended. */
uint64_t ws_delta_stream_bytes(const struct ws_delta *delta, unsigned part, unsigned parts);

/* --- reading, piece by piece --- */
struct ws_delta_stream_reader;
struct ws_delta_stream_sink {
    /* Called before a record is read, and before memory is taken for it; bytes: of the record with its head.
     * Negative, with err: reading ends with that. NULL: every record is read. */
    int (*admit)(void *arg, uint64_t bytes, struct ws_error *err);
    /* Owns the record, which was checked. Non-zero stops the reading. One that a delta of `grows` has begun is to be added to it. */
    int (*record)(void *arg, struct ws_delta_record *r);
    /* The delta that the record of a block will be added to, borrowed while this is read: those who read it get the record's data as
     * it comes (coming.h). NULL: none, they get it when it is whole. */
    struct ws_delta *(*grows)(void *arg, uint32_t file, uint32_t block);
    void *arg;
};
/* link: what must be in the head (digests, lineages and versions). NULL: no memory. */
struct ws_delta_stream_reader *ws_delta_stream_reader_new(const struct ws_delta_link *link, uint64_t n_blocks,
                                                          const struct ws_delta_stream_sink *taker);
void ws_delta_stream_reader_free(struct ws_delta_stream_reader *r);
/* -EBADMSG: damaged, or another delta; or what the sink returned. */
WS_MUST_USE int ws_delta_stream_read(struct ws_delta_stream_reader *r, const void *bytes, size_t n,
                                     struct ws_error *err);
/* Is it in the middle of a head or a record? */
bool ws_delta_stream_reader_is_inside(const struct ws_delta_stream_reader *r);
/* Has the end been read? *whole: and was the delta whole. */
bool ws_delta_stream_reader_ended(const struct ws_delta_stream_reader *r, bool *whole);

#endif
