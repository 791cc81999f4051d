/* wsync why: the story of one version on one mount. The mount's events say what it did and when; the agent says when it
 * published it (agent/story/story.c), by its own clock, which is compared with this machine's. */
#include "mount-helpers/cli/agents.h"
#include "mount-helpers/cli/json_print.h"
#include "mount-helpers/cli/mounts.h"
#include "mount-helpers/cli/table.h"
#include "transports/base/clock.h"
#include "transports/base/json_text.h"
#include "transports/base/text.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define AGENT_S     5
#define US          1000000.0
#define EVENT_CHARS 32

static const struct cli_option options[] = {
    {"mount", 'd', "DIR", "the mount; default $WSYNC_MOUNT, or the only one on this machine"},
    AGENTS_OPTIONS,
    {"json", 'j', NULL, "print JSON"},
    {0},
};

/* What the time until an event went to. */
static const struct {
    const char *event, *spent;
} phases[] = {
    {"published", "writing and hashing on the trainer"},
    {"known", "hearing of it"},
    {"pulling", "waiting until it was asked for"},
    {"first-byte", "waiting for the first byte"},
    {"verifying", "fetching"},
    {"ready", "checking"},
    {"paused", "waiting for a switch, and pausing"},
    {"loaded", "loading"},
    {"flushed", "flushing caches"},
    {"resumed", "resuming"},
    {"active", "confirming"},
    {"switched", "ending the switch"},
};

static const char *spent_until(const char *event)
{
    for (size_t i = 0; i < sizeof(phases) / sizeof(phases[0]); i++)
        if (strcmp(phases[i].event, event) == 0)
            return phases[i].spent;
    return event; /* a failure, or what a newer mount says */
}

/* Seconds since 1970 of "2026-11-28T17:05:09.118Z"; NAN: it is no time. */
static double time_of(const char *text)
{
    struct tm tm = {0};
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    char *end = NULL;
    const double fraction = rest && *rest == '.' ? strtod(rest, &end) : 0;
    if (!rest || (end && (end == rest || !*end)))
        return NAN;
    return (double)timegm(&tm) + fraction;
}

static void add(json_t *steps, double at, const char *event, const char *what)
{
    json_array_append_new(steps,
                          json_pack("{s:f,s:s,s:o}", "at", at, "step", event, "what", ws_json_text(what)));
}

/* Is the line `TIME EVENT model=M version=N ...`, of that version? *what: behind it. Cuts the line. */
static bool parse(char *line, const char *version, char **event, char **what)
{
    char *save = NULL, *word = strtok_r(line, " ", &save);
    *event = word ? strtok_r(NULL, " ", &save) : NULL;
    word = *event ? strtok_r(NULL, " ", &save) : NULL; /* model= */
    word = word ? strtok_r(NULL, " ", &save) : NULL;
    *what = save ? save : line + strlen(line);
    return word && strncmp(word, "version=", 8) == 0 && strcmp(word + 8, version) == 0;
}

/* The steps since the mount heard of the version last: a new run may have the number again. */
static void read_events(char *text, const char *version, json_t *steps)
{
    char *save = NULL, *event, *what;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        ws_text_clean(line);
        const double at = time_of(line);
        if (isnan(at) || !parse(line, version, &event, &what))
            continue;
        if (strcmp(event, "known") == 0)
            json_array_clear(steps);
        add(steps, at, event, what);
    }
}

/* The number behind ` KEY=` in what an event says; NAN: it does not say. */
static double number_of(const char *what, const char *key)
{
    const char *at = what ? strstr(what, key) : NULL;
    char *end = NULL;
    const double n = at ? strtod(at + strlen(key), &end) : NAN;
    return at && end != at + strlen(key) ? n : NAN;
}

static const char *event_of(const json_t *step)
{
    return json_string_value(json_object_get(step, "step"));
}

/* The event with which a pull ended says when its first byte came and how long none did: that becomes a step of its own behind
 * the one with which it began, and figures. */
static void add_pace(json_t *steps, json_t *out)
{
    size_t i, began = SIZE_MAX;
    const json_t *step;
    double first = NAN, stalls = NAN, stalled = NAN;
    json_array_foreach(steps, i, step)
    {
        const char *event = event_of(step), *what = json_string_value(json_object_get(step, "what"));
        if (strcmp(event, "pulling") == 0)
            began = i;
        else if (strcmp(event, "ready") == 0 || strcmp(event, "active") == 0 ||
                 strcmp(event, "failed") == 0) {
            first = number_of(what, " first=");
            stalls = number_of(what, " stalls=");
            stalled = number_of(what, " stalled=");
        }
        if (!isnan(first))
            break;
    }
    if (isnan(first) || isnan(stalls) || isnan(stalled) || began == SIZE_MAX)
        return;
    const double at = json_real_value(json_object_get(json_array_get(steps, began), "at")) + first;
    json_array_insert_new(
        steps, began + 1,
        json_pack("{s:f,s:s,s:s}", "at", at, "step", "first-byte", "what", "of the weights"));
    json_object_set_new(out, "stalls", json_integer((json_int_t)stalls));
    json_object_set_new(out, "stalled_seconds", json_real(stalled));
}

