/* Making a map: everything is checked, and becomes segments, by part and file, in the order of their bytes there. What
 * was read for it goes when it is made, but for the list of the whole's files. */
#include "transports/format/node_part_overlap.h"
#include "transports/format/node_part_segments.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

WS_VECTOR(laid_pieces, struct ws_node_part_span);

struct making {
    struct ws_node_part_map *map;
    const struct ws_node_part_source *parts; /* as given */
    size_t n_parts;
    struct ws_node_part **described; /* by part, as given */
    struct ws_safetensors **headers; /* of the whole version's files; NULL: none */
    uint64_t *covered;               /* bytes of tensors, a file */
    bool **used;                     /* by part, a byte a file of its manifest */
    bool *seen;                      /* by index of a part */
    struct laid_pieces laid;
    const atomic_bool *stop;
};

static size_t n_files(const struct making *m)
{
    return m->described[0]->n_files;
}

static bool ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

uint64_t ws_node_part_described(const struct ws_manifest_file *f)
{
    return strcmp(f->name, WS_NODE_PART_FILE) == 0 || ends_with(f->name, WS_NODE_PART_HEADER)
               ? f->size_bytes
               : f->header_bytes;
}

static bool is_stopped(const struct making *m)
{
    return m->stop && atomic_load(m->stop);
}

static int no_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "no memory for the parts of a version");
}

/* What is given of a file of a part; NULL: it has none of that name, or nothing of it describes the part. */
static const unsigned char *memory_of(const struct making *m, size_t part, const char *name,
                                      const struct ws_manifest_file **file)
{
    const struct ws_node_part_source *p = &m->parts[part];
    *file = ws_manifest_find(p->manifest, name);
    return *file ? p->files[*file - p->manifest->files] : NULL;
}

static int add(struct making *m, size_t part, const struct ws_manifest_file *f, struct ws_node_part_segment s)
{
    return ws_node_part_segments_append(&m->map->segments[part][f - m->parts[part].manifest->files], s);
}

static int add_own(struct making *m, size_t part, const struct ws_manifest_file *f, const unsigned char *src,
                   uint64_t n)
{
    struct ws_node_part_segment s = {.n = n, .own = malloc(n ? n : 1)};
    if (!s.own)
        return -ENOMEM;
    if (n)
        memcpy(s.own, src, n);
    int rc = add(m, part, f, s);
    if (rc < 0)
        free(s.own);
    return rc;
}

/* A file of a part has bytes of one file of the whole, or of none. */
static int use_file(struct making *m, size_t part, const struct ws_manifest_file *f, struct ws_error *err)
{
    bool *used = &m->used[part][f - m->parts[part].manifest->files];
    if (*used)
        return ws_error_set(err, EBADMSG, "the part from %s: %s is two files of the whole version",
                            m->parts[part].from, f->name);
    *used = true;
    return 0;
}

/* --- what is checked first --- */

static int read_part(struct making *m, size_t i, struct ws_error *err)
{
    const struct ws_manifest_file *f;
    const unsigned char *text = memory_of(m, i, WS_NODE_PART_FILE, &f);
    struct ws_node_part *part;
    int rc = text ? ws_node_part_from_json((const char *)text, f->size_bytes, &part, err)
                  : ws_error_set(err, EBADMSG, "it has no " WS_NODE_PART_FILE);
    if (rc < 0) {
        ws_error_prefix(err, "the part from %s", m->parts[i].from);
        return rc;
    }
    m->described[i] = part;
    if (part->count != m->n_parts || m->seen[part->index])
        return ws_error_set(err, EPROTO, "%s has part %u of %u, but %zu parts make the version%s",
                            m->parts[i].from, part->index, part->count, m->n_parts,
                            part->count == m->n_parts ? ", and another is this one, too" : "");
    m->seen[part->index] = true;
    rc = use_file(m, i, f, err);
    if (rc < 0)
        return rc;
    return add_own(m, i, f, text, f->size_bytes) < 0 ? no_memory(err) : 0;
}

static int differ(const struct making *m, size_t i, const char *what, struct ws_error *err)
{
    return ws_error_set(err, EPROTO, "the parts from %s and %s are of different %s", m->parts[0].from,
                        m->parts[i].from, what);
}

