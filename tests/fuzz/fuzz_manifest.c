/* Manifests under libFuzzer. A mutated manifest fails at its digest at the latest; to test the code behind it
 * too, the right digest, which the error names, is inserted and the text read again. What is accepted must
 * come back the same from JSON. */
#include "transports/format/manifest.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DIGEST_CHARS 32

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

static void check_files(const struct ws_manifest *m)
{
    uint64_t total = 0;

    require(ws_name_is_safe(m->model) && ws_lineage_is_safe(m->lineage));
    require(m->n_files <= WS_MAX_FILES);
    for (size_t i = 0; i < m->n_files; i++) {
        const struct ws_manifest_file *f = &m->files[i];
        uint64_t bytes = 0;
        require(ws_name_is_safe(f->name));
        require(i == 0 || strcmp(m->files[i - 1].name, f->name) < 0);
        require(ws_manifest_find(m, f->name) == f);
        require(f->header_bytes <= f->size_bytes);
        for (size_t k = 0; k < f->n_blocks; k++)
            bytes += ws_manifest_block_bytes(f, k);
        require(bytes == f->size_bytes);
        total += bytes;
    }
    require(total == m->total_bytes);
}

static void check_round_trip(const struct ws_manifest *m)
{
    struct ws_manifest *copy = NULL, *back = NULL;
    struct ws_error err;
    char *first, *second;
    size_t n, k;

    require(ws_manifest_copy(m, &copy) == 0);
    require(ws_manifest_to_json(copy, &first, &n, &err) == 0);
    require(ws_manifest_from_json(first, n, &back, &err) == 0);
    require(ws_manifest_to_json(back, &second, &k, &err) == 0);
    require(n == k && memcmp(first, second, n) == 0);
    ws_manifest_free(copy);
    ws_manifest_free(back);
    free(first);
    free(second);
}

/* Inserts the digest that the error names into the text; 0 if there is no place for it. */
static int repair(char *text, size_t size, const struct ws_error *err)
{
    static const char key[] = "\"digest\":\"", said[] = "its digest is ";
    const char *right = strstr(err->text, said);
    char *at = memmem(text, size, key, strlen(key));

    if (!right || !at || (size_t)(text + size - at) < strlen(key) + DIGEST_CHARS)
        return 0;
    memcpy(at + strlen(key), right + strlen(said), DIGEST_CHARS);
    return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ws_manifest *m = NULL;
    struct ws_error err = {0};
    char *text = malloc(size ? size : 1);
    int rc;

    require(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    rc = ws_manifest_from_json(text, size, &m, &err);
    if (rc < 0 && repair(text, size, &err))
        rc = ws_manifest_from_json(text, size, &m, &err);
    if (rc == 0) {
        check_files(m);
        check_round_trip(m);
        ws_manifest_free(m);
    } else {
        require(err.code > 0 && err.text[0] != '\0');
        require(m == NULL);
    }
    free(text);
    return 0;
}
