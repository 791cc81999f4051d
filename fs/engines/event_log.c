/* The log is one buffer that grows by doubling up to its limit. Halving cuts at a line's end, so that a reader
 * never sees half a line. A reader that goes on at an offset beyond the new end sees the file as truncated,
 * which `tail -f` knows from rotated logs. */
#include "fs/engines/event_log.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include "transports/base/vector.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

WS_VECTOR(chars, char);

struct ws_event_log {
    pthread_mutex_t lock;
    struct chars text; /* guarded by lock */
};

void ws_event_log_time(uint64_t real_ns, char out[WS_TIME_CHARS])
{
    time_t seconds = (time_t)(real_ns / 1000000000UL);
    struct tm utc;
    size_t n;

    gmtime_r(&seconds, &utc);
    n = strftime(out, WS_TIME_CHARS, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(out + n, WS_TIME_CHARS - n, ".%03uZ", (unsigned)(real_ns / 1000000UL % 1000));
}

struct ws_event_log *ws_event_log_new(void)
{
    struct ws_event_log *e = calloc(1, sizeof(*e));

    if (e)
        pthread_mutex_init(&e->lock, NULL);
    return e;
}

void ws_event_log_free(struct ws_event_log *e)
{
    if (!e)
        return;
    pthread_mutex_destroy(&e->lock);
    chars_reset(&e->text);
    free(e);
}

/* Under the lock. */
static void drop_older_half(struct ws_event_log *e)
{
    struct chars *t = &e->text;
    const char *cut = memchr(t->ptr + t->len / 2, '\n', t->len - t->len / 2);
    const size_t from = (size_t)(cut + 1 - t->ptr); /* the text ends with a newline */

    memmove(t->ptr, t->ptr + from, t->len - from);
    t->len -= from;
}

void ws_event_log_add(struct ws_event_log *e, const char *line)
{
    char whole[WS_TIME_CHARS + WS_EVENT_LINE], time_text[WS_TIME_CHARS];
    size_t n;

    ws_event_log_time(ws_clock_day_ns(), time_text);
    snprintf(whole, sizeof(whole) - 1, "%s %s", time_text, line);
    ws_text_clean(whole);
    n = strlen(whole);
    whole[n++] = '\n'; /* in the place of the NUL: added by length */
    pthread_mutex_lock(&e->lock);
    if (e->text.len + n > WS_EVENT_LOG_BYTES)
        drop_older_half(e);
    const int rc = chars_append_all(&e->text, whole, n);
    pthread_mutex_unlock(&e->lock);
    if (rc < 0)
        ws_log(WS_LOG_ERROR, "control", "no memory for an event, which is lost: %s", line);
}

uint64_t ws_event_log_size(struct ws_event_log *e)
{
    uint64_t size;

    pthread_mutex_lock(&e->lock);
    size = e->text.len;
    pthread_mutex_unlock(&e->lock);
    return size;
}

char *ws_event_log_copy(struct ws_event_log *e, size_t *len)
{
    char *copy;

    pthread_mutex_lock(&e->lock);
    copy = malloc(e->text.len + 1);
    if (copy) {
        if (e->text.len)
            memcpy(copy, e->text.ptr, e->text.len);
        copy[e->text.len] = '\0';
        *len = e->text.len;
    }
    pthread_mutex_unlock(&e->lock);
    return copy;
}
