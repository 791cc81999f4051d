#include "transports/base/notify_socket.h"
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* '@' stands for the zero of an abstract name. */
int ws_notify_socket_connect(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof to.sun_path || (path[0] != '/' && path[0] != '@'))
        return -1;
    memcpy(to.sun_path, path, n);
    if (path[0] == '@')
        to.sun_path[0] = 0;
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 &&
        connect(fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}
