#include "transports/patch/patch.h"
#include "transports/base/cpu_features.h"
#include "transports/patch/patch_state.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 8

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
    ws_patch_ranges_reset(&p->regions);
    ws_patch_destinations_reset(&p->destinations);
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

static const unsigned char *end_of(const struct ws_patch_destination *d)
{
    return d->memory + d->elements * d->values.element_bytes;
}

static int new_destination(struct ws_patch *p, const struct ws_patch_destination *d, size_t place,
                           size_t *out, struct ws_error *err)
{
    if (p->n_by_memory == p->room_by_memory) {
        const size_t room = p->room_by_memory ? 2 * p->room_by_memory : 64;
        size_t *grown = realloc(p->by_memory, room * sizeof(*grown));
        if (!grown)
            return ws_error_set(err, ENOMEM, "no memory for a region");
        p->by_memory = grown;
        p->room_by_memory = room;
    }
    if (ws_patch_destinations_append(&p->destinations, *d) < 0)
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
    const struct ws_patch_destination d = {
        .memory = r->memory, .elements = r->memory_elements, .values = {.element_bytes = r->element_bytes}};
    const size_t place = place_of(p, r->memory);
    const struct ws_patch_destination *list = p->destinations.ptr;
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
    struct ws_patch_range g = {.to = r->to, .from = r->from, .n_dims = r->n_dims};
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
    if (rc == 0 && ws_patch_ranges_append(&p->regions, g) < 0)
        rc = ws_error_set(err, ENOMEM, "no memory for a region");
    if (rc < 0)
        free(g.tensor);
    return rc;
}

/* --- prepare --- */

static int resolve(struct ws_patch *p, struct ws_patch_range *r, const struct ws_changes *c,
                   struct ws_error *err)
{
    const struct ws_patch_destination *d = &p->destinations.ptr[r->destination];
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
    forget(p);
    int rc = start_workers(p, threads, err);
    for (size_t i = 0; rc == 0 && i < p->regions.len; i++)
        rc = resolve(p, &p->regions.ptr[i], c, err);
    if (rc == 0)
        rc = group(p, err);
    if (rc == 0)
        rc = ws_patch_translate(p, err);
    if (rc < 0) {
        forget(p);
        return rc;
    }
    assert(p->runs);
    for (size_t d = 0; d < p->destinations.len; d++)
        p->runs[d + 1] =
            p->runs[d] +
            (p->destinations.ptr[d].memory ? p->destinations.ptr[d].values.n + WS_PATCH_RUN - 1 : 0) /
                WS_PATCH_RUN;
    p->is_prepared = true;
    return 0;
}

uint64_t ws_patch_count(const struct ws_patch *p, uint64_t *bytes)
{
    uint64_t n = 0;
    *bytes = 0;
    for (size_t i = 0; i < p->destinations.len; i++) {
        const struct ws_patch_destination *d = &p->destinations.ptr[i];
        n += d->values.n;
        *bytes += ws_patch_values_bytes(&d->values) + (d->listed ? d->values.n * sizeof(uint64_t) : 0);
    }
    return n;
}

int ws_patch_list(struct ws_patch *p, size_t i, const uint64_t **indexes, const void **before,
                  const void **after, uint64_t *n)
{
    struct ws_patch_destination *d =
        i < p->destinations.len && p->is_prepared ? &p->destinations.ptr[i] : NULL;
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
