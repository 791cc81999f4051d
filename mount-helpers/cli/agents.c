#include "mount-helpers/cli/agents.h"
#include "transports/base/secret.h"
#include "transports/ipc/peer.h"
#include "transports/transport.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLEEP_MS 50

struct ws_source *agents_open(const struct cli_args *args)
{
    char *token = cli_has(args, "token-file") ? cli_read_token(cli_get(args, "token-file")) : NULL;
    struct ws_ipc_account account = {0};
    struct ws_error err;
    if (cli_has(args, "agent-user") && ws_ipc_account_parse(cli_get(args, "agent-user"), &account, &err) < 0)
        exit(cli_usage("--agent-user: %s", err.text));
    const struct ws_source_options options = {.token = token,
                                              .has_agent_uid = account.is_named,
                                              .agent_uid = account.uid,
                                              .insecure = cli_has(args, "insecure"),
                                              .ca_file = cli_get(args, "ca-file"),
                                              .cert_file = cli_get(args, "cert-file"),
                                              .key_file = cli_get(args, "key-file")};
    struct ws_source *s;
    int rc = ws_source_open(ws_agent_address(cli_get(args, "agent")), &options, &s, &err);
    ws_secret_free(token);
    if (rc < 0)
        exit(cli_usage("%s", err.text));
    return s;
}

bool agents_sleep(double start, uint64_t seconds)
{
    if (cli_now() - start >= (double)seconds)
        return false;
    nanosleep(&(struct timespec){.tv_nsec = SLEEP_MS * 1000000L}, NULL);
    return true;
}
