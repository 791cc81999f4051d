#include "backends/trainer/offload/shadow.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LINE 256UL /* each block's memory begins at a multiple of it */

struct ws_kept {
    const struct ws_device_ops *ops;
    int device;
    size_t *first; /* n_files + 1: each file's first block */
    size_t n_files, n_wanted;
    struct ws_kept_block *blocks;
    bool *wanted;
    unsigned char *memory;
    uint64_t bytes;
    uint64_t turn, base_turn; /* the begun one; the one that base is of, 0: none */
    struct ws_mark base, committed;
    bool begun, whole; /* whole: committed is the version of all that was noted last */
};

int ws_kept_new(struct ws_kept **out, int device, const uint64_t *file_sizes, size_t n_files,
                struct ws_error *err)
{
    struct ws_kept *k = calloc(1, sizeof(*k));
    if (k) {
        k->ops = ws_device_of_kind(WS_CUDA);
        k->device = device;
        k->n_files = n_files;
        k->first = calloc(n_files + 1, sizeof(*k->first));
    }
    for (size_t i = 0; k && k->first && i < n_files; i++)
        k->first[i + 1] = k->first[i] + (file_sizes[i] + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES;
    if (k && k->first) {
        k->blocks = calloc(ws_kept_blocks(k) + 1, sizeof(*k->blocks));
        k->wanted = calloc(ws_kept_blocks(k) + 1, sizeof(*k->wanted));
    }
    if (!k || !k->blocks || !k->wanted) {
        ws_kept_free(k);
        return ws_error_set(err, ENOMEM, "no memory for a list of blocks that are kept on a GPU");
    }
    for (size_t i = 0; i < n_files; i++)
        for (size_t b = k->first[i]; b < k->first[i + 1]; b++) {
            const uint64_t left = file_sizes[i] - (b - k->first[i]) * WS_BLOCK_BYTES;
            k->blocks[b].len = (uint32_t)(left < WS_BLOCK_BYTES ? left : WS_BLOCK_BYTES);
        }
    *out = k;
    return 0;
}

void ws_kept_free(struct ws_kept *k)
{
    if (!k)
        return;
    if (k->memory)
        k->ops->release(k->device, k->memory);
    free(k->first);
    free(k->blocks);
    free(k->wanted);
    free(k);
}

int ws_kept_device(const struct ws_kept *k)
{
    return k->device;
}

size_t ws_kept_index(const struct ws_kept *k, size_t file, size_t block)
{
    assert(file < k->n_files && block < k->first[file + 1] - k->first[file]);
    return k->first[file] + block;
}

size_t ws_kept_blocks(const struct ws_kept *k)
{
    return k->first[k->n_files];
}

struct ws_kept_block *ws_kept_at(struct ws_kept *k, size_t index)
{
    return &k->blocks[index];
}

/* --- memory --- */

static uint64_t room_of(const struct ws_kept_block *b)
{
    return (b->len + LINE - 1) / LINE * LINE;
}

void ws_kept_want(struct ws_kept *k, size_t index)
{
    if (k->wanted[index])
        return;
    k->wanted[index] = true;
    k->n_wanted++;
    k->bytes += room_of(&k->blocks[index]);
}

int ws_kept_take(struct ws_kept *k, struct ws_error *err)
{
    unsigned char *at;
    assert(!k->memory && k->n_wanted > 0);
    int rc = k->ops->alloc(k->device, k->bytes, (void **)&k->memory, err);
    if (rc < 0)
        return rc;
    at = k->memory;
    for (size_t i = 0; i < ws_kept_blocks(k); i++) {
        if (!k->wanted[i])
            continue;
        k->blocks[i].bytes = at;
        at += room_of(&k->blocks[i]);
    }
    return 0;
}

size_t ws_kept_wanted(const struct ws_kept *k)
{
    return k->n_wanted;
}

uint64_t ws_kept_bytes(const struct ws_kept *k)
{
    return k->bytes;
}

/* --- versions --- */

void ws_kept_begin(struct ws_kept *k)
{
    k->base = k->whole ? k->committed : (struct ws_mark){0};
    k->base_turn = k->whole ? k->turn : 0;
    k->whole = false;
    k->begun = true;
    k->turn++;
}

const struct ws_mark *ws_kept_base(const struct ws_kept *k)
{
    return &k->base;
}

bool ws_kept_knows(const struct ws_kept *k, const struct ws_kept_block *b)
{
    return k->begun && k->base_turn > 0 && b->turn == k->base_turn;
}

void ws_kept_note(struct ws_kept *k, struct ws_kept_block *b, uint64_t hash)
{
    assert(k->begun && b->bytes);
    b->hash = hash;
    b->turn = k->turn;
}

void ws_kept_commit(struct ws_kept *k, const struct ws_mark *version)
{
    k->whole = k->begun;
    k->committed = *version;
    k->begun = false;
}
