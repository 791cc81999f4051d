/* D2h: copies what lies in GPUs' memory to a slot on the host, in rounds, of which several are under way at
 * once.
 *
 * Three ways:
 *   direct    copies of the device, from the source to its place. It needs long rows and pinned memory.
 *   gathered  a kernel packs what is small, strided or converted into a buffer on the device, one launch for
 *             each round and device. Long copies bring the buffer to the host.
 *   raw       copies of the source's elements into a buffer on the host, which the CPU takes apart. It serves
 *             what the kernel cannot do, and devices without kernels.
 * It belongs to one publisher; one thread at a time. */
#ifndef WS_TRAINER_OFFLOAD_D2H_H
#define WS_TRAINER_OFFLOAD_D2H_H
#include "transports/device/gather.h"
#include <stdatomic.h>

#define WS_D2H_ROUNDS        3            /* under way at once */
#define WS_D2H_STAGING_BYTES (32UL << 20) /* of a round on each device, and as much on the host for it */

struct ws_d2h;
int ws_d2h_new(struct ws_d2h **out, struct ws_error *err);
void ws_d2h_free(struct ws_d2h *c); /* NULL is fine */

/* Begins a version: sets the overflow counters of n sources to zero. */
WS_MUST_USE int ws_d2h_begin(struct ws_d2h *c, size_t n_sources, struct ws_error *err);
/* Copies from this device that are queued later wait for the work that is in the stream now. Opens the device
 * at its first call. */
WS_MUST_USE int ws_d2h_follow_stream(struct ws_d2h *c, int device, void *stream, struct ws_error *err);
/* Does this device run our kernels? */
bool ws_d2h_has_kernels(const struct ws_d2h *c, int device);

/* How much of WS_D2H_STAGING_BYTES this many bytes take at most, alignment included. */
uint64_t ws_d2h_staging_bytes(uint64_t bytes);
/* Begins a round. The caller has waited for the earlier round in the same place. */
void ws_d2h_begin_round(struct ws_d2h *c, unsigned round);
/* Makes the device part of the round even where nothing is copied from it: a queue that waits for the round
 * (ws_d2h_queue_after) then also waits for the device's streams. */
void ws_d2h_use_device(struct ws_d2h *c, int device);
/* Direct: bytes [from, from + bytes) of a box whose first element is at src, to the tensor that begins at dst
 * in pinned host memory. */
WS_MUST_USE int ws_d2h_copy_direct(struct ws_d2h *c, int device, const struct ws_box_extents *r,
                                   const void *src, uint64_t from, uint64_t bytes, unsigned char *dst,
                                   struct ws_error *err);
/* Memory on the device for bytes that end up at `to` in pinned host memory, aligned as `to` is. NULL: no
 * memory. */
unsigned char *ws_d2h_stage(struct ws_d2h *c, int device, unsigned char *to, uint64_t bytes);
/* The same for bytes that end up in a buffer of this object: *at says where, once the round was waited for.
 * */
unsigned char *ws_d2h_bounce(struct ws_d2h *c, int device, uint64_t bytes, const unsigned char **at);
/* Gathered: a span into the memory that was staged for it. `source` counts its overflows. */
WS_MUST_USE int ws_d2h_gather(struct ws_d2h *c, int device, const struct ws_box_extents *r, const void *src,
                              uint64_t from, uint64_t bytes, unsigned char *dst, enum ws_gather_form form,
                              size_t source, struct ws_error *err);
/* Raw: the source's elements as they are, into a buffer of this object; raw is the box's ws_box_extents_raw.
 * */
WS_MUST_USE int ws_d2h_copy_raw(struct ws_d2h *c, int device, const struct ws_box_extents *raw,
                                const void *src, uint64_t from, uint64_t bytes, const unsigned char **at,
                                struct ws_error *err);
/* A span to its place in a tensor that would begin at dst in the device's own memory: by a kernel, or by
 * copies where it is long or no kernel does it. */
WS_MUST_USE int ws_d2h_copy_on_device(struct ws_d2h *c, int device, const struct ws_box_extents *r,
                                      const void *src, uint64_t from, uint64_t bytes, unsigned char *dst,
                                      size_t source, struct ws_error *err);
/* Queues the round's kernels and copies: nothing more is added to it. */
WS_MUST_USE int ws_d2h_send(struct ws_d2h *c, struct ws_error *err);
/* Waits until all bytes of the round are there. -EIO: the device failed. */
WS_MUST_USE int ws_d2h_wait(struct ws_d2h *c, unsigned round, struct ws_error *err);
/* Makes what is put into q later wait for the round, which was sent. */
WS_MUST_USE int ws_d2h_queue_after(struct ws_d2h *c, unsigned round, struct ws_device_queue *q,
                                   struct ws_error *err);
/* Ends the version: adds the overflows of n sources to the caller's counters. */
WS_MUST_USE int ws_d2h_end(struct ws_d2h *c, _Atomic uint64_t *overflows, size_t n, struct ws_error *err);
/* After a failure: returns when all queued work is done or lost, so that nothing writes to a slot any more.
 * */
void ws_d2h_stop(struct ws_d2h *c);
/* How many bytes took which way since begin, for people: "3.4 GB direct, 12.1 MB gathered". */
void ws_d2h_describe(const struct ws_d2h *c, char *out, size_t bytes);

#endif
