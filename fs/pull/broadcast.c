#include "fs/pull/broadcast.h"
#include "fs/store/content.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/nccl/broadcast.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct broadcast {
    struct ws_source_select *selection;
    struct ws_version *version;
    const struct ws_manifest *manifest;
    struct ws_source_attempt attempt;
    unsigned n_bad;
    uint64_t bytes;
};

static bool wants(void *arg, size_t file, size_t block)
{
    const struct broadcast *b = arg;

    return !ws_content_has(b->version, file, block, 1);
}

/* A block with other bytes than the manifest's is fetched again, by the next round or by the transfer. */
static int on_block(void *arg, size_t file, size_t block, uint64_t hash)
{
    struct broadcast *b = arg;
    struct ws_version *v = b->version;
    const struct ws_manifest_file *f = &b->manifest->files[file];
    const uint64_t len = ws_manifest_block_bytes(f, block);
    const unsigned char *bytes =
        (unsigned char *)ws_region_data(ws_content_region(v, file)) + block * WS_BLOCK_BYTES;

    ws_version_moved(v, len);
    if (hash != f->hashes[block] || !ws_content_is_as_signed(v, file, block, bytes)) {
        atomic_fetch_add(&v->bad_blocks, 1);
        atomic_fetch_add(&v->store->bad_blocks, 1);
        return ++b->n_bad < WS_BLOCK_TRIES ? 0 : -EBADMSG;
    }
    if (wants(b, file, block)) {
        ws_content_arrived(v, file, block);
        b->bytes += len;
    }
    ws_source_select_progress(b->selection, &b->attempt);
    ws_waiters_wake(v);
    return 0;
}

static bool is_missing_any(const struct broadcast *b)
{
    for (size_t i = 0; i < b->manifest->n_files; i++)
        if (!ws_content_has(b->version, i, 0, b->manifest->files[i].n_blocks))
            return true;
    return false;
}

/* Is there a source by a strategy that is before broadcast in the list? */
static bool has_better(struct ws_source_select *sel)
{
    struct ws_source_attempt attempt = {.needs_whole = true};

    if (ws_source_select_next(sel, &attempt, &(struct ws_error){0}) < 0)
        return false;
    bool better = ws_transport_prefs_rank(&sel->transport_prefs, attempt.poller->strategy) <
                  ws_transport_prefs_rank(&sel->transport_prefs, WS_WAY_BROADCAST);
    ws_source_select_end(&attempt);
    return better;
}

static int fetch_from(struct broadcast *b, const atomic_int *priority, struct ws_broadcast_fetch *f,
                      struct ws_error *err)
{
    atomic_uint *moving = &b->version->store->n_moving[atomic_load(priority)];

    atomic_fetch_add(moving, 1);
    int rc = ws_broadcast_fetch(b->attempt.poller->source, f, err);
    atomic_fetch_sub(moving, 1);
    return rc;
}

/* Tries one source after the other, until one broadcasts. */
static int fetch_from_any(struct broadcast *b, const atomic_int *priority, struct ws_broadcast_fetch *f,
                          struct ws_error *err)
{
    struct ws_error none = {0};
    int rc = ws_source_select_next(b->selection, &b->attempt, err);

    while (rc == 0) {
        rc = fetch_from(b, priority, f, err);
        b->attempt.skip |= ws_bit(b->attempt.poller->index);
        ws_source_select_end(&b->attempt);
        if (rc != -ENOTSUP || ws_source_select_next(b->selection, &b->attempt, &none) < 0)
            break;
        rc = 0;
    }
    return rc;
}

static void take_part(struct broadcast *b, const atomic_int *priority, unsigned char **data,
                      char how[WS_HOW_CHARS])
{
    struct ws_store *s = b->version->store;
    struct ws_error err = {0};
    struct ws_broadcast_fetch f = {
        .manifest = b->manifest,
        .data = data,
        .wants = wants,
        .block = on_block,
        .arg = b,
        .cancel = &b->selection->stop,
        .device = (int)s->options.device,
    };

    for (size_t i = 0; i < b->manifest->n_files; i++) {
        struct ws_region *region = ws_content_region(b->version, i);
        data[i] = region ? ws_region_data(region) : NULL;
    }
    int rc = fetch_from_any(b, priority, &f, &err);
    if (b->bytes) {
        snprintf(how, WS_HOW_CHARS, "%s", f.how);
        atomic_store(&b->selection->used, WS_WAY_BROADCAST);
    }
    if (rc < 0) {
        ws_source_select_record_reason(b->selection, WS_WAY_BROADCAST, err.text);
        if (rc != -ENOTSUP && rc != -ECANCELED)
            ws_log(WS_LOG_WARN, "store", "broadcast given up model=%s version=%lu errno=%s error=\"%s\"",
                   b->version->model->name, b->version->number, ws_errno_name(-rc), err.text);
    }
    atomic_store(&b->selection->progress_ns, ws_clock_ns()); /* the transfer has its whole deadline */
}

void ws_pull_broadcast(struct ws_source_select *sel, const atomic_int *priority, char how[WS_HOW_CHARS])
{
    const struct ws_manifest *m = atomic_load(&sel->version->manifest);
    struct broadcast b = {.selection = sel,
                          .version = sel->version,
                          .manifest = m,
                          .attempt = {.needs_whole = true, .any_strategy = true}};
    struct ws_error why = {0};

    how[0] = '\0';
    if (ws_transport_prefs_rank(&sel->transport_prefs, WS_WAY_BROADCAST) < 0 || !is_missing_any(&b) ||
        has_better(sel))
        return;
    if (ws_broadcast_available(&why) < 0) {
        ws_source_select_record_reason(sel, WS_WAY_BROADCAST, why.text);
        return;
    }
    unsigned char **data = calloc(m->n_files ? m->n_files : 1, sizeof(*data));
    if (data)
        take_part(&b, priority, data, how);
    else
        ws_source_select_record_reason(sel, WS_WAY_BROADCAST, "no memory for it");
    free(data);
}
