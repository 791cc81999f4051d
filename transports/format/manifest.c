/* The manifest: its construction, its digest. JSON is manifest_json.c's. */
#include "transports/format/manifest.h"
#include "transports/base/vector.h"
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
/* Inlined, so that the hash's state can live on the stack without leaning on a library's private
 * layout: sealing cannot fail. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#define MIN_HEADER_BYTES 10 /* a header's length and "{}" */

bool ws_lineage_is_safe(const char *lineage)
{
    size_t length = strnlen(lineage, WS_LINEAGE_CHARS + 1);

    return length > 0 && length <= WS_LINEAGE_CHARS &&
           strspn(lineage, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == length;
}

size_t ws_manifest_count_blocks(uint64_t size_bytes)
{
    return size_bytes / WS_BLOCK_BYTES + (size_bytes % WS_BLOCK_BYTES != 0);
}

size_t ws_manifest_block_bytes(const struct ws_manifest_file *f, size_t block)
{
    assert(block < f->n_blocks);
    if (block + 1 < f->n_blocks)
        return WS_BLOCK_BYTES;
    return f->size_bytes - block * WS_BLOCK_BYTES;
}

int ws_manifest_new(struct ws_manifest **out, const char *model, uint64_t version, const char *lineage,
                    struct ws_error *err)
{
    struct ws_manifest *m;

    if (!model || !ws_name_is_offered(model))
        return ws_error_set(err, EINVAL, "\"%.100s\" cannot be a model's name: %s", model ? model : "",
                            WS_MODEL_NAME_RULE);
    if (!lineage || !ws_lineage_is_safe(lineage))
        return ws_error_set(err, EINVAL,
                            "\"%s\" cannot be a run id: use 1 to %d of letters, digits, '.', '_', "
                            "'-'",
                            lineage ? lineage : "", WS_LINEAGE_CHARS);
    if (version > INT64_MAX)
        return ws_error_set(err, EINVAL, "version %lu is over the limit of 2^63 - 1", version);
    m = calloc(1, sizeof(*m));
    if (m)
        m->model = strdup(model);
    if (!m || !m->model) {
        free(m);
        return ws_error_set(err, ENOMEM, "out of memory for a manifest");
    }
    m->version = version;
    strcpy(m->lineage, lineage); /* its length is checked above */
    *out = m;
    return 0;
}

static int check_file(const struct ws_manifest *m, const char *name, uint64_t size_bytes,
                      uint64_t header_bytes, struct ws_error *err)
{
    uint64_t headers = header_bytes;

    if (!ws_name_is_file(name))
        return ws_error_set(err, EINVAL,
                            "\"%.255s\" cannot be a file's name: it is 1 to %d bytes without '/' and control "
                            "characters, does not begin with a dot and is not \"tensors\"",
                            name, WS_MAX_NAME);
    if (size_bytes > WS_MAX_FILE_BYTES)
        return ws_error_set(err, E2BIG, "file \"%s\" has %lu bytes, more than the limit of %lu", name,
                            size_bytes, WS_MAX_FILE_BYTES);
    if (header_bytes != 0 && (header_bytes < MIN_HEADER_BYTES || header_bytes > size_bytes ||
                              header_bytes - 8 > WS_MAX_HEADER_BYTES))
        return ws_error_set(err, EINVAL, "file \"%s\" of %lu bytes cannot have a header of %lu", name,
                            size_bytes, header_bytes);
    for (size_t i = 0; i < m->n_files; i++)
        headers += m->files[i].header_bytes;
    if (headers > WS_MAX_HEADER_BYTES + 8)
        return ws_error_set(err, E2BIG,
                            "the headers of the version have %lu bytes, more than the limit of %lu", headers,
                            WS_MAX_HEADER_BYTES);
    if (m->n_files == WS_MAX_FILES)
        return ws_error_set(err, E2BIG, "the version has more than %d files, the limit", WS_MAX_FILES);
    return 0;
}

int ws_manifest_add(struct ws_manifest *m, const char *name, uint64_t size_bytes, uint64_t header_bytes,
                    struct ws_manifest_file **out, struct ws_error *err)
{
    struct ws_manifest_file f = {.size_bytes = size_bytes, .header_bytes = header_bytes};
    int rc = check_file(m, name, size_bytes, header_bytes, err);
    struct ws_manifest_file *files;
    size_t at = m->n_files;

    if (rc < 0)
        return rc;
    while (at > 0 && strcmp(m->files[at - 1].name, name) >= 0)
        at--;
    if (at < m->n_files && strcmp(m->files[at].name, name) == 0)
        return ws_error_set(err, EEXIST, "file \"%s\" is there twice", name);
    f.n_blocks = ws_manifest_count_blocks(size_bytes);
    f.name = strdup(name);
    f.hashes = calloc(f.n_blocks + 1, sizeof(*f.hashes));
    files = f.name && f.hashes ? ws_vector_room(m->files, m->n_files, sizeof(f)) : NULL;
    if (!files) {
        free(f.name);
        free(f.hashes);
        return ws_error_set(err, ENOMEM, "out of memory for a manifest of %zu files", m->n_files + 1);
    }
    m->files = files;
    memmove(&m->files[at + 1], &m->files[at], (m->n_files - at) * sizeof(f));
    m->files[at] = f;
    m->n_files++;
    *out = &m->files[at];
    return 0;
}

int ws_manifest_freeze(struct ws_manifest *m, const char *tensor, struct ws_error *err)
{
    char **frozen;
    char *name;

    if (tensor[0] == '\0' || strnlen(tensor, WS_MAX_TENSOR_NAME + 1) > WS_MAX_TENSOR_NAME)
        return ws_error_set(err, EINVAL, "\"%.160s\" cannot be a tensor's name: it is 1 to %d bytes", tensor,
                            WS_MAX_TENSOR_NAME);
    if (m->n_frozen == WS_MAX_TENSORS)
        return ws_error_set(err, E2BIG, "more than %d tensors are frozen, the limit", WS_MAX_TENSORS);
    name = strdup(tensor);
    frozen = name ? ws_vector_room(m->frozen, m->n_frozen, sizeof(char *)) : NULL;
    if (!frozen) {
        free(name);
        return ws_error_set(err, ENOMEM, "out of memory for a manifest");
    }
    m->frozen = frozen;
    m->frozen[m->n_frozen++] = name;
    return 0;
}

static void hash_number(XXH3_state_t *state, uint64_t number)
{
    uint64_t le = htole64(number);

    XXH3_128bits_update(state, &le, sizeof(le));
}

static void hash_string(XXH3_state_t *state, const char *s)
{
    size_t length = strlen(s);

    hash_number(state, length);
    XXH3_128bits_update(state, s, length);
}

static void hash_file(XXH3_state_t *state, const struct ws_manifest_file *f)
{
    hash_string(state, f->name);
    hash_number(state, f->size_bytes);
    hash_number(state, f->header_bytes);
    for (size_t i = 0; i < f->n_blocks; i++)
        hash_number(state, f->hashes[i]);
}

void ws_manifest_seal(struct ws_manifest *m)
{
    static const char start[] = "wsync manifest 1\n";
    static const char hex[] = "0123456789abcdef";
    XXH128_canonical_t digest;
    XXH3_state_t state;

    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, start, strlen(start));
    hash_string(&state, m->model);
    hash_string(&state, m->lineage);
    hash_number(&state, m->version);
    hash_number(&state, m->n_files);
    uint64_t total = 0;
    for (size_t i = 0; i < m->n_files; i++) {
        hash_file(&state, &m->files[i]);
        total += m->files[i].size_bytes; /* no overflow: WS_MAX_FILES of 2^44 */
    }
    hash_number(&state, m->n_frozen);
    for (size_t i = 0; i < m->n_frozen; i++)
        hash_string(&state, m->frozen[i]);
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(&state));
    for (size_t i = 0; i < sizeof(digest.digest); i++) {
        m->digest[2 * i] = hex[digest.digest[i] >> 4];
        m->digest[2 * i + 1] = hex[digest.digest[i] & 15];
    }
    m->digest[2 * sizeof(digest.digest)] = '\0';
    if (m->total_bytes != total) /* it may be known already, and be read */
        m->total_bytes = total;
}

