#include "transports/delta/encode.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What one worker has. */
struct scratch {
    struct ws_delta_block_encoder *encoder;
    unsigned char out[WS_BLOCK_BYTES];
};

struct file {
    struct ws_element_widths *widths;
    const unsigned char *base; /* of the file with this name and size in the base; NULL: there is none */
    const uint64_t *base_hashes;
};

struct ws_delta_comparer {
    struct ws_delta_side target;
    int level;
    struct file *files;
    unsigned n_workers;
    struct scratch **scratch; /* by worker; NULL: it has made nothing yet */
};

/* --- blocks --- */

static void free_scratch(struct scratch *t)
{
    if (t)
        ws_delta_block_encoder_free(t->encoder);
    free(t);
}

/* NULL: no memory. */
static struct scratch *scratch_of(struct ws_delta_comparer *c, unsigned worker)
{
    struct scratch *t = c->scratch[worker];
    if (t)
        return t;
    t = malloc(sizeof(*t));
    if (t && !(t->encoder = ws_delta_block_encoder_new())) {
        free(t);
        t = NULL;
    }
    return c->scratch[worker] = t;
}

bool ws_delta_comparer_is_equal(const struct ws_delta_comparer *c, size_t file, size_t block)
{
    const uint64_t *base = c->files[file].base_hashes;
    return base && base[block] == c->target.manifest->files[file].hashes[block];
}

struct ws_delta_record *ws_delta_comparer_block(struct ws_delta_comparer *c, size_t file, size_t block,
                                                unsigned worker)
{
    const struct file *at = &c->files[file];
    const size_t len = ws_manifest_block_bytes(&c->target.manifest->files[file], block),
                 offset = block * WS_BLOCK_BYTES;
    const unsigned char *new = c->target.files[file] + offset;
    struct scratch *t = scratch_of(c, worker);
    size_t bytes = 0;
    uint32_t changed = 0;
    int rc = -E2BIG;
    if (!t)
        return NULL;
    if (at->base)
        rc = ws_delta_block_encode(t->encoder, at->base + offset, new, len, at->widths, offset, t->out,
                                   &bytes, &changed);
    if (rc == 0)
        return ws_delta_record_make((uint32_t)file, (uint32_t)block, WS_DELTA_EDIT, changed, t->out,
                                    (uint32_t)bytes, c->level);
    return ws_delta_record_make((uint32_t)file, (uint32_t)block, WS_DELTA_BLOCK, changed, new, (uint32_t)len,
                                c->level);
}

/* How the elements of the target's file lie, and where its bytes are in the base. */
static bool open_file(struct ws_delta_comparer *c, const struct ws_delta_side *base, size_t i)
{
    const struct ws_manifest_file *f = &c->target.manifest->files[i];
    const struct ws_manifest_file *old = ws_manifest_find(base->manifest, f->name);
    struct ws_safetensors *st = NULL;
    if (f->header_bytes &&
        ws_safetensors_parse(c->target.files[i], f->header_bytes, f->size_bytes, &st, NULL) < 0)
        st = NULL; /* bytes, then */
    c->files[i].widths = ws_element_widths_new(st);
    ws_safetensors_free(st);
    if (old && old->size_bytes == f->size_bytes && f->size_bytes > 0) {
        c->files[i].base = base->files[old - base->manifest->files];
        c->files[i].base_hashes = old->hashes;
    }
    return c->files[i].widths;
}

struct ws_delta_comparer *ws_delta_comparer_new(const struct ws_delta_side *base,
                                                const struct ws_delta_side *target, int level,
                                                unsigned n_workers)
{
    const size_t n = target->manifest->n_files;
    struct ws_delta_comparer *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->target = *target;
    c->level = level;
    c->n_workers = n_workers;
    c->files = calloc(n ? n : 1, sizeof(*c->files));
    c->scratch = calloc(n_workers, sizeof(*c->scratch));
    bool ok = c->files && c->scratch;
    for (size_t i = 0; ok && i < n; i++)
        ok = open_file(c, base, i);
    if (ok)
        return c;
    ws_delta_comparer_free(c);
    return NULL;
}

void ws_delta_comparer_free(struct ws_delta_comparer *c)
{
    if (!c)
        return;
    for (size_t i = 0; c->files && i < c->target.manifest->n_files; i++)
        free(c->files[i].widths);
    free(c->files);
    for (unsigned i = 0; c->scratch && i < c->n_workers; i++)
        free_scratch(c->scratch[i]);
    free(c->scratch);
    free(c);
}

/* --- all of them --- */

struct job {
    struct ws_delta *delta;
    struct ws_delta_comparer *comparer;
    size_t file; /* that is worked on */
    uint64_t most_bytes;
    const atomic_bool *stop;
    atomic_bool given_up;
};

static void make_block(void *arg, size_t block, unsigned worker)
{
    struct job *m = arg;
    struct ws_delta_stats stats;
    if (ws_delta_comparer_is_equal(m->comparer, m->file, block) || ws_delta_at(m->delta, m->file, block))
        return;
    if (atomic_load(&m->given_up) || (m->stop && atomic_load(m->stop))) {
        atomic_store(&m->given_up, true);
        return;
    }
    struct ws_delta_record *r = ws_delta_comparer_block(m->comparer, m->file, block, worker);
    if (!r || ws_delta_add(m->delta, r) < 0)
        atomic_store(&m->given_up, true);
    ws_delta_stats(m->delta, &stats);
    if (stats.bytes > m->most_bytes)
        atomic_store(&m->given_up, true);
}

void ws_delta_encode(struct ws_delta *d, const struct ws_delta_side *base, const struct ws_delta_side *target,
                     int level, uint64_t most_bytes, struct ws_workers *workers, const atomic_bool *stop)
{
    const struct ws_manifest *to = target->manifest;
    struct job m = {.delta = d, .most_bytes = most_bytes, .stop = stop};
    struct ws_delta_stats had;
    ws_delta_stats(d, &had);
    atomic_init(&m.given_up, had.bytes > most_bytes);
    m.comparer = ws_delta_comparer_new(base, target, level, ws_workers_count(workers));
    for (m.file = 0; m.comparer && m.file < to->n_files && !atomic_load(&m.given_up); m.file++)
        ws_workers_run_indexed(workers, make_block, &m, to->files[m.file].n_blocks);
    const bool ok = m.comparer && !atomic_load(&m.given_up);
    ws_delta_comparer_free(m.comparer);
    ws_delta_end(d, ok ? WS_DELTA_WHOLE : WS_DELTA_GIVEN_UP);
}
