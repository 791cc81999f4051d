/* wsync share: mounts a folder over itself that takes a framework's checkpoints, and publishes each when it is whole. A
 * process of its own does that by `wsync publish`: a file that shrinks under it ends that process alone. */
#include "backends/trainer/api/agent_address.h"
#include "fs/engines/own_folder.h"
#include "fs/written_session.h"
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/systemd.h"
#include "transports/base/name.h"
#include "transports/base/vector.h"
#include "transports/ipc/peer.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_WORDS 32

static const struct cli_option options[] = {
    {"agent", 'a', "SOCKET",
     "the agent's unix socket; default $WSYNC_AGENT, or "
     "unix:" WS_AGENT_SOCKET},
    {"agent-user", 0, "NAME", "let this account serve the socket, too; default $WSYNC_AGENT_USER"},
    {"model", 'm', "NAME", "the model's name"},
    {"pattern", 'p', "PATTERN",
     "what the framework calls the folders: step_{N}, weight_v{N:06d}, {name}-v{N}; {N} is the version's "
     "number, {name} the model's name. Without {N}: one folder, and each time that it is written is the next "
     "version"},
    {"marker", 0, "FILE", "the empty or other file that the framework writes last, as STABLE"},
    {"base", 'b', "DIR", "as of wsync publish"},
    {"base-name", 0, "NAME", "as of wsync publish"},
    {"threads", 't', "N", "copying threads; default: all cores, at most 8", 0, CLI_MAX_THREADS},
    {"timeout", 0, "SECONDS", "longest wait for a free slot; default 60", 0, CLI_MAX_SECONDS},
    {"quiet", 'q', NULL, "print nothing but errors"},
    {0},
};

/* Those that publish has, too. */
static const char *const passed_on[] = {"agent",     "agent-user", "model",  "base",
                                        "base-name", "threads",    "timeout"};
#define N_PASSED_ON (sizeof(passed_on) / sizeof(passed_on[0]))

WS_VECTOR(numbers, uint64_t);

struct share {
    const struct cli_args *args;
    struct ws_pattern pattern;
    char dir[PATH_MAX];
    /* By the session's one publishing call at a time: */
    struct numbers published; /* of the present run, that we know of */
};

extern char **environ;

/* A status of publish. */
static int run_publish(const struct share *s, const char *path, uint64_t number, bool new_run)
{
    char *words[MAX_WORDS], names[N_PASSED_ON][32], version[32];
    sigset_t none;
    posix_spawnattr_t attributes;
    pid_t child;
    int n = 0, status = 0;

    words[n++] = (char *)"wsync";
    words[n++] = (char *)"publish";
    for (size_t i = 0; i < N_PASSED_ON; i++)
        if (cli_get(s->args, passed_on[i])) {
            snprintf(names[i], sizeof(names[i]), "--%s", passed_on[i]);
            words[n++] = names[i];
            words[n++] = (char *)cli_get(s->args, passed_on[i]);
        }
    snprintf(version, sizeof(version), "%" PRIu64, number);
    words[n++] = (char *)"--version";
    words[n++] = version;
    if (new_run)
        words[n++] = (char *)"--new-run";
    if (cli_has(s->args, "quiet"))
        words[n++] = (char *)"--quiet";
    words[n++] = (char *)"--";
    words[n++] = (char *)path;
    words[n] = NULL;
    sigemptyset(&none);
    if (posix_spawnattr_init(&attributes) != 0)
        return CLI_FAILED;
    posix_spawnattr_setsigmask(&attributes, &none); /* what ends us and it together, as ^C, ends it */
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    int rc = posix_spawn(&child, "/proc/self/exe", NULL, &attributes, words, environ);
    posix_spawnattr_destroy(&attributes);
    if (rc != 0) {
        cli_fail("cannot start a process that publishes %s: %s", path, strerror(rc));
        return CLI_FAILED;
    }
    while ((rc = waitpid(child, &status, 0)) < 0 && errno == EINTR)
        ;
    return rc == child && WIFEXITED(status) ? WEXITSTATUS(status) : CLI_FAILED;
}

static bool is_known(const struct share *s, uint64_t number, uint64_t *highest)
{
    bool known = false;

    *highest = 0;
    for (size_t i = 0; i < s->published.len; i++) {
        known |= s->published.ptr[i] == number;
        if (s->published.ptr[i] > *highest)
            *highest = s->published.ptr[i];
    }
    return known;
}

/* A number that is not higher than the newest one: a trainer that resumed from an older step writes it, or it comes late. */
static int publish_lower(struct share *s, const char *path, uint64_t number)
{
    uint64_t highest;

    if (s->published.len && !is_known(s, number, &highest)) {
        cli_fail("version %" PRIu64 " does not follow version %" PRIu64
                 ", and is left out: only a step that was published before opens a new lineage",
                 number, highest);
        return CLI_OK;
    }
    const int code = run_publish(s, path, number, true);
    if (code == CLI_OK)
        numbers_reset(&s->published);
    return code;
}

