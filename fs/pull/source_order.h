/* Source order: which sources have a version, the best one first, and which of them an attempt uses. All with store->lock
 * and the selection's. */
#ifndef WS_FS_PULL_SOURCE_ORDER_H
#define WS_FS_PULL_SOURCE_ORDER_H
#include "fs/pull/source_select.h"

/* Candidates, the best one first; how many. *barred: one that is left out for its strategy, or NULL. */
unsigned ws_source_order_find(const struct ws_source_select *sel, const struct ws_source_attempt *attempt,
                              struct ws_poller *out[WS_MAX_SOURCES], struct ws_poller **barred);
/* The one of these candidates that the attempt uses; NULL: there is none. */
struct ws_poller *ws_source_order_choose(const struct ws_source_select *sel,
                                         const struct ws_source_attempt *attempt,
                                         struct ws_poller *const *list, unsigned n);
/* The first parent that answers; NULL: none does, or there is a better source. */
struct ws_poller *ws_source_order_parent(const struct ws_source_select *sel,
                                         const struct ws_source_attempt *attempt,
                                         struct ws_poller *const *list, unsigned n);
/* Does a source of the operator's answer whose strategy comes before that of parents? */
bool ws_source_order_has_better(const struct ws_source_select *sel, const struct ws_source_attempt *attempt,
                                struct ws_poller *const *list, unsigned n);
/* Is there another one that answers? */
bool ws_source_order_has_other(struct ws_poller *const *list, unsigned n, const struct ws_poller *taken);
/* Is it a parent that failed, and is not asked for now? */
bool ws_source_order_avoids(const struct ws_source_select *sel, const struct ws_poller *p);

#endif
