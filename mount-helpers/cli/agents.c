#include "mount-helpers/cli/agents.h"
#include "transports/base/secret.h"
#include "transports/transport.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLEEP_MS 50

struct ws_source *agents_open(const struct cli_args *args)
{
    char *token = cli_has(args, "token-file") ? cli_read_token(cli_get(args, "token-file")) : NULL;
    const struct ws_source_options options = {.token = token,
                                              .insecure = cli_has(args, "insecure"),
                                              .ca_file = cli_get(args, "ca-file"),
                                              .cert_file = cli_get(args, "cert-file"),
                                              .key_file = cli_get(args, "key-file")};
    struct ws_source *s;
    struct ws_error err;
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
