/* Wire: what the two ends of ucx say to each other. Both are of one release of UCX, and 64-bit Linux; numbers are in
 * the machine's order.
 *
 *   POST /v1/{model}/{version}/ucx[?run=R]   {"release":"1.13.1","address":"hex"}: a lease of the
 *        version, and a worker of its own, which connects to the reader's, whose address that is:
 *        {"release":"1.13.1","address":"hex","key":"32 hex digits","digest":"..","idle_ms":10000}
 *        {"key":"..","end":true} ends it
 *   messages   header ws_ucx_request to the server's worker; header ws_ucx_reply back, its data are the bytes
 *
 * Another release: EOPNOTSUPP, and the sentence names both. A key is of one lease: with another one, or after its end,
 * nothing is answered. A lease also ends when nothing was asked for idle_ms, and when the catalog revokes it: then a
 * reply with id 0 and ESTALE says so, and what is under way has WS_UCX_GRACE_MS to arrive. What arrives after that may
 * be other bytes, and its hash says so. */
#ifndef WS_TRANSPORTS_UCX_WIRE_H
#define WS_TRANSPORTS_UCX_WIRE_H
#include <stdint.h>

#define WS_UCX_KEY_CHARS    32
#define WS_UCX_IDLE_MS      10000
#define WS_UCX_GRACE_MS     500
#define WS_UCX_REQUEST_MARK 0x31715377U /* "wSq1" */
#define WS_UCX_REPLY_MARK   0x31725377U /* "wSr1" */
/* Fetched at once, a block: of few messages, and hashed as fast as smaller ones (tests/bench/bench_ucx.c). */
#define WS_UCX_PIECE_BYTES  (4UL << 20)

struct ws_ucx_request {
    uint32_t mark, file;
    uint64_t id, at, bytes; /* id: from 1 on; at: in the file; bytes: 1 to WS_UCX_PIECE_BYTES */
    char key[WS_UCX_KEY_CHARS];
};

struct ws_ucx_reply {
    uint32_t mark, code; /* 0, or an errno */
    uint64_t id;
};

#endif
