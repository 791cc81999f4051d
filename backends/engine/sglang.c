/* SGLang, by the routes of its HTTP server (read from 0.5.23 and tried against it).
 *
 * What shapes this file:
 * - SGLang checks nothing and cannot roll back: a truncated file kills it without a reply. So the result of a
 *   load without a reply is unknown, and a "success" is believed only after /model_info names the new path
 *   and version.
 * - Pausing by `retract` puts running requests back into the queue and frees their KV cache, so that after the
 *   load no token is computed from old keys. Older servers only know `abort`. `in_place` keeps the cache.
 * - A load that flushes the cache answers success false where requests are in the way, although the weights
 *   are new, and then records no version. So the load leaves the cache alone, and the flush is a call of its
 *   own, which can be repeated.
 * - /health runs a request and takes a second, so it is not used. /model_info answers at once.
 * - /ready reports whether it takes requests: not while it is paused, so a resume is done when it reports
 *   that it does. Older releases do not have it.
 * - /server_info is answered by the scheduler, which does one thing after the other, so only after a load.
 *   A late reply is taken for that of the next load; so no load is sent before.
 * - With several tokenizer workers each reports its own path and version, and only one of them gets a load.
 *   So the version is what the schedulers report, the path is unknown, and a pause by `abort` stops one
 *   worker only.
 * - A server that was started with dummy weights also reads files as `dummy`, unless a load names another
 *   format.
 * - A load feeds its files to the draft model, too. That is right where both were started on one checkpoint
 *   (MTP, NEXTN), so that a version has the draft's tensors. A draft model with files of its own would get
 *   the target's: such a server is refused, unless the plug-in of our Python package keeps them from it. The
 *   load has no selector. The plug-in takes a draft model's path out of the request's manifest, which SGLang passes
 *   on and does not read, and leaves the target alone then. Without it such a request would load the target: so it names
 *   the files that the target has, and is not sent unless the server says that it has the plug-in.
 * - A part of its memory that it is told to take back without having released it ends it, and no route of its own says
 *   what is released (sglang_sleep.h). Nor does it refuse a load into memory that it has released. */
#include "backends/engine/pause.h"
#include "backends/engine/sglang_adapters.h"
#include "backends/engine/sglang_info.h"
#include "backends/engine/sglang_patch.h"
#include "backends/engine/sglang_sleep.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAS_DUMMY = 1, HAS_WORKERS = 2, HAS_READY = 4 };

#define CLEAR_EXTERNAL     "/hicache/storage-backend/clear"
#define CLEAR_EXTERNAL_OLD "/clear_hicache_storage_backend"

static const char *const pause_modes[] = {"retract", "abort", "in_place", NULL};

static bool is(const struct ws_engine_target *t, unsigned fact)
{
    return t->facts && t->facts->known && t->facts->routes & fact;
}

/* Of all schedulers, where they agree. */
static int version_from_schedulers(const struct ws_engine_target *t, const struct ws_http_reply *reply,
                                   struct ws_engine_serving *out, struct ws_error *err)
{
    const json_t *states = json_object_get(reply->json, "internal_states");
    const char *version = json_string_value(json_object_get(json_array_get(states, 0), "weight_version"));
    for (size_t i = 1; version && i < json_array_size(states); i++) {
        const char *other = json_string_value(json_object_get(json_array_get(states, i), "weight_version"));
        version = other && strcmp(other, version) == 0 ? version : NULL;
    }
    if (!version)
        return ws_error_set(err, EPROTO,
                            "%s has several tokenizer workers, and its schedulers do not say one version: "
                            "start it with --tokenizer-worker-num 1, or as a newer release",
                            t->url);
    return ws_call_copy(t, out->version, sizeof(out->version), version, "weight_version", err);
}

static int serving_from_workers(const struct ws_engine_target *t, struct ws_engine_serving *out,
                                struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_sglang_info(t, &reply, err);
    if (rc)
        return rc;
    rc = version_from_schedulers(t, &reply, out, err);
    ws_http_reply_release(&reply);
    return rc;
}

static int serving_from_one(const struct ws_engine_target *t, struct ws_engine_serving *out,
                            struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_call_get(t, "/model_info", &reply, err);

    if (rc == -EPROTO && !ws_call_get(t, "/get_model_info", &reply, NULL))
        rc = 0; /* its name in older versions */
    if (rc)
        return rc;
    if (reply.status != 200 || !json_is_string(json_object_get(reply.json, "model_path")))
        rc = ws_error_set(err, EPROTO, "%s answered %ld without a model_path: this is no SGLang", t->url,
                          reply.status);
    if (!rc)
        rc = ws_call_copy(t, out->path, sizeof(out->path), ws_call_text(&reply, "model_path"), "model_path",
                          err);
    if (!rc)
        rc = ws_call_copy(t, out->version, sizeof(out->version), ws_call_text(&reply, "weight_version"),
                          "weight_version", err);
    ws_http_reply_release(&reply);
    return rc;
}

