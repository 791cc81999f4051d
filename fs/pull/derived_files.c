#include "fs/pull/derived_files.h"
#include "fs/store/content.h"
#include "transports/base/clock.h"
#include "transports/base/vector.h"
#include "transports/base/workers.h"
#include "transports/format/folder_index.h"
#include "transports/quant/derive.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG      "config.json"
#define PIECE_BYTES (4UL << 20) /* of the source: some milliseconds of work */
#define BATCH       64          /* pieces or blocks between two looks at what failed */

/* Rows of one tensor. */
struct piece {
    size_t job;
    uint64_t row, n_rows;
};
WS_VECTOR(pieces, struct piece);

/* Where the bytes of a file of the view come from. */
struct origin {
    const struct ws_derive_file *derived; /* NULL: bytes are copied */
    const void *bytes;                    /* its header, or all of it */
    size_t n_bytes;
};

struct ws_derived_files {
    const struct ws_derived_view *derived;
    struct ws_version *source;
    struct ws_manifest *manifest;
    struct ws_derive *derive;
    struct ws_derive_source_file *tensors; /* the source's safetensors files */
    size_t *places, n_tensors;             /* and which of its files they are */
    struct origin *origins;                /* by file of the manifest */
    unsigned char **targets;               /* memory of derive's files */
    struct pieces pieces;
    struct ws_region *const *regions;
    const atomic_bool *stop;
    _Atomic(uint64_t) *progress_ns;
    size_t first; /* of the batch */
    size_t file;  /* whose blocks are hashed */
    pthread_mutex_t lock;
    int failed;          /* guarded by lock: of the first piece that failed */
    struct ws_error err; /* likewise */
};

static int out_of_memory(const struct ws_derived_files *f, struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "out of memory for %s/%lu", f->derived->view, f->source->number);
}

static const unsigned char *bytes_of(const struct ws_derived_files *f, size_t file)
{
    struct ws_region *r = ws_content_region(f->source, file);
    return r ? ws_region_data(r) : NULL;
}

/* --- what is to be made --- */

static int find_tensors(struct ws_derived_files *f, const struct ws_manifest *m, struct ws_error *err)
{
    f->tensors = calloc(m->n_files + 1, sizeof(*f->tensors));
    f->places = calloc(m->n_files + 1, sizeof(*f->places));
    if (!f->tensors || !f->places)
        return out_of_memory(f, err);
    for (size_t i = 0; i < m->n_files; i++) {
        if (!m->files[i].header_bytes)
            continue;
        const struct ws_safetensors *st = ws_version_header(f->source, i, err);
        if (!st)
            return -err->code;
        f->places[f->n_tensors] = i;
        f->tensors[f->n_tensors++] = (struct ws_derive_source_file){m->files[i].name, st};
    }
    return 0;
}

static int plan(struct ws_derived_files *f, const struct ws_manifest *m, struct ws_error *err)
{
    const struct ws_manifest_file *config = ws_manifest_find(m, CONFIG);

    const struct ws_derive_source source = {
        .files = f->tensors,
        .n_files = f->n_tensors,
        .config = config ? (const char *)bytes_of(f, (size_t)(config - m->files)) : NULL,
        .config_bytes = config ? config->size_bytes : 0,
        .has_index = ws_manifest_find(m, WS_FOLDER_INDEX_NAME),
    };
    const int rc =
        ws_derive_new(&source, f->derived->recipe, &f->derived->options, m->digest, &f->derive, err);
    if (rc < 0)
        ws_error_prefix(err, "%s/%lu cannot be made of %s", f->derived->view, m->version, m->model);
    return rc;
}

static int cut_pieces(struct ws_derived_files *f, struct ws_error *err)
{
    for (size_t j = 0; j < f->derive->n_jobs; j++) {
        const struct ws_derive_job *job = &f->derive->jobs[j];
        const uint64_t steps = job->rows ? PIECE_BYTES / (job->row_bytes * job->step_rows) : 0;
        const uint64_t rows = (steps ? steps : 1) * job->step_rows;
        for (uint64_t row = 0; row < job->rows; row += rows) {
            const struct piece p = {j, row, job->rows - row < rows ? job->rows - row : rows};
            if (pieces_append(&f->pieces, p) < 0)
                return out_of_memory(f, err);
        }
    }
    return 0;
}

