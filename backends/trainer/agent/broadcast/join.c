/* Members that ask for a place in a broadcast: their tickets, and the replies. The requests are those of
 * transports/nccl/broadcast.c. Every reply is sent at once. */
#include "backends/trainer/agent/broadcast/sender.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/leases.h"
#include "backends/trainer/agent/core/models.h"
#include "transports/base/clock.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SILENT_NS 2000000000ULL /* a member that sends no request for so long is gone */
#define SOON_MS   10
#define LATER_MS  50

/* --- lists; under lock --- */

static void free_joiner(struct ws_sender_joiner *j)
{
    free(j->wants);
    free(j->model);
    free(j->mount_id);
    free(j);
}

void ws_sender_joiners_free(struct ws_sender_joiner **list)
{
    for (struct ws_sender_joiner *j = *list, *next; j; j = next) {
        next = j->next;
        free_joiner(j);
    }
    *list = NULL;
}

static struct ws_sender_joiner **find(struct ws_sender_joiner **list, uint64_t ticket)
{
    while (*list && (*list)->ticket != ticket)
        list = &(*list)->next;
    return list;
}

static void append(struct ws_sender_joiner **list, struct ws_sender_joiner *j)
{
    while (*list)
        list = &(*list)->next;
    j->next = NULL;
    *list = j;
}

static struct ws_sender_joiner *unlink_joiner(struct ws_sender_joiner **at)
{
    struct ws_sender_joiner *j = *at;
    *at = j->next;
    return j;
}

void ws_sender_expire(struct ws_sender *b, uint64_t now_ns)
{
    for (struct ws_sender_joiner **at = &b->waiting; *at;) {
        if ((*at)->asked_ns + SILENT_NS < now_ns)
            free_joiner(unlink_joiner(at));
        else
            at = &(*at)->next;
    }
}

static bool is_same(const struct ws_sender_joiner *a, const struct ws_sender_joiner *b)
{
    return ws_version_id_equal(&a->version, &b->version) && strcmp(a->model, b->model) == 0 &&
           strcmp(a->digest, b->digest) == 0;
}

static bool has_device(const struct ws_sender_joiner *list, const char *uuid)
{
    while (list && strcmp(list->uuid, uuid) != 0)
        list = list->next;
    return list != NULL;
}

/* --- present members; under lock --- */

bool ws_sender_all_joined(struct ws_agent *a, const struct ws_sender *b)
{
    const struct ws_sender_joiner *first = b->waiting;
    const struct ws_agent_model *m = ws_agent_model_find(a, first->model);
    unsigned n = 0;
    for (const struct ws_fleet_mount *i = m ? m->fleet.mounts : NULL; i; i = i->next) {
        const struct ws_sender_joiner *j = first;
        if (i->lease_ns < ws_clock_ns())
            continue;
        while (j && (!is_same(j, first) || strcmp(j->mount_id, i->mount_id) != 0 ||
                     strcmp(j->owner, i->owner) != 0))
            j = j->next;
        if (!j)
            return false;
        n++;
    }
    return n > 0;
}

/* Waiting requesters that want the version of the first one become members. Under lock. */
void ws_sender_select_members(struct ws_sender *b)
{
    unsigned n = 1;
    for (struct ws_sender_joiner **at = &b->waiting; *at && n < WS_MAX_MEMBERS;) {
        struct ws_sender_joiner *j = *at;
        if ((b->members && !is_same(j, b->members)) || has_device(b->members, j->uuid)) {
            at = &j->next;
            continue;
        }
        j = unlink_joiner(at);
        j->rank = n++;
        append(&b->members, j);
    }
}

/* --- requests --- */

static int reply_wait(const struct ws_sender_joiner *j, uint64_t ms, json_t **reply)
{
    *reply = json_pack("{s:I,s:I}", "ticket", (json_int_t)j->ticket, "wait_ms", (json_int_t)ms);
    return 0;
}

