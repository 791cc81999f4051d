#include "transports/patch/patch.h"
#include "transports/base/cpu_features.h"
#include "transports/base/vector.h"
#include "transports/base/workers.h"
#include "transports/patch/values.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 8
#define RUN         (64UL << 10) /* places that a worker does at a time */

struct region {
    char *tensor;
    size_t destination;
    uint64_t to, from;
    unsigned n_dims;
    uint64_t shape[WS_MAX_DIMS];
    int64_t to_strides[WS_MAX_DIMS], from_strides[WS_MAX_DIMS];
    /* of prepare */
    struct ws_slice slice;
    const struct ws_tensor_changes *changes;
};
WS_VECTOR(regions, struct region);

struct destination {
    unsigned char *memory; /* NULL: elsewhere */
    uint64_t elements;
    /* of prepare */
    struct ws_patch_values values;
    uint64_t *listed; /* its places as u64, for who asks; NULL: not yet */
};
WS_VECTOR(destinations, struct destination);

struct ws_patch {
    struct regions regions;
    struct destinations destinations;
    size_t *by_memory; /* destinations with memory, by address */
    size_t n_by_memory, room_by_memory;
    bool is_prepared;
    size_t *by_destination, *first; /* numbers of regions, and where those of a destination begin */
    uint64_t *runs;                 /* runs of the destinations before each, and of all */
    struct ws_workers *workers;
    unsigned threads;
};

struct ws_patch *ws_patch_new(void)
{
    return calloc(1, sizeof(struct ws_patch));
}

static void forget(struct ws_patch *p)
{
    p->is_prepared = false;
    for (size_t i = 0; i < p->destinations.len; i++) {
        ws_patch_values_free(&p->destinations.ptr[i].values);
        free(p->destinations.ptr[i].listed);
        p->destinations.ptr[i].listed = NULL;
    }
    free(p->by_destination);
    free(p->first);
    free(p->runs);
    p->by_destination = p->first = NULL;
    p->runs = NULL;
}

void ws_patch_free(struct ws_patch *p)
{
    if (!p)
        return;
    forget(p);
    ws_workers_free(p->workers);
    for (size_t i = 0; i < p->regions.len; i++)
        free(p->regions.ptr[i].tensor);
    regions_reset(&p->regions);
    destinations_reset(&p->destinations);
    free(p->by_memory);
    free(p);
}

bool ws_patch_is_prepared(const struct ws_patch *p)
{
    return p->is_prepared;
}

size_t ws_patch_destinations(const struct ws_patch *p)
{
    return p->destinations.len;
}

/* --- regions --- */

