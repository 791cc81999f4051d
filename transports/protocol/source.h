/* Source: a place that versions come from, whatever the transport that reaches it. Each
 * transport (tcp, ipc, dir, archive, and fault, which decorates another one) fills one table; the short
 * wrappers below call it, and check arguments and results. transport.h opens a source by its URL.
 *
 * A source is one open place ("http://host:18861"); a lane is one stream of transfer on it (a connection),
 * used by one thread at a time. Sources are thread safe, lanes are not. */
#ifndef WS_TRANSPORTS_PROTOCOL_SOURCE_H
#define WS_TRANSPORTS_PROTOCOL_SOURCE_H
#include "transports/base/error.h"
#include "transports/delta/listing.h"
#include "transports/delta/stream.h"
#include "transports/format/manifest.h"
#include "transports/memory/region.h"
#include "transports/protocol/pace.h"
#include "transports/simd/copy.h"
#include <jansson.h>
#include <stdatomic.h>
#include <sys/types.h>

struct ws_source_options {
    /* Bearer, or NULL: then a server on this host's loopback is sent the one that it made for this account, where
     * there is one (access/local_token.h). "": none is sent, and none is looked for. */
    const char *token;
    const char *token_file; /* where it was read, and is again when it changes; NULL: it never does */
    bool insecure;          /* the token may go to http:// beyond loopback, in clear text */
    const char *ca_file, *cert_file, *key_file;    /* TLS; NULL: the system's */
    unsigned connect_timeout_ms, reply_timeout_ms; /* 0: the limits' defaults */
    unsigned stall_ms;  /* a transfer that moves less than a trickle for so long is ended; 0: the default */
    bool has_agent_uid; /* unix: the account agent_uid may serve the socket, too (ipc/peer.h) */
    uid_t agent_uid;
    const char *below;    /* folders of dir:, and token_file, have to lie below this folder; NULL: anywhere */
    const char *mount_id; /* of the mount that polls (HOST:MOUNTPOINT); NULL: the caller is no mount */
    const atomic_bool *stop; /* once it is set a call ends within a second, -ECANCELED; NULL: never */
};

struct ws_source { /* the head of each transport's own struct */
    const struct ws_transport_ops *ops;
    char *url;      /* as given, without credentials */
    char *mount_id; /* of the options, or NULL */
    atomic_uint
        rtt_us; /* of a connection, as the kernel measured it last; 0: not measured, or by no network */
};
struct ws_lane {
    struct ws_source *source;
};

/* What a fetch moves: blocks [first, first + n) of one file of a version. */
struct ws_fetch {
    const struct ws_manifest *manifest;
    size_t file;
    size_t first, n;
    unsigned char *dst; /* the FILE's first byte (block i goes to dst + i * WS_BLOCK_BYTES) */
    bool one_block;     /* dst is a buffer for one block instead: each is there until block() has returned */
    /* NULL; or, instead of copying them to dst, a transport whose bytes come piece by piece may have pieces of a block
     * stored and hashed, all of them and in order; at: in the file. Some may wait for those that follow in the block. */
    void (*store)(void *arg, struct ws_hasher *h, uint64_t at, const unsigned char *bytes, size_t n);
    /* NULL; or called on the fetching thread by a transport whose bytes come piece by piece: the first n bytes of a block are
     * in dst, and the rest is to come. */
    void (*grows)(void *arg, size_t block, uint64_t n);
    /* Called on the fetching thread for each block that is whole in dst, with the hash of what was
     * stored (computed in the same pass); not before. Return non-zero to stop (-ECANCELED). */
    int (*block)(void *arg, size_t block, uint64_t hash);
    void *arg;
    const atomic_bool *cancel; /* checked often; may be NULL */
    _Atomic(uint64_t)
        *came;            /* bytes as they come, by tcp of blocks that are not whole yet, too; no other thread
                                   writes it meanwhile; may be NULL */
    struct ws_pace *pace; /* is noted while they come; may be NULL */
};

/* Where a block goes. */
static inline unsigned char *ws_fetch_dst(const struct ws_fetch *f, size_t block)
{
    return f->dst + (f->one_block ? 0 : block * WS_BLOCK_BYTES);
}

static inline void ws_fetch_came(const struct ws_fetch *f, uint64_t n_bytes)
{
    if (f->came) /* no locked instruction, which would wait for the streaming stores of what came before */
        atomic_store_explicit(f->came, atomic_load_explicit(f->came, memory_order_relaxed) + n_bytes,
                              memory_order_relaxed);
}

/* A part of a delta: blocks (counted over all files) that leave `part` when divided by `parts`. */
struct ws_delta_fetch {
    const char *model;
    struct ws_delta_link link;
    uint64_t n_blocks; /* of the target */
    unsigned part, parts;
    const char
        *only; /* NULL: all; else of which blocks records are wanted (delta/filter.h); others may come, too */
    unsigned level; /* how hard the server should compress the next ones for this link: 0 to 3 */
    struct ws_delta_stream_sink sink; /* called on the fetching thread; what its record stops is -ECANCELED */
    const atomic_bool *cancel;        /* checked often; may be NULL */
    struct ws_pace *pace;             /* as ws_fetch's */
};

