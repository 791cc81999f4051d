/* Feature list: which features the agent has. The hooks of one kind are called in this order. Of the routes the
 * order matters: the group forwards to the primary what only the primary can answer. A broadcast is not such a
 * request, nor are trees of mounts, leases by ucx and what is retired, and so they come before it; what mounts report is, and comes
 * after it. What operators remove may be a model that has no version, which the fleet would refuse. What the agent
 * before this one knew comes first: others start with it; and what is kept of its versions before what an archive has of them. */
#ifndef WS_TRAINER_AGENT_CORE_FEATURE_LIST_H
#define WS_TRAINER_AGENT_CORE_FEATURE_LIST_H

#define WS_AGENT_FEATURES(_)                                                                                 \
    _(saved)                                                                                                 \
    _(delta)                                                                                                 \
    _(provisional)                                                                                           \
    _(sign)                                                                                                  \
    _(archive)                                                                                               \
    _(kept)                                                                                                  \
    _(restore)                                                                                               \
    _(derive)                                                                                                \
    _(audit)                                                                                                 \
    _(gpu)                                                                                                   \
    _(astraflow)                                                                                             \
    _(ucx)                                                                                                   \
    _(story)                                                                                                 \
    _(broadcast)                                                                                             \
    _(topology)                                                                                              \
    _(retired)                                                                                               \
    _(group)                                                                                                 \
    _(admin)                                                                                                 \
    _(fleet)

/* Where a feature finds its state: feature_state[WS_FEATURE_archive] of an agent or model. */
#define WS_FEATURE_ID(name) WS_FEATURE_##name,
enum ws_feature_id { WS_AGENT_FEATURES(WS_FEATURE_ID) WS_N_FEATURES };
#undef WS_FEATURE_ID

#endif
