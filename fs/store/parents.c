#include "fs/store/parents.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/parent_memory.h"
#include "fs/store/parent_watcher.h"
#include "fs/store/poller.h"
#include "transports/access/loopback.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/secret.h"
#include "transports/base/workers.h"
#include "transports/http/url.h"
#include "transports/protocol/api.h"
#include "transports/transport.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define S       WS_FANOUT_STRIPES
#define POST_MS 1000
#define SOON_MS 150 /* while an agent plans, or a model is new */
#define PATIENCE_NS                                                                                          \
    (2 * WS_SECOND_NS)              /* with a version, a pull or parents that are new, for these to list it */
#define ALONE_NS (2 * WS_SECOND_NS) /* then those that are remembered are asked, where no source answers */

struct ws_parents {
    struct ws_parents_options options; /* owned */
    pthread_t poster, watcher;
    bool has_poster, has_watcher;
    atomic_bool stop;
    uint64_t start_ns;
    /* guarded by store->lock */
    struct ws_parent_memory *known;
    unsigned rtt_us;   /* the least of all posts; 0: none yet */
    bool is_pending;   /* an agent asks to be asked again soon, or a model is new */
    bool has_suspects; /* for the watcher */
    bool is_urgent;    /* a parent is to be blamed: the poster does not wait */
    bool is_telling;   /* it does so now */
};

/* --- with store->lock --- */

/* Of a part of a trainer that spans nodes: the whole model's. NULL: no agent has named any. */
static const struct ws_model_parents *parents_of(const struct ws_model *m)
{
    if (!m->store->parents)
        return NULL;
    if (m->base)
        m = ws_model_lookup(m->store, m->base);
    return m && m->parents.is_told ? &m->parents : NULL;
}

enum ws_parent_rank ws_parent_rank(const struct ws_version *v, unsigned stripe, const struct ws_poller *p)
{
    const struct ws_model_parents *parents = parents_of(v->model);
    const bool is_listed = v->store->pollers[p->index] == p;

    for (int up = 0; parents && is_listed && up < 2; up++)
        if (parents->of[stripe][up] == (int)p->index)
            return up == 0 ? WS_PARENT_FIRST : WS_PARENT_NEXT;
    return p->is_hint ? WS_PARENT_OF_OTHERS : WS_PARENT_NONE;
}

uint64_t ws_parents_told_ns(const struct ws_version *v)
{
    const struct ws_model_parents *parents = parents_of(v->model);

    return parents ? parents->told_ns : 0;
}

unsigned ws_parents_stripes(const struct ws_version *v)
{
    const struct ws_model_parents *parents = parents_of(v->model);

    for (unsigned s = 0; parents && s < S; s++)
        if (parents->of[s][0] >= 0)
            return S;
    return 1;
}

const struct ws_poller *ws_parent_expected(const struct ws_version *v, unsigned stripe, bool *waits)
{
    const struct ws_model_parents *parents = parents_of(v->model);
    uint64_t since_ns = v->known_ns > v->pull_began_ns ? v->known_ns : v->pull_began_ns;

    if (parents && parents->told_ns > since_ns)
        since_ns = parents->told_ns;
    const bool is_new = ws_clock_ns() - since_ns < PATIENCE_NS;
    *waits = is_new && !parents;
    if (!parents || parents->of[stripe][0] < 0)
        return NULL;
    const struct ws_poller *p = v->store->pollers[parents->of[stripe][0]];
    *waits = is_new && p && !(v->sources & ws_bit(p->index)) && (p->up || !p->answered);
    return p;
}

void ws_parents_blame(struct ws_model *m, const struct ws_poller *p)
{
    struct ws_parent_memory *k = ws_parent_memory_add(&m->store->parents->known, m->base ? m->base : m->name);

    if (k)
        (void)ws_parent_urls_add(k->blamed, &k->n_blamed, p->source->url);
    m->store->parents->is_urgent = true;
    pthread_cond_broadcast(&m->store->changed);
}

