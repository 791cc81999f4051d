/* wsync release: a fleet of mounts to a version, in two phases; the agent coordinates them
 * (backends/trainer/agent/fleet/release.h). */
#include "mount-helpers/cli/agents.h"
#include "mount-helpers/commands/release_services.h"
#include "transports/base/jansson_keys.h"
#include "transports/base/limits.h"
#include "transports/base/text.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct cli_option options[] = {
    AGENTS_OPTIONS,
    {"wait", 'w', "SECONDS",
     "wait until every mount serves it, and end the release if not all have prepared it by then; without it "
     "the command returns at once, and mounts have 600 s to prepare",
     1, CLI_MAX_SECONDS},
    {"min-engines", 0, "N",
     "commit only where so many engines are at the mounts that have prepared it, and fail where fewer serve "
     "it "
     "at the end",
     1, 1000000},
    {"quorum", 0, "PERCENT",
     "commit when that share of the fleet's engines (of its mounts, where there is no engine) has prepared "
     "it "
     "and all others have failed or had their time: these are named, kept from serving and brought along; as "
     "98%"},
    {"astraflow-notify", 0, "URL",
     "then tell AstraFlow's inference service (RaaS) at this address, and wait until its engine has loaded "
     "the "
     "version; may be given several times"},
    {"astraflow-sender", 0, "[MODEL=]HOST:PORT",
     "where those services reach this agent's --astraflow; with several models once for each"},
    {"astraflow-model-id", 0, "[MODEL=]ID",
     "what those services call the model; default 'default', of several models MODEL"},
    {"quiet", 'q', NULL, "print nothing but errors"},
    {0},
};

#define AGENT_S 5

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* Mounts, each once, that are in that state (NULL: in any) with one of the models, for which they have so
 * many engines at least. */
static size_t count(const json_t *release, const char *state, json_int_t engines)
{
    const json_t *mounts = json_object_get(release, "mounts"), *mount;
    json_t *seen = json_object();
    size_t i, n;
    json_array_foreach(mounts, i, mount)
    {
        if ((!state || strcmp(text_of(mount, "state"), state) == 0) &&
            json_integer_value(json_object_get(mount, "engines")) >= engines)
            json_object_set_new(seen, text_of(mount, "mount"), json_true());
    }
    n = json_object_size(seen);
    json_decref(seen);
    return n;
}

/* Engines, or those that serve it (key), at mounts that have loaded it. */
static uint64_t count_engines(const json_t *release, const char *key)
{
    const json_t *mount;
    uint64_t n = 0;
    size_t i;
    json_array_foreach(json_object_get(release, "mounts"), i, mount)
    {
        if (strcmp(text_of(mount, "state"), "loaded") == 0)
            n += (uint64_t)json_integer_value(json_object_get(mount, key));
    }
    return n;
}

/* An agent before 0.2 does not say how many serve. */
static uint64_t count_serving(const json_t *release)
{
    const json_t *first = json_array_get(json_object_get(release, "mounts"), 0);
    return count_engines(release, json_object_get(first, "serving") ? "serving" : "engines");
}

static bool is_quarantined(const json_t *mount)
{
    return json_is_true(json_object_get(mount, "quarantined")) &&
           strcmp(text_of(mount, "state"), "loaded") != 0;
}

static void name_quarantined(const json_t *release)
{
    const json_t *mount;
    size_t i, n = 0;
    json_array_foreach(json_object_get(release, "mounts"), i, mount)
    {
        if (!is_quarantined(mount))
            continue;
        if (n++ == 0)
            fprintf(stderr, "in quarantine, kept from serving what is older and brought along:\n");
        fprintf(stderr, "  %s%s%s (%s): %s%s%s\n", text_of(mount, "mount"),
                *text_of(mount, "identity") ? ", identity " : "", text_of(mount, "identity"),
                text_of(mount, "model"), text_of(mount, "state"), *text_of(mount, "error") ? ": " : "",
                text_of(mount, "error"));
    }
}

/* One line for each mount in that state, and why; quarantined ones have their own. */
static void name_mounts(const json_t *release, const char *state, const char *said)
{
    const json_t *mount;
    size_t i;
    json_array_foreach(json_object_get(release, "mounts"), i, mount)
    {
        if (strcmp(text_of(mount, "state"), state) == 0 && !is_quarantined(mount))
            fprintf(stderr, "  %s (%s): %s%s%s\n", text_of(mount, "mount"), text_of(mount, "model"), said,
                    *text_of(mount, "error") ? ": " : "", text_of(mount, "error"));
    }
}

