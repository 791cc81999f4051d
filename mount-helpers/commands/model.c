/* wsync model: has an agent forget a model, or a mount of it. */
#include "mount-helpers/cli/agents.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static const struct cli_option options[] = {
    AGENTS_OPTIONS,
    {"identity", 0, "NAME", "forget: under which identity the mount reported, where several did"},
    {0},
};

static int ask(const struct cli_args *args, const char *verb, json_t *body)
{
    char path[WS_API_PATH_BYTES];
    struct ws_error err = {0};
    json_t *reply = NULL;
    struct ws_source *agent = agents_open(args, 0);
    ws_api_model_path(path, verb, cli_word(args, 1));
    const int rc = body ? agents_call(agent, "POST", path, body, &reply, &err)
                        : ws_error_set(&err, ENOMEM, "no memory for a request");
    const json_int_t left = json_integer_value(json_object_get(reply, "slots_left"));
    if (rc == 0 && left > 0)
        printf("%s is listed no longer; readers still have %d of its slots: remove it again once they have "
               "gone\n",
               cli_word(args, 1), (int)left);
    json_decref(reply);
    json_decref(body);
    ws_source_close(agent);
    return rc < 0 ? cli_fail("%s", err.text) : CLI_OK;
}

static int run(const struct cli_args *args)
{
    const char *what = cli_word(args, 0), *identity = cli_get(args, "identity");
    if (strcmp(what, "remove") == 0 && cli_words(args) == 2)
        return identity ? cli_usage("--identity is of forget") : ask(args, "remove", json_object());
    if (strcmp(what, "forget") == 0 && cli_words(args) == 3)
        return ask(args, "mounts/remove",
                   json_pack("{s:s,s:s*}", "mount", cli_word(args, 2), "identity", identity));
    return cli_usage("remove MODEL, or forget MODEL HOST:MOUNTPOINT");
}

const struct cli_command cmd_model = {
    .name = "model",
    .summary = "have an agent forget a model, or a mount of it",
    .synopsis = "remove [OPTIONS] MODEL\nforget [OPTIONS] MODEL HOST:MOUNTPOINT",
    .description = "`remove` frees the memory of a model that no rank writes any more, and the model is "
                   "listed no longer; mounts "
                   "keep what they have fetched, and an archive what it holds. It is refused while ranks are "
                   "registered, a "
                   "version is being written, or processes of the agent's host have the memory of one.\n\n"
                   "`forget` removes a mount that is silent from what releases count. Agents forget one by "
                   "themselves after ten "
                   "minutes.\n\n"
                   "Both need the role admin: by the socket root and the agent's own account have it.",
    .examples = "wsync model remove actor\nwsync model forget actor node7:/wsync",
    .options = options,
    .min_words = 2,
    .max_words = 3,
    .run = run,
};
