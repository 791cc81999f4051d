/* Takes part in a broadcast and checks every byte: receive SOURCE MODEL VERSION [DEVICE [TIMEOUT_MS [SHARE]]]
 * SHARE: only every SHAREth block is missing, the others are there already. Prints
 *   ok HOW           each block that was missing came, once, with the manifest's hash
 *   ERRNO N SENTENCE it ended early; N blocks have come
 * It fetches the manifest from the source; the files' memory is its own. */
#include "transports/nccl/broadcast.h"
#include "transports/simd/copy.h"
#include "transports/transport.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct receiving {
    const struct ws_manifest *manifest;
    unsigned char **data;
    unsigned **came; /* how often, a number a block */
    size_t share, n_came;
    bool wrong;
};

static bool is_missing(const struct receiving *r, size_t block)
{
    return block % r->share == 0;
}

static bool wants(void *arg, size_t file, size_t block)
{
    const struct receiving *r = arg;
    return is_missing(r, block) && r->came[file][block] == 0;
}

static int take(void *arg, size_t file, size_t block, uint64_t hash)
{
    struct receiving *r = arg;
    r->n_came++;
    r->came[file][block]++;
    r->wrong = r->wrong || hash != r->manifest->files[file].hashes[block];
    return 0;
}

static int prepare(struct receiving *r)
{
    const struct ws_manifest *m = r->manifest;
    r->data = calloc(m->n_files + 1, sizeof(*r->data));
    r->came = calloc(m->n_files + 1, sizeof(*r->came));
    for (size_t i = 0; r->data && r->came && i < m->n_files; i++) {
        r->data[i] = calloc(1, m->files[i].size_bytes + 1);
        r->came[i] = calloc(m->files[i].n_blocks + 1, sizeof(unsigned));
        if (!r->data[i] || !r->came[i])
            return -ENOMEM;
    }
    return r->data && r->came ? 0 : -ENOMEM;
}

/* The bytes in memory, whatever was reported. */
static bool is_all_right(const struct receiving *r)
{
    for (size_t f = 0; f < r->manifest->n_files; f++) {
        const struct ws_manifest_file *file = &r->manifest->files[f];
        for (size_t b = 0; b < file->n_blocks; b++) {
            unsigned expected = is_missing(r, b);
            const unsigned char *at = r->data[f] + b * WS_BLOCK_BYTES;
            if (r->came[f][b] != expected ||
                (expected && ws_hash(at, ws_manifest_block_bytes(file, b)) != file->hashes[b]))
                return false;
        }
    }
    return !r->wrong;
}

static void clear(struct receiving *r)
{
    for (size_t i = 0; i < r->manifest->n_files; i++) {
        free(r->data ? r->data[i] : NULL);
        free(r->came ? r->came[i] : NULL);
    }
    free(r->data);
    free(r->came);
}

int main(int argc, char **argv)
{
    struct ws_error err = {0};
    struct ws_source *s = NULL;
    struct ws_manifest *m = NULL;
    struct receiving r = {.share = argc > 6 ? strtoull(argv[6], NULL, 10) : 1};
    int rc = argc < 4 ? ws_error_set(&err, EINVAL, "SOURCE MODEL VERSION [DEVICE [TIMEOUT_MS [SHARE]]]") : 0;
    if (rc == 0)
        rc = ws_source_open(argv[1], &(struct ws_source_options){.mount_id = getenv("WHO")}, &s, &err);
    if (rc == 0)
        rc = ws_source_manifest(s, argv[2], strtoull(argv[3], NULL, 10), NULL, NULL, &m, &err);
    r.manifest = m;
    if (rc == 0 && prepare(&r) < 0)
        rc = ws_error_set(&err, ENOMEM, "no memory for the version");
    if (rc == 0) {
        struct ws_broadcast_fetch f = {.manifest = m,
                                       .data = r.data,
                                       .wants = wants,
                                       .block = take,
                                       .arg = &r,
                                       .device = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 0,
                                       .timeout_ms = argc > 5 ? (unsigned)strtoul(argv[5], NULL, 10) : 0};
        printf("begins\n");
        fflush(stdout);
        rc = ws_broadcast_fetch(s, &f, &err);
        if (rc == 0 && !is_all_right(&r))
            rc = ws_error_set(&err, EBADMSG, "what came is not what was published");
        if (rc == 0)
            printf("ok %s\n", f.how);
    }
    if (rc < 0)
        printf("%s %zu %s\n", ws_errno_name(-rc), r.n_came, err.text);
    if (m)
        clear(&r);
    ws_manifest_free(m);
    ws_source_close(s);
    return rc < 0;
}