static void name_those_behind(const json_t *release)
{
    name_mounts(release, "waiting", "has not prepared it");
    name_mounts(release, "prepared", "has prepared it and does not serve it yet");
    name_mounts(release, "failed", "could not load it");
    name_mounts(release, "silent", "is not heard of; it catches up when it is back");
}

static void show_progress(const json_t *release, char shown[256])
{
    char line[256];
    bool preparing = strcmp(text_of(release, "phase"), "preparing") == 0;
    size_t all = count(release, NULL, 0), silent = count(release, "silent", 0);
    snprintf(line, sizeof line, "%s: %zu of %zu mounts%s", text_of(release, "phase"),
             count(release, "loaded", 0) + (preparing ? count(release, "prepared", 0) : 0), all - silent,
             silent ? ", some are silent" : "");
    if (strcmp(line, shown) != 0)
        fprintf(stderr, "%s\n", line);
    memcpy(shown, line, sizeof line);
}

/* A mount without engines serves nothing: who opens `current` there reads the version. */
static void tell_success(const json_t *release, double start)
{
    size_t all = count(release, "loaded", 0), serve = count(release, "loaded", 1);
    const uint64_t engines = count_serving(release);
    if (serve > 0)
        printf("released: %zu mount%s, %" PRIu64 " engine%s serve%s it after %s\n", serve,
               serve == 1 ? "" : "s", engines, engines == 1 ? "" : "s", engines == 1 ? "s" : "",
               cli_time(cli_now() - start));
    if (serve == 0)
        printf("released: %zu mount%s it after %s; no engine is attached\n", all,
               all == 1 ? " has" : "s have", cli_time(cli_now() - start));
    else if (serve < all)
        printf("%zu more ha%s it, and no engine attached\n", all - serve, all - serve == 1 ? "s" : "ve");
}

/* Mounts that failed after they had prepared it. */
static size_t count_failed(const json_t *release)
{
    const json_t *mount;
    size_t i, n = 0;
    json_array_foreach(json_object_get(release, "mounts"), i, mount)
    {
        n += strcmp(text_of(mount, "state"), "failed") == 0 && !is_quarantined(mount);
    }
    return n;
}

struct wish {
    bool quiet, alone; /* alone: AstraFlow's services take part, too, and no mount has to */
    uint64_t min_engines;
    double quorum; /* percent; 0: all */
};

/* Engines may have failed since it was committed. Of the engines, or of the mounts where there is no engine. */
static bool has_quorum(const json_t *release, double percent)
{
    const json_t *mount;
    uint64_t engines = 0;
    size_t i;
    json_array_foreach(json_object_get(release, "mounts"), i, mount)
    {
        engines += (uint64_t)json_integer_value(json_object_get(mount, "engines"));
    }
    if (engines)
        return (double)count_serving(release) * 100 >= percent * (double)engines - 1e-9;
    return (double)count(release, "loaded", 0) * 100 >= percent * (double)count(release, NULL, 0) - 1e-9;
}

/* The final message. */
static int conclude(const json_t *release, bool passed_time, double start, const struct wish *w)
{
    const char *phase = text_of(release, "phase");
    size_t loaded = count(release, "loaded", 0), failed = count_failed(release);
    const bool quiet = w->quiet, alone = w->alone;
    if (strcmp(phase, "aborted") == 0)
        return cli_fail("the release was aborted, every mount goes on as it was: %s",
                        text_of(release, "why"));
    if (passed_time) {
        int rc = cli_fail("the time is over; the release is %s, and these are behind:", phase);
        name_those_behind(release);
        return rc;
    }
    if (json_is_true(json_object_get(release, "passed")))
        return cli_fail("a newer release was committed before every mount served this one");
    if (failed) {
        int rc = cli_fail("%zu mounts serve it, %zu could not load it and serve what they did before:",
                          count(release, "loaded", 1), failed);
        name_those_behind(release);
        return rc;
    }
    if (loaded == 0 && alone)
        return CLI_OK;
    if (loaded == 0) {
        int rc = cli_fail(
            "no mount serves it: none that follows releases is heard of; those that come later catch up");
        name_those_behind(release);
        return rc;
    }
    if (!quiet)
        tell_success(release, start);
    if (count(release, "silent", 0)) {
        fprintf(stderr, "left out:\n");
        name_those_behind(release);
    }
    name_quarantined(release);
    if (!has_quorum(release, w->quorum))
        return cli_fail("fewer serve it than --quorum asks for");
    if (count_serving(release) < w->min_engines)
        return cli_fail("%" PRIu64 " engines serve it, and %" PRIu64 " are asked for (--min-engines)",
                        count_serving(release), w->min_engines);
    return CLI_OK;
}

