#include "transports/delta/stream.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#define MAGIC         "wsdelta\n"
#define LINEAGE_BYTES 40
#define HEX_BYTES     32
#define END           UINT32_MAX
#define HASH_BYTES    sizeof(uint64_t)

static unsigned char *put(unsigned char *p, const void *v, size_t n)
{
    memcpy(p, v, n);
    return p + n;
}

static unsigned char *put_u32(unsigned char *p, uint32_t v)
{
    return put(p, &v, sizeof(v));
}

static unsigned char *put_u64(unsigned char *p, uint64_t v)
{
    return put(p, &v, sizeof(v));
}

/* Lineages and digests have at most n characters; no zero ends one of n. */
static unsigned char *put_text(unsigned char *p, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = *text ? (unsigned char)*text++ : 0;
    return p + n;
}

static void write_head(const struct ws_delta_link *l, uint64_t n_blocks, unsigned part, unsigned parts,
                       unsigned char out[WS_DELTA_HEAD_BYTES])
{
    unsigned char *p = put(out, MAGIC, 8);
    p = put_u32(p, 1);
    p = put_u32(p, WS_DELTA_HEAD_BYTES);
    p = put_u64(p, l->base.version);
    p = put_u64(p, l->target.version);
    p = put_u64(p, n_blocks);
    p = put_u32(p, part);
    p = put_u32(p, parts);
    p = put_text(p, l->base.lineage, LINEAGE_BYTES);
    p = put_text(p, l->target.lineage, LINEAGE_BYTES);
    p = put_text(p, l->base_digest, HEX_BYTES);
    p = put_text(p, l->target_digest, HEX_BYTES);
    put_u64(p, XXH3_64bits(out, (size_t)(p - out)));
}

static void write_record(uint32_t file, uint32_t block, uint8_t kind, uint8_t packed, uint32_t n_changed,
                         uint32_t raw_bytes, uint32_t bytes, uint64_t hash, unsigned char *p)
{
    const uint8_t what[4] = {kind, packed, 0, 0};
    p = put_u32(p, file);
    p = put_u32(p, block);
    p = put(p, what, sizeof(what));
    p = put_u32(p, n_changed);
    p = put_u32(p, raw_bytes);
    p = put_u32(p, bytes);
    put_u64(p, hash);
}

void ws_delta_stream_record_head(const struct ws_delta_record *r, unsigned char out[WS_DELTA_RECORD_BYTES])
{
    write_record(r->file, r->block, r->kind, r->packed, r->n_changed, r->raw_bytes, r->bytes, r->hash, out);
}

static void write_end(bool given_up, uint32_t n_records, uint64_t hash, unsigned char *p)
{
    write_record(END, given_up, 0, 0, 0, 0, n_records, hash, p);
}

/* --- writing --- */

int ws_delta_stream_writer_init(struct ws_delta_stream_writer *w, struct ws_delta *d, unsigned part,
                                unsigned parts)
{
    *w = (struct ws_delta_stream_writer){.delta = d, .part = part, .parts = parts};
    w->hashes = XXH3_createState();
    if (!w->hashes || XXH3_64bits_reset(w->hashes) != XXH_OK)
        return -ENOMEM;
    write_head(ws_delta_link(d), ws_delta_blocks(d), part, parts, w->head);
    w->head_bytes = WS_DELTA_HEAD_BYTES;
    return 0;
}

void ws_delta_stream_writer_free(struct ws_delta_stream_writer *w)
{
    XXH3_freeState(w->hashes);
    w->hashes = NULL;
    ws_delta_coming_release(w->delta, w->coming);
    w->coming = NULL;
}

static void begin_record(struct ws_delta_stream_writer *w, const struct ws_delta_record *r)
{
    ws_delta_stream_record_head(r, w->head);
    (void)XXH3_64bits_update(w->hashes, &r->hash, HASH_BYTES);
    w->record = r;
    w->n_records++;
    w->head_bytes = WS_DELTA_RECORD_BYTES;
    w->head_at = w->data_at = 0;
}

