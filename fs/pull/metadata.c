#include "fs/pull/metadata.h"
#include "fs/pull/signatures.h"
#include "fs/store/content.h"
#include "fs/store/waiters.h"
#include "transports/protocol/source.h"
#include <errno.h>
#include <stdlib.h>

static int use_manifest(void *arg, struct ws_source_attempt *attempt, struct ws_error *err)
{
    struct ws_version *v = arg;
    struct ws_manifest *m = NULL;
    int rc = ws_source_manifest(attempt->poller->source, v->model->name, v->number, v->lineage,
                                &attempt->leave, &m, err);

    if (rc < 0)
        return rc;
    rc = ws_signatures_check_manifest(v, m, err);
    if (rc < 0) {
        ws_manifest_free(m);
        return rc;
    }
    pthread_mutex_lock(&v->store->lock);
    rc = ws_content_set_manifest(v, m, err);
    pthread_mutex_unlock(&v->store->lock);
    return rc;
}

int ws_metadata_manifest(struct ws_source_select *sel, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    struct ws_source_attempt attempt = {.any_strategy = true};
    int rc = 0;

    if (!atomic_load(&v->manifest))
        rc = ws_source_select_try(sel, &attempt, use_manifest, v, err);
    if (rc == 0)
        ws_waiters_wake(v);
    return rc;
}

struct header {
    struct ws_version *version;
    const struct ws_manifest *manifest;
    size_t file;
    unsigned char *bytes; /* its blocks, in memory of their own */
    _Atomic(uint64_t) *came_ns;
    size_t n_good;
    unsigned n_bad; /* attempts with other bytes than the manifest's */
};

static int on_header_block(void *arg, size_t block, uint64_t hash)
{
    struct header *h = arg;

    h->n_good += hash == h->manifest->files[h->file].hashes[block] &&
                 ws_content_is_as_signed(h->version, h->file, block, h->bytes + block * WS_BLOCK_BYTES);
    return 0;
}

static int use_header(void *arg, struct ws_source_attempt *attempt, struct ws_error *err)
{
    struct header *h = arg;
    const struct ws_manifest *m = h->manifest;
    struct ws_lane *lane = NULL;
    struct ws_fetch fetch = {
        .manifest = m,
        .file = h->file,
        .n = ws_content_header_blocks(&m->files[h->file]),
        .dst = h->bytes,
        .block = on_header_block,
        .arg = h,
        .cancel = &attempt->leave,
        .came_ns = h->came_ns,
    };
    int rc = ws_lane_open(attempt->poller->source, &lane, err);

    if (rc < 0)
        return rc;
    h->n_good = 0;
    rc = ws_lane_fetch(lane, &fetch, err);
    ws_lane_close(lane);
    if (rc < 0 || h->n_good == fetch.n)
        return rc;
    return ws_error_set(err, ++h->n_bad >= WS_BLOCK_TRIES ? EBADMSG : EAGAIN,
                        "the header of %s/%lu/%s came with bytes that are not the manifest's", m->model,
                        m->version, m->files[h->file].name);
}

static int get_header(struct ws_source_select *sel, size_t file, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    const size_t n = ws_content_header_blocks(&m->files[file]) * WS_BLOCK_BYTES;
    struct ws_source_attempt attempt = {.needs_whole = true};
    struct header h = {
        .version = v, .manifest = m, .file = file, .bytes = malloc(n), .came_ns = &sel->came_ns};
    int rc;

    if (!h.bytes)
        return ws_error_set(err, ENOMEM, "out of memory for the header of %s", m->files[file].name);
    rc = ws_source_select_try(sel, &attempt, use_header, &h, err);
    if (rc == 0)
        rc = ws_content_parse_header(v, file, h.bytes, n, err);
    free(h.bytes);
    return rc;
}

/* A look at the tensors of a version that is not here costs its headers, and no space in the cache. */
int ws_metadata_headers(struct ws_source_select *sel, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    int rc = 0;

    for (size_t i = 0; i < m->n_files && rc == 0; i++) {
        const struct ws_manifest_file *f = &m->files[i];
        if (f->header_bytes && !atomic_load(&v->files[i].header) &&
            !ws_content_has(v, i, 0, ws_content_header_blocks(f))) {
            rc = ws_signatures_get_tree(sel, err);
            if (rc == 0)
                rc = get_header(sel, i, err);
        }
    }
    if (rc == 0)
        ws_waiters_wake(v);
    return rc;
}
