/* Carrier: brings what lies in GPUs' memory to a slot, in rounds, several of which are under way at once.
 *
 * Three ways. Direct: copies from where it is to where it goes, which wants long rows and pinned memory.
 * Gathered: a kernel puts what is small, strided or converted into a buffer on the device, one launch a round
 * and device, from where long copies go on. Raw: copies of the source's elements to a buffer on the host,
 * which the CPU takes apart; for what the kernel cannot do, or where there is none. One publisher's, by one
 * thread at a time. */
#ifndef WS_TRAINER_OFFLOAD_D2H_H
#define WS_TRAINER_OFFLOAD_D2H_H
#include "transports/device/gather.h"
#include <stdatomic.h>

#define WS_CARRIER_ROUNDS 3            /* under way */
#define WS_CARRIER_BYTES  (32UL << 20) /* that a round may stage on a device, and on the host for it */

struct ws_carrier;
int ws_carrier_new(struct ws_carrier **out, struct ws_error *err);
void ws_carrier_free(struct ws_carrier *c); /* NULL is fine */

/* A version begins: counters of overflows, which n sources may have. */
WS_MUST_USE int ws_carrier_begin(struct ws_carrier *c, size_t n_sources, struct ws_error *err);
/* What is carried from that device from now on waits for what is in the stream by now. Opens the device. */
WS_MUST_USE int ws_carrier_follow(struct ws_carrier *c, int device, void *stream, struct ws_error *err);
/* Are there kernels that this device runs? */
bool ws_carrier_gathers(const struct ws_carrier *c, int device);

/* How much of WS_CARRIER_BYTES a span or stretch of so many bytes takes at most. */
uint64_t ws_carrier_room(uint64_t bytes);
/* A round begins; the one before in its place has been waited for. */
void ws_carrier_round(struct ws_carrier *c, unsigned round);
/* Nothing may be carried from the device, but what the round precedes waits for what the device was told to
 * follow. */
void ws_carrier_use(struct ws_carrier *c, int device);
/* Bytes [from, from + bytes) of a box (src: its first element) to the tensor that begins at dst, in pinned
 * host memory. */
WS_MUST_USE int ws_carrier_direct(struct ws_carrier *c, int device, const struct ws_runs *r, const void *src,
                                  uint64_t from, uint64_t bytes, unsigned char *dst, struct ws_error *err);
/* Room on the device for bytes that end up at to in pinned host memory (which gives their alignment). */
unsigned char *ws_carrier_stage(struct ws_carrier *c, int device, unsigned char *to, uint64_t bytes);
/* The same for bytes whose end is a buffer of this carrier: where they are once the round was waited for. */
unsigned char *ws_carrier_bounce(struct ws_carrier *c, int device, uint64_t bytes, const unsigned char **at);
/* A span to what was staged for it; source: whose overflows they are. */
WS_MUST_USE int ws_carrier_gather(struct ws_carrier *c, int device, const struct ws_runs *r, const void *src,
                                  uint64_t from, uint64_t bytes, unsigned char *dst, enum ws_gather_form form,
                                  size_t source, struct ws_error *err);
/* The source's elements as they are, to a buffer of this carrier: raw: ws_runs_raw of the box. */
WS_MUST_USE int ws_carrier_raw(struct ws_carrier *c, int device, const struct ws_runs *raw, const void *src,
                               uint64_t from, uint64_t bytes, const unsigned char **at, struct ws_error *err);
/* The same to where the tensor would begin in the device's own memory, by a kernel or, what is long or no
 * kernel does, by copies. */
WS_MUST_USE int ws_carrier_within(struct ws_carrier *c, int device, const struct ws_runs *r, const void *src,
                                  uint64_t from, uint64_t bytes, unsigned char *dst, size_t source,
                                  struct ws_error *err);
/* All of the round is said. */
WS_MUST_USE int ws_carrier_send(struct ws_carrier *c, struct ws_error *err);
/* Until all of it is there. -EIO: the device failed. */
WS_MUST_USE int ws_carrier_wait(struct ws_carrier *c, unsigned round, struct ws_error *err);
/* What is put into that queue of the device from now on waits for what was sent of the round. */
WS_MUST_USE int ws_carrier_precede(struct ws_carrier *c, unsigned round, struct ws_queue *q,
                                   struct ws_error *err);
/* The version is through: adds the overflows of n sources. */
WS_MUST_USE int ws_carrier_end(struct ws_carrier *c, _Atomic uint64_t *overflows, size_t n,
                               struct ws_error *err);
/* Everything that is queued is through, or lost: nothing writes to a slot any more. After a failure. */
void ws_carrier_stop(struct ws_carrier *c);
/* What went which way since begin, for people: "3.4 GB direct, 12.1 MB gathered". */
void ws_carrier_tell(const struct ws_carrier *c, char *out, size_t bytes);

#endif
