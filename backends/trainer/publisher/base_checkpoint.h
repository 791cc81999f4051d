/* Base: what a rank adds to a version besides its own parameters: tensors of a base checkpoint that no rank
 * holds, and sidecar files. Files stay mapped for the publisher's life. */
#ifndef WS_TRAINER_PUBLISHER_BASE_CHECKPOINT_H
#define WS_TRAINER_PUBLISHER_BASE_CHECKPOINT_H
#include "transports/base/error.h"
#include "transports/format/folder.h"
#include <jansson.h>

struct ws_base;
/* Either path may be NULL. -ENOENT, -EBADMSG. */
WS_MUST_USE int ws_base_open(struct ws_base **out, const char *checkpoint, const char *sidecars,
                             struct ws_error *err);
/* For the registration: arrays "base" and "sidecars". */
json_t *ws_base_tensors_json(const struct ws_base *b);
/* Which opening this is: no other ever had or gets the same (registration.h). */
const char *ws_base_id(const struct ws_base *b);
json_t *ws_base_sidecars_json(const struct ws_base *b);
size_t ws_base_n_tensors(const struct ws_base *b);
const char *ws_base_tensor_name(const struct ws_base *b, size_t i);
const void *ws_base_tensor_data(const struct ws_base *b, size_t i, uint64_t *bytes);
size_t ws_base_n_sidecars(const struct ws_base *b);
const void *ws_base_sidecar_data(const struct ws_base *b, size_t i, uint64_t *bytes);
void ws_base_free(struct ws_base *b);

#endif
