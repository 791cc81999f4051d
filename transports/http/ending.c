#include "transports/http/ending.h"

const char *ws_http_ending_name(enum ws_http_ending ending)
{
    static const char *const names[WS_HTTP_ENDINGS] = {[WS_HTTP_ENDS_HEAD] = "head",
                                                       [WS_HTTP_ENDS_BODY] = "body",
                                                       [WS_HTTP_ENDS_READER] = "reader",
                                                       [WS_HTTP_ENDS_ADDRESS] = "address",
                                                       [WS_HTTP_ENDS_ROOM] = "room"};
    return names[ending];
}
