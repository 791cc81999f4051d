/* Parents: which mounts this one asks first, as an agent says (-o topology=auto; how the agent works that out:
 * backends/trainer/agent/fleet/topology.h).
 *
 * The blocks of a version are dealt out to WS_FANOUT_STRIPES stripes, and each has a tree of its own: a mount has a
 * parent for each stripe, and the parent's parent in case that one fails. One thread posts to the agent once a second
 * where this mount is, and the reply says who they are. A second one watches the parents that pulls use.
 *
 * What an agent says is a hint, and no more:
 * - A parent is a source of only those versions that a source of the operator's lists, too, with the same digest.
 *   Which version is the newest, live or released it cannot say (listing.c), unless no source of the operator's has
 *   ever answered: then it is a source like one that an operator named.
 * - A parent that fails, is silent, slow, or sends wrong bytes is not asked for some seconds or a minute, by the pull
 *   that noticed, which goes on at the next one (pull/source_select.c). The agent is told of those that are slow, and
 *   gives this mount another parent.
 * - A token of the sources is never sent to a parent, only that of peer-token-file=; and http:// beyond this host is
 *   taken only with `insecure`.
 *
 * How a failure is noticed: a process that dies resets its connections, a host that vanishes, or a process that hangs,
 * is silent: at once, or after 1.5 s, it is asked for /healthz, and left if there is no answer in 2.5 s. The agent is
 * told, and names another one in its reply. Pulls wait for that, a second at most, before they ask the next one up:
 * all children of a lost parent would ask the agent, and share its link. A parent that answers, and only waits for its
 * own, is not left. One that sends an eighth of what others do in the middle of a block is, with their bytes compared
 * over 2 s at least, twice in a row.
 *
 * The last parents are remembered, by the settings over a restart too. They are asked where no source of the
 * operator's answers. */
#ifndef WS_FS_STORE_PARENTS_H
#define WS_FS_STORE_PARENTS_H
#include "fs/store/state.h"

/* In which order sources are asked for a stripe. */
enum ws_parent_rank {
    WS_PARENT_FIRST,     /* the parent */
    WS_PARENT_NEXT,      /* the parent's parent */
    WS_PARENT_NONE,      /* a source of the operator's */
    WS_PARENT_OF_OTHERS, /* a parent of other stripes, or one of before */
};

/* --- with store->lock --- */
enum ws_parent_rank ws_parent_rank(const struct ws_version *v, unsigned stripe, const struct ws_poller *p);
uint64_t ws_parents_told_ns(const struct ws_version *v); /* when an agent named others; 0: none has */
/* In how many stripes a version comes; 1: it has no parents. */
unsigned ws_parents_stripes(const struct ws_version *v);
/* The parent of a stripe (NULL: it is not known yet); *waits: it is to list the version in a moment, as one of them is
 * new. */
const struct ws_poller *ws_parent_expected(const struct ws_version *v, unsigned stripe, bool *waits);
/* A parent has ended, did not keep up, or sent wrong bytes: the agent is told at once. */
void ws_parents_blame(struct ws_model *m, const struct ws_poller *p);
/* The connection to a parent broke: it is looked at once whether it is alive. */
void ws_parents_suspect(struct ws_poller *p);
/* Is a parent being looked at, or the agent being told of one? Then it may name others in a moment. */
bool ws_parents_settle(const struct ws_store *s);

/* --- without --- */
void ws_parents_stop(struct ws_store *s); /* after s->stop is set; waits for the threads */
void ws_parents_free(struct ws_store *s);

#endif
