#include "backends/trainer/tensor/audit.h"
#include "transports/base/number.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ws_audit_add(struct ws_audit *a, const struct ws_audit_hash *h, size_t n, struct ws_error *err)
{
    const int rc = ws_audit_append_all(a, h, n);
    return rc == 0 ? 0 : ws_error_set(err, ENOMEM, "no memory for the hashes of an audit");
}

static int by_place(const void *x, const void *y)
{
    const struct ws_audit_hash *a = x, *b = y;
    if (a->replica != b->replica)
        return a->replica < b->replica ? -1 : 1;
    if (a->chunk != b->chunk)
        return a->chunk < b->chunk ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

static void sort(struct ws_audit *a)
{
    if (a->len > 0)
        qsort(a->ptr, a->len, sizeof(a->ptr[0]), by_place);
}

/* How many from the first on are of one chunk. */
static size_t group_of(const struct ws_audit *a, size_t first)
{
    size_t k = first + 1;
    while (k < a->len && a->ptr[k].replica == a->ptr[first].replica && a->ptr[k].chunk == a->ptr[first].chunk)
        k++;
    return k - first;
}

static bool agree(const struct ws_audit_hash *h, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (h[i].hash != h[0].hash)
            return false;
    return true;
}

/* The hash that most holders have; of equally many, the first's. */
static uint64_t most_common(const struct ws_audit_hash *h, size_t n)
{
    size_t best = 0, best_n = 0;
    for (size_t i = 0; i < n; i++) {
        size_t same = 0;
        for (size_t k = 0; k < n; k++)
            same += h[k].hash == h[i].hash ? h[k].n : 0;
        if (same > best_n) {
            best = i;
            best_n = same;
        }
    }
    return h[best].hash;
}

/* The ranks that have this hash, or another: "1, 3 and 5 more". */
static void put_ranks(FILE *f, const struct ws_audit_hash *h, size_t n, uint64_t hash, bool same)
{
    unsigned reported = 0, more = 0;
    for (size_t i = 0; i < n; i++) {
        if ((h[i].hash == hash) != same)
            continue;
        if (reported < 8) {
            fprintf(f, "%s%u", reported ? ", " : "", h[i].rank);
            reported++;
            more += h[i].n - 1;
        } else {
            more += h[i].n;
        }
    }
    if (more)
        fprintf(f, " and %u more", more);
}

static void put_numbers(FILE *f, const uint64_t *v, unsigned n)
{
    for (unsigned d = 0; d < n; d++)
        fprintf(f, "%s%" PRIu64, d ? ", " : "[", v[d]);
    fprintf(f, n ? "]" : "[]");
}

static void put_place(FILE *f, const struct ws_replica *r, uint64_t chunk)
{
    const uint64_t bits = ws_dtype_bits(r->tensor.dtype), from = chunk * WS_BLOCK_BYTES,
                   end = r->bytes - from < WS_BLOCK_BYTES ? r->bytes : from + WS_BLOCK_BYTES;
    uint64_t first = from * 8 / bits, last = end * 8 / bits - 1, start, count;
    const bool is_run = ws_piece_as_range(&r->piece, &r->tensor, &start, &count);
    if (is_run) {
        first += start;
        last += start;
    }
    fprintf(f, "elements %" PRIu64 " to %" PRIu64 " of ", first, last);
    if (!is_run) {
        fprintf(f, "the piece at ");
        put_numbers(f, r->piece.offset, r->tensor.n_dims);
        fprintf(f, " of size ");
        put_numbers(f, r->piece.size, r->tensor.n_dims);
        fprintf(f, " of ");
    }
    fprintf(f, "%.200s", r->tensor.name);
}

static void end_text(FILE *f, char *out, size_t bytes)
{
    (void)fclose(f); /* what has no room is left out */
    out[bytes - 1] = '\0';
}

static void describe_difference(char *out, size_t bytes, const struct ws_replica *r,
                                const struct ws_audit_hash *h, size_t n)
{
    const uint64_t common = most_common(h, n);
    FILE *f = fmemopen(out, bytes, "w");
    if (!f)
        return;
    put_place(f, r, h->chunk);
    fprintf(f, " differ between rank ");
    put_ranks(f, h, n, common, false);
    fprintf(f, " and rank ");
    put_ranks(f, h, n, common, true);
    end_text(f, out, bytes);
}

static void describe_incomplete(char *out, size_t bytes, const struct ws_replica *r, uint64_t chunk,
                                unsigned reported)
{
    FILE *f = fmemopen(out, bytes, "w");
    if (!f)
        return;
    fprintf(f, "of %u ranks that hold ", r->n_holders);
    put_place(f, r, chunk);
    fprintf(f, " %u reported its hash", reported);
    end_text(f, out, bytes);
}

/* Chunks of which not all holders have reported what they hold. */
static void count_incomplete(const struct ws_audit *a, const struct ws_replicas *all,
                             const struct ws_replica_window *window, bool all_nodes,
                             struct ws_audit_result *out)
{
    size_t at = 0;
    for (size_t i = 0; i < all->n; i++) {
        const struct ws_replica *r = &all->list[i];
        uint64_t first, n = ws_replica_chunks(r, window, &first);
        if (r->spans != all_nodes || !(r->here || all_nodes))
            continue;
        for (uint64_t c = first; c < first + n; c++) {
            const struct ws_audit_hash key = {.replica = r->id, .chunk = c};
            unsigned reported = 0;
            while (at < a->len && by_place(&a->ptr[at], &key) < 0)
                at++;
            for (; at < a->len && a->ptr[at].replica == r->id && a->ptr[at].chunk == c; at++)
                reported += a->ptr[at].n;
            if (reported >= r->n_holders)
                continue;
            if (out->incomplete++ == 0 && !out->text[0])
                describe_incomplete(out->text, sizeof(out->text), r, c, reported);
        }
    }
}

void ws_audit_compare(struct ws_audit *a, const struct ws_replicas *all,
                      const struct ws_replica_window *window, bool all_nodes, struct ws_audit_result *out)
{
    *out = (struct ws_audit_result){0};
    sort(a);
    for (size_t i = 0, n; i < a->len; i += n) {
        const struct ws_replica *r = ws_replicas_find(all, a->ptr[i].replica);
        n = group_of(a, i);
        if (!r || n < 2)
            continue;
        out->compared++;
        if (agree(&a->ptr[i], n))
            continue;
        if (out->different++ == 0)
            describe_difference(out->text, sizeof(out->text), r, &a->ptr[i], n);
    }
    if (window)
        count_incomplete(a, all, window, all_nodes, out);
}

json_t *ws_audit_to_json(struct ws_audit *a, const struct ws_replicas *all)
{
    json_t *list = json_array();
    sort(a);
    for (size_t i = 0, n; list && i < a->len; i += n) {
        const struct ws_replica *r = ws_replicas_find(all, a->ptr[i].replica);
        unsigned reported = 0;
        n = group_of(a, i);
        for (size_t k = i; k < i + n; k++)
            reported += a->ptr[k].n;
        if (!r || !r->spans)
            continue;
        json_array_append_new(list, json_pack("[o,I,o,I,I]", ws_number_hash(r->id),
                                              (json_int_t)a->ptr[i].chunk, ws_number_hash(a->ptr[i].hash),
                                              (json_int_t)a->ptr[i].rank, (json_int_t)reported));
    }
    return list;
}

int ws_audit_from_json(struct ws_audit *a, const json_t *list, struct ws_error *err)
{
    const json_t *one;
    size_t i;
    int rc = 0;
    json_array_foreach(list, i, one)
    {
        const json_int_t chunk = json_integer_value(json_array_get(one, 1)),
                         rank = json_integer_value(json_array_get(one, 3)),
                         n = json_integer_value(json_array_get(one, 4));
        struct ws_audit_hash h;
        if (ws_text_hash(json_string_value(json_array_get(one, 0)), &h.replica) < 0 ||
            ws_text_hash(json_string_value(json_array_get(one, 2)), &h.hash) < 0 || chunk < 0 || rank < 0 ||
            rank >= WS_MAX_RANKS || n < 1 || n > WS_MAX_RANKS)
            return ws_error_set(err, EINVAL, "another node's audit is malformed");
        h.chunk = (uint64_t)chunk;
        h.rank = (unsigned)rank;
        h.n = (unsigned)n;
        rc = ws_audit_add(a, &h, 1, err);
        if (rc < 0)
            return rc;
    }
    return rc;
}
