#include "fs/strategies.h"
#include "backends/trainer/strategy.h"
#include "fs/gpu.h"
#include "fs/route.h"
#include "fs/store_state.h"
#include "transports/broadcast.h"
#include "transports/device.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEPARATORS ",:" /* the latter in mount options, which have commas between them */
#define ALL        "packed_cuda_ipc, cuda_ipc, ipc, broadcast, dir, tcp"

static const struct ws_strategies fastest_first = {
    .n = WS_N_STRATEGIES,
    .id = {WSYNC_PACKED_CUDA_IPC, WSYNC_CUDA_IPC, WSYNC_IPC, WSYNC_BROADCAST, WSYNC_DIR, WSYNC_TCP},
};

static const struct ws_strategies *spelled_out(const struct ws_strategies *s)
{
    return s->n ? s : &fastest_first;
}

/* --- lists --- */

int ws_strategies_rank(const struct ws_strategies *s, int id)
{
    s = spelled_out(s);
    for (int i = 0; i < s->n; i++)
        if (s->id[i] == id)
            return i;
    return -1;
}

int ws_strategies_at(const struct ws_strategies *s, int rank)
{
    return spelled_out(s)->id[rank];
}

const char *ws_strategies_name(int id)
{
    return id == WS_NO_STRATEGY ? "none" : ws_strategy_of((wsync_strategy_id)id)->about.name;
}

static int add(struct ws_strategies *s, const char *word, size_t n, struct ws_error *err)
{
    char name[32];

    snprintf(name, sizeof(name), "%.*s", n < sizeof(name) ? (int)n : (int)sizeof(name) - 1, word);
    const struct ws_strategy *found = ws_strategy_named(name);
    if (strcmp(name, "auto") == 0)
        return ws_error_set(err, EINVAL, "auto stands for all strategies and goes with no others: " ALL);
    if (!found)
        return ws_error_set(err, EINVAL,
                            "there is no strategy '%s'; there are " ALL ", or auto for all of them", name);
    for (int i = 0; i < s->n; i++)
        if (s->id[i] == found->about.id)
            return ws_error_set(err, EINVAL, "the strategy %s is there twice", name);
    s->id[s->n++] = (unsigned char)found->about.id;
    return 0;
}

int ws_strategies_parse(const char *text, struct ws_strategies *out, struct ws_error *err)
{
    struct ws_strategies s = {0};
    const char *at = text;
    int rc = 0;

    if (strcmp(text, "auto") != 0) {
        do {
            size_t n = strcspn(at, SEPARATORS);
            rc = add(&s, at, n, err);
            at += n;
        } while (rc == 0 && *at++);
    }
    if (rc == 0)
        *out = s;
    return rc;
}

void ws_strategies_text(const struct ws_strategies *s, char out[WS_STRATEGIES_CHARS])
{
    size_t used = 0;

    snprintf(out, WS_STRATEGIES_CHARS, "auto");
    for (int i = 0; i < s->n; i++)
        used += (size_t)snprintf(out + used, WS_STRATEGIES_CHARS - used, "%s%s", i ? "," : "",
                                 ws_strategies_name(s->id[i]));
}

int ws_strategies_of_url(const char *url)
{
    while (strncmp(url, "fault:", 6) == 0) { /* it decorates what is behind its plan */
        const char *colon = strchr(url + 6, ':');
        if (!colon)
            return WS_NO_STRATEGY;
        url = colon + 1;
    }
    for (int id = 0; id < WS_N_STRATEGIES; id++)
        for (const char *const *scheme = ws_strategy_of((wsync_strategy_id)id)->schemes; *scheme; scheme++)
            if (strncmp(url, *scheme, strlen(*scheme)) == 0)
                return id;
    return WS_NO_STRATEGY;
}

/* --- what was set for a model --- */

struct ws_preference {
    struct ws_preference *next;
    struct ws_strategies strategies;
    char model[];
};

/* Of a part (MODEL@INDEX.COUNT) holds what was set for the model. With store->lock. */
static struct ws_preference **find(struct ws_store *store, const char *model)
{
    struct ws_preference **at = &store->preferences;

    while (*at && strcmp((*at)->model, model) != 0)
        at = &(*at)->next;
    if (!*at && strchr(model, '@')) {
        size_t n = strcspn(model, "@");
        for (at = &store->preferences; *at; at = &(*at)->next)
            if (strlen((*at)->model) == n && strncmp((*at)->model, model, n) == 0)
                break;
    }
    return at;
}

int ws_strategies_set(struct ws_store *store, const char *model, const struct ws_strategies *s,
                      struct ws_error *err)
{
    size_t n = strlen(model) + 1;
    struct ws_preference *p = s ? malloc(sizeof(*p) + n) : NULL, *old;

    if (s && !p)
        return ws_error_set(err, ENOMEM, "no memory for the strategies of %s", model);
    if (p) {
        memcpy(p->model, model, n);
        p->strategies = *s;
    }
    pthread_mutex_lock(&store->lock);
    struct ws_preference **at = find(store, model);
    old = *at;
    if (old)
        *at = old->next;
    if (p) {
        p->next = store->preferences;
        store->preferences = p;
    }
    pthread_mutex_unlock(&store->lock);
    free(old);
    return 0;
}

bool ws_strategies_get_locked(struct ws_store *store, const char *model, struct ws_strategies *out)
{
    const struct ws_preference *p = *find(store, model);

    *out = p ? p->strategies : store->options.strategies;
    return p != NULL;
}

bool ws_strategies_get(struct ws_store *store, const char *model, struct ws_strategies *out)
{
    pthread_mutex_lock(&store->lock);
    bool set = ws_strategies_get_locked(store, model, out);
    pthread_mutex_unlock(&store->lock);
    return set;
}

void ws_strategies_forget(struct ws_store *store)
{
    while (store->preferences) {
        struct ws_preference *p = store->preferences;
        store->preferences = p->next;
        free(p);
    }
}

/* --- why not --- */

/* Can engines load that version device to device? Always a reason, for a mount's own pulls come by bytes. */
static void look_at_devices(struct ws_route *r, int id, char why[WS_REASON_CHARS])
{
    const struct ws_version *v = r->version;
    const struct ws_strategies ipc = {.n = 1, .id = {WSYNC_IPC}};
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
    else if (shared && strcmp(shared, ws_strategies_name(id)) != 0)
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
    const char *const *scheme = ws_strategy_of((wsync_strategy_id)id)->schemes;
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
    if (ws_strategy_of((wsync_strategy_id)id)->handles) {
        look_at_devices(r, id, why);
    } else if (id == WSYNC_BROADCAST) {
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

void ws_strategies_why_not(struct ws_route *r, char out[WS_WHY_NOT_CHARS])
{
    const struct ws_strategies *s = spelled_out(&r->strategies);
    const int used = atomic_load(&r->used);
    char why[WS_N_STRATEGIES][WS_REASON_CHARS];
    int n = 0;

    out[0] = '\0';
    for (; n < s->n && s->id[n] != used; n++) {
        reason_of(r, s->id[n], why[n]);
        shorten(why[n]);
    }
    for (int i = 0; i < n; i++) {
        if (!why[i][0])
            continue; /* named with an earlier one */
        append(out, out[0] ? "; " : "", ws_strategies_name(s->id[i]));
        for (int k = i + 1; k < n; k++) {
            if (strcmp(why[k], why[i]) != 0)
                continue;
            append(out, ", ", ws_strategies_name(s->id[k]));
            why[k][0] = '\0';
        }
        append(out, ": ", why[i]);
    }
}
