/* Patch: changes of tensors as writes into memory that holds them, for instance an engine's parameters. Regions say which elements of
 * which tensor lie where; prepare makes of them and of the changes a list of places with the values before and after for each memory;
 * then each is checked, written, and written back by one call. Values are absolute, so a put that was cut off is undone as a whole one
 * is, and both may be done twice.
 *
 * A memory that several regions name is one destination. A place that several tensors have (tied parameters) is written once, and
 * all of them have to say the same of it.
 *
 * One thread at a time uses a patch; check, put and undo run on threads of their own, which prepare starts. */
#ifndef WS_TRANSPORTS_PATCH_PATCH_H
#define WS_TRANSPORTS_PATCH_PATCH_H
#include "transports/patch/changes.h"
#include "transports/patch/slice.h"

struct ws_patch_region {
    const char *tensor;
    void *memory; /* NULL: it is elsewhere (on a GPU), a destination of its own, and only listed */
    uint64_t memory_elements;
    unsigned element_bytes; /* 1, 2, 4 or 8: as the tensor's */
    uint64_t to, from;      /* elements: in memory, in the tensor */
    unsigned n_dims;
    const uint64_t *shape;
    const int64_t *to_strides, *from_strides; /* in elements */
};

struct ws_patch;
struct ws_patch *ws_patch_new(void); /* NULL: no memory */
void ws_patch_free(struct ws_patch *p);
/* Copies the region, not the memory, which has to stay. -EINVAL, -ENOMEM. */
WS_MUST_USE int ws_patch_add(struct ws_patch *p, const struct ws_patch_region *r, struct ws_error *err);
/* Replaces what an earlier one made. threads 0: as many as there are cores, 8 at most. -ENOENT: the target has not such a tensor;
 * -EINVAL: its element has other bytes, or the region lies outside; -EOPNOTSUPP: strides that are no box's; -EEXIST: two tensors say
 * different things of a place; -ENOMEM. There is nothing to check, put or undo after a failure. */
WS_MUST_USE int ws_patch_prepare(struct ws_patch *p, const struct ws_changes *c, unsigned threads,
                                 struct ws_error *err);
/* Places that put writes, and *bytes of memory that the lists take. */
uint64_t ws_patch_count(const struct ws_patch *p, uint64_t *bytes);
size_t ws_patch_destinations(const struct ws_patch *p);
/* Of destination i: n places, ascending, as element numbers, and values. The patch's, until the next prepare. -ERANGE, -ENOMEM. */
WS_MUST_USE int ws_patch_list(struct ws_patch *p, size_t i, const uint64_t **indexes, const void **before,
                              const void **after, uint64_t *n);
/* Does each place hold the value before? -ESTALE, and err names tensor and element of one that does not. */
WS_MUST_USE int ws_patch_check(struct ws_patch *p, struct ws_error *err);
void ws_patch_put(struct ws_patch *p);
void ws_patch_undo(struct ws_patch *p);
bool ws_patch_is_prepared(const struct ws_patch *p);

#endif