void ws_parents_suspect(struct ws_poller *p)
{
    p->is_suspect = p->store->parents->has_suspects = true;
    pthread_cond_broadcast(&p->store->changed);
}

bool ws_parents_settle(const struct ws_store *s)
{
    bool does = s->parents->has_suspects || s->parents->is_urgent || s->parents->is_telling;

    for (unsigned i = 0; i < WS_MAX_SOURCES && !does; i++)
        does = s->pollers[i] && s->pollers[i]->is_suspect;
    return does;
}

static bool is_source_of(const struct ws_poller *p, const char *model)
{
    return p && (!p->model || strcmp(p->model, model) == 0);
}

/* The poller of a source for this model with that URL: one that the operator named, or a hint. */
static struct ws_poller *find_poller(struct ws_store *s, const char *model, const char *url)
{
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        struct ws_poller *p = s->pollers[i];
        if (is_source_of(p, model) && strcmp(p->source->url, url) == 0)
            return p;
    }
    return NULL;
}

/* Does a source that an operator named answer for the model? */
static bool has_source(const struct ws_store *s, const char *model)
{
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        const struct ws_poller *p = s->pollers[i];
        if (is_source_of(p, model) && !p->is_hint && p->up)
            return true;
    }
    return false;
}

/* --- which are used --- */

/* A hint leads nowhere that the operator did not allow. */
static bool may_ask(const struct ws_store *s, const char *url)
{
    struct ws_error err;
    unsigned port;

    if (strlen(url) > WS_MAX_URL || ws_http_check_url("a parent", url, &err) < 0)
        return false;
    return strncmp(url, "https://", 8) == 0 || s->options.source.insecure || ws_loopback_port(url, &port);
}

/* The token of a parent: never the sources'. Of this host's loopback the server's own is found (local_token.h). */
static const char *token_for(const struct ws_parents *p, const char *url)
{
    unsigned port;

    return p->options.token ? p->options.token : ws_loopback_port(url, &port) ? NULL : "";
}

/* The index of the source at that URL, opened where it is not; -1: none. Without store->lock. */
static int open_parent(struct ws_store *s, const char *model, const char *url)
{
    struct ws_error err;
    unsigned index;

    pthread_mutex_lock(&s->lock);
    const struct ws_poller *p = find_poller(s, model, url);
    int found = p ? (int)p->index : -1;
    const bool stops = atomic_load(&s->stop);
    pthread_mutex_unlock(&s->lock);
    if (found >= 0 || stops)
        return found;
    if (!may_ask(s, url))
        ws_error_set(&err, EACCES, "http:// to another host is taken only with the option insecure");
    else if (ws_poller_start_hint(s, url, model, token_for(s->parents, url), s->parents->options.token_file,
                                  &index, &err) == 0)
        return (int)index;
    ws_log(WS_LOG_WARN, "store", "a parent that an agent named is not asked model=%s url=%.200s error=\"%s\"",
           model, url, err.text);
    return -1;
}

static bool is_among(const struct ws_poller *p, const struct ws_model_parents *parents)
{
    for (unsigned s = 0; s < S; s++)
        for (int up = 0; up < 2; up++)
            if (parents->of[s][up] == (int)p->index)
                return true;
    return false;
}

/* Takes hints that are no parents any more out of the store; pulls leave them. The caller joins them. */
static unsigned remove_others(struct ws_model *m, struct ws_poller *out[WS_MAX_SOURCES],
                              struct ws_store_events *ev)
{
    struct ws_store *s = m->store;
    unsigned n = 0;

    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        struct ws_poller *p = s->pollers[i];
        if (!p || !p->is_hint || strcmp(p->model, m->name) != 0 || is_among(p, &m->parents))
            continue;
        for (unsigned b = 0; b < WS_ID_BUCKETS; b++)
            for (struct ws_version *v = s->ids[b]; v; v = v->next_id)
                if (v->pull)
                    s->puller->leave(v->pull, i);
        out[n++] = p;
        ws_poller_unlist(p, ev);
    }
    return n;
}

