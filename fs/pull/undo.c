#include "fs/pull/undo.h"
#include "fs/store/cache_budget.h"
#include "fs/store/content.h"
#include "fs/store/node_parts.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "fs/store/way_back.h"
#include "transports/base/log.h"
#include "transports/base/number.h"
#include "transports/delta/encode.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PART       2           /* of the version that a way back may take */
#define FREE_BYTES (1UL << 20) /* of any */
#define LEVEL      0           /* what is compressed costs time of a switch, and of the way back */

struct ws_undo {
    struct ws_version *version;
    struct ws_delta *delta;            /* counted */
    struct ws_element_widths **widths; /* by file */
    unsigned n_threads;
    struct scratch {
        struct ws_delta_block_encoder *encoder;
        unsigned char *out;
    } * scratch;          /* by thread */
    pthread_mutex_t lock; /* of adding, so that nothing is added once it has ended */
    atomic_bool given_up;
};

/* The version that it leads to, if it has a name; of a part, the whole's. With store->lock. */
static struct ws_version *find_before(struct ws_model *m, const struct ws_delta *d)
{
    const struct ws_delta_link *l = ws_delta_link(d);
    struct ws_model *base = ws_model_is_hidden(m) ? ws_node_parts_base(m) : m;

    return base ? ws_version_lookup(base, l->target.version, l->target.lineage) : NULL;
}

/* Of a part: the whole version's. */
static const char *model_name(const struct ws_version *v)
{
    return ws_part_view(v) ? ws_part_view(v)->whole->model->name : v->model->name;
}

/* The one from the version to that before it. With store->lock. */
static struct ws_delta *find_growing(const struct ws_version *v)
{
    const struct ws_version_id id = ws_version_id(v);

    return ws_way_back_growing(v->model, &id, v->digest);
}

static void give_up(struct ws_version *v, struct ws_delta *d, const char *why)
{
    struct ws_store *s = v->store;
    const uint64_t before = ws_delta_link(d)->target.version;
    char text[WS_ERROR_TEXT];

    snprintf(
        text, sizeof(text),
        "the one copy of %.200s went on to %lu, and there is no way back to %lu but to pull it again: %.400s",
        model_name(v), v->number, before, why);
    ws_log(WS_LOG_WARN, "store", "%s", text);
    pthread_mutex_lock(&s->lock);
    if (find_growing(v) == d) /* else it went with its version, and what is there now is another's */
        ws_way_back_clear(v->model);
    struct ws_version *w = find_before(v->model, d);
    if (w && !w->pull && w->own_bytes == 0) {
        free(w->error);
        w->error = strdup(text);
        w->error_code = w->error ? ESTALE : 0;
    }
    pthread_mutex_unlock(&s->lock);
    if (ws_delta_state(d) == WS_DELTA_GROWING)
        ws_delta_end(d, WS_DELTA_GIVEN_UP);
}

void ws_undo_begin(struct ws_source_select *sel, const struct ws_manifest *before)
{
    struct ws_version *v = sel->version;
    struct ws_delta_link link = {.base = ws_version_id(v),
                                 .target = ws_version_id_make(before->version, before->lineage)};
    struct ws_delta *d = NULL;

    memcpy(link.base_digest, v->digest, sizeof(link.base_digest));
    memcpy(link.target_digest, before->digest, sizeof(link.target_digest));
    if (ws_delta_new(&d, &link, atomic_load(&v->manifest), NULL) < 0) { /* both have the same files */
        ws_log(WS_LOG_WARN, "store", "no memory for the way back model=%s from=%lu to=%lu", v->model->name,
               v->number, before->version);
        return;
    }
    pthread_mutex_lock(&v->store->lock);
    if (v->named) /* else nothing takes it away again: it, or its model, was dropped */
        ws_way_back_add(v->model, d);
    else
        ws_delta_put(d);
    pthread_mutex_unlock(&v->store->lock);
}

void ws_undo_end(struct ws_version *v)
{
    struct ws_store *s = v->store;
    struct ws_delta_stats stats;
    char bytes[WS_NUMBER_CHARS];

    pthread_mutex_lock(&s->lock);
    struct ws_delta *d = find_growing(v);
    if (d)
        ws_delta_get(d);
    pthread_mutex_unlock(&s->lock);
    if (!d)
        return;
    ws_delta_end(d, WS_DELTA_WHOLE);
    ws_delta_stats(d, &stats);
    pthread_mutex_lock(&s->lock);
    ws_way_back_arrived(v);
    pthread_mutex_unlock(&s->lock);
    ws_number_size_text(stats.bytes, bytes);
    ws_log(WS_LOG_INFO, "store", "way back kept model=%s from=%lu to=%lu bytes=%s", v->model->name, v->number,
           ws_delta_link(d)->target.version, bytes);
    ws_delta_put(d);
}

/* --- writing --- */

