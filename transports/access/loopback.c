#include "transports/access/loopback.h"
#include "transports/base/text.h"
#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HOST 64

/* Host and port of a URL; host without brackets. */
static bool split(const char *url, char host[HOST], unsigned *port)
{
    const bool https = strncmp(url, "https://", 8) == 0;
    if (!https && strncmp(url, "http://", 7) != 0)
        return false;
    const char *at = url + (https ? 8 : 7);
    const size_t length = strcspn(at, "/?#");
    const bool bracket = *at == '[';
    const char *end = bracket ? memchr(at, ']', length) : memchr(at, ':', length);
    const size_t n = end ? (size_t)(end - at) - bracket : length - bracket;
    uint64_t number = https ? 443 : 80;
    if ((bracket && !end) || n >= HOST || memchr(at, '@', length))
        return false;
    snprintf(host, HOST, "%.*s", (int)n, at + bracket);
    const char *colon = end ? end + bracket : at + length;
    if (colon < at + length) {
        char text[8];
        snprintf(text, sizeof(text), "%.*s", (int)(at + length - colon - 1), colon + 1);
        if (*colon != ':' || ws_text_u64(text, &number) < 0 || number == 0 || number > UINT16_MAX)
            return false;
    }
    *port = (unsigned)number;
    return true;
}

bool ws_loopback_port(const char *url, unsigned *port)
{
    char host[HOST];
    struct in_addr v4;
    struct in6_addr v6;
    if (!split(url, host, port))
        return false;
    return strcmp(host, "localhost") == 0 ||
           (inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127) ||
           (inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
}

/* What listens on a port: at the address itself, or at all addresses of the family. */
struct found {
    bool exact, any, several; /* several: of more than one account, at the nearer of the two */
    uid_t owner;
};

static void record(struct found *f, bool exact, uid_t uid)
{
    if (f->exact && !exact)
        return;
    const bool nearer = exact && !f->exact;
    f->several = !nearer && f->any && (f->several || f->owner != uid);
    f->owner = uid;
    f->exact = exact;
    f->any = true;
}

/* --- the kernel's list of listeners --- */

/* Of one family's answer. address: 4 or 16 bytes. */
static void record_message(const struct inet_diag_msg *m, const void *address, size_t n, unsigned port,
                           struct found *f)
{
    static const unsigned char all[16];
    const bool exact = memcmp(m->id.idiag_src, address, n) == 0;
    if (ntohs(m->id.idiag_sport) == port && (exact || memcmp(m->id.idiag_src, all, n) == 0))
        record(f, exact, m->idiag_uid);
}

/* 1: there is more to come; 0: that was all; -EPROTO: the kernel does not tell. */
static int parse_answer(const struct nlmsghdr *h, size_t got, const void *address, size_t n, unsigned port,
                        struct found *f)
{
    for (; NLMSG_OK(h, got); h = NLMSG_NEXT(h, got)) {
        if (h->nlmsg_type == NLMSG_DONE)
            return 0;
        if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY || h->nlmsg_len < NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
            return -EPROTO;
        record_message(NLMSG_DATA(h), address, n, port, f);
    }
    return 1;
}

/* Listeners alone, by netlink (sock_diag(7)): /proc/net/tcp has all connections of the host, and takes long. False: the
 * kernel does not tell. */
static bool look(int family, const void *address, unsigned port, struct found *f)
{
    struct {
        struct nlmsghdr head;
        struct inet_diag_req_v2 body;
    } ask = {.head = {.nlmsg_len = sizeof(ask),
                      .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                      .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
             .body = {.sdiag_family = (unsigned char)family,
                      .sdiag_protocol = IPPROTO_TCP,
                      .idiag_states = 1U << TCP_LISTEN}};
    _Alignas(struct nlmsghdr) char answer[16384];
    const size_t n = family == AF_INET ? 4 : 16;
    const int sock = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    int rc = sock >= 0 && send(sock, &ask, sizeof(ask), 0) == (ssize_t)sizeof(ask) ? 1 : -errno;
    while (rc > 0) {
        const ssize_t got = recv(sock, answer, sizeof(answer), 0);
        rc = got > 0 ? parse_answer((const struct nlmsghdr *)answer, (size_t)got, address, n, port, f)
             : got < 0 && errno == EINTR ? 1
                                         : -EPROTO;
    }
    if (sock >= 0)
        close(sock);
    return rc == 0;
}

bool ws_loopback_owner(const char *url, unsigned port, uid_t *owner)
{
    static const struct in6_addr all6;
    char host[HOST];
    unsigned ignored;
    struct in_addr v4 = {.s_addr = htonl(INADDR_LOOPBACK)};
    struct in6_addr v6 = IN6ADDR_LOOPBACK_INIT;
    struct found four = {0}, six = {0};
    bool told = true;
    if (!split(url, host, &ignored))
        return false;
    const bool named = strcmp(host, "localhost") == 0;
    if (named || inet_pton(AF_INET, host, &v4) == 1) {
        told = look(AF_INET, &v4, port, &four);
        if (told && !four.any) /* a listener at [::] takes IPv4, too */
            told = look(AF_INET6, &all6, port, &four);
    }
    if (named || inet_pton(AF_INET6, host, &v6) == 1) {
        told = told && look(AF_INET6, &v6, port, &six);
    }
    *owner = four.any ? four.owner : six.owner;
    return told && (four.any || six.any) && !four.several && !six.several &&
           !(four.any && six.any && four.owner != six.owner);
}
