/* Options: of an agent. mount-helpers/commands/agent.c fills them, the agent's rooms read them. Strings are
 * borrowed for as long as the agent lives. */
#ifndef WS_TRAINER_AGENT_CORE_OPTIONS_H
#define WS_TRAINER_AGENT_CORE_OPTIONS_H
#include "backends/trainer/astraflow/listener.h"
#include "transports/protocol/source.h"
#include "transports/quant/select.h"
#include "transports/sign/key.h"
#include "transports/tcp/tcp.h"
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

/* As much as three steps need that change 5 % of the elements, by the size of the models; 1 GiB at least. A
 * changed bf16 element costs some 1.2 bytes in a delta: 3 % of the version's bytes a step. */
#define WS_DELTA_CACHE_BY_SIZE UINT64_MAX

/* A quantised view that the agent makes of a model (derive/). */
struct ws_agent_view {
    const char *name; /* MODEL@RECIPE, ws_name_is_view */
    const struct ws_recipe *recipe;
    struct ws_select_options select;
};

/* Of a start that may wait: for the store of an archive. Any thread. */
struct ws_agent_start {
    atomic_bool stop;                /* set by the caller, at any time: ws_agent_new ends, -ECANCELED */
    _Atomic(const char *) waits_for; /* set by the agent: the archive that has to answer; NULL: nothing */
};

struct ws_agent_options {
    struct ws_tcp_server_options tcp; /* tcp.listen NULL: no TCP */
    const char *socket;               /* unix socket path; NULL: none */
    gid_t socket_gid;                 /* (gid_t)-1: owner only */
    uint64_t memory_bytes;            /* budget for slots; 0: what memory allows at each request */
    unsigned max_slots;               /* per model; 0: 4 */
    uint64_t delta_cache_bytes; /* of deltas, of all models; 0: none are made; or WS_DELTA_CACHE_BY_SIZE */
    const char *state;          /* file that outlives the agent; NULL: what it knows ends with it */
    const char *archive;        /* folder, or s3://BUCKET/PREFIX; NULL: versions are not archived */
    bool archive_insecure;      /* an object store by http:// beyond loopback is fine */
    unsigned archive_every;     /* an anchor every so many versions, deltas between; 0: 10 */
    unsigned archive_keep;      /* anchors that are kept, with the deltas on them; 0: 3 */
    const struct ws_secret_key *sign_key; /* versions are signed with it; NULL: they are not */
    unsigned n_threads;                   /* hashing after commit, and encoding; 0: cores */
    int nice;
    const char *primary; /* URL of the agent that the others report to; NULL: this one, or none */
    struct ws_source_options primary_access; /* token and TLS for it; borrowed while the agent is made */
    const char *broadcast;                   /* "auto" or a device's number; NULL: nothing is broadcast */
    bool ucx;                                /* leases versions to mounts that fetch by UCX */
    unsigned gather_ms;                      /* how long a round waits for more mounts; 0: WS_GATHER_MS */
    const struct ws_astraflow_options *astraflow; /* listeners for AstraFlow's receivers */
    size_t n_astraflow;
    const struct ws_agent_view *views;
    size_t n_views;
    struct ws_agent_start *start; /* stays as long as the agent; NULL: a start that waits does not end */
};

#endif
