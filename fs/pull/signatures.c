#include "fs/pull/signatures.h"
#include "fs/store/content.h"
#include "fs/store/model.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/protocol/api.h"
#include "transports/sign/proof_path.h"
#include "transports/sign/tree.h"
#include <errno.h>
#include <poll.h>
#include <string.h>

#define FIRST_PAUSE_MS 5
#define LAST_PAUSE_MS  20
#define LONG_NS        (3 * WS_SECOND_NS) /* after which a source is asked less often */
#define LONG_PAUSE_MS  200
#define TURN_NS        (5 * WS_SECOND_NS) /* of a source, where there is another one */

int ws_signatures_check_manifest(struct ws_version *v, const struct ws_manifest *m, struct ws_error *err)
{
    const struct ws_public_key *by;
    int rc;

    if (!ws_version_must_be_signed(v))
        return 0;
    rc = ws_manifest_check(m, v->store->options.trust, &by, err);
    if (rc < 0)
        return rc;
    ws_log(WS_LOG_INFO, "store", "signed model=%s version=%lu run=%s key=%s name=%s", m->model, m->version,
           m->lineage, by->id, by->name);
    return 0;
}

/* Asks one source, as long as it says that the answer is being made. A source that says so until end_ns is given up.
 * gives_way: another source may have it already: -EAGAIN after a while, and this one is to be asked again later. */
static int query(struct ws_source_select *sel, struct ws_source_attempt *attempt, uint64_t number,
                 const char *lineage, const struct ws_version_id *base, bool gives_way, uint64_t end_ns,
                 json_t **reply, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    char path[WS_API_PATH_BYTES + WS_PROOF_QUERY_CHARS], text[WS_PROOF_QUERY_CHARS];
    const uint64_t begin = ws_clock_ns();
    int pause_ms = FIRST_PAUSE_MS, rc;

    ws_api_version_path(path, WS_PROOF_VERB, ws_model_source_name(v->model), number, NULL, NULL);
    ws_proof_query(text, lineage, base);
    strcat(path, "?");
    strcat(path, text);
    if (gives_way && ws_poller_hung_lately(attempt->poller))
        return ws_error_set(err, EAGAIN, "%s left a request for a signature without an answer just now",
                            attempt->poller->source->url);
    for (;;) {
        rc = ws_source_call(attempt->poller->source, "GET", path, NULL, reply, err);
        ws_poller_note_signature(attempt->poller, rc);
        if (rc != -EAGAIN || atomic_load(&attempt->leave) || atomic_load(&sel->stop))
            break;
        if (ws_clock_ns() > end_ns)
            return ws_error_set(err, ETIMEDOUT, "%s has not signed %s/%lu yet", attempt->poller->source->url,
                                v->model->name, number);
        if (gives_way && ws_clock_ns() - begin > TURN_NS)
            return ws_error_set(err, EAGAIN, "%s has not signed %s/%lu yet", attempt->poller->source->url,
                                v->model->name, number);
        ws_pace_note(&sel->pace, ws_clock_ns()); /* it answers, so it is not silent */
        (void)poll(NULL, 0, pause_ms);
        pause_ms = ws_clock_ns() - begin > LONG_NS ? LONG_PAUSE_MS
                   : pause_ms < LAST_PAUSE_MS      ? 2 * pause_ms
                                                   : LAST_PAUSE_MS;
    }
    return rc;
}

/* When a source that is asked from now on is given up. */
static uint64_t end_of(const struct ws_source_select *sel)
{
    return ws_clock_ns() + (uint64_t)sel->version->store->options.deadline_ms * WS_MS_NS;
}

