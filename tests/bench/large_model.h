/* Large model: two versions of 2.1 TB, 70,000 tensors in 200 files, 500,800 blocks, and the delta from one to the other,
 * as a catalog that holds no bytes of them: a block with a header is made when it is read, and hashed; the hashes of
 * the others are numbers, and what is sent of them is zeros, so that they cannot be pulled. */
#ifndef WS_BENCH_LARGE_MODEL_H
#define WS_BENCH_LARGE_MODEL_H
#include "backends/trainer/tensor/placement.h"
#include "transports/protocol/catalog.h"

#define LARGE_MODEL_TENSORS 70000U
#define LARGE_MODEL_FILES   200U
#define LARGE_MODEL_NAME    "large"
#define LARGE_MODEL_RUN     "bench"

/* What one rank registers of it, and where its tensors go. The caller frees them. */
struct ws_registration *large_model_registration(void);
struct ws_placement *large_model_placement(struct ws_registration *r);
/* Version 1 or 2, sealed. header_hashes: of the first block of each of the placement's files. The caller frees it. */
uint64_t *large_model_header_hashes(const struct ws_placement *l);
struct ws_manifest *large_model_manifest(const struct ws_placement *l, const uint64_t *header_hashes,
                                         uint64_t version);

/* Offers these versions, and the delta between them, which has no records yet. All are borrowed. */
struct large_model;
struct large_model *large_model_new(const struct ws_placement *l, struct ws_manifest *const manifests[2]);
struct ws_catalog large_model_catalog(struct large_model *m);
void large_model_free(struct large_model *m);

#endif
