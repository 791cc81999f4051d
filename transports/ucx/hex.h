/* Hex: a worker's address as text. Pure functions. */
#ifndef WS_TRANSPORTS_UCX_HEX_H
#define WS_TRANSPORTS_UCX_HEX_H
#include "transports/base/error.h"
#include <stddef.h>

void ws_ucx_hex_format(const unsigned char *bytes, size_t n, char *out); /* out: 2 * n + 1 */
/* -EPROTO: not hex, or not 1 to cap bytes. text NULL is none. */
WS_MUST_USE int ws_ucx_hex_parse(const char *text, unsigned char *out, size_t cap, size_t *n);

#endif
