/* Blocks that a rank fills alone from host memory, compared with the version before in the same pass (copy_compare.h).
 * Each gets the lines that changed and a record, or none of both where anything is short; it is copied and hashed in any
 * case.
 *
 * Of some blocks, others in each version, the bytes are read back from the slot: where they do not have the hash of the
 * source, the block is written whole, and the caller is told, who trusts the line map no more. */
#include "backends/trainer/offload/copy_plan_state.h"
#include <stdlib.h>

/* Beyond, writing lines saves less than it costs. */
#define MOST_STALE (WS_BLOCK_BYTES / WS_LINE_BYTES * 45 / 100)

struct one {
    struct ws_copy_compare *compare;
    uint64_t stale[WS_LINE_WORDS];
};

struct ws_copy_plan_compare_scratch {
    unsigned n;
    struct one *of[]; /* by worker; NULL: it has compared no block yet */
};

void ws_copy_plan_compare_free(struct ws_copy_plan_compare_scratch *t)
{
    for (unsigned i = 0; t && i < t->n; i++) {
        if (t->of[i])
            ws_copy_compare_free(t->of[i]->compare);
        free(t->of[i]);
    }
    free(t);
}

struct ws_copy_plan_compare_scratch *ws_copy_plan_compare_new(unsigned n_workers)
{
    struct ws_copy_plan_compare_scratch *t = calloc(1, sizeof(*t) + n_workers * sizeof(t->of[0]));
    if (t)
        t->n = n_workers;
    return t;
}

/* NULL: no memory. */
static struct one *scratch_of(struct ws_copy_plan_compare_scratch *t, unsigned worker)
{
    struct one *o = t->of[worker];
    if (o)
        return o;
    o = malloc(sizeof(*o));
    if (o && !(o->compare = ws_copy_compare_new())) {
        free(o);
        o = NULL;
    }
    return t->of[worker] = o;
}

static size_t index_of(const struct ws_copy_plan *p, const struct ws_copy_job *j)
{
    const struct ws_copy_span *s = &p->spans.ptr[j->first];
    return p->run->compare->first_block[s->file] + s->block;
}

static size_t len_of(const struct ws_copy_plan *p, const struct ws_copy_job *j)
{
    const struct ws_copy_span *s = &p->spans.ptr[j->first];
    uint64_t end = s->end;
    for (size_t i = 1; i < j->n; i++)
        end = s[i].end > end ? s[i].end : end;
    return end - s->block * WS_BLOCK_BYTES;
}

static unsigned char *place_of(const struct ws_copy_plan *p, const struct ws_copy_job *j)
{
    const struct ws_copy_span *s = &p->spans.ptr[j->first];
    return p->run->data[s->file] + s->block * WS_BLOCK_BYTES;
}

struct ws_copy_compare *ws_copy_plan_compare_begin(const struct ws_copy_plan *p, const struct ws_copy_job *j,
                                                   struct ws_hasher *h, unsigned worker)
{
    struct ws_copy_plan_compare *a = p->run->compare;
    const struct ws_copy_span *s = &p->spans.ptr[j->first];
    const size_t i = index_of(p, j);
    unsigned char *to = place_of(p, j);
    if (!a->base[s->file] || !a->widths[s->file] || !a->base_hashed[i] || (uintptr_t)to % WS_LINE_BYTES)
        return NULL;
    struct one *o = scratch_of(a->scratch, worker);
    uint64_t *changed = o ? ws_line_map_words(a->lines, i) : NULL;
    if (!changed)
        return NULL;
    const int stale = ws_line_map_stale(a->lines, i, o->stale);
    const bool by_lines = stale >= 0 && (size_t)stale <= MOST_STALE;
    const uint64_t offset = s->block * WS_BLOCK_BYTES;
    ws_copy_compare_begin(o->compare, &(struct ws_copy_compare_block){.to = to,
                                                                      .base = a->base[s->file] + offset,
                                                                      .len = len_of(p, j),
                                                                      .widths = a->widths[s->file],
                                                                      .offset = offset,
                                                                      .stale = by_lines ? o->stale : NULL,
                                                                      .changed = changed,
                                                                      .hasher = h});
    atomic_fetch_add_explicit(by_lines ? &a->n_lines : &a->n_whole, 1, memory_order_relaxed);
    return o->compare;
}

bool ws_copy_plan_compare_end(const struct ws_copy_plan *p, const struct ws_copy_job *j,
                              struct ws_copy_compare *c)
{
    struct ws_copy_plan_compare *a = p->run->compare;
    const struct ws_copy_span *s = &p->spans.ptr[j->first];
    const size_t i = index_of(p, j), len = len_of(p, j);
    struct ws_delta_record *record;
    uint32_t n_changed;
    ws_copy_order();
    const int rc = ws_copy_compare_end(c, (uint32_t)s->file, (uint32_t)s->block, &record, &n_changed);
    atomic_fetch_add_explicit(&a->changed, n_changed, memory_order_relaxed);
    atomic_fetch_add_explicit(&a->bytes, len, memory_order_relaxed);
    ws_line_map_record(a->lines, i);
    a->hashes[i] = j->hash;
    if (rc == 0)
        ws_history_record(a->history, i, record, a->base_hashes[i]);
    if (i % a->check_every != a->check % a->check_every || ws_hash(place_of(p, j), len) == j->hash)
        return true;
    atomic_fetch_add(&a->wrong, 1);
    return false;
}
