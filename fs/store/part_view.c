#include "fs/store/part_view.h"
#include "fs/store/content.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "transports/format/subset.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- of the whole --- */

static void free_parts(struct ws_parts *p, size_t n_files)
{
    for (size_t i = 0; p->left && i < n_files; i++)
        free(p->left[i]);
    free(p->left);
    free(p->files);
    ws_block_sums_free(p->sums);
    ws_renewal_free(p->renewal);
    ws_node_part_map_put(p->map);
    free(p);
}

/* Nothing of any part has come. */
static void expect_all(struct ws_parts *p, const struct ws_manifest *m)
{
    for (size_t i = 0; i < m->n_files; i++)
        for (size_t b = 0; b < m->files[i].n_blocks; b++)
            atomic_store(&p->left[i][b], (uint32_t)ws_manifest_block_bytes(&m->files[i], b));
}

int ws_parts_new(struct ws_version *whole, struct ws_node_part_map *map, unsigned n, struct ws_error *err)
{
    const struct ws_manifest *m = atomic_load(&whole->manifest);
    struct ws_parts *p = calloc(1, sizeof(*p));
    bool ok = p;

    if (p) {
        p->map = map;
        p->n = n;
        p->files = calloc(m->n_files + 1, sizeof(unsigned char *));
        p->left = calloc(m->n_files + 1, sizeof(*p->left));
        p->sums = ws_block_sums_new(m);
        p->renewal = ws_renewal_new(m);
        ok = p->files && p->left && p->sums && p->renewal;
    }
    for (size_t i = 0; ok && i < m->n_files; i++) {
        struct ws_region *r = ws_content_region(whole, i);
        const size_t n_blocks = m->files[i].n_blocks;
        p->files[i] = r ? ws_region_data(r) : NULL;
        p->left[i] = calloc(n_blocks + 1, sizeof(*p->left[i]));
        ok = p->left[i];
    }
    if (ok)
        expect_all(p, m);
    if (!ok) {
        if (p)
            free_parts(p, m->n_files);
        else
            ws_node_part_map_put(map);
        return ws_error_set(err, ENOMEM, "out of memory for the parts of %s/%lu", whole->model->name,
                            whole->number);
    }
    whole->parts = p;
    return 0;
}

void ws_parts_free(struct ws_version *whole)
{
    const struct ws_manifest *m = atomic_load(&whole->manifest);

    if (whole->parts)
        free_parts(whole->parts, m->n_files);
}

void ws_parts_hand_over(struct ws_version *from, struct ws_version *to)
{
    const struct ws_manifest *m = atomic_load(&to->manifest);
    struct ws_parts *p = from->parts;

    from->parts = NULL;
    to->parts = p;
    expect_all(p, m);
    atomic_store(&p->is_wrong, false);
    atomic_store(&p->differs, false);
    ws_block_sums_rebase(p->sums, m);
    ws_renewal_rebase(p->renewal, m);
    for (size_t i = 0; i < m->n_files; i++) {
        const struct ws_region *r = ws_content_region(to, i);
        ws_renewal_reset(p->renewal, i, r && ws_region_was_shown(r));
    }
}

/* --- what lay in a part's place --- */

struct ws_part_base *ws_part_base(const struct ws_version *part)
{
    const struct ws_part_view *view = ws_part_view(part);

    return view ? view->base : NULL;
}

bool ws_part_has_base(const struct ws_version *part)
{
    if (!ws_part_view(part))
        return false;
    pthread_mutex_lock(&part->store->lock);
    const bool has = ws_part_base(part);
    pthread_mutex_unlock(&part->store->lock);
    return has;
}

struct ws_part_base *ws_part_base_new(const struct ws_version *part)
{
    const struct ws_manifest *m = atomic_load(&part->manifest);
    struct ws_part_base *b = calloc(1, sizeof(*b));
    bool ok =
        b && ws_manifest_copy(m, &b->manifest) == 0 && (b->here = calloc(m->n_files + 1, sizeof(*b->here)));

    for (size_t i = 0; ok && i < m->n_files; i++)
        ok = (b->here[i] = calloc((m->files[i].n_blocks + 63) / 64 + 1, sizeof(*b->here[i])));
    if (ok)
        return b;
    ws_part_base_free(b);
    return NULL;
}

void ws_part_base_free(struct ws_part_base *b)
{
    if (!b)
        return;
    for (size_t i = 0; b->here && i < b->manifest->n_files; i++)
        free(b->here[i]);
    free(b->here);
    ws_manifest_free(b->manifest);
    free(b);
}