static int publish(void *arg, const char *name, uint64_t number, const char *path, struct ws_error *err)
{
    struct share *s = arg;
    uint64_t highest;

    if (s->pattern.is_constant) { /* numbered by us, from 1 on in a lineage of our own */
        (void)is_known(s, 0, &highest);
        number = highest + 1;
    }
    int code = run_publish(s, path, number, s->pattern.is_constant && number == 1);
    if (code == CLI_NOT_HIGHER)
        code = publish_lower(s, path, number);
    if (code == CLI_OK && numbers_append(&s->published, number) < 0)
        cli_fail("out of memory: version %" PRIu64 " will not be known if it is written again", number);
    return code == CLI_OK ? 0
                          : ws_error_set(err, EIO, "wsync publish of %s ended with status %d", name, code);
}

static void ready(void *arg)
{
    const struct share *s = arg;

    if (!cli_has(s->args, "quiet"))
        printf("sharing %s: folders called %s are versions of %s\n", s->dir, cli_get(s->args, "pattern"),
               cli_get(s->args, "model"));
    fflush(stdout);
    notify_ready();
}

static int run(const struct cli_args *args)
{
    const char *model = cli_get(args, "model"), *pattern = cli_get(args, "pattern"),
               *marker = cli_get(args, "marker");
    struct share s = {.args = args};
    struct ws_error err = {0};

    if (!model || !pattern)
        return cli_usage("--model and --pattern are needed");
    if (ws_pattern_parse(pattern, model, &s.pattern, &err) < 0)
        return cli_usage("%s", err.text);
    if (marker && !ws_name_is_file(marker))
        return cli_usage("--marker is the name of a file in the folder, not hidden");
    if (ws_own_folder_resolve(cli_word(args, 0), s.dir, &err) < 0)
        return cli_fail("cannot share %s: %s", cli_word(args, 0), err.text);
    signal(SIGPIPE, SIG_IGN);
    cli_allow_descriptors();
    const int rc = ws_written_session_run(&(struct ws_written_session_options){.dir = s.dir,
                                                                               .pattern = &s.pattern,
                                                                               .marker = marker,
                                                                               .publish = publish,
                                                                               .arg = &s,
                                                                               .ready = ready},
                                          &err);
    numbers_reset(&s.published);
    return rc < 0 ? cli_fail("%s", err.text) : CLI_OK;
}

const struct cli_command cmd_share = {
    .name = "share",
    .summary = "publish the checkpoints that a framework writes into a folder",
    .synopsis = "--model NAME --pattern PATTERN [OPTIONS] DIR",
    .description = "For frameworks that hand weights over by a folder, unmodified. DIR, on the trainer's "
                   "node, is mounted over "
                   "itself and takes writes as before. Folders in it whose names match the pattern lie in "
                   "memory, and are "
                   "versions of the model: each is published as by wsync publish when it is whole, before "
                   "the close, rename or "
                   "marker that made it whole returns. Everything else lies where it lay. wsync share runs "
                   "until it is stopped "
                   "or DIR is unmounted (wsync umount DIR); what is in folders of versions is gone then, and "
                   "what was published "
                   "stays published.\n\n"
                   "A folder is whole when no file of it is open for writing, no temporary name (tmp*, "
                   ".tmp*, *.tmp) is left in "
                   "it, all files that its index names are there with whole headers, and the marker is "
                   "there. Without --marker: "
                   "the index, or model.safetensors, or adapter_model.safetensors and adapter_config.json. "
                   "Give the marker where "
                   "the framework writes one. What is not whole is seen by nobody.\n\n"
                   "Files that come later, other times of folders, and removal change nothing of a version. "
                   "Weights that are "
                   "written again are a trainer that resumed from an older step: they open a new lineage, as "
                   "--new-run does. A "
                   "folder whose name has no number is written again for each version. What cannot be "
                   "published now is tried "
                   "again, at most once a minute; the framework is not held up longer than one try takes.\n\n"
                   "A folder may be written under .NAME.tmp, NAME.tmp or .NAME and renamed. One that lies on "
                   "disk cannot be "
                   "renamed to a version's name: EXDEV, as between two disks.",
    .examples = "wsync share --model actor --pattern 'step_{N}' --marker STABLE /run/out/broadcasts\n"
                "wsync share --model actor --pattern 'weight_v{N:06d}' /run/weights\n"
                "wsync share --model actor-lora --pattern 'trl-policy-v{N}' /run/out/.vllm_lora\n"
                "wsync share --model actor-lora --pattern skyrl_lora_sync /tmp",
    .options = options,
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