struct ws_transport_ops {
    const char *name;           /* "tcp" */
    const char *const *schemes; /* NULL-terminated, "http://", "https://" */
    /* Opens without waiting for the peer where that is possible. */
    int (*open)(const char *url, const struct ws_source_options *options, struct ws_source **out,
                struct ws_error *err);
    void (*close)(struct ws_source *s);
    /* The catalog's models JSON (catalog.h). since 0: at once; else waits until seq > since or
     * timeout_ms, then returns the state all the same. model NULL: all. -EHOSTUNREACH, -ETIMEDOUT,
     * -EACCES (token), -EPROTO. cancel ends the wait within a second. */
    int (*models)(struct ws_source *s, const char *model, uint64_t since, unsigned timeout_ms,
                  const atomic_bool *cancel, json_t **out, struct ws_error *err);
    /* cancel ends the wait for one that is not there yet within a second. */
    int (*manifest)(struct ws_source *s, const char *model, uint64_t version, const char *lineage,
                    const atomic_bool *cancel, struct ws_manifest **out, struct ws_error *err);
    /* Regions of all files at once, no byte copied (ipc). -ENOTSUP elsewhere. regions: one a file,
     * NULL for size 0; the caller frees them and then calls unmap. */
    int (*map)(struct ws_source *s, const struct ws_manifest *m, struct ws_region **regions,
               struct ws_error *err);
    void (*unmap)(struct ws_source *s, const char *model, uint64_t version, const char *lineage);
    int (*lane_open)(struct ws_source *s, struct ws_lane **out, struct ws_error *err);
    void (*lane_close)(struct ws_lane *l);
    /* Moves the blocks in any order. 0 when each was reported by block(); -ESTALE gone at the
     * source; -ECONNRESET, -ETIMEDOUT, ... : some may have been reported, ask again for the rest. */
    int (*fetch)(struct ws_lane *l, const struct ws_fetch *f, struct ws_error *err);
    /* The deltas that lead to a version; cancel as above. NULL: none do. */
    int (*deltas)(struct ws_source *s, const char *model, const struct ws_version_id *version,
                  const atomic_bool *cancel, struct ws_delta_entry out[WS_MAX_DELTA_ENTRIES], size_t *n,
                  struct ws_error *err);
    /* Moves a part of a delta. 0: all its records were reported; -ENODATA: its maker gave it up, what was
     * reported is good; -ENOENT: there is no such delta any more; -ESTALE: the source cannot go on with a record that it was
     * passing on, another source may have it; else as fetch. NULL with deltas. */
    int (*delta)(struct ws_lane *l, const struct ws_delta_fetch *f, struct ws_error *err);
    /* One of the API's other requests. method: "GET" or "POST"; body: NULL or what is sent. *reply: a JSON
     * value (new reference). NULL where there is no server (a folder). */
    int (*call)(struct ws_source *s, const char *method, const char *path, const json_t *body, json_t **reply,
                struct ws_error *err);
};

/* Opens a source by that transport. The url is one of its schemes', with WS_MAX_URL bytes at most. */
WS_MUST_USE int ws_source_open_by(const struct ws_transport_ops *ops, const char *url,
                                  const struct ws_source_options *options, struct ws_source **out,
                                  struct ws_error *err);
void ws_source_close(struct ws_source *s);
const char *ws_source_transport(const struct ws_source *s); /* "tcp" */
WS_MUST_USE int ws_source_models(struct ws_source *s, const char *model, uint64_t since, unsigned timeout_ms,
                                 const atomic_bool *cancel, json_t **out, struct ws_error *err);
WS_MUST_USE int ws_source_manifest(struct ws_source *s, const char *model, uint64_t version,
                                   const char *lineage, const atomic_bool *cancel, struct ws_manifest **out,
                                   struct ws_error *err);
WS_MUST_USE int ws_source_map(struct ws_source *s, const struct ws_manifest *m, struct ws_region **regions,
                              struct ws_error *err);
void ws_source_unmap(struct ws_source *s, const char *model, uint64_t version, const char *lineage);
WS_MUST_USE int ws_lane_open(struct ws_source *s, struct ws_lane **out, struct ws_error *err);
void ws_lane_close(struct ws_lane *l);
WS_MUST_USE int ws_lane_fetch(struct ws_lane *l, const struct ws_fetch *f, struct ws_error *err);
WS_MUST_USE int ws_source_deltas(struct ws_source *s, const char *model, const struct ws_version_id *version,
                                 const atomic_bool *cancel, struct ws_delta_entry out[WS_MAX_DELTA_ENTRIES],
                                 size_t *n, struct ws_error *err);
WS_MUST_USE int ws_lane_delta(struct ws_lane *l, const struct ws_delta_fetch *f, struct ws_error *err);
WS_MUST_USE int ws_source_call(struct ws_source *s, const char *method, const char *path, const json_t *body,
                               json_t **reply, struct ws_error *err);
/* Does this failure say that the source was out of reach, or its answer was lost? It may work later. */
bool ws_source_is_away(int rc);

#endif
