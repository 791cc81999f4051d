/* Comparing two layouts: both sides' tensors as sorted lists of pointers, then one walk along both.
 * A name that occurs twice on one side (no checked folder has that) counts as extra or missing. */
#include "transports/format/layout.h"
#include "transports/base/text.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LINES   100
#define SHAPE_CHARS (WS_MAX_DIMS * 21 + 32) /* 20 digits and a comma a dimension */
#define LINE_CHARS  (WS_MAX_TENSOR_NAME + 2 * SHAPE_CHARS + 32)

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct ws_tensor *const *)a)->name, (*(const struct ws_tensor *const *)b)->name);
}

/* All tensors of the files, sorted by name; NULL: no memory. */
static const struct ws_tensor **sorted(struct ws_safetensors *const *files, size_t n_files, size_t *n)
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

/* was: the counterpart that it differs from, or NULL where it has none. */
static void put_line(FILE *f, const char *kind, const struct ws_tensor *t, const struct ws_tensor *was)
{
    char line[LINE_CHARS], a[SHAPE_CHARS], b[SHAPE_CHARS];

    if (was)
        snprintf(line, sizeof(line), "%s %s: %s, was %s", kind, t->name, describe(t, a), describe(was, b));
    else
        snprintf(line, sizeof(line), "%s %s (%s)", kind, t->name, describe(t, a));
    ws_text_clean(line);
    fprintf(f, "%s\n", line);
}

/* Returns the number of differences; writes the first MAX_LINES of them. */
static size_t walk(FILE *f, const struct ws_tensor **have, size_t n_have, const struct ws_tensor **want,
                   size_t n_want)
{
    size_t found = 0, h = 0, w = 0;

    while (h < n_have || w < n_want) {
        const struct ws_tensor *t, *was = NULL;
        const char *kind = "differs";
        int order = h == n_have ? 1 : w == n_want ? -1 : strcmp(have[h]->name, want[w]->name);

        if (order < 0) {
            kind = "extra";
            t = have[h++];
        } else if (order > 0) {
            kind = "missing";
            t = want[w++];
        } else {
            t = have[h++];
            was = want[w++];
            if (same(t, was))
                continue;
        }
        if (++found <= MAX_LINES)
            put_line(f, kind, t, was);
    }
    if (found > MAX_LINES)
        fprintf(f, "and %zu more\n", found - MAX_LINES);
    return found;
}

int ws_layout_compare(struct ws_safetensors *const *have, size_t n_have, struct ws_safetensors *const *want,
                      size_t n_want, char **report)
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
    if (fclose(f) == 0 && *report)
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
