/* Engine: UCX, opened at run time, as messages between workers. Two workers connect to each other by their
 * addresses, which travel by the HTTP API. A message is a header of a few bytes, and data that the receiver fetches out
 * of the sender's memory itself: by RDMA reads over InfiniBand and RoCE, by the kernel's copy between processes of one
 * host, by sockets where there is nothing better. UCX chooses, and its variables (UCX_TLS, UCX_NET_DEVICES, ...) hold.
 *
 * UCX's own one-sided gets (ucp_get_nbx) are not used. Where no hardware serves them UCX emulates them, and its
 * emulation reads and WRITES whatever address of the process a peer names, without a look at keys: who reaches the
 * port could read an agent's tokens, and a key could not be refused once its lease has ended. Between processes of a
 * host they also copy through the other's CPU. A message asks the owner for each piece, who checks lease and range,
 * and its data moves by the same reads.
 *
 * A worker, and what belongs to it, is used by one thread at a time. No call here waits but where it says so. The library is libucp.so.0;
 * $WSYNC_LIBUCP names another (tests). */
#ifndef WS_TRANSPORTS_UCX_ENGINE_H
#define WS_TRANSPORTS_UCX_ENGINE_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define WS_UCX_RELEASE_TEXT  24
#define WS_UCX_HEADER_BYTES  64
#define WS_UCX_ADDRESS_BYTES 4096 /* of one worker, with many network cards */

/* Is there a library that can be used? 0, or -ENOTSUP and why: this build, no library, another interface, no
 * transport. Opens it at the first call, and sets UCX's variables that were not set: its signal handlers and its
 * messages on stdout are off. Call it before other threads are started. Any thread. */
WS_MUST_USE int ws_ucx_available(struct ws_error *why);
/* Its release, "1.13.1"; "" where it is not available. Both ends need the same. */
const char *ws_ucx_release(void);
/* The release of the headers that this build was made with; "": it has none. */
const char *ws_ucx_build(void);
/* What UCX finds on this machine, as UCX prints it. */
void ws_ucx_describe(FILE *out);

/* Memory that messages are sent out of, registered for as long as it lives. Freed before the memory itself is. */
struct ws_ucx_memory;
WS_MUST_USE int ws_ucx_memory_new(struct ws_ucx_memory **out, void *data, size_t bytes, struct ws_error *err);
void ws_ucx_memory_free(struct ws_ucx_memory *m);

struct ws_ucx_worker;
struct ws_ucx_data; /* of a message, still with its sender */
struct ws_ucx_message {
    const void *header; /* valid while `received` runs, as eager is */
    size_t n_header;
    const void *eager; /* the data, where it came along; else NULL */
    struct ws_ucx_data *data;
    size_t bytes; /* of the data, either way */
};
/* Called by ws_ucx_progress. True: m->data is kept, and will be fetched by ws_ucx_receive; else it is dropped. */
typedef bool ws_ucx_received(void *arg, const struct ws_ucx_message *m);
/* Called once, by the call itself or by ws_ucx_progress; not once the worker is freed. 0 or -errno. */
typedef void ws_ucx_done(void *arg, int rc);

WS_MUST_USE int ws_ucx_worker_new(struct ws_ucx_worker **out, ws_ucx_received *received, void *arg,
                                  struct ws_error *err);
/* Begins to end a worker: nothing more is received, and no `done` is called. Afterwards only ws_ucx_worker_is_gone, and what
 * waits for its descriptor, may be called. */
void ws_ucx_worker_end(struct ws_ucx_worker *w);
/* Makes progress with that. True: whatever was under way has ended, or never goes on, so no memory that was named to the
 * worker is touched any more, and w is freed. A silent peer delays it for two seconds at most. */
WS_MUST_USE bool ws_ucx_worker_is_gone(struct ws_ucx_worker *w);
/* Both, with the wait. NULL is fine. */
void ws_ucx_worker_free(struct ws_ucx_worker *w);
WS_MUST_USE int ws_ucx_worker_address(struct ws_ucx_worker *w, unsigned char out[WS_UCX_ADDRESS_BYTES],
                                      size_t *n, struct ws_error *err);
/* Connects to the worker with that address, once, before anything is sent. Who serves the other end trusts it no
 * more than with what a worker of UCX can do (wsync-security(7)). */
WS_MUST_USE int ws_ucx_connect(struct ws_ucx_worker *w, const unsigned char *address, size_t n,
                               struct ws_error *err);
/* 0, or how the peer that it connected to has failed, -errno, where UCX notices. */
int ws_ucx_failure(const struct ws_ucx_worker *w);
bool ws_ucx_progress(struct ws_ucx_worker *w); /* true: something happened, there may be more */
/* Before a wait for the descriptor to be readable. False: there is something to be done first. */
bool ws_ucx_arm(struct ws_ucx_worker *w);
int ws_ucx_descriptor(const struct ws_ucx_worker *w);
/* Sends a header (copied) and data (borrowed until done; bytes 0: none; it lies in memory) to the other end. */
WS_MUST_USE int ws_ucx_send(struct ws_ucx_worker *w, const void *header, size_t n_header,
                            const struct ws_ucx_memory *memory, const void *data, size_t bytes,
                            ws_ucx_done *done, void *arg);
/* Fetches a message's data that was kept, all of it: dst has room for its bytes. */
WS_MUST_USE int ws_ucx_receive(struct ws_ucx_worker *w, struct ws_ucx_data *data, void *dst, size_t bytes,
                               ws_ucx_done *done, void *arg);

#endif
