#include "backends/trainer/astraflow/blob.h"
#include "transports/base/clock.h"
#include "transports/memory/available.h"
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HEAD_BYTES 16
#define SIZES      3 /* of elements: 1, 2, 4 */

/* A walk over the changed bytes of the buffer, in order. */
struct walk {
    const struct ws_delta *delta;
    const struct ws_lease *target;
    const struct ws_flat_view *buffer;
    const atomic_bool *stop;
    struct ws_delta_edit *edit;
    unsigned char *room;                        /* a record unpacked */
    void (*found)(struct walk *w, uint64_t at); /* a changed byte of the buffer */
    /* the block in hand */
    const unsigned char *block;
    int64_t shift;  /* from a byte of the block to one of the buffer */
    uint32_t first; /* bytes before it are a header's */
    /* counting: elements of 1, 2 and 4 bytes */
    uint64_t last[SIZES], counts[SIZES];
    /* writing */
    struct ws_blob *blob;
    unsigned log, index_bytes;
    uint64_t n;
};

/* --- changed bytes --- */

/* Bits that differ from the element's value before, which is the new one less the change. */
static uint32_t difference(const unsigned char *p, unsigned width, uint32_t change)
{
    uint64_t z = (uint64_t)change + 1, d = z & 1 ? -((z + 1) / 2) : z / 2;
    uint32_t now = 0;
    memcpy(&now, p, width);
    now = le32toh(now);
    return (now ^ (uint32_t)(now - d)) & (width == 4 ? UINT32_MAX : (1U << 8 * width) - 1);
}

static void on_change(void *arg, uint32_t byte, unsigned width, uint32_t change)
{
    struct walk *w = arg;
    uint32_t differs = difference(w->block + byte, width, change);
    for (unsigned i = 0; i < width; i++, differs >>= 8)
        if (differs & 0xff && byte + i >= w->first)
            w->found(w, (uint64_t)(w->shift + byte + i));
}

static int walk_record(struct walk *w, const struct ws_delta_record *r, size_t len, struct ws_error *err)
{
    if (r->kind == WS_DELTA_BLOCK) { /* a whole block: what changed in it is not known, so all of it is */
        for (size_t i = w->first; i < len; i++)
            w->found(w, (uint64_t)(w->shift + (int64_t)i));
        return 0;
    }
    const unsigned char *raw = ws_delta_record_raw(r, w->room);
    if (!raw)
        return ws_error_set(err, EBADMSG, "a record of the delta is damaged");
    int rc = ws_delta_edit_read(w->edit, raw, r->raw_bytes, len, err);
    if (rc == 0)
        ws_delta_edit_each(w->edit, on_change, w);
    return rc;
}

static int walk_file(struct walk *w, size_t file, uint64_t buffer_at, struct ws_error *err)
{
    const struct ws_manifest_file *f = &w->target->manifest->files[file];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < f->n_blocks; i++) {
        const struct ws_delta_record *r = ws_delta_at(w->delta, file, i);
        uint64_t at = i * WS_BLOCK_BYTES, end = at + ws_manifest_block_bytes(f, i);
        if (!r || end <= f->header_bytes)
            continue;
        if (atomic_load(w->stop))
            return ws_error_set(err, ECANCELED,
                                "the trainer wants the memory of the version for a newer one");
        w->block = ws_region_data(w->target->regions[file]) + at;
        w->shift = (int64_t)(buffer_at + at) - (int64_t)f->header_bytes;
        w->first = f->header_bytes > at ? (uint32_t)(f->header_bytes - at) : 0;
        rc = walk_record(w, r, end - at, err);
    }
    return rc;
}

static int walk_all(struct walk *w, struct ws_error *err)
{
    const struct ws_manifest *m = w->target->manifest;
    uint64_t at = 0;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        if (!m->files[i].header_bytes)
            continue;
        rc = walk_file(w, i, at, err);
        at += m->files[i].size_bytes - m->files[i].header_bytes;
    }
    return rc;
}

/* --- counting --- */

static void count_byte(struct walk *w, uint64_t at)
{
    for (unsigned k = 0; k < SIZES; k++) {
        if (w->last[k] != at >> k || w->counts[k] == 0) {
            w->last[k] = at >> k;
            w->counts[k]++;
        }
    }
}

static unsigned index_bytes(const struct ws_flat_view *b, unsigned log)
{
    return b->total_bytes >> log > UINT32_MAX ? 8 : 4;
}

/* The size of elements that gives the smallest blob, as a power of two. */
static unsigned best_size(const struct walk *w, uint64_t *n_bytes)
{
    unsigned best = 0;
    *n_bytes = UINT64_MAX;
    for (unsigned k = 0; k < SIZES; k++) {
        uint64_t n = HEAD_BYTES + w->counts[k] * (index_bytes(w->buffer, k) + (1U << k));
        if (n < *n_bytes && w->buffer->total_bytes % (1U << k) == 0) {
            *n_bytes = n;
            best = k;
        }
    }
    return best;
}

