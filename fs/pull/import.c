#include "fs/pull/import.h"
#include "fs/store/content.h"
#include "fs/store/verify.h"
#include <errno.h>
#include <stdlib.h>

static int check_mapped(struct ws_source_select *sel, struct ws_region **regions, struct ws_error *err)
{
    struct ws_version *v = sel->version;
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
    return ws_verify_regions(v->store, m, regions, NULL, (const atomic_bool *const[2]){&sel->stop}, err);
}

static void give_back_mapped(struct ws_poller *p, const struct ws_manifest *m, struct ws_region **regions)
{
    for (size_t i = 0; i < m->n_files; i++)
        ws_region_free(regions[i]);
    ws_source_unmap(p->source, m->model, m->version, m->lineage);
}

static void keep_mapped(struct ws_version *v, struct ws_poller *p, struct ws_region **regions)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    for (size_t i = 0; i < m->n_files; i++) {
        atomic_store(&v->files[i].region, regions[i]);
        ws_content_arrived_all(v, i);
    }
    pthread_mutex_lock(&v->store->lock);
    v->mapped_from = ws_poller_get(p);
    pthread_mutex_unlock(&v->store->lock);
}

struct import {
    struct ws_source_select *selection;
    struct ws_region **regions; /* by file */
};

/* 1: the source has no memory to give. */
static int use_memory(void *arg, struct ws_source_attempt *attempt, struct ws_error *err)
{
    const struct import *i = arg;
    struct ws_source_select *sel = i->selection;
    const struct ws_manifest *m = atomic_load(&sel->version->manifest);
    int rc;

    if (ws_transport_prefs_rank(&sel->transport_prefs, attempt->poller->strategy) < 0)
        return 1;
    rc = ws_source_map(attempt->poller->source, m, i->regions, err);
    if (rc < 0)
        return rc == -ENOTSUP ? 1 : rc;
    rc = check_mapped(sel, i->regions, err);
    if (rc < 0) {
        give_back_mapped(attempt->poller, m, i->regions);
        return rc;
    }
    keep_mapped(sel->version, attempt->poller, i->regions);
    atomic_store(&sel->used, attempt->poller->strategy);
    return 0;
}

int ws_import_run(struct ws_source_select *sel, struct ws_error *err)
{
    const struct ws_manifest *m = atomic_load(&sel->version->manifest);
    struct import i = {.selection = sel,
                       .regions = calloc(m->n_files ? m->n_files : 1, sizeof(struct ws_region *))};
    /* a source whose strategy is not in the list may still broadcast */
    struct ws_source_attempt attempt = {
        .not_parents = true, /* which have no memory to give */
        .any_strategy = ws_transport_prefs_rank(&sel->transport_prefs, WS_WAY_BROADCAST) >= 0};
    int rc;

    if (!i.regions)
        return ws_error_set(err, ENOMEM, "out of memory for %s/%lu", m->model, m->version);
    rc = ws_source_select_try(sel, &attempt, use_memory, &i, err);
    free(i.regions);
    return rc == 1 ? -ENOTSUP : rc;
}
