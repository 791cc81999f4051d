#include "fs/parts.h"
#include "fs/fuse/life.h"
#include "fs/fuse/readers.h"
#include "fs/fuse/version_cache.h"
#include "fs/probes.h"
#include "fs/pull/lazy.h"
#include "fs/pull/pull.h"
#include "fs/relay.h"
#include "fs/supervised.h"
#include "fs/switch/settings_lock.h"
#include "transports/base/log.h"
#include "transports/base/number.h"
#include "transports/memory/available.h"
#include <stdio.h>
#include <unistd.h>

/* Once, for the operator: what takes how much of the memory. */
static void say_sizes(struct ws_fs *fs)
{
    struct ws_store_stats s;
    const struct ws_store_options *o = &fs->options.store;
    const uint64_t available = ws_memory_available(NULL);
    const bool grows = o->delta_cache_bytes == WS_DELTA_CACHE_GROWS;
    const uint64_t deltas = grows ? WS_DELTA_CACHE_LEAST : o->delta_cache_bytes;
    char cache[WS_NUMBER_CHARS], each[WS_NUMBER_CHARS] = "nothing", rest[WS_NUMBER_CHARS];
    ws_store_stats(fs->store, &s);
    const uint64_t taken = s.cache_bytes + deltas;
    ws_number_size_text(s.cache_bytes, cache);
    ws_number_size_text(available > taken ? available - taken : 0, rest);
    if (deltas)
        ws_number_size_text(deltas, each);
    ws_log(WS_LOG_INFO, "mount",
           "memory: cache=%s for versions (copies=%s)%s; beside it deltas of each model, %s%s; %s stays free",
           cache, ws_copies_name(o->copies),
           o->copies == WS_COPIES_TWO ? "" : " and what leads back, at most half of a version", each,
           grows ? " or an eighth of the model" : "", rest);
}

static uint64_t id_of_model(void *life, const char *name, uint64_t fresh)
{
    return ws_life_model_id(life, name, fresh);
}

static void id_of_version(void *life, uint64_t id, uint64_t model_id, const struct ws_version_id *version)
{
    ws_life_add_version(life, id, model_id, version);
}

static int make_store(struct ws_fs *fs, const char *mount_id, struct ws_error *err)
{
    struct ws_store_options o = fs->options.store;
    o.source.mount_id = mount_id;
    o.own_memory = fs->reads == WS_READS_LINK;
    if (fs->life)
        o.ids = (struct ws_store_ids){ws_life_last_id(fs->life), id_of_model, id_of_version, fs->life};
    o.keeper = ws_supervised_keeper();
    o.serves = fs->options.serve.listen;
    o.trust = fs->options.trust.n ? &fs->options.trust : NULL;
    int rc = ws_store_new(&fs->store, &ws_puller, &o, err);
    if (rc < 0)
        return rc;
    say_sizes(fs);
    ws_store_set_reclaim(fs->store, ws_version_cache_release, fs);
    ws_store_set_readers(fs->store, &(struct ws_store_readers){ws_readers_close, ws_readers_describe, fs});
    const struct ws_parents_options parents = {
        .rack = fs->options.rack, .token = fs->options.peer_token, .token_file = fs->options.peer_token_file};
    return fs->options.asks_parents ? ws_store_ask_parents(fs->store, &parents, err) : 0;
}

static int make_control(struct ws_fs *fs, const char *mount_id, struct ws_error *err)
{
    struct ws_control_options c = {.mountpoint = fs->options.mountpoint,
                                   .mount_id = mount_id,
                                   .passthrough = fs->reads == WS_READS_PASSTHROUGH,
                                   .link = fs->reads == WS_READS_LINK,
                                   .mode_text = fs->mode_text,
                                   .prefetch = fs->options.prefetch,
                                   .source = fs->options.source,
                                   .has_token = fs->options.store.source.token != NULL,
                                   .files = fs->options.files,
                                   .config = fs->options.config,
                                   .state = fs->options.state};
    const int rc = ws_control_new(&fs->control, fs->store, &c, err);
    if (rc == 0)
        ws_control_on_event(fs->control, ws_fs_poll_event, fs);
    return rc;
}

/* Of probes, and of other mounts. */
static int make_servers(struct ws_fs *fs, struct ws_error *err)
{
    struct ws_tcp_server_options serve = fs->options.serve;
    int rc = fs->options.listen
                 ? ws_probes_new(&fs->probes, fs->options.listen, fs->options.listen_tokens, fs->control, err)
                 : 0;
    if (rc < 0 || !serve.listen)
        return rc;
    if (!serve.access.token && !serve.access.tokens_file) {
        serve.access.token = fs->options.store.source.token;
        serve.access.token_file = fs->options.store.source.token_file;
    }
    serve.access.makes_local_token = true;
    rc = ws_relay_new(&fs->relay, fs->store, fs->control, &serve, err);
    if (rc == 0 && fs->options.asks_parents)
        ws_store_serves_at(fs->store, ws_relay_port(fs->relay), serve.tls_cert_file);
    return rc;
}

/* Views and needs first: they say what is taken of the sources. */
static int add_sources(struct ws_fs *fs, struct ws_error *err)
{
    const bool is_lazy = fs->options.open == WS_OPEN_LAZY;
    int rc = ws_mount_options_add_views(&fs->options, fs->store, err);
    if (rc == 0 && (is_lazy || ws_store_learns(fs->store)))
        rc = ws_lazy_new(&fs->lazy, fs->store, is_lazy, err);
    return rc < 0 ? rc : ws_mount_options_add_sources(&fs->options, fs->store, err);
}

int ws_parts_start(struct ws_fs *fs, struct ws_error *err)
{
    char host[256] = "localhost", mount_id[WS_MOUNT_ID_CHARS + 1];
    (void)gethostname(host, sizeof(host) - 1);
    snprintf(mount_id, sizeof(mount_id), "%.200s:%.300s", fs->options.host ? fs->options.host : host,
             fs->options.mountpoint);
    int rc = make_store(fs, mount_id, err);
    if (rc == 0)
        rc = make_control(fs, mount_id, err);
    if (rc == 0)
        rc = make_servers(fs, err);
    if (rc == 0)
        rc = add_sources(fs, err);
    if (rc == 0)
        ws_control_open_kept(fs->control);
    return rc;
}

void ws_parts_end_control(void *arg)
{
    struct ws_fs *fs = arg;
    ws_control_stop(fs->control);
    ws_probes_free(fs->probes);
    fs->probes = NULL;
    ws_relay_stop(fs->relay);
    ws_settings_unlock(fs->settings);
    fs->settings = -1;
}