static void begin_end(struct ws_delta_stream_writer *w, enum ws_delta_state state)
{
    write_end(state != WS_DELTA_WHOLE, w->n_records, XXH3_64bits_digest(w->hashes), w->head);
    w->record = NULL;
    w->ended = true;
    w->head_bytes = WS_DELTA_RECORD_BYTES;
    w->head_at = 0;
}

static bool takes(struct ws_delta_stream_writer *w, const struct ws_delta_record *r)
{
    const bool is_out = r == w->ahead;
    if (is_out)
        w->ahead = NULL;
    return !is_out &&
           (!w->filter || ws_delta_filter_has(w->filter, ws_delta_number(w->delta, r->file, r->block)));
}

/* Goes on to the next head when the last record is out; false: there is none yet. */
static bool advance(struct ws_delta_stream_writer *w)
{
    enum ws_delta_state state = ws_delta_part_state(w->delta, w->part, w->parts); /* before the last record */
    const struct ws_delta_record *r;
    do
        r = ws_delta_next(w->delta, &w->next, w->part, w->parts);
    while (r && !takes(w, r));
    if (!r && state == WS_DELTA_GROWING &&
        (w->coming = ws_delta_coming_get(w->delta, w->part, w->parts, w->filter)))
        r = w->ahead = w->coming->record;
    if (r)
        begin_record(w, r);
    else if (state != WS_DELTA_GROWING)
        begin_end(w, state);
    return r || state != WS_DELTA_GROWING;
}

/* The end of what is there of the record's data. false: it will never be whole. All of it is there only where the record is whole,
 * and that is seen a moment before its end is, or with it: one that has all of its data is not looked at again. */
static bool look_at_data(struct ws_delta_stream_writer *w, size_t *end)
{
    *end = w->record->bytes;
    if (!w->coming)
        return true;
    const bool ended = atomic_load(&w->coming->ended);
    *end = atomic_load(&w->coming->here);
    if (*end < w->record->bytes)
        return !ended;
    ws_delta_coming_release(w->delta, w->coming);
    w->coming = NULL;
    return true;
}

ssize_t ws_delta_stream_write(struct ws_delta_stream_writer *w, unsigned char *out, size_t n)
{
    size_t at = 0;
    while (at < n) {
        size_t left = w->head_bytes - w->head_at, more = left < n - at ? left : n - at;
        memcpy(out + at, w->head + w->head_at, more);
        w->head_at += more;
        at += more;
        if (w->head_at < w->head_bytes)
            break;
        if (w->record) {
            size_t end;
            if (!look_at_data(w, &end))
                return at > 0 ? (ssize_t)at : -2;
            left = end - w->data_at;
            more = left < n - at ? left : n - at;
            memcpy(out + at, w->record->data + w->data_at, more);
            w->data_at += more;
            at += more;
            if (w->data_at < w->record->bytes)
                break;
        }
        if (w->ended)
            return at > 0 ? (ssize_t)at : -1;
        if (!advance(w))
            break;
    }
    return (ssize_t)at;
}

uint64_t ws_delta_stream_bytes(const struct ws_delta *d, unsigned part, unsigned parts)
{
    uint64_t bytes = WS_DELTA_HEAD_BYTES + WS_DELTA_RECORD_BYTES;
    const struct ws_delta_record *r;
    for (size_t i = 0; (r = ws_delta_next(d, &i, part, parts));)
        bytes += WS_DELTA_RECORD_BYTES + r->bytes;
    return bytes;
}

/* --- reading --- */

struct ws_delta_stream_reader {
    struct ws_delta_link link;
    uint64_t n_blocks;
    struct ws_delta_stream_sink sink;
    unsigned char head[WS_DELTA_HEAD_BYTES]; /* of the stream, or of the record that is being read */
    size_t head_at;
    struct ws_delta_record *incoming; /* whose data is being read */
    struct ws_delta *grows;           /* borrowed; NULL: the record is not passed on before it is whole */
    struct ws_delta_coming *coming;   /* of that delta: the incoming record, which it owns */
    size_t data_at;
    uint32_t n_records;
    XXH3_state_t *hashes;
    bool begun, ended, whole;
};

