/* Coming record: one whose head is here and whose data comes piece by piece. Those who send the delta on take its data while it
 * comes, so that a chain of mounts costs a piece's time and not a record's for each of them. The last byte is kept back until the
 * record's hash was checked: what is damaged reaches nobody whole.
 *
 * A reader of a stream (stream.h) begins one, fills it and ends it by ws_delta_add, or leaves it where its connection breaks; who
 * reads the same record again goes on where that one stopped. Guarded by its delta's lock; `here` is read without it. */
#ifndef WS_TRANSPORTS_DELTA_COMING_H
#define WS_TRANSPORTS_DELTA_COMING_H
#include "transports/delta/filter.h"
#include "transports/delta/record.h"
#include <stdatomic.h>
#include <sys/queue.h>

struct ws_delta_coming {
    LIST_ENTRY(ws_delta_coming) entry; /* of its delta, until it has ended */
    struct ws_delta_record *record; /* its own while it comes and where it was given up; else the delta's */
    uint64_t number;                /* of its block among those of all files */
    unsigned refs;                  /* the list, its reader, and those who send it */
    bool has_reader;
    bool whole;            /* the record is the delta's */
    _Atomic(bool) ended;   /* it is whole, or was given up */
    _Atomic(size_t) here;  /* bytes of data that may be sent */
    size_t filled;         /* bytes of data that are there; its reader's */
    uint64_t announced_ns; /* when `here` last grew; its reader's */
};
LIST_HEAD(ws_delta_comings, ws_delta_coming);

/* A record with its head, which it owns; with two references: the list's and its reader's. NULL: no memory. */
struct ws_delta_coming *ws_delta_coming_new(struct ws_delta_comings *list, struct ws_delta_record *r,
                                            uint64_t number);
void ws_delta_coming_put(struct ws_delta_coming *c);
/* Takes it off the list and puts the list's reference. whole: its record is the delta's now. */
void ws_delta_coming_end(struct ws_delta_coming *c, bool whole);
/* Borrowed, or NULL: of a block; */
struct ws_delta_coming *ws_delta_coming_of(const struct ws_delta_comings *list, uint64_t number);
/* ... of a part (delta.h), of which there is something to send. filter: NULL: any. */
struct ws_delta_coming *ws_delta_coming_first(const struct ws_delta_comings *list, unsigned part,
                                              unsigned parts, const struct ws_delta_filter *filter);
/* Have both the same head, and so the same data? */
bool ws_delta_coming_is(const struct ws_delta_coming *c, const struct ws_delta_record *head);

#endif
