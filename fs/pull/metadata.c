#include "fs/pull/metadata.h"
#include "fs/store/content.h"
#include "fs/store/waiters.h"
#include "transports/protocol/source.h"
#include <errno.h>
#include <stdlib.h>

int ws_metadata_manifest(struct ws_route *r, struct ws_error *err)
{
    struct ws_version *v = r->version;
    struct ws_store *s = v->store;
    struct ws_leg leg = {.control = true};

    while (!atomic_load(&v->manifest)) {
        struct ws_manifest *m = NULL;
        int rc = ws_route_take(r, &leg, err);
        if (rc < 0)
            return rc;
        rc = ws_source_manifest(leg.watch->source, v->model->name, v->number, v->run, &leg.leave, &m, err);
        if (rc == 0) {
            pthread_mutex_lock(&s->lock);
            rc = ws_content_describe(v, m, err);
            pthread_mutex_unlock(&s->lock);
        }
        if (rc == 0)
            ws_route_progress(r, &leg);
        else if ((rc = ws_route_failed(r, &leg, rc, err)) < 0)
            return rc;
        ws_route_end(&leg);
    }
    ws_waits_answer(v);
    return 0;
}

struct header {
    const struct ws_bundle_file *file;
    size_t n_good;
};

static int on_header_block(void *arg, size_t block, uint64_t hash)
{
    struct header *h = arg;

    h->n_good += hash == h->file->hashes[block];
    return 0;
}

/* Fetches the blocks of one file's header into memory of their own. */
static int fetch_header(struct ws_route *r, struct ws_leg *leg, size_t file, unsigned char *bytes,
                        struct ws_error *err)
{
    struct ws_version *v = r->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct header h = {.file = &m->files[file]};
    struct ws_lane *lane = NULL;
    struct ws_fetch fetch = {
        .manifest = m,
        .file = file,
        .n = ws_content_header_blocks(&m->files[file]),
        .dst = bytes,
        .block = on_header_block,
        .arg = &h,
        .cancel = &leg->leave,
        .came_ns = &r->came_ns,
    };
    int rc = ws_lane_open(leg->watch->source, &lane, err);

    if (rc < 0)
        return rc;
    rc = ws_lane_fetch(lane, &fetch, err);
    ws_lane_close(lane);
    if (rc == 0 && h.n_good < fetch.n)
        rc = ws_error_set(err, EAGAIN,
                          "the header of %s/%lu/%s came with bytes that are not the "
                          "manifest's",
                          m->model, m->version, m->files[file].name);
    return rc;
}

static int get_header(struct ws_route *r, size_t file, struct ws_error *err)
{
    struct ws_version *v = r->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    size_t n = ws_content_header_blocks(&m->files[file]);
    unsigned char *bytes = malloc(n * WS_BLOCK_BYTES);
    struct ws_leg leg = {.whole = true};
    unsigned n_bad = 0;
    int rc = -EAGAIN;

    if (!bytes)
        return ws_error_set(err, ENOMEM, "out of memory for the header of %s", m->files[file].name);
    while (rc < 0) {
        rc = ws_route_take(r, &leg, err);
        if (rc < 0)
            break;
        rc = fetch_header(r, &leg, file, bytes, err);
        if (rc == -EAGAIN && ++n_bad >= WS_BLOCK_TRIES)
            rc = -EBADMSG;
        if (rc < 0) {
            int final = ws_route_failed(r, &leg, rc, err);
            if (final < 0) {
                rc = final;
                break;
            }
        } else {
            ws_route_progress(r, &leg);
        }
    }
    ws_route_end(&leg);
    if (rc == 0)
        rc = ws_content_parse_header(v, file, bytes, n * WS_BLOCK_BYTES, err);
    free(bytes);
    return rc;
}

/* A look at the tensors of a version that is not here costs its headers, and no room in the cache. */
int ws_metadata_headers(struct ws_route *r, struct ws_error *err)
{
    struct ws_version *v = r->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    int rc = 0;

    for (size_t i = 0; i < m->n_files && rc == 0; i++) {
        const struct ws_bundle_file *f = &m->files[i];
        if (f->header_bytes && !atomic_load(&v->files[i].header) &&
            !ws_content_has(v, i, 0, ws_content_header_blocks(f)))
            rc = get_header(r, i, err);
    }
    if (rc == 0)
        ws_waits_answer(v);
    return rc;
}
