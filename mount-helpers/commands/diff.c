/* wsync diff: how far two versions are apart, tensor by tensor. */
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/json_print.h"
#include "mount-helpers/cli/lost_file.h"
#include "mount-helpers/cli/table.h"
#include "mount-helpers/cli/terminal.h"
#include "transports/base/cpu_features.h"
#include "transports/base/json_text.h"
#include "transports/base/text.h"
#include "transports/delta/ulp_distance.h"
#include "transports/format/folder.h"
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct cli_option options[] = {
    {"json", 'j', NULL, "print JSON"},
    {"match", 'n', "PATTERN", "only tensors whose name matches this shell pattern"},
    {"all", 'a', NULL, "also tensors that are equal"},
    {"threads", 't', "N", "threads; default: all cores", 0, CLI_MAX_THREADS},
    {0},
};

/* One side: its safetensors files, mapped. */
struct file {
    const struct ws_safetensors *st;
    const unsigned char *bytes;
};
struct side {
    const char *path;
    struct ws_folder *folder;  /* NULL: path is one file, */
    struct ws_safetensors *st; /* and this is its header */
    size_t n;
    struct file *files;
};

/* Takes the descriptor over. */
static int map_file(struct side *s, const struct ws_safetensors *st, int fd, const char *path)
{
    void *p = mmap(NULL, st->file_bytes, PROT_READ, MAP_SHARED, fd, 0);
    const int code = p == MAP_FAILED ? cli_fail("cannot map %s: %s", path, strerror(errno)) : CLI_OK;
    close(fd);
    if (code == CLI_OK)
        s->files[s->n++] = (struct file){st, p};
    return code;
}

static int map_folder(struct side *s)
{
    struct ws_error err = {0};
    int code = CLI_OK;
    for (size_t i = 0; code == CLI_OK && i < s->folder->n_files; i++) {
        const struct ws_folder_file *f = &s->folder->files[i];
        const int fd = f->st ? ws_folder_file_open(s->folder, f, &err) : -1;
        if (f->st)
            code = fd < 0 ? cli_fail("%s", err.text) : map_file(s, f->st, fd, f->path);
    }
    return code == CLI_OK && s->n == 0 ? cli_fail("there is no safetensors file in %s", s->path) : code;
}

static int map_single(struct side *s)
{
    struct ws_error err = {0};
    const int fd = open(s->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC); /* a FIFO would block */
    if (fd < 0)
        return cli_fail("cannot open %s: %s", s->path, strerror(errno));
    if (ws_safetensors_read_fd(fd, &s->st, &err)) {
        close(fd);
        return cli_fail("%s: %s", s->path, err.text);
    }
    return map_file(s, s->st, fd, s->path);
}

static int open_side(struct side *s, const char *path)
{
    struct ws_error err = {0};
    struct stat st;
    *s = (struct side){.path = path};
    if (stat(path, &st))
        return cli_fail("cannot look at %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode) && ws_folder_open(path, &s->folder, &err))
        return cli_fail("%s", err.text);
    s->files = calloc(s->folder ? s->folder->n_files + 1 : 1, sizeof(*s->files));
    if (!s->files)
        return cli_fail("no memory for the files of %s", path);
    return s->folder ? map_folder(s) : map_single(s);
}

static void close_side(struct side *s)
{
    for (size_t i = 0; i < s->n; i++)
        munmap((void *)(uintptr_t)s->files[i].bytes, s->files[i].st->file_bytes);
    free(s->files);
    ws_safetensors_free(s->st);
    ws_folder_free(s->folder);
}

static const struct ws_tensor *find(const struct side *s, const char *name, const unsigned char **bytes)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct ws_tensor *t = ws_safetensors_find(s->files[i].st, name);
        if (t) {
            *bytes = s->files[i].bytes + t->begin;
            return t;
        }
    }
    return NULL;
}

struct diff {
    size_t n, n_other; /* pairs; tensors that have no counterpart */
    struct ws_ulp_pair *pairs;
    const char **names;
    json_t *other; /* sentences */
};

static void note_other(struct diff *d, const char *what, const struct ws_tensor *t, const char *where)
{
    char line[WS_MAX_TENSOR_NAME + 256];
    snprintf(line, sizeof line, "%s %s %.200s", t->name, what, where);
    ws_text_clean(line);
    json_array_append_new(d->other, ws_json_text(line));
    d->n_other++;
}

static bool is_wanted(const char *pattern, const struct ws_tensor *t)
{
    return !pattern || fnmatch(pattern, t->name, 0) == 0;
}

static int pair_up(struct diff *d, const struct side *a, const struct side *b, const char *pattern)
{
    size_t room = 1;
    for (size_t i = 0; i < a->n; i++)
        room += a->files[i].st->n_tensors;
    d->pairs = calloc(room, sizeof(*d->pairs));
    d->names = calloc(room, sizeof(*d->names));
    d->other = json_array();
    if (!d->pairs || !d->names || !d->other)
        return cli_fail("no memory for %zu tensors", room);
    for (size_t i = 0; i < a->n; i++) {
        for (size_t k = 0; k < a->files[i].st->n_tensors; k++) {
            const struct ws_tensor *t = &a->files[i].st->tensors[k], *u;
            const unsigned char *bytes = NULL;
            if (!is_wanted(pattern, t))
                continue;
            u = find(b, t->name, &bytes);
            if (!u)
                note_other(d, "is not in", t, b->path);
            else if (u->dtype != t->dtype || u->n_dims != t->n_dims ||
                     memcmp(u->shape, t->shape, sizeof(t->shape)) != 0)
                note_other(d, "has another type or shape in", t, b->path);
            else {
                d->names[d->n] = t->name;
                d->pairs[d->n++] = (struct ws_ulp_pair){.dtype = t->dtype,
                                                        .a = a->files[i].bytes + t->begin,
                                                        .b = bytes,
                                                        .bytes = t->end - t->begin};
            }
        }
    }
    for (size_t i = 0; i < b->n; i++)
        for (size_t k = 0; k < b->files[i].st->n_tensors; k++) {
            const unsigned char *bytes;
            const struct ws_tensor *t = &b->files[i].st->tensors[k];
            if (is_wanted(pattern, t) && !find(a, t->name, &bytes))
                note_other(d, "is not in", t, a->path);
        }
    return CLI_OK;
}