/* True: they are other ones than before. With store->lock. */
static bool remember(struct ws_model *m, const struct ws_model_parents *parents)
{
    struct ws_parent_memory *k = ws_parent_memory_add(&m->store->parents->known, m->name);
    char *urls[WS_PARENT_URLS];
    unsigned n = 0;
    bool same;

    if (!k)
        return false;
    for (unsigned s = 0; s < S; s++)
        for (int up = 0; up < 2; up++)
            if (parents->of[s][up] >= 0)
                (void)ws_parent_urls_add(urls, &n, m->store->pollers[parents->of[s][up]]->source->url);
    same = n == k->n;
    for (unsigned i = 0; same && i < n; i++)
        same = strcmp(urls[i], k->urls[i]) == 0;
    ws_parent_urls_clear(k->urls, &k->n);
    memcpy(k->urls, urls, n * sizeof(*urls));
    k->n = n;
    return !same;
}

static void use(struct ws_model *m, const struct ws_model_parents *parents)
{
    struct ws_store *s = m->store;
    struct ws_poller *gone[WS_MAX_SOURCES];
    struct ws_store_events events;
    unsigned n = 0;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    if (m->listed && !atomic_load(&s->stop)) {
        struct ws_model_parents checked = *parents;
        for (unsigned k = 0; k < S; k++)
            for (int up = 0; up < 2; up++)
                if (checked.of[k][up] >= 0 && !is_source_of(s->pollers[checked.of[k][up]], m->name))
                    checked.of[k][up] = -1; /* the model was removed meanwhile, and added again */
        const bool same = m->parents.is_told && memcmp(m->parents.of, checked.of, sizeof(checked.of)) == 0;
        checked.told_ns = same ? m->parents.told_ns : ws_clock_ns();
        m->parents = checked;
        if (remember(m, &checked))
            ws_store_events_add(&events, WS_MODEL_PARENTS, m, NULL);
        n = remove_others(m, gone, &events);
    }
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
    for (unsigned i = 0; i < n; i++)
        ws_poller_join(gone[i]);
}

/* {"stripes":[[URL, URL], ...]}; more or fewer stripes than here, or anything else, is no hint. */
static void apply(struct ws_model *m, const json_t *reply)
{
    const json_t *stripes = json_object_get(reply, "stripes");
    struct ws_model_parents parents = {.is_told = true};

    for (unsigned k = 0; k < S; k++) {
        const json_t *path = json_array_get(stripes, k);
        for (unsigned up = 0; up < 2; up++) {
            const char *url =
                json_array_size(stripes) == S ? json_string_value(json_array_get(path, up)) : NULL;
            parents.of[k][up] = url ? open_parent(m->store, m->name, url) : -1;
        }
    }
    use(m, &parents);
}

/* --- the poster --- */

static json_t *report(struct ws_model *m, const char *mount_id)
{
    struct ws_store *s = m->store;
    struct ws_parents *p = s->parents;
    json_t *slow = json_array(), *body;

    pthread_mutex_lock(&s->lock);
    struct ws_parent_memory *k = ws_parent_memory_find(p->known, m->name);
    for (unsigned i = 0; k && i < k->n_blamed; i++)
        json_array_append_new(slow, json_string(k->blamed[i]));
    if (k)
        ws_parent_urls_clear(k->blamed, &k->n_blamed);
    body = json_pack("{s:s,s:i,s:b,s:I,s:I,s:o}", "mount", mount_id, "port", (int)p->options.port, "tls",
                     (int)p->options.tls, "link", (json_int_t)atomic_load(&s->speeds.link), "rtt_us",
                     (json_int_t)p->rtt_us, "slow", slow);
    pthread_mutex_unlock(&s->lock);
    if (body && p->options.rack)
        json_object_set_new(body, "rack", json_string(p->options.rack));
    return body;
}

