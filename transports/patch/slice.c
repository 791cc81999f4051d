#include "transports/patch/slice.h"
#include <errno.h>

static uint64_t size_of(int64_t stride)
{
    return stride < 0 ? 0U - (uint64_t)stride : (uint64_t)stride;
}

/* Where one side begins and ends. false: outside of its elements. */
static bool bound(struct ws_slice_side *side, unsigned n, const uint64_t *shape, uint64_t at,
                  const int64_t *strides, uint64_t elements)
{
    uint64_t below = 0, above = 0;
    for (unsigned k = 0; k < n; k++) {
        uint64_t reach, *sum = strides[k] < 0 ? &below : &above;
        side->stride[k] = size_of(strides[k]);
        side->down[k] = strides[k] < 0;
        if (__builtin_mul_overflow(shape[k] - 1, side->stride[k], &reach) ||
            __builtin_add_overflow(*sum, reach, sum))
            return false;
    }
    if (at >= elements || below > at || above > elements - 1 - at)
        return false;
    side->low = at - below;
    side->high = at + above;
    return true;
}

static void sort(struct ws_slice_side *side, unsigned n)
{
    for (unsigned k = 0; k < n; k++) {
        unsigned i = k;
        for (; i > 0 && side->stride[side->order[i - 1]] < side->stride[k]; i--)
            side->order[i] = side->order[i - 1];
        side->order[i] = (uint8_t)k;
    }
}

/* Does each element have a place of its own, which its place tells? */
static bool is_box(const struct ws_slice_side *side, unsigned n, const uint64_t *shape)
{
    uint64_t reach = 1; /* of the dimensions with smaller strides */
    for (unsigned i = n; i-- > 0;) {
        const unsigned k = side->order[i];
        if (side->stride[k] < reach)
            return false;
        reach = side->stride[k] * shape[k]; /* fits: the last of it lies in memory, but for one stride */
    }
    return true;
}

static void swap_dims(struct ws_slice *s, unsigned a, unsigned b)
{
    const uint64_t shape = s->shape[a];
    s->shape[a] = s->shape[b];
    s->shape[b] = shape;
    struct ws_slice_side *sides[2] = {&s->to, &s->from};
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t stride = sides[i]->stride[a];
        const bool down = sides[i]->down[a];
        sides[i]->stride[a] = sides[i]->stride[b];
        sides[i]->down[a] = sides[i]->down[b];
        sides[i]->stride[b] = stride;
        sides[i]->down[b] = down;
    }
}

static void drop_dim(struct ws_slice *s, unsigned k)
{
    for (; k + 1 < s->n_dims; k++)
        swap_dims(s, k, k + 1);
    s->n_dims--;
}

/* Two dimensions that count on in each other are one. */
static void merge(struct ws_slice *s)
{
    for (unsigned k = 0; k + 1 < s->n_dims;) {
        const uint64_t n = s->shape[k + 1];
        if (s->from.stride[k] == s->from.stride[k + 1] * n && s->to.stride[k] == s->to.stride[k + 1] * n &&
            s->from.down[k] == s->from.down[k + 1] && s->to.down[k] == s->to.down[k + 1]) {
            s->shape[k] *= n;
            s->from.stride[k] = s->from.stride[k + 1];
            s->to.stride[k] = s->to.stride[k + 1];
            drop_dim(s, k + 1);
        } else {
            k++;
        }
    }
}

int ws_slice_init(struct ws_slice *s, unsigned n_dims, const uint64_t *shape, uint64_t to,
                  const int64_t *to_strides, uint64_t to_elements, uint64_t from, const int64_t *from_strides,
                  uint64_t from_elements, struct ws_error *err)
{
    *s = (struct ws_slice){.n_dims = n_dims, .count = 1};
    if (n_dims > WS_MAX_DIMS)
        return ws_error_set(err, EINVAL, "%u dimensions; at most %d are possible", n_dims, WS_MAX_DIMS);
    for (unsigned k = 0; k < n_dims; k++) {
        s->shape[k] = shape[k];
        if (__builtin_mul_overflow(s->count, shape[k], &s->count))
            return ws_error_set(err, EINVAL, "a shape of more than 2^64 elements");
    }
    if (s->count == 0)
        return 0;
    if (!bound(&s->to, n_dims, shape, to, to_strides, to_elements))
        return ws_error_set(err, EINVAL, "it reaches out of the memory's %llu elements",
                            (unsigned long long)to_elements);
    if (!bound(&s->from, n_dims, shape, from, from_strides, from_elements))
        return ws_error_set(err, EINVAL, "it reaches out of the tensor's %llu elements",
                            (unsigned long long)from_elements);
    for (unsigned k = n_dims; k-- > 0;)
        if (s->shape[k] == 1)
            drop_dim(s, k);
    for (unsigned k = 1; k < s->n_dims; k++)
        for (unsigned i = k; i > 0 && s->from.stride[i - 1] < s->from.stride[i]; i--)
            swap_dims(s, i - 1, i);
    merge(s);
    sort(&s->to, s->n_dims);
    sort(&s->from, s->n_dims);
    if (!is_box(&s->to, s->n_dims, s->shape) || !is_box(&s->from, s->n_dims, s->shape))
        return ws_error_set(err, EOPNOTSUPP, "its strides let several elements share a place");
    return 0;
}

static bool convert(const struct ws_slice *s, const struct ws_slice_side *a, const struct ws_slice_side *b,
                    uint64_t at, uint64_t *out)
{
    if (s->count == 0 || at < a->low || at > a->high)
        return false;
    uint64_t rest = at - a->low;
    *out = b->low;
    for (unsigned i = 0; i < s->n_dims; i++) {
        const unsigned k = a->order[i];
        const uint64_t step = rest / a->stride[k];
        if (step >= s->shape[k])
            return false;
        rest -= step * a->stride[k];
        *out += (a->down[k] == b->down[k] ? step : s->shape[k] - 1 - step) * b->stride[k];
    }
    return rest == 0;
}

bool ws_slice_to(const struct ws_slice *s, uint64_t from, uint64_t *to)
{
    return convert(s, &s->from, &s->to, from, to);
}

bool ws_slice_from(const struct ws_slice *s, uint64_t to, uint64_t *from)
{
    return convert(s, &s->to, &s->from, to, from);
}
