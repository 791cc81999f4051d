/* Ways: how weights get from one place to another, under the names that settings, status and JSON have for them
 * ("strategy"). Four are transports of sources; ucx also goes
 * beside a tcp source, for the bytes of its files. Broadcast goes beside a source, by NCCL. Two share memory of a GPU
 * between a trainer and an engine; a mount only says where that memory is. ws_way_available says what this machine
 * or this build lacks for a way. Constant: any thread may call. */
#ifndef WS_TRANSPORTS_WAYS_H
#define WS_TRANSPORTS_WAYS_H
#include "transports/base/error.h"
#include <stdbool.h>

struct ws_transport_ops;

enum ws_way_id {
    WS_WAY_TCP,
    WS_WAY_IPC,
    WS_WAY_DIR,
    WS_WAY_BROADCAST,
    WS_WAY_CUDA_IPC,
    WS_WAY_PACKED_CUDA_IPC,
    WS_WAY_UCX, /* last: the ways before it have numbers in wsync.h */
    WS_N_WAYS
};
#define WS_NO_WAY (-1)

struct ws_way {
    enum ws_way_id id;
    const char *name;                         /* "packed_cuda_ipc" */
    const char *needs;                        /* a phrase for messages and manuals */
    const struct ws_transport_ops *transport; /* the sources'; NULL: weights come from no source */
    const struct ws_transport_ops *other;     /* of sources with other schemes; NULL: there are none */
    bool handles;                             /* shares memory of GPUs by handles */
    /* 0, or why it cannot be used by this build on this machine; NULL: it always can. */
    int (*available)(struct ws_error *why);
};

extern const struct ws_way ws_ways[WS_N_WAYS];

const struct ws_way *ws_way_find(const char *name); /* NULL: there is none */
/* The way of a source with that URL, or WS_NO_WAY. */
int ws_way_from_url(const char *url);
/* "tcp"; "none" of WS_NO_WAY. */
const char *ws_way_name(int id);
/* What a source's URL begins with, up to a NULL; none where weights come from no source. */
const char *const *ws_way_schemes(const struct ws_way *w);
WS_MUST_USE int ws_way_available(const struct ws_way *w, struct ws_error *why);

#endif