bool ws_part_base_is(const struct ws_part_base *b, const struct ws_version *v)
{
    return b->manifest->version == v->number && strcmp(b->manifest->lineage, v->lineage) == 0 &&
           strcmp(b->manifest->digest, v->digest) == 0;
}

void ws_part_base_forget(struct ws_version *part)
{
    struct ws_part_view *view = ws_part_view(part);
    struct ws_part_base *b = NULL;

    if (!view)
        return;
    pthread_mutex_lock(&part->store->lock);
    b = view->base;
    view->base = NULL;
    pthread_mutex_unlock(&part->store->lock);
    ws_part_base_free(b);
}

/* --- of a part --- */

struct ws_part_view *ws_part_view(const struct ws_version *v)
{
    return atomic_load_explicit(&v->view, memory_order_acquire);
}

/* Blocks that do not come count as here, so that a part of which the rest is here is complete. */
static void leave_out(struct ws_version *part, const struct ws_node_part_map *map)
{
    const struct ws_manifest *m = atomic_load(&part->manifest);

    for (size_t i = 0; ws_subset_is(map) && i < m->n_files; i++)
        for (size_t b = 0; b < m->files[i].n_blocks; b++)
            if (!ws_subset_wants(map, i, b) && !ws_content_has(part, i, b, 1))
                ws_content_arrived(part, i, b);
}

void ws_part_view_show(struct ws_version *part, struct ws_version *whole, unsigned index,
                       struct ws_part_base *base, struct ws_part_view **view)
{
    assert(!ws_part_view(part));
    leave_out(part, whole->parts->map);
    **view = (struct ws_part_view){
        .whole = ws_version_get(whole), .parts = whole->parts, .index = index, .base = base};
    atomic_store_explicit(&part->view, *view, memory_order_release);
    *view = NULL;
}

void ws_part_view_free(struct ws_version *part)
{
    struct ws_part_view *view = ws_part_view(part);

    if (view) {
        ws_version_put(view->whole);
        ws_part_base_free(view->base);
    }
    free(view);
}

static struct ws_node_part_range block_range(struct ws_version *part, size_t file, size_t block)
{
    const struct ws_manifest *m = atomic_load(&part->manifest);

    return (struct ws_node_part_range){.part = ws_part_view(part)->index,
                                       .file = file,
                                       .at = block * WS_BLOCK_BYTES,
                                       .n = ws_manifest_block_bytes(&m->files[file], block)};
}

bool ws_part_view_fits(struct ws_version *part, size_t file, uint64_t at, uint64_t n,
                       const unsigned char *bytes)
{
    const struct ws_part_view *view = ws_part_view(part);
    const struct ws_node_part_range r = {.part = view->index, .file = file, .at = at, .n = n};

    return ws_node_part_map_fits(view->parts->map, &r, bytes);
}

static void stored(void *arg, size_t file, uint64_t to, const unsigned char *bytes, uint64_t n)
{
    ws_block_sums_add(((struct ws_parts *)arg)->sums, file, to, bytes, n);
}

static struct ws_node_part_target target_of(struct ws_parts *parts)
{
    return (struct ws_node_part_target){.files = parts->files, .stored = stored, .arg = parts};
}

bool ws_part_view_write(struct ws_version *part, size_t file, uint64_t at, uint64_t n,
                        const unsigned char *bytes)
{
    const struct ws_part_view *view = ws_part_view(part);
    const struct ws_node_part_range r = {.part = view->index, .file = file, .at = at, .n = n};

    const struct ws_node_part_target target = target_of(view->parts);

    if (!ws_node_part_map_fits(view->parts->map, &r, bytes))
        return false;
    ws_node_part_map_scatter(view->parts->map, &r, bytes, &target);
    return true;
}

struct storing {
    struct ws_parts *parts;
    struct ws_block_sums_copy copy;
};

static void store_run(void *arg, size_t file, uint64_t to, const unsigned char *bytes, uint64_t n)
{
    const struct storing *s = arg;

    ws_block_sums_copy(s->parts->sums, &s->copy, file, to, s->parts->files[file] + to, bytes, n);
}

static void hash_own(void *arg, const unsigned char *bytes, uint64_t n)
{
    const struct storing *s = arg;

    ws_sums_flush(s->copy.seam, s->copy.hasher);
    ws_hasher_add(s->copy.hasher, bytes, n);
}

