/* Comparing two layouts: both sides' tensors as sorted lists of pointers, then one walk along both.
 * A name that occurs twice on one side (no checked folder has that) counts as extra or missing. */
#include "transports/layout.h"
#include "transports/text.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LINES 100
#define SHAPE_CHARS (WS_MAX_DIMS * 21 + 32)                   /* 20 digits and a comma a dimension */
#define LINE_CHARS (WS_MAX_TENSOR_NAME + 2 * SHAPE_CHARS + 32)

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct ws_tensor *const *)a)->name,
                  (*(const struct ws_tensor *const *)b)->name);
}

/* All tensors of the files, sorted by name; NULL: no memory. */
static const struct ws_tensor **sorted(struct ws_safetensors *const *files, size_t n_files,
                                       size_t *n)
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
    if (n_files > 1) /* one file's tensors are sorted already */
        qsort(all, count, sizeof(struct ws_tensor *), by_name);
    return all;
}

static int same(const struct ws_tensor *a, const struct ws_tensor *b)
{
    return a->dtype == b->dtype && a->n_dims == b->n_dims &&
           memcmp(a->shape, b->shape, a->n_dims * sizeof(a->shape[0])) == 0;
}

static const char *describe(const struct ws_tensor *t, char text[SHAPE_CHARS])
{
    int used = snprintf(text, SHAPE_CHARS, "%s [", ws_dtype_name(t->dtype));

    for (unsigned i = 0; i < t->n_dims; i++)
        used += snprintf(text + used, SHAPE_CHARS - (size_t)used, i ? ",%lu" : "%lu", t->shape[i]);
    snprintf(text + used, SHAPE_CHARS - (size_t)used, "]");
    return text;
}

/* have NULL: missing; want NULL: extra; else they differ. */
static void put_line(FILE *f, const struct ws_tensor *have, const struct ws_tensor *want)
{
    char line[LINE_CHARS], a[SHAPE_CHARS], b[SHAPE_CHARS];

    if (!have)
        snprintf(line, sizeof(line), "missing %s (%s)", want->name, describe(want, a));
    else if (!want)
        snprintf(line, sizeof(line), "extra %s (%s)", have->name, describe(have, a));
    else
        snprintf(line, sizeof(line), "differs %s: %s, was %s", have->name, describe(have, a),
                 describe(want, b));
    ws_text_clean(line);
    fprintf(f, "%s\n", line);
}

/* Returns the number of differences; writes the first MAX_LINES of them. */
static size_t walk(FILE *f, const struct ws_tensor **have, size_t n_have,
                   const struct ws_tensor **want, size_t n_want)
{
    size_t found = 0, h = 0, w = 0;

    while (h < n_have || w < n_want) {
        const struct ws_tensor *a = h < n_have ? have[h] : NULL;
        const struct ws_tensor *b = w < n_want ? want[w] : NULL;
        int order = !a ? 1 : !b ? -1 : strcmp(a->name, b->name);

        if (order <= 0)
            h++;
        if (order >= 0)
            w++;
        if (order == 0 && same(a, b))
            continue;
        if (++found <= MAX_LINES)
            put_line(f, order <= 0 ? a : NULL, order >= 0 ? b : NULL);
    }
    if (found > MAX_LINES)
        fprintf(f, "and %zu more\n", found - MAX_LINES);
    return found;
}

int ws_layout_compare(struct ws_safetensors *const *have, size_t n_have,
                      struct ws_safetensors *const *want, size_t n_want, char **report)
{
    size_t n_a = 0, n_b = 0, length = 0, found;
    const struct ws_tensor **a = sorted(have, n_have, &n_a);
    const struct ws_tensor **b = sorted(want, n_want, &n_b);
    FILE *f = NULL;
    int rc = -ENOMEM;

    *report = NULL;
    if (!a || !b)
        goto out;
    f = open_memstream(report, &length);
    if (!f)
        goto out;
    found = walk(f, a, n_a, b, n_b);
    if (fclose(f) == 0)
        rc = found > 0 ? -EPROTO : 0;
    if (rc != -EPROTO) {
        free(*report);
        *report = NULL;
    }
out:
    free(a);
    free(b);
    return rc;
}
