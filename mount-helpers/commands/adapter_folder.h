/* Adapter folder: a checkpoint folder that holds a LoRA adapter instead of a model, as PEFT's save_pretrained writes
 * it. It is checked as a whole before it is published. */
#ifndef WS_MOUNT_HELPERS_COMMANDS_ADAPTER_FOLDER_H
#define WS_MOUNT_HELPERS_COMMANDS_ADAPTER_FOLDER_H
#include "transports/format/folder.h"
#include <jansson.h>

/* *config: the object of its adapter_config.json, a new reference; NULL: the folder has neither of an adapter's two
 * files. -EBADMSG: one of the two is missing, other weights are beside them, or they are no adapter that any engine
 * loads; -EPROTO as ws_adapter_check; or what ws_folder_file_open says. */
WS_MUST_USE int adapter_folder_read(const struct ws_folder *folder, json_t **config, struct ws_error *err);
/* The config's text with another base_model_name_or_path. NULL: no memory. */
char *adapter_folder_rename_base(const json_t *config, const char *base_name);

#endif
