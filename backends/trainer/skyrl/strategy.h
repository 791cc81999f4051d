/* Strategy: a way to move weights (transports/ways.h), as SkyRL names it (WeightTransferStrategy), and what
 * its sync info and its requests are made of. One const table, used by the JSON codecs (sync_info.c,
 * update_request.c) and by the function that opens a receiver.
 *
 *   tcp, ipc, dir               sender: the publisher and its agent; receiver: a source
 *   cuda_ipc, packed_cuda_ipc   sender: a publisher that shares (wsync_config.share);
 *                               receiver: wsync_map_gpu */
#ifndef WS_TRAINER_SKYRL_STRATEGY_H
#define WS_TRAINER_SKYRL_STRATEGY_H
#include "backends/trainer/wsync.h"
#include "transports/protocol/source.h"
#include "transports/ways.h"
#include <stdbool.h>

enum ws_info_kind { WS_INFO_SOURCE, WS_INFO_BROADCAST, WS_INFO_CUDA_IPC }; /* the member of wsync_sync_info */

struct ws_strategy {
    const struct ws_way *way;
    const char *request_type, *sync_info_type; /* SkyRL's */
    enum ws_info_kind info;
    bool may_pack, must_pack; /* requests: several tensors in one buffer */
    /* 0, or why no url of this (checked) sync info can be reached from here; NULL: the open shows it. */
    int (*reaches)(const wsync_sync_info *info, struct ws_error *why);
};

/* NULL: there is none. */
const struct ws_strategy *ws_strategy_by_id(wsync_strategy_id id);
/* For the codecs: does the expected strategy (NULL: any) exist, and is the text short enough? */
WS_MUST_USE int ws_strategy_expect(const char *expected, size_t len, struct ws_error *err);
/* The strategy of a JSON text: the one it names (empty: none), else the one the reader expects. -EBADMSG:
 * neither, or they differ. */
WS_MUST_USE int ws_strategy_resolve(const char *said, const char *expected, const struct ws_strategy **out,
                                    struct ws_error *err);

/* A caller's struct as this release has it, checked. */
WS_MUST_USE int ws_sync_info_copy(wsync_sync_info *out, const wsync_sync_info *given, struct ws_error *err);
/* What a sync info must be: -EINVAL with the key. */
WS_MUST_USE int ws_sync_info_check(const wsync_sync_info *info, struct ws_error *err);
WS_MUST_USE int ws_sync_info_source(const wsync_sync_info *info, size_t i, char *out, size_t bytes,
                                    struct ws_error *err);
/* The receiver's half of tcp, ipc and dir: opens the first url that can be opened (of tcp no peer is asked
 * yet). Reports the last one's failure. */
WS_MUST_USE int ws_sync_info_open(const wsync_sync_info *info, const struct ws_source_options *options,
                                  struct ws_source **out, struct ws_error *err);
WS_MUST_USE int ws_sync_info_encode(const wsync_sync_info *info, char **json, struct ws_error *err);
WS_MUST_USE int ws_sync_info_decode(const char *json, size_t len, const char *strategy, wsync_sync_info **out,
                                    struct ws_error *err);

#endif
