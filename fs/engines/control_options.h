/* Control's options: what the mount is, to its commands and to the engines. */
#ifndef WS_FS_ENGINES_CONTROL_OPTIONS_H
#define WS_FS_ENGINES_CONTROL_OPTIONS_H
#include <stdbool.h>

struct ws_control_options {
    const char *mountpoint; /* absolute; engines are given mountpoint/model/version unless prefix= */
    const char *mount_id;   /* HOST:MOUNTPOINT, copied */
    bool passthrough, link; /* for status: how reads are served */
    const char *mode_text;  /* "passthrough", "link", "cached: why"; may change until the mount answers */
    bool prefetch;          /* models begin with the policy pull */
    const char *source;     /* what root mounted, with commas between */
    bool has_token;         /* its sources are sent one */
    const char *files;      /* folder below which users other than root may name files; NULL: none */
    const char *config;     /* file or folder that says what is to be set; NULL: none */
    const char *state;      /* folder for the settings; NULL: the default one; "none": not kept */
};

#endif
