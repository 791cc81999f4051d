/* Parents of trees (fs/store/parents.h) come first, for what is of their stripe, but after sources that the operator
 * named by a better strategy: the memory of an agent on this host, an archive. What makes no ring possible: for a block
 * of a stripe only the path up in the tree of that stripe is asked, then an agent, which waits for no mount. Other
 * parents are the last resort, where no source of the operator's is up. */
#include "fs/pull/source_order.h"
#include "fs/store/parents.h"
#include "transports/base/clock.h"

/* Is a better than b? */
static bool is_before(const struct ws_version *v, unsigned stripe, const struct ws_transport_prefs *s,
                      const struct ws_poller *a, const struct ws_poller *b)
{
    unsigned ra =
        (unsigned)ws_transport_prefs_rank(s, a->strategy); /* of one that is not in the list: the last */
    const unsigned rb = (unsigned)ws_transport_prefs_rank(s, b->strategy);
    const enum ws_parent_rank pa = ws_parent_rank(v, stripe, a), pb = ws_parent_rank(v, stripe, b);

    return ra != rb ? ra < rb : pa != pb ? pa < pb : a->order < b->order;
}

unsigned ws_source_order_find(const struct ws_source_select *sel, const struct ws_source_attempt *attempt,
                              struct ws_poller *out[WS_MAX_SOURCES], struct ws_poller **barred)
{
    const struct ws_version *v = sel->version;
    uint64_t those = v->sources & ~sel->refused & ~attempt->skip & ~(attempt->needs_whole ? v->partial : 0);
    const struct ws_transport_prefs *list = attempt->only ? attempt->only : &sel->transport_prefs;
    unsigned n = 0;

    *barred = NULL;
    for (unsigned i = 0; i < WS_MAX_SOURCES; i++) {
        struct ws_poller *p = v->store->pollers[i];
        unsigned at = n;
        if (!p || !(those & ws_bit(i)))
            continue;
        if (!attempt->any_strategy && ws_transport_prefs_rank(list, p->strategy) < 0) {
            *barred = p;
            continue;
        }
        for (; at > 0 && is_before(v, attempt->stripe, list, p, out[at - 1]); at--)
            out[at] = out[at - 1];
        out[at] = p;
        n++;
    }
    return n;
}

bool ws_source_order_has_other(struct ws_poller *const *list, unsigned n, const struct ws_poller *taken)
{
    bool other = false;

    for (unsigned k = 0; k < n; k++)
        other = other || (list[k] != taken && list[k]->up);
    return other;
}

bool ws_source_order_avoids(const struct ws_source_select *sel, const struct ws_poller *p)
{
    return sel->avoid_ns[p->index] > ws_clock_ns();
}

bool ws_source_order_has_better(const struct ws_source_select *sel, const struct ws_source_attempt *attempt,
                                struct ws_poller *const *list, unsigned n)
{
    const struct ws_transport_prefs *prefs = attempt->only ? attempt->only : &sel->transport_prefs;
    const int parents = ws_transport_prefs_rank(prefs, WS_WAY_TCP); /* -1: they move no weights */

    for (unsigned k = 0; k < n; k++)
        if (list[k]->up && ws_transport_prefs_rank(prefs, list[k]->strategy) < parents &&
            ws_parent_rank(sel->version, attempt->stripe, list[k]) == WS_PARENT_NONE)
            return true;
    return false;
}

struct ws_poller *ws_source_order_parent(const struct ws_source_select *sel,
                                         const struct ws_source_attempt *attempt,
                                         struct ws_poller *const *list, unsigned n)
{
    if (ws_source_order_has_better(sel, attempt, list, n))
        return NULL;
    for (unsigned k = 0; k < n; k++)
        if (ws_parent_rank(sel->version, attempt->stripe, list[k]) <= WS_PARENT_NEXT && list[k]->up &&
            !ws_source_order_avoids(sel, list[k]))
            return list[k];
    return NULL;
}

/* In turn, those of that rank that answer; any: those that do not, too. */
static struct ws_poller *choose_in_turn(const struct ws_source_select *sel, unsigned stripe,
                                        struct ws_poller *const *list, unsigned n, enum ws_parent_rank rank,
                                        bool any)
{
    struct ws_poller *of_rank[WS_MAX_SOURCES];
    unsigned k = 0;

    for (unsigned i = 0; i < n; i++)
        if (ws_parent_rank(sel->version, stripe, list[i]) == rank)
            of_rank[k++] = list[i];
    for (unsigned i = 0; i < k; i++) {
        struct ws_poller *p = of_rank[(sel->turn + i) % k];
        if (any || (p->up && !ws_source_order_avoids(sel, p)))
            return p;
    }
    return NULL;
}

struct ws_poller *ws_source_order_choose(const struct ws_source_select *sel,
                                         const struct ws_source_attempt *attempt,
                                         struct ws_poller *const *list, unsigned n)
{
    const unsigned stripe = attempt->stripe;
    struct ws_poller *p =
        attempt->not_parents ? choose_in_turn(sel, stripe, list, n, WS_PARENT_NONE, false) : NULL;

    if (!p)
        p = ws_source_order_parent(sel, attempt, list, n);
    for (int any = 0; !p && any < 2; any++) {
        p = choose_in_turn(sel, stripe, list, n, WS_PARENT_NONE, any);
        if (!p)
            p = choose_in_turn(sel, stripe, list, n, WS_PARENT_OF_OTHERS, any);
    }
    return p ? p : n ? list[sel->turn % n] : NULL;
}
