/* The bits are words of 64 blocks, 256 MiB of a file, so that even a version of a terabyte has few.
 * The first thread that needs a header parses it, under the version's own lock: a header of 100,000 tensors
 * takes a tenth of a second, too long to hold store->lock. */
#include "fs/store/content.h"
#include "fs/store/node_parts.h"
#include "fs/store/offers.h"
#include "fs/store/part_description.h"
#include "fs/store/part_view.h"
#include "fs/store/wants.h"
#include "transports/sign/tree.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BITS 64

/* Makes the table of what is here, by file. m is freed on failure. */
static int make_files(struct ws_version *v, struct ws_manifest *m, struct ws_error *err)
{
    struct ws_file_state *files = calloc(m->n_files ? m->n_files : 1, sizeof(*files));

    for (size_t i = 0; files && i < m->n_files; i++) {
        size_t words = (m->files[i].n_blocks + BITS - 1) / BITS;
        files[i].here = calloc(words ? words : 1, sizeof(*files[i].here));
        if (files[i].here)
            continue;
        while (i > 0)
            free(files[--i].here);
        free(files);
        files = NULL;
    }
    if (!files) {
        ws_manifest_free(m);
        return ws_error_set(err, ENOMEM, "out of memory for the manifest of %s/%lu", v->model->name,
                            v->number);
    }
    v->files = files;
    return 0;
}

int ws_content_set_manifest(struct ws_version *v, struct ws_manifest *m, struct ws_error *err)
{
    int rc;

    if (atomic_load(&v->manifest)) {
        ws_manifest_free(m);
        return 0;
    }
    if (v->digest[0] && strcmp(v->digest, m->digest) != 0) {
        rc = ws_error_set(err, EBADMSG,
                          "the manifest of %s/%lu has the digest %s, but its source lists it with "
                          "%s: %s",
                          v->model->name, v->number, m->digest, v->digest, ws_offers_advice(v));
        ws_manifest_free(m);
        return rc;
    }
    rc = make_files(v, m, err);
    if (rc < 0)
        return rc;
    memcpy(v->digest, m->digest, sizeof(v->digest));
    atomic_store_explicit(&v->manifest, m, memory_order_release);
    return 0;
}

int ws_content_set_unsealed(struct ws_version *v, struct ws_manifest *m, struct ws_error *err)
{
    int rc;

    assert(!atomic_load(&v->manifest));
    rc = make_files(v, m, err);
    if (rc < 0)
        return rc;
    atomic_store(&v->unsealed, true);
    atomic_store_explicit(&v->manifest, m, memory_order_release);
    return 0;
}

int ws_content_seal(struct ws_version *v, struct ws_error *err)
{
    struct ws_manifest *m = atomic_load(&v->manifest);

    assert(ws_content_bytes(v) ==
           m->total_bytes); /* a map covers each file, and its own bytes were compared */
    if (!atomic_load(&v->unsealed))
        return !atomic_load(&v->parts->differs)
                   ? 0
                   : ws_error_set(
                         err, EBADMSG,
                         "the parts of %s/%lu make other bytes than they did before: two trainers may "
                         "publish under one run id",
                         v->model->name, v->number);
    ws_manifest_seal(m);
    if (v->digest[0] && strcmp(m->digest, v->digest) != 0)
        return ws_error_set(
            err, EBADMSG,
            "the parts of %s/%lu make the digest %s, but a source lists it whole with %s: two trainers "
            "may publish under one run id",
            v->model->name, v->number, m->digest, v->digest);
    memcpy(v->digest, m->digest, sizeof(v->digest));
    atomic_store(&v->unsealed, false);
    return 0;
}

void ws_content_free(struct ws_version *v)
{
    struct ws_manifest *m = atomic_load(&v->manifest);

    ws_part_view_free(v);
    ws_part_description_put(atomic_load(&v->description));
    free(atomic_load(&v->listed_deltas));
    ws_parts_free(v);
    for (size_t i = 0; m && i < m->n_files; i++) {
        ws_safetensors_free(atomic_load(&v->files[i].header));
        free(atomic_load(&v->files[i].order));
        free(v->files[i].here);
    }
    ws_block_set_free(atomic_load(&v->wanted));
    free(v->files);
    ws_tree_free(atomic_load(&v->tree));
    ws_manifest_free(m);
}

