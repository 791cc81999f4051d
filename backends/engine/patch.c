#include "backends/engine/patch.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define UNDO_TRIES 2

static const struct {
    const char *name;
    unsigned share; /* of a load's time; 0: as a short call */
} stages[] = {
    [WS_PATCH_STATE] = {"state", 0}, [WS_PATCH_PREPARE] = {"prepare", 3}, [WS_PATCH_PUT] = {"put", 1},
    [WS_PATCH_UNDO] = {"undo", 1},   [WS_PATCH_DROP] = {"drop", 0},       [WS_PATCH_VERIFY] = {"verify", 1},
};

const char *ws_engine_patch_stage_name(enum ws_engine_patch_stage s)
{
    return stages[s].name;
}

unsigned ws_engine_patch_within_ms(const struct ws_engine_target *t, enum ws_engine_patch_stage stage)
{
    const unsigned share = stages[stage].share, ms = share ? t->timeout_ms / share : ws_call_short_ms(t);
    return ms ? ms : 1;
}

json_t *ws_engine_patch_arguments(const struct ws_engine_patch *ask)
{
    json_t *all = json_pack("{s:s}", "stage", ws_engine_patch_stage_name(ask->stage));
    int rc = all ? 0 : -1;
    if (rc == 0 && ask->plan)
        rc = json_object_set_new(all, "plan", json_string(ask->plan));
    if (rc == 0 && ask->stage == WS_PATCH_PREPARE) {
        rc = json_object_set_new(all, "target", json_string(ask->target));
        if (rc == 0)
            rc = json_object_set_new(all, "base", json_string(ask->base));
    }
    if (rc == 0)
        return all;
    json_decref(all);
    return NULL;
}

int ws_engine_patch_not_offered(const struct ws_engine_target *t, const struct ws_http_reply *reply,
                                struct ws_error *err)
{
    return ws_error_set(err, EPROTO, "%s has no workers that patch: %ld %.300s", t->url, reply->status,
                        reply->text);
}

/* --- what workers say --- */

static uint64_t count_of(const json_t *worker, const char *key)
{
    const json_int_t n = json_integer_value(json_object_get(worker, key));
    return n > 0 ? (uint64_t)n : 0;
}

static double number_of(const json_t *worker, const char *key, double fallback)
{
    const double x = json_number_value(json_object_get(worker, key));
    return x > 0 ? x : fallback;
}

/* Texts of an array, with commas between, as far as there is room. */
static void add_names(const json_t *names, char *out, size_t cap)
{
    const json_t *one;
    size_t i, n = strlen(out);
    json_array_foreach(names, i, one)
    {
        const char *text = json_string_value(one);
        if (!text || strstr(out, text) || n + strlen(text) + 2 > cap)
            continue;
        n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? "," : "", text);
    }
}

/* "42@RUN" and the digest of its manifest; both empty where it does not say one of them, or no version of ours is. */
static struct ws_engine_patch_served read_served(const json_t *worker)
{
    struct ws_engine_patch_served out = {0};
    const json_t *served = json_object_get(worker, "served"), *version = json_object_get(served, "version");
    const char *run = json_string_value(json_object_get(served, "run"));
    const char *digest = json_string_value(json_object_get(served, "digest"));
    char number[32] = "";
    if (json_is_integer(version))
        snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(version));
    else if (json_is_string(version))
        snprintf(number, sizeof(number), "%.31s", json_string_value(version));
    if (!number[0] || !run || !run[0] || strlen(number) + strlen(run) + 2 > sizeof(out.version) || !digest ||
        strlen(digest) + 1 != sizeof(out.digest))
        return out;
    snprintf(out.version, sizeof(out.version), "%s@%s", number, run);
    snprintf(out.digest, sizeof(out.digest), "%s", digest);
    return out;
}

static bool is_same(const struct ws_engine_patch_served *a, const struct ws_engine_patch_served *b)
{
    return strcmp(a->version, b->version) == 0 && strcmp(a->digest, b->digest) == 0;
}

