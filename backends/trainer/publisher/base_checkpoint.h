/* Base checkpoint: what rank 0 adds to a version besides its own parameters: tensors of a checkpoint that no
 * rank holds, and sidecar files. Checkpoint files stay mapped for the publisher's life. Immutable once
 * opened. */
#ifndef WS_TRAINER_PUBLISHER_BASE_CHECKPOINT_H
#define WS_TRAINER_PUBLISHER_BASE_CHECKPOINT_H
#include "backends/trainer/wsync.h"
#include "transports/base/error.h"
#include "transports/format/folder.h"
#include <jansson.h>

struct ws_base_checkpoint;
/* Either path may be NULL. files: n_files sidecars from memory, which are copied, and which come instead of those of
 * the folder `sidecars` that have their names. -ENOENT, -EBADMSG; -EINVAL: a name that no sidecar can have. */
WS_MUST_USE int ws_base_checkpoint_open(struct ws_base_checkpoint **out, const char *checkpoint,
                                        const char *sidecars, const wsync_sidecar *files, size_t n_files,
                                        struct ws_error *err);
/* For the registration: its array "base" here, "sidecars" below. NULL: no memory. */
json_t *ws_base_checkpoint_tensors_json(const struct ws_base_checkpoint *b);
/* Identifies this opening; no other opening has the same id (registration.h). */
const char *ws_base_checkpoint_id(const struct ws_base_checkpoint *b);
json_t *ws_base_checkpoint_sidecars_json(const struct ws_base_checkpoint *b);
size_t ws_base_checkpoint_n_tensors(const struct ws_base_checkpoint *b);
const char *ws_base_checkpoint_tensor_name(const struct ws_base_checkpoint *b, size_t i);
const void *ws_base_checkpoint_tensor_data(const struct ws_base_checkpoint *b, size_t i, uint64_t *bytes);
size_t ws_base_checkpoint_n_sidecars(const struct ws_base_checkpoint *b);
const void *ws_base_checkpoint_sidecar_data(const struct ws_base_checkpoint *b, size_t i, uint64_t *bytes);
void ws_base_checkpoint_free(struct ws_base_checkpoint *b);

#endif
