#include "backends/trainer/agent/fleet/topology.h"
#include "backends/trainer/agent/fleet/fanout.h"
#include "transports/access/loopback.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include "transports/simd/copy.h"
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define S            WS_FANOUT_STRIPES
#define MAX_MOUNTS   4096
#define MAX_OWNED    2048 /* under one name, as in fleet.c */
#define MAX_SLOW     (2 * S)
#define LEASE_NS     (5 * WS_SECOND_NS)
#define SLOW_NS      (60 * WS_SECOND_NS)
#define QUIET_NS     (400 * WS_MS_NS)  /* a fleet starts: plan once no mount has come for so long, ... */
#define PATIENCE_NS  (1200 * WS_MS_NS) /* ... or after this */
#define REST_FACTOR  20                /* a plan takes a twentieth of the time at most */
#define HOST_CHARS   64
#define RACK_CHARS   WS_MAX_NAME
#define FIRST_RTT_US 1000 /* below it is one class; then each is four times the one before */

struct ws_topology_mount {
    char *mount_id;
    char owner[WS_IDENTITY_CHARS + 1];
    char url[HOST_CHARS + 32]; /* empty: it serves nobody */
    char rack[RACK_CHARS + 1]; /* as it says, or by address and round trip */
    bool is_local;             /* on the agent's host, as far as its report's way here says */
    uint64_t link_rate;
    unsigned rtt_us; /* the least of all reports; 0: unknown */
    uint64_t lease_ns, slow_until_ns;
    uint64_t complains_ns; /* of what it says of its parents: since when, and of how many ... */
    unsigned n_complaints; /* ... at most MAX_SLOW in SLOW_NS, then it is not heard */
    bool is_gone;          /* it is about to be freed */
    /* of the last plan */
    bool is_planned;
    struct ws_topology_mount *parent[S]; /* NULL: the agent */
    unsigned depth[S], fan_out;
    size_t index; /* while a plan is made */
};

/* --- where a mount is --- */

/* "10.0.0.3:4711", "[fd00::3]:4711": the host as a URL has it, and its network. False: no address. */
static bool parse_from(const char *from, char host[HOST_CHARS], char net[HOST_CHARS])
{
    struct in_addr v4;
    struct in6_addr v6;
    const char *end = strrchr(from, ':');
    char text[HOST_CHARS];
    if (!end || (size_t)(end - from) >= sizeof(text))
        return false;
    snprintf(text, sizeof(text), "%.*s", (int)(end - from), from);
    const size_t n = strlen(text);
    const char *plain = text;
    if (n > 2 && text[0] == '[' && text[n - 1] == ']') {
        text[n - 1] = 0;
        plain = text + 1;
    }
    if (inet_pton(AF_INET6, plain, &v6) == 1 && IN6_IS_ADDR_V4MAPPED(&v6)) {
        memcpy(&v4, &v6.s6_addr[12], sizeof(v4));
    } else if (inet_pton(AF_INET6, plain, &v6) == 1) {
        snprintf(host, HOST_CHARS, "[%s]", plain);
        snprintf(net, HOST_CHARS, "net:");
        for (size_t i = 0; i < 8; i++)
            snprintf(net + strlen(net), HOST_CHARS - strlen(net), "%02x", v6.s6_addr[i]);
        return true;
    } else if (inet_pton(AF_INET, plain, &v4) != 1) {
        return false;
    }
    const uint32_t a = ntohl(v4.s_addr);
    snprintf(host, HOST_CHARS, "%u.%u.%u.%u", a >> 24, a >> 16 & 255, a >> 8 & 255, a & 255);
    snprintf(net, HOST_CHARS, "net:%u.%u.%u", a >> 24, a >> 16 & 255, a >> 8 & 255);
    return true;
}

static unsigned rtt_class(unsigned rtt_us)
{
    unsigned k = 0;
    for (unsigned limit = FIRST_RTT_US; rtt_us > limit && k < 8; limit *= 4)
        k++;
    return k;
}

