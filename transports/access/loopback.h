/* Loopback: URLs that lead to this host, and the account whose process listens there. */
#ifndef WS_TRANSPORTS_ACCESS_LOOPBACK_H
#define WS_TRANSPORTS_ACCESS_LOOPBACK_H
#include <stdbool.h>
#include <sys/types.h>

/* http(s)://127.x.x.x:PORT, localhost or [::1]: its port (80 or 443 where there is none). False: it leads elsewhere,
 * as far as the text says; a name is not resolved. */
bool ws_loopback_port(const char *url, unsigned *port);
/* The account of the process that a connection to that URL of this host comes to, as the kernel lists it
 * (sock_diag(7)). False: nothing listens, or several accounts do and it cannot be told which is reached. */
bool ws_loopback_owner(const char *url, unsigned port, uid_t *owner);

#endif
