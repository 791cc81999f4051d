/* Layout: what an engine's buffers depend on, the names, dtypes and shapes of a version's tensors.
 * How they are spread over files and where they lie in them is not part of it. Pure function. */
#ifndef WS_TRANSPORTS_FORMAT_LAYOUT_H
#define WS_TRANSPORTS_FORMAT_LAYOUT_H
#include "transports/base/error.h"
#include "transports/format/safetensors.h"
#include <stddef.h>

/* The gate of a switch: may `have` (the version to load) take the place of `want` (the one that the
 * engines serve)? Arrays of parsed headers, one a shard file. Returns 0 when equal; else -EPROTO and
 * *report is a malloc'ed text, one line a difference, in name order, at most 100 and a count of the
 * rest, each line printable:
 *     missing NAME (F32 [2,3])             want has it, have does not
 *     extra NAME (F32 [2,3])               have has it, want does not
 *     differs NAME: F32 [2,3], was BF16 [2,3]
 * -ENOMEM. *report is NULL unless -EPROTO. */
WS_MUST_USE int ws_layout_compare(struct ws_safetensors *const *have, size_t n_have,
                                  struct ws_safetensors *const *want, size_t n_want, char **report);

#endif
