#include "fs/switch/machine.h"
#include "transports/base/machine.h"
#include "transports/base/text.h"
#include "transports/http/certificate.h"
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void put_text(json_t *o, const char *key, const char *text)
{
    char clean[WS_ERROR_TEXT];
    snprintf(clean, sizeof(clean), "%s", text);
    ws_text_clean(clean);
    if (clean[0])
        json_object_set_new(o, key, json_string(clean));
}

static void put_number(json_t *o, const char *key, uint64_t number)
{
    if (number > 0)
        json_object_set_new(o, key, json_integer((json_int_t)number));
}

/* Of the way to a URL whose host is an address, as the kernel knows it; nothing is sent. 0: it cannot be told. */
static unsigned mtu_to(const char *url)
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_DGRAM};
    const char *host = strstr(url, "://");
    struct addrinfo *to = NULL;
    char name[128];
    int mtu = 0;
    socklen_t n = sizeof(mtu);
    if (!host)
        return 0;
    host += 3 + (host[3] == '[');
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(host, host[-1] == '[' ? "]" : ":/"), host);
    if (getaddrinfo(name, "9", &hints, &to) != 0)
        return 0;
    const int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool is_v6 = to->ai_family == AF_INET6;
    if (fd < 0 || connect(fd, to->ai_addr, to->ai_addrlen) != 0 ||
        getsockopt(fd, is_v6 ? IPPROTO_IPV6 : IPPROTO_IP, is_v6 ? IPV6_MTU : IP_MTU, &mtu, &n) != 0)
        mtu = 0;
    if (fd >= 0)
        close(fd);
    freeaddrinfo(to);
    return mtu > 0 ? (unsigned)mtu : 0;
}

/* The first one, since that is asked first; its error, if it has one, is why its way is not taken. */
static void put_source(json_t *o, struct ws_store *s)
{
    struct ws_source_info *first = malloc(sizeof(*first));
    if (first && ws_store_sources(s, first, 1) > 0) {
        put_text(o, "source", first->url);
        if (!first->up)
            put_text(o, "source_error", first->error[0] ? first->error : "it is down");
        put_number(o, "mtu", mtu_to(first->url));
        put_number(o, "rtt_us", first->rtt_us);
    }
    free(first);
}

json_t *ws_machine_json(struct ws_store *s)
{
    json_t *o = ws_machine_facts();
    struct ws_store_stats stats;
    if (!o)
        return NULL;
    ws_store_stats(s, &stats);
    put_number(o, "cache", stats.cache_bytes);
    put_number(o, "used", stats.used_bytes);
    put_number(o, "link", stats.link_bytes_s);
    put_number(o, "certificate_end", ws_certificate_file_end(ws_store_certificate(s)));
    put_source(o, s);
    return o;
}