/* The place of a memory in the list by address. */
static size_t place_of(const struct ws_patch *p, const unsigned char *memory)
{
    size_t low = 0, high = p->n_by_memory;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (p->destinations.ptr[p->by_memory[mid]].memory < memory)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static const unsigned char *end_of(const struct destination *d)
{
    return d->memory + d->elements * d->values.element_bytes;
}

static int new_destination(struct ws_patch *p, const struct destination *d, size_t place, size_t *out,
                           struct ws_error *err)
{
    if (p->n_by_memory == p->room_by_memory) {
        const size_t room = p->room_by_memory ? 2 * p->room_by_memory : 64;
        size_t *grown = realloc(p->by_memory, room * sizeof(*grown));
        if (!grown)
            return ws_error_set(err, ENOMEM, "no memory for a region");
        p->by_memory = grown;
        p->room_by_memory = room;
    }
    if (destinations_append(&p->destinations, *d) < 0)
        return ws_error_set(err, ENOMEM, "no memory for a region");
    *out = p->destinations.len - 1;
    if (!d->memory)
        return 0;
    memmove(p->by_memory + place + 1, p->by_memory + place, (p->n_by_memory - place) * sizeof(*p->by_memory));
    p->by_memory[place] = *out;
    p->n_by_memory++;
    return 0;
}

static int find_destination(struct ws_patch *p, const struct ws_patch_region *r, size_t *out,
                            struct ws_error *err)
{
    const struct destination d = {
        .memory = r->memory, .elements = r->memory_elements, .values = {.element_bytes = r->element_bytes}};
    const size_t place = place_of(p, r->memory);
    const struct destination *list = p->destinations.ptr;
    const size_t *at = p->by_memory;
    if (!d.memory)
        return new_destination(p, &d, 0, out, err);
    if (place < p->n_by_memory && list[at[place]].memory == d.memory) {
        *out = at[place];
        if (list[*out].elements == d.elements && list[*out].values.element_bytes == r->element_bytes)
            return 0;
        return ws_error_set(err, EINVAL, "the memory of %s was named with another size before", r->tensor);
    }
    if ((place < p->n_by_memory && end_of(&d) > list[at[place]].memory) ||
        (place > 0 && end_of(&list[at[place - 1]]) > d.memory))
        return ws_error_set(err, EINVAL,
                            "the memory of %s overlaps another's: name both by where their storage begins",
                            r->tensor);
    return new_destination(p, &d, place, out, err);
}

int ws_patch_add(struct ws_patch *p, const struct ws_patch_region *r, struct ws_error *err)
{
    struct region g = {.to = r->to, .from = r->from, .n_dims = r->n_dims};
    uint64_t bytes;
    if (!r->tensor)
        return ws_error_set(err, EINVAL, "a region without a tensor");
    if (r->element_bytes != 1 && r->element_bytes != 2 && r->element_bytes != 4 && r->element_bytes != 8)
        return ws_error_set(err, EINVAL, "%s: elements of %u bytes; 1, 2, 4 and 8 are possible", r->tensor,
                            r->element_bytes);
    if ((uintptr_t)r->memory % r->element_bytes != 0)
        return ws_error_set(err, EINVAL, "%s: its memory is not aligned to its elements", r->tensor);
    if (r->n_dims > WS_MAX_DIMS || __builtin_mul_overflow(r->memory_elements, r->element_bytes, &bytes) ||
        bytes > INT64_MAX || (uintptr_t)r->memory > UINTPTR_MAX - bytes)
        return ws_error_set(err, EINVAL, "%s: more than %d dimensions, or more memory than there is",
                            r->tensor, WS_MAX_DIMS);
    for (unsigned k = 0; k < r->n_dims; k++) {
        g.shape[k] = r->shape[k];
        g.to_strides[k] = r->to_strides[k];
        g.from_strides[k] = r->from_strides[k];
    }
    forget(p);
    if (!(g.tensor = strdup(r->tensor)))
        return ws_error_set(err, ENOMEM, "no memory for a region");
    int rc = find_destination(p, r, &g.destination, err);
    if (rc == 0 && regions_append(&p->regions, g) < 0)
        rc = ws_error_set(err, ENOMEM, "no memory for a region");
    if (rc < 0)
        free(g.tensor);
    return rc;
}

/* --- translation --- */

/* A change of a region's tensor, by its place in memory. */
struct entry {
    uint64_t to, change; /* the number of the change in its tensor's list */
    uint32_t region;     /* among those of the destination */
};
WS_VECTOR(entries, struct entry);

struct preparing {
    struct ws_patch *p;
    const struct ws_changes *changes;
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

static int translate(struct region *r, uint32_t number, struct entries *out, bool *is_sorted)
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

static const struct region *region_of(const struct ws_patch *p, size_t destination, uint32_t number)
{
    return &p->regions.ptr[p->by_destination[p->first[destination] + number]];
}

static bool says_the_same(const struct region *a, uint64_t i, const struct region *b, uint64_t k)
{
    const unsigned w = a->changes->element_bytes;
    return memcmp(a->changes->before + i * w, b->changes->before + k * w, w) == 0 &&
           memcmp(a->changes->after + i * w, b->changes->after + k * w, w) == 0;
}

static int conflict(const struct region *a, const struct region *b, uint64_t to, struct ws_error *err)
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
        const struct ws_slice *a = &region_of(p, destination, (uint32_t)i)->slice;
        for (size_t k = i + 1; k < n; k++) {
            const struct ws_slice *b = &region_of(p, destination, (uint32_t)k)->slice;
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
    const struct region *a = region_of(p, d, first->region);
    for (uint32_t k = 0; k < n_regions; k++) {
        const struct region *b = region_of(p, d, k);
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
    struct destination *to = &p->destinations.ptr[d];
    int rc = ws_patch_values_room(&to->values, list->len, to->elements);
    for (size_t i = 0; rc == 0 && i < list->len; i++) {
        const struct entry *e = &list->ptr[i];
        const struct ws_tensor_changes *t = region_of(p, d, e->region)->changes;
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

/* --- prepare --- */

static int resolve(struct ws_patch *p, struct region *r, const struct ws_changes *c, struct ws_error *err)
{
    const struct destination *d = &p->destinations.ptr[r->destination];
    r->changes = ws_changes_find(c, r->tensor);
    if (!r->changes)
        return ws_error_set(err, ENOENT, "the version has no tensor %s", r->tensor);
    if (r->changes->element_bytes != d->values.element_bytes)
        return ws_error_set(err, EINVAL, "%s has elements of %u bytes, and in memory of %u", r->tensor,
                            r->changes->element_bytes, d->values.element_bytes);
    const int rc = ws_slice_init(&r->slice, r->n_dims, r->shape, r->to, r->to_strides, d->elements, r->from,
                                 r->from_strides, r->changes->elements, err);
    if (rc < 0)
        ws_error_prefix(err, "a region of %s", r->tensor);
    return rc;
}

/* Regions by destination, in the order of add. */
static int group(struct ws_patch *p, struct ws_error *err)
{
    const size_t n = p->destinations.len;
    p->first = calloc(n + 2, sizeof(*p->first));
    p->by_destination = malloc((p->regions.len + 1) * sizeof(*p->by_destination));
    p->runs = calloc(n + 1, sizeof(*p->runs));
    if (!p->first || !p->by_destination || !p->runs)
        return ws_error_set(err, ENOMEM, "no memory for a plan of %zu regions", p->regions.len);
    for (size_t i = 0; i < p->regions.len; i++)
        p->first[p->regions.ptr[i].destination + 2]++;
    for (size_t d = 2; d < n + 2; d++)
        p->first[d] += p->first[d - 1];
    for (size_t i = 0; i < p->regions.len; i++)
        p->by_destination[p->first[p->regions.ptr[i].destination + 1]++] = i;
    return 0;
}

static int start_workers(struct ws_patch *p, unsigned threads, struct ws_error *err)
{
    const unsigned want = threads ? threads : ws_cpu_cores(MAX_THREADS);
    if (!p->workers || p->threads != want) {
        ws_workers_free(p->workers);
        p->workers = ws_workers_new(want, 0);
        p->threads = want;
    }
    return p->workers ? 0 : ws_error_set(err, ENOMEM, "no memory for %u threads", want);
}

int ws_patch_prepare(struct ws_patch *p, const struct ws_changes *c, unsigned threads, struct ws_error *err)
{
    struct preparing g = {.p = p, .changes = c};
    forget(p);
    int rc = start_workers(p, threads, err);
    for (size_t i = 0; rc == 0 && i < p->regions.len; i++)
        rc = resolve(p, &p->regions.ptr[i], c, err);
    if (rc == 0)
        rc = group(p, err);
    if (rc == 0) {
        pthread_mutex_init(&g.lock, NULL);
        ws_workers_run(p->workers, do_destination, &g, p->destinations.len);
        rc = atomic_load(&g.rc);
        if (rc < 0 && err)
            *err = g.err;
        pthread_mutex_destroy(&g.lock);
    }
    if (rc < 0) {
        forget(p);
        return rc;
    }
    assert(p->runs);
    for (size_t d = 0; d < p->destinations.len; d++)
        p->runs[d + 1] =
            p->runs[d] +
            (p->destinations.ptr[d].memory ? p->destinations.ptr[d].values.n + RUN - 1 : 0) / RUN;
    p->is_prepared = true;
    return 0;
}

uint64_t ws_patch_count(const struct ws_patch *p, uint64_t *bytes)
{
    uint64_t n = 0;
    *bytes = 0;
    for (size_t i = 0; i < p->destinations.len; i++) {
        const struct destination *d = &p->destinations.ptr[i];
        n += d->values.n;
        *bytes += ws_patch_values_bytes(&d->values) + (d->listed ? d->values.n * sizeof(uint64_t) : 0);
    }
    return n;
}

int ws_patch_list(struct ws_patch *p, size_t i, const uint64_t **indexes, const void **before,
                  const void **after, uint64_t *n)
{
    struct destination *d = i < p->destinations.len && p->is_prepared ? &p->destinations.ptr[i] : NULL;
    if (!d)
        return -ERANGE;
    if (!d->listed && !d->values.is_wide) {
        d->listed = malloc((d->values.n + 1) * sizeof(*d->listed));
        if (!d->listed)
            return -ENOMEM;
        for (uint64_t k = 0; k < d->values.n; k++)
            d->listed[k] = ws_patch_values_place(&d->values, k);
    }
    *indexes = d->values.is_wide ? d->values.places : d->listed;
    *before = d->values.before;
    *after = d->values.after;
    *n = d->values.n;
    return 0;
}

/* --- check, put, undo --- */

struct pass {
    struct ws_patch *p;
    bool is_undo;
    atomic_bool differs;
    pthread_mutex_t lock;
    size_t destination; /* guarded by lock: of the first that differs */
    uint64_t i;
};

/* The destination of a run, and its places. */
static size_t find_run(const struct ws_patch *p, size_t run, uint64_t *from, uint64_t *to)
{
    size_t low = 0, high = p->destinations.len;
    while (high - low > 1) {
        const size_t mid = low + (high - low) / 2;
        if (p->runs[mid] <= run)
            low = mid;
        else
            high = mid;
    }
    const uint64_t n = p->destinations.ptr[low].values.n;
    *from = (run - p->runs[low]) * RUN;
    *to = n - *from < RUN ? n : *from + RUN;
    return low;
}

static void write_run(void *arg, size_t run)
{
    const struct pass *k = arg;
    uint64_t from, to;
    const struct destination *d = &k->p->destinations.ptr[find_run(k->p, run, &from, &to)];
    ws_patch_values_write(&d->values, d->memory, k->is_undo, from, to);
}

static void check_run(void *arg, size_t run)
{
    struct pass *k = arg;
    uint64_t from, to;
    const size_t number = find_run(k->p, run, &from, &to);
    const struct destination *d = &k->p->destinations.ptr[number];
    if (atomic_load(&k->differs))
        return;
    const uint64_t at = ws_patch_values_compare(&d->values, d->memory, from, to);
    if (at == to)
        return;
    pthread_mutex_lock(&k->lock);
    if (!atomic_load(&k->differs)) {
        k->destination = number;
        k->i = at;
    }
    atomic_store(&k->differs, true);
    pthread_mutex_unlock(&k->lock);
}

static uint64_t number_at(const unsigned char *p, unsigned width)
{
    uint64_t v = 0;
    memcpy(&v, p, width);
    return v;
}

static int describe(const struct pass *k, struct ws_error *err)
{
    const struct ws_patch *p = k->p;
    const struct destination *d = &p->destinations.ptr[k->destination];
    const uint64_t place = ws_patch_values_place(&d->values, k->i);
    const unsigned w = d->values.element_bytes;
    const size_t n = p->first[k->destination + 1] - p->first[k->destination];
    uint64_t from = 0;
    const struct region *r = NULL;
    for (size_t i = 0; i < n && !(r && ws_slice_from(&r->slice, place, &from)); i++)
        r = region_of(p, k->destination, (uint32_t)i);
    return ws_error_set(
        err, ESTALE,
        "element %" PRIu64 " of %s is 0x%0*" PRIx64 " in memory, and 0x%0*" PRIx64
        " in the base: something else has written there. Nothing was written; load the version whole",
        from, r ? r->tensor : "?", (int)(2 * w), number_at(d->memory + place * w, w), (int)(2 * w),
        number_at(d->values.before + k->i * w, w));
}

int ws_patch_check(struct ws_patch *p, struct ws_error *err)
{
    struct pass k = {.p = p};
    assert(p->is_prepared);
    pthread_mutex_init(&k.lock, NULL);
    ws_workers_run(p->workers, check_run, &k, p->runs[p->destinations.len]);
    pthread_mutex_destroy(&k.lock);
    return atomic_load(&k.differs) ? describe(&k, err) : 0;
}

void ws_patch_put(struct ws_patch *p)
{
    struct pass k = {.p = p};
    assert(p->is_prepared);
    ws_workers_run(p->workers, write_run, &k, p->runs[p->destinations.len]);
}

void ws_patch_undo(struct ws_patch *p)
{
    struct pass k = {.p = p, .is_undo = true};
    assert(p->is_prepared);
    ws_workers_run(p->workers, write_run, &k, p->runs[p->destinations.len]);
}
