#include "transports/dir/archive_version.h"
#include "transports/base/below.h"
#include "transports/base/file.h"
#include "transports/delta/listing.h"
#include "transports/delta/stream.h"
#include "transports/dir/archive_files.h"
#include "transports/dir/archive_listing.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

#define PIECE_BYTES (1UL << 20)

static bool is_stopped(const struct ws_archive_write *w)
{
    return w->hooks && w->hooks->stop && atomic_load(w->hooks->stop);
}

static void report_written(const struct ws_archive_write *w, uint64_t bytes)
{
    if (w->hooks && w->hooks->written)
        w->hooks->written(w->hooks->arg, bytes);
}

static int stopped(const struct ws_archive_write *w, struct ws_error *err)
{
    const struct ws_manifest *m = w->version->manifest;
    return ws_error_set(err, ECANCELED, "writing %s/%" PRIu64 " to the archive was stopped", m->model,
                        m->version);
}

static int write_blocks(const struct ws_archive_write *w, size_t file, int fd, const char *path,
                        struct ws_error *err)
{
    const struct ws_manifest *m = w->version->manifest;
    const struct ws_manifest_file *f = &m->files[file];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < f->n_blocks; i++) {
        const size_t n = ws_manifest_block_bytes(f, i);
        if (is_stopped(w))
            return stopped(w, err);
        rc = w->hooks->block(w->hooks->arg, file, i, w->buffer, err);
        if (rc == 0 && ws_hash(w->buffer, n) != f->hashes[i])
            rc = ws_error_set(err, EBADMSG,
                              "block %zu of %s/%" PRIu64 "/%s has bytes that are not the manifest's", i,
                              m->model, m->version, f->name);
        for (size_t at = 0; rc == 0 && at < n; at += PIECE_BYTES) {
            const size_t more = n - at < PIECE_BYTES ? n - at : PIECE_BYTES;
            if (is_stopped(w))
                return stopped(w, err);
            if (ws_file_write(fd, w->buffer + at, more) < 0)
                rc = ws_archive_files_error(err, "write", path);
            else
                report_written(w, more);
        }
    }
    return rc;
}

static int write_files(const struct ws_archive_write *w, const char *folder, struct ws_error *err)
{
    const struct ws_manifest *m = w->version->manifest;
    char files[WS_ARCHIVE_PATH_BYTES], path[WS_ARCHIVE_PATH_BYTES];
    snprintf(files, sizeof(files), "%s/files", folder);
    int rc = ws_archive_files_make_folder(files, err);
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        snprintf(path, sizeof(path), "%s/%s", files, m->files[i].name);
        int fd = ws_archive_files_create(path, err);
        if (fd < 0)
            return fd;
        rc = ws_archive_files_finish(fd, path, write_blocks(w, i, fd, path, err), err);
    }
    return rc == 0 ? ws_archive_files_sync(files, err) : rc;
}

static int write_stream(const struct ws_archive_write *w, const char *folder, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    struct ws_delta_stream_writer writer;
    ssize_t n = 0;
    snprintf(path, sizeof(path), "%s/delta", folder);
    int fd = ws_archive_files_create(path, err);
    if (fd < 0)
        return fd;
    int rc = ws_delta_stream_writer_init(&writer, w->delta, 0, 1);
    if (rc < 0)
        rc = ws_error_set(err, ENOMEM, "no memory for the stream of a delta");
    while (rc == 0 && (n = ws_delta_stream_write(&writer, w->buffer, PIECE_BYTES)) > 0) {
        if (is_stopped(w))
            rc = stopped(w, err);
        else if (ws_file_write(fd, w->buffer, (size_t)n) < 0)
            rc = ws_archive_files_error(err, "write", path);
        else
            report_written(w, (uint64_t)n);
    }
    ws_delta_stream_writer_free(&writer);
    return ws_archive_files_finish(fd, path, rc, err);
}

/* The chain back to the anchor: this link, and those of the base. A file is one stream: "parts":1. */
static int make_chain(const struct ws_archive_write *w, json_t *chain, struct ws_error *err)
{
    const struct ws_delta_link *l = ws_delta_link(w->delta);
    const char *model = w->version->manifest->model;
    char path[WS_ARCHIVE_PATH_BYTES], *text;
    json_t *mine = ws_delta_entry_json(w->delta), *theirs, *one;
    size_t n, i;
    json_object_set_new(mine, "parts", json_integer(1));
    json_array_append_new(chain, mine);
    ws_archive_path(path, w->root, model, l->base.version, "deltas");
    int rc = ws_below_read(NULL, path, WS_MAX_REPLY_BYTES, &text, &n, err);
    if (rc < 0)
        return rc;
    json_t *file = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    theirs = json_object_get(file, "deltas");
    if (!json_is_array(theirs))
        rc = ws_error_set(err, EBADMSG, "%s is damaged: it is no list of deltas", path);
    json_array_foreach(theirs, i, one)
    {
        json_array_append(chain, one);
    }
    json_decref(file);
    if (rc == 0 && json_array_size(chain) > WS_MAX_DELTA_ENTRIES)
        rc = ws_error_set(err, E2BIG, "a chain of deltas has at most %d links; write %s/%" PRIu64 " whole",
                          WS_MAX_DELTA_ENTRIES, model, l->target.version);
    return rc;
}

static int write_chain(const struct ws_archive_write *w, const char *folder, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    json_t *chain = json_array();
    int rc = w->delta ? make_chain(w, chain, err) : 0;
    json_t *all = json_pack("{s:o}", "deltas", chain);
    char *text = rc == 0 && all ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    snprintf(path, sizeof(path), "%s/deltas", folder);
    if (rc == 0)
        rc = text ? ws_archive_files_write(path, text, strlen(text), err)
                  : ws_error_set(err, ENOMEM, "no memory for a list of deltas");
    free(text);
    return rc;
}

static int write_signature(const struct ws_archive_write *w, const char *folder, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES], *text = NULL;
    int rc = w->hooks && w->hooks->signature ? w->hooks->signature(w->hooks->arg, &text, err) : 0;
    snprintf(path, sizeof(path), "%s/signature", folder);
    if (rc == 0 && text)
        rc = ws_archive_files_write(path, text, strlen(text), err);
    free(text);
    return rc;
}

int ws_archive_version_write(const struct ws_archive_write *w, const char *folder, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/manifest", folder);
    if (mkdir(folder, WS_ARCHIVE_FOLDER_MODE) < 0)
        return ws_archive_files_error(err, "make", folder);
    int rc = w->delta ? write_stream(w, folder, err) : write_files(w, folder, err);
    if (rc == 0)
        rc = write_chain(w, folder, err);
    if (rc == 0)
        rc = ws_archive_files_write(path, w->version->json, w->version->json_bytes, err);
    if (rc == 0)
        rc = write_signature(w, folder, err);
    return rc == 0 ? ws_archive_files_sync(folder, err) : rc;
}
