/* Machine: what this mount tells agents of the machine that it is on, for `wsync doctor --fleet`. */
#ifndef WS_FS_SWITCH_MACHINE_H
#define WS_FS_SWITCH_MACHINE_H
#include "fs/store/store.h"
#include <jansson.h>

/* {"wsync", "kernel", "source", "source_error": text; "now_us", "memory", "memory_free", "cache", "used", "link",
 * "mtu": numbers}; what cannot be told is left out. Blocks on nothing: a source's host that is a name has no mtu. NULL: no memory. */
json_t *ws_machine_json(struct ws_store *s);

#endif