/* --- its manifest --- */

static int add_files(struct ws_derived_files *f, const struct ws_manifest *m, struct ws_error *err)
{
    struct ws_manifest_file *added;
    int rc = ws_manifest_new(&f->manifest, f->derived->view, m->version, m->lineage, err);

    for (size_t i = 0; i < f->derive->n_files && rc == 0; i++) {
        const struct ws_derive_file *d = &f->derive->files[i];
        rc = ws_manifest_add(f->manifest, d->name, d->st->file_bytes, d->st->data_begin, &added, err);
    }
    for (size_t i = 0; i < m->n_files && rc == 0; i++) {
        const struct ws_manifest_file *s = &m->files[i];
        const uint64_t bytes = strcmp(s->name, CONFIG) == 0                 ? f->derive->config_bytes
                               : strcmp(s->name, WS_FOLDER_INDEX_NAME) == 0 ? f->derive->index_bytes
                                                                            : s->size_bytes;
        if (!s->header_bytes)
            rc = ws_manifest_add(f->manifest, s->name, bytes, 0, &added, err);
    }
    if (rc == 0)
        f->manifest->created_ns = m->created_ns;
    for (size_t i = 0; rc == 0 && i < f->manifest->n_files; i++)
        f->manifest->total_bytes += f->manifest->files[i].size_bytes;
    return rc;
}

static struct origin origin_of(const struct ws_derived_files *f, const char *name)
{
    const struct ws_manifest *m = atomic_load(&f->source->manifest);
    const struct ws_manifest_file *s = ws_manifest_find(m, name);

    for (size_t i = 0; i < f->derive->n_files; i++) {
        const struct ws_derive_file *d = &f->derive->files[i];
        if (strcmp(d->name, name) == 0)
            return (struct origin){d, d->header, d->st->data_begin};
    }
    if (strcmp(name, CONFIG) == 0)
        return (struct origin){NULL, f->derive->config, f->derive->config_bytes};
    if (strcmp(name, WS_FOLDER_INDEX_NAME) == 0)
        return (struct origin){NULL, f->derive->index, f->derive->index_bytes};
    assert(s);
    return (struct origin){NULL, bytes_of(f, (size_t)(s - m->files)), s->size_bytes};
}

static int find_origins(struct ws_derived_files *f, struct ws_error *err)
{
    f->origins = calloc(f->manifest->n_files + 1, sizeof(*f->origins));
    f->targets = calloc(f->derive->n_files + 1, sizeof(*f->targets));
    if (!f->origins || !f->targets)
        return out_of_memory(f, err);
    for (size_t i = 0; i < f->manifest->n_files; i++)
        f->origins[i] = origin_of(f, f->manifest->files[i].name);
    return 0;
}

int ws_derived_files_new(struct ws_derived_files **out, const struct ws_derived_view *derived,
                         struct ws_version *source, struct ws_error *err)
{
    const struct ws_manifest *m = atomic_load(&source->manifest);
    struct ws_derived_files *f = calloc(1, sizeof(*f));
    int rc;

    if (!f)
        return ws_error_set(err, ENOMEM, "out of memory for %s/%lu", derived->view, source->number);
    f->derived = derived;
    f->source = source;
    pthread_mutex_init(&f->lock, NULL);
    rc = find_tensors(f, m, err);
    if (rc == 0)
        rc = plan(f, m, err);
    if (rc == 0)
        rc = cut_pieces(f, err);
    if (rc == 0)
        rc = add_files(f, m, err);
    if (rc == 0)
        rc = find_origins(f, err);
    if (rc == 0)
        *out = f;
    else
        ws_derived_files_free(f);
    return rc;
}

const struct ws_manifest *ws_derived_files_manifest(const struct ws_derived_files *f)
{
    return f->manifest;
}

struct ws_manifest *ws_derived_files_take_manifest(struct ws_derived_files *f)
{
    struct ws_manifest *m = f->manifest;