/* The header of a part's file, which all of its versions have alike; the caller's. NULL: bytes, then. */
static struct ws_safetensors *read_part_header(struct ws_version *part, size_t file)
{
    const struct ws_manifest *m = atomic_load(&part->manifest);
    const uint64_t n = m->files[file].header_bytes;
    unsigned char *bytes = n > 0 ? malloc(n) : NULL;
    struct ws_safetensors *st = NULL;
    struct ws_error err;

    if (bytes) {
        ws_part_view_read(part, file, 0, n, bytes);
        if (ws_safetensors_parse(bytes, n, m->files[file].size_bytes, &st, &err) < 0)
            st = NULL;
    }
    free(bytes);
    return st;
}

static bool make_part_widths(struct ws_undo *u)
{
    const struct ws_manifest *m = atomic_load(&u->version->manifest);
    bool ok = true;

    for (size_t i = 0; ok && i < m->n_files; i++) {
        struct ws_safetensors *st = read_part_header(u->version, i);
        ok = (u->widths[i] = ws_element_widths_new(st)) != NULL;
        ws_safetensors_free(st);
    }
    return ok;
}

/* The elements are those of the version before: its header is here. */
static bool make_widths(struct ws_undo *u, struct ws_version *before)
{
    const struct ws_manifest *m = atomic_load(&u->version->manifest);
    const bool known = before && ws_version_has_manifest(before);
    struct ws_error err;
    bool ok = (u->widths = calloc(m->n_files + 1, sizeof(*u->widths))) != NULL;

    if (ok && ws_part_view(u->version))
        return make_part_widths(u);
    for (size_t i = 0; ok && i < m->n_files; i++) {
        const struct ws_safetensors *st =
            known ? ws_version_header(before, i, &err) : NULL; /* NULL: bytes, then */
        ok = (u->widths[i] = ws_element_widths_new(st)) != NULL;
    }
    return ok;
}

struct ws_undo *ws_undo_open(struct ws_source_select *sel, unsigned threads)
{
    struct ws_version *v = sel->version, *before = NULL;
    struct ws_undo *u = NULL;

    pthread_mutex_lock(&v->store->lock);
    struct ws_delta *d = find_growing(v);
    if (d) {
        ws_delta_get(d);
        before = find_before(v->model, d);
        if (before)
            ws_version_get(before);
    }
    pthread_mutex_unlock(&v->store->lock);
    if (!d)
        return NULL;
    u = calloc(1, sizeof(*u));
    if (u) {
        *u = (struct ws_undo){.version = v, .delta = ws_delta_get(d), .n_threads = threads};
        u->scratch = calloc(threads, sizeof(*u->scratch));
        pthread_mutex_init(&u->lock, NULL);
    }
    if (!u || !u->scratch || !make_widths(u, before)) {
        give_up(v, d, "out of memory");
        ws_undo_close(u);
        u = NULL;
    }
    if (before)
        ws_version_put(before);
    ws_delta_put(d);
    return u;
}

void ws_undo_close(struct ws_undo *u)
{
    if (!u)
        return;
    const struct ws_manifest *m = atomic_load(&u->version->manifest);
    for (size_t i = 0; u->widths && i < m->n_files; i++)
        free(u->widths[i]);
    free(u->widths);
    for (unsigned i = 0; u->scratch && i < u->n_threads; i++) {
        ws_delta_block_encoder_free(u->scratch[i].encoder);
        free(u->scratch[i].out);
    }
    free(u->scratch);
    ws_delta_put(u->delta);
    pthread_mutex_destroy(&u->lock);
    free(u);
}

/* NULL: no memory. *same: it becomes what it was. */
static struct ws_delta_record *make_record(struct ws_undo *u, unsigned thread, size_t file, size_t block,
                                           const unsigned char *was, const unsigned char *now, bool *same)
{
    const struct ws_manifest *m = atomic_load(&u->version->manifest);
    const size_t len = ws_manifest_block_bytes(&m->files[file], block);
    struct scratch *t = &u->scratch[thread];
    size_t bytes = 0;
    uint32_t changed = 0;
    int rc = -E2BIG;

    if (!t->encoder)
        t->encoder = ws_delta_block_encoder_new();
    if (!t->out)
        t->out = malloc(WS_BLOCK_BYTES);
    if (t->encoder && t->out)
        rc = ws_delta_block_encode(t->encoder, now, was, len, u->widths[file], block * WS_BLOCK_BYTES, t->out,
                                   &bytes, &changed);
    *same = rc == 0 && bytes == 0;
    if (rc == 0)
        return *same ? NULL
                     : ws_delta_record_make((uint32_t)file, (uint32_t)block, WS_DELTA_EDIT, changed, t->out,
                                            (uint32_t)bytes, LEVEL);
    return ws_delta_record_make((uint32_t)file, (uint32_t)block, WS_DELTA_BLOCK, changed, was, (uint32_t)len,
                                LEVEL);
}

/* Of the cache, also where the pull is stopped: what it overwrites until it ends is kept. What was charged for a way back
 * that is given up meanwhile is returned: -EEXIST. */
