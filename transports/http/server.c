/* What libmicrohttpd leaves to its users. */
#include "transports/http/server.h"
#include "transports/base/text.h"
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

/* Time does not depend on where the first difference is. */
static bool same_token(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    unsigned char differ = n != m;
    for (size_t i = 0; i < m; i++)
        differ |= (unsigned char)(a[n ? i % n : 0] ^ b[i]);
    return !differ;
}

bool ws_http_bearer(const char *authorization, const char *token)
{
    return authorization && strncasecmp(authorization, "Bearer ", 7) == 0 &&
           same_token(authorization + 7, token);
}

int ws_http_range(const char *text, uint64_t size, uint64_t *begin, uint64_t *end)
{
    uint64_t a, b;
    *begin = 0;
    *end = size;
    if (!text || strncmp(text, "bytes=", 6) != 0 || strchr(text, ','))
        return 0;
    text += 6;
    if (*text == '-') {
        text++;
        if (ws_text_digits(&text, &a) || *text)
            return 0;
        if (a == 0 || size == 0)
            return -ERANGE;
        *begin = a < size ? size - a : 0;
        return 1;
    }
    if (ws_text_digits(&text, &a) || *text++ != '-')
        return 0;
    if (*text == 0)
        b = UINT64_MAX;
    else if (ws_text_digits(&text, &b) || *text || b < a)
        return 0;
    if (a >= size)
        return -ERANGE;
    *begin = a;
    *end = b < size ? b + 1 : size;
    return 1;
}

bool ws_http_names_tag(const char *text, const char *tag)
{
    size_t n = strlen(tag);
    while (text && *text) {
        text += strspn(text, " \t,");
        if (*text == '*')
            return true;
        if (strncmp(text, "W/", 2) == 0)
            text += 2;
        if (strncmp(text, tag, n) == 0 && strchr(" \t,", text[n])) /* the end too */
            return true;
        if (*text == '"' && strchr(text + 1, '"'))
            text = strchr(text + 1, '"') + 1; /* a tag may have commas */
        text += strcspn(text, ",");
    }
    return false;
}

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
                          "--token-file, or --insecure if the network is trusted",
                          address);
        goto out;
    }
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 512) != 0 ||
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