/* Under lock. */
static int reply_to(const struct ws_sender *b, const struct ws_sender_joiner *j, bool is_member,
                    json_t **reply)
{
    uint64_t end = j->since_ns + b->gather_ms * WS_MS_NS, now = ws_clock_ns();
    uint64_t left = end > now ? (end - now) / WS_MS_NS + 1 : 0;
    if (is_member && b->invitation) {
        *reply = json_deep_copy(b->invitation);
        json_object_set_new(*reply, "ticket", json_integer((json_int_t)j->ticket));
        json_object_set_new(*reply, "rank", json_integer((json_int_t)j->rank));
        return 0;
    }
    if (is_member || (!b->members && left < SOON_MS))
        return reply_wait(j, SOON_MS, reply);
    return reply_wait(j, !b->members && left < LATER_MS ? left : LATER_MS, reply);
}

static int poll_ticket(struct ws_agent *a, struct ws_sender *b, const char *owner, const json_t *body,
                       json_t **reply, struct ws_error *err)
{
    uint64_t ticket = ws_agent_number(body, "ticket", 0);
    bool leaves = json_is_true(json_object_get(body, "leave"));
    int rc = 0;
    pthread_mutex_lock(&a->lock);
    struct ws_sender_joiner **waits = find(&b->waiting, ticket), **takes_part = find(&b->members, ticket);
    struct ws_sender_joiner *j = *waits ? *waits : *takes_part;
    if (j && strcmp(j->owner, owner) != 0) {
        pthread_mutex_unlock(&a->lock);
        return ws_error_set(err, EPERM, "the ticket %" PRIu64 " is of another identity", ticket);
    }
    if (leaves && *waits)
        free_joiner(unlink_joiner(waits));
    else if (leaves && *takes_part) /* it would block all other members */
        atomic_store(&b->end_round, true);
    else if (!leaves && !j)
        rc = ws_error_set(err, EAGAIN, "the ticket %" PRIu64 " is of no round (any more): ask anew", ticket);
    if (!leaves && j) {
        j->asked_ns = ws_clock_ns();
        rc = reply_to(b, j, !*waits, reply);
    }
    pthread_mutex_unlock(&a->lock);
    return rc;
}

static const char *body_text(const json_t *body, const char *key)
{
    const char *text = json_string_value(json_object_get(body, key));
    return text ? text : "";
}

static int check_member(const struct ws_sender *b, const json_t *body, struct ws_error *err)
{
    char theirs[WS_NCCL_RELEASE_TEXT], ours[WS_NCCL_RELEASE_TEXT];
    uint64_t release = ws_agent_number(body, "nccl", 0);
    const char *uuid = body_text(body, "uuid");
    const json_t *wants = json_object_get(body, "wants");
    if (!uuid[0] || strlen(uuid) >= WS_DEVICE_UUID_BYTES ||
        strlen(body_text(body, "mount")) > WS_MOUNT_ID_CHARS || release > 1000000 ||
        (!json_is_array(wants) && strcmp(body_text(body, "wants"), "all") != 0))
        return ws_error_set(
            err, EINVAL,
            "a request for a place in a broadcast needs mount, uuid, nccl, digest and wants, or a ticket");
    ws_nccl_release_format((int)release, theirs);
    ws_nccl_release_format(ws_nccl_release(), ours);
    if ((int)release != ws_nccl_release())
        return ws_error_set(
            err, EOPNOTSUPP,
            "the members of a broadcast need NCCL of one release: the agent's is %s, this one's "
            "%s",
            ours, theirs);
    if (strcmp(uuid, b->uuid) == 0)
        return ws_error_set(err, EOPNOTSUPP,
                            "the agent broadcasts from this very GPU, %s, and NCCL knows a GPU as one member",
                            uuid);
    return 0;
}

/* The lease is held for a moment only. */
static void ignore_revocation(void *arg)
{
    (void)arg;
}