bool ws_part_view_store(struct ws_version *part, size_t file, uint64_t at, uint64_t n,
                        const unsigned char *bytes, struct ws_hasher *h, struct ws_sums_seam *seam)
{
    const struct ws_part_view *view = ws_part_view(part);
    const struct ws_manifest_file *f = &((struct ws_manifest *)atomic_load(&part->manifest))->files[file];
    const struct ws_node_part_range r = {.part = view->index, .file = file, .at = at, .n = n};
    struct storing s = {.parts = view->parts, .copy = {.hasher = h, .seam = seam}};
    const struct ws_node_part_store store = {.run = store_run, .own = hash_own, .arg = &s};
    const bool fits = ws_node_part_map_store(view->parts->map, &r, bytes, &store);

    if ((at + n) % WS_BLOCK_BYTES == 0 || at + n == f->size_bytes)
        ws_sums_flush(seam, h);
    return fits;
}

struct finding {
    struct ws_part_view *view;
    struct ws_part_runs *out;
    uint64_t n;
    bool many;
};

static void find_run(void *arg, size_t file, uint64_t to, uint64_t at, uint64_t n)
{
    struct finding *f = arg;
    struct ws_part_runs *o = f->out;

    (void)at;
    f->n += n;
    if (o->n > 0 && o->in[o->n - 1].file == file && o->in[o->n - 1].to + o->runs[o->n - 1].n == to) {
        o->runs[o->n - 1].n += n;
        return;
    }
    f->many = f->many || o->n == WS_PART_RUNS;
    if (f->many)
        return;
    o->in[o->n].file = file;
    o->in[o->n].to = to;
    o->runs[o->n++] = (struct ws_delta_run){.place = f->view->parts->files[file] + to, .n = n};
}

bool ws_part_view_runs(struct ws_version *part, size_t file, size_t block, struct ws_part_runs *out)
{
    const struct ws_node_part_range r = block_range(part, file, block);
    struct finding f = {.view = ws_part_view(part), .out = out};

    out->n = 0;
    if (ws_renewal_is_any(f.view->parts->renewal))
        return false;
    ws_node_part_map_each(f.view->parts->map, &r, find_run, &f);
    return !f.many && f.n == r.n;
}

void ws_part_view_wrote(struct ws_version *part, const struct ws_part_runs *runs, size_t run, size_t at,
                        size_t n)
{
    ws_block_sums_add(ws_part_view(part)->parts->sums, runs->in[run].file, runs->in[run].to + at,
                      runs->runs[run].place + at, n);
}

/* Blocks of the whole that a range of a part has bytes in. */
struct touching {
    struct ws_parts *parts;
    void (*block)(struct touching *t, size_t file, size_t block);
    uint64_t locks;
    struct ws_version *whole;
    unsigned char *scratch;
    int rc;
    struct ws_error *err;
};

static void touch_run(void *arg, size_t file, uint64_t to, uint64_t at, uint64_t n)
{
    struct touching *t = arg;

    (void)at;
    for (size_t b = to / WS_BLOCK_BYTES; b <= (to + n - 1) / WS_BLOCK_BYTES; b++)
        t->block(t, file, b);
}

static void collect_lock(struct touching *t, size_t file, size_t block)
{
    t->locks |= ws_renewal_lock_of(t->parts->renewal, file, block);
}

static void renew_block(struct touching *t, size_t file, size_t block)
{
    if (t->rc == 0 && ws_renewal_lock_of(t->parts->renewal, file, block))
        t->rc = ws_renewal_run(t->parts->renewal, ws_content_region(t->whole, file), file, block, t->scratch,
                               t->err);
}

int ws_part_view_renew(struct ws_version *part, size_t file, size_t block, unsigned char *scratch,
                       struct ws_error *err)
{
    const struct ws_part_view *view = ws_part_view(part);
    const struct ws_node_part_range r = block_range(part, file, block);
    struct touching t = {
        .parts = view->parts, .block = renew_block, .whole = view->whole, .scratch = scratch, .err = err};

    if (ws_renewal_is_any(view->parts->renewal))
        ws_node_part_map_each(view->parts->map, &r, touch_run, &t);
    return t.rc;
}

void ws_part_view_read(struct ws_version *part, size_t file, uint64_t at, uint64_t n, unsigned char *out)
{
    const struct ws_part_view *view = ws_part_view(part);
    const struct ws_node_part_range r = {.part = view->index, .file = file, .at = at, .n = n};
    struct touching t = {.parts = view->parts, .block = collect_lock};

    if (n == 0)
        return;
    if (ws_renewal_is_any(view->parts->renewal))
        ws_node_part_map_each(view->parts->map, &r, touch_run, &t);
    ws_renewal_hold(view->parts->renewal, t.locks);
    ws_node_part_map_gather(view->parts->map, &r, out, view->parts->files);
    ws_renewal_let_go(view->parts->renewal, t.locks);
}