static int compare_parts(const struct making *m, struct ws_error *err)
{
    const struct ws_manifest *a = m->parts[0].manifest;
    for (size_t i = 1; i < m->n_parts; i++) {
        const struct ws_manifest *b = m->parts[i].manifest;
        if (a->version != b->version)
            return differ(m, i, "versions", err);
        if (strcmp(a->lineage, b->lineage) != 0)
            return differ(m, i, "runs", err);
        if (strcmp(m->described[0]->placement, m->described[i]->placement) != 0)
            return differ(m, i, "placements", err);
        if (m->described[0]->n_files != m->described[i]->n_files)
            return differ(m, i, "files", err);
        for (size_t k = 0; k < m->described[0]->n_files; k++) {
            const struct ws_node_part_file *f = &m->described[0]->files[k], *g = &m->described[i]->files[k];
            if (strcmp(f->name, g->name) != 0 || f->size_bytes != g->size_bytes ||
                f->header_bytes != g->header_bytes)
                return differ(m, i, "files", err);
        }
    }
    return 0;
}

/* What one node has whole: a file's header, or an index or sidecar. */
static int plan_whole(struct making *m, size_t i, struct ws_error *err)
{
    const struct ws_node_part_file *f = &m->described[0]->files[i];
    char name[WS_MAX_NAME + sizeof(WS_NODE_PART_HEADER)];
    const struct ws_manifest_file *file = NULL, *again;
    const unsigned char *src = NULL;
    const uint64_t want = f->header_bytes ? f->header_bytes : f->size_bytes;
    size_t from = m->n_parts;
    int rc;
    snprintf(name, sizeof(name), "%s%s", f->name, f->header_bytes ? WS_NODE_PART_HEADER : "");
    for (size_t k = 0; k < m->n_parts; k++) {
        const unsigned char *memory = memory_of(m, k, name, &again);
        if (again && file)
            return ws_error_set(err, EPROTO, "the parts from %s and %s both have %s", m->parts[from].from,
                                m->parts[k].from, name);
        if (again) {
            file = again;
            src = memory;
            from = k;
        }
    }
    if (!file || file->size_bytes != want || (f->header_bytes && !src))
        return ws_error_set(err, EBADMSG, "no part has %s with %" PRIu64 " bytes", name, want);
    if (f->header_bytes) {
        rc = ws_safetensors_parse(src, want, f->size_bytes, &m->headers[i], err);
        if (rc == 0 && m->headers[i]->data_begin != f->header_bytes)
            rc = ws_error_set(err, EBADMSG, "its header has another size than is said");
        if (rc < 0) {
            ws_error_prefix(err, "%s of the part from %s", name, m->parts[from].from);
            return rc;
        }
    }
    rc = use_file(m, from, file, err);
    if (rc < 0)
        return rc;
    return want && add(m, from, file, (struct ws_node_part_segment){.n = want, .file = i}) < 0
               ? no_memory(err)
               : 0;
}

static uint64_t elements_of(const struct ws_tensor *t)
{
    uint64_t n = 1;
    for (unsigned d = 0; d < t->n_dims; d++)
        n *= t->shape[d];
    return n;
}

/* Elements of a piece; UINT64_MAX: it does not lie in its tensor. */
static uint64_t check_piece(const struct ws_node_part_piece *p, const struct ws_tensor *t)
{
    uint64_t n = 1, all = elements_of(t);
    if (p->range)
        return p->count <= all && p->start <= all - p->count ? p->count : UINT64_MAX;
    if (p->n_dims != t->n_dims)
        return UINT64_MAX;
    for (unsigned d = 0; d < t->n_dims; d++) {
        if (p->size[d] > t->shape[d] || p->offset[d] > t->shape[d] - p->size[d])
            return UINT64_MAX;
        n *= p->size[d];
    }
    return n;
}

static struct ws_box_extents *box_of(const struct ws_node_part_piece *p, const struct ws_tensor *t)
{
    struct ws_box_extents *out = malloc(sizeof(*out));
    int64_t strides[WS_MAX_DIMS], step = 1;
    for (unsigned d = t->n_dims; d-- > 0; step *= (int64_t)p->size[d])
        strides[d] = step;
    const struct ws_box box = {.n_dims = t->n_dims,
                               .shape = t->shape,
                               .offset = p->offset,
                               .size = p->size,
                               .src_strides = strides,
                               .element_bytes = ws_dtype_bits(t->dtype) / 8};
    if (out)
        ws_box_extents_init(out, &box);
    return out;
}

