/* wsync wait: until a version is somewhere: on this mount, or served by the fleet of an agent. */
#include "mount-helpers/cli/agents.h"
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/mounts.h"
#include "transports/base/text.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_option wait_options[] = {
    {"mount", 'd', "DIR", "the mount; default $WSYNC_MOUNT, or the only one on this machine"},
    {"state", 's', "STATE",
     "known, ready (complete and verified) or active (served by the engines); "
     "default ready"},
    {"loaded", 'l', "WHO",
     "ask the agent instead, until WHO serves it or a later version: all (mounts that follow or have "
     "engines), a number of them, or one by HOST or HOST:MOUNTPOINT; a mount without engines serves what is "
     "its current version"},
    AGENTS_OPTIONS,
    {"timeout", 't', "SECONDS", "give up after this; 0: look once; default: wait for ever", 0,
     CLI_MAX_SECONDS},
    {0},
};

static int rank_of(const char *state)
{
    static const char *const order[] = {"failed", "known", "pulling", "verifying", "ready", "active"};
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++)
        if (!strcmp(order[i], state))
            return (int)i;
    return -1;
}

static void name_silent(const json_t *reply)
{
    const json_t *who;
    size_t i;
    json_array_foreach(json_object_get(reply, "silent"), i, who)
    {
        fprintf(stderr, "left out: %s is not heard of; it catches up when it is back\n",
                json_string_value(who));
    }
}

static int wait_loaded(const struct cli_args *args)
{
    const char *model = cli_word(args, 0), *who = cli_get(args, "loaded");
    uint64_t timeout = cli_u64(args, "timeout", CLI_FOREVER), version;
    struct ws_source *s = agents_open(args, 0);
    struct ws_error err;
    char path[WS_API_PATH_BYTES], missing[WS_ERROR_TEXT] = "";
    double start = cli_now();
    bool loaded = false;
    int rc = 0;
    if (ws_text_u64(cli_word(args, 1), &version) || strlen(who) > WS_MOUNT_ID_CHARS ||
        strspn(who, "0") == strlen(who))
        return cli_usage("--loaded wants a version's number and all, a number or a mount's name");
    ws_api_loaded_path(path, model, version, who);
    do {
        json_t *reply;
        rc = agents_call(s, "GET", path, NULL, &reply, &err);
        if (rc < 0 && rc != -ENOENT) /* the model's first version may be on its way */
            break;
        loaded = rc == 0 && json_is_true(json_object_get(reply, "loaded"));
        snprintf(missing, sizeof missing, "%s",
                 rc < 0 ? err.text : json_string_value(json_object_get(reply, "missing")));
        if (loaded)
            name_silent(reply);
        json_decref(reply);
    } while (!loaded && agents_sleep(start, timeout));
    ws_source_close(s);
    if (rc < 0 && rc != -ENOENT)
        return cli_fail("%s", err.text);
    return loaded ? CLI_OK
                  : cli_fail("%s/%" PRIu64 " is not loaded after %" PRIu64 " s: %s", model, version, timeout,
                             missing);
}

/* A mount that is named and is to be waited for may still be on its way. */
static void await_mount(const struct cli_args *args, double start, uint64_t timeout)
{
    char mount[PATH_MAX], below[PATH_MAX];
    const char *named = mounts_named(args);
    while (named && !(mounts_find(named, mount, below) && !below[0]) && agents_sleep(start, timeout))
        ;
}

/* By which way it came, as status says. One that is no more than known has not come. */
static void say_how(const char *mount, const char *model, const char *version, const char *state)
{
    char *progress = mounts_read("%s/%s/%s/.wsync/progress", mount, model, version);
    char *how = progress ? mounts_value(progress, "how") : NULL;
    if (how) {
        ws_text_clean(how);
        printf("%s/%s is %s: %s\n", model, version, state, how);
    }
    free(progress);
    free(how);
}

static int run_wait(const struct cli_args *args)
{
    if (cli_has(args, "loaded"))
        return wait_loaded(args);
    const char *model = cli_word(args, 0), *version = cli_word(args, 1);
    const char *state = cli_get(args, "state") ? cli_get(args, "state") : "ready";
    uint64_t timeout = cli_u64(args, "timeout", CLI_FOREVER);
    double start = cli_now();
    char seen[64] = "unknown";

    if (strcmp(state, "known") && strcmp(state, "ready") && strcmp(state, "active"))
        return cli_usage("--state is known, ready or active, not '%s'", state);
    if (timeout != CLI_FOREVER)
        await_mount(args, start, timeout);
    const char *mount = mounts_pick(args);
    do {
        char *text = mounts_read("%s/%s/%s/.wsync/state", mount, model, version);
        if (text) {
            snprintf(seen, sizeof seen, "%.*s", (int)strcspn(text, " \n"), text);
            free(text);
            if (rank_of(seen) >= rank_of(state)) {
                if (rank_of(seen) >= rank_of("ready"))
                    say_how(mount, model, version, seen);
                return CLI_OK;
            }
            if (!strcmp(seen, "failed"))
                return cli_fail("%s/%s failed; see %s/%s/last_error and status", model, version, mount,
                                model);
        } else if (errno == ENOTCONN || errno == EIO) {
            return cli_fail("the mount %s does not answer: %s", mount, strerror(errno));
        }
    } while (agents_sleep(start, timeout));
    return cli_fail("%s/%s is %s after %" PRIu64 " s, waited for %s", model, version, seen, timeout, state);
}

const struct cli_command cmd_wait = {
    .name = "wait",
    .summary = "wait until a version is known, ready or active on a mount, or served by a fleet",
    .synopsis = "[OPTIONS] MODEL VERSION",
    .description =
        "Returns 0 once the version has reached the state, and prints how it came if it is ready; 1 when it "
        "failed or at the timeout. With a timeout the mount itself may come later, too. It does not start a "
        "pull: see "
        "'wsync pull'.",
    .examples =
        "wsync wait actor 42 --state active --timeout 60\nwsync wait actor 42 --loaded all --timeout 120",
    .options = wait_options,
    .min_words = 2,
    .max_words = 2,
    .run = run_wait,
};
