/* Transport: the list of transports, which alone decides which of them opens a URL. A new transport is a file that
 * fills struct ws_transport_ops (protocol/source.h), and a line in transport.c. */
#ifndef WS_TRANSPORTS_TRANSPORT_H
#define WS_TRANSPORTS_TRANSPORT_H
#include "transports/protocol/source.h"

/* Chooses the transport by the URL's scheme. -EINVAL: an unknown scheme; the error lists the known ones. */
WS_MUST_USE int ws_source_open(const char *url, const struct ws_source_options *options,
                               struct ws_source **out, struct ws_error *err);

#endif