/* Does it take requests? Not while it is paused. Older releases do not say. */
static int query_ready(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err)
{
    int rc = ws_call_refuses(t, "/ready", 503, &out->paused, err);
    out->reports_paused = rc == 0;
    return rc;
}

static int serving(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err)
{
    *out = (struct ws_engine_serving){0};
    int rc = is(t, HAS_WORKERS) ? serving_from_workers(t, out, err) : serving_from_one(t, out, err);
    if (rc || t->only_named)
        return rc;
    rc = is(t, HAS_READY) ? query_ready(t, out, err) : 0;
    return rc == 0 && t->sleep ? ws_sglang_asleep(t, out, err) : rc;
}

/* Are its keys ours, too, on the routes that change it? Where it has an admin key they want that one, and all
 * others the API key. This one of them changes nothing. */
static int check_admin(const struct ws_engine_target *t, struct ws_error *err)
{
    struct ws_engine_target admin = *t;
    struct ws_http_reply reply;
    if (t->admin_token)
        admin.token = t->admin_token;
    int rc = ws_call_get(&admin, "/hicache/storage-backend", &reply, err);
    if (!rc)
        ws_http_reply_release(&reply);
    return rc == -EACCES ? rc : 0; /* older ones have no such route */
}

/* Of the plug-in of our Python package, which each scheduler has. With data parallelism there are several, in the order in which they
 * have answered. */
static bool plugin_says(const json_t *info, const char *what)
{
    const json_t *all = json_object_get(info, "internal_states"), *one;
    bool says = json_array_size(all) > 0;
    size_t i;
    json_array_foreach(all, i, one) says =
        says && json_is_true(json_object_get(json_object_get(one, "wsync"), what));
    return says;
}

/* The first in the alphabet of the names of all schedulers, which are started together; NULL: one has none. */
static const char *plugin_process(const json_t *info)
{
    const json_t *all = json_object_get(info, "internal_states"), *one;
    const char *first = NULL;
    size_t i;
    json_array_foreach(all, i, one)
    {
        const char *name = json_string_value(json_object_get(json_object_get(one, "wsync"), "process"));
        if (!name)
            return NULL;
        if (!first || strcmp(name, first) < 0)
            first = name;
    }
    return first;
}

/* It keeps the embeddings of images that it has seen, by the image alone, and no flush of its own empties
 * them. The plug-in of our Python package does, and says so. */
static void find_embedding_cache(const struct ws_engine_target *t, const json_t *info,
                                 struct ws_engine_facts *facts)
{
    struct ws_http_reply reply;
    if (plugin_says(info, "forgets_embeddings") || ws_call_get(t, "/model_info", &reply, NULL))
        return;
    if (json_is_true(json_object_get(reply.json, "has_image_understanding")))
        snprintf(facts->missing, sizeof(facts->missing),
                 "a way to forget the old weights' image embeddings: start it with "
                 "SGLANG_VLM_CACHE_SIZE_MB=0, or with the Python package wsync beside it");
    ws_http_reply_release(&reply);
}

static unsigned rank_of(const json_t *value)
{
    const json_int_t rank = json_integer_value(value);
    return rank > 0 && rank < UINT_MAX ? (unsigned)rank : 0;
}

/* See the file's head. The paths are those that it was started with, whatever was loaded since. */
static int check_draft(const struct ws_engine_target *t, const json_t *info, struct ws_engine_facts *facts,
                       struct ws_error *err)
{
    const bool frozen = plugin_says(info, "freezes_draft");
    const char *draft = json_string_value(json_object_get(info, "speculative_draft_model_path"));
    const char *model = json_string_value(json_object_get(info, "model_path"));
    if (!draft || !json_is_string(json_object_get(info, "speculative_algorithm")))
        return 0;
    const bool own = !model || strcmp(draft, model) != 0;
    if (own && !frozen)
        return ws_error_set(
            err, EPROTO,
            "%s has a draft model with files of its own, %.300s: its load from disk would feed the "
            "target's files to it; start it with the Python package wsync beside it, which keeps "
            "them from it, or with the draft in the target's checkpoint (MTP)",
            t->url, draft);
    snprintf(facts->draft, sizeof(facts->draft), own ? "unchanged" : "loaded");
    facts->loads_draft = own && plugin_says(info, "loads_draft");
    return 0;
}

