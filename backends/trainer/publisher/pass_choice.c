#include "backends/trainer/publisher/pass_choice.h"
#include <errno.h>
#include <stddef.h>
#include <string.h>

#define DENSE     0.1 /* beyond, records are long, and making them takes much longer than the copy */
#define SLOWEST   1.8 /* a pass that takes so much longer than a copy costs more than it saves */
#define TRY_AGAIN 8   /* versions are copied; then what changes in a step is looked at again */
#define NEWEST    0.3 /* how much the newest measurement counts */

int ws_prefer_parse(const char *name, enum ws_prefer *out)
{
    static const char *const names[] = {
        [WS_PREFER_AUTO] = "auto", [WS_PREFER_STALL] = "stall", [WS_PREFER_LATENCY] = "latency"};
    *out = WS_PREFER_AUTO;
    if (!name)
        return 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum ws_prefer)i;
            return 0;
        }
    return -EINVAL;
}

bool ws_pass_choice_make(struct ws_pass_choice *c, enum ws_prefer prefer)
{
    if (prefer != WS_PREFER_AUTO)
        return prefer == WS_PREFER_LATENCY;
    const bool slow = c->copy > 0 && c->pass > SLOWEST * c->copy;
    if (c->density <= DENSE && !slow)
        return true;
    if (c->n_dense++ < TRY_AGAIN)
        return false;
    c->n_dense = 0;
    return true;
}

static double mean(double before, double now)
{
    return before > 0 ? before + NEWEST * (now - before) : now;
}

void ws_pass_choice_record_copy(struct ws_pass_choice *c, uint64_t bytes, double seconds)
{
    if (bytes > 0)
        c->copy = mean(c->copy, seconds / (double)bytes);
}

void ws_pass_choice_record_pass(struct ws_pass_choice *c, uint64_t bytes, double seconds, uint64_t changed,
                                uint64_t n_elements)
{
    if (bytes > 0)
        c->pass = mean(c->pass, seconds / (double)bytes);
    c->density = n_elements ? (double)changed / (double)n_elements : 0;
}