/* The lineage that the mount named when it heard of it; "": not said. */
static void run_of(const json_t *steps, char out[WS_LINEAGE_CHARS + 1])
{
    const char *what = json_string_value(json_object_get(json_array_get(steps, 0), "what"));
    const char *run = what ? strstr(what, "run=") : NULL;
    snprintf(out, WS_LINEAGE_CHARS + 1, "%.*s", run ? (int)strcspn(run + 4, " ") : 0, run ? run + 4 : "");
}

/* The first source of the mount that may be an agent; NULL: there is none. To be freed. */
static char *agent_of(const char *mount)
{
    char *status = mounts_read("%s/status", mount), *save = NULL, *url = NULL;
    for (char *line = status ? strtok_r(status, "\n", &save) : NULL; line && !url;
         line = strtok_r(NULL, "\n", &save))
        if (strncmp(line, "source http", 11) == 0 || strncmp(line, "source unix:", 12) == 0)
            url = strndup(line + 7, strcspn(line + 7, " "));
    free(status);
    return url;
}

/* Puts what the agent says before the mount's steps, by this machine's clock. */
static void ask_agent(const struct cli_args *args, const char *mount, json_t *steps, json_t *out)
{
    char path[WS_API_PATH_BYTES + WS_LINEAGE_CHARS + 8], verb[64], run[WS_LINEAGE_CHARS + 1];
    char *found = cli_has(args, "agent") ? NULL : agent_of(mount);
    const char *url = cli_has(args, "agent") ? cli_get(args, "agent") : found;
    struct ws_error err = {.text = "the mount names no agent; --agent URL does"};
    json_t *reply = NULL, *published = NULL;
    if (url) {
        struct ws_source *agent = agents_open_at(args, url, AGENT_S);
        snprintf(verb, sizeof(verb), "%.32s/story", cli_word(args, 1));
        ws_api_model_path(path, verb, cli_word(args, 0));
        run_of(steps, run);
        if (run[0])
            snprintf(path + strlen(path), sizeof(path) - strlen(path), "?run=%s", run);
        const double before = (double)ws_clock_day_ns() / 1e9;
        const int rc = agents_call(agent, "GET", path, NULL, &reply, &err);
        const double after = (double)ws_clock_day_ns() / 1e9;
        published = rc == 0 ? json_object_get(reply, "published_us") : NULL;
        if (json_is_integer(published) && json_is_integer(json_object_get(reply, "now_us"))) {
            const double offset =
                (double)json_integer_value(json_object_get(reply, "now_us")) / US - (before + after) / 2;
            const json_t *begun = json_object_get(reply, "begun_us"),
                         *delta = json_object_get(reply, "delta_us");
            json_array_insert_new(steps, 0,
                                  json_pack("{s:f,s:s,s:s}", "at",
                                            (double)json_integer_value(published) / US - offset, "step",
                                            "published", "what", "by the agent's clock"));
            if (json_is_integer(begun))
                json_array_insert_new(steps, 0,
                                      json_pack("{s:f,s:s,s:s}", "at",
                                                (double)json_integer_value(begun) / US - offset, "step",
                                                "begun", "what", "a rank began to write it"));
            if (json_is_integer(delta))
                json_object_set_new(
                    out, "delta_seconds",
                    json_real((double)(json_integer_value(delta) - json_integer_value(published)) / US));
            json_object_set_new(out, "clock_offset", json_real(offset));
            json_object_set_new(out, "clock_error", json_real((after - before) / 2));
        } else if (rc == 0) {
            snprintf(err.text, sizeof(err.text), "%.200s answered without the times", url);
        }
        ws_source_close(agent);
    }
    json_object_set_new(out, "agent_error",
                        json_is_integer(published) ? json_null() : ws_json_text(err.text));
    json_decref(reply);
    free(found);
}

/* Gives each step the time since the one before it, which is never below 0: the order is that of causes, and clocks may
 * be less exact than that. Says which took longest. */
static void reckon(json_t *steps, json_t *out)
{
    const char *most = NULL;
    double longest = 0, total = 0, last = 0;
    size_t i;
    json_t *step;
    json_array_foreach(steps, i, step)
    {
        const double at = json_real_value(json_object_get(step, "at"));
        const char *spent = spent_until(json_string_value(json_object_get(step, "step")));
        const double took = i > 0 && at > last ? at - last : 0;
        last = i > 0 && at < last ? last : at;
        total += took;
        json_object_set_new(step, "seconds", json_real(took));
        if (i > 0)
            json_object_set_new(step, "spent", json_string(spent));
        if (took > longest) {
            longest = took;
            most = spent;
        }
    }
    json_object_set_new(out, "seconds", json_real(total));
    json_object_set_new(out, "most", ws_json_text(most));
    json_object_set_new(out, "most_seconds", json_real(longest));
}

