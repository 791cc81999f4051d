/* Comparing two layouts: both sides' tensors as sorted lists of pointers, then one walk along both.
 * A name that occurs twice on one side (no checked folder has that) counts as extra or missing. */
#include "transports/format/layout.h"
#include "transports/base/text.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LINES  100
#define LINE_CHARS (WS_MAX_TENSOR_NAME + 2 * WS_LAYOUT_TEXT_CHARS + 32)

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct ws_tensor *const *)a)->name, (*(const struct ws_tensor *const *)b)->name);
}

/* All tensors of the files; NULL: no memory. */
static const struct ws_tensor **gather(struct ws_safetensors *const *files, size_t n_files, size_t *n)
{
    const struct ws_tensor **all;
    size_t count = 0;

    for (size_t i = 0; i < n_files; i++)
        count += files[i]->n_tensors;
    all = malloc((count + 1) * sizeof(struct ws_tensor *));
    if (!all)
        return NULL;
    *n = 0;
    for (size_t i = 0; i < n_files; i++) {
        for (size_t k = 0; k < files[i]->n_tensors; k++)
            all[(*n)++] = &files[i]->tensors[k];
    }
    return all;
}

static void sort(const struct ws_tensor **all, size_t n)
{
    for (size_t i = 1; i < n; i++) { /* one file's tensors are sorted already */
        if (by_name(&all[i - 1], &all[i]) > 0) {
            qsort(all, n, sizeof(struct ws_tensor *), by_name);
            break;
        }
    }
}

static int same(const struct ws_tensor *a, const struct ws_tensor *b)
{
    return a->dtype == b->dtype && a->n_dims == b->n_dims &&
           memcmp(a->shape, b->shape, a->n_dims * sizeof(a->shape[0])) == 0;
}

const char *ws_layout_describe(const struct ws_tensor *t, char text[WS_LAYOUT_TEXT_CHARS])
{
    int used = snprintf(text, WS_LAYOUT_TEXT_CHARS, "%s [", ws_dtype_name(t->dtype));

    for (unsigned i = 0; i < t->n_dims; i++)
        used += snprintf(text + used, WS_LAYOUT_TEXT_CHARS - (size_t)used, i ? ",%lu" : "%lu", t->shape[i]);
    snprintf(text + used, WS_LAYOUT_TEXT_CHARS - (size_t)used, "]");
    return text;
}

struct report {
    FILE *f;
    size_t found;
};

/* Writes the first MAX_LINES of them. */
static void put_line(void *arg, enum ws_layout_change change, const struct ws_tensor *t,
                     const struct ws_tensor *was)
{
    static const char *const words[] = {"missing", "extra", "differs"};
    char line[LINE_CHARS], a[WS_LAYOUT_TEXT_CHARS], b[WS_LAYOUT_TEXT_CHARS];
    struct report *r = arg;

    if (++r->found > MAX_LINES)
        return;
    if (was)
        snprintf(line, sizeof(line), "%s %s: %s, was %s", words[change], t->name, ws_layout_describe(t, a),
                 ws_layout_describe(was, b));
    else
        snprintf(line, sizeof(line), "%s %s (%s)", words[change], t->name, ws_layout_describe(t, a));
    ws_text_clean(line);
    fprintf(r->f, "%s\n", line);
}

void ws_layout_walk(const struct ws_tensor **have, size_t n_have, const struct ws_tensor **want,
                    size_t n_want, ws_layout_visit_fn *visit, void *arg)
{
    size_t h = 0, w = 0;

    sort(have, n_have);
    sort(want, n_want);
    while (h < n_have || w < n_want) {
        int order = h == n_have ? 1 : w == n_want ? -1 : strcmp(have[h]->name, want[w]->name);

        if (order < 0)
            visit(arg, WS_LAYOUT_EXTRA, have[h], NULL);
        else if (order > 0)
            visit(arg, WS_LAYOUT_MISSING, want[w], NULL);
        else if (!same(have[h], want[w]))
            visit(arg, WS_LAYOUT_DIFFERS, have[h], want[w]);
        h += order <= 0;
        w += order >= 0;
    }
}

int ws_layout_compare(struct ws_safetensors *const *have, size_t n_have, struct ws_safetensors *const *want,
                      size_t n_want, char **report)
{
    size_t n_a = 0, n_b = 0, length = 0;
    struct report r = {0};
    const struct ws_tensor **a = gather(have, n_have, &n_a);
    const struct ws_tensor **b = gather(want, n_want, &n_b);
    int rc = -ENOMEM;

    *report = NULL;
    if (!a || !b)
        goto out;
    r.f = open_memstream(report, &length);
    if (!r.f)
        goto out;
    ws_layout_walk(a, n_a, b, n_b, put_line, &r);
    if (r.found > MAX_LINES)
        fprintf(r.f, "and %zu more\n", r.found - MAX_LINES);
    if (fclose(r.f) == 0 && *report)
        rc = r.found > 0 ? -EPROTO : 0;
    if (rc != -EPROTO) {
        free(*report);
        *report = NULL;
    }
out:
    free(a);
    free(b);
    return rc;
}