/* --- writing --- */

/* An element may lie across two files' ends. */
static void copy_out(const struct ws_flat_view *b, uint64_t at, unsigned char *out, size_t n)
{
    for (size_t i = 0; i < b->n_parts && n > 0; i++) {
        size_t len = b->parts[i].iov_len, some;
        if (at >= len) {
            at -= len;
            continue;
        }
        some = len - at < n ? len - at : n;
        memcpy(out, (const unsigned char *)b->parts[i].iov_base + at, some);
        out += some;
        n -= some;
        at = 0;
    }
    assert(n == 0);
}

static void write_byte(struct walk *w, uint64_t at)
{
    uint64_t index = at >> w->log, element = 1U << w->log;
    struct ws_blob *b = w->blob;
    unsigned char *indices = b->bytes + HEAD_BYTES, *values = indices + b->count * w->index_bytes;
    int64_t in_block = (int64_t)(index << w->log) - w->shift;
    if (w->n > 0 && w->last[0] == index)
        return;
    assert(w->n < b->count); /* as many as were counted */
    w->last[0] = index;
    if (w->index_bytes == 8)
        memcpy(indices + w->n * 8, &(uint64_t){htole64(index)}, 8);
    else
        memcpy(indices + w->n * 4, &(uint32_t){htole32((uint32_t)index)}, 4);
    if (element == 1)
        values[w->n] = w->block[in_block];
    else
        copy_out(w->buffer, index << w->log, values + w->n * element, element);
    w->n++;
}

static void write_head(struct ws_blob *b, unsigned index_width)
{
    uint64_t count = htole64(b->count);
    uint16_t numbers[] = {htole16((uint16_t)b->element_bytes), htole16(index_width == 8)};
    memcpy(b->bytes, &count, 8);
    memcpy(b->bytes + 8, numbers, 4);
    memset(b->bytes + 12, 0, 4);
}

static int make(struct walk *w, struct ws_blob **out, struct ws_error *err)
{
    const uint64_t began = ws_clock_ns();
    uint64_t n_bytes;
    w->found = count_byte;
    int rc = walk_all(w, err);
    if (rc < 0)
        return rc;
    w->log = best_size(w, &n_bytes);
    if (n_bytes > w->buffer->total_bytes || (n_bytes > w->buffer->total_bytes / 2 && n_bytes > HEAD_BYTES))
        return ws_error_set(err, E2BIG, "a delta of %" PRIu64 " bytes is over half of the version", n_bytes);
    rc = ws_memory_check(n_bytes, "a delta for AstraFlow's receivers", err);
    if (rc < 0)
        return rc;
    struct ws_blob *b = w->blob = malloc(sizeof(*b) + n_bytes);
    if (!b)
        return ws_error_set(err, ENOMEM, "no memory for a delta of %" PRIu64 " bytes", n_bytes);
    *b = (struct ws_blob){.refs = 1,
                          .base = ws_delta_link(w->delta)->base,
                          .target = ws_delta_link(w->delta)->target,
                          .buffer_bytes = w->buffer->total_bytes,
                          .count = w->counts[w->log],
                          .element_bytes = 1U << w->log,
                          .n_bytes = n_bytes};
    memcpy(b->layout, w->buffer->layout, sizeof(b->layout));
    w->index_bytes = index_bytes(w->buffer, w->log);
    w->found = write_byte;
    write_head(b, w->index_bytes);
    rc = walk_all(w, err);
    if (rc < 0) {
        free(b);
        return rc;
    }
    assert(w->n == b->count);
    b->seconds = (double)(ws_clock_ns() - began) / 1e9;
    *out = b;
    return 0;
}

int ws_blob_new(struct ws_blob **out, const struct ws_delta *delta, const struct ws_lease *target,
                const struct ws_flat_view *buffer, const atomic_bool *stop, struct ws_error *err)
{
    struct walk w = {.delta = delta,
                     .target = target,
                     .buffer = buffer,
                     .stop = stop,
                     .edit = ws_delta_edit_new(),
                     .room = malloc(WS_BLOCK_BYTES + WS_DELTA_PAD_BYTES)};
    int rc = w.edit && w.room ? make(&w, out, err) : ws_error_set(err, ENOMEM, "no memory for a delta");
    ws_delta_edit_free(w.edit);
    free(w.room);
    return rc;
}

struct ws_blob *ws_blob_get(struct ws_blob *b)
{
    atomic_fetch_add(&b->refs, 1);
    return b;
}

void ws_blob_put(struct ws_blob *b)
{
    if (b && atomic_fetch_sub(&b->refs, 1) == 1)
        free(b);
}
