/* Changes of tensors to places in memory: each destination's list, by place; what several regions say of one place has to be the same. */
#include "transports/patch/patch_state.h"
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A change of a region's tensor, by its place in memory. */
struct entry {
    uint64_t to, change; /* the number of the change in its tensor's list */
    uint32_t region;     /* among those of the destination */
};
WS_VECTOR(entries, struct entry);

struct preparing {
    struct ws_patch *p;
    pthread_mutex_t lock;
    _Atomic(int) rc;
    struct ws_error err; /* guarded by lock */
};

static void fail(struct preparing *g, int rc, const struct ws_error *why)
{
    int none = 0;
    pthread_mutex_lock(&g->lock);
    if (atomic_compare_exchange_strong(&g->rc, &none, rc))
        g->err = *why;
    pthread_mutex_unlock(&g->lock);
}

/* The first change at or after an element. */
static uint64_t change_at(const struct ws_tensor_changes *t, uint64_t element)
{
    uint64_t low = 0, high = t->n;
    while (low < high) {
        const uint64_t mid = low + (high - low) / 2;
        if (ws_tensor_changes_index(t, mid) < element)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static int translate(struct ws_patch_range *r, uint32_t number, struct entries *out, bool *is_sorted)
{
    const struct ws_slice *s = &r->slice;
    const struct ws_tensor_changes *t = r->changes;
    if (s->count == 0)
        return 0;
    const uint64_t end = s->from.high == UINT64_MAX ? t->n : change_at(t, s->from.high + 1);
    const bool is_run = s->n_dims == 0 || (s->n_dims == 1 && s->to.stride[0] == 1 && s->from.stride[0] == 1 &&
                                           s->to.down[0] == s->from.down[0]);
    for (uint64_t i = change_at(t, s->from.low); i < end; i++) {
        const uint64_t from = ws_tensor_changes_index(t, i);
        struct entry e = {.change = i, .region = number, .to = s->to.low + (from - s->from.low)};
        if (!is_run && !ws_slice_to(s, from, &e.to))
            continue;
        *is_sorted = *is_sorted && (out->len == 0 || out->ptr[out->len - 1].to < e.to);
        if (entries_append(out, e) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    return x->region < y->region ? -1 : x->region > y->region;
}

static bool says_the_same(const struct ws_patch_range *a, uint64_t i, const struct ws_patch_range *b,
                          uint64_t k)
{
    const unsigned w = a->changes->element_bytes;
    return memcmp(a->changes->before + i * w, b->changes->before + k * w, w) == 0 &&
           memcmp(a->changes->after + i * w, b->changes->after + k * w, w) == 0;
}

static int conflict(const struct ws_patch_range *a, const struct ws_patch_range *b, uint64_t to,
                    struct ws_error *err)
{
    return ws_error_set(err, EEXIST,
                        "%s and %s lie in one memory, and have different values for its element %" PRIu64
                        ": which of them counts is not known",
                        a->tensor, b->tensor, to);
}

/* Do regions of this destination reach into each other's bounds? */
static bool may_overlap(const struct ws_patch *p, size_t destination, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++) {
        const struct ws_slice *a = &ws_patch_region_of(p, destination, (uint32_t)i)->slice;
        for (size_t k = i + 1; k < n; k++) {
            const struct ws_slice *b = &ws_patch_region_of(p, destination, (uint32_t)k)->slice;
            if (a->count && b->count && a->to.low <= b->to.high && b->to.low <= a->to.high)
                return true;
        }
    }
    return false;
}

/* Entries i to end have one place. Each region that has the place has to be among them. */
static int check_place(const struct ws_patch *p, size_t d, size_t n_regions, const struct entries *list,
                       size_t i, size_t end, struct ws_error *err)
{
    const struct entry *first = &list->ptr[i];
    const struct ws_patch_range *a = ws_patch_region_of(p, d, first->region);
    for (uint32_t k = 0; k < n_regions; k++) {
        const struct ws_patch_range *b = ws_patch_region_of(p, d, k);
        uint64_t from;
        size_t at = i;
        while (at < end && list->ptr[at].region != k)
            at++;
        if (at < end ? !says_the_same(a, first->change, b, list->ptr[at].change)
                     : ws_slice_from(&b->slice, first->to, &from))
            return conflict(a, b, first->to, err);
    }
    return 0;
}

/* One entry a place is left. */
static int join_places(const struct ws_patch *p, size_t d, size_t n_regions, struct entries *list,
                       struct ws_error *err)
{
    size_t out = 0;
    int rc = 0;
    if (n_regions < 2 || !may_overlap(p, d, n_regions))
        return 0;
    for (size_t i = 0, end; rc == 0 && i < list->len; i = end) {
        for (end = i + 1; end < list->len && list->ptr[end].to == list->ptr[i].to;)
            end++;
        rc = check_place(p, d, n_regions, list, i, end, err);
        list->ptr[out++] = list->ptr[i];
    }
    list->len = out;
    return rc;
}

static int store(struct ws_patch *p, size_t d, const struct entries *list)
{
    struct ws_patch_destination *to = &p->destinations.ptr[d];
    int rc = ws_patch_values_room(&to->values, list->len, to->elements);
    for (size_t i = 0; rc == 0 && i < list->len; i++) {
        const struct entry *e = &list->ptr[i];
        const struct ws_tensor_changes *t = ws_patch_region_of(p, d, e->region)->changes;
        ws_patch_values_set(&to->values, i, e->to, t->before + e->change * t->element_bytes,
                            t->after + e->change * t->element_bytes);
    }
    return rc;
}

static void do_destination(void *arg, size_t d)
{
    struct preparing *g = arg;
    struct ws_patch *p = g->p;
    const size_t n = p->first[d + 1] - p->first[d];
    struct entries list = {0};
    struct ws_error why;
    bool is_sorted = true;
    int rc = 0;
    if (atomic_load(&g->rc))
        return;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = translate(&p->regions.ptr[p->by_destination[p->first[d] + i]], (uint32_t)i, &list, &is_sorted);
    if (rc == 0 && !is_sorted)
        qsort(list.ptr, list.len, sizeof(*list.ptr), by_place);
    if (rc == 0)
        rc = join_places(p, d, n, &list, &why);
    if (rc == 0)
        rc = store(p, d, &list);
    if (rc == -ENOMEM)
        rc = ws_error_set(&why, ENOMEM, "no memory for a plan of %zu changes", list.len);
    entries_reset(&list);
    if (rc < 0)
        fail(g, rc, &why);
}

int ws_patch_translate(struct ws_patch *p, struct ws_error *err)
{
    struct preparing g = {.p = p};
    pthread_mutex_init(&g.lock, NULL);
    ws_workers_run(p->workers, do_destination, &g, p->destinations.len);
    const int rc = atomic_load(&g.rc);
    if (rc < 0 && err)
        *err = g.err;
    pthread_mutex_destroy(&g.lock);
    return rc;
}
