/* Agents: the agent that a command of the trainer's side talks to. */
#ifndef WS_MOUNT_HELPERS_CLI_AGENTS_H
#define WS_MOUNT_HELPERS_CLI_AGENTS_H
#include "backends/trainer/api/agent_address.h"
#include "mount-helpers/cli/cli.h"
#include "transports/protocol/source.h"

/* The option of a command's table, and its token and certificates. */
#define AGENTS_OPTIONS                                                                                       \
    {"agent", 'a', "URL",                                                                                    \
     "the agent: unix:/PATH or http(s)://HOST:PORT; default $WSYNC_AGENT, or "                               \
     "unix:" WS_AGENT_SOCKET},                                                                               \
        {"token-file", 0, "FILE", "bearer token for it, the file's first line"},                             \
        {"agent-user", 0, "NAME", "let this account serve its socket, too; default $WSYNC_AGENT_USER"},      \
        {"insecure", 0, NULL, "send the token to http:// on another host, too, in clear text"},              \
        {"ca-file", 0, "FILE", "certificates that an https agent is checked against"},                       \
        {"cert-file", 0, "FILE", "client certificate for an https agent"},                                   \
    {                                                                                                        \
        "key-file", 0, "FILE", "its private key"                                                             \
    }

/* Opened without waiting for it; exits with a sentence when the URL is none. reply_s: how long an answer may take;
 * 0: as long as any. */
struct ws_source *agents_open(const struct cli_args *args, unsigned reply_s);
struct ws_source *agents_open_at(const struct cli_args *args, const char *url,
                                 unsigned reply_s); /* that URL */
/* As ws_source_call; where the agent cannot be reached, or does not answer, err says what to look at. */
WS_MUST_USE int agents_call(struct ws_source *agent, const char *method, const char *path, const json_t *body,
                            json_t **reply, struct ws_error *err);
/* "timeout" and the like in seconds, or CLI_FOREVER: sleeps a moment, false once the time is over. */
bool agents_sleep(double start, uint64_t seconds);

#endif
