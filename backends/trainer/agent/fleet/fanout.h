/* Fan-out: which mount asks which other mount first. A pure function of the mounts, without I/O, clock or threads.
 *
 * One tree is not enough: a mount with two children sends twice what it receives, so the last one is ready after
 * twice a link's time, and a chain is too deep. So the blocks of a version are dealt out to WS_FANOUT_STRIPES stripes,
 * and each stripe has a tree of its own. A mount passes on mainly one stripe, to as many children as there are
 * stripes, and is a leaf of the other trees: it sends as much as it receives, the agent sends each stripe once, and
 * the depth is logarithmic (the idea is SplitStream's, SOSP 2003).
 *
 *                 agent
 *          stripe 0 /  \ stripe 1           of n mounts each tree has n edges; a mount's children, over all
 *                 a      b                  stripes together, are WS_FANOUT_STRIPES where its link is as fast as
 *               / |      | \                the others', more or fewer where it is not, none where it does not
 *              b  c ..   a  c ..            serve or is slow
 *
 * - Acyclic: a mount is attached only to one that is attached already, from the agent down.
 * - Racks first: a stripe enters a rack once, as far as the rack's mounts can pass it on; racks, too, take turns in
 *   passing a stripe on to others.
 * - Stable: edges of before are kept where they are still possible, and a mount goes on with the stripe that it passed
 *   on. Where the agent's child is lost, one of those below it takes its place, and the others come below that one. A
 *   new plan is made only where what was kept is clearly worse: deeper, or over more racks.
 * - Flat: those that pass a stripe on are placed before those that do not. So where one of them is lost, or comes, it
 *   takes the place of a mount that has nobody below it, near the top; each step down costs a block's time. */
#ifndef WS_TRAINER_AGENT_FLEET_FANOUT_H
#define WS_TRAINER_AGENT_FLEET_FANOUT_H
#include "transports/base/error.h"
#include "transports/base/limits.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WS_FANOUT_AGENT (-1)
#define WS_FANOUT_NONE  (-2)

struct ws_fanout_member {
    uint64_t key;       /* for an order that does not depend on who came when */
    unsigned rack;      /* equal: the same rack */
    unsigned reach;     /* a mount can reach only mounts of the same reach (loopback: its host) */
    bool serves;        /* it passes on what it has */
    bool is_slow;       /* a child had to leave it: it gets no children for now */
    uint64_t link_rate; /* bytes a second that it measured; 0: unknown */
    int parent
        [WS_FANOUT_STRIPES]; /* by stripe: an index, WS_FANOUT_AGENT or WS_FANOUT_NONE; of before, then the plan's */
    unsigned depth[WS_FANOUT_STRIPES]; /* set: 1 below the agent */
    unsigned fan_out;                  /* set: children that it is meant to have, over all stripes */
};

/* Gives every member a parent in every stripe. *looks: how often it looked at a member, which is what it cost; n log n for each
 * stripe. -ENOMEM: nothing is changed. */
WS_MUST_USE int ws_fanout_plan(struct ws_fanout_member *m, size_t n, uint64_t *looks);

#endif
