#include "transports/patch/recorded.h"
#include "transports/base/file.h"
#include "transports/base/vector.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK (1UL << 20)

WS_VECTOR(records, struct ws_delta_record *);

struct reading {
    const struct ws_manifest *target;
    struct ws_error *err;
    struct records list;
    bool **has; /* by file and block: it had a record */
    uint64_t bytes;
};

/* A delta that is longer than what it is a delta of is none that a mount made. */
static int admit(void *arg, uint64_t bytes, struct ws_error *err)
{
    struct reading *r = arg;
    r->bytes += bytes;
    if (r->bytes > r->target->total_bytes + r->list.len * WS_DELTA_RECORD_BYTES + CHUNK)
        return ws_error_set(err, EBADMSG, "the delta is longer than the version");
    return 0;
}

static int take(void *arg, struct ws_delta_record *d)
{
    struct reading *r = arg;
    const bool exists = d->file < r->target->n_files && d->block < r->target->files[d->file].n_blocks;
    int rc = 0;
    if (!exists || r->has[d->file][d->block])
        rc = ws_error_set(r->err, EBADMSG, "the delta names a block twice, or one that the version has not");
    else if (records_append(&r->list, d) < 0)
        rc = ws_error_set(r->err, ENOMEM, "no memory for the records of a delta");
    if (rc == 0)
        r->has[d->file][d->block] = true;
    else
        free(d);
    return rc;
}

static bool make_table(struct reading *r)
{
    r->has = calloc(r->target->n_files + 1, sizeof(*r->has));
    bool ok = r->has;
    for (size_t i = 0; ok && i < r->target->n_files; i++)
        ok = (r->has[i] = calloc(r->target->files[i].n_blocks + 1, sizeof(bool)));
    return ok;
}

static void free_table(struct reading *r)
{
    for (size_t i = 0; r->has && i < r->target->n_files; i++)
        free(r->has[i]);
    free(r->has);
}

/* A block that is another in the base has a record, or elements that changed would be left as they are. */
static int check_complete(const struct reading *r, const struct ws_manifest *base, struct ws_error *err)
{
    for (size_t i = 0; i < r->target->n_files; i++) {
        const struct ws_manifest_file *f = &r->target->files[i], *old = ws_manifest_find(base, f->name);
        for (size_t k = 0; k < f->n_blocks; k++)
            if (!r->has[i][k] && !(old && k < old->n_blocks && old->hashes[k] == f->hashes[k]))
                return ws_error_set(
                    err, EBADMSG, "the delta has no record of block %zu of %s, which is another in the base",
                    k, f->name);
    }
    return 0;
}

static int read_stream(int fd, struct reading *r, const struct ws_delta_link *link,
                       const struct ws_manifest *base, struct ws_error *err)
{
    uint64_t n_blocks = 0, at = 0;
    bool whole = false;
    for (size_t i = 0; i < r->target->n_files; i++)
        n_blocks += r->target->files[i].n_blocks;
    const struct ws_delta_stream_sink sink = {.admit = admit, .record = take, .arg = r};
    struct ws_delta_stream_reader *reader = ws_delta_stream_reader_new(link, n_blocks, &sink);
    char *chunk = malloc(CHUNK);
    int rc = reader && chunk && make_table(r) ? 0 : ws_error_set(err, ENOMEM, "no memory to read a delta");
    ssize_t n = 1;
    while (rc == 0 && (n = ws_file_read(fd, chunk, CHUNK, at)) > 0) {
        rc = ws_delta_stream_read(reader, chunk, (size_t)n, err);
        at += (uint64_t)n;
    }
    if (rc == 0 && n < 0)
        rc = ws_error_set(err, (int)-n, "cannot read the delta: %s", strerror((int)-n));
    if (rc == 0 && !(ws_delta_stream_reader_ended(reader, &whole) && whole))
        rc = ws_error_set(err, EBADMSG, "the delta was cut off, or its maker gave it up");
    if (rc == 0)
        rc = check_complete(r, base, err);
    ws_delta_stream_reader_free(reader);
    free_table(r);
    free(chunk);
    return rc;
}

static int cannot_open(const char *target, const char *path, struct ws_error *err)
{
    if (errno == EFBIG)
        return ws_error_set(err, E2BIG, "%s/%s: half of the version changed: reading it whole is better",
                            target, path);
    if (errno == EOPNOTSUPP)
        return ws_error_set(
            err, EOPNOTSUPP,
            "%s/%s: the mount learns which tensors are read (need=learn): read the version whole", target,
            path);
    return ws_error_set(err, ENOENT, "%s/%s: %s", target, path, strerror(errno));
}

int ws_recorded_read(struct ws_recorded *out, const struct ws_version_folder *target,
                     const struct ws_manifest *base, struct ws_error *err)
{
    const struct ws_manifest *m = target->manifest;
    struct reading r = {.target = m, .err = err};
    struct ws_delta_link link = {.base = ws_version_id_make(base->version, base->lineage),
                                 .target = ws_version_id_make(m->version, m->lineage)};
    char path[WS_MAX_NAME + 32];
    *out = (struct ws_recorded){0};
    memcpy(link.base_digest, base->digest, sizeof(link.base_digest));
    memcpy(link.target_digest, m->digest, sizeof(link.target_digest));
    snprintf(path, sizeof(path), ".wsync/changes-from-%" PRIu64 "@%s", base->version, base->lineage);
    const int fd = openat(target->folder->fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return cannot_open(target->path, path, err);
    const int rc = read_stream(fd, &r, &link, base, err);
    close(fd);
    out->n = r.list.len;
    out->list = r.list.ptr;
    if (rc == 0)
        return 0;
    ws_recorded_free(out);
    ws_error_prefix(err, "%s/%s", target->path, path);
    return rc;
}

void ws_recorded_free(struct ws_recorded *r)
{
    for (size_t i = 0; i < r->n; i++)
        free(r->list[i]);
    free(r->list);
    *r = (struct ws_recorded){0};
}