static int ask(struct ws_source *s, const char *method, const char *path, const json_t *body, json_t **reply)
{
    struct ws_error err;
    int rc = agents_call(s, method, path, body, reply, &err);
    if (rc < 0)
        cli_fail("%s", err.text);
    return rc;
}

static int wait_for(struct ws_source *s, json_t *release, uint64_t seconds, double start,
                    const struct wish *w)
{
    char path[128], shown[256] = "";
    json_int_t id = json_integer_value(json_object_get(release, "id"));
    bool in_time = true;
    while (!json_is_true(json_object_get(release, "settled")) && in_time) {
        bool preparing = strcmp(text_of(release, "phase"), "preparing") == 0;
        /* the agent itself reports a release that is not ready by then */
        in_time = agents_sleep(start, preparing ? seconds + AGENT_S : seconds);
        bool end = interrupted;
        json_t *now = NULL;
        snprintf(path, sizeof path, "/v1/releases/%" JSON_INTEGER_FORMAT "%s", id, end ? "/abort" : "");
        int rc = end && !preparing ? cli_fail("interrupted; the release is committed and goes on")
                                   : ask(s, end ? "POST" : "GET", path, NULL, &now);
        if (rc == 0) {
            json_decref(release);
            release = now;
            if (!w->quiet)
                show_progress(release, shown);
        } else if (end || !interrupted) { /* else the signal came meanwhile: the agent gets the abort */
            json_decref(release);
            return rc > 0 ? rc
                          : cli_fail("release %" JSON_INTEGER_FORMAT
                                     " goes on without this command, unless the agent has ended",
                                     id);
        }
    }
    int rc = conclude(release, !in_time, start, w);
    json_decref(release);
    return rc;
}

/* MODEL VERSION, or MODEL=VERSION ... */
static int take_models(const struct cli_args *args, json_t *models)
{
    for (size_t i = 0; i < cli_words(args); i++) {
        const char *model = cli_word(args, i), *equals = strrchr(model, '=');
        const char *number = equals ? equals + 1 : cli_words(args) == 2 ? cli_word(args, ++i) : NULL;
        size_t n = equals ? (size_t)(equals - model) : strlen(model);
        uint64_t version;
        if (!number || ws_text_u64(number, &version))
            return cli_usage("write MODEL VERSION, or MODEL=VERSION ..., with versions as numbers");
        if (json_object_getn(models, model, n))
            return cli_usage("%.*s is named twice", (int)n, model);
        json_object_setn_new(models, model, n, json_integer((json_int_t)version));
    }
    return CLI_OK;
}

static int take_terms(const struct cli_args *args, json_t *body)
{
    const char *text = cli_get(args, "quorum");
    char *end = NULL;
    if (cli_has(args, "min-engines"))
        json_object_set_new(body, "min_engines", json_integer((json_int_t)cli_u64(args, "min-engines", 0)));
    if (!text)
        return CLI_OK;
    const double share = strtod(text, &end);
    if (end == text || (*end && strcmp(end, "%") != 0) || !(share >= 0.1 && share <= 100))
        return cli_usage("--quorum: '%s' is no share; write a number of percent from 0.1 to 100, as 98%%",
                         text);
    json_object_set_new(body, "quorum", json_real(share));
    return CLI_OK;
}

/* A release with a quorum waits for those that are never ready, and the others need time to load after that. */
static uint64_t time_to_prepare(uint64_t seconds, bool has_quorum)
{
    return has_quorum && seconds > 1 ? seconds - (seconds + 3) / 4 : seconds;
}

