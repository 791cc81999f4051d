/* Notify socket: where a service manager ($NOTIFY_SOCKET, systemd) takes messages of its services, as sd_notify(3) documents it for programs
 * without libsystemd: a unit of Type=notify must not depend on which libraries were there at the build. */
#ifndef WS_TRANSPORTS_BASE_NOTIFY_SOCKET_H
#define WS_TRANSPORTS_BASE_NOTIFY_SOCKET_H

/* A connected socket for datagrams, the caller's; -1: there is no such manager, or it does not listen. */
int ws_notify_socket_connect(void);

#endif