/* --- signatures --- */

bool ws_version_must_be_signed(const struct ws_version *v)
{
    return v->store->options.trust != NULL;
}

bool ws_content_is_as_signed(struct ws_version *v, size_t file, size_t block, const void *bytes)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    const struct ws_tree *tree = atomic_load_explicit(&v->tree, memory_order_acquire);

    if (!ws_version_must_be_signed(v))
        return true;
    return tree && ws_tree_has(tree, file, block, bytes, ws_manifest_block_bytes(&m->files[file], block));
}

/* --- blocks --- */

void ws_content_arrived(struct ws_version *v, size_t file, size_t block)
{
    struct ws_file_state *f = &v->files[file];
    uint64_t bit = 1UL << (block % BITS);
    uint64_t before = atomic_fetch_or(&f->here[block / BITS], bit);

    assert(!(before & bit));
    atomic_fetch_add(&f->n_here, 1);
}

void ws_content_arrived_all(struct ws_version *v, size_t file)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    for (size_t b = 0; b < m->files[file].n_blocks; b++)
        ws_content_arrived(v, file, b);
}

bool ws_content_has(struct ws_version *v, size_t file, size_t first, size_t n)
{
    const struct ws_manifest *m = atomic_load_explicit(&v->manifest, memory_order_acquire);
    struct ws_file_state *f = &v->files[file];
    size_t n_blocks = m->files[file].n_blocks;
    size_t end = n < n_blocks - (first < n_blocks ? first : n_blocks) ? first + n : n_blocks;

    if (atomic_load(&f->n_here) == n_blocks)
        return true;
    for (size_t b = first; b < end; b++) {
        if (!(atomic_load(&f->here[b / BITS]) & 1UL << (b % BITS)))
            return false;
    }
    return true;
}

bool ws_version_has_range(struct ws_version *v, size_t file, uint64_t at, uint64_t n)
{
    const size_t first = (size_t)(at / WS_BLOCK_BYTES);

    return ws_content_has(v, file, first, (size_t)((at + n - 1) / WS_BLOCK_BYTES) + 1 - first);
}

size_t ws_version_blocks_here(struct ws_version *v, size_t file)
{
    const struct ws_manifest *m = atomic_load_explicit(&v->manifest, memory_order_acquire);

    if (!m || file >= m->n_files)
        return 0;
    return atomic_load_explicit(&v->files[file].n_here, memory_order_acquire);
}

uint64_t ws_content_bytes(struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load_explicit(&v->manifest, memory_order_acquire);
    uint64_t bytes = 0;

    for (size_t i = 0; m && i < m->n_files; i++) {
        const struct ws_manifest_file *f = &m->files[i];
        size_t n = atomic_load_explicit(&v->files[i].n_here, memory_order_acquire);
        bytes += (uint64_t)n * WS_BLOCK_BYTES;
        /* The last block is short; it counts in full only while it is not here. */
        if (n && ws_content_has(v, i, f->n_blocks - 1, 1))
            bytes -= WS_BLOCK_BYTES - ws_manifest_block_bytes(f, f->n_blocks - 1);
    }
    return bytes;
}

struct ws_region *ws_content_region(struct ws_version *v, size_t file)
{
    return atomic_load_explicit(&v->files[file].region, memory_order_acquire);
}

struct ws_region *ws_version_region(struct ws_version *v, size_t file)
{
    return ws_version_blocks_here(v, file) ? ws_content_region(v, file) : NULL;
}

/* --- manifest and headers --- */

bool ws_version_has_files(struct ws_version *v)
{
    return atomic_load_explicit(&v->manifest, memory_order_acquire) != NULL;
}

