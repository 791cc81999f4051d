/* Patching: how a version comes into an engine, as it was added (update=), and what is known of that: by which way the last
 * one came and why, how many have, and what the comparisons with the files have found (verify=). */
#ifndef WS_FS_ENGINES_PATCHING_H
#define WS_FS_ENGINES_PATCHING_H
#include "backends/engine/engine.h"
#include "backends/engine/patch.h"
#include "fs/engines/grammar.h"

enum ws_update {
    WS_UPDATE_AUTO, /* what changed is written into its weights where it can do that; else it loads the whole version */
    WS_UPDATE_PATCH, /* the same, and a load of the whole version is reported */
    WS_UPDATE_WHOLE
};
const char *ws_update_name(enum ws_update u);

struct ws_patching {
    enum ws_update update;
    unsigned verify_s; /* 0: never */
    /* guarded by the control's lock */
    bool is_known;                   /* a version came since it was added, by: */
    bool is_patched;                 /* a patch; else a load of all, where a patch was tried or asked for: */
    char why[400];                   /* why no patch */
    uint64_t patched, whole, undone; /* of all switches; whole: where a patch was tried or asked for */
    uint64_t verified, drifted;
    char left_plan[WS_PATCH_PLAN_DIGITS +
                   1];     /* its workers may have it, though the switch is over; empty: none */
    uint64_t verify_at_ns; /* the next comparison; 0: when the engine has served for verify_s */
};
/* -EINVAL: what the options are. */
WS_MUST_USE int ws_patching_init(struct ws_patching *p, const struct ws_engine_ops *ops,
                                 const struct ws_command *command, struct ws_error *err);
/* Under the control's lock: */
void ws_patching_patched(struct ws_patching *p);
void ws_patching_whole(struct ws_patching *p, const char *why);
/* Is there something to say of it that is not as for every engine? */
bool ws_patching_is_shown(const struct ws_patching *p);

#endif
