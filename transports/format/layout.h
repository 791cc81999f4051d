/* Layout: what an engine's buffers depend on, the names, dtypes and shapes of a version's tensors.
 * How they are spread over files and where they lie in them is not part of it. Pure functions. */
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

/* Characters of a described tensor: 20 digits and a comma a dimension. */
#define WS_LAYOUT_TEXT_CHARS (WS_MAX_DIMS * 21 + 32)
/* "F32 [2,3]" */
const char *ws_layout_describe(const struct ws_tensor *t, char text[WS_LAYOUT_TEXT_CHARS]);
enum ws_layout_change { WS_LAYOUT_MISSING, WS_LAYOUT_EXTRA, WS_LAYOUT_DIFFERS };
/* t: the tensor of have, or of want where have lacks it; was: want's, where both have one that differs. */
typedef void ws_layout_visit_fn(void *arg, enum ws_layout_change change, const struct ws_tensor *t,
                                const struct ws_tensor *was);
/* Visits every difference in name order. Sorts both lists. */
void ws_layout_walk(const struct ws_tensor **have, size_t n_have, const struct ws_tensor **want,
                    size_t n_want, ws_layout_visit_fn *visit, void *arg);

#endif
