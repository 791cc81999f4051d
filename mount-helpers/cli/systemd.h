/* Notify: tells the service manager ($NOTIFY_SOCKET, systemd) that a service is up or ends; nothing without
 * one. */
#ifndef WS_MOUNT_HELPERS_CLI_SYSTEMD_H
#define WS_MOUNT_HELPERS_CLI_SYSTEMD_H

void notify_ready(void);
void notify_stopping(void);

#endif
