#include "transports/http/listen.h"
#include "transports/base/text.h"
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

/* "HOST:PORT" or "[HOST]:PORT" to an address. */
static int resolve(const char *text, struct addrinfo **out, struct ws_error *err)
{
    char host[256];
    uint64_t port;
    const char *colon = strrchr(text, ':');
    if (!colon || colon == text || (size_t)(colon - text) >= sizeof(host) || ws_text_u64(colon + 1, &port) ||
        port > UINT16_MAX)
        return ws_error_set(err, EINVAL, "'%s' is no address to listen on; write HOST:PORT or [HOST]:PORT",
                            text);
    const char *begin = text[0] == '[' ? text + 1 : text;
    size_t n = (size_t)(colon - begin) - (text[0] == '[' && colon[-1] == ']');
    snprintf(host, sizeof(host), "%.*s", (int)n, begin);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    int rc = getaddrinfo(host, colon + 1, &hints, out);
    if (rc)
        return ws_error_set(err, EINVAL, "cannot resolve '%s': %s", text, gai_strerror(rc));
    return 0;
}

int ws_http_listen(const char *address, bool beyond_loopback, int *sock, unsigned *port, struct ws_error *err)
{
    struct addrinfo *a;
    int rc = resolve(address, &a, err), on = 1;
    if (rc < 0)
        return rc;
    struct sockaddr_in6 bound; /* large enough for both; the port is at one place in both */
    socklen_t len = sizeof(bound);
    int fd = -1;
    memset(&bound, 0, sizeof(bound));
    if (!is_loopback(a->ai_addr) && !beyond_loopback) {
        rc = ws_error_set(err, EACCES,
                          "%s is beyond loopback and there is no token: anyone could read the weights; give "
                          "--token-file or --tls-client-ca, or --insecure if the network is trusted",
                          address);
        goto out;
    }
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &len) != 0) {
        rc = ws_error_set(err, errno, "cannot listen on %s: %s", address, strerror(errno));
        if (fd >= 0)
            close(fd);
        goto out;
    }
    static_assert(offsetof(struct sockaddr_in6, sin6_port) == offsetof(struct sockaddr_in, sin_port), "");
    *port = ntohs(bound.sin6_port);
    *sock = fd;
out:
    freeaddrinfo(a);
    return rc;
}
