#include "backends/trainer/tensor/replicas.h"
#include "transports/base/vector.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct holder {
    uint64_t id;
    struct ws_entry *entry;
};

static int by_id(const void *x, const void *y)
{
    const struct holder *a = x, *b = y;
    if (a->id != b->id)
        return a->id < b->id ? -1 : 1;
    return a->entry->rank < b->entry->rank ? -1 : a->entry->rank > b->entry->rank;
}

static uint64_t id_of(const struct ws_entry *e, uint64_t tensor)
{
    uint64_t v[3 + 2 * WS_MAX_DIMS] = {tensor, e->piece.range};
    size_t n = 2;
    if (e->piece.range) {
        v[n++] = e->piece.start;
        v[n++] = e->piece.count;
    }
    for (unsigned d = 0; !e->piece.range && d < e->tensor.n_dims; d++) {
        v[n++] = e->piece.offset[d];
        v[n++] = e->piece.size[d];
    }
    const uint64_t h = ws_hash(v, n * sizeof(v[0]));
    return h ? h : 1;
}

static uint64_t id_of_tensor(const struct ws_tensor *t)
{
    uint64_t v[3 + WS_MAX_DIMS] = {ws_hash(t->name, strlen(t->name)), (uint64_t)t->dtype, t->n_dims};
    memcpy(v + 3, t->shape, t->n_dims * sizeof(v[0]));
    return ws_hash(v, (3 + t->n_dims) * sizeof(v[0]));
}

static int add(struct ws_replicas *r, const struct holder *h, unsigned n_holders, struct ws_error *err)
{
    const struct ws_entry *e = h->entry;
    struct ws_replica *list = ws_vector_room(r->list, r->n, sizeof(*list));
    if (!list)
        return ws_error_set(err, ENOMEM, "no memory for a list of replicas");
    r->list = list;
    struct ws_replica *one = &r->list[r->n];
    *one = (struct ws_replica){.id = h->id,
                               .tensor = e->tensor,
                               .piece = e->piece,
                               .bytes = ws_piece_elements(&e->piece, e->tensor.n_dims) *
                                        ws_dtype_bits(e->tensor.dtype) / 8,
                               .n_holders = n_holders};
    one->tensor.name = strdup(e->tensor.name);
    if (!one->tensor.name)
        return ws_error_set(err, ENOMEM, "no memory for a list of replicas");
    r->n++;
    return 0;
}

int ws_replicas_add(struct ws_replicas *r, struct ws_registration *const *regs,
                    struct ws_entry *const *entries, size_t n, struct ws_error *err)
{
    struct holder *all = n > 1 ? malloc(n * sizeof(*all)) : NULL;
    int rc = 0;
    if (n > 1 && !all)
        return ws_error_set(err, ENOMEM, "no memory for a list of replicas");
    const uint64_t tensor = id_of_tensor(&entries[0]->tensor);
    for (size_t i = 0; i < n; i++) {
        entries[i]->replica = 0;
        if (all)
            all[i] = (struct holder){id_of(entries[i], tensor), entries[i]};
    }
    if (all)
        qsort(all, n, sizeof(all[0]), by_id);
    for (size_t i = 0, k; all && rc == 0 && i < n; i += k) {
        unsigned holders = 0;
        for (k = 0; i + k < n && all[i + k].id == all[i].id; k++)
            holders += regs[all[i + k].entry->rank]->audits;
        if (holders < 2 || ws_piece_elements(&all[i].entry->piece, all[i].entry->tensor.n_dims) == 0)
            continue;
        for (size_t j = i; j < i + k; j++)
            all[j].entry->replica = all[i].id;
        rc = add(r, &all[i], holders, err);
    }
    free(all);
    return rc;
}

static int replicas_by_id(const void *x, const void *y)
{
    const struct ws_replica *a = x, *b = y;
    return a->id < b->id ? -1 : a->id > b->id;
}

void ws_replicas_finish(struct ws_replicas *r, struct ws_registration *const *regs, unsigned world_size)
{
    unsigned first = world_size;
    r->first_without_audits = world_size;
    for (unsigned i = world_size; i-- > 0;) {
        first = regs[i]->audits ? i : first;
        r->first_without_audits = regs[i]->audits ? r->first_without_audits : i;
    }
    if (r->first_without_audits == world_size)
        r->first_without_audits = WS_MAX_RANKS;
    r->every = first < world_size ? regs[first]->audit : WSYNC_NO_AUDIT;
    r->warns = first < world_size && regs[first]->audit_warns;
    if (r->n > 0)
        qsort(r->list, r->n, sizeof(r->list[0]), replicas_by_id);
    r->bytes = 0;
    for (size_t i = 0; i < r->n; i++) {
        r->list[i].bytes_before = r->bytes;
        r->bytes += r->list[i].bytes * r->list[i].n_holders;
    }
}

void ws_replicas_locate(struct ws_replicas *r, struct ws_registration *const *regs, unsigned world_size,
                        const unsigned *node_of, unsigned own)
{
    for (size_t i = 0; i < r->n; i++)
        r->list[i].here = !node_of;
    for (unsigned rank = 0; node_of && rank < world_size; rank++)
        for (size_t i = 0; i < regs[rank]->n_entries; i++) {
            const uint64_t id = regs[rank]->entries[i].replica;
            struct ws_replica *one =
                id && regs[rank]->audits ? (struct ws_replica *)(uintptr_t)ws_replicas_find(r, id) : NULL;
            if (!one)
                continue;
            one->spans = one->spans || (one->node && one->node != node_of[rank] + 1);
            one->node = node_of[rank] + 1;
            one->here = one->here || node_of[rank] == own;
        }
}

void ws_replicas_clear(struct ws_replicas *r)
{
    for (size_t i = 0; i < r->n; i++)
        free((char *)(uintptr_t)r->list[i].tensor.name);
    free(r->list);
    *r = (struct ws_replicas){0};
}

const struct ws_replica *ws_replicas_find(const struct ws_replicas *r, uint64_t id)
{
    const struct ws_replica key = {.id = id};
    return r->n ? bsearch(&key, r->list, r->n, sizeof(key), replicas_by_id) : NULL;
}

struct ws_replica_window ws_replicas_window_all(const struct ws_replicas *r)
{
    return (struct ws_replica_window){0, r->bytes};
}

struct ws_replica_window ws_replicas_window_turn(const struct ws_replicas *r, uint64_t offload, uint64_t turn)
{
    const uint64_t most = offload / 2 ? offload / 2 : 1, n = (r->bytes + most - 1) / most;
    const uint64_t each = n ? (r->bytes + n - 1) / n : 0, from = n ? turn % n * each : 0;
    return (struct ws_replica_window){from, from + each};
}

/* The first chunk that begins there or behind it. */
static uint64_t chunk_from(const struct ws_replica *r, uint64_t at)
{
    const uint64_t step = WS_BLOCK_BYTES * r->n_holders, n = (r->bytes + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES;
    const uint64_t chunk = at <= r->bytes_before ? 0 : (at - r->bytes_before + step - 1) / step;
    return chunk < n ? chunk : n;
}

uint64_t ws_replica_chunks(const struct ws_replica *r, const struct ws_replica_window *w, uint64_t *first)
{
    *first = chunk_from(r, w->from);
    return chunk_from(r, w->to) - *first;
}
