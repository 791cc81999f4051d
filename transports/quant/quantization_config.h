/* The quantization_config that a recipe's checkpoint has in its config.json, as vLLM and SGLang read it. */
#ifndef WS_TRANSPORTS_QUANT_QUANTIZATION_CONFIG_H
#define WS_TRANSPORTS_QUANT_QUANTIZATION_CONFIG_H
#include "transports/base/error.h"
#include "transports/quant/recipe.h"
#include <stddef.h>
#include <stdio.h>

/* Writes the object, indented to lie in one that is. modules: the layers that are not quantised, without ".weight", in
 * the order to write them. -EINVAL: a name is no UTF-8; -ENOMEM. What f says of writing is the caller's to look at. */
WS_MUST_USE int ws_quantization_config_write(FILE *f, const struct ws_recipe *recipe,
                                             const char *const *modules, size_t n, struct ws_error *err);

#endif
