/* Events are one buffer that grows by doubling up to its limit. Halving cuts at a line's end, so a
 * reader never sees half a line; one that reads on at an offset beyond the new end sees the file as
 * cut, which is what `tail -f` knows from rotated logs. */
#include "fs/engines/event_log.h"
#include "transports/base/clock.h"
#include "transports/base/text.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIRST_BYTES 4096UL

struct ws_events {
    pthread_mutex_t lock;
    char *text;        /* guarded by lock */
    size_t used, room; /* guarded by lock */
};

void ws_time_text(uint64_t real_ns, char out[WS_TIME_CHARS])
{
    time_t seconds = (time_t)(real_ns / 1000000000UL);
    struct tm utc;
    size_t n;

    gmtime_r(&seconds, &utc);
    n = strftime(out, WS_TIME_CHARS, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(out + n, WS_TIME_CHARS - n, ".%03uZ", (unsigned)(real_ns / 1000000UL % 1000));
}

struct ws_events *ws_events_new(void)
{
    struct ws_events *e = calloc(1, sizeof(*e));

    if (e)
        pthread_mutex_init(&e->lock, NULL);
    return e;
}

void ws_events_free(struct ws_events *e)
{
    if (!e)
        return;
    pthread_mutex_destroy(&e->lock);
    free(e->text);
    free(e);
}

/* Under the lock. */
static void drop_older_half(struct ws_events *e)
{
    char *cut = memchr(e->text + e->used / 2, '\n', e->used - e->used / 2);
    size_t from = (size_t)(cut + 1 - e->text); /* the text ends with a newline */

    memmove(e->text, e->text + from, e->used - from);
    e->used -= from;
}

/* Under the lock; makes room for n more bytes and a NUL. */
static int make_room(struct ws_events *e, size_t n)
{
    size_t room = e->room ? e->room : FIRST_BYTES;
    char *more;

    while (room < e->used + n + 1)
        room *= 2;
    if (room == e->room)
        return 0;
    more = realloc(e->text, room);
    if (!more)
        return -1;
    e->text = more;
    e->room = room;
    return 0;
}

void ws_events_add(struct ws_events *e, const char *line)
{
    char whole[WS_TIME_CHARS + WS_EVENT_LINE], time_text[WS_TIME_CHARS];
    size_t n;

    ws_time_text(ws_clock_day_ns(), time_text);
    snprintf(whole, sizeof(whole) - 1, "%s %s", time_text, line);
    ws_text_clean(whole);
    n = strlen(whole);
    whole[n++] = '\n'; /* in the place of the NUL: added by length */
    pthread_mutex_lock(&e->lock);
    if (e->used + n > WS_EVENTS_BYTES)
        drop_older_half(e);
    if (!make_room(e, n)) {
        memcpy(e->text + e->used, whole, n);
        e->used += n;
    }
    pthread_mutex_unlock(&e->lock);
}

uint64_t ws_events_size(struct ws_events *e)
{
    uint64_t size;

    pthread_mutex_lock(&e->lock);
    size = e->used;
    pthread_mutex_unlock(&e->lock);
    return size;
}

char *ws_events_copy(struct ws_events *e, size_t *len)
{
    char *copy;

    pthread_mutex_lock(&e->lock);
    copy = malloc(e->used + 1);
    if (copy) {
        if (e->used)
            memcpy(copy, e->text, e->used);
        copy[e->used] = '\0';
        *len = e->used;
    }
    pthread_mutex_unlock(&e->lock);
    return copy;
}