bool ws_version_has_manifest(struct ws_version *v)
{
    return ws_version_has_files(v) && !atomic_load(&v->unsealed);
}

size_t ws_content_header_blocks(const struct ws_manifest_file *f)
{
    return ws_manifest_count_blocks(f->header_bytes);
}

bool ws_content_has_headers(struct ws_version *v)
{
    const struct ws_manifest *m = atomic_load_explicit(&v->manifest, memory_order_acquire);

    if (m && ws_model_is_hidden(v->model)) /* what describes it, which nobody reads but who assembles it */
        return atomic_load(&v->is_described) || ws_part_view(v);
    for (size_t i = 0; m && i < m->n_files; i++) {
        if (m->files[i].header_bytes && !atomic_load(&v->files[i].header) &&
            !ws_content_has(v, i, 0, ws_content_header_blocks(&m->files[i])))
            return false;
    }
    return m != NULL;
}

/* The header's size must be the one in the manifest, too: readers of the header alone rely on it. */
static int parse(struct ws_version *v, size_t file, const void *bytes, size_t n, struct ws_safetensors **out,
                 struct ws_error *err)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    const struct ws_manifest_file *f = &m->files[file];
    int rc = ws_safetensors_parse(bytes, n < f->size_bytes ? n : f->size_bytes, f->size_bytes, out, err);

    if (rc == 0 && (*out)->data_begin != f->header_bytes) {
        rc = ws_error_set(err, EBADMSG, "its header has %lu bytes, its manifest says %lu", (*out)->data_begin,
                          f->header_bytes);
        ws_safetensors_free(*out);
        *out = NULL;
    }
    if (rc < 0)
        ws_error_prefix(err, "%s/%lu/%s", m->model, m->version, f->name);
    return rc;
}

int ws_content_parse_header(struct ws_version *v, size_t file, const void *bytes, size_t n,
                            struct ws_error *err)
{
    struct ws_safetensors *st = NULL;
    int rc = 0;

    pthread_mutex_lock(&v->header_lock);
    if (!atomic_load(&v->files[file].header)) {
        rc = parse(v, file, bytes, n, &st, err);
        if (rc == 0)
            atomic_store_explicit(&v->files[file].header, st, memory_order_release);
    }
    pthread_mutex_unlock(&v->header_lock);
    return rc;
}

int ws_content_check_headers(struct ws_version *v, struct ws_error *err)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);

    if (ws_part_view(v))
        return 0; /* they are those of which its map was made */
    for (size_t i = 0; i < m->n_files; i++) {
        struct ws_safetensors *st = NULL;
        int rc;
        if (!m->files[i].header_bytes || atomic_load(&v->files[i].header))
            continue;
        rc = parse(v, i, ws_region_data(ws_content_region(v, i)), m->files[i].header_bytes, &st, err);
        if (rc < 0)
            return rc;
        ws_safetensors_free(st);
    }
    return 0;
}

const struct ws_safetensors *ws_version_header(struct ws_version *v, size_t file, struct ws_error *err)
{
    const struct ws_manifest *m = atomic_load_explicit(&v->manifest, memory_order_acquire);
    const struct ws_safetensors *st;

    if (!m || file >= m->n_files || !m->files[file].header_bytes) {
        ws_error_set(err, m ? ENOENT : EAGAIN, "%s/%lu: %s", v->model->name, v->number,
                     m ? "this file has no tensors" : "its manifest is not here");
        return NULL;
    }
    st = atomic_load_explicit(&v->files[file].header, memory_order_acquire);
    if (st)
        return st;
    if (!ws_content_has(v, file, 0, ws_content_header_blocks(&m->files[file]))) {
        ws_error_set(err, EAGAIN, "%s/%lu/%s: its header is not here", m->model, m->version,
                     m->files[file].name);
        return NULL;
    }
    if (ws_content_parse_header(v, file, ws_region_data(ws_content_region(v, file)),
                                m->files[file].header_bytes, err) < 0)
        return NULL;
    return atomic_load_explicit(&v->files[file].header, memory_order_acquire);
}
