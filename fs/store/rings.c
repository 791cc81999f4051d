#include "fs/store/rings.h"
#include "fs/store/poller.h"
#include "transports/base/log.h"
#include <sys/random.h>

#define NO_OTHER (1UL << 61) /* the bit of a mount without another source; JSON's numbers end at 2^63 - 1 */

static const struct ws_offer *mount_offer(const struct ws_version *v, unsigned index)
{
    const struct ws_offer *o = v->offers;

    while (o && o->index != index)
        o = o->next;
    /* An agent waits for no mount; parents of trees are left by the rules of fs/store/parents.h. */
    return o && o->n_via > 0 && v->store->pollers[index] && !v->store->pollers[index]->is_hint ? o : NULL;
}

void ws_rings_begin(struct ws_version *v)
{
    v->stay = (struct ws_ring_stay){0};
}

bool ws_rings_stay(struct ws_version *v, unsigned index, bool has_other)
{
    struct ws_ring_stay *s = &v->stay;
    const bool is_mount = mount_offer(v, index), was_said = s->token != 0;
    uint64_t token = 0;

    if (is_mount && was_said && s->source == index && !(s->token & NO_OTHER) == has_other)
        return false;
    while (is_mount && token == 0) {
        if (getrandom(&token, sizeof(token), 0) != (ssize_t)sizeof(token))
            token = ws_clock_ns();
        token &= NO_OTHER - 1;
    }
    s->source = index;
    s->token = is_mount && !has_other ? token | NO_OTHER : token;
    return is_mount || was_said;
}

json_t *ws_rings_to_json(const struct ws_version *v)
{
    const struct ws_ring_stay *s = &v->stay;
    const struct ws_offer *o = v->pull && s->token ? mount_offer(v, s->source) : NULL;
    json_t *list = o ? json_array() : NULL;

    if (!list)
        return NULL;
    json_array_append_new(list, json_integer((json_int_t)s->token));
    for (unsigned i = 0; i < o->n_ring_tokens && i + 1 < WS_MAX_RELAYS && o->ring_tokens[i] != s->token; i++)
        json_array_append_new(list, json_integer((json_int_t)o->ring_tokens[i]));
    return list;
}

void ws_rings_check(struct ws_version *v, unsigned index, const struct ws_offer *offer)
{
    struct ws_ring_stay *s = &v->stay;
    unsigned n = 0;

    if (!v->pull || s->token == 0 || s->source != index)
        return;
    for (; n < offer->n_ring_tokens && offer->ring_tokens[n] != s->token; n++)
        if (offer->ring_tokens[n] < s->token)
            return; /* another mount leaves, or it is no ring */
    if (n == offer->n_ring_tokens || (s->token & NO_OTHER))
        return;
    ws_log(WS_LOG_INFO, "store",
           "a ring of %u mounts that wait for each other is left model=%s version=%lu source=%s", n + 1,
           v->model->name, v->number, v->store->pollers[index]->source->url);
    s->token = 0;
    v->store->puller->leave(v->pull, index);
}
