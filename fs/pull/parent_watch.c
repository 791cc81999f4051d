#include "fs/pull/parent_watch.h"
#include "fs/pull/source_order.h"
#include "fs/store/parents.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"

#define SILENT_NS    (1500 * WS_MS_NS)  /* then it is asked whether it is alive */
#define WINDOW_NS    (2 * WS_SECOND_NS) /* in which sources are compared; longer, until the others sent ... */
#define WINDOW_BYTES (8 * WS_BLOCK_BYTES)
#define RETURN_NS    (2 * WS_SECOND_NS) /* at another source */
#define MUCH_SLOWER  8
#define SLOW_WINDOWS 2 /* in a row: flows that share a link by chance get unequal shares of it for a while */

bool ws_parent_watch_is_parent(const struct ws_source_attempt *attempt)
{
    return ws_parent_rank(attempt->selection->version, attempt->stripe, attempt->poller) != WS_PARENT_NONE;
}

bool ws_parent_watch_is_of_before(const struct ws_source_attempt *attempt)
{
    const struct ws_version *v = attempt->selection->version;

    return attempt->poller->is_hint && attempt->since_ns < ws_parents_told_ns(v) &&
           ws_parent_rank(v, attempt->stripe, attempt->poller) == WS_PARENT_OF_OTHERS;
}

/* A parent sends a block once it has all of it: in the middle of one it waits for nobody. */
static bool is_in_block(const struct ws_source_attempt *attempt)
{
    return attempt->came && atomic_load(attempt->came) % WS_BLOCK_BYTES != 0;
}

static void see(struct ws_source_select *sel, struct ws_source_attempt *attempt, uint64_t now_ns)
{
    const uint64_t value = attempt->came ? atomic_load(attempt->came) : atomic_load(&sel->pace.last_ns);

    if (value == attempt->seen)
        return;
    if (attempt->came) {
        const uint64_t more = value > attempt->seen ? value - attempt->seen : value;
        attempt->own_bytes += more;
        sel->watched_bytes += more;
    }
    attempt->seen = value;
    attempt->moved_ns = now_ns;
}

static void begin_window(const struct ws_source_select *sel, struct ws_source_attempt *attempt,
                         uint64_t now_ns)
{
    attempt->window_ns = now_ns;
    attempt->window_watched = sel->watched_bytes;
    attempt->own_bytes = 0;
}

/* Did the other attempts bring much more in this one's window? Bytes are compared, never times, which differ with
 * links. A parent is slow itself only in the middle of a block; before, it waits for its own parent, and whoever left it
 * then would make the tree worse. */
static bool is_much_slower(struct ws_source_select *sel, struct ws_source_attempt *attempt, uint64_t now_ns)
{
    const uint64_t others = sel->watched_bytes - attempt->window_watched - attempt->own_bytes;
    unsigned n = 0;

    if (!attempt->came || attempt->seen % WS_BLOCK_BYTES == 0) {
        begin_window(sel, attempt, now_ns);
        attempt->slow_windows = 0;
        return false;
    }
    if (now_ns - attempt->window_ns < WINDOW_NS || others < WINDOW_BYTES)
        return false;
    for (const struct ws_source_attempt *a = sel->attempts; a; a = a->next)
        n += a != attempt && a->came;
    attempt->slow_windows =
        n > 0 && others / n > MUCH_SLOWER * attempt->own_bytes ? attempt->slow_windows + 1 : 0;
    begin_window(sel, attempt, now_ns);
    return attempt->slow_windows >= SLOW_WINDOWS;
}

/* Did it go to another source because its parent was not there, and is it there now? All mounts that do so share that
 * source's link. What has more than half of its block ends it first. */
static bool can_return(const struct ws_source_select *sel, const struct ws_source_attempt *attempt,
                       uint64_t now_ns)
{
    struct ws_poller *list[WS_MAX_SOURCES], *barred;

    if (!attempt->came || now_ns - attempt->since_ns < RETURN_NS ||
        atomic_load(attempt->came) % WS_BLOCK_BYTES > WS_BLOCK_BYTES / 2)
        return false;
    return ws_source_order_parent(sel, attempt, list, ws_source_order_find(sel, attempt, list, &barred));
}

uint64_t ws_parent_watch_look(struct ws_source_select *sel, uint64_t now_ns)
{
    const struct ws_version *v = sel->version;
    uint64_t silent = 0;

    pthread_mutex_lock(&sel->lock);
    for (struct ws_source_attempt *attempt = sel->attempts; attempt; attempt = attempt->next)
        see(sel, attempt, now_ns);
    for (struct ws_source_attempt *attempt = sel->attempts; attempt; attempt = attempt->next) {
        if (atomic_load(&attempt->leave))
            continue;
        if (!ws_parent_watch_is_parent(attempt)) {
            if (can_return(sel, attempt, now_ns))
                atomic_store(&attempt->leave, true);
            continue;
        }
        if (ws_parent_watch_is_of_before(attempt) && !is_in_block(attempt)) {
            atomic_store(&attempt->leave, true);
            continue;
        }
        if (now_ns - attempt->moved_ns >= SILENT_NS)
            silent |= ws_bit(attempt->poller->index);
        if (is_much_slower(sel, attempt, now_ns)) {
            ws_log(WS_LOG_INFO, "store", "a parent is much slower than others model=%s version=%lu source=%s",
                   v->model->name, v->number, attempt->poller->source->url);
            ws_parents_blame(v->model, attempt->poller);
            atomic_store(&attempt->leave, true);
        }
    }
    pthread_mutex_unlock(&sel->lock);
    return silent;
}