/* An agent that does not answer holds the command up little longer than it was told to wait. */
static unsigned time_to_answer(uint64_t seconds)
{
    if (seconds == 0 || seconds * 1000 >= WS_REPLY_TIMEOUT_MS)
        return 0;
    return seconds > AGENT_S ? (unsigned)seconds : AGENT_S;
}

static int run(const struct cli_args *args)
{
    double start = cli_now();
    uint64_t seconds = cli_u64(args, "wait", 0); /* 0: not given */
    bool quiet = cli_has(args, "quiet");
    struct release_services services;
    json_t *reply, *models = json_object(), *body = json_pack("{s:o}", "models", models);
    int rc = take_models(args, models);
    if (rc == CLI_OK)
        rc = release_services_take(args, models, &services);
    if (rc == CLI_OK)
        rc = take_terms(args, body);
    if (rc != CLI_OK) {
        json_decref(body);
        return rc;
    }
    struct ws_source *s = agents_open(args, time_to_answer(seconds));
    if (services.n && (rc = release_services_check(s, &services)) != CLI_OK) {
        json_decref(body);
        ws_source_close(s);
        return rc;
    }
    if (seconds)
        json_object_set_new(body, "prepare_s",
                            json_integer((json_int_t)time_to_prepare(seconds, cli_has(args, "quorum"))));
    sigaction(SIGINT, &(struct sigaction){.sa_handler = on_interrupt}, NULL);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_interrupt}, NULL);
    rc = ask(s, "POST", "/v1/release", body, &reply) < 0 ? CLI_FAILED : CLI_OK;
    if (rc == CLI_OK && (cli_has(args, "wait") || interrupted)) {
        rc = wait_for(s, reply, seconds, start,
                      &(struct wish){quiet, services.n > 0, cli_u64(args, "min-engines", 0),
                                     json_number_value(json_object_get(body, "quorum"))});
    } else if (rc == CLI_OK) {
        if (!quiet)
            printf("release %" JSON_INTEGER_FORMAT ": %s, %zu mounts\n",
                   json_integer_value(json_object_get(reply, "id")), text_of(reply, "phase"),
                   count(reply, NULL, 0));
        json_decref(reply);
    }
    ws_source_close(s);
    if (rc == CLI_OK && services.n)
        rc = release_services_tell(&services, seconds, start, quiet, &interrupted);
    json_decref(body); /* the model's name is in it */
    return rc;
}

const struct cli_command cmd_release = {
    .name = "release",
    .summary = "switch a fleet of mounts to a version, all or none",
    .synopsis = "[OPTIONS] MODEL VERSION\n[OPTIONS] MODEL=VERSION ...",
    .description =
        "For the trainer's side. Asks the agent for a release in two phases: every mount whose "
        "policy is follow-released asks its "
        "engines whether they are there, fetches, verifies and compares the version, and only "
        "when all of them have done so "
        "each switches its engines. One that cannot, or that is not ready in time, ends the "
        "release for all: every mount goes "
        "on as it was. A mount whose engines fail after that commit goes back to what they "
        "served, is named, and tries again "
        "until it serves what was released. A mount that has not been heard of for 15 seconds is "
        "left out and named; it, and "
        "one that joins late, catches up with what was released last.\n\n"
        "With --quorum the release waits until each mount has answered or three quarters of --wait are over. "
        "If "
        "that share has "
        "prepared it, it is committed; the rest is in quarantine: named, its engines are paused rather than "
        "serve what is older, and it is brought along as soon as it can be.\n\n"
        "A release that is begun before another one has been prepared takes its place. ^C or "
        "SIGTERM ends one that is not committed. "
        "To go back, release the version before. The command fails when no mount has the "
        "version at its end.\n\n"
        "With --astraflow-notify it then tells AstraFlow's services, with --wait once the mounts "
        "serve it: each has its receiver take the newest version from the agent and its engine load "
        "it. They know no two phases: one that fails is named, goes on as it was, and the others "
        "have loaded.",
    .examples = "wsync release actor 42 --wait 60\nwsync release actor 42 --wait 60 --min-engines 16 "
                "--quorum 98%\nwsync release actor=42 critic=17 --agent https://trainer:18861\n"
                "wsync release actor 42 --astraflow-notify http://10.0.0.7:9000 --astraflow-sender "
                "10.0.0.1:18871",
    .options = options,
    .min_words = 1,
    .max_words = WS_MAX_MODELS,
    .run = run,
};