/* Bytes of one block of the whole that have come, until those of another one come: most follow each other. */
struct count {
    struct ws_version *whole;
    size_t file, block;
    uint32_t bytes;
    bool any; /* a block of the whole is here now */
};

static void flush(struct count *c)
{
    struct ws_parts *p = c->whole->parts;
    struct ws_manifest_file *f = &((struct ws_manifest *)atomic_load(&c->whole->manifest))->files[c->file];

    if (c->bytes == 0)
        return;
    const uint32_t before = atomic_fetch_sub(&p->left[c->file][c->block], c->bytes);
    assert(before >= c->bytes);
    if (before == c->bytes) {
        const uint64_t hash =
            ws_block_sums_hash(p->sums, c->file, c->block, p->files[c->file] + c->block * WS_BLOCK_BYTES);
        if (atomic_load(&c->whole->unsealed))
            f->hashes[c->block] = hash;
        else if (f->hashes[c->block] != hash)
            atomic_store(&p->differs, true);
        ws_content_arrived(c->whole, c->file, c->block);
        c->any = true;
    }
    c->bytes = 0;
}

static void count_run(void *arg, size_t file, uint64_t to, uint64_t at, uint64_t n)
{
    struct count *c = arg;

    (void)at;
    while (n > 0) {
        const size_t block = (size_t)(to / WS_BLOCK_BYTES);
        const uint64_t room = WS_BLOCK_BYTES - to % WS_BLOCK_BYTES, here = n < room ? n : room;
        if (c->file != file || c->block != block)
            flush(c);
        c->file = file;
        c->block = block;
        c->bytes += (uint32_t)here;
        to += here;
        n -= here;
    }
}

void ws_part_view_arrived(struct ws_version *part, size_t file, size_t block)
{
    const struct ws_part_view *view = ws_part_view(part);
    const struct ws_node_part_range r = block_range(part, file, block);
    struct count c = {.whole = view->whole};

    ws_node_part_map_each(view->parts->map, &r, count_run, &c);
    flush(&c);
    if (c.any)
        ws_waiters_wake(view->whole);
}

struct making {
    struct count count;
    unsigned char *scratch;
    int rc;
    struct ws_error *err;
};

static void write_made(void *arg, size_t file, const unsigned char *bytes, uint64_t n)
{
    struct making *m = arg;
    struct ws_version *whole = m->count.whole;
    struct ws_parts *p = whole->parts;

    for (size_t b = 0; m->rc == 0 && b <= (n - 1) / WS_BLOCK_BYTES; b++)
        if (ws_renewal_lock_of(p->renewal, file, b))
            m->rc = ws_renewal_run(p->renewal, ws_content_region(whole, file), file, b, m->scratch, m->err);
    if (m->rc < 0)
        return;
    ws_block_sums_add(p->sums, file, 0, bytes, n);
    memcpy(p->files[file], bytes, n);
    count_run(&m->count, file, 0, 0, n);
}

int ws_part_view_write_made(struct ws_version *part, struct ws_error *err)
{
    const struct ws_part_view *view = ws_part_view(part);
    struct making m = {.count = {.whole = view->whole}, .scratch = malloc(WS_BLOCK_BYTES), .err = err};

    if (!m.scratch || ws_subset_each_made(view->parts->map, atomic_load(&part->manifest), write_made, &m) < 0)
        m.rc = ws_error_set(err, ENOMEM, "out of memory for %s/%lu", view->whole->model->name,
                            view->whole->number);
    flush(&m.count);
    free(m.scratch);
    if (m.rc < 0)
        atomic_store(&view->parts->is_wrong, true); /* what lacks is not written later */
    return m.rc;
}

bool ws_part_view_wants(const struct ws_version *v, size_t file, size_t block)
{
    const struct ws_part_view *view = ws_part_view(v);

    return !view || ws_subset_wants(view->parts->map, file, block);
}

uint64_t ws_part_view_bytes(const struct ws_version *v)
{
    const struct ws_part_view *view = ws_part_view(v);
    const struct ws_manifest *m = atomic_load(&v->manifest);

    return m->total_bytes - (view ? ws_subset_left_out_bytes(view->parts->map) : 0);
}

const unsigned char *ws_content_block(struct ws_version *v, size_t file, size_t block, unsigned char *buffer)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_region *r = ws_content_region(v, file);

    if (r)
        return (const unsigned char *)ws_region_data(r) + block * WS_BLOCK_BYTES;
    assert(ws_part_view(v));
    ws_part_view_read(v, file, block * WS_BLOCK_BYTES, ws_manifest_block_bytes(&m->files[file], block),
                      buffer);
    return buffer;
}
