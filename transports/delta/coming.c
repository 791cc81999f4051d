#include "transports/delta/coming.h"
#include "transports/base/clock.h"
#include "transports/delta/stream.h"
#include <stdlib.h>
#include <string.h>

struct ws_delta_coming *ws_delta_coming_new(struct ws_delta_comings *list, struct ws_delta_record *r,
                                            uint64_t number)
{
    struct ws_delta_coming *c = malloc(sizeof(*c));
    if (!c)
        return NULL;
    *c = (struct ws_delta_coming){
        .record = r, .number = number, .refs = 2, .has_reader = true, .announced_ns = ws_clock_ns()};
    LIST_INSERT_HEAD(list, c, entry);
    return c;
}

void ws_delta_coming_put(struct ws_delta_coming *c)
{
    if (--c->refs > 0)
        return;
    if (!c->whole)
        free(c->record);
    free(c);
}

void ws_delta_coming_end(struct ws_delta_coming *c, bool whole)
{
    LIST_REMOVE(c, entry);
    c->whole = whole;
    if (whole)
        atomic_store(&c->here, c->record->bytes);
    atomic_store(&c->ended, true);
    ws_delta_coming_put(c);
}

struct ws_delta_coming *ws_delta_coming_of(const struct ws_delta_comings *list, uint64_t number)
{
    struct ws_delta_coming *c;
    LIST_FOREACH(c, list, entry)
    if (c->number == number)
        return c;
    return NULL;
}

struct ws_delta_coming *ws_delta_coming_first(const struct ws_delta_comings *list, unsigned part,
                                              unsigned parts, const struct ws_delta_filter *filter)
{
    struct ws_delta_coming *c;
    LIST_FOREACH(c, list, entry)
    if (atomic_load(&c->here) > 0 && c->number % parts == part &&
        (!filter || ws_delta_filter_has(filter, c->number)))
        return c;
    return NULL;
}

bool ws_delta_coming_is(const struct ws_delta_coming *c, const struct ws_delta_record *head)
{
    unsigned char a[WS_DELTA_RECORD_BYTES], b[WS_DELTA_RECORD_BYTES];
    ws_delta_stream_record_head(c->record, a);
    ws_delta_stream_record_head(head, b);
    return memcmp(a, b, sizeof(a)) == 0;
}
