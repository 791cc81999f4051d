/* Pause: pausing and resuming, for kinds that answer both with {"status": WORD}. Blocking; any thread. */
#ifndef WS_ENGINE_PAUSE_H
#define WS_ENGINE_PAUSE_H
#include "backends/engine/call.h"

/* POSTs body (taken over) and expects the word. -EREMOTEIO: another reply, or 5xx; else as ws_call_post. */
WS_MUST_USE int ws_pause_post(const struct ws_engine_target *t, const char *path, json_t *body,
                              const char *word, unsigned timeout_ms, struct ws_error *err);
/* Does the engine report that it is paused? -ENOTSUP: it does not report whether it is. */
typedef int ws_pause_query(const struct ws_engine_target *t, bool *paused, struct ws_error *err);
/* One try of a resume. 0: the engine reports that it is not paused, or that it was resumed where the query
 * knows no more; -EBUSY: it was refused, or had no effect, and the engine is still paused. */
WS_MUST_USE int ws_pause_resume_once(const struct ws_engine_target *t, const char *path, const char *word,
                                     ws_pause_query *query, struct ws_error *err);

#endif
