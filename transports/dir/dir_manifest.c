#include "transports/dir/dir_manifest.h"
#include "transports/base/cpu_features.h"
#include "transports/base/file.h"
#include "transports/base/workers.h"
#include "transports/dir/dir.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct hash_job {
    struct ws_manifest_file *file;
    const atomic_bool *cancel; /* may be NULL */
    int fd;
    int error;
};

static bool is_cancelled(const atomic_bool *cancel)
{
    return cancel && atomic_load(cancel);
}

static void hash_block(void *arg, size_t i)
{
    struct hash_job *j = arg;
    if (is_cancelled(j->cancel))
        return;
    const size_t n = ws_manifest_block_bytes(j->file, i);
    unsigned char *buffer = malloc(n);
    const ssize_t got = buffer ? ws_file_read(j->fd, buffer, n, i * WS_BLOCK_BYTES) : -ENOMEM;
    if (got == (ssize_t)n)
        j->file->hashes[i] = ws_hash(buffer, n);
    else
        j->error = got < 0 ? (int)-got : ENODATA;
    free(buffer);
}

/* Of the files in the order of the folder, which is the manifest's. */
static int hash_folder(struct ws_manifest *m, const struct ws_folder *folder, const atomic_bool *cancel,
                       struct ws_error *err)
{
    struct ws_workers *w = ws_workers_new(ws_cpu_cores(0), 5);
    int rc = w ? 0 : ws_error_set(err, ENOMEM, "no memory for workers");
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        const char *name = folder->files[i].path;
        struct hash_job j = {.file = &m->files[i],
                             .cancel = cancel,
                             .fd = ws_folder_file_open(folder, &folder->files[i], err)};
        struct stat st;
        if (j.fd < 0) {
            rc = j.fd;
            break;
        }
        ws_workers_run(w, hash_block, &j, j.file->n_blocks);
        struct ws_stamp now = fstat(j.fd, &st) == 0 ? ws_stamp_from_stat(&st) : (struct ws_stamp){0};
        if (!j.error && !ws_stamp_equal(&now, &folder->files[i].stamp))
            rc = ws_error_set(err, ESTALE, "%s was written to while it was hashed: let its writer finish",
                              name);
        if (j.error)
            rc = ws_error_set(err, j.error == ENODATA ? ESTALE : j.error, "cannot hash %s: %s", name,
                              j.error == ENODATA ? "it shrank meanwhile" : strerror(j.error));
        else if (rc == 0 && is_cancelled(cancel))
            rc = ws_error_set(err, ECANCELED, "the hashing of %s was stopped", name);
        close(j.fd);
    }
    ws_workers_free(w);
    return rc;
}

int ws_dir_manifest(const struct ws_dir_scan *s, struct ws_dir_version *v, const atomic_bool *cancel,
                    struct ws_manifest **out, struct ws_error *err)
{
    struct ws_folder *folder;
    struct ws_manifest *m = NULL;
    struct stat st;
    int fd = ws_dir_scan_open(s, v->path, true, &st, err);
    int rc = fd < 0 ? fd : ws_folder_read(fd, v->path, s->below, &folder, err);
    if (rc < 0)
        return rc;
    v->stamps = calloc(folder->n_files, sizeof(*v->stamps));
    rc = v->stamps ? ws_manifest_new(&m, v->model, v->number, WS_DIR_LINEAGE, err)
                   : ws_error_set(err, ENOMEM, "no memory for a manifest");
    for (size_t i = 0; rc == 0 && i < folder->n_files; i++) {
        struct ws_manifest_file *f;
        v->stamps[i] = folder->files[i].stamp;
        rc = ws_manifest_add(m, folder->files[i].name, folder->files[i].size_bytes,
                             folder->files[i].st ? folder->files[i].st->data_begin : 0, &f, err);
    }
    if (rc == 0)
        rc = hash_folder(m, folder, cancel, err);
    ws_folder_free(folder);
    if (rc < 0) {
        ws_manifest_free(m);
        return rc;
    }
    m->created_ns = (uint64_t)v->mtime.tv_sec * 1000000000 + (uint64_t)v->mtime.tv_nsec;
    ws_manifest_seal(m);
    *out = m;
    return 0;
}
