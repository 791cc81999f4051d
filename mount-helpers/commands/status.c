/* wsync status: what a mount serves, as tables or as JSON. Both are made of the same object, which is
 * what the mount's files say (fs/control/status_json.h). */
#include "fs/control/status_json.h"
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/json_print.h"
#include "mount-helpers/cli/mounts.h"
#include "mount-helpers/cli/table.h"
#include "transports/base/json_text.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* --- what the files say --- */

struct reading {
    const char *mount;
    bool is_one; /* the model was named; of all of a list one may be removed meanwhile */
    json_t *models;
};

/* The file of that name of a model, or of the mount (NULL). */
static char *read_file(const char *mount, const char *model, const char *name)
{
    return model ? mounts_read("%s/%s/%s", mount, model, name) : mounts_read("%s/%s", mount, name);
}

static int read_model(void *arg, const char *model)
{
    struct reading *r = arg;
    static const char *const names[] = {"status", "engines", "last_error"};
    char *texts[3] = {NULL}, *history;
    size_t n = 0;
    int code = CLI_OK;
    while (n < 3 && (texts[n] = read_file(r->mount, model, names[n])))
        n++;
    if (n == 3) {
        history = read_file(r->mount, model, "history"); /* which a mount of before 0.2 does not have */
        json_array_append_new(r->models, ws_status_json_model(model, &(struct ws_status_texts){
                                                                         texts[0], texts[1],
                                                                         history ? history : "", texts[2]}));
        free(history);
    } else if ((errno != ENOENT && errno != ESTALE) || r->is_one) {
        code = cli_fail("cannot read %s/%s/%s: %s%s", r->mount, model, names[n], strerror(errno),
                        mounts_hint(errno));
    }
    for (size_t i = 0; i < n; i++)
        free(texts[i]);
    return code;
}

/* NULL: it failed with *code. */
static json_t *read_mount(const char *mount, const char *model, int *code)
{
    struct reading r = {.mount = mount, .is_one = model, .models = json_array()};
    char *text = read_file(mount, NULL, "status"),
         *error = text ? read_file(mount, NULL, "last_error") : NULL;
    json_t *root = error ? ws_status_json_mount(text, error) : NULL;
    *code = !root   ? cli_fail("cannot read %s/%s: %s%s", mount, text ? "last_error" : "status",
                               strerror(errno), mounts_hint(errno))
            : model ? read_model(&r, model)
                    : mounts_each_model(mount, read_model, &r);
    free(text);
    free(error);
    if (*code == CLI_OK) {
        json_object_set_new(root, "mount", ws_json_text(mount));
        json_object_set_new(root, "models", r.models);
        return root;
    }
    json_decref(root);
    json_decref(r.models);
    return NULL;
}

/* --- tables --- */

static const char *text_of(const json_t *o, const char *key, const char *none)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : none;
}

static uint64_t number_of(const json_t *o, const char *key)
{
    const json_int_t n = json_integer_value(json_object_get(o, key));
    return n > 0 ? (uint64_t)n : 0;
}

static double real_of(const json_t *o, const char *key)
{
    return json_real_value(json_object_get(o, key));
}

static bool is_true(const json_t *o, const char *key)
{
    return json_is_true(json_object_get(o, key));
}

/* What went wrong has a line of its own, below the row that it is about. */
static void add_note(struct table *t, const json_t *o, const char *key, const char *name)
{
    const char *text = text_of(o, key, "");
    if (*text)
        table_note(t, "%s: %s", name, text);
}

static void add_source(struct table *t, const json_t *source)
{
    char heard[32] = "never";
    if (real_of(source, "contact") >= 0)
        snprintf(heard, sizeof heard, "%s ago", cli_time(real_of(source, "contact")));
    table_row(t, (const char *[]){text_of(source, "url", "?"), is_true(source, "up") ? "up" : "down",
                                  text_of(source, "transport", NULL), heard});
    add_note(t, source, "error", "error");
}

