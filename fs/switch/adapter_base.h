/* Adapter base: was an adapter trained on weights of these shapes? Names tell nothing: base_model_name_or_path is a word of the
 * trainer's. */
#ifndef WS_FS_SWITCH_ADAPTER_BASE_H
#define WS_FS_SWITCH_ADAPTER_BASE_H
#include "transports/base/error.h"
#include "transports/format/safetensors.h"
#include <stdbool.h>

/* Does each matrix of the adapter fit the weight of its module, where the base has one under that name, and has the base any of
 * its modules? Shapes of quantised and fused weights, which have other names, are not compared. is_whole: these are all tensors of
 * the base; else nothing is said about what it lacks. -EPROTO names the tensor. */
WS_MUST_USE int ws_adapter_base_check(const struct ws_safetensors *adapter,
                                      const struct ws_safetensors *const *base, size_t n_base, bool is_whole,
                                      struct ws_error *err);

#endif
