#include "transports/dir/archive.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include "transports/delta/stream.h"
#include "transports/dir/archive_version.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

struct ws_archive {
    struct ws_archive_store *store;
    struct ws_archive_listing listing;
    bool is_stale;         /* another process has written it since the listing was read */
    unsigned char *buffer; /* of one block */
};

bool ws_archive_exists(const char *dir)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    struct stat st;
    if (strlen(dir) >= WS_ARCHIVE_ROOT_BYTES)
        return false;
    ws_archive_path(path, dir, NULL, UINT64_MAX, "models");
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* --- the listing --- */

static int replace_listing(const struct ws_archive *a, const char *model, const char *name,
                           struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES];
    json_t *json = ws_archive_listing_json(&a->listing, model);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    int rc = text ? 0 : ws_error_set(err, ENOMEM, "no memory for a listing");
    json_decref(json);
    ws_archive_path(path, a->store->root, model, UINT64_MAX, name);
    if (rc == 0)
        rc = a->store->ops->put(a->store, path, text, strlen(text), err);
    free(text);
    return rc;
}

/* A number that was not used before, also where an archive was deleted and made anew. */
static uint64_t next_seq(uint64_t seq)
{
    const uint64_t now = ws_clock_day_ns() / 1000;
    return now > seq ? now : seq + 1;
}

/* The file "models" comes last: it counts when a crash comes in between. */
static int write_listings(struct ws_archive *a, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < a->listing.models.len; i++)
        rc = replace_listing(a, a->listing.models.ptr[i].name, "events", err);
    if (rc == 0)
        rc = replace_listing(a, NULL, "events", err);
    return rc == 0 ? replace_listing(a, NULL, "models", err) : rc;
}

static int read_listing(struct ws_archive *a, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES], *text;
    size_t n;
    ws_archive_listing_free(&a->listing);
    ws_archive_path(path, a->store->root, NULL, UINT64_MAX, "models");
    int rc = a->store->ops->get(a->store, path, WS_MAX_REPLY_BYTES, NULL, NULL, &text, &n, err);
    if (rc < 0)
        return rc;
    rc = ws_archive_listing_parse(text, n, path, &a->listing, err);
    free(text);
    return rc;
}

/* Where another process has written the archive since, its listing is the one that counts. */
static int hold(struct ws_archive *a, struct ws_error *err)
{
    int rc = a->store->ops->hold ? a->store->ops->hold(a->store, err) : 0;
    a->is_stale = a->is_stale || rc == -ESTALE;
    if (rc == -ESTALE)
        rc = a->store->ops->acquire(a->store, err);
    if (rc == 0 && a->is_stale)
        rc = read_listing(a, err);
    a->is_stale = a->is_stale && rc < 0;
    return rc;
}

/* -ESTALE: what is about to be written was made of another listing. */
static int write_listing(struct ws_archive *a, struct ws_error *err)
{
    int rc = a->store->ops->hold ? a->store->ops->hold(a->store, err) : 0;
    if (rc < 0)
        return rc;
    a->listing.seq = next_seq(a->listing.seq);
    rc = write_listings(a, err);
    a->is_stale = a->is_stale || rc == -ESTALE; /* it is read again before the next version is written */
    return rc;
}

/* --- versions that are dropped --- */

struct dropped {
    size_t n;
    uint64_t numbers[WS_MAX_VERSIONS];
};

/* Takes an entry, and what hangs on it, out of the listing in memory. */
static void unlist(struct ws_archive_model *m, size_t i, struct dropped *dropped)
{
    struct ws_version_id id = m->entries.ptr[i].id;
    dropped->numbers[dropped->n++] = id.version;
    ws_archive_listing_remove(m, i);
    for (size_t k = 0; k < m->entries.len;) {
        if (!ws_version_id_equal(&m->entries.ptr[k].base, &id)) {
            k++;
            continue;
        }
        unlist(m, k, dropped);
        k = 0;
    }
}

/* The listing was written without them. What cannot be removed is removed at the next opening. */
static void remove_versions(struct ws_archive *a, const char *model, const struct dropped *dropped)
{
    for (size_t i = 0; i < dropped->n; i++) {
        struct ws_error err = {0};
        if (a->store->ops->remove(a->store, model, dropped->numbers[i], &err) < 0)
            ws_log(WS_LOG_WARN, "archive", "a version that was dropped is still in %s: %s", a->store->root,
                   err.text);
    }
}

