/* The parts of an SGLang's memory that another program has had it release (/release_memory_occupation), and their way
 * back. SGLang has no route that tells which they are, and ends when it is told to take one back that it has: so its
 * schedulers say it, through the plug-in of our Python package, and each part is asked for before it is taken back. */
#ifndef WS_ENGINE_SGLANG_SLEEP_H
#define WS_ENGINE_SGLANG_SLEEP_H
#include "backends/engine/call.h"

/* Fills sleeping, or sleep_unknown where its schedulers do not say it, or do not agree. One that sleeps takes no
 * requests: it counts as paused. */
WS_MUST_USE int ws_sglang_asleep(const struct ws_engine_target *t, struct ws_engine_serving *out,
                                 struct ws_error *err);
/* Of /server_info: do its schedulers say what is released? */
bool ws_sglang_tells_sleep(const json_t *info);
/* Has it take back its weights, if they are released, or all the rest. 0: its schedulers say so. -EAGAIN: nothing was
 * sent, or it refused. -ETIMEDOUT, -ECONNRESET: it may have done it. */
WS_MUST_USE int ws_sglang_wake_weights(const struct ws_engine_target *t, struct ws_error *err);
WS_MUST_USE int ws_sglang_wake_rest(const struct ws_engine_target *t, struct ws_error *err);

#endif
