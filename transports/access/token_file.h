/* Token file: changes to a tokens file (token_table.h), a line at a time. Each change reads the file, checks what it
 * would become, and replaces it whole, under a lock: a server finds the old file or the new one, and two changes at
 * once lose nothing. Comments and all other lines stay as they are; so do its mode and owner. A new file is for
 * its owner only. Called by commands; any thread. */
#ifndef WS_TRANSPORTS_ACCESS_TOKEN_FILE_H
#define WS_TRANSPORTS_ACCESS_TOKEN_FILE_H
#include "transports/access/token_table.h"

#define WS_TOKENS_FILE "/etc/wsync/tokens" /* where commands look if nothing else is said */

struct ws_token_new {
    const char *name;
    unsigned roles;                   /* 0, where it rotates: those of the lines that are there */
    const char *models;               /* NULL: all, or, where it rotates without roles, those of the lines */
    const struct ws_token_hash *hash; /* NULL: it is known by its certificate alone */
    bool rotates;                     /* it is one more line of a name that is there */
};
/* Appends a line. -EEXIST: the name is there, and it does not rotate; -ENOENT: it rotates, and is not there;
 * -EBUSY: another process has had the file for long; what is wrong with the file, or with the line. */
WS_MUST_USE int ws_token_file_add(const char *path, const struct ws_token_new *t, struct ws_error *err);

enum ws_token_lines_of { WS_TOKEN_ALL, WS_TOKEN_OLDEST, WS_TOKEN_NEWEST };
/* Removes lines of a name. -ENOENT: it has none; -EINVAL: the oldest of one line, which is not one of several. */
WS_MUST_USE int ws_token_file_remove(const char *path, const char *name, enum ws_token_lines_of which,
                                     struct ws_error *err);

#endif
