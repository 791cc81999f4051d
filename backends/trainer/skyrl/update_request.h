/* Update request: WeightUpdateRequest and its kinds, by strategy. The contract is in wsync.h. Pure functions.
 */
#ifndef WS_TRAINER_SKYRL_UPDATE_REQUEST_H
#define WS_TRAINER_SKYRL_UPDATE_REQUEST_H
#include "backends/trainer/api/arena.h"
#include "backends/trainer/skyrl/strategy.h"

/* The caller gets its first member. */
struct ws_owned_request {
    wsync_update_request request;
    wsync_update_tensor *tensors; /* the request's, to be filled */
    struct ws_arena arena;
};
/* Room for n tensors; takes over what is in texts. wsync_update_request_free frees it. NULL: no memory, and
 * texts is still the caller's. */
struct ws_owned_request *ws_owned_request_new(struct ws_arena *texts, size_t n);

uint64_t ws_update_tensor_numel(const wsync_update_tensor *t);

/* Checks a request: -EINVAL, -ENOMEM. */
WS_MUST_USE int ws_update_request_check(const wsync_update_request *r, struct ws_error *err);
WS_MUST_USE int ws_update_request_encode(const wsync_update_request *r, char **json, struct ws_error *err);
WS_MUST_USE int ws_update_request_decode(const char *json, size_t len, const char *strategy,
                                         wsync_update_request **out, struct ws_error *err);

#endif
