#include "transports/http/tcp_progress.h"
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define CLOSE_WAIT 8 /* TCP_CLOSE_WAIT of <netinet/tcp.h>, which does not go with <linux/tcp.h> */

static struct tcp_info info_of(int sock)
{
    struct tcp_info info = {0};
    socklen_t n = sizeof(info);
    (void)getsockopt(sock, IPPROTO_TCP, TCP_INFO, &info, &n);
    return info;
}

uint64_t ws_tcp_bytes_received(int sock)
{
    return info_of(sock).tcpi_bytes_received;
}

uint64_t ws_tcp_bytes_acked(int sock)
{
    return info_of(sock).tcpi_bytes_acked;
}

bool ws_tcp_peer_has_left(int sock)
{
    return info_of(sock).tcpi_state == CLOSE_WAIT;
}

static unsigned ask(int sock, unsigned long what)
{
    int n = 0;
    return ioctl(sock, what, &n) == 0 && n > 0 ? (unsigned)n : 0;
}

unsigned ws_tcp_unread(int sock)
{
    return ask(sock, SIOCINQ);
}

unsigned ws_tcp_unacked(int sock)
{
    return ask(sock, SIOCOUTQ);
}
