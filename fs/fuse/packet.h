/* Packet: bytes of a fixed size, with at most one descriptor, over a unix socket of SOCK_SEQPACKET. System calls only, so they are for
 * processes that were forked from ones with threads, too. */
#ifndef WS_FS_FUSE_PACKET_H
#define WS_FS_FUSE_PACKET_H
#include "transports/base/error.h"
#include <stddef.h>

/* fd -1: none. -errno; there is no SIGPIPE. */
WS_MUST_USE int ws_packet_send(int sock, const void *bytes, size_t n, int fd);
/* *fd: what came along, the caller's and close-on-exec, else -1; NULL: none is taken. -ECONNRESET: the other end is closed; -EBADMSG: it is of
 * another size; -EAGAIN: the socket's timeout is over. */
WS_MUST_USE int ws_packet_recv(int sock, void *bytes, size_t n, int *fd);

#endif
