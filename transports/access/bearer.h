/* Bearer: a secret for HTTP requests, the first line of a file, which its operator may exchange while the process runs.
 * Any thread; one struct ws_bearer_file by one thread at a time. */
#ifndef WS_TRANSPORTS_ACCESS_BEARER_H
#define WS_TRANSPORTS_ACCESS_BEARER_H
#include "transports/base/entry.h"
#include "transports/base/error.h"

#define WS_TOKEN_MOST 4095 /* bytes */

/* below NULL: any file, for root, who could read it anyway. Else a folder: path must be a regular file below it,
 * wherever links in its name lead. *out is secret memory (secret.h), the caller's to free there. -EPERM, -EINVAL: it is empty,
 * -E2BIG: longer than any token, or errno. */
WS_MUST_USE int ws_token_read(const char *path, const char *below, char **out, struct ws_error *err);
/* The same from a descriptor that is open for reading, which this closes. A pipe was opened with O_NONBLOCK, and
 * its writer has wait_ms for the line; -ETIMEDOUT. */
WS_MUST_USE int ws_token_read_fd(int fd, const char *path, unsigned wait_ms, char **out,
                                 struct ws_error *err);

/* A file that is looked at again and again. */
struct ws_bearer_file {
    const char *path,
        *below;            /* as of ws_token_read; borrowed. NULL: there is none, and nothing is ever read */
    struct ws_stamp stamp; /* of what was read, or refused, last */
    uint64_t looked_ns;
};
/* What it holds, in secret memory, the caller's to free there, if it may have changed since the last call; else NULL.
 * The first call reads it. It looks once a second, or at_once. What is there no longer, is no regular file, or cannot
 * be read changes nothing. */
char *ws_bearer_file_look(struct ws_bearer_file *f, bool at_once);

#endif
