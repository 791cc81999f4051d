/* World: the environment of a transport in the conformance suite: a server over a memory catalog, or a
 * folder, and a source that reads it, with faults if any. One thread opens and closes it. */
#ifndef WS_TESTS_WORLD_H
#define WS_TESTS_WORLD_H
#include "tests/conformance/memory_catalog.h"
#include "transports/ipc/serve.h"
#include "transports/tcp/tcp.h"
#include "transports/transport.h"

#define WORLD_MODEL "m"
#define WORLD_FILES 7

struct world {
    const char *transport, *faults; /* faults NULL: none */
    bool arriving;                  /* versions are still incomplete when they are requested */
    struct memory_catalog *catalog; /* NULL for dir */
    struct ws_tcp_server *tcp;
    struct ws_ipc_server *ipc;
    struct ws_ucx_server *ucx;
    char dir[64], url[256];
    struct ws_source *source;
    struct ws_manifest *manifest; /* for threads of a test */
};

extern const uint64_t world_sizes[WORLD_FILES]; /* of a version's files, in a catalog and in an archive */

void world_open(struct world *w, const char *token); /* token NULL: none */
void world_close(struct world *w);
void world_close_servers(struct world *w); /* the source stays */
/* A version whose bytes come from seed. */
void world_publish(struct world *w, unsigned version, unsigned seed);

#endif