static int by_name(const void *key, const void *file)
{
    return strcmp(key, ((const struct ws_manifest_file *)file)->name);
}

const struct ws_manifest_file *ws_manifest_find(const struct ws_manifest *m, const char *name)
{
    if (m->n_files == 0)
        return NULL;
    return bsearch(name, m->files, m->n_files, sizeof(*m->files), by_name);
}

bool ws_manifest_has_same_files(const struct ws_manifest *a, const struct ws_manifest *b)
{
    bool same = a->n_files == b->n_files;

    for (size_t i = 0; same && i < a->n_files; i++)
        same = a->files[i].size_bytes == b->files[i].size_bytes &&
               strcmp(a->files[i].name, b->files[i].name) == 0;
    return same;
}

int ws_manifest_copy(const struct ws_manifest *m, struct ws_manifest **out)
{
    struct ws_manifest *copy = NULL;
    int rc = ws_manifest_new(&copy, m->model, m->version, m->lineage, NULL);

    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        const struct ws_manifest_file *f = &m->files[i];
        struct ws_manifest_file *to;
        rc = ws_manifest_add(copy, f->name, f->size_bytes, f->header_bytes, &to, NULL);
        if (rc == 0)
            memcpy(to->hashes, f->hashes, f->n_blocks * sizeof(*f->hashes));
    }
    for (size_t i = 0; rc == 0 && i < m->n_frozen; i++)
        rc = ws_manifest_freeze(copy, m->frozen[i], NULL);
    if (rc < 0) {
        ws_manifest_free(copy);
        return rc;
    }
    if (m->signature && !(copy->signature = strdup(m->signature))) {
        ws_manifest_free(copy);
        return -ENOMEM;
    }
    copy->created_ns = m->created_ns;
    copy->total_bytes = m->total_bytes;
    memcpy(copy->digest, m->digest, sizeof(copy->digest));
    *out = copy;
    return 0;
}

void ws_manifest_free(struct ws_manifest *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n_files; i++) {
        free(m->files[i].name);
        free(m->files[i].hashes);
    }
    for (size_t i = 0; i < m->n_frozen; i++)
        free(m->frozen[i]);
    free(m->files);
    free(m->frozen);
    free(m->signature);
    free(m->model);
    free(m);
}
