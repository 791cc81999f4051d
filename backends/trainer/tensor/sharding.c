#include "backends/trainer/tensor/sharding.h"
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>

#define MAX_RANGES 65536 /* of one dimension */

/* NULL: there is none. */
static struct ws_element_range *last_of(const struct ws_element_ranges *r)
{
    return r->len ? &r->ptr[r->len - 1] : NULL;
}

uint64_t ws_element_ranges_count(const struct ws_element_ranges *r)
{
    const struct ws_element_range *last = last_of(r);
    return last ? last->local + last->count : 0;
}

static int append(struct ws_element_ranges *r, uint64_t start, uint64_t count)
{
    const uint64_t local = ws_element_ranges_count(r);
    struct ws_element_range *last = last_of(r);
    if (count == 0)
        return 0;
    if (last && last->start + last->count == start) {
        last->count += count;
        return 0;
    }
    return ws_element_ranges_append_most(r, (struct ws_element_range){start, count, local}, MAX_RANGES);
}

/* The local indices [begin, end) of `from`, at the end of `to`. */
static int cut(const struct ws_element_ranges *from, uint64_t begin, uint64_t end,
               struct ws_element_ranges *to)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < from->len; i++) {
        const struct ws_element_range *r = &from->ptr[i];
        uint64_t a = r->local > begin ? r->local : begin,
                 b = r->local + r->count < end ? r->local + r->count : end;
        if (a < b)
            rc = append(to, r->start + (a - r->local), b - a);
    }
    return rc;
}

/* Piece `i` of `pieces` of the indices [begin, end): all but the last ones have ceil(n / pieces), as
 * torch.chunk cuts. */
static void chunk(uint64_t *begin, uint64_t *end, uint64_t pieces, uint64_t i)
{
    uint64_t n = *end - *begin, each = n / pieces + (n % pieces != 0), first = *begin;
    uint64_t a = each && i > n / each ? n : i * each, b = n - a < each ? n : a + each;
    *begin = first + a;
    *end = first + b;
}

static int apply(struct ws_element_ranges *dim, const wsync_placement *p, struct ws_sections sections)
{
    const bool sized = p->kind == WSYNC_SECTION_SHARD;
    uint64_t n = ws_element_ranges_count(dim), first = 0;
    uint64_t factor = sized ? sections.n : p->kind == WSYNC_STRIDED_SHARD ? p->split_factor : 1;
    struct ws_element_ranges out = {0};
    int rc = 0;
    for (uint64_t k = 0; rc == 0 && k < factor; k++) {
        uint64_t begin = first, end = n;
        if (sized)
            end = first += sections.sizes[k];
        else
            chunk(&begin, &end, factor, k);
        chunk(&begin, &end, p->size, p->coordinate);
        rc = cut(dim, begin, end, &out);
    }
    ws_element_ranges_reset(dim);
    *dim = out;
    return rc;
}

static int check_sections(const char *name, const wsync_placement *p, uint64_t n, struct ws_sections sections,
                          struct ws_error *err)
{
    uint64_t left = n;
    for (unsigned k = 0; k < sections.n && k < MAX_RANGES; k++) {
        if (sections.sizes[k] > left)
            break;
        left -= sections.sizes[k];
        if (sections.sizes[k] % p->size)
            return ws_error_set(
                err, EINVAL, "%s: its section %u has %" PRIu64 " indices, which %u ranks cannot share evenly",
                name, k, sections.sizes[k], p->size);
        if (k + 1 == sections.n && left == 0)
            return 0;
    }
    return ws_error_set(err, EINVAL,
                        "%s: its %u sections do not fill the %" PRIu64 " indices of dimension %u", name,
                        sections.n, n, p->dim);
}

static int check(const char *name, const wsync_placement *p, unsigned n_dims, struct ws_error *err)
{
    if (p->size == 0 || p->coordinate >= p->size)
        return ws_error_set(err, EINVAL, "%s: coordinate %u of a mesh dimension of size %u makes no sense",
                            name, p->coordinate, p->size);
    if (p->kind != WSYNC_REPLICATE && p->kind != WSYNC_SHARD && p->kind != WSYNC_STRIDED_SHARD &&
        p->kind != WSYNC_SECTION_SHARD)
        return ws_error_set(
            err, EINVAL,
            "%s has a placement of no known kind (%d): only Replicate, Shard and _StridedShard are "
            "weights that are stored",
            name, (int)p->kind);
    if (p->kind != WSYNC_REPLICATE && p->dim >= n_dims)
        return ws_error_set(err, EINVAL, "%s is sharded on dimension %u and has %u", name, p->dim, n_dims);
    if (p->kind == WSYNC_STRIDED_SHARD && (p->split_factor == 0 || p->split_factor > MAX_RANGES))
        return ws_error_set(err, EINVAL, "%s has a strided shard with a split factor of %u", name,
                            p->split_factor);
    return 0;
}

int ws_sharding_make(const char *name, const uint64_t *shape, unsigned n_dims,
                     const wsync_placement *placements, unsigned n_placements, struct ws_sections sections,
                     struct ws_sharding *out, struct ws_error *err)
{
    int rc = 0;
    *out = (struct ws_sharding){.n_dims = n_dims};
    for (unsigned d = 0; rc == 0 && d < n_dims; d++)
        rc = append(&out->dims[d], 0, shape[d]);
    for (unsigned i = 0; rc == 0 && i < n_placements; i++) {
        const wsync_placement *p = &placements[i];
        rc = check(name, p, n_dims, err);
        if (rc == 0 && p->kind == WSYNC_SECTION_SHARD)
            rc = check_sections(name, p, ws_element_ranges_count(&out->dims[p->dim]), sections, err);
        if (rc < 0)
            return rc;
        if (p->kind != WSYNC_REPLICATE)
            rc = apply(&out->dims[p->dim], p, sections);
    }
    if (rc == -E2BIG)
        return ws_error_set(err, E2BIG, "%s is cut into over %d runs of a dimension", name, MAX_RANGES);
    return rc < 0 ? ws_error_set(err, ENOMEM, "no memory for the sharding of %s", name) : 0;
}

void ws_sharding_release(struct ws_sharding *s)
{
    for (unsigned d = 0; d < s->n_dims; d++)
        ws_element_ranges_reset(&s->dims[d]);
    *s = (struct ws_sharding){0};
}