/* True: its place has changed, or whom it can serve. */
static bool set_place(struct ws_topology_mount *m, const struct ws_identity *who, const json_t *body)
{
    char host[HOST_CHARS] = "", net[HOST_CHARS] = "", url[sizeof(m->url)] = "", rack[sizeof(m->rack)] = "";
    const char *given = json_string_value(json_object_get(body, "rack"));
    const json_int_t port = json_integer_value(json_object_get(body, "port"));
    const json_int_t rtt = json_integer_value(json_object_get(body, "rtt_us"));
    const json_int_t link = json_integer_value(json_object_get(body, "link"));
    unsigned at;
    if (rtt > 0 && rtt < 1000000000 && (m->rtt_us == 0 || (unsigned)rtt < m->rtt_us))
        m->rtt_us = (unsigned)rtt;
    m->link_rate = link > 0 ? (uint64_t)link : 0;
    const bool has_address = parse_from(who->from, host, net);
    if (has_address)
        snprintf(url, sizeof(url), "%s://%s:%d",
                 json_is_true(json_object_get(body, "tls")) ? "https" : "http", host,
                 port > 0 && port < 65536 ? (int)port : 1);
    m->is_local = !has_address || ws_loopback_port(url, &at);
    if (port <= 0 || port >= 65536)
        url[0] = 0;
    if (given && *given)
        snprintf(rack, sizeof(rack), "%s", given);
    else
        snprintf(rack, sizeof(rack), "%s#%u", net, rtt_class(m->rtt_us));
    ws_text_clean(rack);
    const bool changed = strcmp(url, m->url) != 0 || strcmp(rack, m->rack) != 0;
    memcpy(m->url, url, sizeof(url));
    memcpy(m->rack, rack, sizeof(rack));
    return changed;
}

/* --- mounts --- */

static void mark_stale(struct ws_topology *t, bool lost, uint64_t now_ns)
{
    if (!t->is_stale)
        t->stale_ns = now_ns;
    t->is_stale = true;
    t->has_lost = t->has_lost || lost;
}

/* Those that are gone are nobody's parents any more; then they are freed. */
static void remove_gone(struct ws_topology *t, uint64_t now_ns)
{
    unsigned n = 0;
    for (unsigned i = 0; i < t->n; i++) {
        struct ws_topology_mount *m = t->mounts[i];
        for (unsigned s = 0; s < S; s++)
            if (m->is_planned && m->parent[s] && m->parent[s]->is_gone)
                m->parent[s] = NULL;
    }
    for (unsigned i = 0; i < t->n; i++) {
        struct ws_topology_mount *m = t->mounts[i];
        if (!m->is_gone) {
            t->mounts[n++] = m;
            continue;
        }
        free(m->mount_id);
        free(m);
    }
    if (n < t->n)
        mark_stale(t, true, now_ns);
    t->n = n;
}

/* Looks at all of them only when the time of one may have come: leases are renewed all the time. */
static void expire(struct ws_topology *t, uint64_t now_ns)
{
    uint64_t next_ns = now_ns + LEASE_NS;
    bool any = false;
    if (now_ns <= t->expires_ns)
        return;
    for (unsigned i = 0; i < t->n; i++) {
        struct ws_topology_mount *m = t->mounts[i];
        if (m->slow_until_ns && m->slow_until_ns < now_ns) {
            m->slow_until_ns = 0;
            mark_stale(t, false, now_ns);
        }
        m->is_gone = m->lease_ns < now_ns;
        any = any || m->is_gone;
        if (!m->is_gone && m->lease_ns < next_ns)
            next_ns = m->lease_ns;
        if (m->slow_until_ns && m->slow_until_ns < next_ns)
            next_ns = m->slow_until_ns;
    }
    if (any)
        remove_gone(t, now_ns);
    t->expires_ns = next_ns;
}

/* Where the mount is among them, or is to be inserted. */
static unsigned find(const struct ws_topology *t, const char *owner, const char *mount_id, bool *found)
{
    unsigned first = 0, end = t->n;
    *found = false;
    while (first < end && !*found) {
        const unsigned middle = (first + end) / 2;
        const struct ws_topology_mount *m = t->mounts[middle];
        int order = strcmp(m->mount_id, mount_id);
        order = order ? order : strcmp(m->owner, owner);
        if (order < 0)
            first = middle + 1;
        else
            end = middle;
        *found = order == 0;
    }
    return *found ? end : first;
}

