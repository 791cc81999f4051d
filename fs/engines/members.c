#include "fs/engines/members.h"
#include "fs/engines/grammar.h"
#include "transports/base/name.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static int add(struct ws_members *m, enum ws_member_role role, const char *model, unsigned keep,
               struct ws_error *err)
{
    const char *option = role == WS_MEMBER_DRAFT ? "draft" : "adapters";
    if (!ws_name_is_model(model))
        return ws_error_set(err, EINVAL, "%s=: '%.100s' cannot be a model: %s", option, model,
                            WS_MODEL_NAME_RULE);
    if (role == WS_MEMBER_ADAPTER && strlen(model) > WS_ADAPTER_MODEL_BYTES)
        return ws_error_set(
            err, EINVAL,
            "adapters=: the model %.100s... has a name of more than %d bytes, which is too long for "
            "the names that engines give to adapters",
            model, WS_ADAPTER_MODEL_BYTES);
    if (ws_members_find(m, model))
        return ws_error_set(err, EINVAL, "%s=: the model %.200s is named twice", option, model);
    if (m->n == WS_MAX_ENGINE_MEMBERS)
        return ws_error_set(err, EINVAL, "an engine has %d models beside its target at most",
                            WS_MAX_ENGINE_MEMBERS);
    struct ws_member *one = &m->items[m->n++];
    *one = (struct ws_member){.role = role, .keep = keep};
    snprintf(one->model, sizeof(one->model), "%s", model);
    return 0;
}

/* "lora:3": cuts the word at the colon where only digits follow. */
static int cut_count(char *word, unsigned *keep, struct ws_error *err)
{
    char *colon = strrchr(word, ':');
    uint64_t n;
    *keep = WS_ADAPTERS_KEPT;
    if (!colon)
        return 0;
    if (ws_word_number(colon + 1, WS_MAX_ADAPTERS_KEPT, &n) || n == 0)
        return ws_error_set(
            err, EINVAL,
            "adapters=%.100s: behind the colon stands how many versions are kept loaded, 1 to %d", word,
            WS_MAX_ADAPTERS_KEPT);
    *colon = 0;
    *keep = (unsigned)n;
    return 0;
}

int ws_members_parse(const char *adapters, const char *draft, struct ws_members *out, struct ws_error *err)
{
    char word[WS_MAX_NAME + 32];
    unsigned keep;
    int rc = 0;
    out->n = 0;
    for (const char *at = adapters; rc == 0 && at; at = *at ? at + 1 : NULL) {
        const size_t n = strcspn(at, ",");
        snprintf(word, sizeof(word), "%.*s", (int)(n < sizeof(word) ? n : sizeof(word) - 1), at);
        rc = cut_count(word, &keep, err);
        if (rc == 0)
            rc = add(out, WS_MEMBER_ADAPTER, word, keep, err);
        at += n;
    }
    if (rc == 0 && draft)
        rc = add(out, WS_MEMBER_DRAFT, draft, 0, err);
    return rc;
}

const struct ws_member *ws_members_find(const struct ws_members *m, const char *model)
{
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->items[i].model, model) == 0)
            return &m->items[i];
    return NULL;
}

const struct ws_member *ws_members_draft(const struct ws_members *m)
{
    for (size_t i = 0; i < m->n; i++)
        if (m->items[i].role == WS_MEMBER_DRAFT)
            return &m->items[i];
    return NULL;
}
