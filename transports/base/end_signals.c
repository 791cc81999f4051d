#include "transports/base/end_signals.h"
#include <stddef.h>

void ws_end_signals(sigset_t *out)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    struct sigaction now;
    sigemptyset(out);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaddset(out, signals[i]);
}
