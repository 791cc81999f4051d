/* Plan: one rank's pieces as copy jobs, block by block, so that a block which this rank fills alone is copied
 * and hashed in one pass, on all threads. */
#ifndef WS_TRAINER_PLAN_H
#define WS_TRAINER_PLAN_H
#include "transports/copy.h"
#include "transports/error.h"
#include "transports/limits.h"
#include "transports/workers.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Contiguous bytes: source to a place in a file. */
struct ws_segment {
    size_t file;
    uint64_t begin, bytes;
    const unsigned char *src;
};
/* A strided box that is no single run. */
struct ws_strided {
    size_t file;
    uint64_t tensor_begin;
    const unsigned char *src;
    unsigned n_dims;
    uint64_t shape[WS_MAX_DIMS], offset[WS_MAX_DIMS], size[WS_MAX_DIMS];
    int64_t strides[WS_MAX_DIMS];
    size_t element_bytes;
};
struct ws_block_hash {
    size_t file, block;
    uint64_t hash;
};
struct ws_plan;

WS_MUST_USE int ws_plan_new(struct ws_plan **out, struct ws_error *err);
WS_MUST_USE int ws_plan_add_segment(struct ws_plan *p, const struct ws_segment *s);
WS_MUST_USE int ws_plan_add_strided(struct ws_plan *p, const struct ws_strided *s);
/* Copies everything into the files' memory: data[file], size[file] bytes. Hashes of blocks that it filled
 * whole are appended to *hashes (realloc'ed). `progress` may be NULL; it is called on the calling thread. */
WS_MUST_USE int ws_plan_run(struct ws_plan *p, unsigned char *const *data, const uint64_t *size,
                            size_t n_files, struct ws_workers *workers, struct ws_block_hash **hashes,
                            size_t *n_hashes, void (*progress)(void *arg, uint64_t done, uint64_t total),
                            void *arg, struct ws_error *err);
void ws_plan_free(struct ws_plan *p);

#endif
