/* Added: the sources that `add MODEL SOURCE` gave to models beside the mount's own. They are kept over a
 * restart, each with who named it: what root named may be anything; who is not root leads us to nothing that
 * our rights or our token would open for him. Private to control and its files. */
#ifndef WS_FS_ENGINES_ADDED_H
#define WS_FS_ENGINES_ADDED_H
#include "fs/engines/controller.h"

struct ws_added {
    struct ws_added *next;
    char *url;
    char *below; /* of others, dir:, the folder that it has to lie below; NULL: there was none */
    bool others; /* named by somebody who is not root */
    /* under control->adding */
    bool is_open, told; /* told: why it cannot be opened */
};

/* May he name it? -EPERM. */
WS_MUST_USE int ws_added_check(const struct ws_control *c, const char *url, bool others,
                               struct ws_error *err);
/* Gives the desk's model a source. As ws_added_check, and why it cannot be opened. */
WS_MUST_USE int ws_added_add(struct ws_control *c, struct ws_desk *d, const char *url, bool others,
                             struct ws_error *err);
/* Forgets the model and its sources. -ENOENT. */
WS_MUST_USE int ws_added_remove(struct ws_control *c, struct ws_desk *d, struct ws_error *err);
/* Opens what was kept and could not be opened yet. Says why not, once; the keeper tries again. */
void ws_added_open(struct ws_control *c);
/* As words behind `source` in the settings: URL, root or others, a folder. With the control's lock;
 * ws_added_read only before there are other threads. */
void ws_added_print(const struct ws_desk *d, FILE *f);
WS_MUST_USE bool ws_added_read(struct ws_desk *d, const char *line);
void ws_added_free(struct ws_desk *d);

#endif
