#include "backends/engine/adapters.h"
#include <errno.h>
#include <string.h>

#define NO_PATH "/" /* one that no adapter has, for one that nothing here can have given */

/* An adapter of the list has the model that it changes as its parent; the model itself has none. */
static bool is_adapter(const json_t *card)
{
    return json_is_string(json_object_get(card, "id")) && json_is_string(json_object_get(card, "parent"));
}

static const char *root_of(const json_t *card)
{
    const char *root = json_string_value(json_object_get(card, "root"));
    return root ? root : "";
}

/* *cards: the reply's list. */
static int get_cards(const struct ws_engine_target *t, struct ws_http_reply *reply, const json_t **cards,
                     struct ws_error *err)
{
    int rc = ws_call_get(t, "/v1/models", reply, err);
    if (rc)
        return rc;
    *cards = json_object_get(reply->json, "data");
    if (reply->status == 200 && json_is_array(*cards))
        return 0;
    rc = ws_error_set(err, EPROTO, "%s/v1/models answered %ld without a list of models", t->url,
                      reply->status);
    ws_http_reply_release(reply);
    return rc;
}

int ws_adapters_list(const struct ws_engine_target *t, struct ws_engine_adapters *out, struct ws_error *err)
{
    struct ws_http_reply reply;
    const json_t *cards;
    out->n = 0;
    out->more = false;
    int rc = get_cards(t, &reply, &cards, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < json_array_size(cards); i++) {
        const json_t *card = json_array_get(cards, i);
        struct ws_engine_adapter *item = &out->items[out->n];
        if (!is_adapter(card))
            continue;
        const char *name = json_string_value(json_object_get(card, "id")), *path = root_of(card);
        if (strlen(name) >= sizeof(item->name))
            continue; /* somebody else's */
        out->more = out->n == WS_MAX_ENGINE_ADAPTERS;
        if (out->more)
            break;
        if (strlen(path) >= sizeof(item->path))
            path = NO_PATH;
        memcpy(item->name, name, strlen(name) + 1);
        memcpy(item->path, path, strlen(path) + 1);
        out->n++;
    }
    ws_http_reply_release(&reply);
    return 0;
}

static const json_t *find(const json_t *cards, const char *name)
{
    const json_t *found = NULL;
    for (size_t i = 0; !found && i < json_array_size(cards); i++) {
        const json_t *card = json_array_get(cards, i);
        if (is_adapter(card) && strcmp(json_string_value(json_object_get(card, "id")), name) == 0)
            found = card;
    }
    return found;
}

int ws_adapters_confirm_loaded(const struct ws_engine_target *t, const char *name, const char *path,
                               const char *said, struct ws_error *err)
{
    struct ws_http_reply reply;
    const json_t *cards;
    int rc = get_cards(t, &reply, &cards, err);
    if (rc)
        return ws_call_after_request(rc, err);
    const json_t *card = find(cards, name);
    if (!card)
        rc = ws_error_set(err, EREMOTEIO, "%s does not list adapter %s after it was told to load %s: %.500s",
                          t->url, name, path, said);
    else if (strcmp(root_of(card), path) != 0)
        rc = ws_error_set(
            err, EREMOTEIO,
            "%s has an adapter %s already, of %.300s and not of %.300s: a name is given to one path for "
            "ever, since engines keep files and caches by name",
            t->url, name, root_of(card), path);
    ws_http_reply_release(&reply);
    return rc;
}

int ws_adapters_confirm_unloaded(const struct ws_engine_target *t, const char *name, const char *said,
                                 struct ws_error *err)
{
    struct ws_http_reply reply;
    const json_t *cards;
    int rc = get_cards(t, &reply, &cards, err);
    if (rc)
        return ws_call_after_request(rc, err);
    if (find(cards, name))
        rc = ws_error_set(err, EREMOTEIO, "%s lists adapter %s still, after it was told to unload it: %.500s",
                          t->url, name, said);
    ws_http_reply_release(&reply);
    return rc;
}