/* Of the mount, or a model. */
static void print_last_error(const json_t *o, const char *indent)
{
    const json_t *e = json_object_get(o, "last_error");
    if (json_is_object(e))
        printf("%slast error: %s: %s (%s, at %s)\n", indent, text_of(e, "command", "?"),
               text_of(e, "message", "?"), text_of(e, "errno", "?"), text_of(e, "time", "?"));
}

static void print_mount(const json_t *m)
{
    static const struct table_column columns[] = {
        {.name = "SOURCE", .gives_way = true}, {.name = "STATE"}, {.name = "BY"}, {.name = "HEARD OF"}};
    struct table *t = table_new(columns, sizeof columns / sizeof columns[0], 2);
    size_t i;
    const json_t *source;
    printf("%s  %s\n", text_of(m, "mount", "?"), text_of(m, "reads", ""));
    if (*text_of(m, "config_error", ""))
        printf("  config not as it is in the file: %s\n", text_of(m, "config_error", ""));
    print_last_error(m, "  ");
    printf("  cache %s of %s used", cli_size(number_of(m, "used_bytes")),
           cli_size(number_of(m, "cache_bytes")));
    if (number_of(m, "waiting_bytes"))
        printf(", %s still held by readers", cli_size(number_of(m, "waiting_bytes")));
    printf("\n  %s moved, pulls %" PRIu64 ", failed %" PRIu64 ", retries %" PRIu64 ", bad blocks %" PRIu64
           "\n\n",
           cli_size(number_of(m, "moved_bytes")), number_of(m, "pulls"), number_of(m, "pulls_failed"),
           number_of(m, "retries"), number_of(m, "bad_blocks"));
    json_array_foreach(json_object_get(m, "sources"), i, source)
    {
        add_source(t, source);
    }
    table_print(t);
}

static void add_version(struct table *t, const json_t *v, bool more)
{
    const uint64_t bytes = number_of(v, "bytes"), have = number_of(v, "have");
    char sources[24] = "gone", here[16] = "", how[512];
    if (is_true(v, "at_source"))
        snprintf(sources, sizeof sources, "%" PRIu64, number_of(v, "sources"));
    if (bytes)
        snprintf(here, sizeof here, "%.0f %%", 100.0 * (double)have / (double)bytes);
    snprintf(how, sizeof how, "%s%s", text_of(v, "how", "-"), is_true(v, "pinned") ? ", pinned" : "");
    table_row(t, (const char *[]){
                     text_of(v, "name", "?"), text_of(v, "state", "?"), bytes ? cli_size(bytes) : NULL, here,
                     real_of(v, "seconds") > 0 ? cli_time(real_of(v, "seconds")) : NULL, sources, how});
    add_note(t, v, "error", "error");
    if (more) {
        add_note(t, v, "run", "lineage");
        add_note(t, v, "why_not", "not by");
    }
}

static void print_versions(const json_t *versions, bool more)
{
    static const struct table_column columns[] = {{.name = "VERSION"},
                                                  {.name = "STATE"},
                                                  {.name = "SIZE", .right = true},
                                                  {.name = "HERE", .right = true},
                                                  {.name = "TIME", .right = true},
                                                  {.name = "SOURCES", .right = true},
                                                  {.name = "HOW"}};
    struct table *t = table_new(columns, sizeof columns / sizeof columns[0], 2);
    const json_t *one;
    size_t i;
    putchar('\n');
    json_array_foreach(versions, i, one)
    {
        add_version(t, one, more);
    }
    table_print(t);
}

static void add_engine(struct table *t, const json_t *e)
{
    table_row(t, (const char *[]){text_of(e, "name", "?"), text_of(e, "state", "?"),
                                  text_of(e, "serving", NULL), text_of(e, "kind", "?"),
                                  real_of(e, "pause") > 0 ? cli_time(real_of(e, "pause")) : NULL,
                                  text_of(e, "url", NULL)});
    add_note(t, e, "draft", "draft model");
    add_note(t, e, "error", "error");
}

