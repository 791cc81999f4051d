/* Parent memory: which mounts a model's parents were, by URL, and which of them did not keep up. It outlives the parents
 * themselves, by the settings over a restart too. Guarded by the owner's lock. */
#ifndef WS_FS_STORE_PARENT_MEMORY_H
#define WS_FS_STORE_PARENT_MEMORY_H
#include "transports/base/limits.h"
#include <stdbool.h>

#define WS_PARENT_URLS (2 * WS_FANOUT_STRIPES)

/* What is known of a model that a settings' file or an agent has named. */
struct ws_parent_memory {
    struct ws_parent_memory *next;
    char *model;
    char *urls[WS_PARENT_URLS];
    unsigned n;
    bool is_used; /* those of a daemon before are asked now */
    char *blamed[WS_PARENT_URLS];
    unsigned n_blamed;
};

/* NULL: nothing is known of it. */
struct ws_parent_memory *ws_parent_memory_find(struct ws_parent_memory *list, const char *model);
/* The same, added where it is not there. NULL: no memory. */
struct ws_parent_memory *ws_parent_memory_add(struct ws_parent_memory **list, const char *model);
void ws_parent_memory_free(struct ws_parent_memory **list);
/* A list of URLs, each once, copied. False: it is full, or no memory. */
bool ws_parent_urls_add(char **list, unsigned *n, const char *url);
void ws_parent_urls_clear(char **list, unsigned *n);

#endif