/* A version with this number is about to be written: the one that has it, with other content, is dropped. */
static int drop_number(struct ws_archive *a, const struct ws_manifest *m, struct ws_error *err)
{
    struct ws_archive_model *model = ws_archive_listing_find_model(&a->listing, m->model);
    struct dropped *dropped = calloc(1, sizeof(*dropped));
    int rc = dropped ? 0 : ws_error_set(err, ENOMEM, "no memory for a listing");
    for (size_t i = 0; rc == 0 && model && i < model->entries.len; i++) {
        if (model->entries.ptr[i].id.version != m->version)
            continue;
        unlist(model, i, dropped);
        break;
    }
    if (rc == 0 && dropped->n > 0)
        rc = write_listing(a, err);
    if (rc == 0)
        remove_versions(a, m->model, dropped);
    free(dropped);
    return rc;
}

int ws_archive_prune(struct ws_archive *a, const char *model, unsigned keep, struct ws_error *err)
{
    struct ws_archive_model *m = ws_archive_listing_find_model(&a->listing, model);
    struct dropped *dropped = calloc(1, sizeof(*dropped));
    unsigned n_anchors = 0;
    int rc = dropped ? 0 : ws_error_set(err, ENOMEM, "no memory for a listing");
    assert(keep > 0);
    for (size_t i = 0; rc == 0 && m && i < m->entries.len; i++)
        n_anchors += ws_archive_entry_is_anchor(&m->entries.ptr[i]);
    for (size_t i = 0; rc == 0 && m && i < m->entries.len && n_anchors > keep;) {
        if (!ws_archive_entry_is_anchor(&m->entries.ptr[i])) {
            i++;
            continue;
        }
        unlist(m, i, dropped);
        n_anchors--;
        i = 0;
    }
    if (rc == 0 && dropped->n > 0)
        rc = write_listing(a, err);
    if (rc == 0)
        remove_versions(a, model, dropped);
    free(dropped);
    return rc;
}

/* --- opening --- */

int ws_archive_open(struct ws_archive **out, const char *root, const struct ws_archive_store_options *options,
                    struct ws_error *err)
{
    struct ws_archive *a = calloc(1, sizeof(*a));
    if (!a || !(a->buffer = aligned_alloc(WS_PAGE_BYTES, WS_BLOCK_BYTES))) {
        free(a);
        return ws_error_set(err, ENOMEM, "no memory for an archive");
    }
    int rc = ws_archive_store_open(&a->store, root, options, err);
    if (rc == 0)
        rc = a->store->ops->acquire(a->store, err);
    if (rc == 0)
        rc = read_listing(a, err);
    const bool is_new = rc == -ENOENT;
    if (rc == 0 || is_new)
        rc = a->store->ops->recover(a->store, &a->listing, err);
    if (rc == 0) /* all listings agree again, and seq stays */
        rc = is_new ? write_listing(a, err) : write_listings(a, err);
    if (rc < 0) {
        ws_archive_close(a);
        return rc;
    }
    *out = a;
    return 0;
}

void ws_archive_close(struct ws_archive *a)
{
    if (!a)
        return;
    ws_archive_store_close(a->store);
    ws_archive_listing_free(&a->listing);
    free(a->buffer);
    free(a);
}

/* --- adding --- */

bool ws_archive_has(const struct ws_archive *a, const struct ws_manifest *m, unsigned *depth)
{
    const struct ws_archive_entry *e = ws_archive_listing_find(&a->listing, m->model, m->version, m->lineage);
    if (!e || strcmp(e->digest, m->digest) != 0)
        return false;
    *depth = 0;
    while (e && !ws_archive_entry_is_anchor(e) && ++*depth <= WS_MAX_DELTA_ENTRIES)
        e = ws_archive_listing_find(&a->listing, m->model, e->base.version, e->base.lineage);
    return true;
}

static int list_version(struct ws_archive *a, const struct ws_manifest *m, const struct ws_delta *d,
                        struct ws_error *err)
{
    struct ws_archive_entry e = {.id = ws_version_id_make(m->version, m->lineage),
                                 .bytes = m->total_bytes,
                                 .created_ns = m->created_ns};
    memcpy(e.digest, m->digest, sizeof(e.digest));
    if (d)
        e.base = ws_delta_link(d)->base;
    int rc = ws_archive_listing_add(&a->listing, m->model, &e, err);
    if (rc < 0)
        return rc;
    rc = write_listing(a, err);
    if (rc < 0) {
        struct ws_archive_model *model = ws_archive_listing_find_model(&a->listing, m->model);
        for (size_t i = 0; i < model->entries.len; i++)
            if (model->entries.ptr[i].id.version == m->version)
                ws_archive_listing_remove(model, i);
        if (write_listing(a, NULL) < 0) /* the old one may list it: it stays readable then */
            ws_log(WS_LOG_WARN, "archive", "the listing of %s could not be written", a->store->root);
    }
    return rc;
}

