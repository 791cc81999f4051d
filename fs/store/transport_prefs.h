/* Strategies: by which ways a model's weights may come to this mount, best first. The names are those of
 * transports/ways.h.
 *
 * A list is a preference and a limit: sources are asked in the order of their strategies, and what is not in
 * the list moves no weights. cuda_ipc and packed_cuda_ipc never carry what a mount pulls: engines load by
 * them, device to device, and why_not.h says whether they could. */
#ifndef WS_FS_STORE_TRANSPORT_PREFS_H
#define WS_FS_STORE_TRANSPORT_PREFS_H
#include "transports/ways.h"

#define WS_STRATEGIES_CHARS 80 /* of a list */

struct ws_store;

struct ws_strategies {
    unsigned char n; /* 0: auto: all there are, the fastest first */
    unsigned char id[WS_N_WAYS];
};

/* "auto", or names with commas or colons between. -EINVAL. */
WS_MUST_USE int ws_strategies_parse(const char *text, struct ws_strategies *out, struct ws_error *err);
void ws_strategies_text(const struct ws_strategies *s, char out[WS_STRATEGIES_CHARS]);
/* Its place in the list, the best one's is 0; negative: not in it. */
int ws_strategies_rank(const struct ws_strategies *s, int id);
/* The one at that place; WS_NO_WAY: the list ends before it. */
int ws_strategies_at(const struct ws_strategies *s, int rank);

/* What was set for a model, by its name; NULL: the mount's own again. */
WS_MUST_USE int ws_strategies_set(struct ws_store *store, const char *model, const struct ws_strategies *s,
                                  struct ws_error *err);
/* What holds for a model; false: nothing was set for it, it is the mount's. */
bool ws_strategies_get(struct ws_store *store, const char *model, struct ws_strategies *out);
bool ws_strategies_get_locked(struct ws_store *store, const char *model, struct ws_strategies *out);
void ws_strategies_forget(struct ws_store *store); /* at its end */

#endif
