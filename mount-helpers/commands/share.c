/* wsync share: the folder that a framework writes its checkpoints into, each a version when it is whole. A process of its own
 * does what `wsync publish` does, so that what goes wrong there ends that, and the framework's files stay. */
#include "backends/trainer/api/agent_address.h"
#include "fs/written/written.h"
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/systemd.h"
#include "mount-helpers/commands/retirement.h"
#include "transports/base/name.h"
#include "transports/base/vector.h"
#include "transports/ipc/peer.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_WORDS    32
#define FOLDER_FD    3
#define FOLDER_THERE "/proc/self/fd/3/."

static const struct cli_option options[] = {
    {"agent", 'a', "SOCKET",
     "the agent's unix socket; default $WSYNC_AGENT, or "
     "unix:" WS_AGENT_SOCKET},
    {"agent-user", 0, "NAME", "let this account serve the socket, too; default $WSYNC_AGENT_USER"},
    {"model", 'm', "NAME", "the model's name"},
    {"pattern", 'p', "PATTERN",
     "what the framework calls the folders: step_{N}, weight_v{N:06d}, {name}-v{N}; {N} is the version's "
     "number, {name} the model's name; without {N} one folder that is written again for each version"},
    {"marker", 0, "FILE", "the empty or other file that the framework writes last, as STABLE"},
    {"base", 'b', "DIR", "as of wsync publish"},
    {"base-name", 0, "NAME", "as of wsync publish"},
    {"rank", 0, "K",
     "of a framework on several nodes, each with a wsync share: this one is the K-th; 0 is where the marker "
     "or "
     "index is written",
     0, WS_MAX_RANKS - 1},
    {"world", 0, "N", "so many nodes have one; a version is announced when all have published", 1,
     WS_MAX_RANKS},
    {"new-run", 0, NULL,
     "of several nodes: the first version opens a new lineage; given where a job starts, on all of them"},
    {"threads", 't', "N", "copying threads; default: all cores, at most 8", 0, CLI_MAX_THREADS},
    {"timeout", 0, "SECONDS", "longest wait for a free slot; default 60", 0, CLI_MAX_SECONDS},
    {"allow-other", 0, NULL, "other accounts may use DIR, as its modes say; always of root's"},
    {"quiet", 'q', NULL, "print nothing but errors"},
    {0},
};

/* Those that publish has, too. */
static const char *const passed_on[] = {"agent", "agent-user", "model",   "base",   "base-name",
                                        "rank",  "world",      "threads", "timeout"};
#define N_PASSED_ON (sizeof(passed_on) / sizeof(passed_on[0]))

WS_VECTOR(numbers, uint64_t);

struct share {
    const struct cli_args *args;
    struct retirement *retirement;
    struct numbers published; /* of the present lineage, that we know of */
    pthread_mutex_t lock;     /* of these */
    pid_t child;              /* 0: none */
    bool stopped;
};

static enum ws_commit_part part_of(const struct cli_args *args)
{
    if (cli_u64(args, "world", 1) == 1)
        return WS_COMMIT_WHOLE;
    return cli_u64(args, "rank", 0) == 0 ? WS_COMMIT_FIRST : WS_COMMIT_OTHER;
}

/* In the child, between fork and exec. */
static void become_publish(pid_t parent, int folder, char **words)
{
    sigset_t none;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(CLI_FAILED);
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (folder == FOLDER_FD ? fcntl(folder, F_SETFD, 0) < 0 : dup2(folder, FOLDER_FD) < 0)
        _exit(CLI_FAILED);
    execv("/proc/self/exe", words);
    _exit(CLI_FAILED);
}

/* A status of publish. */
static int run_publish(struct share *s, int folder, const char *name, char **words)
{
    const pid_t parent = getpid();
    int status = 0;
    pid_t ended;

    pthread_mutex_lock(&s->lock);
    const pid_t child = s->stopped ? 0 : fork();
    if (child == 0 && !s->stopped)
        become_publish(parent, folder, words);
    const bool stopped = s->stopped;
    s->child = child > 0 ? child : 0;
    pthread_mutex_unlock(&s->lock);
    if (child < 0)
        return cli_fail("cannot start a process that publishes %s: %s", name, strerror(errno));
    if (stopped)
        return CLI_FAILED;
    siginfo_t info;
    while (waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR)
        ;
    pthread_mutex_lock(&s->lock); /* its number is nobody else's until it is reaped */
    s->child = 0;
    ended = waitpid(child, &status, 0);
    pthread_mutex_unlock(&s->lock);
    return ended == child && WIFEXITED(status) ? WEXITSTATUS(status) : CLI_FAILED;
}

