/* Changes: which elements of which tensors differ between two versions, the base and the target, with the values of both. An
 * element has the bytes of its type; of the types under a byte (F4, F6) it is a byte of the file.
 *
 * They come from a delta (delta/stream.h) where a mount shows it in the target's .wsync/changes-from-BASE, and from comparing the
 * files of both folders else. What a delta says is input: it only names places, and the values are those of the target's files;
 * but a delta that leaves a change out is believed, as its records were when the target's blocks were made of them and hashed.
 *
 * One thread makes them; afterwards they do not change, and any thread may read them. */
#ifndef WS_TRANSPORTS_PATCH_CHANGES_H
#define WS_TRANSPORTS_PATCH_CHANGES_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of one tensor. */
struct ws_tensor_changes {
    const char *name;
    uint64_t elements; /* of the tensor */
    unsigned element_bytes;
    bool is_wide; /* indexes are u64 and not u32 */
    uint64_t n;
    void *indexes;         /* ascending; no two are equal */
    unsigned char *before; /* n elements each, which differ */
    unsigned char *after;
};

static inline uint64_t ws_tensor_changes_index(const struct ws_tensor_changes *t, uint64_t i)
{
    return t->is_wide ? ((const uint64_t *)t->indexes)[i] : ((const uint32_t *)t->indexes)[i];
}

struct ws_changes;
/* target, base: folders of versions. The base's files may be missing, but for its manifest, where the delta has an edit for each block that it names.
 * threads 0: as many as there are cores, 8 at most. The caller frees *out. -EPROTO: the tensors' names, types or shapes differ;
 * -E2BIG: more changed than is worth listing, an eighth of all elements; -EBADMSG: the delta is damaged, or of other versions;
 * -EOPNOTSUPP: a mount with need=learn would learn that all of it is read; -ESTALE: a file was changed meanwhile; or what opening and reading the folders say. */
WS_MUST_USE int ws_changes_open(struct ws_changes **out, const char *target, const char *base,
                                unsigned threads, struct ws_error *err);
void ws_changes_free(struct ws_changes *c); /* NULL is fine */
/* NULL: the target has no such tensor. */
const struct ws_tensor_changes *ws_changes_find(const struct ws_changes *c, const char *tensor);
/* Sums over all tensors. */
uint64_t ws_changes_count(const struct ws_changes *c);
uint64_t ws_changes_elements(const struct ws_changes *c);
/* Were they read from a delta? */
bool ws_changes_are_recorded(const struct ws_changes *c);

#endif
