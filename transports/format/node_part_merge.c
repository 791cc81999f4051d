/* Merging parts into the whole version. First everything is checked and becomes copies: runs of bytes, or
 * slabs of a box, of a few MiB each; then all cores copy; then all cores hash what came out, block by block.
 */
#include "transports/base/vector.h"
#include "transports/format/node_part.h"
#include "transports/format/node_part_overlap.h"
#include "transports/simd/box.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOB_BYTES (4UL << 20)

/* One copy: n rows of a box, or (n_dims 0) a run of bytes. */
struct job {
    size_t file;
    const unsigned char *src;
    uint64_t at; /* a run: in the file; a box: where its tensor begins */
    uint64_t bytes;
    const struct ws_tensor *tensor;
    const struct ws_node_part_piece *piece;
    uint64_t first, n; /* rows of the box, of its first dimension */
};
WS_VECTOR(jobs, struct job);
WS_VECTOR(laid_pieces, struct ws_node_part_span);

struct ws_node_part_merge {
    const struct ws_node_part_source *parts; /* as given */
    size_t n_parts;
    const struct ws_node_part_source **in_order; /* by index of the part */
    struct ws_node_part **described;             /* likewise */
    struct ws_safetensors **headers;             /* of the whole version's files; NULL: none */
    uint64_t *covered;                           /* bytes of tensors, a file */
    struct jobs jobs;
    struct laid_pieces laid;
    const atomic_bool *stop;
    /* while it runs */
    unsigned char *const *dst;
    struct ws_manifest *manifest;
    size_t hashing;
};

static const struct ws_node_part *first_of(const struct ws_node_part_merge *m)
{
    return m->described[0];
}

size_t ws_node_part_merge_n_files(const struct ws_node_part_merge *m)
{
    return first_of(m)->n_files;
}

const struct ws_node_part_file *ws_node_part_merge_file(const struct ws_node_part_merge *m, size_t i)
{
    return &first_of(m)->files[i];
}

static bool is_stopped(const struct ws_node_part_merge *m)
{
    return m->stop && atomic_load(m->stop);
}

static int no_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "no memory for merging the parts of a version");
}

/* Memory of a file of a part; NULL: it has none of that name. */
static const unsigned char *memory_of(const struct ws_node_part_source *p, const char *name, uint64_t *bytes)
{
    const struct ws_manifest_file *f = ws_manifest_find(p->manifest, name);
    *bytes = f ? f->size_bytes : 0;
    return f ? p->files[f - p->manifest->files] : NULL;
}

/* --- what is checked before anything is copied --- */

static int read_parts(struct ws_node_part_merge *m, struct ws_error *err)
{
    for (size_t i = 0; i < m->n_parts; i++) {
        const struct ws_node_part_source *p = &m->parts[i];
        struct ws_node_part *part;
        uint64_t n;
        const unsigned char *text = memory_of(p, WS_NODE_PART_FILE, &n);
        int rc = text ? ws_node_part_from_json((const char *)text, n, &part, err)
                      : ws_error_set(err, EBADMSG, "it has no " WS_NODE_PART_FILE);
        if (rc < 0) {
            ws_error_prefix(err, "the part from %s", p->from);
            return rc;
        }
        if (part->count != m->n_parts || m->described[part->index]) {
            rc = ws_error_set(err, EPROTO, "%s has part %u of %u, but %zu parts are to be merged%s", p->from,
                              part->index, part->count, m->n_parts,
                              part->count == m->n_parts ? ", and another is this one, too" : "");
            ws_node_part_free(part);
            return rc;
        }
        m->described[part->index] = part;
        m->in_order[part->index] = p;
    }
    return 0;
}

static int differ(const struct ws_node_part_merge *m, size_t i, const char *what, struct ws_error *err)
{
    return ws_error_set(err, EPROTO, "the parts from %s and %s are of different %s", m->in_order[0]->from,
                        m->in_order[i]->from, what);
}

