#include "mount-helpers/cli/systemd.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A datagram to the socket that the service manager names, as sd_notify(3) documents it for programs without
 * libsystemd: a unit of Type=notify must not depend on which libraries were there at the build. '@' stands
 * for the zero of an abstract name. */
static void tell(const char *what)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof to.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(to.sun_path, path, n);
    if (path[0] == '@')
        to.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    (void)!sendto(fd, what, strlen(what), MSG_NOSIGNAL, (struct sockaddr *)&to,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    close(fd);
}

void notify_ready(void)
{
    tell("READY=1");
}

void notify_stopping(void)
{
    tell("STOPPING=1");
}
