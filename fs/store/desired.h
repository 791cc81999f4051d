/* Orders: what agents ask of this mount for one model, as they say it in the listing that is polled: the
 * release that is under way, what was released last, and versions that are wanted here for an engine of
 * another mount. State, not messages: what was missed is read again. Pure. */
#ifndef WS_FS_STORE_DESIRED_H
#define WS_FS_STORE_DESIRED_H
#include "transports/base/error.h"
#include "transports/base/version_id.h"
#include <jansson.h>

enum ws_order_phase { WS_ORDER_NONE, WS_ORDER_PREPARING, WS_ORDER_COMMITTED, WS_ORDER_ABORTED };
#define WS_MAX_WANTED 8

struct ws_orders {
    uint64_t release; /* its id, the same in every model that it names; 0: none yet */
    enum ws_order_phase phase;
    struct ws_mark to;
    uint64_t released_by; /* id of the last release that was committed; 0: trainers do not release */
    struct ws_mark released;
    bool kept; /* the last two are of an agent that has ended: the one that is there has released nothing yet
                */
    size_t n_wanted;
    struct ws_wanted {
        uint64_t id;
        struct ws_mark version;
    } wanted[WS_MAX_WANTED];
};

/* Of a model's entry in a listing; who: this mount (HOST:MOUNTPOINT). -EPROTO: it is malformed. */
WS_MUST_USE int ws_orders_read(const json_t *model, const char *who, struct ws_orders *out);
/* An agent that was started anew does not know what was released before. It is kept: what was only published
 * is not acted on where releases were. */
void ws_orders_keep(struct ws_orders *o, const struct ws_orders *before);
bool ws_orders_same(const struct ws_orders *a, const struct ws_orders *b);
bool ws_orders_want(const struct ws_orders *o, uint64_t wanted_id);

#endif
