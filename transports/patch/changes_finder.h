/* Finder: how the list of changes is made (changes.c), shared by the files that find them: changes_records from a delta, changes_compare from
 * both folders' files. They add pieces, runs of changes of one tensor; a piece may be added by any worker. */
#ifndef WS_TRANSPORTS_PATCH_CHANGES_FINDER_H
#define WS_TRANSPORTS_PATCH_CHANGES_FINDER_H
#include "transports/base/vector.h"
#include "transports/base/workers.h"
#include "transports/delta/block_impl.h"
#include "transports/patch/changes.h"
#include "transports/patch/recorded.h"
#include <stdatomic.h>

#define WS_CHANGES_ELEMENT_BYTES 8 /* at most */

/* Changes of one tensor that lie near each other. */
struct ws_changes_piece {
    uint64_t first; /* the element that `at` counts from */
    uint32_t n;
    uint32_t *at;          /* ascending */
    unsigned char *values; /* n before, n after */
};
WS_VECTOR(ws_changes_pieces, struct ws_changes_piece);

/* A tensor of the target, where it lies there and in the base. */
struct ws_changes_tensor {
    struct ws_tensor_changes out;
    size_t file; /* of the target's folder */
    uint64_t begin, end;
    size_t base_file;
    uint64_t base_begin;
    pthread_mutex_t lock; /* guards pieces */
    struct ws_changes_pieces pieces;
};

struct ws_changes {
    size_t n;
    struct ws_changes_tensor *tensors; /* by name */
    char *names;
    uint64_t count, elements;
    bool recorded;
};

/* The bytes of a block next to its neighbours, as they are in the base. */
struct ws_changes_edges {
    bool is_known;
    unsigned char head[WS_CHANGES_ELEMENT_BYTES], tail[WS_CHANGES_ELEMENT_BYTES];
};

/* What one worker has. */
struct ws_changes_scratch {
    struct ws_delta_edit *edit;
    unsigned char raw[WS_BLOCK_BYTES + WS_DELTA_PAD_BYTES], before[WS_BLOCK_BYTES + WS_DELTA_PAD_BYTES],
        after[WS_BLOCK_BYTES + WS_DELTA_PAD_BYTES];
    uint32_t at[WS_BLOCK_BYTES + WS_DELTA_SLACK];
};

struct ws_changes_finder {
    struct ws_changes *c;
    const struct ws_version_folder *target;
    const char *base_path;
    pthread_mutex_t base_lock;
    struct ws_version_folder
        base; /* guarded by base_lock until it is open: only where its bytes are needed */
    int base_rc;
    struct ws_error base_err;             /* likewise */
    struct ws_changes_tensor ***by_place; /* by file of the target's folder */
    size_t *n_by_place;
    struct ws_changes_edges **edges; /* by file of the target's folder, and block */
    unsigned char **
        headers; /* by file of the target's folder: what the header was; NULL: it is the same. Guarded by base_lock */
    const struct ws_recorded *recorded;
    int *file_of; /* of the manifest's files: their numbers in the folder */
    struct ws_changes_scratch **scratch;
    uint64_t most;
    atomic_ullong count;
    atomic_bool headers_differ;
    pthread_mutex_t lock;
    _Atomic(int) rc;     /* of the first that failed */
    struct ws_error err; /* guarded by lock */
};

/* Keeps the first failure, which ends the work of all workers. */
void ws_changes_fail(struct ws_changes_finder *j, int rc, const struct ws_error *why);
/* NULL: no memory, which has failed. */
struct ws_changes_scratch *ws_changes_scratch_of(struct ws_changes_finder *j, unsigned worker);
/* Elements at[] of a run that begins with element `first`; their values are those before and after at the same places. -E2BIG: they
 * have become too many; -ENOMEM. */
WS_MUST_USE int ws_changes_add_piece(struct ws_changes_finder *j, struct ws_changes_tensor *t, uint64_t first,
                                     const uint32_t *at, size_t n, const unsigned char *before,
                                     const unsigned char *after, struct ws_error *err);
/* Takes over a piece of n elements, whose lists were allocated and are freed where it fails: as above. */
WS_MUST_USE int ws_changes_keep_piece(struct ws_changes_finder *j, struct ws_changes_tensor *t,
                                      struct ws_changes_piece p, struct ws_error *err);
/* Which elements of n differ; at has room for n + WS_DELTA_SLACK, of 8 bytes for twice n. */
size_t ws_changes_find_different(uint32_t *at, const unsigned char *a, const unsigned char *b, size_t n,
                                 unsigned width);
/* The whole elements of a tensor in n bytes of its file, from byte `at` on: the first, and how many. */
uint64_t ws_changes_elements_in(const struct ws_changes_tensor *t, uint64_t at, size_t n, size_t *count);
/* The first tensor by place that ends after a byte of the file. */
size_t ws_changes_tensor_at(const struct ws_changes_finder *j, size_t file, uint64_t at);
/* Compares a block of the target with the same one of a base whose tensors lie the same way: s->after with s->before. */
WS_MUST_USE int ws_changes_compare_block(struct ws_changes_finder *j, struct ws_changes_scratch *s,
                                         size_t file, uint64_t at, size_t len, struct ws_error *err);
/* Opens the base's folder, once. A mount may be unable to show its files any more, or would have to pull them: so it is opened only where
 * its bytes are needed. */
WS_MUST_USE int ws_changes_open_base(struct ws_changes_finder *j, struct ws_error *err);
/* What the finder has failed of, if rc is 0. */
int ws_changes_result(struct ws_changes_finder *j, int rc, struct ws_error *err);

#endif
