#include "transports/dir/archive_version.h"
#include "transports/delta/listing.h"
#include "transports/delta/stream.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

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

static const atomic_bool *stop_of(const struct ws_archive_write *w)
{
    return w->hooks ? w->hooks->stop : NULL;
}

static int new_file(const struct ws_archive_write *w, const char *path, uint64_t size,
                    struct ws_archive_file **out, struct ws_error *err)
{
    return w->store->ops->file_new(w->store, path, size, stop_of(w), out, err);
}

static int end_file(const struct ws_archive_write *w, struct ws_archive_file *f, int rc, struct ws_error *err)
{
    return w->store->ops->file_end(f, rc, err);
}

static int write_piece(const struct ws_archive_write *w, struct ws_archive_file *f, const void *bytes,
                       size_t n, struct ws_error *err)
{
    if (is_stopped(w))
        return stopped(w, err);
    int rc = w->store->ops->file_write(f, bytes, n, err);
    if (rc == 0)
        report_written(w, n);
    return rc;
}

static int write_text(const struct ws_archive_write *w, const char *path, const char *text, size_t n,
                      struct ws_error *err)
{
    struct ws_archive_file *f;
    int rc = new_file(w, path, n, &f, err);
    return rc < 0 ? rc : end_file(w, f, w->store->ops->file_write(f, text, n, err), err);
}

static int write_blocks(const struct ws_archive_write *w, size_t file, struct ws_archive_file *to,
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
        for (size_t at = 0; rc == 0 && at < n; at += PIECE_BYTES)
            rc = write_piece(w, to, w->buffer + at, n - at < PIECE_BYTES ? n - at : PIECE_BYTES, err);
    }
    return rc;
}

static int write_files(const struct ws_archive_write *w, const char *folder, struct ws_error *err)
{
    const struct ws_manifest *m = w->version->manifest;
    char path[WS_ARCHIVE_PATH_BYTES];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        struct ws_archive_file *f;
        snprintf(path, sizeof(path), "%s/files/%s", folder, m->files[i].name);
        rc = new_file(w, path, m->files[i].size_bytes, &f, err);
        if (rc == 0)
            rc = end_file(w, f, write_blocks(w, i, f, err), err);
    }
    return rc;
}

static int write_stream(const struct ws_archive_write *w, const char *folder, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    struct ws_delta_stream_writer writer;
    struct ws_archive_file *f;
    ssize_t n = 0;
    snprintf(path, sizeof(path), "%s/delta", folder);
    int rc = new_file(w, path, ws_delta_stream_bytes(w->delta, 0, 1), &f, err);
    if (rc < 0)
        return rc;
    rc = ws_delta_stream_writer_init(&writer, w->delta, 0, 1);
    if (rc < 0)
        rc = ws_error_set(err, ENOMEM, "no memory for the stream of a delta");
    while (rc == 0 && (n = ws_delta_stream_write(&writer, w->buffer, PIECE_BYTES)) > 0)
        rc = write_piece(w, f, w->buffer, (size_t)n, err);
    ws_delta_stream_writer_free(&writer);
    return end_file(w, f, rc, err);
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
    ws_archive_path(path, w->store->root, model, l->base.version, "deltas");
    int rc = w->store->ops->get(w->store, path, WS_MAX_REPLY_BYTES, NULL, stop_of(w), &text, &n, err);
    if (rc < 0)
        return rc;
    json_t *file = ws_archive_json(text, n);
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
        rc = text ? write_text(w, path, text, strlen(text), err)
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
        rc = write_text(w, path, text, strlen(text), err);
    free(text);
    return rc;
}

int ws_archive_version_write(const struct ws_archive_write *w, const char *folder, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    snprintf(path, sizeof(path), "%s/manifest", folder);
    int rc = w->delta ? write_stream(w, folder, err) : write_files(w, folder, err);
    if (rc == 0)
        rc = write_chain(w, folder, err);
    if (rc == 0)
        rc = write_signature(w, folder, err);
    return rc == 0 ? write_text(w, path, w->version->json, w->version->json_bytes, err) : rc;
}
