/* An errno as an HTTP status, and back. Pure functions. */
#ifndef WS_TRANSPORTS_HTTP_STATUS_H
#define WS_TRANSPORTS_HTTP_STATUS_H

unsigned ws_http_status(int negative_errno); /* -ESTALE -> 410 */
int ws_errno_from_http(unsigned status);     /* 410 -> ESTALE; 2xx -> 0 */

#endif
