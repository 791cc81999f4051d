/* Need: which tensors of a checkpoint a node reads, as an operator writes it: patterns with ';' between. A tensor is needed
 * if any of them matches its name:
 *
 *     model.layers.0.*      the whole name, where * stands for any characters and ? for one
 *     re:.*\.norm\.         re: and a regular expression (POSIX extended) that matches from the name's begin
 *     ep:RANK/SIZE          what one of SIZE ranks of an expert-parallel engine reads: all tensors that are no expert's,
 *                           and those of the experts that vLLM places on that rank
 *
 * A tensor is an expert's if its name has ".experts.NUMBER." in it, as those of all families that have a tensor an expert:
 * Qwen-MoE, DeepSeek, GLM and OLMoE (model.layers.N.mlp.experts.E.*), Mixtral and MiniMax
 * (model.layers.N.block_sparse_moe.experts.E.*). That is vLLM's own rule (ep_weight_filter.py), but for tensors of other
 * ranks' experts that are no weights, as scales are: vLLM reads these, too, and here they are not needed, because they lie
 * between the weights. Experts are placed as vLLM does by default ("linear"): each rank has a range of them, and where
 * they do not divide the first ranks have one more.
 *
 * Pure functions over memory; an object does not change once it is made. */
#ifndef WS_TRANSPORTS_FORMAT_NEED_H
#define WS_TRANSPORTS_FORMAT_NEED_H
#include "transports/base/error.h"
#include "transports/format/safetensors.h"
#include <stdbool.h>
#include <stddef.h>

struct ws_need;
/* -EINVAL: a pattern is empty, too long, has control characters, no regular expression, or not of a rank; -E2BIG: there are more than
 * WS_MAX_NEED_PATTERNS; -ENOMEM. The caller frees it. */
WS_MUST_USE int ws_need_parse(const char *text, struct ws_need **out, struct ws_error *err);
void ws_need_free(struct ws_need *n); /* NULL is fine */
const char *ws_need_text(const struct ws_need *n);
/* chosen[i]: is tensors[i], one of n of a whole checkpoint, needed? Sets each. -EINVAL: a pattern matches nothing; experts are
 * not told apart by their names, or there are fewer than ranks. */
WS_MUST_USE int ws_need_select(const struct ws_need *need, const struct ws_tensor *const *tensors, size_t n,
                               bool *chosen, struct ws_error *err);

#endif
