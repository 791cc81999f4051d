/* Dense: data of any strides in a device's memory, copied back to back in row-major order, as it is, by a
 * queue's plain copies. Stateless; a queue is its thread's. */
#ifndef WS_TRAINER_DENSE_H
#define WS_TRAINER_DENSE_H
#include "transports/box.h"
#include "transports/device.h"

/* Nested loops over rows of `width` bytes that lie together, outermost first; steps are bytes, of any sign.
 */
struct ws_dense {
    unsigned n_loops;
    uint64_t count[WS_MAX_DIMS + 1];
    int64_t step[WS_MAX_DIMS + 1];
    uint64_t width;
};

/* Of the source of runs; what they convert is copied unconverted. */
void ws_dense_of(struct ws_dense *d, const struct ws_runs *r);
uint64_t ws_dense_bytes(const struct ws_dense *d);
/* Queues the copies. src: the first element. dst: of the device, or of the host (then finish before it is
 * read). */
WS_MUST_USE int ws_dense_copy(struct ws_queue *q, void *dst, const void *src, const struct ws_dense *d,
                              struct ws_error *err);
/* Calls part for stretches of at most `most` bytes (at least a row's), in order. Stops at what is not 0. */
typedef int ws_dense_part(void *arg, const struct ws_dense *d, const void *src, struct ws_error *err);
WS_MUST_USE int ws_dense_split(const struct ws_dense *d, const void *src, uint64_t most, ws_dense_part *part,
                               void *arg, struct ws_error *err);

#endif
