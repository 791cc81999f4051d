/* Relay: a mount as a source for other mounts: a catalog over its store, carried by the HTTP server that the
 * agent has too.
 *
 * It lists what fs/store/offers.h says, and the parts of versions that span nodes, which lie in those versions' memory
 * (fs/store/part_view.h). What is asked for and not here is pulled, with the priority of a
 * reader, and passed on block by block as it is verified here, so the trainer sends it once. A lease keeps
 * the memory of a version, but neither its name nor its place in the cache: when the version is dropped or
 * evicted its readers are cut, as the agent cuts those of a slot that it wants. They go on with another
 * source or a newer version.
 *
 * Manifest and digests are the trainer's: this mount checks what it got against them, and so does every mount
 * below. It takes no reports, and of what is desired it passes on only which version was released last. */
#ifndef WS_FS_RELAY_H
#define WS_FS_RELAY_H
#include "fs/engines/control.h"
#include "transports/tcp/tcp.h"

struct ws_relay;
/* Before the first source is added. control: whose status it shows. What ws_tcp_server_new says. */
WS_MUST_USE int ws_relay_new(struct ws_relay **out, struct ws_store *store, struct ws_control *control,
                             const struct ws_tcp_server_options *options, struct ws_error *err);
unsigned ws_relay_port(const struct ws_relay *r);
/* Ends the server and puts what its readers held: before ws_store_stop. NULL is fine. */
void ws_relay_stop(struct ws_relay *r);
void ws_relay_free(struct ws_relay *r); /* after ws_store_free */

#endif
