/* Each block is one job of the workers; blocks are numbered over all files. */
#include "fs/store/verify.h"
#include "fs/store/content.h"
#include "transports/base/workers.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <stdlib.h>

struct verify {
    const struct ws_manifest *manifest;
    struct ws_region *const *regions;
    struct ws_version *version;
    size_t *first;                  /* number of each file's first block */
    const atomic_bool *const *stop; /* two; NULL: none */
    atomic_size_t bad;              /* the lowest one that differs, or all blocks' number */
};

static size_t file_at(const struct verify *j, size_t block)
{
    size_t low = 0, high = j->manifest->n_files;

    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (j->first[middle] <= block)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static bool is_stopped(const struct verify *j)
{
    return (j->stop[0] && atomic_load(j->stop[0])) || (j->stop[1] && atomic_load(j->stop[1]));
}

static void verify_block(void *arg, size_t i)
{
    struct verify *j = arg;
    size_t file = file_at(j, i), block = i - j->first[file];
    const struct ws_manifest_file *f = &j->manifest->files[file];
    const unsigned char *data;
    size_t bad = atomic_load(&j->bad);

    if (i > bad || is_stopped(j) || (j->version && !ws_content_has(j->version, file, block, 1)))
        return;
    data = ws_region_data(j->regions[file]) + block * WS_BLOCK_BYTES;
    if (ws_hash(data, ws_manifest_block_bytes(f, block)) == f->hashes[block])
        return;
    while (i < bad && !atomic_compare_exchange_weak(&j->bad, &bad, i))
        ;
}

int ws_verify_regions(struct ws_store *s, const struct ws_manifest *m, struct ws_region *const *regions,
                      struct ws_version *v, const atomic_bool *const stop[2], struct ws_error *err)
{
    struct ws_workers *workers = ws_workers_new(s->options.threads, s->options.nice);
    struct verify j = {.manifest = m, .regions = regions, .version = v, .stop = stop};
    size_t n = 0, file;
    int rc = 0;

    j.first = calloc(m->n_files ? m->n_files : 1, sizeof(*j.first));
    if (!workers || !j.first) {
        rc = ws_error_set(err, ENOMEM, "out of memory or threads to verify %s/%lu", m->model, m->version);
        goto out;
    }
    for (size_t i = 0; i < m->n_files; i++) {
        j.first[i] = n;
        n += m->files[i].n_blocks;
    }
    atomic_init(&j.bad, n);
    ws_workers_run(workers, verify_block, &j, n);
    if (atomic_load(&j.bad) < n) {
        file = file_at(&j, atomic_load(&j.bad));
        rc = ws_error_set(err, EBADMSG,
                          "block %zu of %s/%lu/%s differs from the manifest: its memory was damaged or "
                          "written to; drop the version and pull it again",
                          atomic_load(&j.bad) - j.first[file], m->model, m->version, m->files[file].name);
    } else if (is_stopped(&j)) {
        rc = ws_error_set(err, ECANCELED, "the check of %s/%lu was stopped", m->model, m->version);
    }
out:
    free(j.first);
    ws_workers_free(workers);
    return rc;
}

int ws_version_verify(struct ws_version *v, const atomic_bool *const stop[2], struct ws_error *err)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_region **regions;
    int rc;

    if (!m || ws_content_bytes(v) == 0)
        return ws_error_set(err, ENOENT, "nothing of %s/%lu is here: pull it first", v->model->name,
                            v->number);
    regions = calloc(m->n_files ? m->n_files : 1, sizeof(struct ws_region *));
    if (!regions)
        return ws_error_set(err, ENOMEM, "out of memory to verify %s/%lu", m->model, m->version);
    for (size_t i = 0; i < m->n_files; i++)
        regions[i] = ws_content_region(v, i);
    rc = ws_verify_regions(v->store, m, regions, v, stop, err);
    free(regions);
    return rc;
}