static int charge(struct ws_undo *u, uint64_t bytes, struct ws_error *err)
{
    struct ws_version *v = u->version;
    static const atomic_bool never;
    uint64_t borrowed = 0;
    int rc = ws_cache_budget_borrow(v, bytes, &borrowed, &never, err);

    pthread_mutex_lock(&v->store->lock);
    const bool goes_on = rc == 0 && find_growing(v) == u->delta;
    if (goes_on)
        v->model->way_back_bytes += borrowed;
    pthread_mutex_unlock(&v->store->lock);
    if (!goes_on && borrowed)
        ws_cache_budget_return(v->store, borrowed);
    return rc == 0 && !goes_on ? -EEXIST : rc;
}

static void end_with(struct ws_undo *u, const char *why)
{
    pthread_mutex_lock(&u->lock);
    const bool first = !atomic_exchange(&u->given_up, true);
    pthread_mutex_unlock(&u->lock);
    if (first)
        give_up(u->version, u->delta, why);
}

/* -EEXIST: it was given up meanwhile. */
static int add(struct ws_undo *u, struct ws_delta_record *r)
{
    int rc = -EEXIST;

    pthread_mutex_lock(&u->lock);
    if (!atomic_load(&u->given_up))
        rc = ws_delta_add(u->delta, r); /* it is the delta's now */
    else
        free(r);
    pthread_mutex_unlock(&u->lock);
    return rc;
}

/* A way back as large as the version would be a second copy of it. */
static bool is_too_much(struct ws_undo *u, uint64_t bytes)
{
    const struct ws_manifest *m = atomic_load(&u->version->manifest);
    struct ws_delta_stats stats;

    ws_delta_stats(u->delta, &stats);
    return stats.bytes + bytes > m->total_bytes / PART && stats.bytes + bytes > FREE_BYTES;
}

static void keep(struct ws_undo *u, unsigned thread, size_t file, size_t block, const unsigned char *was,
                 const unsigned char *now)
{
    struct ws_error err = {0};
    bool same;

    if (atomic_load(&u->given_up) || ws_delta_at(u->delta, file, block))
        return;
    struct ws_delta_record *r = make_record(u, thread, file, block, was, now, &same);
    if (same)
        return;
    int rc = r && is_too_much(u, r->bytes) ? ws_error_set(&err, ENOSPC, "half of it or more changed")
             : r                           ? charge(u, r->bytes, &err)
                                           : ws_error_set(&err, ENOMEM, "out of memory");
    if (rc == 0)
        rc = add(u, r);
    else
        free(r);
    if (rc < 0 && rc != -EEXIST)
        end_with(u, err.text[0] ? err.text : strerror(-rc));
}

bool ws_undo_is_needed(struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    const struct ws_part_view *view = ws_part_view(v);

    pthread_mutex_lock(&v->store->lock);
    bool needed = find_growing(v);
    pthread_mutex_unlock(&v->store->lock);
    needed = needed || (view && ws_renewal_is_any(view->parts->renewal));
    for (size_t i = 0; i < m->n_files && !needed; i++)
        needed = ws_content_region(v, i) && ws_region_was_shown(ws_content_region(v, i));
    return needed;
}

/* Its bytes lie in the whole's, where other parts are written at the same time. */
static int write_part(struct ws_undo *u, struct ws_version *part, unsigned thread, size_t file, size_t block,
                      const unsigned char *bytes, unsigned char *scratch, struct ws_error *err)
{
    const struct ws_manifest *m = atomic_load(&part->manifest);
    const uint64_t at = block * WS_BLOCK_BYTES, len = ws_manifest_block_bytes(&m->files[file], block);
    int rc;

    if (!ws_part_view_fits(part, file, at, len, bytes))
        return ws_error_set(err, ESTALE, "it is described otherwise");
    if (u) {
        ws_part_view_read(part, file, at, len, scratch);
        keep(u, thread, file, block, scratch, bytes);
    }
    rc = ws_part_view_renew(part, file, block, scratch, err);
    if (rc == 0 && !ws_part_view_write(part, file, at, len, bytes))
        rc = ws_error_set(err, ESTALE, "it is described otherwise");
    if (rc < 0 && u)
        end_with(u, err->text);
    return rc;
}

int ws_undo_write(struct ws_undo *u, struct ws_version *v, unsigned thread, size_t file, size_t block,
                  const unsigned char *bytes, unsigned char *scratch, struct ws_error *err)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_region *r = ws_content_region(v, file);
    const uint64_t at = block * WS_BLOCK_BYTES, len = ws_manifest_block_bytes(&m->files[file], block);
    int rc = 0;

    if (!r)
        return write_part(u, v, thread, file, block, bytes, scratch, err);
    if (u)
        keep(u, thread, file, block, ws_region_data(r) + at, bytes);
    if (ws_region_was_shown(r))
        rc = ws_region_renew(r, at, len, err);
    if (rc == 0)
        memcpy(ws_region_data(r) + at, bytes, len);
    else if (u)
        end_with(u, err->text);
    return rc;
}
