#include "transports/patch/changes_aligned.h"
#include <stdlib.h>
#include <string.h>

#define EDGE WS_CHANGES_ELEMENT_BYTES

/* Of a run: the elements [from, to) of its lists, which lie in one tensor. */
struct part {
    struct ws_changes_tensor *tensor;
    uint64_t first; /* the tensor's element that at[] counts from; may wrap below it */
    size_t from, to;
};

/* Index of the first that is not below e. */
static size_t lower_bound(const struct ws_delta_edit_run *r, size_t from, uint64_t e)
{
    size_t low = from, high = r->n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (r->at[mid] < e)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The part of a run from its element `from` on. false: it does not begin in a tensor of its width. */
static bool part_at(const struct ws_changes_finder *j, size_t file, uint64_t at,
                    const struct ws_delta_edit_run *r, size_t from, struct part *out)
{
    const uint64_t begin = at + r->begin, byte = begin + (uint64_t)r->at[from] * r->width;
    const size_t k = ws_changes_tensor_at(j, file, byte);
    struct ws_changes_tensor *t = k < j->n_by_place[file] ? j->by_place[file][k] : NULL;
    if (!t || byte < t->begin || t->out.element_bytes != r->width || (byte - t->begin) % r->width != 0)
        return false;
    *out = (struct part){.tensor = t,
                         .first = (byte - t->begin) / r->width - r->at[from],
                         .from = from,
                         .to = lower_bound(r, from, (t->end - begin) / r->width)};
    return true;
}

static bool is_aligned(const struct ws_changes_finder *j, const struct ws_changes_scratch *s, size_t file,
                       uint64_t at)
{
    struct ws_delta_edit_run r;
    for (size_t k = 0; ws_delta_edit_run(s->edit, k, &r); k++) {
        struct part p = {0};
        while (p.to < r.n)
            if (!part_at(j, file, at, &r, p.to, &p))
                return false;
    }
    return true;
}

/* --- the lists --- */

/* What does not differ is left out: a delta may name it all the same. Returns how many differ; the values before are at
 * values, those after at values + most * width. */
#define LIST(type)                                                                                           \
    static size_t list_##type(const struct ws_delta_edit_run *r, const struct part *p, uint32_t *at,         \
                              uint32_t shift, unsigned char *values, size_t most,                            \
                              const unsigned char *block)                                                    \
    {                                                                                                        \
        type *before = (type *)(void *)values, *after = before + most;                                       \
        size_t n = 0;                                                                                        \
        for (size_t i = p->from; i < p->to; i++) {                                                           \
            type v;                                                                                          \
            memcpy(&v, block + r->begin + (size_t)r->at[i] * sizeof(v), sizeof(v));                          \
            at[n] = r->at[i] - shift;                                                                        \
            after[n] = v;                                                                                    \
            before[n] = (type)ws_delta_undone(v, r->changes[i]);                                             \
            n += before[n] != v;                                                                             \
        }                                                                                                    \
        return n;                                                                                            \
    }

LIST(uint8_t)
LIST(uint16_t)
LIST(uint32_t)

static size_t list(const struct ws_delta_edit_run *r, const struct part *p, struct ws_changes_piece *piece,
                   uint32_t shift, size_t most, const unsigned char *block)
{
    switch (r->width) {
    case 1:
        return list_uint8_t(r, p, piece->at, shift, piece->values, most, block);
    case 2:
        return list_uint16_t(r, p, piece->at, shift, piece->values, most, block);
    default:
        return list_uint32_t(r, p, piece->at, shift, piece->values, most, block);
    }
}

static int keep_part(struct ws_changes_finder *j, const struct ws_changes_scratch *s,
                     const struct ws_delta_edit_run *r, const struct part *p, struct ws_error *err)
{
    const size_t most = p->to - p->from;
    const uint32_t shift = r->at[p->from];
    struct ws_changes_piece piece = {.first = p->first + shift,
                                     .at = malloc(most * sizeof(*piece.at)),
                                     .values = malloc(2 * most * r->width)};
    if (piece.at && piece.values) {
        piece.n = (uint32_t)list(r, p, &piece, shift, most, s->after);
        memmove(piece.values + (size_t)piece.n * r->width, piece.values + most * r->width,
                (size_t)piece.n * r->width);
    }
    if (piece.at && piece.values && piece.n == 0) {
        free(piece.at);
        free(piece.values);
        return 0;
    }
    return ws_changes_keep_piece(j, p->tensor, piece, err);
}

/* --- the edges --- */

static void undo(struct ws_changes_scratch *s, const struct ws_delta_edit_run *r, size_t i)
{
    unsigned char *p = s->before + r->begin + (size_t)r->at[i] * r->width;
    uint32_t v = 0;
    memcpy(&v, p, r->width);
    v = ws_delta_undone(v, r->changes[i]);
    memcpy(p, &v, r->width);
}

/* Elements that an edge cuts are undone whole: what is around the edges has their bytes. */
static void make_edges(struct ws_changes_scratch *s, size_t len)
{
    struct ws_delta_edit_run r;
    memcpy(s->before, s->after, 2 * EDGE);
    memcpy(s->before + len - 2 * EDGE, s->after + len - 2 * EDGE, 2 * EDGE);
    for (size_t k = 0; ws_delta_edit_run(s->edit, k, &r); k++) {
        for (size_t i = 0; i < r.n && r.begin + (size_t)r.at[i] * r.width < EDGE; i++)
            undo(s, &r, i);
        for (size_t i = r.n; i > 0 && r.begin + ((size_t)r.at[i - 1] + 1) * r.width > len - EDGE; i--)
            undo(s, &r, i - 1);
    }
}

int ws_changes_list_aligned(struct ws_changes_finder *j, struct ws_changes_scratch *s, size_t file,
                            uint64_t at, size_t len, bool *listed, struct ws_error *err)
{
    struct ws_delta_edit_run r;
    int rc = 0;
    *listed =
        len >= 8 * EDGE && at >= j->target->folder->files[file].st->data_begin && is_aligned(j, s, file, at);
    for (size_t k = 0; *listed && rc == 0 && ws_delta_edit_run(s->edit, k, &r); k++) {
        struct part p = {0};
        while (rc == 0 && p.to < r.n && part_at(j, file, at, &r, p.to, &p))
            rc = keep_part(j, s, &r, &p, err);
    }
    if (*listed && rc == 0)
        make_edges(s, len);
    return rc;
}
