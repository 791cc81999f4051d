#include "fs/store/rings.h"
#include "fs/store/poller.h"
#include "transports/base/log.h"
#include <sys/random.h>

#define NO_OTHER (1UL << 61) /* JSON's numbers end at 2^63 - 1 */

static const struct ws_offer *offer_of(const struct ws_version *v, unsigned index)
{
    const struct ws_offer *o = v->offers;

    while (o && o->index != index)
        o = o->next;
    return o && o->n_via > 0 ? o : NULL; /* an agent waits for nobody */
}

void ws_rings_begin(struct ws_version *v)
{
    v->stay = (struct ws_stay){0};
}

bool ws_rings_stay(struct ws_version *v, unsigned index, bool has_other)
{
    struct ws_stay *s = &v->stay;
    const bool is_mount = offer_of(v, index), was_said = s->token != 0;
    uint64_t token = 0;

    if (is_mount && was_said && s->at == index && !(s->token & NO_OTHER) == has_other)
        return false;
    while (is_mount && token == 0) {
        if (getrandom(&token, sizeof(token), 0) != (ssize_t)sizeof(token))
            token = ws_clock_ns();
        token &= NO_OTHER - 1;
    }
    s->at = index;
    s->token = is_mount && !has_other ? token | NO_OTHER : token;
    return is_mount || was_said;
}

json_t *ws_rings_said(const struct ws_version *v)
{
    const struct ws_stay *s = &v->stay;
    const struct ws_offer *o = v->pull && s->token ? offer_of(v, s->at) : NULL;
    json_t *list = o ? json_array() : NULL;

    if (!list)
        return NULL;
    json_array_append_new(list, json_integer((json_int_t)s->token));
    for (unsigned i = 0; i < o->n_waits && i + 1 < WS_MAX_RELAYS && o->waits[i] != s->token; i++)
        json_array_append_new(list, json_integer((json_int_t)o->waits[i]));
    return list;
}

void ws_rings_heard(struct ws_version *v, unsigned index, const struct ws_offer *offer)
{
    struct ws_stay *s = &v->stay;
    unsigned n = 0;

    if (!v->pull || s->token == 0 || s->at != index)
        return;
    for (; n < offer->n_waits && offer->waits[n] != s->token; n++)
        if (offer->waits[n] < s->token)
            return; /* another one leaves, or it is no ring */
    if (n == offer->n_waits || (s->token & NO_OTHER))
        return;
    ws_log(WS_LOG_INFO, "store",
           "a ring of %u mounts that wait for each other is left model=%s version=%lu source=%s", n + 1,
           v->model->name, v->number, v->store->watches[index]->source->url);
    s->token = 0;
    v->store->puller->leave(v->pull, index);
}
