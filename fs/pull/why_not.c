#include "fs/pull/why_not.h"
#include "fs/pull/cuda_ipc_file.h"
#include "transports/device/device.h"
#include "transports/nccl/broadcast.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Why a mount's pull did not come by a strategy of GPUs. There is always a reason: a mount pulls bytes, and
 * only engines load device to device. */
static void explain_devices(struct ws_source_select *sel, int id, char why[WS_REASON_CHARS])
{
    const struct ws_transport_prefs ipc = {.n = 1, .id = {WS_WAY_IPC}};
    struct ws_source_attempt attempt = {.only = &ipc};
    struct ws_error err = {0};
    json_t *reply;

    if (ws_device_by_kind(WS_CUDA)->available(&err) < 0) {
        snprintf(why, WS_REASON_CHARS, "%s", err.text);
        return;
    }
    if (ws_source_select_next(sel, &attempt, &err) < 0) {
        snprintf(why, WS_REASON_CHARS, "no unix: source, so no agent on this host that could share it");
        return;
    }
    ws_source_select_end(&attempt);
    if (!ws_cuda_ipc_file_exists(sel->version)) {
        snprintf(why, WS_REASON_CHARS, "the source does not share it");
        return;
    }
    int rc = ws_cuda_ipc_file_query(sel->version, &reply, &err);
    const char *shared = json_string_value(json_object_get(reply, "strategy"));
    if (rc < 0)
        snprintf(why, WS_REASON_CHARS, "the source shares it no more: %s", err.text);
    else if (shared && strcmp(shared, ws_way_name(id)) != 0)
        snprintf(why, WS_REASON_CHARS, "the source shares it by %.30s", shared);
    else
        snprintf(why, WS_REASON_CHARS, "for engines only, which find it in .wsync/cuda_ipc.json");
    json_decref(reply);
}

/* Why no source of that strategy was used, where none was tried or none failed. With store->lock. */
static void explain_sources(const struct ws_version *v, int id, char why[WS_REASON_CHARS])
{
    const char *const *scheme = ws_way_schemes(&ws_ways[id]);
    const struct ws_poller *found = NULL;

    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        const struct ws_poller *p = v->store->pollers[i];
        if (p && p->strategy == id && (!found || (v->sources & ws_bit(i))))
            found = p;
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
        snprintf(why, WS_REASON_CHARS, "its source was not up yet, or did not have the delta that came");
}

static bool has_sources(struct ws_store *s, int id)
{
    bool has = false;

    pthread_mutex_lock(&s->lock);
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++)
        has = has || (s->pollers[i] && s->pollers[i]->strategy == id);
    pthread_mutex_unlock(&s->lock);
    return has;
}

static void explain(struct ws_source_select *sel, int id, char why[WS_REASON_CHARS])
{
    struct ws_store *s = sel->version->store;
    struct ws_error err = {0};

    pthread_mutex_lock(&sel->lock);
    snprintf(why, WS_REASON_CHARS, "%s", sel->why_not[id]);
    pthread_mutex_unlock(&sel->lock);
    if (why[0])
        return;
    if (ws_ways[id].handles) {
        explain_devices(sel, id, why);
    } else if (id == WS_WAY_UCX && !has_sources(s, id)) {
        if (!s->options.ucx)
            snprintf(why, WS_REASON_CHARS, "the mount has no option ucx");
        else
            snprintf(why, WS_REASON_CHARS, "%s",
                     ws_way_available(&ws_ways[id], &err) < 0
                         ? err.text
                         : "what came was a delta, or no http:// source's");
    } else if (id == WS_WAY_BROADCAST) {
        snprintf(why, WS_REASON_CHARS, "%s",
                 ws_broadcast_available(&err) < 0 ? err.text : "what came was a delta");
    } else {
        pthread_mutex_lock(&s->lock);
        explain_sources(sel->version, id, why);
        pthread_mutex_unlock(&s->lock);
    }
}

/* Fit for a part of a quoted sentence: advice after a semicolon is left out, and quotes become single. */
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

void ws_why_not(struct ws_source_select *sel, char out[WS_WHY_NOT_CHARS])
{
    const int used = atomic_load(&sel->used);
    char why[WS_N_WAYS][WS_REASON_CHARS];
    int id[WS_N_WAYS], n = 0;

    snprintf(out, WS_WHY_NOT_CHARS, "%s", sel->part_why_not);
    if (out[0])
        return;
    for (; n < WS_N_WAYS; n++) {
        id[n] = ws_transport_prefs_at(&sel->transport_prefs, n);
        if (id[n] == WS_NO_WAY || id[n] == used)
            break;
        explain(sel, id[n], why[n]);
        shorten(why[n]);
    }
    for (int i = 0; i < n; i++) {
        if (!why[i][0])
            continue; /* it is with an earlier strategy that has the same reason */
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
