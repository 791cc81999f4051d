/* End signals: those that tell a program to end: SIGTERM, SIGINT and SIGHUP, except where its parent had them ignored, as nohup does, and
 * shells do with SIGINT for what they start in the background. A signal that is blocked comes also where it is ignored, so who waits for
 * signals has to leave those out. */
#ifndef WS_TRANSPORTS_BASE_END_SIGNALS_H
#define WS_TRANSPORTS_BASE_END_SIGNALS_H
#include <signal.h>

/* Any thread, while nobody changes what is ignored. */
void ws_end_signals(sigset_t *out);

#endif
