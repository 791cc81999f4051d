/* The index of a sharded checkpoint, model.safetensors.index.json:
 * {"metadata":{...},"weight_map":{TENSOR:FILE,...}}. Used by folder.c only. */
#ifndef WS_TRANSPORTS_FORMAT_FOLDER_INDEX_H
#define WS_TRANSPORTS_FORMAT_FOLDER_INDEX_H
#include "transports/base/error.h"
#include <stdbool.h>

struct ws_folder;
struct ws_folder_index;

/* Reads the index of a listed folder; *out is NULL where the folder has none. */
WS_MUST_USE int ws_folder_index_read(const struct ws_folder *f, struct ws_folder_index **out,
                                     struct ws_error *err);
/* Sets wanted[i] for each of the folder's files that the index names. -ENOENT: one is not there. */
WS_MUST_USE int ws_folder_index_select(const struct ws_folder_index *index, const struct ws_folder *f,
                                       bool *wanted, struct ws_error *err);
/* With the headers read: does it name each tensor once, in the file that holds it? -EBADMSG. */
WS_MUST_USE int ws_folder_index_check(const struct ws_folder_index *index, const struct ws_folder *f,
                                      struct ws_error *err);
void ws_folder_index_free(struct ws_folder_index *index); /* NULL is fine */

#endif
