/* Added sources: what `add MODEL SOURCE` gave to models beside the mount's own sources. They are kept over a
 * restart, each with whether root named it. Root may name anything. Another user leads the daemon to nothing
 * that the daemon's rights or its token would open for that user. Private to control and its files. */
#ifndef WS_FS_ENGINES_ADDED_H
#define WS_FS_ENGINES_ADDED_H
#include "fs/engines/controller.h"

struct ws_added_source {
    struct ws_added_source *next;
    char *url; /* with its own token file, as it was given (source_spec.h) */
    char *
        below; /* of an unprivileged dir: or token file, the folder that it has to lie below; NULL: there was none */
    bool unprivileged; /* a user other than root named it */
    /* under control->adding */
    bool is_open, was_reported; /* the latter: why it cannot be opened */
};

/* May this user name it? -EPERM; -EINVAL: it is no source, or lies below the mount's own folder. */
WS_MUST_USE int ws_added_check(const struct ws_control *c, const char *url, bool unprivileged,
                               struct ws_error *err);
/* Gives the controller's model a source. As ws_added_check, and why it cannot be opened. */
WS_MUST_USE int ws_added_add(struct ws_control *c, struct ws_controller *ctl, const char *url,
                             bool unprivileged, struct ws_error *err);
/* Forgets the model and its sources. -ENOENT. */
WS_MUST_USE int ws_added_remove(struct ws_control *c, struct ws_controller *ctl, struct ws_error *err);
/* The config names root's source no more: no version comes from it again; those that are here stay. */
void ws_added_take_back(struct ws_control *c, struct ws_controller *ctl, const char *url);
/* Opens what was kept and could not be opened yet. Reports once why not; the reconciler tries again. */
void ws_added_open(struct ws_control *c);
/* As words behind `source` in the settings: URL, root or others, a folder. With the control's lock;
 * ws_added_read is called only before there are other threads. */
void ws_added_print(const struct ws_controller *ctl, FILE *f);
WS_MUST_USE bool ws_added_read(struct ws_controller *ctl, const char *line);
void ws_added_free(struct ws_controller *ctl);

#endif
