#include "fs/pull/delta_chain.h"
#include <errno.h>
#include <poll.h>
#include <string.h>

#define ASKS   100 /* how often a source is asked that does not know its deltas yet */
#define ASK_MS 20

static int ask_one(const struct ws_route *r, const struct ws_leg *leg, struct ws_links *k,
                   struct ws_error *err)
{
    const struct ws_version *v = r->version;
    struct ws_mark mark = ws_version_mark(v);
    int rc, tries = 0;

    /* Another mount may have to find out first by which way it comes there. */
    do
        rc = ws_source_deltas(leg->watch->source, v->model->name, &mark, &leg->leave, k->offers, &k->n, err);
    while (rc == -EAGAIN && ++tries < ASKS && !atomic_load(&leg->leave) && poll(NULL, 0, ASK_MS) == 0);
    if (rc < 0)
        k->n = 0;
    return rc;
}

int ws_links_ask(struct ws_route *r, struct ws_links *k, struct ws_error *err)
{
    struct ws_leg leg = {.control = true, .spare = true};
    int rc = ws_route_take(r, &leg, err);

    k->n = 0;
    while (leg.watch) { /* until one knows of any */
        rc = ask_one(r, &leg, k, err);
        leg.skip |= ws_bit(leg.watch->index);
        if (atomic_load(&leg.leave))
            ws_route_doubt(r, &leg); /* nor is it asked for the bytes first */
        else
            ws_route_end(&leg);
        if (k->n > 0 || ws_route_take(r, &leg, &(struct ws_error){0}) < 0)
            break;
    }
    return k->n > 0 ? 0 : rc;
}

static bool leads_to(const struct ws_delta_link *l, const struct ws_mark *target, const char *digest)
{
    return ws_mark_is(&l->target, target) && strcmp(l->target_digest, digest) == 0;
}

bool ws_links_find(const struct ws_model *m, const struct ws_links *k, const struct ws_mark *target,
                   const char *digest, struct ws_link *out)
{
    for (size_t i = 0; i < m->deltas.n; i++) {
        struct ws_delta *d = m->deltas.list[i];
        if (ws_delta_state(d) == WS_DELTA_WHOLE && leads_to(ws_delta_link(d), target, digest)) {
            *out = (struct ws_link){.offer = {.link = *ws_delta_link(d)}, .held = d};
            return true;
        }
    }
    for (size_t i = 0; i < k->n; i++) {
        if (leads_to(&k->offers[i].link, target, digest) && k->offers[i].figures.state != WS_DELTA_GIVEN_UP) {
            *out = (struct ws_link){.offer = k->offers[i]};
            return true;
        }
    }
    return false;
}
