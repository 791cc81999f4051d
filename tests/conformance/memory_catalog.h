/* Memory catalog: a minimal server for the conformance tests of transports: versions in regions, and leases
 * that are counted and can be revoked. Thread safe. */
#ifndef WS_TESTS_MEMORY_CATALOG_H
#define WS_TESTS_MEMORY_CATALOG_H
#include "transports/delta/listing.h"
#include "transports/protocol/catalog.h"
#include "transports/ucx/serve.h"

struct memory_catalog;
struct memory_catalog *memory_catalog_new(void);
struct ws_catalog memory_catalog_ops(struct memory_catalog *c);
/* The same with versions that are still arriving: manifest and blocks are available only some milliseconds
 * after they were requested, by a lease, one request at a time. */
struct ws_catalog memory_catalog_arriving(struct memory_catalog *c);
/* Its requests for leases by ucx go there (borrowed). Before any comes. */
void memory_catalog_offer_ucx(struct memory_catalog *c, struct ws_ucx_server *ucx);
/* A version with files of these sizes (names file0, file1, ...), bytes from `seed`. seq grows. */
void memory_catalog_publish(struct memory_catalog *c, const char *model, uint64_t version,
                            const uint64_t *sizes, size_t n, unsigned seed);
/* A version like `base`, in which every 1000th byte is incremented. */
void memory_catalog_step(struct memory_catalog *c, const char *model, uint64_t version, uint64_t base);
/* Removes the version; its leases are revoked and its bytes overwritten with another pattern once they are
 * dropped, or right away (`at_once`: a slow reader must never accept those bytes). */
void memory_catalog_revoke(struct memory_catalog *c, const char *model, uint64_t version, bool at_once);
unsigned memory_catalog_leases(struct memory_catalog *c);
unsigned memory_catalog_reports(struct memory_catalog *c);
/* Bytes of a file, for comparisons. */
const unsigned char *memory_catalog_bytes(struct memory_catalog *c, const char *model, uint64_t version,
                                          size_t file);
/* Offers the delta from base to version, which grows by what the caller adds. Borrowed; it stays the
 * catalog's while it offers it. */
struct ws_delta *memory_catalog_delta(struct memory_catalog *c, const char *model, uint64_t version,
                                      uint64_t base);
/* Offers it complete. */
struct ws_delta *memory_catalog_whole_delta(struct memory_catalog *c, const char *model, uint64_t version,
                                            uint64_t base);
void memory_catalog_drop_deltas(struct memory_catalog *c); /* offers none any more */
unsigned memory_catalog_level(struct memory_catalog *c);   /* that was requested last */
void memory_catalog_free(struct memory_catalog *c);

#endif