    f->manifest = NULL;
    return m;
}

void ws_derived_files_free(struct ws_derived_files *f)
{
    if (!f)
        return;
    ws_manifest_free(f->manifest);
    ws_derive_free(f->derive);
    pieces_reset(&f->pieces);
    free(f->tensors);
    free(f->places);
    free(f->origins);
    free(f->targets);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

/* --- the work --- */

static void do_piece(void *arg, size_t i)
{
    struct ws_derived_files *f = arg;
    const struct piece *p = &f->pieces.ptr[f->first + i];
    const struct ws_derive_job *job = &f->derive->jobs[p->job];
    void *dst[WS_RECIPE_MAX_TARGETS] = {0};
    uint64_t begin, end;
    struct ws_error err = {0};

    if (atomic_load(f->stop))
        return;
    for (unsigned k = 0; k < job->n_targets; k++) {
        ws_derive_target_range(f->derive, job, k, p->row, p->n_rows, &begin, &end);
        dst[k] = f->targets[job->file] + begin;
    }
    ws_derive_source_range(job, p->row, p->n_rows, &begin, &end);
    const int rc = ws_derive_run(f->derive, job, p->row, p->n_rows, bytes_of(f, f->places[job->file]) + begin,
                                 dst, &err);
    if (rc == 0)
        return;
    pthread_mutex_lock(&f->lock);
    if (f->failed == 0) {
        f->failed = rc;
        f->err = err;
    }
    pthread_mutex_unlock(&f->lock);
}

static void hash_block(void *arg, size_t i)
{
    struct ws_derived_files *f = arg;
    struct ws_manifest_file *file = &f->manifest->files[f->file];
    const size_t block = f->first + i;

    if (!atomic_load(f->stop))
        file->hashes[block] = ws_hash(ws_region_data(f->regions[f->file]) + block * WS_BLOCK_BYTES,
                                      ws_manifest_block_bytes(file, block));
}

static int run(struct ws_derived_files *f, struct ws_workers *workers, void (*job)(void *arg, size_t i),
               size_t n, struct ws_error *err)
{
    for (f->first = 0; f->first < n && f->failed == 0; f->first += BATCH) {
        ws_workers_run(workers, job, f, n - f->first < BATCH ? n - f->first : BATCH);
        atomic_store(f->progress_ns, ws_clock_ns());
        if (atomic_load(f->stop))
            return ws_error_set(err, ECANCELED, "the making of %s/%lu was stopped", f->derived->view,
                                f->source->number);
    }
    return 0;
}

/* Everything but tensors. */
static void copy_texts(struct ws_derived_files *f)
{
    for (size_t i = 0; i < f->manifest->n_files; i++) {
        const struct origin *o = &f->origins[i];
        unsigned char *to = f->regions[i] ? ws_region_data(f->regions[i]) : NULL;
        if (o->n_bytes)
            memcpy(to, o->bytes, o->n_bytes);
        if (o->derived)
            f->targets[o->derived - f->derive->files] = to;
    }
}

int ws_derived_files_make(struct ws_derived_files *f, struct ws_region *const *regions,
                          const atomic_bool *stop, _Atomic(uint64_t) *progress_ns, struct ws_error *err)
{
    const struct ws_store_options *o = &f->source->store->options;
    struct ws_workers *workers = ws_workers_new(o->threads, o->nice);
    int rc;

    if (!workers)
        return out_of_memory(f, err);
    f->regions = regions;
    f->stop = stop;
    f->progress_ns = progress_ns;
    copy_texts(f);
    rc = run(f, workers, do_piece, f->pieces.len, err);
    if (rc == 0 && f->failed) {
        rc = f->failed;
        *err = f->err;
        ws_error_prefix(err, "%s/%lu cannot be made of %s", f->derived->view, f->source->number,
                        f->derived->source);
    }
    for (f->file = 0; f->file < f->manifest->n_files && rc == 0; f->file++)
        rc = run(f, workers, hash_block, f->manifest->files[f->file].n_blocks, err);
    ws_workers_free(workers);
    if (rc == 0)
        ws_manifest_seal(f->manifest);
    return rc;
}