static void read_worker(const struct ws_engine_patch *ask, const json_t *worker, size_t i,
                        struct ws_engine_patch_reply *out)
{
    const bool state = ask->stage == WS_PATCH_STATE;
    const bool ok = json_is_true(json_object_get(worker, state ? "ready" : "ok"));
    const char *why = json_string_value(json_object_get(worker, "why"));
    const char *plan = json_string_value(json_object_get(worker, "plan"));
    out->wrote = out->wrote || ok || !json_is_false(json_object_get(worker, "wrote"));
    out->differs = out->differs || json_array_size(json_object_get(worker, "differs")) > 0;
    out->put = out->put || json_is_true(json_object_get(worker, "put"));
    out->changed += count_of(worker, "changed");
    out->bytes += count_of(worker, "bytes");
    const double seconds = number_of(worker, "seconds", 0), patchable = number_of(worker, "patchable", 0);
    out->seconds = seconds > out->seconds ? seconds : out->seconds;
    if (state && patchable < out->patchable)
        out->patchable = patchable;
    add_names(json_object_get(worker, "whole"), out->whole, sizeof(out->whole));
    const struct ws_engine_patch_served served = read_served(worker);
    const bool same = i == 0 || is_same(&served, &out->served), disagrees = state && !same;
    out->served = same ? served : (struct ws_engine_patch_served){0};
    if (plan && strlen(plan) <= WS_PATCH_PLAN_DIGITS && !out->plan[0])
        snprintf(out->plan, sizeof(out->plan), "%s", plan);
    if (disagrees && out->ok) { /* later ones that agree change nothing about that */
        snprintf(out->why, sizeof(out->why), "its workers do not hold one version");
        out->ok = false;
    }
    if (!ok && out->ok) {
        int n =
            snprintf(out->why, sizeof(out->why), "rank %" JSON_INTEGER_FORMAT ": %.300s",
                     json_integer_value(json_object_get(worker, "rank")), why ? why : "it does not say why");
        char names[sizeof(out->why)] = "";
        add_names(json_object_get(worker, "differs"), names, sizeof(names) / 2);
        if (names[0] && n > 0 && (size_t)n < sizeof(out->why))
            snprintf(out->why + n, sizeof(out->why) - (size_t)n, ": %s", names);
    }
    out->ok = out->ok && ok;
}

int ws_engine_patch_read(const struct ws_engine_target *t, const struct ws_engine_patch *ask,
                         const json_t *results, size_t workers, struct ws_engine_patch_reply *out,
                         struct ws_error *err)
{
    const char *stage = ws_engine_patch_stage_name(ask->stage);
    const size_t n = json_array_size(results);
    *out = (struct ws_engine_patch_reply){.workers = n, .ok = true, .patchable = 1};
    if (n == 0 || n > WS_PATCH_WORKERS || (workers && n != workers))
        return ws_error_set(err, EPROTO, "%s answered wsync_patch for %zu workers, and %zu are known", t->url,
                            n, workers);
    for (size_t i = 0; i < n; i++) {
        const json_t *worker = json_array_get(results, i);
        const char *of = json_string_value(json_object_get(worker, "stage"));
        if (!of || strcmp(of, stage) != 0) {
            *out = (struct ws_engine_patch_reply){.wrote = true};
            return ws_error_set(err, EPROTO,
                                "%s: a worker answered the stage '%.32s' where '%s' was asked: its workers "
                                "are out of step since an earlier call, or it is no wsync that they have",
                                t->url, of ? of : "", stage);
        }
        read_worker(ask, worker, i, out);
    }
    return 0;
}

/* --- on any kind's table --- */

static int refused(const struct ws_engine_target *t, const struct ws_engine_patch *ask,
                   const struct ws_engine_patch_reply *reply, struct ws_error *err)
{
    return ws_error_set(err, EREMOTEIO, "%s did not %s the patch: %.400s", t->url,
                        ws_engine_patch_stage_name(ask->stage), reply->why);
}

static enum ws_engine_patch_outcome run(const struct ws_engine_ops *ops,
                                        const struct ws_engine_target *target,
                                        const struct ws_engine_patch *ask, size_t workers,
                                        struct ws_engine_patch_reply *reply, struct ws_error *err)
{
    struct ws_engine_target t = *target;
    bool acted = false;
    *reply = (struct ws_engine_patch_reply){.wrote = true};
    t.acted = &acted;
    const int rc = ops->patch(&t, ask, reply, err);
    if (rc < 0)
        return acted ? WS_PATCH_UNKNOWN : WS_PATCH_NOTHING;
    if (reply->workers != workers) {
        (void)ws_error_set(err, EPROTO, "%s has %zu workers now, and had %zu when the patch was prepared",
                           t.url, reply->workers, workers);
        return WS_PATCH_UNKNOWN;
    }
    if (reply->ok)
        return WS_PATCH_DONE;
    (void)refused(&t, ask, reply, err);
    return reply->wrote ? WS_PATCH_UNKNOWN : WS_PATCH_NOTHING;
}

enum ws_engine_patch_outcome ws_engine_patch_put(const struct ws_engine_ops *ops,
                                                 const struct ws_engine_target *t,
                                                 const struct ws_engine_patch *ask, size_t workers,
                                                 double *seconds, struct ws_error *err)
{
    struct ws_engine_patch_reply reply;
    const enum ws_engine_patch_outcome o = run(ops, t, ask, workers, &reply, err);
    *seconds = reply.seconds;
    return o;
}

enum ws_engine_patch_outcome ws_engine_patch_undo(const struct ws_engine_ops *ops,
                                                  const struct ws_engine_target *t,
                                                  const struct ws_engine_patch *ask, size_t workers,
                                                  struct ws_error *err)
{
    struct ws_engine_patch_reply reply;
    enum ws_engine_patch_outcome o = WS_PATCH_UNKNOWN;
    for (int i = 0; i < UNDO_TRIES && o == WS_PATCH_UNKNOWN; i++) {
        const int rc = ops->drain ? ops->drain(t, err) : 0;
        if (rc < 0)
            return WS_PATCH_UNKNOWN;
        o = run(ops, t, ask, workers, &reply, err);
        if (reply.workers > 0)
            break; /* it was answered: the same would be */
    }
    return o;
}
