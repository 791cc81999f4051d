#include "backends/trainer/api/arena.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES 65536UL
#define ALIGNMENT   _Alignof(max_align_t)

struct ws_arena_block {
    struct ws_arena_block *next;
    size_t used, bytes;
    _Alignas(max_align_t) unsigned char data[];
};

void *ws_arena_alloc(struct ws_arena *a, size_t bytes)
{
    struct ws_arena_block *b = a->blocks;
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!b || bytes > b->bytes - b->used) {
        /* the first one is as large as what is asked: many arenas hold one small object */
        size_t room = b && bytes < BLOCK_BYTES ? BLOCK_BYTES : bytes;
        b = calloc(1, sizeof(*b) + room);
        if (!b)
            return NULL;
        b->bytes = room;
        b->next = a->blocks;
        a->blocks = b;
    }
    void *p = b->data + b->used;
    b->used += bytes;
    return p;
}

char *ws_arena_text(struct ws_arena *a, const char *text, size_t length)
{
    char *copy = ws_arena_alloc(a, length + 1);
    if (copy)
        memcpy(copy, text, length);
    return copy;
}

void ws_arena_free(struct ws_arena *a)
{
    struct ws_arena_block *next;
    for (struct ws_arena_block *b = a->blocks; b; b = next) {
        next = b->next;
        free(b);
    }
    a->blocks = NULL;
}
