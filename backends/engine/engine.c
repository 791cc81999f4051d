/* The kinds of engines that are built in. */
#include "backends/engine/engine.h"
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
