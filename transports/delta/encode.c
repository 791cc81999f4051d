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

struct job {
    struct ws_delta *delta;
    const struct ws_delta_side *target;
    struct file *files;
    size_t file; /* that is worked on */
    int level;
    uint64_t most_bytes;
    const atomic_bool *stop;
    atomic_bool given_up;
    struct scratch **scratch; /* by worker; NULL: it has made nothing yet */
};

static void free_scratch(struct scratch *t)
{
    if (t)
        ws_delta_block_encoder_free(t->encoder);
    free(t);
}

/* NULL: no memory. */
static struct scratch *scratch_of(struct job *m, unsigned worker)
{
    struct scratch *t = m->scratch[worker];
    if (t)
        return t;
    t = malloc(sizeof(*t));
    if (t && !(t->encoder = ws_delta_block_encoder_new())) {
        free(t);
        t = NULL;
    }
    return m->scratch[worker] = t;
}

static struct ws_delta_record *encode_block(struct job *m, struct scratch *t, size_t block)
{
    const struct ws_manifest_file *f = &m->target->manifest->files[m->file];
    const struct file *at = &m->files[m->file];
    const size_t len = ws_manifest_block_bytes(f, block), offset = block * WS_BLOCK_BYTES;
    const unsigned char *new = m->target->files[m->file] + offset;
    size_t bytes = 0;
    uint32_t changed = 0;
    int rc = -E2BIG;
    if (at->base)
        rc = ws_delta_block_encode(t->encoder, at->base + offset, new, len, at->widths, offset, t->out,
                                   &bytes, &changed);
    if (rc == 0)
        return ws_delta_record_make((uint32_t)m->file, (uint32_t)block, WS_DELTA_EDIT, changed, t->out,
                                    (uint32_t)bytes, m->level);
    return ws_delta_record_make((uint32_t)m->file, (uint32_t)block, WS_DELTA_BLOCK, changed, new,
                                (uint32_t)len, m->level);
}

static void make_block(void *arg, size_t block, unsigned worker)
{
    struct job *m = arg;
    const struct file *at = &m->files[m->file];
    struct ws_delta_stats stats;
    if (at->base_hashes && at->base_hashes[block] == m->target->manifest->files[m->file].hashes[block])
        return;
    if (ws_delta_at(m->delta, m->file, block))
        return;
    if (atomic_load(&m->given_up) || (m->stop && atomic_load(m->stop))) {
        atomic_store(&m->given_up, true);
        return;
    }
    struct scratch *t = scratch_of(m, worker);
    struct ws_delta_record *r = t ? encode_block(m, t, block) : NULL;
    if (!r || ws_delta_add(m->delta, r) < 0)
        atomic_store(&m->given_up, true);
    ws_delta_stats(m->delta, &stats);
    if (stats.bytes > m->most_bytes)
        atomic_store(&m->given_up, true);
}

/* How the elements of the target's file lie, and where its bytes are in the base. */
static bool open_file(struct job *m, const struct ws_delta_side *base, size_t i)
{
    const struct ws_manifest_file *f = &m->target->manifest->files[i];
    const struct ws_manifest_file *old = ws_manifest_find(base->manifest, f->name);
    struct ws_safetensors *st = NULL;
    if (f->header_bytes &&
        ws_safetensors_parse(m->target->files[i], f->header_bytes, f->size_bytes, &st, NULL) < 0)
        st = NULL; /* bytes, then */
    m->files[i].widths = ws_element_widths_new(st);
    ws_safetensors_free(st);
    if (old && old->size_bytes == f->size_bytes && f->size_bytes > 0) {
        m->files[i].base = base->files[old - base->manifest->files];
        m->files[i].base_hashes = old->hashes;
    }
    return m->files[i].widths;
}

void ws_delta_encode(struct ws_delta *d, const struct ws_delta_side *base, const struct ws_delta_side *target,
                     int level, uint64_t most_bytes, struct ws_workers *workers, const atomic_bool *stop)
{
    const size_t n = target->manifest->n_files;
    const unsigned n_workers = ws_workers_count(workers);
    struct job m = {.delta = d, .target = target, .level = level, .most_bytes = most_bytes, .stop = stop};
    struct ws_delta_stats had;
    ws_delta_stats(d, &had);
    atomic_init(&m.given_up, had.bytes > most_bytes);
    m.files = calloc(n ? n : 1, sizeof(*m.files));
    m.scratch = calloc(n_workers, sizeof(*m.scratch));
    bool ok = m.files && m.scratch;
    for (m.file = 0; ok && m.file < n && !atomic_load(&m.given_up); m.file++) {
        ok = open_file(&m, base, m.file);
        if (ok)
            ws_workers_run_indexed(workers, make_block, &m, target->manifest->files[m.file].n_blocks);
    }
    for (size_t i = 0; m.files && i < n; i++)
        free(m.files[i].widths);
    free(m.files);
    for (unsigned i = 0; m.scratch && i < n_workers; i++)
        free_scratch(m.scratch[i]);
    free(m.scratch);
    ws_delta_end(d, ok && !atomic_load(&m.given_up) ? WS_DELTA_WHOLE : WS_DELTA_GIVEN_UP);
}