static double percent(const struct ws_ulp_distance *o)
{
    return o->elements ? 100.0 * (double)o->changed / (double)o->elements : 0;
}

static void add_row(struct table *t, const struct ws_ulp_pair *pair, const char *name)
{
    const struct ws_ulp_distance *o = &pair->out;
    char elements[24], changed[24], fraction[24], largest[24];
    snprintf(elements, sizeof elements, "%" PRIu64, o->elements);
    snprintf(changed, sizeof changed, "%" PRIu64, o->changed);
    snprintf(fraction, sizeof fraction, "%.4f%%", percent(o));
    snprintf(largest, sizeof largest, "%" PRIu64, o->largest);
    table_row(t, (const char *[]){elements, changed, fraction, largest, ws_dtype_name(pair->dtype), name});
}

static void print_text(const struct diff *d, bool all, const struct ws_ulp_distance *total)
{
    static const struct table_column columns[] = {
        {.name = "ELEMENTS", .right = true},
        {.name = "CHANGED", .right = true},
        {.name = "FRACTION", .right = true},
        {.name = "LARGEST ULP", .right = true},
        {.name = "TYPE"},
        {.name = "TENSOR"},
    };
    struct table *t = table_new(columns, sizeof columns / sizeof columns[0], 0);
    char text[256];
    const json_t *line;
    size_t i, n_changed = 0;
    for (i = 0; i < d->n; i++) {
        n_changed += d->pairs[i].out.changed > 0;
        if (d->pairs[i].out.changed || all)
            add_row(t, &d->pairs[i], d->names[i]);
    }
    table_print(t);
    json_array_foreach(d->other, i, line)
    {
        printf("%s\n", json_string_value(line));
    }
    snprintf(text, sizeof text,
             "%zu of %zu tensors changed, in %" PRIu64 " of %" PRIu64
             " elements (%.4f%%), by at most %" PRIu64 " units in the last place%s",
             n_changed, d->n, total->changed, total->elements, percent(total), total->largest,
             d->n_other ? "; some have no counterpart" : "");
    terminal_print(text, 0, terminal_columns(STDOUT_FILENO));
}

static json_t *difference_json(const struct ws_ulp_distance *o)
{
    return json_pack("{s:I,s:I,s:I}", "elements", (json_int_t)o->elements, "changed", (json_int_t)o->changed,
                     "largest_ulp", (json_int_t)o->largest);
}

static int print_json(const struct diff *d, bool all, const struct ws_ulp_distance *total)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < d->n; i++) {
        if (!d->pairs[i].out.changed && !all)
            continue;
        json_t *row = difference_json(&d->pairs[i].out);
        json_object_set_new(row, "name", ws_json_text(d->names[i]));
        json_object_set_new(row, "dtype", json_string(ws_dtype_name(d->pairs[i].dtype)));
        json_array_append_new(rows, row);
    }
    return json_print(
        json_pack("{s:o,s:o,s:O}", "total", difference_json(total), "tensors", rows, "other", d->other));
}

static int run(const struct cli_args *args)
{
    struct side a = {0}, b = {0};
    struct diff d = {0};
    struct ws_ulp_distance total = {0};
    cli_lost_file_says("a file shrank, or its mount failed, while it was read");
    struct ws_workers *workers = ws_workers_new((unsigned)cli_u64(args, "threads", ws_cpu_cores(0)), 0);
    int code = workers ? open_side(&a, cli_word(args, 0)) : cli_fail("no memory for threads");
    if (code == CLI_OK)
        code = open_side(&b, cli_word(args, 1));
    if (code == CLI_OK)
        code = pair_up(&d, &a, &b, cli_get(args, "match"));
    if (code == CLI_OK && ws_ulp_distances(d.pairs, d.n, workers) < 0)
        code = cli_fail("no memory for the comparison");
    for (size_t i = 0; i < d.n; i++) {
        total.elements += d.pairs[i].out.elements;
        total.changed += d.pairs[i].out.changed;
        total.largest = d.pairs[i].out.largest > total.largest ? d.pairs[i].out.largest : total.largest;
    }
    if (code == CLI_OK && cli_has(args, "json"))
        code = print_json(&d, cli_has(args, "all"), &total);
    else if (code == CLI_OK)
        print_text(&d, cli_has(args, "all"), &total);
    ws_workers_free(workers);
    free(d.pairs);
    free(d.names);
    json_decref(d.other);
    close_side(&a);
    close_side(&b);
    return code;
}

const struct cli_command cmd_diff = {
    .name = "diff",
    .summary = "compare two versions, checkpoints or safetensors files tensor by tensor",
    .synopsis = "[OPTIONS] A B",
    .description =
        "Prints for each tensor that differs how many elements changed in any bit, their share, and the "
        "largest change in units in the last place (in integers: the largest difference). A and B are "
        "mounted versions (which this pulls), checkpoint folders or safetensors files. For a mounted "
        "version and the one before it, .wsync/changed has the same.",
    .examples = "wsync diff /wsync/actor/1 /wsync/actor/2\nwsync diff -n '*.q_proj.*' before.safetensors "
                "after.safetensors",
    .options = options,
    .min_words = 2,
    .max_words = 2,
    .run = run,
};
