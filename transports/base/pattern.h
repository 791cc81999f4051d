/* Pattern: how a framework calls the folders of a model's versions: "step_{N}", "weight_v{N:06d}", "{name}-v{N}", or a
 * constant name such as "lora_sync", which is that of the newest one. Pure functions. */
#ifndef WS_TRANSPORTS_BASE_PATTERN_H
#define WS_TRANSPORTS_BASE_PATTERN_H
#include "transports/base/error.h"
#include "transports/base/limits.h"
#include <stdbool.h>
#include <stdint.h>

#define WS_PATTERN_RULE                                                                                      \
    "a pattern is a folder's name with {N} or {N:06d} where the version's number is (once, or not at all: "  \
    "then the folder is the newest version) and {name} where the model's is"

struct ws_pattern {
    char before[WS_MAX_NAME + 1],
        after[WS_MAX_NAME + 1]; /* the number; all of a constant name is before it */
    unsigned digits;            /* at least so many, with zeros */
    bool is_constant;
};

/* model: what {name} stands for. -EINVAL with a sentence. */
WS_MUST_USE int ws_pattern_parse(const char *text, const char *model, struct ws_pattern *out,
                                 struct ws_error *err);
/* Is this the name of a version, and of which? Only as ws_pattern_name writes it: "step_07" is none of "step_{N}".
 * A constant name leaves *number as it is. */
bool ws_pattern_match(const struct ws_pattern *p, const char *name, uint64_t *number);
/* The folder of a version. */
void ws_pattern_name(const struct ws_pattern *p, uint64_t number, char out[WS_MAX_NAME + 1]);

#endif
