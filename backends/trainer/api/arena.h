/* Arena: memory that is handed out in pieces and freed at once, for objects of many small strings. One
 * thread. */
#ifndef WS_TRAINER_API_ARENA_H
#define WS_TRAINER_API_ARENA_H
#include <stddef.h>

struct ws_arena {
    struct ws_arena_block *blocks; /* the newest first; zero: an empty arena */
};

/* Zeroed, aligned as malloc's. NULL: no memory. */
void *ws_arena_alloc(struct ws_arena *a, size_t bytes);
char *ws_arena_text(struct ws_arena *a, const char *text, size_t length); /* and a NUL */
void ws_arena_free(struct ws_arena *a);

#endif