struct ws_delta_stream_reader *ws_delta_stream_reader_new(const struct ws_delta_link *link, uint64_t n_blocks,
                                                          const struct ws_delta_stream_sink *sink)
{
    struct ws_delta_stream_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->link = *link;
    r->n_blocks = n_blocks;
    r->sink = *sink;
    r->hashes = XXH3_createState();
    if (!r->hashes || XXH3_64bits_reset(r->hashes) != XXH_OK) {
        ws_delta_stream_reader_free(r);
        return NULL;
    }
    return r;
}

/* The record is the sink's now, or nobody's. */
static void leave_incoming(struct ws_delta_stream_reader *r, bool is_damaged)
{
    if (r->coming)
        ws_delta_coming_leave(r->grows, r->coming, is_damaged);
    r->coming = NULL;
    r->incoming = NULL;
}

void ws_delta_stream_reader_free(struct ws_delta_stream_reader *r)
{
    if (!r)
        return;
    XXH3_freeState(r->hashes);
    if (!r->coming)
        free(r->incoming);
    leave_incoming(r, false);
    free(r);
}

static int damaged(struct ws_error *err, const char *what)
{
    return ws_error_set(err, EBADMSG, "the stream of a delta is damaged: %s", what);
}

static uint32_t u32_at(const unsigned char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static uint64_t u64_at(const unsigned char *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

static int read_head(struct ws_delta_stream_reader *r, struct ws_error *err)
{
    unsigned char want[WS_DELTA_HEAD_BYTES];
    const unsigned part = u32_at(r->head + 40), parts = u32_at(r->head + 44);
    if (memcmp(r->head, MAGIC, 8) != 0)
        return damaged(err, "it does not begin as one");
    if (u32_at(r->head + 8) != 1)
        return ws_error_set(err, EBADMSG, "the delta has format version %u; this build reads 1",
                            u32_at(r->head + 8));
    write_head(&r->link, r->n_blocks, part, parts, want);
    if (parts == 0 || part >= parts || memcmp(want, r->head, sizeof(want)) != 0)
        return damaged(err, "its head is another's, or damaged");
    r->begun = true;
    return 0;
}

static int read_end(struct ws_delta_stream_reader *r, struct ws_error *err)
{
    unsigned char want[WS_DELTA_RECORD_BYTES];
    const uint32_t given_up = u32_at(r->head + 4);
    write_end(given_up != 0, r->n_records, XXH3_64bits_digest(r->hashes), want);
    if (given_up > 1 || memcmp(want, r->head, sizeof(want)) != 0)
        return damaged(err, "records are missing, or its end is malformed");
    r->ended = true;
    r->whole = !given_up;
    return 0;
}

static int read_record_head(struct ws_delta_stream_reader *r, struct ws_error *err)
{
    const unsigned char *h = r->head;
    int rc;
    if (u32_at(h) == END)
        return read_end(r, err);
    const uint32_t raw = u32_at(h + 16), bytes = u32_at(h + 20);
    if ((h[8] != WS_DELTA_EDIT && h[8] != WS_DELTA_BLOCK) || h[9] > 1 || h[10] || h[11] ||
        raw > WS_BLOCK_BYTES || bytes > raw || raw == 0 || bytes == 0)
        return damaged(err, "a record's head is malformed");
    if (r->sink.admit && (rc = r->sink.admit(r->sink.arg, WS_DELTA_RECORD_BYTES + bytes, err)) < 0)
        return rc;
    if (!(r->incoming = ws_delta_record_new(bytes)))
        return ws_error_set(err, ENOMEM, "no memory for a record of %u bytes", bytes);
    r->incoming->file = u32_at(h);
    r->incoming->block = u32_at(h + 4);
    r->incoming->kind = h[8];
    r->incoming->packed = h[9];
    r->incoming->n_changed = u32_at(h + 12);
    r->incoming->raw_bytes = raw;
    r->incoming->hash = u64_at(h + 24);
    r->data_at = 0;
    r->grows = r->sink.grows ? r->sink.grows(r->sink.arg, r->incoming->file, r->incoming->block) : NULL;
    if (r->grows)
        r->coming = ws_delta_coming_begin(r->grows, &r->incoming);
    return 0;
}

/* An earlier reader of the record brought other bytes: one of the two is damaged. This one goes on by itself, and is passed on
 * when it is whole. */
static int leave_earlier(struct ws_delta_stream_reader *r, struct ws_error *err)
{
    const struct ws_delta_record *had = r->incoming;
    struct ws_delta_record *mine = ws_delta_record_new(had->bytes);
    if (!mine)
        return ws_error_set(err, ENOMEM, "no memory for a record of %u bytes", had->bytes);
    memcpy(mine, had, sizeof(*mine) + r->data_at);
    leave_incoming(r, true);
    r->incoming = mine;
    return 0;
}

/* Takes data of the incoming record; what an earlier reader of it has brought is there, and may be on its way to others. */
static int take_data(struct ws_delta_stream_reader *r, const unsigned char *p, size_t n, struct ws_error *err)
{
    const size_t had = r->coming ? r->coming->filled : r->data_at;
    size_t skipped = had <= r->data_at ? 0 : had - r->data_at < n ? had - r->data_at : n;
    if (skipped && memcmp(r->incoming->data + r->data_at, p, skipped) != 0) {
        const int rc = leave_earlier(r, err);
        if (rc < 0)
            return rc;
        skipped = 0;
    }
    memcpy(r->incoming->data + r->data_at + skipped, p + skipped, n - skipped);
    r->data_at += n;
    if (r->coming && n > skipped)
        ws_delta_coming_fill(r->grows, r->coming, r->data_at);
    return 0;
}

static int read_data(struct ws_delta_stream_reader *r, struct ws_error *err)
{
    struct ws_delta_record *done = r->incoming;
    if (ws_delta_record_hash(done) != done->hash) {
        if (!r->coming)
            free(done);
        leave_incoming(r, true);
        return damaged(err, "a record's hash differs");
    }
    (void)XXH3_64bits_update(r->hashes, &done->hash, HASH_BYTES);
    r->n_records++;
    const int rc = r->sink.record(r->sink.arg, done);
    leave_incoming(r, false);
    return rc;
}

int ws_delta_stream_read(struct ws_delta_stream_reader *r, const void *bytes, size_t n, struct ws_error *err)
{
    const unsigned char *p = bytes;
    int rc = 0;
    while (rc == 0 && n > 0) {
        if (r->ended)
            return damaged(err, "something follows its end");
        size_t want = r->incoming ? r->incoming->bytes - r->data_at
                                  : (r->begun ? WS_DELTA_RECORD_BYTES : WS_DELTA_HEAD_BYTES) - r->head_at;
        size_t more = want < n ? want : n;
        if (r->incoming) {
            rc = take_data(r, p, more, err);
            if (rc < 0)
                return rc;
        } else {
            memcpy(r->head + r->head_at, p, more);
            r->head_at += more;
        }
        p += more;
        n -= more;
        if (more < want)
            continue;
        r->head_at = 0;
        rc = r->incoming ? read_data(r, err) : r->begun ? read_record_head(r, err) : read_head(r, err);
    }
    return rc;
}

bool ws_delta_stream_reader_is_inside(const struct ws_delta_stream_reader *r)
{
    return r->incoming || r->head_at > 0;
}

bool ws_delta_stream_reader_ended(const struct ws_delta_stream_reader *r, bool *whole)
{
    *whole = r->whole;
    return r->ended;
}
