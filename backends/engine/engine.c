/* The table of engine kinds. */
#include "backends/engine/engine.h"
#include <errno.h>
#include <string.h>

static const struct ws_engine_ops *const engines[] = {
    &ws_engine_sglang,
    &ws_engine_vllm,
    &ws_engine_remote,
};
static const char *const kinds[] = {
    "sglang",
    "vllm",
    "remote",
    NULL,
};
#define ENGINES (sizeof(engines) / sizeof(engines[0]))
_Static_assert(sizeof(kinds) / sizeof(kinds[0]) == ENGINES + 1, "one name an engine, and the end");

const struct ws_engine_ops *ws_engine_find(const char *kind)
{
    for (size_t i = 0; i < ENGINES; i++) {
        if (!strcmp(engines[i]->kind, kind))
            return engines[i];
    }
    return NULL;
}

const char *const *ws_engine_kinds(void)
{
    return kinds;
}

int ws_engine_cache_parse(const char *word, enum ws_engine_cache *out, struct ws_error *err)
{
    static const char *const words[] = {"local", "external", "keep"};
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (!word || strcmp(word, words[i]) == 0) {
            *out = (enum ws_engine_cache)i;
            return 0;
        }
    }
    return ws_error_set(err, EINVAL, "cache=%.100s: it is local, external or keep", word);
}
