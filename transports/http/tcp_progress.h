/* TCP progress: how far a connection's bytes have come, as the kernel counts them. Any thread. */
#ifndef WS_TRANSPORTS_HTTP_TCP_PROGRESS_H
#define WS_TRANSPORTS_HTTP_TCP_PROGRESS_H
#include <stdbool.h>
#include <stdint.h>

/* 0 where the kernel does not say. */
uint64_t ws_tcp_bytes_received(int sock); /* from the peer so far, whether the process has read them or not */
uint64_t ws_tcp_bytes_acked(int sock);    /* that the peer has confirmed so far */
unsigned ws_tcp_unread(int sock);         /* received, and not read by the process yet */
unsigned ws_tcp_unacked(int sock);        /* written by the process, and not confirmed by the peer yet */
bool ws_tcp_peer_has_left(int sock);      /* it sends no more: all of it is received */

#endif
