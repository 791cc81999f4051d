/* Why a server ends connections of its own accord. */
#ifndef WS_TRANSPORTS_HTTP_ENDING_H
#define WS_TRANSPORTS_HTTP_ENDING_H

enum ws_http_ending {
    WS_HTTP_ENDS_HEAD,    /* no whole head, or no TLS handshake, within WS_HEAD_MS */
    WS_HTTP_ENDS_BODY,    /* its body comes more slowly than WS_BODY_RATE, or never ends */
    WS_HTTP_ENDS_READER,  /* it takes what it asked for more slowly than WS_READER_RATE, or not at all */
    WS_HTTP_ENDS_ADDRESS, /* a stranger for a newer one from its address */
    WS_HTTP_ENDS_ROOM,    /* a stranger for a newer one */
    WS_HTTP_ENDINGS
};
const char *ws_http_ending_name(enum ws_http_ending ending); /* "head", "body", "reader", "address", "room" */

#endif
