/* Transport: the list of transports. Which of them opens a URL is known here and nowhere else: a new one is a
 * file that fills struct ws_transport_ops (source.h), and a line in transport.c. */
#ifndef WS_TRANSPORTS_TRANSPORT_H
#define WS_TRANSPORTS_TRANSPORT_H
#include "transports/protocol/source.h"

/* Picks the transport by scheme. -EINVAL lists the schemes that are known. */
WS_MUST_USE int ws_source_open(const char *url, const struct ws_source_options *options,
                               struct ws_source **out, struct ws_error *err);

#endif