static int plan_piece(struct making *m, size_t file, size_t from, size_t k, const struct ws_safetensors *st,
                      const struct ws_manifest_file *f, struct ws_error *err)
{
    const struct ws_node_part_piece *p = &m->described[from]->files[file].pieces[k];
    const struct ws_tensor *t = ws_safetensors_find(m->headers[file], p->tensor), *s;
    char name[WS_NODE_PART_NAME_BYTES];
    ws_node_part_tensor(name, k);
    s = ws_safetensors_find(st, name);
    if (!t || !s || t->dtype != s->dtype)
        return ws_error_set(err, EBADMSG, "piece %zu (of %s) is not there, or of another dtype", k,
                            p->tensor);
    uint64_t n = check_piece(p, t), all = elements_of(t), bits = ws_dtype_bits(t->dtype);
    if (n > all || (bits % 8 && n != all) || s->end - s->begin != (n * bits + 7) / 8)
        return ws_error_set(err, EBADMSG, "piece %zu does not lie in %s, or has another size", k, p->tensor);
    struct ws_node_part_segment segment = {.at = s->begin,
                                           .n = s->end - s->begin,
                                           .file = file,
                                           .to = t->begin + (p->range ? p->start * bits / 8 : 0)};
    m->covered[file] += segment.n;
    if (segment.n == 0)
        return 0;
    if (laid_pieces_append(&m->laid, ws_node_part_span_init(t, p, m->parts[from].from)) < 0)
        return no_memory(err);
    if (n != all && !p->range && !(segment.box = box_of(p, t)))
        return no_memory(err);
    if (add(m, from, f, segment) == 0)
        return 0;
    free(segment.box);
    return no_memory(err);
}

static int by_place(const void *x, const void *y)
{
    const struct ws_node_part_segment *a = x, *b = y;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* Do the segments of a file follow each other from its first byte to its last? */
static int check_file(struct making *m, size_t part, const struct ws_manifest_file *f, struct ws_error *err)
{
    struct ws_node_part_segments *list = &m->map->segments[part][f - m->parts[part].manifest->files];
    uint64_t at = 0;
    if (list->len > 1)
        qsort(list->ptr, list->len, sizeof(list->ptr[0]), by_place);
    for (size_t i = 0; i < list->len && list->ptr[i].at == at; i++)
        at += list->ptr[i].n;
    if (at != f->size_bytes)
        return ws_error_set(err, EBADMSG, "its bytes from %" PRIu64 " on belong to no tensor of the whole",
                            at);
    return 0;
}

static int plan_pieces(struct making *m, size_t file, size_t from, struct ws_error *err)
{
    const struct ws_node_part_file *whole = &m->described[from]->files[file];
    const struct ws_manifest_file *f;
    struct ws_safetensors *st = NULL;
    const unsigned char *memory = memory_of(m, from, whole->name, &f);
    if (!whole->header_bytes || (!f && whole->n_pieces == 0))
        return 0;
    int rc =
        memory && f->header_bytes && m->headers[file] ? 0 : ws_error_set(err, EBADMSG, "it has no tensors");
    if (rc == 0)
        rc = ws_safetensors_parse(memory, f->header_bytes, f->size_bytes, &st, err);
    if (rc == 0 && st->data_begin != f->header_bytes)
        rc = ws_error_set(err, EBADMSG, "its header has another size than its manifest says");
    if (rc == 0 && add_own(m, from, f, memory, f->header_bytes) < 0)
        rc = no_memory(err);
    for (size_t k = 0; rc == 0 && k < whole->n_pieces; k++)
        rc = plan_piece(m, file, from, k, st, f, err);
    if (rc == 0)
        rc = check_file(m, from, f, err);
    ws_safetensors_free(st);
    if (rc < 0)
        return ws_error_prefix(err, "%s of the part from %s", whole->name, m->parts[from].from);
    return use_file(m, from, f, err);
}

/* Is there a file of a part that the whole has nothing of? */
static int check_used(const struct making *m, struct ws_error *err)
{
    for (size_t k = 0; k < m->n_parts; k++)
        for (size_t i = 0; i < m->parts[k].manifest->n_files; i++)
            if (!m->used[k][i])
                return ws_error_set(err, EBADMSG,
                                    "the part from %s has %s, which is no file of the whole version",
                                    m->parts[k].from, m->parts[k].manifest->files[i].name);
    return 0;
}

static int plan(struct making *m, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n_files(m); i++) {
        const struct ws_node_part_file *f = &m->described[0]->files[i];
        if (is_stopped(m))
            return ws_error_set(err, ECANCELED, "the comparison of parts was stopped");
        rc = plan_whole(m, i, err);
        for (size_t k = 0; rc == 0 && k < m->n_parts; k++)
            rc = plan_pieces(m, i, k, err);
        if (rc == 0 && f->header_bytes && m->covered[i] != f->size_bytes - f->header_bytes)
            rc = ws_error_set(err, EBADMSG,
                              "%s: the parts have %" PRIu64 " bytes of its %" PRIu64 " bytes of tensors",
                              f->name, m->covered[i], f->size_bytes - f->header_bytes);
    }
    return rc == 0 ? check_used(m, err) : rc;
}