static void post(void *arg, struct ws_model *m)
{
    struct ws_store *s = arg;
    char path[WS_API_PATH_BYTES];
    json_t *body = report(m, s->options.source.mount_id), *reply = NULL;
    struct ws_error err;

    if (!body || atomic_load(&s->stop)) {
        json_decref(body);
        return;
    }
    ws_api_model_path(path, "topology", m->name);
    const uint64_t began = ws_clock_ns();
    const int rc = ws_model_query(m, path, body, &reply, &err);
    const uint64_t us = (ws_clock_ns() - began) / 1000;
    json_decref(body);
    const bool is_pending = rc == 0 && json_is_true(json_object_get(reply, "pending"));
    pthread_mutex_lock(&s->lock);
    if (rc == 0 && (s->parents->rtt_us == 0 || us < s->parents->rtt_us))
        s->parents->rtt_us = us > 0 && us < 1000000000 ? (unsigned)us : s->parents->rtt_us;
    s->parents->is_pending = s->parents->is_pending || is_pending;
    /* An agent that is away has said nothing new; one of before knows of no trees, nor does a folder. */
    const bool is_said = rc == 0 || (!ws_source_is_away(rc) && has_source(s, m->name));
    pthread_mutex_unlock(&s->lock);
    if (!is_pending && is_said)
        apply(m, reply);
    json_decref(reply);
}

/* Where no source of the operator's answers, and no agent ever did, those of a daemon before are asked. */
static void ask_remembered(struct ws_store *s)
{
    char *model = NULL, *urls[WS_PARENT_URLS];
    unsigned n = 0;

    pthread_mutex_lock(&s->lock);
    for (struct ws_parent_memory *k = s->parents->known; k && !model; k = k->next) {
        const struct ws_model *m = ws_model_lookup(s, k->model);
        if (k->is_used || k->n == 0 || (m && m->parents.is_told) || has_source(s, k->model) ||
            ws_clock_ns() - s->parents->start_ns < ALONE_NS || !(model = strdup(k->model)))
            continue;
        k->is_used = true;
        for (unsigned i = 0; i < k->n; i++)
            (void)ws_parent_urls_add(urls, &n, k->urls[i]);
    }
    pthread_mutex_unlock(&s->lock);
    for (unsigned i = 0; i < n; i++) {
        if (open_parent(s, model, urls[i]) >= 0)
            ws_log(WS_LOG_INFO, "store",
                   "no source answers: asks a mount that was a parent before model=%s url=%s", model,
                   urls[i]);
        free(urls[i]);
    }
    free(model);
}

/* Is there a model that no agent has said anything of? Then it is asked soon. */
static bool has_untold(const struct ws_store *s)
{
    for (const struct ws_model *m = s->models; m; m = m->next)
        if (!ws_model_is_hidden(m) && !m->parents.is_told)
            return true;
    return false;
}

static void *poster_main(void *arg)
{
    struct ws_store *s = arg;
    unsigned seed = (unsigned)(ws_clock_ns() ^ s->id);

    ws_thread_nice(s->options.nice);
    while (!atomic_load(&s->parents->stop)) {
        pthread_mutex_lock(&s->lock);
        s->parents->is_pending = false;
        s->parents->is_telling = s->parents->is_urgent;
        s->parents->is_urgent = false;
        pthread_mutex_unlock(&s->lock);
        ws_store_each(s, post, s);
        ask_remembered(s);
        pthread_mutex_lock(&s->lock);
        s->parents->is_telling = false;
        const bool soon = s->parents->is_pending || !s->models || has_untold(s);
        pthread_mutex_unlock(&s->lock);
        ws_store_pause(s, &s->parents->stop, &s->parents->is_urgent, soon ? SOON_MS : POST_MS, &seed);
    }
    return NULL;
}

