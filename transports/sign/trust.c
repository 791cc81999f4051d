#include "transports/sign/trust.h"
#include "transports/base/limits.h"
#include "transports/base/name.h"
#include "transports/base/vector.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KEYS 256

static int add_one(struct ws_trust *t, const char *text, size_t n, struct ws_error *err)
{
    const char *equals = memchr(text, '=', n);
    struct ws_trusted_key one = {0}, *keys;
    char *path = strndup(equals ? equals + 1 : text, equals ? n - (size_t)(equals + 1 - text) : n);
    int rc = 0;

    if (equals)
        one.model = strndup(text, (size_t)(equals - text));
    if (!path || (equals && !one.model))
        rc = ws_error_set(err, ENOMEM, "no memory for a key");
    else if (one.model && !ws_name_is_model(one.model))
        rc = ws_error_set(err, EINVAL, "\"%.255s\" is no model; %s", one.model, WS_MODEL_NAME_RULE);
    else if (t->n == MAX_KEYS)
        rc = ws_error_set(err, EINVAL, "more than %d keys", MAX_KEYS);
    else
        rc = ws_public_key_read(path, &one.key, err);
    free(path);
    keys = rc == 0 ? ws_vector_room(t->keys, t->n, sizeof(one)) : NULL;
    if (rc == 0 && !keys)
        rc = ws_error_set(err, ENOMEM, "no memory for a key");
    if (!keys) {
        free(one.model);
        return rc;
    }
    t->keys = keys;
    t->keys[t->n++] = one;
    return 0;
}

int ws_trust_add(struct ws_trust *t, const char *list, struct ws_error *err)
{
    int rc = 0;

    do {
        const size_t n = strcspn(list, ":");
        rc = n ? add_one(t, list, n, err) : ws_error_set(err, EINVAL, "a key's file has no name");
        list += n + (list[n] == ':');
    } while (rc == 0 && *list);
    return rc;
}

int ws_trust_copy(const struct ws_trust *t, struct ws_trust *out)
{
    *out = (struct ws_trust){.keys = calloc(t->n + 1, sizeof(*out->keys))};
    if (!out->keys)
        return -ENOMEM;
    for (; out->n < t->n; out->n++) {
        out->keys[out->n] = t->keys[out->n];
        if (t->keys[out->n].model && !(out->keys[out->n].model = strdup(t->keys[out->n].model))) {
            ws_trust_reset(out);
            return -ENOMEM;
        }
    }
    return 0;
}

void ws_trust_reset(struct ws_trust *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->keys[i].model);
    free(t->keys);
    *t = (struct ws_trust){0};
}

static bool has_own(const struct ws_trust *t, const char *model)
{
    bool own = false;

    for (size_t i = 0; i < t->n; i++)
        own = own || (t->keys[i].model && strcmp(t->keys[i].model, model) == 0);
    return own;
}

const struct ws_public_key *ws_trust_find(const struct ws_trust *t, const char *model, const char *id)
{
    char base[WS_MAX_NAME + 1];
    bool own;

    if (ws_name_is_node_part(model, base, NULL, NULL) ||
        (!has_own(t, model) && ws_name_is_view(model, base, NULL)))
        model = base;
    own = has_own(t, model);
    for (size_t i = 0; i < t->n; i++) {
        const struct ws_trusted_key *k = &t->keys[i];
        const bool counts = own ? k->model && strcmp(k->model, model) == 0 : !k->model;
        if (counts && strcmp(k->key.id, id) == 0)
            return &k->key;
    }
    return NULL;
}