/* Checks that the version is the requested one and has the requested blocks. */
static int check_version(struct ws_agent *a, const struct ws_api_request *q, const json_t *body,
                         struct ws_sender_joiner *out, struct ws_error *err)
{
    const json_t *wants = json_object_get(body, "wants");
    struct ws_lease *lease;
    int rc = ws_agent_lease_acquire(a, q->model, q->version, q->lineage[0] ? q->lineage : NULL, "broadcast",
                                    ignore_revocation, NULL, &lease, err);
    if (rc < 0)
        return rc;
    out->version = ws_version_id_make(q->version, lease->manifest->lineage);
    if (strcmp(lease->manifest->digest, body_text(body, "digest")) != 0)
        rc = ws_error_set(err, ESTALE, "%s/%" PRIu64 " is another one at the agent by now", q->model,
                          q->version);
    else if (json_is_array(wants))
        rc = ws_block_runs_from_json(wants, lease->manifest, &out->wants, &out->n_wants, err);
    if (rc == -EPROTO) /* the request is wrong, not the agent's version */
        rc = ws_error_set(err, EINVAL, "%s/%" PRIu64 " does not have the blocks that the member wants",
                          q->model, q->version);
    ws_agent_lease_release(a, lease);
    return rc;
}

static struct ws_sender_joiner *new_joiner(const char *model, const char *owner, const json_t *body)
{
    struct ws_sender_joiner *j = calloc(1, sizeof(*j));
    if (!j)
        return NULL;
    j->model = strdup(model);
    snprintf(j->owner, sizeof(j->owner), "%s", owner);
    j->mount_id = strdup(body_text(body, "mount"));
    snprintf(j->digest, sizeof(j->digest), "%s", body_text(body, "digest"));
    snprintf(j->uuid, sizeof(j->uuid), "%s", body_text(body, "uuid"));
    if (j->model && j->mount_id) {
        ws_text_clean(j->mount_id); /* as the fleet keeps it */
        return j;
    }
    free_joiner(j);
    return NULL;
}

static int join(struct ws_agent *a, struct ws_sender *b, const struct ws_agent_request *r, json_t **reply,
                struct ws_error *err)
{
    const struct ws_api_request *q = r->q;
    const json_t *body = r->body;
    unsigned n = 0;
    int rc = check_member(b, body, err);
    if (rc < 0)
        return rc;
    struct ws_sender_joiner *j = new_joiner(q->model, ws_identity_owner(r->who), body);
    if (!j)
        return ws_error_set(err, ENOMEM, "no memory for a member of a broadcast");
    rc = check_version(a, q, body, j, err);
    if (rc < 0) {
        free_joiner(j);
        return rc;
    }
    pthread_mutex_lock(&a->lock);
    for (const struct ws_sender_joiner *i = b->waiting; i; i = i->next)
        n++;
    if (b->broken[0]) {
        rc = ws_error_set(err, EOPNOTSUPP, "the agent broadcasts no more, since it lost its GPU: %s",
                          b->broken);
    } else if (n >= WS_MAX_MEMBERS) {
        rc = ws_error_set(err, EBUSY, "%d wait for a broadcast already", WS_MAX_MEMBERS);
    } else {
        j->ticket = ++b->last_ticket;
        j->since_ns = j->asked_ns = ws_clock_ns();
        append(&b->waiting, j);
        rc = reply_to(b, j, false, reply);
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    if (rc < 0)
        free_joiner(j);
    return rc;
}

int ws_sender_route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply,
                    struct ws_error *err)
{
    struct ws_sender *b = ws_sender_of(a);
    if (strcmp(r->method, "POST") != 0 || !r->q->model[0] || !r->q->has_version ||
        strcmp(r->q->verb, "broadcast") != 0)
        return WS_ROUTE_OTHER;
    if (!b)
        return ws_error_set(err, EOPNOTSUPP, "the agent broadcasts nothing: start it with --broadcast");
    if (json_object_get(r->body, "ticket"))
        return poll_ticket(a, b, ws_identity_owner(r->who), r->body, reply, err);
    return join(a, b, r, reply, err);
}
