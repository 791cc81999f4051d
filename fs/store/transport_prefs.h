/* Transport preferences: the ways (transports/ways.h) in which a model's weights may come to this mount, best
 * first. Operators know them as strategies.
 *
 * A list is a preference and a limit: sources are asked in the order of their ways, and a source whose way is
 * not in the list moves no weights. A mount never pulls by cuda_ipc and packed_cuda_ipc: engines load by
 * them, device to device, and pull/why_not.h says whether they could. */
#ifndef WS_FS_STORE_TRANSPORT_PREFS_H
#define WS_FS_STORE_TRANSPORT_PREFS_H
#include "transports/ways.h"

#define WS_TRANSPORT_PREFS_CHARS 80 /* of a list */

struct ws_store;

struct ws_transport_prefs {
    unsigned char n; /* 0: auto: all there are, the fastest first */
    unsigned char id[WS_N_WAYS];
};

/* "auto", or names with commas or colons between. -EINVAL. */
WS_MUST_USE int ws_transport_prefs_parse(const char *text, struct ws_transport_prefs *out,
                                         struct ws_error *err);
void ws_transport_prefs_text(const struct ws_transport_prefs *s, char out[WS_TRANSPORT_PREFS_CHARS]);
/* Its place in the list, the best one's is 0; negative: not in it. */
int ws_transport_prefs_rank(const struct ws_transport_prefs *s, int id);
/* The one at that place; WS_NO_WAY: the list ends before it. */
int ws_transport_prefs_at(const struct ws_transport_prefs *s, int rank);

/* Sets a model's list; NULL: the mount's own holds again. -ENOMEM. */
WS_MUST_USE int ws_transport_prefs_set(struct ws_store *store, const char *model,
                                       const struct ws_transport_prefs *s, struct ws_error *err);
/* The list that holds for a model. False: none was set for it, it is the mount's. */
bool ws_transport_prefs_get(struct ws_store *store, const char *model, struct ws_transport_prefs *out);
bool ws_transport_prefs_get_locked(struct ws_store *store, const char *model, struct ws_transport_prefs *out);
void ws_transport_prefs_clear(struct ws_store *store); /* when the store is freed */

#endif
