#include "fs/pull/inherit.h"
#include "fs/pull/signatures.h"
#include "fs/pull/version_memory.h"
#include "fs/store/content.h"
#include "fs/store/keeper.h"
#include "fs/store/verify.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdlib.h>

/* How many files' memory there was. bytes: what of it can be used. */
static size_t take(struct ws_version *v, struct ws_region **regions, uint64_t *bytes)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_error err;
    size_t n = 0;

    *bytes = 0;
    for (size_t i = 0; i < m->n_files; i++) {
        const uint64_t size = m->files[i].size_bytes;
        const int fd = size ? ws_keeper_take(v, (unsigned)i) : -1;
        n += fd >= 0;
        if (fd >= 0 && ws_region_import(&regions[i], fd, size, false, &err) == 0)
            *bytes += size;
    }
    return n;
}

static int check_signed(struct ws_source_select *sel, struct ws_region **regions, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    int rc = ws_signatures_get_tree(sel, err);

    for (size_t i = 0; ws_version_must_be_signed(v) && i < m->n_files; i++)
        for (size_t b = 0; rc == 0 && b < m->files[i].n_blocks && !atomic_load(&sel->stop); b++)
            if (!ws_content_is_as_signed(v, i, b, ws_region_data(regions[i]) + b * WS_BLOCK_BYTES))
                rc = ws_error_set(err, EBADMSG, "a block of %s/%lu is not the one that was signed", m->model,
                                  m->version);
    return rc;
}

static int check(struct ws_source_select *sel, struct ws_region **regions, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    const int rc = ws_verify_regions(v->store, atomic_load(&v->manifest), regions, NULL,
                                     (const atomic_bool *const[2]){&sel->stop}, err);

    return rc < 0 ? rc : check_signed(sel, regions, err);
}

int ws_inherit_run(struct ws_source_select *sel, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    int rc = -ENOTSUP;

    if (!ws_keeper_applies(v) || m->total_bytes == 0)
        return rc;
    struct ws_region **regions = calloc(m->n_files, sizeof(struct ws_region *));
    uint64_t bytes;
    const size_t n = regions ? take(v, regions, &bytes) : 0;
    if (n > 0)
        ws_keeper_took(v, bytes);
    if (n > 0 && bytes == m->total_bytes)
        rc = check(sel, regions, err);
    if (rc == 0) {
        for (size_t i = 0; i < m->n_files; i++) {
            atomic_store(&v->files[i].region, regions[i]);
            ws_content_arrived_all(v, i);
        }
    } else if (n > 0) {
        ws_keeper_forget(v);
        ws_version_memory_return(v, regions, m->n_files);
        ws_log(WS_LOG_INFO, "store", "what the daemon before had is not used model=%s version=%lu why=\"%s\"",
               m->model, m->version, rc == -ENOTSUP ? "it is not whole" : err->text);
        rc = rc == -ECANCELED ? rc : -ENOTSUP;
    }
    free(regions);
    return rc;
}
