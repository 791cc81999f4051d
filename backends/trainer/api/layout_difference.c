/* The public comparison of layouts: the one that a switch makes, as a list. */
#include "backends/trainer/api/arena.h"
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/wsync.h"
#include "transports/base/vector.h"
#include "transports/format/layout.h"
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(WSYNC_MISSING + 0 == WS_LAYOUT_MISSING && WSYNC_EXTRA + 0 == WS_LAYOUT_EXTRA &&
                   WSYNC_DIFFERS + 0 == WS_LAYOUT_DIFFERS,
               "wsync.h and layout.h have one order");

WS_VECTOR(difference_list, wsync_difference);
struct wsync_differences {
    struct ws_arena arena; /* names and texts */
    struct difference_list list;
    bool no_memory;
};

/* One layout of two: its tensors as the walk has them, and the list that it sorts. */
struct side {
    struct ws_tensor *tensors;
    const struct ws_tensor **list;
};

static int read_side(struct side *s, const wsync_tensor *tensors, size_t n, struct ws_error *err)
{
    s->tensors = calloc(n + 1, sizeof(*s->tensors));
    s->list = calloc(n + 1, sizeof(struct ws_tensor *));
    if (!s->tensors || !s->list)
        return ws_error_set(err, ENOMEM, "out of memory for a layout of %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        const wsync_tensor *t = &tensors[i];
        if (!t->name || (unsigned)t->dtype >= WS_DTYPE_COUNT || t->n_dims > WS_MAX_DIMS)
            return ws_error_set(err, EINVAL,
                                "tensor %zu, \"%.160s\", has no name, an unknown dtype or more than %d "
                                "dimensions",
                                i, t->name ? t->name : "", WS_MAX_DIMS);
        s->tensors[i].name = t->name;
        s->tensors[i].dtype = (enum ws_dtype)t->dtype;
        s->tensors[i].n_dims = t->n_dims;
        memcpy(s->tensors[i].shape, t->shape, t->n_dims * sizeof(t->shape[0]));
        s->list[i] = &s->tensors[i];
    }
    return 0;
}

static void free_side(struct side *s)
{
    free(s->tensors);
    free(s->list);
}

static void add(void *arg, enum ws_layout_change change, const struct ws_tensor *t,
                const struct ws_tensor *was)
{
    wsync_differences *d = arg;
    char is[WS_LAYOUT_TEXT_CHARS], before[WS_LAYOUT_TEXT_CHARS], text[2 * WS_LAYOUT_TEXT_CHARS];
    int length = was ? snprintf(text, sizeof(text), "%s, was %s", ws_layout_describe(t, is),
                                ws_layout_describe(was, before))
                     : snprintf(text, sizeof(text), "%s", ws_layout_describe(t, is));
    wsync_difference one = {.kind = (wsync_difference_kind)change,
                            .name = ws_arena_text(&d->arena, t->name, strlen(t->name)),
                            .text = ws_arena_text(&d->arena, text, (size_t)length)};
    d->no_memory = d->no_memory || !one.name || !one.text || difference_list_append(&d->list, one) < 0;
}

int wsync_layout_compare(const wsync_tensor *have, size_t n_have, const wsync_tensor *want, size_t n_want,
                         wsync_differences **out)
{
    struct ws_error *err = ws_last_error();
    wsync_differences *d = calloc(1, sizeof(*d));
    struct side h = {0}, w = {0};
    int rc =
        d ? read_side(&h, have, n_have, err) : ws_error_set(err, ENOMEM, "out of memory for a comparison");

    *out = NULL;
    if (rc == 0)
        rc = read_side(&w, want, n_want, err);
    if (rc == 0) {
        ws_layout_walk(h.list, n_have, w.list, n_want, add, d);
        if (d->no_memory || d->list.len > INT_MAX)
            rc = ws_error_set(err, ENOMEM, "out of memory for %zu differences", d->list.len);
    }
    if (rc == 0) {
        rc = (int)d->list.len;
        *out = d;
        d = NULL;
    }
    wsync_differences_free(d);
    free_side(&h);
    free_side(&w);
    return rc;
}

const wsync_difference *wsync_difference_at(const wsync_differences *d, size_t i)
{
    return i < d->list.len ? &d->list.ptr[i] : NULL;
}

void wsync_differences_free(wsync_differences *d)
{
    if (!d)
        return;
    difference_list_reset(&d->list);
    ws_arena_free(&d->arena);
    free(d);
}
