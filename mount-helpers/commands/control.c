/* wsync load, pull: control files of a mount with progress and with the reason of a failure. */
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/mounts.h"
#include "mount-helpers/cli/progress.h"
#include "transports/base/limits.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POLL_MS 100

static const struct cli_option control_options[] = {
    {"mount", 'd', "DIR", "the mount; default $WSYNC_MOUNT, or the only one on this machine"},
    {"force-layout", 0, NULL, "switch although names, dtypes or shapes differ from what is served"},
    {"async", 0, NULL, "return once it is started"},
    {"quiet", 'q', NULL, "print nothing but errors"},
    {0},
};

/* One write that may take long, on a thread of its own, so that progress can be shown meanwhile. */
struct long_write {
    char path[4096];
    char command[WS_MAX_COMMAND];
    int result;
    atomic_bool done;
};

static void *write_thread(void *arg)
{
    struct long_write *w = arg;
    w->result = mounts_write(w->path, w->command);
    atomic_store(&w->done, true);
    return NULL;
}

static void sleep_ms(unsigned ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000L}, NULL);
}

static uint64_t number_of(const char *text, const char *key)
{
    char *value = text ? mounts_value(text, key) : NULL;
    uint64_t n = value ? strtoull(value, NULL, 10) : 0;
    free(value);
    return n;
}

static void poll_progress(struct progress *p, const char *mount, const char *model, const char *version)
{
    char *text = mounts_read("%s/%s/%s/.wsync/progress", mount, model, version);
    if (text)
        progress_update(p, number_of(text, "have_bytes"), number_of(text, "total_bytes"));
    free(text);
}

/* The sentence that the mount recorded for the failure that a write just reported. */
static int explain(const char *mount, const char *model, const char *command, int code)
{
    char *text = model ? mounts_read("%s/%s/last_error", mount, model) : mounts_read("%s/last_error", mount);
    char *sentence = text ? mounts_value(text, "message") : NULL;
    int rc = cli_fail("'%s' failed: %s%s%s", command, strerror(-code), sentence ? ": " : "",
                      sentence ? sentence : "");
    free(sentence);
    free(text);
    return rc;
}

static int run_long(struct long_write *w, const char *mount, const char *model, const char *version,
                    const char *what)
{
    struct progress progress;
    pthread_t thread;
    progress_start(&progress, what);
    if (pthread_create(&thread, NULL, write_thread, w))
        return cli_fail("cannot start a thread");
    while (!atomic_load(&w->done)) {
        sleep_ms(POLL_MS / 4);
        if (model && version)
            poll_progress(&progress, mount, model, version);
    }
    pthread_join(thread, NULL);
    progress_end(&progress);
    return w->result;
}

static void append_flags(const struct cli_args *args, char *command, size_t cap)
{
    size_t n = strlen(command);
    if (cli_has(args, "force-layout"))
        n += (size_t)snprintf(command + n, cap - n, " force-layout");
    if (cli_has(args, "async"))
        snprintf(command + n, cap - n, " async");
}

static int need_model(const char *mount, const char *model)
{
    char *text = mounts_read("%s/%s/status", mount, model);
    int missing = text ? 0 : errno;
    free(text);
    if (missing && mounts_hint(missing)[0])
        return cli_fail("cannot read %s: %s%s", mount, strerror(missing), mounts_hint(missing));
    if (missing)
        return cli_fail("%s has no model '%s': %s; 'wsync ls' lists what is there", mount, model,
                        strerror(missing));
    return CLI_OK;
}

/* A blank and the word in quotes, as the control files' grammar wants them. */
static size_t append_word(char *out, size_t cap, const char *word)
{
    size_t n = (size_t)snprintf(out, cap, " \"");
    for (; *word && n + 4 < cap; word++) {
        if (*word == '"' || *word == '\\')
            out[n++] = '\\';
        out[n++] = *word;
    }
    return n + (size_t)snprintf(out + n, cap - n, "\"");
}