static int add_at(struct ws_topology *t, unsigned at, const char *owner, const char *mount_id,
                  struct ws_error *err)
{
    unsigned owned = 0;
    for (unsigned i = 0; i < t->n && *owner; i++)
        owned += strcmp(t->mounts[i]->owner, owner) == 0;
    if (t->n >= MAX_MOUNTS || owned >= MAX_OWNED)
        return ws_error_set(err, E2BIG, "more than %d mounts take part in trees%s%s",
                            t->n >= MAX_MOUNTS ? MAX_MOUNTS : MAX_OWNED,
                            t->n >= MAX_MOUNTS ? "" : " under the name ", t->n >= MAX_MOUNTS ? "" : owner);
    struct ws_topology_mount *m = calloc(1, sizeof(*m)),
                             **all = reallocarray(t->mounts, t->n + 1, sizeof(struct ws_topology_mount *));
    if (all)
        t->mounts = all;
    if (!all || !m || !(m->mount_id = strdup(mount_id))) {
        free(m);
        return ws_error_set(err, ENOMEM, "no memory for a mount");
    }
    snprintf(m->owner, sizeof(m->owner), "%s", owner);
    memmove(t->mounts + at + 1, t->mounts + at, (t->n - at) * sizeof(*all));
    t->mounts[at] = m;
    t->n++;
    return 0;
}

/* True: it counts. A mount gets other parents for those that it complains of, and could go on with these. */
static bool may_complain(struct ws_topology_mount *child, uint64_t now_ns)
{
    if (now_ns - child->complains_ns >= SLOW_NS) {
        child->complains_ns = now_ns;
        child->n_complaints = 0;
    }
    return child->n_complaints < MAX_SLOW && ++child->n_complaints;
}

/* Only a mount's own parents: a report reaches no other. */
static void record_slow(struct ws_topology *t, struct ws_topology_mount *child, const json_t *urls,
                        uint64_t now_ns)
{
    const json_t *url;
    size_t i;
    json_array_foreach(urls, i, url)
    {
        const char *text = json_string_value(url);
        for (unsigned s = 0; text && i < MAX_SLOW && child->is_planned && s < S; s++) {
            struct ws_topology_mount *p = child->parent[s];
            if (!p || strcmp(p->url, text) != 0 || (!p->slow_until_ns && !may_complain(child, now_ns)))
                continue;
            if (!p->slow_until_ns) {
                mark_stale(t, true, now_ns);
                ws_log(WS_LOG_INFO, "agent",
                       "a mount gets no children for now: one had to leave it mount=%s child=%s", p->mount_id,
                       child->mount_id);
            }
            p->slow_until_ns = now_ns + SLOW_NS;
        }
    }
}

/* --- the plan --- */

static void fill_member(struct ws_fanout_member *to, const struct ws_topology_mount *m)
{
    *to = (struct ws_fanout_member){.key = ws_hash(m->mount_id, strlen(m->mount_id)) ^
                                           ws_hash(m->owner, strlen(m->owner)),
                                    .rack = (unsigned)ws_hash(m->rack, strlen(m->rack)),
                                    .reach = m->is_local,
                                    .serves = m->url[0],
                                    .is_slow = m->slow_until_ns,
                                    .link_rate = m->link_rate};
    for (unsigned s = 0; s < S; s++)
        to->parent[s] = !m->is_planned  ? WS_FANOUT_NONE
                        : !m->parent[s] ? WS_FANOUT_AGENT
                                        : (int)m->parent[s]->index;
}

static void apply_plan(const struct ws_topology *t, const struct ws_fanout_member *members)
{
    for (unsigned i = 0; i < t->n; i++) {
        struct ws_topology_mount *m = t->mounts[i];
        m->is_planned = true;
        m->fan_out = members[i].fan_out;
        for (unsigned s = 0; s < S; s++) {
            m->parent[s] = members[i].parent[s] == WS_FANOUT_AGENT ? NULL : t->mounts[members[i].parent[s]];
            m->depth[s] = members[i].depth[s];
        }
    }
}

