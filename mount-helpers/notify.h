/* Notify: tells systemd (sd_notify) that a service is up or ends; nothing without systemd. */
#ifndef WS_MOUNT_HELPERS_NOTIFY_H
#define WS_MOUNT_HELPERS_NOTIFY_H

void notify_ready(void);
void notify_stopping(void);

#endif
