#include "backends/trainer/api/agent_address.h"
#include <stdlib.h>

const char *ws_agent_address(const char *asked)
{
    const char *agent = asked ? asked : getenv("WSYNC_AGENT");
    return agent && *agent ? agent : "unix:" WS_AGENT_SOCKET;
}
