#include "backends/trainer/offload/shadow.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LINE 256UL /* each block's memory begins at a multiple of it */

struct ws_shadow {
    const struct ws_device_ops *ops;
    int device;
    size_t *first; /* n_files + 1: each file's first block */
    size_t n_files, n_selected;
    struct ws_shadow_block *blocks;
    bool *selected;
    unsigned char *memory;
    uint64_t bytes;
    uint64_t turn, base_turn; /* the begun one; the one that base is of, 0: none */
    struct ws_version_id base, committed;
    bool begun, whole; /* whole: `committed` is the version of all that was recorded last */
};

int ws_shadow_new(struct ws_shadow **out, int device, const uint64_t *file_sizes, size_t n_files,
                  struct ws_error *err)
{
    struct ws_shadow *k = calloc(1, sizeof(*k));
    if (k) {
        k->ops = ws_device_by_kind(WS_CUDA);
        k->device = device;
        k->n_files = n_files;
        k->first = calloc(n_files + 1, sizeof(*k->first));
    }
    for (size_t i = 0; k && k->first && i < n_files; i++)
        k->first[i + 1] = k->first[i] + (file_sizes[i] + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES;
    if (k && k->first) {
        k->blocks = calloc(ws_shadow_n_blocks(k) + 1, sizeof(*k->blocks));
        k->selected = calloc(ws_shadow_n_blocks(k) + 1, sizeof(*k->selected));
    }
    if (!k || !k->blocks || !k->selected) {
        ws_shadow_free(k);
        return ws_error_set(err, ENOMEM, "no memory for the list of a GPU's blocks");
    }
    for (size_t i = 0; i < n_files; i++)
        for (size_t b = k->first[i]; b < k->first[i + 1]; b++) {
            const uint64_t left = file_sizes[i] - (b - k->first[i]) * WS_BLOCK_BYTES;
            k->blocks[b].len = (uint32_t)(left < WS_BLOCK_BYTES ? left : WS_BLOCK_BYTES);
        }
    *out = k;
    return 0;
}

void ws_shadow_free(struct ws_shadow *k)
{
    if (!k)
        return;
    if (k->memory)
        k->ops->release(k->device, k->memory);
    free(k->first);
    free(k->blocks);
    free(k->selected);
    free(k);
}

int ws_shadow_device(const struct ws_shadow *k)
{
    return k->device;
}

size_t ws_shadow_index(const struct ws_shadow *k, size_t file, size_t block)
{
    assert(file < k->n_files && block < k->first[file + 1] - k->first[file]);
    return k->first[file] + block;
}

size_t ws_shadow_n_blocks(const struct ws_shadow *k)
{
    return k->first[k->n_files];
}

struct ws_shadow_block *ws_shadow_at(struct ws_shadow *k, size_t index)
{
    return &k->blocks[index];
}

/* --- memory --- */

static uint64_t padded_bytes(const struct ws_shadow_block *b)
{
    return (b->len + LINE - 1) / LINE * LINE;
}

void ws_shadow_select(struct ws_shadow *k, size_t index)
{
    if (k->selected[index])
        return;
    k->selected[index] = true;
    k->n_selected++;
    k->bytes += padded_bytes(&k->blocks[index]);
}

int ws_shadow_allocate(struct ws_shadow *k, struct ws_error *err)
{
    unsigned char *at;
    assert(!k->memory && k->n_selected > 0);
    int rc = k->ops->alloc(k->device, k->bytes, (void **)&k->memory, err);
    if (rc < 0)
        return rc;
    at = k->memory;
    for (size_t i = 0; i < ws_shadow_n_blocks(k); i++) {
        if (!k->selected[i])
            continue;
        k->blocks[i].bytes = at;
        at += padded_bytes(&k->blocks[i]);
    }
    return 0;
}

size_t ws_shadow_n_selected(const struct ws_shadow *k)
{
    return k->n_selected;
}

uint64_t ws_shadow_bytes(const struct ws_shadow *k)
{
    return k->bytes;
}

/* --- versions --- */

void ws_shadow_begin(struct ws_shadow *k)
{
    k->base = k->whole ? k->committed : (struct ws_version_id){0};
    k->base_turn = k->whole ? k->turn : 0;
    k->whole = false;
    k->begun = true;
    k->turn++;
}

const struct ws_version_id *ws_shadow_base(const struct ws_shadow *k)
{
    return &k->base;
}

bool ws_shadow_holds_base(const struct ws_shadow *k, const struct ws_shadow_block *b)
{
    return k->begun && k->base_turn > 0 && b->turn == k->base_turn;
}

void ws_shadow_record(struct ws_shadow *k, struct ws_shadow_block *b, uint64_t hash)
{
    assert(k->begun && b->bytes);
    b->hash = hash;
    b->turn = k->turn;
}

void ws_shadow_commit(struct ws_shadow *k, const struct ws_version_id *version)
{
    k->whole = k->begun;
    k->committed = *version;
    k->begun = false;
}
