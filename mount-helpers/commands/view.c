/* wsync ls, status: what a mount knows, as tables or JSON. */
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/json_text.h"
#include "mount-helpers/cli/mounts.h"
#include "mount-helpers/cli/status_json.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* --- models and versions of a mount, by its folders --- */

static int by_name(const struct dirent **a, const struct dirent **b)
{
    char *end_a, *end_b;
    uint64_t x = strtoull((*a)->d_name, &end_a, 10), y = strtoull((*b)->d_name, &end_b, 10);
    if (end_a != (*a)->d_name && end_b != (*b)->d_name && x != y)
        return x < y ? -1 : 1;
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_folder(const struct dirent *d)
{
    return d->d_type == DT_DIR && d->d_name[0] != '.';
}

static int each_folder(const char *path, int (*visit)(void *arg, const char *name), void *arg)
{
    struct dirent **names;
    int n = scandir(path, &names, is_folder, by_name);
    if (n < 0)
        return cli_fail("cannot list %s: %s%s", path, strerror(errno),
                        errno == ENOTCONN ? "; its daemon died: 'wsync mount' over it recovers it" : "");
    int code = CLI_OK;
    for (int i = 0; i < n; i++) {
        if (code == CLI_OK)
            code = visit(arg, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return code;
}

struct view {
    const char *mount, *model;
    json_t *rows; /* NULL: text */
};

static char *first_word(char *text)
{
    if (text)
        text[strcspn(text, " \n")] = 0;
    return text;
}

static int list_version(void *arg, const char *name)
{
    struct view *v = arg;
    char *state = first_word(mounts_read("%s/%s/%s/.wsync/state", v->mount, v->model, name));
    char *progress = mounts_read("%s/%s/%s/.wsync/progress", v->mount, v->model, name);
    char *total = progress ? mounts_value(progress, "total_bytes") : NULL;
    char *have = progress ? mounts_value(progress, "have_bytes") : NULL;
    uint64_t total_bytes = total ? strtoull(total, NULL, 10) : 0;
    uint64_t have_bytes = have ? strtoull(have, NULL, 10) : 0;
    if (v->rows)
        json_array_append_new(v->rows,
                              json_pack("{s:o,s:o,s:s,s:I,s:I}", "model", json_text(v->model), "version",
                                        json_text(name), "state", state ? state : "gone", "bytes",
                                        (json_int_t)total_bytes, "have_bytes", (json_int_t)have_bytes));
    else
        printf("%-24s %-16s %-10s %10s %5.0f %%\n", v->model, name, state ? state : "gone",
               cli_size(total_bytes), total_bytes ? 100.0 * (double)have_bytes / (double)total_bytes : 0);
    free(state);
    free(progress);
    free(total);
    free(have);
    return CLI_OK;
}

static int list_model(void *arg, const char *model)
{
    struct view *v = arg;
    char path[4096];
    v->model = model;
    snprintf(path, sizeof path, "%s/%s", v->mount, model);
    return each_folder(path, list_version, v);
}

static int print_rows(json_t *rows, int code)
{
    if (rows && code == CLI_OK)
        return json_print(rows);
    json_decref(rows);
    return code;
}

static int run_ls(const struct cli_args *args)
{
    const char *model;
    struct view v = {.mount = mounts_pick_model(args, &model),
                     .rows = cli_has(args, "json") ? json_array() : NULL};
    if (!v.rows)
        printf("%-24s %-16s %-10s %10s %7s\n", "MODEL", "VERSION", "STATE", "SIZE", "HERE");
    int code = model ? list_model(&v, model) : each_folder(v.mount, list_model, &v);
    return print_rows(v.rows, code);
}

/* --- status --- */

static int status_model(void *arg, const char *model)
{
    struct view *v = arg;
    char *text = mounts_read("%s/%s/status", v->mount, model);
    char *engines = mounts_read("%s/%s/engines", v->mount, model);
    if (!text || !engines) {
        free(text);
        free(engines);
        return cli_fail("cannot read %s/%s/status: %s", v->mount, model, strerror(errno));
    }
    if (v->rows) {
        json_array_append_new(v->rows, status_json_model(model, text, engines));
    } else {
        printf("\n%s\n", model);
        for (char *save = NULL, *line = strtok_r(text, "\n", &save); line;
             line = strtok_r(NULL, "\n", &save)) {
            size_t k = strcspn(line, " ");
            printf("  %-18.*s %s\n", (int)k, line, line[k] ? line + k + 1 : "");
        }
        for (char *save = NULL, *line = strtok_r(engines, "\n", &save); line;
             line = strtok_r(NULL, "\n", &save))
            printf("  %-18s %s\n", "engine", line);
    }
    free(text);
    free(engines);
    return CLI_OK;
}

static int print_status(struct view *v, const char *model, bool json)
{
    char *text = mounts_read("%s/status", v->mount);
    if (!text)
        return cli_fail("cannot read %s/status: %s%s", v->mount, strerror(errno),
                        errno == ENOTCONN ? "; its daemon died: 'wsync mount' over it recovers it" : "");
    v->rows = json ? json_array() : NULL;
    json_t *root = json ? status_json_mount(text) : NULL;
    if (!json) {
        printf("%s\n", v->mount);
        for (char *save = NULL, *line = strtok_r(text, "\n", &save); line;
             line = strtok_r(NULL, "\n", &save)) {
            size_t k = strcspn(line, " ");
            printf("  %-18.*s %s\n", (int)k, line, line[k] ? line + k + 1 : "");
        }
    }
    free(text);
    int code = model ? status_model(v, model) : each_folder(v->mount, status_model, v);
    if (json) {
        json_object_set_new(root, "mount", json_text(v->mount));
        json_object_set_new(root, "models", v->rows);
        return print_rows(root, code);
    }
    return code;
}

static int run_status(const struct cli_args *args)
{
    const char *model;
    struct view v = {.mount = mounts_pick_model(args, &model)};
    bool watch = cli_has(args, "watch");
    uint64_t interval = cli_u64(args, "interval", 1);
    for (;;) {
        if (watch && isatty(STDOUT_FILENO))
            printf("\033[H\033[2J");
        int code = print_status(&v, model, cli_has(args, "json"));
        if (code || !watch)
            return code;
        fflush(stdout);
        nanosleep(&(struct timespec){.tv_sec = interval ? (time_t)interval : 1}, NULL);
    }
}

static const struct cli_option ls_options[] = {
    {"mount", 'd', "DIR", "the mount; default $WSYNC_MOUNT, or the only one on this machine"},
    {"json", 'j', NULL, "print JSON"},
    {0},
};

const struct cli_command cmd_ls = {
    .name = "ls",
    .summary = "list models and versions of a mount with state and size",
    .synopsis = "[OPTIONS] [MODEL]\n[OPTIONS] DIR [MODEL]",
    .description = "Listing starts no pull. HERE is how much of a version has arrived and is verified.",
    .examples = "wsync ls\nwsync ls /wsync/actor\nwsync ls actor --json",
    .options = ls_options,
    .max_words = 2,
    .run = run_ls,
};

static const struct cli_option status_options[] = {
    {"mount", 'd', "DIR", "the mount; default $WSYNC_MOUNT, or the only one on this machine"},
    {"json", 'j', NULL, "print JSON"},
    {"watch", 'w', NULL, "print again every interval until interrupted"},
    {"interval", 'n', "SECONDS", "with --watch; default 1", 0, CLI_MAX_SECONDS},
    {0},
};

const struct cli_command cmd_status = {
    .name = "status",
    .summary = "show what a mount serves: versions, engines, sources, memory",
    .synopsis = "[OPTIONS] [MODEL]\n[OPTIONS] DIR [MODEL]",
    .description = "The same as the status and engines files of the mount, as a table or as JSON.",
    .examples = "wsync status -w\nwsync status /wsync actor\nwsync status --json | jq .models[0].current",
    .options = status_options,
    .max_words = 2,
    .run = run_status,
};
