#include "backends/trainer/offload/line_map.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct lines {
    uint64_t *words;
    bool known;
};

struct set {
    struct ws_version_bytes base;
    struct ws_version_id target; /* without a lineage: begun */
    struct lines *blocks;
};

struct ws_line_map {
    size_t n_blocks;
    unsigned n;
    struct set sets[WS_LINE_MAP_SETS]; /* oldest first */
    unsigned
        from; /* of the sets: the first after the version that the begun one's slot holds; n: it is not known */
};

bool ws_version_bytes_equal(const struct ws_version_bytes *a, const struct ws_version_bytes *b)
{
    return ws_version_id_equal(&a->id, &b->id) && a->digest[0] && strcmp(a->digest, b->digest) == 0;
}

struct ws_line_map *ws_line_map_new(size_t n_blocks)
{
    struct ws_line_map *m = calloc(1, sizeof(*m));
    if (m)
        m->n_blocks = n_blocks;
    return m;
}

static void drop(struct ws_line_map *m, unsigned s)
{
    for (size_t i = 0; i < m->n_blocks; i++)
        free(m->sets[s].blocks[i].words);
    free(m->sets[s].blocks);
    m->n--;
    memmove(&m->sets[s], &m->sets[s + 1], (m->n - s) * sizeof(m->sets[0]));
}

void ws_line_map_drop(struct ws_line_map *m)
{
    while (m->n > 0)
        drop(m, m->n - 1);
    m->from = 0;
}

void ws_line_map_free(struct ws_line_map *m)
{
    if (m)
        ws_line_map_drop(m);
    free(m);
}

static bool is_begun(const struct ws_line_map *m)
{
    return m->n > 0 && !m->sets[m->n - 1].target.lineage[0];
}

int ws_line_map_begin(struct ws_line_map *m, const struct ws_version_bytes *base,
                      const struct ws_version_bytes *slot)
{
    if (is_begun(m))
        drop(m, m->n - 1);
    if (m->n > 0 && !ws_version_id_equal(&m->sets[m->n - 1].target, &base->id))
        ws_line_map_drop(m);
    if (m->n == WS_LINE_MAP_SETS)
        drop(m, 0);
    m->from = m->n + 1;
    if (!base->id.lineage[0] || !base->digest[0]) {
        ws_line_map_drop(m);
        return 0;
    }
    struct set s = {.base = *base, .blocks = calloc(m->n_blocks + 1, sizeof(*s.blocks))};
    if (!s.blocks) {
        ws_line_map_drop(m);
        return -ENOMEM;
    }
    m->sets[m->n++] = s;
    m->from = m->n;
    for (unsigned k = 0; k < m->n; k++)
        if (ws_version_bytes_equal(&m->sets[k].base, slot))
            m->from = k;
    return 0;
}

int ws_line_map_stale(const struct ws_line_map *m, size_t i, uint64_t *out)
{
    int lines = 0;
    assert(i < m->n_blocks);
    if (!is_begun(m) || m->from >= m->n)
        return -ENODATA;
    for (unsigned k = m->from; k + 1 < m->n; k++)
        if (!m->sets[k].blocks[i].known)
            return -ENODATA;
    memset(out, 0, WS_LINE_WORDS * sizeof(*out));
    for (unsigned k = m->from; k + 1 < m->n; k++)
        for (size_t w = 0; w < WS_LINE_WORDS; w++)
            out[w] |= m->sets[k].blocks[i].words[w];
    for (size_t w = 0; w < WS_LINE_WORDS; w++)
        lines += __builtin_popcountll(out[w]);
    return lines;
}

uint64_t *ws_line_map_words(struct ws_line_map *m, size_t i)
{
    assert(i < m->n_blocks);
    if (!is_begun(m))
        return NULL;
    struct lines *b = &m->sets[m->n - 1].blocks[i];
    assert(!b->words);
    return b->words = calloc(WS_LINE_WORDS, sizeof(*b->words));
}

void ws_line_map_record(struct ws_line_map *m, size_t i)
{
    assert(is_begun(m) && m->sets[m->n - 1].blocks[i].words);
    m->sets[m->n - 1].blocks[i].known = true;
}

void ws_line_map_commit(struct ws_line_map *m, const struct ws_version_id *version)
{
    if (is_begun(m))
        m->sets[m->n - 1].target = *version;
}
