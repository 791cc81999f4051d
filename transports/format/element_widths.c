#include "transports/format/element_widths.h"
#include <stdlib.h>

static unsigned width_of(enum ws_dtype dtype)
{
    unsigned bits = ws_dtype_bits(dtype);
    return bits < 16 ? 1 : bits == 16 ? 2 : 4;
}

static int by_place(const void *a, const void *b)
{
    const struct ws_tensor *x = *(const struct ws_tensor *const *)a, *y = *(const struct ws_tensor *const *)b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* An extent continues if the next tensor's elements have the same width and grid. */
static void add(struct ws_element_widths *w, uint64_t begin, unsigned width)
{
    const struct ws_element_width_extent *last = w->n ? &w->extents[w->n - 1] : NULL;
    if (last && last->width == width && (begin - last->begin) % width == 0)
        return;
    w->extents[w->n++] = (struct ws_element_width_extent){begin, width};
}

struct ws_element_widths *ws_element_widths_new(const struct ws_safetensors *st)
{
    size_t n = st ? st->n_tensors : 0;
    struct ws_element_widths *w = malloc(sizeof(*w) + (n + 1) * sizeof(w->extents[0]));
    const struct ws_tensor **order = malloc((n + 1) * sizeof(struct ws_tensor *));
    if (w && order) {
        w->n = 0;
        add(w, 0, 1);
        for (size_t i = 0; i < n; i++)
            order[i] = &st->tensors[i];
        qsort(order, n, sizeof(struct ws_tensor *), by_place);
        for (size_t i = 0; i < n; i++)
            if (order[i]->end > order[i]->begin)
                add(w, order[i]->begin, width_of(order[i]->dtype));
    } else {
        free(w);
        w = NULL;
    }
    free(order);
    return w;
}

const struct ws_element_width_extent *ws_element_widths_at(const struct ws_element_widths *w, uint64_t offset)
{
    size_t low = 0, high = w->n;
    while (high - low > 1) {
        size_t mid = low + (high - low) / 2;
        if (w->extents[mid].begin <= offset)
            low = mid;
        else
            high = mid;
    }
    return &w->extents[low];
}
