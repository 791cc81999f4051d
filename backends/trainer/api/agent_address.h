/* Agent address: where a process of this node finds its agent unless an address is given. Trainers, engines
 * and commands use it. */
#ifndef WS_TRAINER_API_AGENT_ADDRESS_H
#define WS_TRAINER_API_AGENT_ADDRESS_H

/* The socket that an agent listens on unless it is told another. */
#define WS_AGENT_SOCKET "/run/wsync/agent.sock"

/* What was asked for, else $WSYNC_AGENT, else the usual socket; what is empty counts as the latter. Not
 * copied. */
const char *ws_agent_address(const char *asked);

#endif
