/* Agent: the process that holds the slots of a trainer node and serves them. Independent of the
 * trainer's interpreter and of its crash. Holds many models. */
#ifndef WS_TRAINER_AGENT_AGENT_H
#define WS_TRAINER_AGENT_AGENT_H
#include "backends/trainer/agent/core/options.h"
#include "transports/base/error.h"
#include <stdio.h>

struct ws_agent;
/* Starts serving; returns at once. */
WS_MUST_USE int ws_agent_new(struct ws_agent **out, const struct ws_agent_options *options,
                             struct ws_error *err);
unsigned ws_agent_port(const struct ws_agent *a);
/* The table of routes and the role that each asks for, in lines. */
void ws_agent_print_routes(FILE *f);
void ws_agent_free(struct ws_agent *a); /* stops; published versions are gone with it */

#endif
