/* Saved text: what an agent knows, to text and back. Both under the agent's lock.
 *
 *     wsync-agent-state 1
 *     {"release":"0.2.0","models":[{"name":"actor","run":"a1b2","newest":42,"reserved":{"version":43,"run":"a1b2"},
 *      "nodes":["n0","n1"],"released":{"version":42,"run":"a1b2","by":1700000000000000000},
 *      "mounts":[{"mount":"HOST:/wsync","identity":"node-7","follows":true,"engines":2}]}],
 *      "releases":[{"id":1700000000000000000,"phase":"committed","why":"","who":"root","from":"unix","min_engines":0,
 *      "quorum_permille":0,"items":[{"model":"actor","version":42,"run":"a1b2"}]}]}
 *     end 0123456789abcdef        XXH3 of what is before
 *
 * run and newest are missing where nothing is published. derived, of a view, is {"version","run","digest"} of what was
 * announced last, or was about to be. reserved: a number that may have been announced when the
 * agent ended. nodes: of a part of a model. A release that is decided is in `released`, and committed in
 * `releases` (newest first; phase preparing, committed or aborted): it is written before it is committed. A newer format has a higher number in the first line. */
#ifndef WS_TRAINER_AGENT_SAVED_SAVED_TEXT_H
#define WS_TRAINER_AGENT_SAVED_SAVED_TEXT_H
#include "backends/trainer/agent/core/state.h"

/* malloc'ed; NULL: no memory. What it has of releases is `recording` in each fleet. Without mounts where these would
 * make it longer than such a file may be: they register again. */
char *ws_saved_text(struct ws_agent *a, size_t *n);
/* Adds the models to an agent that has none. -EBADMSG: it is no such text, or damaged; -EPROTO: of a newer format;
 * -ENOMEM. err has no path in it. */
WS_MUST_USE int ws_saved_read(struct ws_agent *a, char *text, size_t n, struct ws_error *err);

#endif
