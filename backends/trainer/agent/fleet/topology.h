/* Topology: the mounts of a model that take part in trees (-o topology=auto), where each is, and whom each asks first.
 * State without threads: the agent guards it with its lock. Times are CLOCK_MONOTONIC in ns and come from the caller.
 *
 * Where the tree is computed: here, by fanout.h. How it travels: a mount posts where it is once a second, and the
 * reply says whom to ask (mounts/topology.c); the mount applies that as a hint (fs/store/topology.h). A mount that has
 * not posted for LEASE_NS is taken out, and its children get other parents with their next post; until then they have
 * the next one of the path up, and last the agent.
 *
 * What may be announced: a mount says on which port it serves. The host of its URL is the address that its report came
 * from, so an identity can announce only itself, and no mount is sent to a host that has no identity with the role
 * report. A mount whose report came by a unix socket has no address, and passes on nothing. One whose report came from
 * loopback is reached by mounts of this host alone.
 *
 * A child says which of its parents did not keep up. Such a parent has no children for SLOW_NS: only its own children
 * can bring that about, each for a few parents a minute, and it costs nobody a byte. */
#ifndef WS_TRAINER_AGENT_FLEET_TOPOLOGY_H
#define WS_TRAINER_AGENT_FLEET_TOPOLOGY_H
#include "transports/access/identity.h"
#include "transports/base/error.h"
#include "transports/base/limits.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct ws_topology_mount;
struct ws_topology {
    struct ws_topology_mount **mounts; /* by name, then owner */
    unsigned n;
    uint64_t expires_ns; /* when one may be taken out next */
    bool is_stale;       /* the plan is of other mounts */
    bool has_lost;       /* a mount has gone, or is slow: a new plan is urgent */
    uint64_t stale_ns;   /* since when */
    uint64_t joined_ns;  /* when the last mount came */
    uint64_t planned_ns, plan_took_ns;
};

/* A mount says where it is: {"mount","port","tls","rack","link","rtt_us","slow":[URL...]}, or {"mount","gone":true}.
 * *reply: {"stripes":[[URL, URL], ...]}: by stripe its parent and the parent's; fewer where the agent is next; or
 * {"pending":true}: others are coming, it asks again soon. -EINVAL, -E2BIG, -ENOMEM. */
WS_MUST_USE int ws_topology_report(struct ws_topology *t, const struct ws_identity *who, const char *mount_id,
                                   const json_t *body, uint64_t now_ns, json_t **reply, struct ws_error *err);
json_t *ws_topology_json(struct ws_topology *t, uint64_t now_ns); /* new reference */
void ws_topology_clear(struct ws_topology *t);

#endif
