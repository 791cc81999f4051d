#include "fs/pull/import.h"
#include "fs/store/content.h"
#include "fs/store/verify.h"
#include <errno.h>
#include <stdlib.h>

static int check_mapped(struct ws_route *r, struct ws_region **regions, struct ws_error *err)
{
    struct ws_version *v = r->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);

    for (size_t i = 0; i < m->n_files; i++) {
        uint64_t size = regions[i] ? ws_region_size(regions[i]) : 0;
        if (size != m->files[i].size_bytes)
            return ws_error_set(err, EPROTO,
                                "%s/%lu/%s: the source's memory has %lu bytes, its "
                                "manifest says %lu",
                                m->model, m->version, m->files[i].name, size, m->files[i].size_bytes);
    }
    if (!v->store->options.verify_imported)
        return 0;
    return ws_verify_regions(v->store, m, regions, NULL, (const atomic_bool *const[2]){&r->stop}, err);
}

static void give_back_mapped(struct ws_watch *w, const struct ws_manifest *m, struct ws_region **regions)
{
    for (size_t i = 0; i < m->n_files; i++)
        ws_region_free(regions[i]);
    ws_source_unmap(w->source, m->model, m->version, m->run);
}

static void keep_mapped(struct ws_version *v, struct ws_watch *w, struct ws_region **regions)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    for (size_t i = 0; i < m->n_files; i++) {
        atomic_store(&v->files[i].region, regions[i]);
        ws_content_arrived_all(v, i);
    }
    pthread_mutex_lock(&v->store->lock);
    v->mapped = ws_watch_get(w);
    pthread_mutex_unlock(&v->store->lock);
}

int ws_import_run(struct ws_route *r, struct ws_error *err)
{
    struct ws_version *v = r->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_region **regions = calloc(m->n_files ? m->n_files : 1, sizeof(struct ws_region *));
    const struct ws_strategies *list = &r->strategies;
    /* a source that is in no list may still broadcast */
    struct ws_leg leg = {.control = ws_strategies_rank(list, WS_WAY_BROADCAST) >= 0};
    int rc = -EAGAIN;

    if (!regions)
        return ws_error_set(err, ENOMEM, "out of memory for %s/%lu", m->model, m->version);
    while (rc < 0 && rc != -ENOTSUP) {
        rc = ws_route_take(r, &leg, err);
        if (rc < 0)
            break;
        rc = ws_strategies_rank(list, leg.watch->strategy) < 0
                 ? -ENOTSUP
                 : ws_source_map(leg.watch->source, m, regions, err);
        if (rc == 0) {
            rc = check_mapped(r, regions, err);
            if (rc == 0) {
                keep_mapped(v, leg.watch, regions);
                atomic_store(&r->used, leg.watch->strategy);
            } else {
                give_back_mapped(leg.watch, m, regions);
            }
        }
        if (rc < 0 && rc != -ENOTSUP) {
            int final = ws_route_failed(r, &leg, rc, err);
            if (final < 0) {
                rc = final;
                break;
            }
        }
    }
    ws_route_end(&leg);
    free(regions);
    return rc;
}
