#include "fs/store/one_copy_parts.h"
#include "fs/store/node_parts.h"
#include "fs/store/version.h"
#include <errno.h>
#include <stdlib.h>

struct ws_part_moves {
    unsigned n;
    struct ws_version *const *to; /* NULL: to no parts */
    struct part_move {
        struct ws_manifest *manifest; /* of the version that has the name next */
        struct ws_part_base *base;
        struct ws_part_view *view;
    } parts[];
};

int ws_part_moves_new(struct ws_part_moves **out, struct ws_version *from, struct ws_version *const *to)
{
    struct ws_store *s = from->store;
    struct ws_part_moves *m = NULL;
    bool ok = true;

    *out = NULL;
    pthread_mutex_lock(&s->lock);
    const unsigned n = from->parts ? from->parts->n : 0;
    if (n > 0) {
        m = calloc(1, sizeof(*m) + n * sizeof(m->parts[0]));
        ok = m;
    }
    if (m) {
        m->n = n;
        m->to = to;
    }
    for (unsigned i = 0; ok && i < n; i++) {
        const struct ws_version *part = ws_node_parts_shown(from, i);
        struct part_move *p = &m->parts[i];
        if (!part)
            continue;
        ok = ws_manifest_copy(atomic_load(&part->manifest), &p->manifest) == 0;
        ok = ok && (!to || (p->base = ws_part_base_new(part)));
        ok = ok && (!to || (p->view = calloc(1, sizeof(*p->view))));
    }
    pthread_mutex_unlock(&s->lock);
    *out = m;
    return ok ? 0 : -ENOMEM;
}

void ws_part_moves_free(struct ws_part_moves *m)
{
    for (unsigned i = 0; m && i < m->n; i++) {
        ws_manifest_free(m->parts[i].manifest);
        ws_part_base_free(m->parts[i].base);
        free(m->parts[i].view);
    }
    free(m);
}

size_t ws_part_moves_quiet(struct ws_version *from)
{
    size_t n = 0;
    bool used = false;

    for (unsigned i = 0; from->parts && i < from->parts->n; i++) {
        struct ws_version *part = ws_node_parts_shown(from, i);
        if (!part)
            continue;
        n++;
        if (part->pull)
            from->store->puller->stop(part->pull);
        used = used || part->pull || atomic_load(&part->refs) != 1; /* its name's */
    }
    return used ? SIZE_MAX : n;
}

/* What lies in the part's place: it, or what lay there before it. */
static struct ws_part_base *take_base(struct ws_version *part, struct part_move *p)
{
    const struct ws_manifest *m = atomic_load(&part->manifest);
    struct ws_part_view *view = ws_part_view(part);
    struct ws_part_base *base = view->base;

    if (base) {
        view->base = NULL;
        return base;
    }
    base = p->base;
    p->base = NULL;
    base->is_wanted = true;
    for (size_t i = 0; i < m->n_files; i++)
        for (size_t w = 0; w < (m->files[i].n_blocks + 63) / 64; w++)
            atomic_store(&base->here[i][w], atomic_load(&part->files[i].here[w]));
    return base;
}

void ws_part_moves_run(struct ws_part_moves *moves, struct ws_version *from, struct ws_version *to,
                       struct ws_store_events *ev)
{
    struct ws_version *shown[WS_MAX_NODE_PARTS] = {0};

    if (!moves)
        return;
    for (unsigned i = 0; i < moves->n; i++)
        shown[i] = ws_node_parts_shown(from, i);
    if (moves->to)
        ws_parts_hand_over(from, to);
    for (unsigned i = 0; i < moves->n; i++) {
        struct ws_version *part = shown[i];
        struct part_move *p = &moves->parts[i];
        struct ws_part_base *base;
        if (!part)
            continue;
        base = moves->to ? take_base(part, p) : NULL;
        struct ws_manifest *manifest = p->manifest;
        p->manifest = NULL;
        if (moves->to)
            ws_part_view_show(moves->to[i], to, i, base, &p->view);
        if (!ws_version_go_on(part, manifest, NULL, ev))
            ws_version_retire(part, ev); /* no memory: what leads back is lost */
    }
}
