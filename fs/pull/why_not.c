#include "fs/pull/why_not.h"
#include "fs/pull/cuda_ipc_file.h"
#include "transports/device/device.h"
#include "transports/nccl/broadcast.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Can engines load that version device to device? Always a reason, for a mount's own pulls come by bytes. */
static void look_at_devices(struct ws_route *r, int id, char why[WS_REASON_CHARS])
{
    const struct ws_version *v = r->version;
    const struct ws_strategies ipc = {.n = 1, .id = {WS_WAY_IPC}};
    struct ws_leg leg = {.only = &ipc};
    struct ws_error err = {0};
    json_t *reply = NULL;

    if (ws_device_of_kind(WS_CUDA)->available(&err) < 0) {
        snprintf(why, WS_REASON_CHARS, "%s", err.text);
        return;
    }
    if (ws_route_take(r, &leg, &err) < 0) {
        snprintf(why, WS_REASON_CHARS, "no unix: source, so nobody on this host who could share it");
        return;
    }
    if (!ws_version_is_on_gpus(r->version)) {
        snprintf(why, WS_REASON_CHARS, "the source does not share it");
        ws_route_end(&leg);
        return;
    }
    json_t *body =
        json_pack("{s:s,s:I,s:s}", "model", v->model->name, "version", (json_int_t)v->number, "run", v->run);
    int rc =
        body ? ws_source_call(leg.watch->source, "POST", "/v1/local/gpu/look", body, &reply, &err) : -ENOMEM;
    const char *shared = json_string_value(json_object_get(reply, "strategy"));
    if (rc < 0)
        snprintf(why, WS_REASON_CHARS, "the source shares it no more: %s", err.text);
    else if (shared && strcmp(shared, ws_way_name(id)) != 0)
        snprintf(why, WS_REASON_CHARS, "the source shares it by %.30s", shared);
    else
        snprintf(why, WS_REASON_CHARS, "for engines only, which find it in .wsync/cuda_ipc.json");
    json_decref(reply);
    json_decref(body);
    ws_route_end(&leg);
}

/* What a source says that was never asked, or has not failed. With store->lock. */
static void look_at_sources(const struct ws_version *v, int id, char why[WS_REASON_CHARS])
{
    const char *const *scheme = ws_way_schemes(&ws_ways[id]);
    const struct ws_watch *found = NULL;

    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        const struct ws_watch *w = v->store->watches[i];
        if (w && w->strategy == id && (!found || (v->sources & ws_bit(i))))
            found = w;
    }
    if (!found)
        snprintf(why, WS_REASON_CHARS, "no %s source", scheme[0]);
    else if (!found->up)
        snprintf(why, WS_REASON_CHARS, "its source does not answer: %.80s", found->error);
    else if (!(v->sources & ws_bit(found->index)))
        snprintf(why, WS_REASON_CHARS, "its source does not list this version");
    else if (v->partial & ws_bit(found->index))
        snprintf(why, WS_REASON_CHARS, "its source has only the delta");
    else
        snprintf(why, WS_REASON_CHARS, "its source was not there yet, or had not the delta that came");
}

static void reason_of(struct ws_route *r, int id, char why[WS_REASON_CHARS])
{
    struct ws_store *s = r->version->store;
    struct ws_error err = {0};

    pthread_mutex_lock(&r->lock);
    snprintf(why, WS_REASON_CHARS, "%s", r->why_not[id]);
    pthread_mutex_unlock(&r->lock);
    if (why[0])
        return;
    if (ws_ways[id].handles) {
        look_at_devices(r, id, why);
    } else if (id == WS_WAY_BROADCAST) {
        snprintf(why, WS_REASON_CHARS, "%s",
                 ws_broadcast_available(&err) < 0 ? err.text : "what came was a delta");
    } else {
        pthread_mutex_lock(&s->lock);
        look_at_sources(r->version, id, why);
        pthread_mutex_unlock(&s->lock);
    }
}

/* As a sentence's part: what to do is left out, and no mark ends the quotation. */
static void shorten(char why[WS_REASON_CHARS])
{
    why[strcspn(why, ";")] = '\0';
    for (char *p = why; (p = strchr(p, '"'));)
        *p = '\'';
}

static void append(char out[WS_WHY_NOT_CHARS], const char *a, const char *b)
{
    const size_t n = strlen(out);
    snprintf(out + n, WS_WHY_NOT_CHARS - n, "%s%s", a, b);
}

void ws_why_not(struct ws_route *r, char out[WS_WHY_NOT_CHARS])
{
    const int used = atomic_load(&r->used);
    char why[WS_N_WAYS][WS_REASON_CHARS];
    int id[WS_N_WAYS], n = 0;

    snprintf(out, WS_WHY_NOT_CHARS, "%s", r->part_why_not);
    if (out[0])
        return;
    for (; n < WS_N_WAYS; n++) {
        id[n] = ws_strategies_at(&r->strategies, n);
        if (id[n] == WS_NO_WAY || id[n] == used)
            break;
        reason_of(r, id[n], why[n]);
        shorten(why[n]);
    }
    for (int i = 0; i < n; i++) {
        if (!why[i][0])
            continue; /* named with an earlier one */
        append(out, out[0] ? "; " : "", ws_way_name(id[i]));
        for (int k = i + 1; k < n; k++) {
            if (strcmp(why[k], why[i]) != 0)
                continue;
            append(out, ", ", ws_way_name(id[k]));
            why[k][0] = '\0';
        }
        append(out, ": ", why[i]);
    }
}
