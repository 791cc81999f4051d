/* Retirement: tells the agent which versions the framework has deleted, so that mounts on other nodes hide them, too. Who
 * deletes does not wait for it: a thread sends it, and sends it again while the agent is away. */
#ifndef WS_MOUNT_HELPERS_COMMANDS_RETIREMENT_H
#define WS_MOUNT_HELPERS_COMMANDS_RETIREMENT_H
#include "mount-helpers/cli/cli.h"
#include "transports/base/error.h"
#include "transports/base/version_id.h"

struct retirement;

/* args: of a command that has --agent and --agent-user; they and the model's name outlive it. */
WS_MUST_USE int retirement_new(struct retirement **out, const struct cli_args *args, const char *model,
                               struct ws_error *err);
/* The run that the model's newest version is of, as the agent says; empty where it cannot be asked. */
void retirement_ask_run(const struct retirement *r, char run[WS_LINEAGE_CHARS + 1]);
/* Any thread; does not block. Without a run it is not known which version is meant: nothing. */
void retirement_add(struct retirement *r, const struct ws_version_id *id);
/* Sends what is left once. NULL: nothing. */
void retirement_free(struct retirement *r);

#endif
