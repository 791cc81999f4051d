/* The plan of one round of a broadcast: which blocks it carries and who takes part; and the parts of its
 * sender and of its receivers, from the first to the last byte. One thread each; nothing waits longer than
 * the plan's stall_ms without progress. */
#ifndef WS_TRANSPORTS_NCCL_BROADCAST_PLAN_H
#define WS_TRANSPORTS_NCCL_BROADCAST_PLAN_H
#include "transports/base/workers.h"
#include "transports/format/manifest.h"
#include <jansson.h>
#include <stdatomic.h>

#define WS_NCCL_ID_BYTES 128
#define WS_DEVICE_ID     64 /* a device's uuid as text, and its end */

/* May this process take part? 0, or why not. */
WS_MUST_USE int ws_round_available(struct ws_error *why);
/* Is there such a device, and does it work? With its uuid. -ENODEV, -EIO: it is lost. */
WS_MUST_USE int ws_round_device(int device, char uuid[WS_DEVICE_ID], struct ws_error *err);
/* The release of NCCL, which all members need to have the same; as text. */
int ws_round_release(void);
#define WS_NCCL_RELEASE_TEXT 16
void ws_nccl_release_text(int release, char out[WS_NCCL_RELEASE_TEXT]);
/* What makes strangers members of one round; made by its sender. */
WS_MUST_USE int ws_nccl_id(int device, unsigned char out[WS_NCCL_ID_BYTES], struct ws_error *err);

/* Blocks [first, first + n) of a file. */
struct ws_block_run {
    size_t file, first, n;
};
/* block_runs.c: the blocks of a manifest that `in` says, in order. *n may be 0. */
WS_MUST_USE int ws_block_runs_new(const struct ws_manifest *m,
                                  bool (*in)(void *arg, size_t file, size_t block), void *arg,
                                  struct ws_block_run **out, size_t *n, struct ws_error *err);
/* As the API has them: [[file, first, n]..], in order and apart. -EPROTO: others than the manifest has. */
json_t *ws_block_runs_json(const struct ws_block_run *runs, size_t n); /* new reference; NULL: no memory */
WS_MUST_USE int ws_block_runs_of(const json_t *list, const struct ws_manifest *m, struct ws_block_run **out,
                                 size_t *n, struct ws_error *err);
/* An id as text, and back; -EPROTO. */
#define WS_NCCL_ID_TEXT (2 * WS_NCCL_ID_BYTES + 1)
void ws_nccl_id_text(const unsigned char id[WS_NCCL_ID_BYTES], char out[WS_NCCL_ID_TEXT]);
WS_MUST_USE int ws_nccl_id_of(const char *text, unsigned char out[WS_NCCL_ID_BYTES]);

struct ws_round_plan {
    const struct ws_manifest *manifest;
    const struct ws_block_run *runs;
    size_t n_runs;
    unsigned char id[WS_NCCL_ID_BYTES];
    unsigned rank, n_ranks;
    size_t bucket_bytes; /* WS_BLOCK_BYTES to WS_MAX_BUCKET_BYTES */
    unsigned stall_ms;
    int device;
    const atomic_bool *stop, *cancel; /* either ends it, -ECANCELED; may be NULL */
};

/* broadcast_send.c: the whole of rank 0's part. data: the files' memory, in the manifest's order. */
WS_MUST_USE int ws_round_send_all(const struct ws_round_plan *plan, const unsigned char *const *data,
                                  struct ws_workers *workers, uint64_t *bytes, uint64_t *ns,
                                  struct ws_error *err);
/* broadcast_receive.c: the others'. As ws_broadcast_fetch's data, wants and block. */
struct ws_round_sink {
    unsigned char *const *data;
    bool (*wants)(void *arg, size_t file, size_t block);
    int (*block)(void *arg, size_t file, size_t block, uint64_t hash);
    void *arg;
};
WS_MUST_USE int ws_round_receive_all(const struct ws_round_plan *plan, const struct ws_round_sink *sink,
                                     struct ws_workers *workers, uint64_t *bytes, uint64_t *ns,
                                     struct ws_error *err);

#endif