/* Nothing else knows whether it sleeps, and a wake of what is awake ends it. */
static int check_tells_sleep(const struct ws_engine_target *t, const json_t *info, struct ws_error *err)
{
    return ws_sglang_tells_sleep(info)
               ? 0
               : ws_error_set(err, EPROTO,
                              "%s cannot say whether it sleeps, as sleep= needs: start it with the Python "
                              "package wsync beside it",
                              t->url);
}

/* What it was started with; as by default where it is too old to say. One that cannot say it now may have
 * been started with dummy weights, which it would "load" with success. */
static int read_arguments(const struct ws_engine_target *t, struct ws_engine_facts *facts,
                          struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_sglang_info(t, &reply, err);
    if (rc)
        return rc == -EPROTO ? 0 : rc;
    (void)ws_call_copy(t, facts->release, sizeof(facts->release), ws_call_text(&reply, "version"), "version",
                       NULL);
    find_embedding_cache(t, reply.json, facts);
    if (json_is_true(json_object_get(reply.json, "enable_lora")))
        facts->max_adapter_rank = rank_of(json_object_get(reply.json, "max_lora_rank"));
    facts->patches = plugin_says(reply.json, "patches");
    rc = check_draft(t, reply.json, facts, err);
    if (!rc && t->sleep)
        rc = check_tells_sleep(t, reply.json, err);
    if (strcmp(ws_call_text(&reply, "load_format"), "dummy") == 0)
        facts->routes |= WAS_DUMMY;
    if (!rc && json_integer_value(json_object_get(reply.json, "tokenizer_worker_num")) > 1) {
        const char *first = ws_call_text(&reply, "weight_version");
        facts->routes |= HAS_WORKERS;
        rc = version_from_schedulers(t, &reply, out, err);
        if (!rc && t->pause_mode && strcmp(t->pause_mode, "abort") == 0)
            rc = ws_error_set(err, EPROTO,
                              "%s has several tokenizer workers, and pause=abort stops one of them alone: "
                              "use retract or in_place, or start it with --tokenizer-worker-num 1",
                              t->url);
        if (!rc && strcmp(out->version, first) == 0) /* nothing was loaded since its start */
            rc = ws_call_copy(t, out->path, sizeof(out->path), ws_call_text(&reply, "model_path"),
                              "model_path", err);
        else
            out->path[0] = 0;
    }
    ws_http_reply_release(&reply);
    return rc;
}

static int probe(const struct ws_engine_target *t, struct ws_engine_facts *facts,
                 struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_engine_target fresh = *t;
    bool has;
    fresh.facts = NULL;
    int rc = serving(&fresh, out, err);
    if (rc)
        return rc;
    *facts = (struct ws_engine_facts){.known = true};
    rc = query_ready(t, out, err);
    if (rc == 0)
        facts->routes |= HAS_READY;
    if (rc == 0 || rc == -EPROTO)
        rc = ws_call_has_post(t, "/update_weights_from_disk", &has, err);
    if (!rc && !has)
        rc = ws_error_set(err, EPROTO,
                          "%s is an SGLang without /update_weights_from_disk: it is too old to switch",
                          t->url);
    if (!rc)
        rc = check_admin(t, err);
    if (!rc)
        rc = ws_call_has_post(t, "/update_weight_version", &facts->labels, err);
    return rc ? rc : read_arguments(t, facts, out, err);
}

static int pause_with(const struct ws_engine_target *t, const char *mode, struct ws_error *err)
{
    return ws_pause_post(t, "/pause_generation", json_pack("{s:s}", "mode", mode), "ok", ws_call_short_ms(t),
                         err);
}

/* Older releases have neither route. One that fails to answer does not say that it has settled. */
static int drain(const struct ws_engine_target *target, struct ws_error *err)
{
    struct ws_engine_target t = *target;
    struct ws_http_reply reply;
    t.short_ms = t.timeout_ms;
    int rc = ws_sglang_info(&t, &reply, err);
    if (!rc)
        ws_http_reply_release(&reply);
    return rc == -EPROTO ? 0 : rc;
}

