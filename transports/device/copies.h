/* Copies: out of a device's memory, of what is not one stretch: by as few of the queue's copies as boxes allow,
 * or many pieces at once by one launch of the gather kernel (gather.h). One thread at a time uses them. */
#ifndef WS_TRANSPORTS_DEVICE_COPIES_H
#define WS_TRANSPORTS_DEVICE_COPIES_H
#include "transports/device/gather.h"

/* Queues copies of all that a cursor passes, which does not convert (ws_box_extents_raw): each element to its place
 * from dst on. Rows and planes that are alike go in one copy; elements that lie apart in columns, or
 * backwards, are slow. */
WS_MUST_USE int ws_copies_cursor(struct ws_device_queue *q, struct ws_box_cursor *c, void *dst,
                                 struct ws_error *err);

/* Pieces for one launch, and pieces that are queued as copies of their own. */
struct ws_copies {
    struct ws_device_queue *q;
    struct ws_gather items;
    size_t n_counters, counters_at;
    void *pinned, *there; /* items, units and counters, on the host and on the device */
    bool kernels;
};
/* counters: how many counters of overflows ws_copies_add may name; 0: none is read. */
void ws_copies_begin(struct ws_copies *c, struct ws_device_queue *q, size_t counters);
/* A box (src: its first element) to dst of the queue's device, its bytes back to back. -EOPNOTSUPP: it
 * converts, and there is no kernel for that. */
WS_MUST_USE int ws_copies_add(struct ws_copies *c, const struct ws_box_extents *r, const void *src, void *dst,
                              size_t counter, struct ws_error *err);
/* After the last ws_copies_add: launches. The copies are done when the queue is. */
WS_MUST_USE int ws_copies_send(struct ws_copies *c, struct ws_error *err);
/* After the queue is done: how many elements overflowed. */
uint64_t ws_copies_overflows(const struct ws_copies *c, size_t counter);
/* After the queue is done; also after a failure. */
void ws_copies_end(struct ws_copies *c);

#endif