static void *watcher_main(void *arg)
{
    struct ws_store *s = arg;

    ws_parent_watcher_run(s, &s->parents->stop, &s->parents->has_suspects);
    return NULL;
}

/* --- the rest --- */

bool ws_store_asks_parents(const struct ws_store *s)
{
    return s->parents;
}

void ws_store_each_parent(struct ws_store *s, const char *model, void (*visit)(void *arg, const char *url),
                          void *arg)
{
    char *urls[WS_PARENT_URLS];
    unsigned n = 0;

    pthread_mutex_lock(&s->lock);
    const struct ws_parent_memory *k = s->parents ? ws_parent_memory_find(s->parents->known, model) : NULL;
    for (unsigned i = 0; k && i < k->n; i++)
        (void)ws_parent_urls_add(urls, &n, k->urls[i]);
    pthread_mutex_unlock(&s->lock);
    for (unsigned i = 0; i < n; i++)
        visit(arg, urls[i]);
    ws_parent_urls_clear(urls, &n);
}

int ws_store_remember_parent(struct ws_store *s, const char *model, const char *url)
{
    struct ws_error err;
    int rc = 0;

    if (!s->parents)
        return 0; /* it was mounted with other options this time */
    if (strlen(url) > WS_MAX_URL || ws_http_check_url("a parent", url, &err) < 0)
        return -EINVAL;
    pthread_mutex_lock(&s->lock);
    struct ws_parent_memory *k = ws_parent_memory_add(&s->parents->known, model);
    if (!k || !ws_parent_urls_add(k->urls, &k->n, url))
        rc = -ENOMEM;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int ws_store_ask_parents(struct ws_store *s, const struct ws_parents_options *options, struct ws_error *err)
{
    struct ws_parents *p = calloc(1, sizeof(*p));
    int rc = p ? 0 : -ENOMEM;

    assert(!s->parents);
    if (rc == 0) {
        s->parents = p;
        p->start_ns = ws_clock_ns();
        p->options = *options;
        p->options.rack = options->rack ? strdup(options->rack) : NULL;
        p->options.token = ws_secret_copy(options->token);
        p->options.token_file = options->token_file ? strdup(options->token_file) : NULL;
        if ((options->rack && !p->options.rack) || (options->token && !p->options.token) ||
            (options->token_file && !p->options.token_file))
            rc = -ENOMEM;
    }
    if (rc == 0)
        rc = ws_thread_start(&p->poster, poster_main, s);
    if (rc == 0) {
        p->has_poster = true;
        rc = ws_thread_start(&p->watcher, watcher_main, s);
    }
    if (rc < 0)
        return ws_error_set(err, -rc, "cannot take part in trees of mounts: %s", strerror(-rc));
    p->has_watcher = true;
    return 0;
}

void ws_store_serves_at(struct ws_store *s, unsigned port, bool tls)
{
    pthread_mutex_lock(&s->lock);
    s->parents->options.port = port;
    s->parents->options.tls = tls;
    pthread_mutex_unlock(&s->lock);
}

void ws_parents_stop(struct ws_store *s)
{
    struct ws_parents *p = s->parents;

    if (!p)
        return;
    pthread_mutex_lock(&s->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (p->has_poster)
        pthread_join(p->poster, NULL);
    if (p->has_watcher)
        pthread_join(p->watcher, NULL);
    p->has_poster = p->has_watcher = false;
}

void ws_parents_free(struct ws_store *s)
{
    struct ws_parents *p = s->parents;

    if (p) {
        ws_parent_memory_free(&p->known);
        free((char *)(uintptr_t)p->options.rack);
        free((char *)(uintptr_t)p->options.token_file);
        ws_secret_free((char *)(uintptr_t)p->options.token);
    }
    free(p);
    s->parents = NULL;
}
