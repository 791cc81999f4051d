/* Expression: a regular expression of an operator's (POSIX extended), for names that it has to match from their begin.
 *
 * The C library takes any time and memory for some: it writes repeats out before it looks at anything, so that (((a+)+)+)+ is
 * sixteen times a; and a repeat of what may be empty, as in (((a*)+)+)+, leads it around in circles, a thousand times as many
 * with each one. So what a text stands for has a limit here, and such repeats, which are never needed, are refused. So are
 * references to groups, a GNU extension. What is left takes a moment to compile, and microseconds for a name, but for one with long alternatives that
 * are repeated, as (a|b)*a(a|b){200}: of each name it keeps what it has met, a MiB there. Pure. Any thread. */
#ifndef WS_TRANSPORTS_BASE_EXPRESSION_H
#define WS_TRANSPORTS_BASE_EXPRESSION_H
#include "transports/base/error.h"
#include <regex.h>
#include <stdbool.h>

#define WS_EXPRESSION_CHARS 1024 /* of a text, and of what it stands for */

/* -EINVAL: it is no regular expression, is too long, is so with its repeats written out, repeats what may be empty, or refers to a
 * group. The sentence goes on after the name of the text. Freed with regfree. */
WS_MUST_USE int ws_expression_compile(const char *text, regex_t *out, struct ws_error *err);
bool ws_expression_matches(const regex_t *e, const char *name);

#endif
