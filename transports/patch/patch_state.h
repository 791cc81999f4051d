/* What a patch holds, for its parts: regions and the plan (patch.c), translation (patch_translate.c), writing (patch_write.c). */
#ifndef WS_TRANSPORTS_PATCH_PATCH_STATE_H
#define WS_TRANSPORTS_PATCH_PATCH_STATE_H
#include "transports/base/vector.h"
#include "transports/base/workers.h"
#include "transports/patch/patch.h"
#include "transports/patch/values.h"

#define WS_PATCH_RUN (64UL << 10) /* places that a worker does at a time */

struct ws_patch_range {
    char *tensor;
    size_t destination;
    uint64_t to, from;
    unsigned n_dims;
    uint64_t shape[WS_MAX_DIMS];
    int64_t to_strides[WS_MAX_DIMS], from_strides[WS_MAX_DIMS];
    /* of prepare */
    struct ws_slice slice;
    const struct ws_tensor_changes *changes;
};
WS_VECTOR(ws_patch_ranges, struct ws_patch_range);

struct ws_patch_destination {
    unsigned char *memory; /* NULL: elsewhere */
    uint64_t elements;
    /* of prepare */
    struct ws_patch_values values;
    uint64_t *listed; /* its places as u64, for who asks; NULL: not yet */
};
WS_VECTOR(ws_patch_destinations, struct ws_patch_destination);

struct ws_patch {
    struct ws_patch_ranges regions;
    struct ws_patch_destinations destinations;
    size_t *by_memory; /* destinations with memory, by address */
    size_t n_by_memory, room_by_memory;
    bool is_prepared;
    size_t *by_destination, *first; /* numbers of regions, and where those of a destination begin */
    uint64_t *runs;                 /* runs of the destinations before each, and of all */
    struct ws_workers *workers;
    unsigned threads;
};

/* A destination's region, by its number among them. */
static inline const struct ws_patch_range *ws_patch_region_of(const struct ws_patch *p, size_t destination,
                                                              uint32_t number)
{
    return &p->regions.ptr[p->by_destination[p->first[destination] + number]];
}

/* Finds what each destination gets of the changes that its regions were resolved to. */
WS_MUST_USE int ws_patch_translate(struct ws_patch *p, struct ws_error *err);

#endif
