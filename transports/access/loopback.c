#include "transports/access/loopback.h"
#include "transports/base/text.h"
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define LISTENS 0x0A /* TCP_LISTEN, as /proc prints it */
#define HOST    64

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

static void note(struct found *f, bool exact, uid_t uid)
{
    if (f->exact && !exact)
        return;
    const bool nearer = exact && !f->exact;
    f->several = !nearer && f->any && (f->several || f->owner != uid);
    f->owner = uid;
    f->exact = exact;
    f->any = true;
}

/* Of one table of the kernel's. address: as it prints the one that is asked for; all: that of all addresses. */
static void look(const char *table, const char *address, const char *all, unsigned port, struct found *f)
{
    char line[512], local[40];
    FILE *file = fopen(table, "re");
    if (!file)
        return;
    while (fgets(line, sizeof(line), file)) {
        unsigned at, state, uid;
        if (sscanf(line, " %*u: %39[0-9A-F]:%x %*[0-9A-F]:%*x %x %*x:%*x %*x:%*x %*x %u", local, &at, &state,
                   &uid) == 4 &&
            state == LISTENS && at == port && (strcmp(local, address) == 0 || strcmp(local, all) == 0))
            note(f, strcmp(local, address) == 0, uid);
    }
    fclose(file);
}

/* An address as /proc prints it: words of four bytes, each in the host's order. */
static void print(const void *bytes, size_t n, char out[40])
{
    for (size_t i = 0; i < n; i += 4) {
        uint32_t word;
        memcpy(&word, (const char *)bytes + i, 4);
        snprintf(out + 2 * i, 9, "%08X", word);
    }
}

bool ws_loopback_owner(const char *url, unsigned port, uid_t *owner)
{
    static const char ALL4[] = "00000000", ALL6[] = "00000000000000000000000000000000";
    char host[HOST], text[40];
    unsigned ignored;
    struct in_addr v4 = {.s_addr = htonl(INADDR_LOOPBACK)};
    struct in6_addr v6 = IN6ADDR_LOOPBACK_INIT;
    struct found four = {0}, six = {0};
    if (!split(url, host, &ignored))
        return false;
    const bool named = strcmp(host, "localhost") == 0;
    if (named || inet_pton(AF_INET, host, &v4) == 1) {
        print(&v4, sizeof(v4), text);
        look("/proc/net/tcp", text, ALL4, port, &four);
        if (!four.any) /* a listener at [::] takes IPv4, too */
            look("/proc/net/tcp6", ALL6, ALL6, port, &four);
    }
    if (named || inet_pton(AF_INET6, host, &v6) == 1) {
        print(&v6, sizeof(v6), text);
        look("/proc/net/tcp6", text, ALL6, port, &six);
    }
    *owner = four.any ? four.owner : six.owner;
    return (four.any || six.any) && !four.several && !six.several &&
           !(four.any && six.any && four.owner != six.owner);
}