/* It answers before its schedulers have the pause. Of one tokenizer worker they get it before the load. */
static int pause_engine(const struct ws_engine_target *t, struct ws_error *err)
{
    int rc = pause_with(t, t->pause_mode ? t->pause_mode : pause_modes[0], err);

    if (rc == -EREMOTEIO && !t->pause_mode && !is(t, HAS_WORKERS)) /* a server that does not know retract */
        rc = pause_with(t, "abort", err);
    return rc == 0 && is(t, HAS_WORKERS) ? drain(t, err) : rc;
}

/* Its default aborts all requests. */
static int label(const struct ws_engine_target *t, const char *version, struct ws_error *err)
{
    json_t *body = json_pack("{s:s, s:b}", "new_version", version, "abort_all_requests", 0);
    struct ws_http_reply reply;
    int rc = ws_call_post_once(t, "/update_weight_version", body, ws_call_short_ms(t), &reply, err);
    if (rc)
        return rc;
    if (reply.status != 200 || !json_is_true(json_object_get(reply.json, "success")))
        rc =
            ws_error_set(err, EREMOTEIO, "%s did not take version '%s': %.300s", t->url, version, reply.text);
    ws_http_reply_release(&reply);
    return rc;
}

/* Success is what the engine serves afterwards. */
static int confirm(const struct ws_engine_target *target, const char *path, const char *version,
                   struct ws_error *err)
{
    struct ws_engine_target named = *target, *t = &named;
    struct ws_engine_serving now;
    named.only_named = true;
    int rc = serving(t, &now, err);

    if (rc)
        return rc;
    if ((now.path[0] && strcmp(now.path, path) != 0) || (now.version[0] && strcmp(now.version, version) != 0))
        return ws_error_set(err, EREMOTEIO, "%s said that it loaded %s, but serves version '%s' of %s",
                            t->url, path, now.version, now.path);
    return 0;
}

/* path: for people. */
static int update_from_disk(const struct ws_engine_target *t, const char *path, json_t *body,
                            struct ws_error *err)
{
    const char *format = t->load_format ? t->load_format : is(t, WAS_DUMMY) ? "auto" : NULL;
    struct ws_http_reply reply;
    if (body && format)
        json_object_set_new(body, "load_format", json_string(format));
    int rc = ws_call_post_once(t, "/update_weights_from_disk", body, t->timeout_ms, &reply, err);

    if (rc)
        return rc;
    if (reply.status != 200 || !json_is_true(json_object_get(reply.json, "success")))
        rc = ws_error_set(err, EREMOTEIO, "%s did not load %s: %.600s", t->url, path,
                          ws_call_text(&reply, "message")[0] ? ws_call_text(&reply, "message") : reply.text);
    ws_http_reply_release(&reply);
    return rc;
}

static int load(const struct ws_engine_target *t, const char *path, const char *version, struct ws_error *err)
{
    int rc = t->sleeping ? ws_sglang_wake_weights(t, err) : 0;
    if (rc)
        return rc;
    rc = update_from_disk(
        t, path,
        json_pack("{s:s, s:s, s:b}", "model_path", path, "weight_version", version, "flush_cache", 0), err);
    if (rc) /* what it woke with may be undefined: it does not go on as it was */
        return t->sleeping ? ws_call_after_request(rc, err) : rc;
    return ws_call_after_request(confirm(t, path, version, err), err);
}

/* The plug-in names the schedulers that it runs in. */
static int process(const struct ws_engine_target *t, char out[WS_ENGINE_PROCESS_CHARS + 1],
                   struct ws_error *err)
{
    struct ws_http_reply reply;
    int rc = ws_sglang_info(t, &reply, err);
    if (rc)
        return rc;
    const char *name = plugin_process(reply.json);
    if (name && name[0] && strlen(name) <= WS_ENGINE_PROCESS_CHARS && !strpbrk(name, " \n"))
        snprintf(out, WS_ENGINE_PROCESS_CHARS + 1, "%s", name);
    else
        rc = ws_error_set(err, EPROTO, "%s does not name its process", t->url);
    ws_http_reply_release(&reply);
    return rc;
}

/* It may have been started anew since it was probed. Its answer comes after those to all earlier calls. */
static int check_loads_draft(const struct ws_engine_target *target, struct ws_error *err)
{
    struct ws_engine_target patient = *target, *t = &patient;
    struct ws_http_reply reply;
    t->short_ms = t->timeout_ms;
    int rc = ws_sglang_info(t, &reply, err);
    if (rc)
        return rc;
    const bool loads = plugin_says(reply.json, "loads_draft");
    ws_http_reply_release(&reply);
    return loads ? 0
                 : ws_error_set(
                       err, EPROTO,
                       "%s cannot load a draft model alone: start it as SGLang 0.5.23 or newer with the "
                       "Python package wsync beside it",
                       t->url);
}

