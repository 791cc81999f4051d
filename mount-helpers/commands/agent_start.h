/* Agent start: sees to an agent whose start takes long, because the store of its archive does not answer: after some
 * seconds it says what the agent waits for, and a signal ends that. Used by the main thread, around ws_agent_new. */
#ifndef WS_MOUNT_HELPERS_COMMANDS_AGENT_START_H
#define WS_MOUNT_HELPERS_COMMANDS_AGENT_START_H
#include "backends/trainer/agent/core/options.h"
#include <pthread.h>

struct agent_start {
    struct ws_agent_start shared; /* for the options; stays as long as the agent */
    pthread_t thread;
    int over;   /* eventfd: the start is over */
    int signal; /* that came meanwhile, the thread's until it has ended; 0: none */
};

/* Call cli_block_signals before. */
WS_MUST_USE int agent_start_begin(struct agent_start *s, struct ws_error *err);
/* The signal that came meanwhile; 0: none. From here on signals wait for cli_wait_signal again. */
int agent_start_end(struct agent_start *s);

#endif
