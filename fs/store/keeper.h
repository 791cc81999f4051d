/* Keeper: who holds the memory of complete versions for the daemon after this one, should it die (fs/supervisor.h). Its next daemon takes
 * that memory, by a label that says which version it is, instead of pulling (pull/inherit.h). It is only read from then on, since
 * readers of the daemon before may have it, too.
 *
 * What was not taken yet is of the cache as if it were a version's, and goes when the cache wants its room. */
#ifndef WS_FS_STORE_KEEPER_H
#define WS_FS_STORE_KEEPER_H
#include <stdbool.h>
#include <stdint.h>

struct ws_store;
struct ws_version;

struct ws_store_keeper {                     /* any thread, without store->lock */
    void (*keep)(const char *label, int fd); /* fd: the caller's still */
    void (*forget)(const char *label);
    int (*take)(
        const char
            *label); /* what a daemon before has had kept: a descriptor, the caller's; -1: there is none */
    uint64_t (*left)(void); /* bytes that were not taken */
    void (*drop)(void);     /* forgets those */
};

#define WS_KEEPER_LABEL 1000 /* bytes of a label, with its NUL */

/* Can memory of that version be kept and taken? Where there is a keeper; not the one copy of a model, which is written again, nor where less
 * than all comes. */
bool ws_keeper_applies(struct ws_version *v);
/* Has the memory of a version kept that came whole, and has its own. Of a pull's thread, without any lock. */
void ws_keeper_keep(struct ws_version *v);
/* Before its memory goes. Without any lock. */
void ws_keeper_forget(struct ws_version *v);
/* A descriptor of that file's memory, the caller's; -1. Where it applies. */
int ws_keeper_take(struct ws_version *v, unsigned file);
/* Its memory is the version's from here on, which has its bytes of the cache. */
void ws_keeper_took(struct ws_version *v, uint64_t bytes);
/* Forgets what was not taken; false: there is none. Without any lock. */
bool ws_keeper_drop(struct ws_store *s);
void ws_keeper_begin(struct ws_store *s); /* the store's start */

#endif
