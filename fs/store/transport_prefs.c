#include "fs/store/transport_prefs.h"
#include "fs/store/state.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEPARATORS ",:" /* colons in mount options, which commas separate from each other */
#define ALL        "packed_cuda_ipc, cuda_ipc, ipc, broadcast, dir, ucx, tcp"

static const struct ws_transport_prefs fastest_first = {
    .n = WS_N_WAYS,
    .id = {WS_WAY_PACKED_CUDA_IPC, WS_WAY_CUDA_IPC, WS_WAY_IPC, WS_WAY_BROADCAST, WS_WAY_DIR, WS_WAY_UCX,
           WS_WAY_TCP},
};

static const struct ws_transport_prefs *spelled_out(const struct ws_transport_prefs *s)
{
    return s->n ? s : &fastest_first;
}

/* --- lists --- */

int ws_transport_prefs_rank(const struct ws_transport_prefs *s, int id)
{
    s = spelled_out(s);
    for (int i = 0; i < s->n; i++)
        if (s->id[i] == id)
            return i;
    return -1;
}

int ws_transport_prefs_at(const struct ws_transport_prefs *s, int rank)
{
    return rank < spelled_out(s)->n ? spelled_out(s)->id[rank] : WS_NO_WAY;
}

static int add(struct ws_transport_prefs *s, const char *word, size_t n, struct ws_error *err)
{
    char name[32];

    snprintf(name, sizeof(name), "%.*s", n < sizeof(name) ? (int)n : (int)sizeof(name) - 1, word);
    const struct ws_way *found = ws_way_find(name);
    if (strcmp(name, "auto") == 0)
        return ws_error_set(err, EINVAL, "auto stands for all strategies and goes with no others: " ALL);
    if (!found)
        return ws_error_set(err, EINVAL,
                            "there is no strategy '%s'; there are " ALL ", or auto for all of them", name);
    for (int i = 0; i < s->n; i++)
        if (s->id[i] == (int)found->id)
            return ws_error_set(err, EINVAL, "the strategy %s is in the list twice", name);
    s->id[s->n++] = (unsigned char)found->id;
    return 0;
}

int ws_transport_prefs_parse(const char *text, struct ws_transport_prefs *out, struct ws_error *err)
{
    struct ws_transport_prefs s = {0};
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

void ws_transport_prefs_text(const struct ws_transport_prefs *s, char out[WS_TRANSPORT_PREFS_CHARS])
{
    size_t used = 0;

    snprintf(out, WS_TRANSPORT_PREFS_CHARS, "auto");
    for (int i = 0; i < s->n; i++)
        used += (size_t)snprintf(out + used, WS_TRANSPORT_PREFS_CHARS - used, "%s%s", i ? "," : "",
                                 ws_way_name(s->id[i]));
}

/* --- the lists of models --- */

struct ws_model_prefs {
    struct ws_model_prefs *next;
    struct ws_transport_prefs transport_prefs;
    char model[];
};

/* A part (MODEL@INDEX.COUNT) has its model's list. With store->lock. */
static struct ws_model_prefs **find(struct ws_store *store, const char *model)
{
    struct ws_model_prefs **at = &store->model_prefs;

    while (*at && strcmp((*at)->model, model) != 0)
        at = &(*at)->next;
    if (!*at && strchr(model, '@')) {
        size_t n = strcspn(model, "@");
        for (at = &store->model_prefs; *at; at = &(*at)->next)
            if (strlen((*at)->model) == n && strncmp((*at)->model, model, n) == 0)
                break;
    }
    return at;
}

int ws_transport_prefs_set(struct ws_store *store, const char *model, const struct ws_transport_prefs *s,
                           struct ws_error *err)
{
    size_t n = strlen(model) + 1;
    struct ws_model_prefs *p = s ? malloc(sizeof(*p) + n) : NULL, *old;

    if (s && !p)
        return ws_error_set(err, ENOMEM, "no memory for the strategies of %s", model);
    if (p) {
        memcpy(p->model, model, n);
        p->transport_prefs = *s;
    }
    pthread_mutex_lock(&store->lock);
    struct ws_model_prefs **at = find(store, model);
    old = *at;
    if (old)
        *at = old->next;
    if (p) {
        p->next = store->model_prefs;
        store->model_prefs = p;
    }
    pthread_mutex_unlock(&store->lock);
    free(old);
    return 0;
}

bool ws_transport_prefs_get_locked(struct ws_store *store, const char *model, struct ws_transport_prefs *out)
{
    const struct ws_model_prefs *p = *find(store, model);

    *out = p ? p->transport_prefs : store->options.transport_prefs;
    return p != NULL;
}

bool ws_transport_prefs_get(struct ws_store *store, const char *model, struct ws_transport_prefs *out)
{
    pthread_mutex_lock(&store->lock);
    bool set = ws_transport_prefs_get_locked(store, model, out);
    pthread_mutex_unlock(&store->lock);
    return set;
}

void ws_transport_prefs_clear(struct ws_store *store)
{
    while (store->model_prefs) {
        struct ws_model_prefs *p = store->model_prefs;
        store->model_prefs = p->next;
        free(p);
    }
}
