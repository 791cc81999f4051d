#include "mount-helpers/cli/agents.h"
#include "transports/base/secret.h"
#include "transports/ipc/peer.h"
#include "transports/transport.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLEEP_MS 50

struct ws_source *agents_open_at(const struct cli_args *args, const char *url, unsigned reply_s)
{
    char *token = cli_has(args, "token-file") ? cli_read_token(cli_get(args, "token-file")) : NULL;
    struct ws_ipc_account account = {0};
    struct ws_error err;
    if (cli_has(args, "agent-user") && ws_ipc_account_parse(cli_get(args, "agent-user"), &account, &err) < 0)
        exit(cli_usage("--agent-user: %s", err.text));
    const struct ws_source_options options = {.token = token,
                                              .token_file = cli_get(args, "token-file"),
                                              .has_agent_uid = account.is_named,
                                              .agent_uid = account.uid,
                                              .reply_timeout_ms = reply_s * 1000,
                                              .insecure = cli_has(args, "insecure"),
                                              .ca_file = cli_get(args, "ca-file"),
                                              .cert_file = cli_get(args, "cert-file"),
                                              .key_file = cli_get(args, "key-file")};
    struct ws_source *s;
    int rc = ws_source_open(url, &options, &s, &err);
    ws_secret_free(token);
    if (rc < 0)
        exit(cli_usage("%s", err.text));
    return s;
}

struct ws_source *agents_open(const struct cli_args *args, unsigned reply_s)
{
    return agents_open_at(args, ws_agent_address(cli_get(args, "agent")), reply_s);
}

int agents_call(struct ws_source *agent, const char *method, const char *path, const json_t *body,
                json_t **reply, struct ws_error *err)
{
    const int rc = ws_source_call(agent, method, path, body, reply, err);
    const struct ws_error why = *err;
    if (rc == -EHOSTUNREACH) /* of a socket of this host the sentence says it */
        ws_error_set(err, EHOSTUNREACH,
                     "%.700s; does 'wsync agent --listen' run there, and is this its address (--agent, "
                     "$WSYNC_AGENT)?",
                     why.text);
    else if (rc == -ETIMEDOUT)
        ws_error_set(err, ETIMEDOUT,
                     "%.500s; the agent at %.200s does not answer: look whether its process or host stands "
                     "still, and at its log. It may do later what it was asked for",
                     why.text, agent->url);
    return rc;
}

bool agents_sleep(double start, uint64_t seconds)
{
    if (cli_now() - start >= (double)seconds)
        return false;
    nanosleep(&(struct timespec){.tv_nsec = SLEEP_MS * 1000000L}, NULL);
    return true;
}