static int compare_parts(const struct ws_node_part_merge *m, struct ws_error *err)
{
    const struct ws_manifest *a = m->in_order[0]->manifest;
    for (size_t i = 1; i < m->n_parts; i++) {
        const struct ws_manifest *b = m->in_order[i]->manifest;
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

static int add_run(struct ws_node_part_merge *m, size_t file, uint64_t at, const unsigned char *src,
                   uint64_t bytes)
{
    int rc = 0;
    for (uint64_t done = 0; rc == 0 && done < bytes; done += JOB_BYTES) {
        uint64_t n = bytes - done < JOB_BYTES ? bytes - done : JOB_BYTES;
        rc =
            jobs_append(&m->jobs, (struct job){.file = file, .at = at + done, .src = src + done, .bytes = n});
    }
    return rc;
}

/* What the node with rank 0 has whole: headers, index, sidecars. */
static int plan_whole(struct ws_node_part_merge *m, size_t i, struct ws_error *err)
{
    const struct ws_node_part_file *f = ws_node_part_merge_file(m, i);
    char name[WS_MAX_NAME + sizeof(WS_NODE_PART_HEADER)];
    const unsigned char *src = NULL;
    uint64_t want = f->header_bytes ? f->header_bytes : f->size_bytes, has = 0;
    size_t from = 0;
    snprintf(name, sizeof(name), "%s%s", f->name, f->header_bytes ? WS_NODE_PART_HEADER : "");
    for (; from < m->n_parts && !ws_manifest_find(m->in_order[from]->manifest, name); from++)
        ;
    if (from < m->n_parts)
        src = memory_of(m->in_order[from], name, &has);
    if (has != want || (want && !src))
        return ws_error_set(err, EBADMSG, "no part has %s with %" PRIu64 " bytes", name, want);
    if (f->header_bytes) {
        int rc = ws_safetensors_parse(src, has, f->size_bytes, &m->headers[i], err);
        if (rc == 0 && m->headers[i]->data_begin != f->header_bytes)
            rc = ws_error_set(err, EBADMSG, "its header has another size than is said");
        if (rc < 0) {
            ws_error_prefix(err, "%s of the part from %s", name, m->in_order[from]->from);
            return rc;
        }
    }
    return add_run(m, i, 0, src, want) < 0 ? no_memory(err) : 0;
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

/* A box as slabs of its first dimension. */
static int add_box(struct ws_node_part_merge *m, const struct job *whole, uint64_t bytes)
{
    uint64_t rows = whole->piece->size[0], row = bytes / rows, step = JOB_BYTES / row;
    int rc = 0;
    if (step == 0)
        step = 1;
    for (uint64_t first = 0; rc == 0 && first < rows; first += step) {
        struct job j = *whole;
        j.first = first;
        j.n = rows - first < step ? rows - first : step;
        j.src += first * row;
        rc = jobs_append(&m->jobs, j);
    }
    return rc;
}

static int plan_piece(struct ws_node_part_merge *m, size_t file, size_t from, size_t k,
                      const struct ws_safetensors *st, const unsigned char *memory, struct ws_error *err)
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
    uint64_t bytes = s->end - s->begin;
    const unsigned char *src = memory + s->begin;
    m->covered[file] += bytes;
    if (bytes == 0)
        return 0;
    if (laid_pieces_append(&m->laid, ws_node_part_span_init(t, p)) < 0)
        return no_memory(err);
    if (n == all || p->range || t->n_dims == 0)
        return add_run(m, file, t->begin + (p->range ? p->start * bits / 8 : 0), src, bytes) < 0
                   ? no_memory(err)
                   : 0;
    struct job j = {.file = file, .src = src, .at = t->begin, .tensor = t, .piece = p};
    return add_box(m, &j, bytes) < 0 ? no_memory(err) : 0;
}

static int plan_pieces(struct ws_node_part_merge *m, size_t file, size_t from, struct ws_error *err)
{
    const struct ws_node_part_file *f = &m->described[from]->files[file];
    const struct ws_node_part_source *p = m->in_order[from];
    struct ws_safetensors *st = NULL;
    uint64_t bytes, header;
    if (f->n_pieces == 0)
        return 0;
    const unsigned char *memory = memory_of(p, f->name, &bytes);
    int rc = memory && bytes >= 8 && m->headers[file]
                 ? ws_safetensors_header_bytes(memory, bytes, &header, err)
                 : ws_error_set(err, EBADMSG, "it has no tensors");
    if (rc == 0)
        rc = ws_safetensors_parse(memory, header, bytes, &st, err);
    for (size_t k = 0; rc == 0 && k < f->n_pieces; k++)
        rc = plan_piece(m, file, from, k, st, memory, err);
    ws_safetensors_free(st);
    if (rc < 0)
        ws_error_prefix(err, "%s of the part from %s", f->name, p->from);
    return rc;
}

static int plan(struct ws_node_part_merge *m, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ws_node_part_merge_n_files(m); i++) {
        const struct ws_node_part_file *f = ws_node_part_merge_file(m, i);
        if (is_stopped(m))
            return ws_error_set(err, ECANCELED, "the merge of parts was stopped");
        rc = plan_whole(m, i, err);
        for (size_t k = 0; rc == 0 && k < m->n_parts; k++)
            rc = plan_pieces(m, i, k, err);
        if (rc == 0 && f->header_bytes && m->covered[i] != f->size_bytes - f->header_bytes)
            rc = ws_error_set(err, EBADMSG,
                              "%s: the parts have %" PRIu64 " bytes of its %" PRIu64 " bytes of tensors",
                              f->name, m->covered[i], f->size_bytes - f->header_bytes);
    }
    return rc;
}

int ws_node_part_merge_new(struct ws_node_part_merge **out, const struct ws_node_part_source *parts, size_t n,
                           const atomic_bool *stop, struct ws_error *err)
{
    struct ws_node_part_merge *m = calloc(1, sizeof(*m));
    int rc = 0;
    *out = NULL;
    assert(n > 0);
    if (!m)
        return no_memory(err);
    m->parts = parts;
    m->n_parts = n;
    m->stop = stop;
    m->in_order = calloc(n, sizeof(*m->in_order));
    m->described = calloc(n, sizeof(struct ws_node_part *));
    if (!m->in_order || !m->described)
        rc = no_memory(err);
    if (rc == 0)
        rc = read_parts(m, err);
    if (rc == 0)
        rc = compare_parts(m, err);
    if (rc == 0) {
        m->headers = calloc(ws_node_part_merge_n_files(m), sizeof(struct ws_safetensors *));
        m->covered = calloc(ws_node_part_merge_n_files(m), sizeof(*m->covered));
        rc = m->headers && m->covered ? plan(m, err) : no_memory(err);
    }
    if (rc == 0) /* their bytes add up, so where no two overlap each byte is written once */
        rc = ws_node_part_check_overlap(m->laid.ptr, m->laid.len, stop, err);
    if (rc < 0) {
        ws_node_part_merge_free(m);
        return rc;
    }
    *out = m;
    return 0;
}

/* --- the copies --- */

static void run_job(void *arg, size_t i)
{
    struct ws_node_part_merge *m = arg;
    const struct job *j = &m->jobs.ptr[i];
    if (is_stopped(m))
        return;
    if (!j->piece) {
        ws_copy(m->dst[j->file] + j->at, j->src, j->bytes);
        return;
    }
    unsigned n_dims = j->tensor->n_dims;
    uint64_t offset[WS_MAX_DIMS], size[WS_MAX_DIMS];
    int64_t strides[WS_MAX_DIMS], step = 1;
    memcpy(offset, j->piece->offset, sizeof(offset));
    memcpy(size, j->piece->size, sizeof(size));
    offset[0] += j->first;
    size[0] = j->n;
    for (unsigned d = n_dims; d-- > 0; step *= (int64_t)size[d])
        strides[d] = step;
    struct ws_box box = {.n_dims = n_dims,
                         .shape = j->tensor->shape,
                         .offset = offset,
                         .size = size,
                         .src_strides = strides,
                         .element_bytes = ws_dtype_bits(j->tensor->dtype) / 8};
    (void)ws_box_copy(m->dst[j->file] + j->at, j->src, &box);
}

static void hash_block(void *arg, size_t block)
{
    struct ws_node_part_merge *m = arg;
    struct ws_manifest_file *f = &m->manifest->files[m->hashing];
    if (is_stopped(m))
        return;
    f->hashes[block] =
        ws_hash(m->dst[m->hashing] + block * WS_BLOCK_BYTES, ws_manifest_block_bytes(f, block));
}

static int describe(struct ws_node_part_merge *m, const char *model, struct ws_error *err)
{
    int rc = ws_manifest_new(&m->manifest, model, m->in_order[0]->manifest->version,
                             m->in_order[0]->manifest->lineage, err);
    for (size_t i = 0; rc == 0 && i < ws_node_part_merge_n_files(m); i++) {
        const struct ws_node_part_file *f = ws_node_part_merge_file(m, i);
        struct ws_manifest_file *ignored;
        rc = ws_manifest_add(m->manifest, f->name, f->size_bytes, f->header_bytes, &ignored, err);
    }
    for (size_t k = 0; rc == 0 && k < m->n_parts; k++) {
        const struct ws_manifest *part = m->in_order[k]->manifest;
        for (size_t i = 0; rc == 0 && i < part->n_frozen; i++)
            rc = ws_manifest_freeze(m->manifest, part->frozen[i], err);
        if (rc == 0 && part->created_ns > m->manifest->created_ns)
            m->manifest->created_ns = part->created_ns;
    }
    return rc;
}

int ws_node_part_merge_run(struct ws_node_part_merge *m, const char *model, unsigned char *const *dst,
                           struct ws_workers *workers, struct ws_manifest **out, struct ws_error *err)
{
    int rc = describe(m, model, err);
    m->dst = dst;
    if (rc == 0) {
        ws_workers_run(workers, run_job, m, m->jobs.len);
        for (m->hashing = 0; m->hashing < m->manifest->n_files; m->hashing++)
            ws_workers_run(workers, hash_block, m, m->manifest->files[m->hashing].n_blocks);
        if (is_stopped(m))
            rc = ws_error_set(err, ECANCELED, "the merge of %s/%" PRIu64 " was stopped", model,
                              m->manifest->version);
    }
    if (rc == 0) {
        ws_manifest_seal(m->manifest);
        *out = m->manifest;
    } else {
        ws_manifest_free(m->manifest);
    }
    m->manifest = NULL;
    return rc;
}

void ws_node_part_merge_free(struct ws_node_part_merge *m)
{
    if (!m)
        return;
    for (size_t i = 0; m->headers && i < ws_node_part_merge_n_files(m); i++)
        ws_safetensors_free(m->headers[i]);
    for (size_t i = 0; m->described && i < m->n_parts; i++)
        ws_node_part_free(m->described[i]);
    free(m->headers);
    free(m->covered);
    free(m->described);
    free(m->in_order);
    jobs_reset(&m->jobs);
    laid_pieces_reset(&m->laid);
    free(m);
}