/* Space is checked before anything is written, so that a full disk costs nothing but a sentence. */
static int write_version(struct ws_archive *a, const struct ws_archive_write *w, uint64_t bytes,
                         struct ws_error *err)
{
    const struct ws_archive_store_ops *ops = a->store->ops;
    const struct ws_manifest *m = w->version->manifest;
    char folder[WS_ARCHIVE_PATH_BYTES], what[WS_MAX_NAME + 24];
    snprintf(what, sizeof(what), "%s/%" PRIu64, m->model, m->version);
    int rc = ops->check_space ? ops->check_space(a->store, what, bytes + w->version->json_bytes, err) : 0;
    if (rc == 0)
        rc = ops->begin(a->store, m->model, m->version, folder, err);
    if (rc < 0)
        return rc;
    if (ops->is_in_place)
        rc = drop_number(a, m, err);
    if (rc == 0)
        rc = ws_archive_version_write(w, folder, err);
    if (rc == 0 && !ops->is_in_place)
        rc = drop_number(a, m, err);
    if (rc == 0)
        rc = ops->commit(a->store, m->model, m->version, err);
    if (rc < 0)
        ops->abandon(a->store, m);
    return rc;
}

static int add(struct ws_archive *a, const struct ws_archive_version *v, struct ws_delta *d, uint64_t bytes,
               const struct ws_archive_hooks *hooks, struct ws_error *err)
{
    unsigned depth;
    if (!ws_name_is_offered(v->manifest->model))
        return ws_error_set(err, EINVAL, "%s", WS_MODEL_NAME_RULE);
    if (ws_archive_has(a, v->manifest, &depth))
        return 0;
    int rc = write_version(a, &(struct ws_archive_write){a->store, a->buffer, v, d, hooks}, bytes, err);
    return rc == 0 ? list_version(a, v->manifest, d, err) : rc;
}

int ws_archive_add(struct ws_archive *a, const struct ws_archive_version *v,
                   const struct ws_archive_hooks *hooks, struct ws_error *err)
{
    assert(hooks && hooks->block);
    int rc = hold(a, err);
    return rc < 0 ? rc : add(a, v, NULL, v->manifest->total_bytes, hooks, err);
}

/* A mount makes a version of one with the same files only. */
static int check_base(const struct ws_archive *a, const struct ws_manifest *m, uint64_t base,
                      struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES], *text;
    struct ws_manifest *other = NULL;
    size_t n;
    ws_archive_path(path, a->store->root, m->model, base, "manifest");
    int rc = a->store->ops->get(a->store, path, WS_MAX_MANIFEST_BYTES, NULL, NULL, &text, &n, err);
    if (rc < 0)
        return rc;
    rc = ws_manifest_from_json(text, n, &other, err);
    free(text);
    if (rc < 0) {
        (void)ws_error_prefix(err, "%s", path);
        return rc;
    }
    bool same = m->n_files == other->n_files;
    for (size_t i = 0; same && i < m->n_files; i++)
        same = m->files[i].size_bytes == other->files[i].size_bytes &&
               strcmp(m->files[i].name, other->files[i].name) == 0;
    ws_manifest_free(other);
    return same ? 0
                : ws_error_set(err, EINVAL,
                               "%s/%" PRIu64 " has other files than %" PRIu64 ": it is written whole",
                               m->model, m->version, base);
}

int ws_archive_add_delta(struct ws_archive *a, const struct ws_archive_version *v, struct ws_delta *d,
                         const struct ws_archive_hooks *hooks, struct ws_error *err)
{
    const struct ws_delta_link *l = ws_delta_link(d);
    const struct ws_manifest *m = v->manifest;
    int rc = hold(a, err);
    if (rc < 0)
        return rc;
    const struct ws_archive_entry *base =
        ws_archive_listing_find(&a->listing, m->model, l->base.version, l->base.lineage);
    assert(ws_delta_state(d) == WS_DELTA_WHOLE && strcmp(l->target_digest, m->digest) == 0);
    if (!base || strcmp(base->digest, l->base_digest) != 0)
        return ws_error_set(err, ENOENT,
                            "%s/%" PRIu64 " is a delta on %" PRIu64 ", which is not in the archive %s",
                            m->model, m->version, l->base.version, a->store->root);
    if (strcmp(l->base.lineage, m->lineage) != 0 || l->base.version >= m->version)
        return ws_error_set(err, EINVAL,
                            "%s/%" PRIu64 " does not follow %" PRIu64 " in its lineage: it is written whole",
                            m->model, m->version, l->base.version);
    rc = check_base(a, m, l->base.version, err);
    if (rc < 0)
        return rc;
    return add(a, v, d, ws_delta_stream_bytes(d, 0, 1), hooks, err);
}