/* That a source knows of no signature does not mean that the version is gone there. what: "the blocks of". */
static int says_unsigned(const struct ws_version *v, const char *what, uint64_t number,
                         const struct ws_source_attempt *attempt, int rc, struct ws_error *err)
{
    char why[WS_ERROR_TEXT / 2];

    if (rc != -ENOENT && rc != -ESTALE && rc != -EOPNOTSUPP && rc != -EPROTO && rc != -EINVAL)
        return rc;
    snprintf(why, sizeof(why), "%.*s", (int)sizeof(why) - 1, err->text);
    return ws_error_set(err, EBADMSG, "%s cannot show who signed %s %s/%lu, so it is not taken: %s",
                        attempt->poller->source->url, what, v->model->name, number, why);
}

/* --- trees --- */

static int use_tree(void *arg, struct ws_source_attempt *attempt, struct ws_error *err)
{
    struct ws_source_select *sel = arg;
    struct ws_version *v = sel->version;
    struct ws_tree *tree = NULL, *none = NULL;
    json_t *reply = NULL;
    int rc = query(sel, attempt, v->number, v->lineage, NULL, attempt->has_other, end_of(sel), &reply, err);

    if (rc < 0)
        return says_unsigned(v, "the blocks of", v->number, attempt, rc, err);
    rc = ws_tree_from_json(reply, atomic_load(&v->manifest), v->store->options.trust, &tree, err);
    json_decref(reply);
    if (rc == 0 && !atomic_compare_exchange_strong(&v->tree, &none, tree))
        ws_tree_free(tree); /* another thread was faster */
    return rc;
}

int ws_signatures_get_tree(struct ws_source_select *sel, struct ws_error *err)
{
    struct ws_source_attempt attempt = {.any_strategy = true};

    if (!ws_version_must_be_signed(sel->version) || atomic_load(&sel->version->tree))
        return 0;
    return ws_source_select_try(sel, &attempt, use_tree, sel, err);
}

/* --- deltas --- */

/* One source's. -EAGAIN: another one is to be asked before this one is again. */
static int query_delta(struct ws_source_select *sel, struct ws_source_attempt *attempt,
                       const struct ws_delta_link *link, bool gives_way, uint64_t end_ns,
                       struct ws_delta_proof **out, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    json_t *reply = NULL;
    int rc = query(sel, attempt, link->target.version, link->target.lineage, &link->base, gives_way, end_ns,
                   &reply, err);

    if (rc < 0)
        rc = says_unsigned(v, "the delta to", link->target.version, attempt, rc, err);
    else
        rc = ws_delta_proof_from_json(reply, ws_model_source_name(v->model), v->store->options.trust, out,
                                      err);
    json_decref(reply);
    return rc;
}

int ws_signatures_get_delta(struct ws_source_select *sel, const struct ws_delta_link *link,
                            struct ws_delta_proof **out, struct ws_error *err)
{
    struct ws_source_attempt attempt = {.any_strategy = true};
    const uint64_t end_ns = end_of(sel);
    uint64_t later = 0; /* sources that are to be asked again */
    int rc = ws_source_select_next(sel, &attempt, err);

    *out = NULL;
    while (attempt.poller) { /* until one has it; one that has not still has the version */
        const uint64_t bit = ws_bit(attempt.poller->index);
        rc = query_delta(sel, &attempt, link, attempt.has_other || later, end_ns, out, err);
        if (rc == -EAGAIN && !atomic_load(&attempt.leave))
            later |= bit;
        attempt.skip |= bit;
        if (rc == 0)
            ws_source_select_end(&attempt);
        else if (rc == -EAGAIN || ws_source_is_away(rc) || atomic_load(&attempt.leave))
            ws_source_select_defer(sel, &attempt); /* the next delta of the chain begins at another one */
        else
            ws_source_select_distrust(sel, &attempt);
        if (rc == 0)
            break;
        if (ws_source_select_next(sel, &attempt, &(struct ws_error){0}) < 0 && later) {
            attempt.skip &= ~later;
            later = 0;
            if (ws_source_select_next(sel, &attempt, &(struct ws_error){0}) < 0)
                break;
        }
    }
    return rc;
}
