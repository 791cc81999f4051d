/* wsync ls: models and versions of a mount, by its folders. */
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/json_print.h"
#include "mount-helpers/cli/mounts.h"
#include "mount-helpers/cli/table.h"
#include "transports/base/json_text.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct view {
    const char *mount, *model;
    json_t *rows;        /* NULL: a table */
    struct table *table; /* NULL: JSON */
    size_t n;            /* versions */
};

static const struct table_column columns[] = {
    {.name = "MODEL", .gives_way = true},
    {.name = "VERSION"},
    {.name = "STATE"},
    {.name = "SIZE", .right = true},
    {.name = "HERE", .right = true},
    {.name = "HOW"},
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
    char *how = progress ? mounts_value(progress, "how") : NULL;
    uint64_t total_bytes = total ? strtoull(total, NULL, 10) : 0;
    uint64_t have_bytes = have ? strtoull(have, NULL, 10) : 0;
    char here[16];
    v->n++;
    if (v->rows) {
        json_array_append_new(v->rows,
                              json_pack("{s:o,s:o,s:s,s:I,s:I,s:o}", "model", ws_json_text(v->model),
                                        "version", ws_json_text(name), "state", state ? state : "gone",
                                        "bytes", (json_int_t)total_bytes, "have_bytes",
                                        (json_int_t)have_bytes, "how", ws_json_text(how)));
    } else {
        snprintf(here, sizeof here, "%.0f %%",
                 total_bytes ? 100.0 * (double)have_bytes / (double)total_bytes : 0);
        table_row(v->table, (const char *[]){v->model, name, state ? state : "gone",
                                             total_bytes ? cli_size(total_bytes) : NULL,
                                             total_bytes ? here : NULL, how});
    }
    free(state);
    free(progress);
    free(total);
    free(have);
    free(how);
    return CLI_OK;
}

static int list_model(struct view *v, const char *model, bool may_be_gone)
{
    char path[PATH_MAX];
    v->model = model;
    snprintf(path, sizeof path, "%s/%s", v->mount, model);
    return mounts_each_folder(path, may_be_gone, list_version, v);
}

/* One of the list, which may be removed meanwhile. */
static int list_each(void *arg, const char *model)
{
    return list_model(arg, model, true);
}

static int run_ls(const struct cli_args *args)
{
    const char *model;
    const bool json = cli_has(args, "json");
    struct view v = {.mount = mounts_pick_model(args, &model),
                     .rows = json ? json_array() : NULL,
                     .table = json ? NULL : table_new(columns, sizeof columns / sizeof columns[0], 0)};
    int code = model ? list_model(&v, model, false) : mounts_each_model(v.mount, list_each, &v);
    if (v.table && !v.n && code == CLI_OK)
        fprintf(stderr, "no version is known at %s yet\n", v.mount);
    if (v.table)
        table_print(v.table);
    else if (code == CLI_OK)
        return json_print(v.rows);
    json_decref(v.rows);
    return code;
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
    .description = "Listing starts no pull. HERE is how much of a version has arrived and is verified, HOW "
                   "by which way it came.",
    .examples = "wsync ls\nwsync ls /wsync/actor\nwsync ls actor --json",
    .options = ls_options,
    .max_words = 2,
    .run = run_ls,
};
