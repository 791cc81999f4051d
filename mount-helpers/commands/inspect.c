/* wsync inspect: the tensors of a safetensors file, a checkpoint folder or a mounted version. */
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/json_print.h"
#include "mount-helpers/cli/table.h"
#include "transports/base/json_text.h"
#include "transports/format/folder.h"
#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct cli_option options[] = {
    {"json", 'j', NULL, "print JSON"},
    {"match", 'n', "PATTERN", "only tensors whose name matches this shell pattern"},
    {"summary", 's', NULL, "only the totals"},
    {0},
};

static void shape_text(const struct ws_tensor *t, char out[256])
{
    size_t n = (size_t)snprintf(out, 256, "[");
    for (unsigned d = 0; d < t->n_dims; d++)
        n += (size_t)snprintf(out + n, 256 - n, "%s%" PRIu64, d ? ", " : "", t->shape[d]);
    snprintf(out + n, 256 - n, "]");
}

static json_t *tensor_json(const struct ws_tensor *t, const char *file)
{
    json_t *shape = json_array();
    for (unsigned d = 0; d < t->n_dims; d++)
        json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
    return json_pack("{s:o,s:s,s:o,s:I,s:I,s:o}", "name", ws_json_text(t->name), "dtype",
                     ws_dtype_name(t->dtype), "shape", shape, "offset", (json_int_t)t->begin, "bytes",
                     (json_int_t)(t->end - t->begin), "file", ws_json_text(file));
}

struct totals {
    size_t files, tensors;
    uint64_t bytes;
    json_t *rows;        /* NULL: a table */
    struct table *table; /* NULL: JSON */
};

static const struct table_column columns[] = {
    {.name = "TENSOR"},
    {.name = "DTYPE"},
    {.name = "SHAPE"},
    {.name = "SIZE", .right = true},
};

static int inspect_file(const struct cli_args *args, const char *path, const char *name,
                        struct totals *totals)
{
    const char *pattern = cli_get(args, "match");
    struct ws_safetensors *st;
    struct ws_error err;
    if (ws_safetensors_read(path, &st, &err))
        return cli_fail("%s", err.text);
    totals->files++;
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct ws_tensor *t = &st->tensors[i];
        char shape[256];
        if (pattern && fnmatch(pattern, t->name, 0))
            continue;
        totals->tensors++;
        totals->bytes += t->end - t->begin;
        if (cli_has(args, "summary"))
            continue;
        shape_text(t, shape);
        if (totals->rows)
            json_array_append_new(totals->rows, tensor_json(t, name));
        else
            table_row(totals->table,
                      (const char *[]){t->name, ws_dtype_name(t->dtype), shape, cli_size(t->end - t->begin)});
    }
    ws_safetensors_free(st);
    return CLI_OK;
}

static int inspect_folder(const struct cli_args *args, const char *path, struct totals *totals)
{
    struct ws_folder *folder;
    struct ws_error err = {0};
    int code = CLI_OK;
    if (ws_folder_open(path, &folder, &err))
        return cli_fail("%s", err.text);
    for (size_t i = 0; i < folder->n_files && code == CLI_OK; i++)
        if (folder->files[i].st)
            code = inspect_file(args, folder->files[i].path, folder->files[i].name, totals);
    ws_folder_free(folder);
    if (code == CLI_OK && totals->files == 0)
        return cli_fail("there is no safetensors file in %s", path);
    return code;
}

static int run(const struct cli_args *args)
{
    const char *path = cli_word(args, 0);
    struct stat st;
    if (stat(path, &st))
        return cli_fail("cannot look at %s: %s", path, strerror(errno));
    const bool json = cli_has(args, "json");
    struct totals totals = {.rows = json ? json_array() : NULL,
                            .table = json ? NULL : table_new(columns, sizeof columns / sizeof columns[0], 0)};
    const char *slash = strrchr(path, '/');
    int code = S_ISDIR(st.st_mode) ? inspect_folder(args, path, &totals)
                                   : inspect_file(args, path, slash ? slash + 1 : path, &totals);
    if (totals.table)
        table_print(totals.table);
    if (code == CLI_OK && totals.rows)
        code = json_print(json_pack("{s:o,s:I,s:I,s:I,s:O}", "path", ws_json_text(path), "files",
                                    (json_int_t)totals.files, "n_tensors", (json_int_t)totals.tensors,
                                    "bytes", (json_int_t)totals.bytes, "tensors", totals.rows));
    else if (code == CLI_OK)
        printf("%zu tensor%s in %zu file%s, %s\n", totals.tensors, totals.tensors == 1 ? "" : "s",
               totals.files, totals.files == 1 ? "" : "s", cli_size(totals.bytes));
    json_decref(totals.rows);
    return code;
}

const struct cli_command cmd_inspect = {
    .name = "inspect",
    .summary = "list the tensors of a safetensors file, a checkpoint folder or a mounted version",
    .synopsis = "[OPTIONS] PATH",
    .description = "Prints name, dtype, shape and size of each tensor. The header is checked as strictly as "
                   "at publishing: what inspect refuses, publish refuses with the same sentence.",
    .examples = "wsync inspect /wsync/actor/1\nwsync inspect -n '*.q_proj.*' model.safetensors",
    .options = options,
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
