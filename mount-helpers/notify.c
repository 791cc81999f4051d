#include "mount-helpers/notify.h"
#ifdef WS_HAVE_SYSTEMD
#include <systemd/sd-daemon.h>

void notify_ready(void)
{
    (void)sd_notify(0, "READY=1");
}

void notify_stopping(void)
{
    (void)sd_notify(0, "STOPPING=1");
}
#else
void notify_ready(void) {}
void notify_stopping(void) {}
#endif
