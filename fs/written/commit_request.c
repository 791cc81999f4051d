#include "fs/written/commit_request.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int ws_commit_request(const char *path, struct ws_commit_reply *out, struct ws_error *err)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* the path is its caller's word */
    int rc = 0;

    if (fd < 0)
        return ws_error_set(err, errno, "cannot open the folder %s: %m", path);
    *out = (struct ws_commit_reply){0};
    if (ioctl(fd, WS_COMMIT_IOCTL, out) < 0)
        rc = errno == ENOTTY || errno == ENOSYS
                 ? ws_error_set(err, ENOTTY, "%s is in no folder that wsync share has mounted", path)
                 : ws_error_set(err, errno, "cannot have %s published: %m", path);
    out->text[sizeof(out->text) - 1] = '\0';
    close(fd);
    return rc;
}