static int publish_as(struct share *s, int folder, const char *name, uint64_t number, bool new_run)
{
    char *words[MAX_WORDS], names[N_PASSED_ON][32], version[32];
    int n = 0;

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
    words[n++] = (char *)FOLDER_THERE;
    words[n] = NULL;
    return run_publish(s, folder, name, words);
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

static enum ws_written_outcome record(struct share *s, int code, struct ws_version_id *id, bool new_run)
{
    const uint64_t number = id->version;

    if (code != CLI_OK)
        return WS_WRITTEN_FAILED;
    retirement_ask_run(s->retirement, id->lineage);
    if (new_run)
        numbers_reset(&s->published);
    if (numbers_append(&s->published, number) < 0)
        cli_fail("out of memory: version %" PRIu64 " will not be known if it is written again", number);
    return WS_WRITTEN_PUBLISHED;
}

/* A step that was there and is written again is a trainer that resumed from an older one. */
static enum ws_written_outcome publish_whole(struct share *s, int folder, const char *name,
                                             struct ws_version_id *id)
{
    const uint64_t number = id->version;
    uint64_t highest;
    const int code = publish_as(s, folder, name, number, false);

    if (code != CLI_NOT_HIGHER)
        return record(s, code, id, false);
    if (s->published.len && !is_known(s, number, &highest)) {
        cli_fail("version %" PRIu64 " does not follow version %" PRIu64
                 ", and is left out: only a step that was published before opens a new lineage",
                 number, highest);
        return WS_WRITTEN_LEFT_OUT;
    }
    return record(s, publish_as(s, folder, name, number, true), id, true);
}

/* All nodes say the same of the lineage, before they hear of each other: by what each has published. */
static enum ws_written_outcome publish_part(struct share *s, int folder, const char *name,
                                            struct ws_version_id *id)
{
    const uint64_t number = id->version;
    uint64_t highest;
    const bool new_run =
        is_known(s, number, &highest) || (s->published.len == 0 && cli_has(s->args, "new-run"));
    const int code = publish_as(s, folder, name, number, new_run);

    if (code != CLI_NOT_HIGHER)
        return record(s, code, id, new_run);
    cli_fail("version %" PRIu64 " is left out: if the trainer resumed from an older step, start wsync share "
             "with --new-run on all nodes",
             number);
    return WS_WRITTEN_LEFT_OUT;
}

static enum ws_written_outcome publish(void *arg, int folder, const char *name, struct ws_version_id *id)
{
    struct share *s = arg;

    return (part_of(s->args) == WS_COMMIT_WHOLE ? publish_whole : publish_part)(s, folder, name, id);
}

static void retire(void *arg, const struct ws_version_id *id)
{
    retirement_add(((struct share *)arg)->retirement, id);
}

static void ready(void *arg)
{
    const struct share *s = arg;

    if (!cli_has(s->args, "quiet")) {
        printf("sharing %s: folders called %s are versions of %s\n", cli_word(s->args, 0),
               cli_get(s->args, "pattern"), cli_get(s->args, "model"));
        fflush(stdout);
    }
    notify_ready();
}

/* The agent abandons what it had begun. */
static void end_child(struct share *s, bool for_good)
{
    pthread_mutex_lock(&s->lock);
    s->stopped |= for_good;
    if (s->child)
        (void)kill(s->child, SIGTERM);
    pthread_mutex_unlock(&s->lock);
}

static void give_way(void *arg)
{
    end_child(arg, false);
}

static void stop(void *arg)
{
    end_child(arg, true);
}

static int run(const struct cli_args *args)
{
    const char *model = cli_get(args, "model"), *text = cli_get(args, "pattern");
    struct share s = {.args = args, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct ws_pattern pattern;
    struct ws_error err;

    if (!model || !text)
        return cli_usage("--model and --pattern are needed");
    if (ws_pattern_parse(text, model, &pattern, &err) < 0)
        return cli_usage("%s", err.text);
    const struct ws_written_options written = {
        .at = cli_word(args, 0),
        .marker = cli_get(args, "marker"),
        .pattern = &pattern,
        .part = part_of(args),
        .publish = publish,
        .retire = retire,
        .give_way = give_way,
        .ready = ready,
        .stop = stop,
        .arg = &s,
        .allow_other = geteuid() == 0 || cli_has(args, "allow-other"),
    };
    if (cli_u64(args, "rank", 0) >= cli_u64(args, "world", 1))
        return cli_usage("--rank is lower than --world, from 0");
    if (written.part != WS_COMMIT_WHOLE && pattern.is_constant)
        return cli_usage(
            "several nodes need {N} in --pattern: without it each would number its versions by its "
            "own clock");
    if (written.marker && !ws_name_is_file(written.marker))
        return cli_usage("--marker is the name of a file in the folder, not hidden");
    signal(SIGPIPE, SIG_IGN);
    cli_allow_descriptors();
    int rc = retirement_new(&s.retirement, args, model, &err);
    if (rc == 0)
        rc = ws_written_run(&written, &err);
    retirement_free(s.retirement);
    numbers_reset(&s.published);
    return rc < 0 ? cli_fail("%s", err.text) : CLI_OK;
}

const struct cli_command cmd_share = {
    .name = "share",
    .summary = "publish the checkpoints that a framework writes into a folder",
    .synopsis = "--model NAME --pattern PATTERN [OPTIONS] DIR",
    .description =
        "For frameworks that hand weights over by a folder, unmodified. It mounts itself over DIR, on the "
        "trainer's node, and runs until it is stopped or DIR is unmounted. Folders in DIR whose names match "
        "the pattern are versions of the model: each is published as by wsync publish, once, when it is "
        "whole, and by one copy. All else in DIR is that of the folder below.\n\n"
        "A version's files lie in memory that ends with wsync share, and are written at its speed (with "
        "CAP_SYS_ADMIN, and from Linux 6.9 on; else they are written into DIR). They take the agent's room "
        "and as much again, until the framework deletes its folder, and half of this node's memory at most. "
        "Everybody may read them, whatever modes "
        "the framework gave.\n\n"
        "A folder is whole when nobody has a file in it open or mapped for writing, no temporary name (tmp*, "
        ".tmp*, "
        "*.tmp) is left, all files that its index names are there with whole headers, and the marker is "
        "there. Without --marker: the index, or model.safetensors, or adapter_model.safetensors and "
        "adapter_config.json. Give the marker where the framework writes one, or the file that it writes "
        "last where some come after the "
        "weights. What is not whole is seen by "
        "nobody, and is gone if wsync share is killed. The close, rename or removal that makes a folder "
        "whole "
        "returns once the version is announced, or could not be published for now. A close returns before "
        "where another "
        "process may have the file open, too, as one that was forked, or where that cannot be told. A "
        "mapping that its writer keeps after the close is waited for; where the kernel cannot tell of one (a "
        "file "
        "system without leases below, or a file that somebody reads just then) the version may be what was "
        "there in "
        "between. Who "
        "writes into a folder that is being published "
        "waits "
        "until it is. Files that come later and other times change nothing of a version. A folder that is "
        "removed, or called "
        "something else, is hidden by the mounts of all nodes, too, which keep what is mapped, what their "
        "engines serve "
        "and what the next version comes as a delta on.\n\n"
        "A number that was published and is written again, weights and marker or adapter_config.json, is a "
        "trainer that resumed from an older step: it opens a new lineage, as --new-run does. Without {N} in "
        "the pattern it is the next version, whose number is the time in milliseconds. What cannot be "
        "published now is tried again, at most once a minute. What was in DIR before is left alone.\n\n"
        "Several nodes that write one version, each some of its files (model-00001-of-00004.safetensors "
        "...), run a "
        "wsync share each, over a folder of its own and to its own agent (A TRAINER THAT SPANS NODES in "
        "wsync-trainer(7)), with --world and --rank. Rank 0 is the node where the marker or the index is "
        "written, when "
        "all nodes have written: its call waits for all of them, and nobody else's does. A file that two "
        "nodes have must "
        "be the same on both, or the version is refused and both are named. Each node has a file of each "
        "version at least. "
        "A step that is written again is written on all nodes again; where all were started anew, --new-run "
        "says so.",
    .examples = "wsync share --model actor --pattern 'step_{N}' --marker STABLE /run/job/broadcasts\n"
                "wsync share --model actor --pattern 'weight_v{N:06d}' /dev/shm/weights\n"
                "wsync share --model actor-lora --pattern lora_sync /tmp/skyrl",
    .options = options,
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
