/* Member heap: members of a plan (fanout.h) by number, the best first. Each has a place that is known, so one that became worse
 * moves down, and one may be taken out of the middle. Pure data; the memory is the caller's. */
#ifndef WS_TRAINER_AGENT_FLEET_MEMBER_HEAP_H
#define WS_TRAINER_AGENT_FLEET_MEMBER_HEAP_H
#include <stdbool.h>
#include <stddef.h>

struct ws_member_heap {
    size_t *members;                                  /* the best is the first */
    size_t n;                                         /* that are in it */
    size_t *place;                                    /* by member: where it is in members */
    bool (*is_better)(void *arg, size_t a, size_t b); /* a total order */
    void *arg;
};

void ws_member_heap_add(struct ws_member_heap *h, size_t member);
/* What is_better says of the member has become worse. It is in the heap. */
void ws_member_heap_worse(struct ws_member_heap *h, size_t member);
void ws_member_heap_remove(struct ws_member_heap *h, size_t member);

#endif
