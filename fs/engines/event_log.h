/* Event log: what happened, one line each, oldest first: `<time> <event> key=value ...`. A text that only
 * grows, until it would pass WS_EVENT_LOG_BYTES: then its older half goes. Kept for each model and for the
 * whole mount. Thread safe. */
#ifndef WS_FS_ENGINES_EVENT_LOG_H
#define WS_FS_ENGINES_EVENT_LOG_H
#include <stddef.h>
#include <stdint.h>

#define WS_EVENT_LOG_BYTES (1UL << 20)
#define WS_EVENT_LINE      2048 /* longer ones are cut */
#define WS_TIME_CHARS      32

struct ws_event_log;
struct ws_event_log *ws_event_log_new(void); /* NULL: no memory */
void ws_event_log_free(struct ws_event_log *e);
/* Adds "<now> <line>\n"; what would break the line is made printable. A line that finds no memory is
 * lost, and nothing else. */
void ws_event_log_add(struct ws_event_log *e, const char *line);
uint64_t ws_event_log_size(struct ws_event_log *e);
/* The text now (malloc'ed, NUL-terminated); NULL: no memory. */
char *ws_event_log_copy(struct ws_event_log *e, size_t *len);

/* "2026-11-21T07:37:41.123Z" of CLOCK_REALTIME nanoseconds. */
void ws_event_log_time(uint64_t real_ns, char out[WS_TIME_CHARS]);

#endif
