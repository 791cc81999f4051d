/* The text of a manifest as it is sent: the version's, which never changes, with its deltas, which do. */
#ifndef WS_TRANSPORTS_TCP_MANIFEST_TEXT_H
#define WS_TRANSPORTS_TCP_MANIFEST_TEXT_H
#include "transports/protocol/catalog.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

bool ws_tcp_any_grows(const json_t *deltas); /* is one of them still being made? */
/* The manifest's text with this list of deltas (NULL: none) in place of its empty one; malloc'ed. NULL: no memory. */
char *ws_tcp_manifest_text(const struct ws_lease *lease, const json_t *deltas, size_t *n);

#endif
