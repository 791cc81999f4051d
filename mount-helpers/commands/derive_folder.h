/* Derive folder: a quantised checkpoint folder out of another one, read and written in pieces by all cores. */
#ifndef WS_MOUNT_HELPERS_COMMANDS_DERIVE_FOLDER_H
#define WS_MOUNT_HELPERS_COMMANDS_DERIVE_FOLDER_H
#include "mount-helpers/cli/progress.h"
#include "transports/quant/derive.h"
#include <stdatomic.h>

struct derive_folder {
    const char *from, *to;
    const struct ws_recipe *recipe;
    struct ws_select_options options;
    unsigned n_threads;
    const atomic_bool *stop; /* set at any time, by a signal's handler, too: it ends, -ECANCELED */
    /* out */
    size_t n_quantised, n_tensors;
    uint64_t source_bytes, bytes;
};

/* Makes the folder `to`, which must be empty or not there: under another name beside it until all is written. -EEXIST,
 * -EINVAL, -EBUSY (a mount point), -ECANCELED, -ESTALE (the source changed meanwhile) or what ws_folder_open, ws_derive_new, ws_derive_run and the system
 * say; nothing of it is left then. */
WS_MUST_USE int derive_folder(struct derive_folder *d, struct progress *progress, struct ws_error *err);

#endif
