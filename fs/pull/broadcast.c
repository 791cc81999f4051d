#include "fs/pull/broadcast.h"
#include "fs/store/content.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/nccl/broadcast.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct rounds {
    struct ws_route *route;
    struct ws_version *version;
    const struct ws_manifest *manifest;
    struct ws_leg leg;
    unsigned n_bad;
    uint64_t bytes;
};

static bool wants(void *arg, size_t file, size_t block)
{
    const struct rounds *b = arg;

    return !ws_content_has(b->version, file, block, 1);
}

/* One that is not the manifest's is wanted again, by the next round or by the transfer. */
static int on_block(void *arg, size_t file, size_t block, uint64_t hash)
{
    struct rounds *b = arg;
    struct ws_version *v = b->version;
    const struct ws_bundle_file *f = &b->manifest->files[file];
    const uint64_t len = ws_block_len(f, block);

    atomic_fetch_add(&v->moved_bytes, len);
    atomic_fetch_add(&v->store->moved_bytes, len);
    if (hash != f->hashes[block]) {
        atomic_fetch_add(&v->bad_blocks, 1);
        atomic_fetch_add(&v->store->bad_blocks, 1);
        return ++b->n_bad < WS_BLOCK_TRIES ? 0 : -EBADMSG;
    }
    if (wants(b, file, block)) {
        ws_content_arrived(v, file, block);
        b->bytes += len;
    }
    ws_route_progress(b->route, &b->leg);
    ws_waits_answer(v);
    return 0;
}

static bool is_missing_any(const struct rounds *b)
{
    for (size_t i = 0; i < b->manifest->n_files; i++)
        if (!ws_content_has(b->version, i, 0, b->manifest->files[i].n_blocks))
            return true;
    return false;
}

/* Is there a source by a strategy that comes first? */
static bool has_better(struct ws_route *r)
{
    struct ws_leg leg = {.whole = true};

    if (ws_route_take(r, &leg, &(struct ws_error){0}) < 0)
        return false;
    bool better = ws_strategies_rank(&r->strategies, leg.watch->strategy) <
                  ws_strategies_rank(&r->strategies, WS_WAY_BROADCAST);
    ws_route_end(&leg);
    return better;
}

static int take_part(struct rounds *b, const atomic_int *priority, struct ws_broadcast_fetch *f,
                     struct ws_error *err)
{
    atomic_uint *moving = &b->version->store->n_moving[atomic_load(priority)];

    atomic_fetch_add(moving, 1);
    int rc = ws_broadcast_fetch(b->leg.watch->source, f, err);
    atomic_fetch_sub(moving, 1);
    return rc;
}

/* One source after the other, until one broadcasts. */
static int ask(struct rounds *b, const atomic_int *priority, struct ws_broadcast_fetch *f,
               struct ws_error *err)
{
    struct ws_error none = {0};
    int rc = ws_route_take(b->route, &b->leg, err);

    while (rc == 0) {
        rc = take_part(b, priority, f, err);
        b->leg.skip |= ws_bit(b->leg.watch->index);
        ws_route_end(&b->leg);
        if (rc != -ENOTSUP || ws_route_take(b->route, &b->leg, &none) < 0)
            break;
        rc = 0;
    }
    return rc;
}

static void join(struct rounds *b, const atomic_int *priority, unsigned char **data, char how[WS_HOW_CHARS])
{
    struct ws_store *s = b->version->store;
    struct ws_error err = {0};
    struct ws_broadcast_fetch f = {
        .manifest = b->manifest,
        .data = data,
        .wants = wants,
        .block = on_block,
        .arg = b,
        .cancel = &b->route->stop,
        .device = (int)s->options.device,
    };

    for (size_t i = 0; i < b->manifest->n_files; i++) {
        struct ws_region *region = ws_content_region(b->version, i);
        data[i] = region ? ws_region_data(region) : NULL;
    }
    int rc = ask(b, priority, &f, &err);
    if (b->bytes) {
        snprintf(how, WS_HOW_CHARS, "%s", f.how);
        atomic_store(&b->route->used, WS_WAY_BROADCAST);
    }
    if (rc < 0) {
        ws_route_note(b->route, WS_WAY_BROADCAST, err.text);
        if (rc != -ENOTSUP && rc != -ECANCELED)
            ws_log(WS_LOG_WARN, "store", "broadcast given up model=%s version=%lu errno=%s error=\"%s\"",
                   b->version->model->name, b->version->number, ws_errno_name(-rc), err.text);
    }
    atomic_store(&b->route->progress_ns, ws_clock_ns()); /* what follows has its whole deadline */
}

void ws_rounds_run(struct ws_route *r, const atomic_int *priority, char how[WS_HOW_CHARS])
{
    const struct ws_manifest *m = atomic_load(&r->version->manifest);
    struct rounds b = {
        .route = r, .version = r->version, .manifest = m, .leg = {.whole = true, .control = true}};
    struct ws_error why = {0};

    how[0] = '\0';
    if (ws_strategies_rank(&r->strategies, WS_WAY_BROADCAST) < 0 || !is_missing_any(&b) || has_better(r))
        return;
    if (ws_broadcast_available(&why) < 0) {
        ws_route_note(r, WS_WAY_BROADCAST, why.text);
        return;
    }
    unsigned char **data = calloc(m->n_files ? m->n_files : 1, sizeof(*data));
    if (data)
        join(&b, priority, data, how);
    else
        ws_route_note(r, WS_WAY_BROADCAST, "no memory for it");
    free(data);
}
