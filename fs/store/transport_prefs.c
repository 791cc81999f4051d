#include "fs/store/transport_prefs.h"
#include "fs/store/state.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEPARATORS ",:" /* the latter in mount options, which have commas between them */
#define ALL        "packed_cuda_ipc, cuda_ipc, ipc, broadcast, dir, tcp"

static const struct ws_strategies fastest_first = {
    .n = WS_N_WAYS,
    .id = {WS_WAY_PACKED_CUDA_IPC, WS_WAY_CUDA_IPC, WS_WAY_IPC, WS_WAY_BROADCAST, WS_WAY_DIR, WS_WAY_TCP},
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
    return rank < spelled_out(s)->n ? spelled_out(s)->id[rank] : WS_NO_WAY;
}

static int add(struct ws_strategies *s, const char *word, size_t n, struct ws_error *err)
{
    char name[32];

    snprintf(name, sizeof(name), "%.*s", n < sizeof(name) ? (int)n : (int)sizeof(name) - 1, word);
    const struct ws_way *found = ws_way_named(name);
    if (strcmp(name, "auto") == 0)
        return ws_error_set(err, EINVAL, "auto stands for all strategies and goes with no others: " ALL);
    if (!found)
        return ws_error_set(err, EINVAL,
                            "there is no strategy '%s'; there are " ALL ", or auto for all of them", name);
    for (int i = 0; i < s->n; i++)
        if (s->id[i] == (int)found->id)
            return ws_error_set(err, EINVAL, "the strategy %s is there twice", name);
    s->id[s->n++] = (unsigned char)found->id;
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
                                 ws_way_name(s->id[i]));
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