static void print_engines(const json_t *engines)
{
    static const struct table_column columns[] = {{.name = "ENGINE", .gives_way = true}, {.name = "STATE"},
                                                  {.name = "SERVES", .right = true},     {.name = "KIND"},
                                                  {.name = "PAUSE", .right = true},      {.name = "URL"}};
    struct table *t = table_new(columns, sizeof columns / sizeof columns[0], 2);
    const json_t *one;
    size_t i;
    putchar('\n');
    json_array_foreach(engines, i, one)
    {
        add_engine(t, one);
    }
    table_print(t);
}

static void print_transports(const json_t *m)
{
    const json_t *name;
    size_t i;
    json_array_foreach(json_object_get(m, "strategy"), i, name)
    {
        printf("%s%s", i ? ", " : "; comes by ", json_string_value(name));
    }
    putchar('\n');
}

static void print_model(const json_t *m, bool more)
{
    const json_t *versions = json_object_get(m, "versions"), *engines = json_object_get(m, "engines");
    printf("\n%s  current %s, latest %s, previous %s%s\n", text_of(m, "model", "?"),
           text_of(m, "current", "none"), text_of(m, "latest", "none"), text_of(m, "previous", "none"),
           is_true(m, "switching") ? ", switching now" : "");
    printf("  policy %s, commit %s, switches %" PRIu64 ", failed %" PRIu64, text_of(m, "policy", "?"),
           text_of(m, "commit", "?"), number_of(m, "switches"), number_of(m, "switches_failed"));
    print_transports(m);
    if (is_true(m, "quarantined"))
        printf("      in quarantine: it does not serve what was released, and its engines are paused\n");
    if (*text_of(m, "config_differs", ""))
        printf("      config differs: %s\n", text_of(m, "config_differs", ""));
    if (*text_of(m, "learned", ""))
        printf("      learned: %s\n", text_of(m, "learned", ""));
    print_last_error(m, "      ");
    if (*text_of(m, "lacking", ""))
        printf("      lacking: %s\n", text_of(m, "lacking", ""));
    if (json_array_size(versions))
        print_versions(versions, more);
    if (json_array_size(engines))
        print_engines(engines);
}

static void print_tables(const json_t *root, bool more)
{
    const json_t *model;
    size_t i;
    print_mount(root);
    json_array_foreach(json_object_get(root, "models"), i, model)
    {
        print_model(model, more);
    }
}

static int run_status(const struct cli_args *args)
{
    const char *model, *mount = mounts_pick_model(args, &model);
    const bool watch = cli_has(args, "watch");
    const uint64_t interval = cli_u64(args, "interval", 1);
    int code;
    for (;;) {
        json_t *root = read_mount(mount, model, &code);
        if (root && watch && isatty(STDOUT_FILENO)) /* why it failed stays to be read */
            printf("\033[H\033[2J");
        if (root && cli_has(args, "json"))
            code = json_print(root); /* takes it */
        else if (root)
            print_tables(root, cli_has(args, "verbose"));
        if (!cli_has(args, "json"))
            json_decref(root);
        if (code || !watch)
            return code;
        fflush(stdout);
        nanosleep(&(struct timespec){.tv_sec = interval ? (time_t)interval : 1}, NULL);
    }
}

static const struct cli_option status_options[] = {
    {"mount", 'd', "DIR", "the mount; default $WSYNC_MOUNT, or the only one on this machine"},
    {"json", 'j', NULL, "print JSON"},
    {"verbose", 'v', NULL, "each version's lineage too, and why it did not come by other ways"},
    {"watch", 'w', NULL, "print again every interval until interrupted"},
    {"interval", 'n', "SECONDS", "with --watch; default 1", 0, CLI_MAX_SECONDS},
    {0},
};

const struct cli_command cmd_status = {
    .name = "status",
    .summary = "show what a mount serves: versions, engines, sources, memory",
    .synopsis = "[OPTIONS] [MODEL]\n[OPTIONS] DIR [MODEL]",
    .description = "What the files status, engines and last_error of the mount say, as tables or as JSON. "
                   "JSON has what the "
                   "files history say, too: how the last versions came and when they were loaded; "
                   "wsync-control(7) has its "
                   "keys.",
    .examples = "wsync status -w\nwsync status /wsync actor\nwsync status --json | jq .models[0].current",
    .options = status_options,
    .max_words = 2,
    .run = run_status,
};
