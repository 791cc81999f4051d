/* Feature list: which features the agent has. The hooks of one kind are called in this order. Of the routes the
 * order matters: the group forwards to the primary what only the primary can answer. A broadcast is not such a
 * request, and so comes before it; what mounts report is, and comes after it. */
#ifndef WS_TRAINER_AGENT_CORE_FEATURE_LIST_H
#define WS_TRAINER_AGENT_CORE_FEATURE_LIST_H

#define WS_AGENT_FEATURES(_)                                                                                 \
    _(delta)                                                                                                 \
    _(sign)                                                                                                  \
    _(archive)                                                                                               \
    _(audit)                                                                                                 \
    _(gpu)                                                                                                   \
    _(astraflow)                                                                                             \
    _(broadcast)                                                                                             \
    _(group)                                                                                                 \
    _(fleet)

/* Where a feature finds its state: feature_state[WS_FEATURE_archive] of an agent or model. */
#define WS_FEATURE_ID(name) WS_FEATURE_##name,
enum ws_feature_id { WS_AGENT_FEATURES(WS_FEATURE_ID) WS_N_FEATURES };
#undef WS_FEATURE_ID

#endif
