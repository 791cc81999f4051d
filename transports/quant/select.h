/* Which tensors of a checkpoint a recipe quantises. The rule is a table by model family: the names of the linear
 * layers that engines quantise. All else passes through as it is: embeddings, lm_head, norms, biases, routers,
 * convolutions, towers for images. An engine has to be told of each linear layer that stays as it was, so each 2-D
 * ".weight" that passes through is in the list of modules that the new config.json has.
 *
 * Linear layers that engines fuse (q, k, v; gate, up) are quantised all or none. Pure functions over memory. */
#ifndef WS_TRANSPORTS_QUANT_SELECT_H
#define WS_TRANSPORTS_QUANT_SELECT_H
#include "transports/base/error.h"
#include "transports/format/safetensors.h"
#include "transports/quant/recipe.h"
#include <stdbool.h>
#include <stddef.h>

struct ws_select_options {
    /* Modules to leave as they are, as compressed-tensors has them: a module's full name, or "re:" and a regular
     * expression (POSIX extended) that matches from the name's begin. */
    const char *const *ignore;
    size_t n_ignore;
    /* A family that is not in the table is not refused: each 2-D ".weight" counts as linear but those whose names say
     * otherwise (embed, norm, lm_head, router, gate., conv, ...). */
    bool any_family;
};

/* config: config.json's text. chosen[i]: is tensors[i], one of n of all files, quantised? Sets each.
 * -EINVAL: the family is unknown; the checkpoint is quantised already; a pattern is no regular expression or matches
 * nothing; a weight's type or shape is not for this recipe; layers that engines fuse differ; nothing is chosen.
 * -EBADMSG: config is no JSON. -ENOMEM. */
WS_MUST_USE int ws_select(const struct ws_recipe *recipe, const struct ws_select_options *options,
                          const char *config, size_t config_bytes, const struct ws_tensor *const *tensors,
                          size_t n, bool *chosen, struct ws_error *err);
/* Could it be one of ignore's, of some checkpoint? -EINVAL: it is empty, or no regular expression. */
WS_MUST_USE int ws_select_check_pattern(const char *pattern, struct ws_error *err);
/* Is it a 2-D tensor called MODULE.weight? */
bool ws_select_is_module(const struct ws_tensor *t);

#endif
