/* Token: a secret for HTTP requests, the first line of a file. */
#ifndef WS_FS_ENGINES_TOKEN_H
#define WS_FS_ENGINES_TOKEN_H
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

#endif
