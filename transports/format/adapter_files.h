/* Adapter files: what PEFT calls the two files of an adapter. */
#ifndef WS_TRANSPORTS_FORMAT_ADAPTER_FILES_H
#define WS_TRANSPORTS_FORMAT_ADAPTER_FILES_H

#define WS_ADAPTER_CONFIG_NAME  "adapter_config.json"
#define WS_ADAPTER_WEIGHTS_NAME "adapter_model.safetensors"

#endif
