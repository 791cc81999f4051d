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

static const char *const sleep_words[] = {
    [WS_SLEEP_KEEPS] = "1", [WS_SLEEP_LOSES] = "2", [WS_SLEEP_KV] = "kv"};

int ws_engine_sleep_parse(const char *word, enum ws_engine_sleep *out, struct ws_error *err)
{
    *out = WS_SLEEP_UNTOLD;
    for (size_t i = WS_SLEEP_KEEPS; word && i <= WS_SLEEP_KV; i++)
        if (strcmp(word, sleep_words[i]) == 0)
            *out = (enum ws_engine_sleep)i;
    return word && !*out ? ws_error_set(err, EINVAL,
                                        "sleep=%.100s: it is 1 (its weights come back as they were), 2 (they "
                                        "are lost) or kv (its keys and values alone)",
                                        word)
                         : 0;
}

const char *ws_engine_sleep_word(enum ws_engine_sleep sleep)
{
    return sleep_words[sleep];
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