/* --- the whole --- */

static int make_tables(struct making *m, struct ws_error *err)
{
    struct ws_node_part_map *map = m->map = calloc(1, sizeof(*map));
    bool ok = map;
    m->described = calloc(m->n_parts, sizeof(struct ws_node_part *));
    m->used = calloc(m->n_parts, sizeof(bool *));
    m->seen = calloc(m->n_parts, sizeof(bool));
    if (map) {
        atomic_init(&map->refs, 1);
        map->n_parts = m->n_parts;
        map->n_files = calloc(m->n_parts, sizeof(*map->n_files));
        map->segments = calloc(m->n_parts, sizeof(struct ws_node_part_segments *));
        ok = map->n_files && map->segments;
    }
    ok = ok && m->described && m->used && m->seen;
    for (size_t k = 0; ok && k < m->n_parts; k++) {
        map->n_files[k] = m->parts[k].manifest->n_files;
        map->segments[k] = calloc(map->n_files[k] + 1, sizeof(struct ws_node_part_segments));
        m->used[k] = calloc(map->n_files[k] + 1, sizeof(bool));
        ok = map->segments[k] && m->used[k];
    }
    return ok ? 0 : no_memory(err);
}

static void release_tables(struct making *m)
{
    for (size_t i = 0; m->headers && i < n_files(m); i++)
        ws_safetensors_free(m->headers[i]);
    for (size_t i = 0; m->described && i < m->n_parts; i++)
        if (!m->map || m->described[i] != m->map->whole)
            ws_node_part_free(m->described[i]);
    for (size_t i = 0; m->used && i < m->n_parts; i++)
        free(m->used[i]);
    free(m->used);
    free(m->seen);
    free(m->headers);
    free(m->covered);
    free(m->described);
    laid_pieces_reset(&m->laid);
}

int ws_node_part_map_new(struct ws_node_part_map **out, const struct ws_node_part_source *parts, size_t n,
                         const atomic_bool *stop, struct ws_error *err)
{
    struct making m = {.parts = parts, .n_parts = n, .stop = stop};
    int rc;
    *out = NULL;
    assert(n > 0 && n <= WS_MAX_NODE_PARTS);
    rc = make_tables(&m, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = read_part(&m, i, err);
    if (rc == 0)
        rc = compare_parts(&m, err);
    if (rc == 0) {
        m.headers = calloc(n_files(&m) + 1, sizeof(struct ws_safetensors *));
        m.covered = calloc(n_files(&m) + 1, sizeof(*m.covered));
        rc = m.headers && m.covered ? plan(&m, err) : no_memory(err);
    }
    if (rc == 0) /* their bytes add up, so where no two overlap each byte is written once */
        rc = ws_node_part_check_overlap(m.laid.ptr, m.laid.len, stop, err);
    if (rc == 0)
        m.map->whole = m.described[0];
    release_tables(&m);
    if (rc == 0)
        *out = m.map;
    else
        ws_node_part_map_put(m.map);
    return rc;
}