/* Nothing of the target changes, and no version is named: it would be recorded as the target's. */
static int load_draft(const struct ws_engine_target *t, const char *path, const char *version,
                      struct ws_error *err)
{
    struct ws_engine_serving now;
    (void)version;
    int rc = check_loads_draft(t, err);
    if (!rc)
        rc = serving(t, &now, err);
    if (!rc && !now.path[0])
        rc = ws_error_set(
            err, EPROTO,
            "%s has several tokenizer workers, and does not say where its target is from: start it "
            "with --tokenizer-worker-num 1",
            t->url);
    return rc ? rc
              : update_from_disk(t, path,
                                 json_pack("{s:s, s:{s:s}, s:b}", "model_path", now.path, "manifest",
                                           "wsync_draft", path, "flush_cache", 0),
                                 err);
}

/* The schedulers do it, and the server, which asks them, only takes note of what they have: the plug-in answers a load
 * that names their plan without loading. */
static int patch(const struct ws_engine_target *t, const struct ws_engine_patch *ask,
                 struct ws_engine_patch_reply *out, struct ws_error *err)
{
    struct ws_engine_target aside = *t;
    aside.acted = NULL;
    int rc = ws_sglang_patch(t, ask, out, err);
    if (rc || !out->ok || (ask->stage != WS_PATCH_PUT && ask->stage != WS_PATCH_UNDO))
        return rc;
    memset(aside.cancel + 1, 0, sizeof(aside.cancel) - sizeof(aside.cancel[0])); /* as after a load */
    aside.end_ns = 0;
    rc = update_from_disk(&aside, ask->path,
                          json_pack("{s:s, s:s, s:b, s:{s:{s:s, s:s}}}", "model_path", ask->path,
                                    "weight_version", ask->version, "flush_cache", 0, "manifest",
                                    "wsync_patch", "stage", "note", "plan", ask->plan),
                          err);
    return rc ? rc : confirm(&aside, ask->path, ask->version, err);
}

/* 400: requests run or wait. While it is paused those that wait do not count. */
static int flush_once(const struct ws_engine_target *t, struct ws_error *err)
{
    return ws_call_plain(t, "/flush_cache", 400, NULL, err);
}

/* What runs on after `in_place` needs its keys and values: they stay. */
static int flush(const struct ws_engine_target *t, struct ws_error *err)
{
    bool in_place = t->pause_mode && strcmp(t->pause_mode, "in_place") == 0;
    int rc = in_place || t->cache == WS_CACHE_KEEP
                 ? 0
                 : ws_call_while_busy(t, ws_call_short_ms(t), flush_once, err);
    if (rc || t->cache != WS_CACHE_EXTERNAL)
        return rc;
    rc = ws_call_plain(t, CLEAR_EXTERNAL, 0, NULL, err);
    return rc == -EPROTO ? ws_call_plain(t, CLEAR_EXTERNAL_OLD, 0, NULL, err) : rc;
}

/* Of several tokenizer workers each reports of itself alone. */
static int query_paused(const struct ws_engine_target *t, bool *paused, struct ws_error *err)
{
    const bool known = t->facts && t->facts->known;
    if (known && (!is(t, HAS_READY) || is(t, HAS_WORKERS)))
        return -ENOTSUP;
    int rc = ws_call_refuses(t, "/ready", 503, paused, err);
    return rc == -EPROTO && !known ? -ENOTSUP : rc;
}

static int resume_once(const struct ws_engine_target *t, struct ws_error *err)
{
    return ws_pause_resume_once(t, "/continue_generation", "ok", query_paused, err);
}

static int resume(const struct ws_engine_target *t, struct ws_error *err)
{
    int rc = t->sleeping ? ws_sglang_wake_rest(t, err) : 0;
    return rc ? rc : ws_call_while_busy(t, ws_call_pause_ms(t), resume_once, err);
}

const struct ws_engine_ops ws_engine_sglang = {
    .kind = "sglang",
    .pause_modes = pause_modes,
    .reports_path = true,
    .reports_version = true,
    .probe = probe,
    .pause = pause_engine,
    .drain = drain,
    .label = label,
    .load = load,
    .flush = flush,
    .resume = resume,
    .serving = serving,
    .adapter_load = ws_sglang_adapter_load,
    .adapter_unload = ws_sglang_adapter_unload,
    .adapters = ws_sglang_adapters,
    .load_draft = load_draft,
    .process = process,
    .patch = patch,
};