/* load A=1 B=2 ...: the barrier over models. */
static int run_barrier(const struct cli_args *args, const char *mount)
{
    struct long_write w = {0};
    double start = cli_now();
    size_t n = (size_t)snprintf(w.command, sizeof w.command, "load");
    for (size_t i = 0; i < cli_words(args) && n < sizeof w.command; i++) {
        if (!strchr(cli_word(args, i), '='))
            return cli_usage("'%s' is not MODEL=VERSION", cli_word(args, i));
        n += append_word(w.command + n, sizeof w.command - n, cli_word(args, i));
    }
    if (n >= sizeof w.command - 32)
        return cli_usage("too many models for one command");
    append_flags(args, w.command, sizeof w.command);
    snprintf(w.path, sizeof w.path, "%s/ctl", mount);
    int rc = run_long(&w, mount, NULL, NULL, cli_has(args, "quiet") ? NULL : w.command);
    if (rc)
        return explain(mount, NULL, w.command, rc);
    if (!cli_has(args, "quiet"))
        printf("%s%s in %s\n", w.command, cli_has(args, "async") ? ": started" : ": done",
               cli_time(cli_now() - start));
    return CLI_OK;
}

static int run_verb(const struct cli_args *args, const char *verb, const char *done)
{
    const char *mount = mounts_pick(args), *model = cli_word(args, 0), *version = cli_word(args, 1);
    struct long_write w = {0};
    char what[2 * WS_MAX_NAME + 32];
    double start = cli_now();

    if (need_model(mount, model))
        return CLI_FAILED;
    snprintf(w.path, sizeof w.path, "%s/%s/ctl", mount, model);
    if (strlen(version) > WS_MAX_NAME)
        return cli_usage("'%s' is no version", version);
    size_t n = (size_t)snprintf(w.command, sizeof w.command, "%s", verb);
    append_word(w.command + n, sizeof w.command - n, version); /* one word, whatever is in it */
    append_flags(args, w.command, sizeof w.command);
    snprintf(what, sizeof what, "%s %s/%s", verb, model, version);
    int rc = run_long(&w, mount, model, version, cli_has(args, "quiet") ? NULL : what);
    if (rc)
        return explain(mount, model, w.command, rc);
    if (!cli_has(args, "quiet"))
        printf("%s/%s: %s in %s\n", model, version, cli_has(args, "async") ? "started" : done,
               cli_time(cli_now() - start));
    return CLI_OK;
}

static int run_load(const struct cli_args *args)
{
    if (strchr(cli_word(args, 0), '='))
        return run_barrier(args, mounts_pick(args));
    if (cli_words(args) != 2)
        return cli_usage("write MODEL VERSION, or MODEL=VERSION ...");
    return run_verb(args, "load", "loaded");
}

static int run_pull(const struct cli_args *args)
{
    return run_verb(args, "pull", "here");
}

const struct cli_command cmd_load = {
    .name = "load",
    .summary = "switch the engines of a model to a version",
    .synopsis = "[OPTIONS] MODEL VERSION|latest|previous\n[OPTIONS] MODEL=VERSION ...",
    .description =
        "Pulls and verifies the version, compares its layout with the one that is served, then pauses "
        "every engine of the model, lets it load from the path, and resumes. When any engine fails all "
        "are brought back to the version before. The second form switches several models together, all "
        "or none. The same as writing to MODEL/version or to ctl, with progress and with the reason "
        "of a failure.",
    .examples = "wsync load actor 42\nwsync load actor previous\nwsync load actor=42 critic=17",
    .options = control_options,
    .min_words = 1,
    .max_words = WS_MAX_MODELS,
    .run = run_load,
};

static const struct cli_option pull_options[] = {
    {"mount", 'd', "DIR", "the mount; default $WSYNC_MOUNT, or the only one on this machine"},
    {"async", 0, NULL, "return once it is started"},
    {"quiet", 'q', NULL, "print nothing but errors"},
    {0},
};

const struct cli_command cmd_pull = {
    .name = "pull",
    .summary = "fetch a version ahead of its use",
    .synopsis = "[OPTIONS] MODEL VERSION|latest",
    .description = "Returns when the version is here, complete and verified. Engines are not told.",
    .examples = "wsync pull actor latest",
    .options = pull_options,
    .min_words = 2,
    .max_words = 2,
    .run = run_pull,
};