static void print(const json_t *out)
{
    static const struct table_column columns[] = {
        {"TIME (UTC)", false, false}, {"TOOK", true, false}, {"STEP", false, false}, {"WHAT", false, false}};
    struct table *t = table_new(columns, 4, 0);
    const json_t *step, *offset = json_object_get(out, "clock_offset");
    const char *silent = json_string_value(json_object_get(out, "agent_error"));
    size_t i;
    json_array_foreach(json_object_get(out, "steps"), i, step)
    {
        const double at = json_real_value(json_object_get(step, "at"));
        const time_t second = (time_t)at;
        struct tm tm;
        char day[32], clock[40];
        (void)gmtime_r(&second, &tm);
        strftime(day, sizeof(day), "%F %T", &tm);
        snprintf(clock, sizeof(clock), "%s.%03d", day, (int)((at - (double)second) * 1000));
        table_row(t, (const char *const[]){
                         clock, i ? cli_time(json_real_value(json_object_get(step, "seconds"))) : "",
                         json_string_value(json_object_get(step, "step")),
                         json_string_value(json_object_get(step, "what"))});
    }
    table_print(t);
    if (silent)
        printf("published: not said: %s\n", silent);
    if (offset)
        printf("the agent's clock is %.3f s %s this machine's, within %.3f s\n",
               fabs(json_real_value(offset)), json_real_value(offset) < 0 ? "behind" : "before",
               json_real_value(json_object_get(out, "clock_error")));
    if (json_object_get(out, "delta_seconds"))
        printf("the delta to it was made %.3f s after it was published\n",
               json_real_value(json_object_get(out, "delta_seconds")));
    if (json_integer_value(json_object_get(out, "stalls")) > 0)
        printf("no byte came for a second or more: %d times, %s in all\n",
               (int)json_integer_value(json_object_get(out, "stalls")),
               cli_time(json_real_value(json_object_get(out, "stalled_seconds"))));
    if (json_is_string(json_object_get(out, "most")))
        printf("most of the time: %s, %s", json_string_value(json_object_get(out, "most")),
               cli_time(json_real_value(json_object_get(out, "most_seconds"))));
    else
        printf("most of the time: nothing took any");
    printf(" of %s\n", cli_time(json_real_value(json_object_get(out, "seconds"))));
}

static int run(const struct cli_args *args)
{
    const char *model = cli_word(args, 0), *version = cli_word(args, 1);
    uint64_t number;
    if (ws_text_u64(version, &number) < 0)
        return cli_usage("'%s' is no version: that is a number", version);
    const char *mount = cli_word(args, 2) ? mounts_at(cli_word(args, 2)) : mounts_pick(args);
    char *text = mounts_read("%s/%s/events", mount, model);
    if (!text)
        return cli_fail("cannot read %s/%s/events: %s%s", mount, model, strerror(errno), mounts_hint(errno));
    json_t *steps = json_array(), *out = json_object();
    read_events(text, version, steps);
    free(text);
    if (json_array_size(steps) == 0) {
        json_decref(steps);
        json_decref(out);
        return cli_fail(
            "%s has no event of %s/%s: it has not heard of it, or it was started anew or kept 1 MiB of "
            "events since; 'wsync status %s' has what is there",
            mount, model, version, mount);
    }
    json_object_set_new(out, "mount", ws_json_text(mount));
    json_object_set_new(out, "model", ws_json_text(model));
    json_object_set_new(out, "version", json_integer((json_int_t)number));
    add_pace(steps, out);
    ask_agent(args, mount, steps, out);
    reckon(steps, out);
    json_object_set_new(out, "steps", steps);
    if (cli_has(args, "json"))
        return json_print(out); /* takes it */
    print(out);
    json_decref(out);
    return CLI_OK;
}

const struct cli_command cmd_why = {
    .name = "why",
    .summary = "tell the story of one version on a mount, and where its time went",
    .synopsis = "[OPTIONS] MODEL VERSION [MOUNT]",
    .description =
        "Prints what happened to the version on this machine's mount, in order: heard of, "
        "fetched from the first byte on, checked, and by "
        "engine paused, loaded, resumed, or why it failed. Before that, if the mount's agent says "
        "so, when ranks "
        "began to write it and when it was published. TOOK is the time since the line before. The "
        "last line says "
        "what most of the time went to; before it, how often no byte came for a second or more while the "
        "version was fetched, if that was so.\n\n"
        "The agent's times are put on this machine's clock by the offset that is measured now; a "
        "line says how "
        "large it is. The agent is the mount's first source unless --agent names another; it has "
        "5 s to answer, "
        "and where it does not, or is of 0.1, a line says why its times are missing. The mount "
        "keeps 1 MiB of "
        "events of a model, the agent the times of 64 versions.",
    .examples = "wsync why actor 42\nwsync why actor 42 /wsync\nwsync why --json actor 42 | jq -r .most",
    .options = options,
    .min_words = 2,
    .max_words = 3,
    .run = run,
};