static void make_plan(struct ws_topology *t, uint64_t now_ns)
{
    struct ws_fanout_member *members = calloc(t->n + 1, sizeof(*members));
    uint64_t looks = 0;
    for (unsigned i = 0; i < t->n; i++)
        t->mounts[i]->index = i;
    for (unsigned i = 0; members && i < t->n; i++)
        fill_member(&members[i], t->mounts[i]);
    if (members && ws_fanout_plan(members, t->n, &looks) == 0) {
        apply_plan(t, members);
        t->is_stale = t->has_lost = false;
    }
    t->planned_ns = now_ns;
    t->plan_took_ns = ws_clock_ns() - now_ns;
    ws_log(WS_LOG_DEBUG, "agent", "trees of mounts planned mounts=%u looks=%" PRIu64 " us=%" PRIu64, t->n,
           looks, t->plan_took_ns / 1000);
    free(members);
}

/* A fleet starts together: planned one by one, it would be a chain first. */
static bool is_due(const struct ws_topology *t, uint64_t now_ns)
{
    if (!t->is_stale || (t->planned_ns && now_ns - t->planned_ns < REST_FACTOR * t->plan_took_ns))
        return false;
    return t->has_lost || now_ns - t->joined_ns >= QUIET_NS || now_ns - t->stale_ns >= PATIENCE_NS;
}

static void plan_if_due(struct ws_topology *t, uint64_t now_ns)
{
    expire(t, now_ns);
    if (is_due(t, now_ns))
        make_plan(t, now_ns);
}

/* --- what is said --- */

static json_t *hints_json(const struct ws_topology_mount *m)
{
    if (!m->is_planned)
        return json_pack("{s:b}", "pending", 1);
    json_t *stripes = json_array();
    for (unsigned s = 0; s < S; s++) {
        json_t *path = json_array();
        const struct ws_topology_mount *p = m->parent[s];
        for (unsigned up = 0; p && up < 2; up++, p = p->parent[s])
            json_array_append_new(path, json_string(p->url));
        json_array_append_new(stripes, path);
    }
    return json_pack("{s:o}", "stripes", stripes);
}

int ws_topology_report(struct ws_topology *t, const struct ws_identity *who, const char *mount_id,
                       const json_t *body, uint64_t now_ns, json_t **reply, struct ws_error *err)
{
    const char *owner = ws_identity_owner(who);
    bool found;
    const unsigned at = find(t, owner, mount_id, &found);
    if (json_is_true(json_object_get(body, "gone"))) {
        if (found) {
            t->mounts[at]->is_gone = true;
            remove_gone(t, now_ns);
        }
        *reply = json_object();
        return 0;
    }
    int rc = found ? 0 : add_at(t, at, owner, mount_id, err);
    if (rc < 0)
        return rc;
    struct ws_topology_mount *m = t->mounts[at];
    m->lease_ns = now_ns + LEASE_NS;
    if (set_place(m, who, body) || !found) {
        mark_stale(t, false, now_ns);
        t->joined_ns = now_ns;
    }
    record_slow(t, m, json_object_get(body, "slow"), now_ns);
    plan_if_due(t, now_ns);
    *reply = hints_json(m);
    return *reply ? 0 : ws_error_set(err, ENOMEM, "no memory for a reply");
}

json_t *ws_topology_json(struct ws_topology *t, uint64_t now_ns)
{
    json_t *all = json_array();
    plan_if_due(t, now_ns);
    for (unsigned i = 0; i < t->n; i++) {
        const struct ws_topology_mount *m = t->mounts[i];
        json_t *parents = json_array();
        for (unsigned s = 0; m->is_planned && s < S; s++)
            json_array_append_new(parents, m->parent[s] ? json_string(m->parent[s]->mount_id) : json_null());
        json_t *one =
            json_pack("{s:s,s:s,s:s,s:I,s:I,s:i,s:b,s:o}", "mount", m->mount_id, "url", m->url, "rack",
                      m->rack, "link", (json_int_t)m->link_rate, "rtt_us", (json_int_t)m->rtt_us, "fan_out",
                      (int)m->fan_out, "slow", (int)(m->slow_until_ns != 0), "parents", parents);
        if (m->owner[0])
            json_object_set_new(one, "identity", json_string(m->owner));
        json_array_append_new(all, one);
    }
    return json_pack("{s:i,s:o}", "stripes", S, "mounts", all);
}

void ws_topology_clear(struct ws_topology *t)
{
    for (unsigned i = 0; i < t->n; i++) {
        free(t->mounts[i]->mount_id);
        free(t->mounts[i]);
    }
    free(t->mounts);
    *t = (struct ws_topology){0};
}
