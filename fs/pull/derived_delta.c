#include "fs/pull/derived_delta.h"
#include "fs/store/comparison.h"
#include "fs/store/content.h"
#include "fs/store/delta_cache.h"
#include "fs/store/version.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/delta/encode.h"
#include <stdlib.h>
#include <string.h>

#define PART 2 /* of the version that a delta may take */
#define THREADS                                                                                              \
    4 /* at most: each has room for a block's changes beside the cache, 36 MiB where all of it does */

struct ws_derived_delta {
    struct ws_comparison comparison;
    struct ws_delta *delta; /* counted */
    uint64_t most_bytes;
    int level; /* of compression */
};

/* --- whether one is made --- */

/* With store->lock. */
static struct ws_version *find_base(const struct ws_version *v, const struct ws_manifest *manifest)
{
    struct ws_version *found = NULL;

    for (struct ws_version *w = v->model->versions; w && w->number < v->number; w = w->next) {
        const bool is_whole = ws_version_is_complete(w) && !atomic_load(&w->wanted);
        if (is_whole && w->own_bytes > 0 && strcmp(w->lineage, v->lineage) == 0 &&
            ws_manifest_has_same_files(atomic_load(&w->manifest), manifest))
            found = w;
    }
    return found;
}

/* Is there one already, from whichever version, as of a version that was dropped and is made once more? Another would take its
 * place in the list, and leaves have what that one leads from. With store->lock. */
static bool is_led_to(const struct ws_model *m, const struct ws_delta_link *l)
{
    bool is = false;

    for (size_t i = 0; i < m->deltas.n && !is; i++) {
        const struct ws_delta *d = m->deltas.list[i];
        is = ws_delta_state(d) == WS_DELTA_WHOLE &&
             ws_version_id_equal(&ws_delta_link(d)->target, &l->target) &&
             strcmp(ws_delta_link(d)->target_digest, l->target_digest) == 0;
    }
    return is;
}

/* True: *link is to be made, and the comparison holds both versions. */
static bool begin(struct ws_derived_delta *d, struct ws_version *v, const struct ws_manifest *manifest,
                  struct ws_delta_link *link)
{
    struct ws_store *s = v->store;
    bool begins = false;

    pthread_mutex_lock(&s->lock);
    const uint64_t room = s->options.serves ? ws_model_delta_room(v->model) : 0;
    struct ws_version *base = room > 0 && v->named ? find_base(v, manifest) : NULL;
    if (base) {
        *link = ws_delta_link_between(atomic_load(&base->manifest), manifest);
        begins = !is_led_to(v->model, link);
    }
    if (begins) {
        const uint64_t part = manifest->total_bytes / PART;
        d->most_bytes = room < part ? room : part;
        d->level = (int)v->model->delta_level;
        v->model->delta_level = 0; /* a reader that still wants it asks again */
        ws_comparison_begin(&d->comparison, base, v);
    }
    pthread_mutex_unlock(&s->lock);
    return begins;
}

struct ws_derived_delta *ws_derived_delta_new(struct ws_version *v, const struct ws_manifest *manifest)
{
    struct ws_derived_delta *d = calloc(1, sizeof(*d));
    struct ws_delta_link link;

    if (d && !begin(d, v, manifest, &link)) {
        free(d);
        return NULL;
    }
    if (d && ws_delta_new(&d->delta, &link, manifest, NULL) == 0) {
        ws_delta_set_verified(d->delta); /* it is made of both */
        return d;
    }
    ws_log(WS_LOG_WARN, "store", "no memory for a delta model=%s version=%lu", v->model->name, v->number);
    if (d)
        ws_comparison_end(&d->comparison);
    free(d);
    return NULL;
}

void ws_derived_delta_list(const struct ws_derived_delta *d)
{
    if (d)
        ws_delta_set_add(&d->comparison.target->model->deltas, ws_delta_get(d->delta));
}

/* --- making it --- */

static void compare(struct ws_derived_delta *d)
{
    struct ws_version *v = d->comparison.target;
    const struct ws_store_options *o = &v->store->options;
    const size_t n = ((struct ws_manifest *)atomic_load(&v->manifest))->n_files; /* both have as many */
    const unsigned char **files = calloc(2 * n + 1, sizeof(*files));
    const unsigned threads = o->threads < THREADS ? o->threads : THREADS;
    struct ws_workers *workers =
        files && !atomic_load(&d->comparison.stop) ? ws_workers_new(threads, o->nice) : NULL;

    if (workers) {
        const struct ws_delta_side from = ws_comparison_side(d->comparison.base, files),
                                   to = ws_comparison_side(v, files + n);
        ws_delta_encode(d->delta, &from, &to, d->level, d->most_bytes, workers, &d->comparison.stop);
    } else {
        ws_delta_end(d->delta, WS_DELTA_GIVEN_UP);
    }
    ws_workers_free(workers);
    free(files);
}

static void log_result(const struct ws_derived_delta *d, uint64_t began_ns)
{
    const struct ws_version *base = d->comparison.base, *v = d->comparison.target;
    const uint64_t total = ((struct ws_manifest *)atomic_load(&v->manifest))->total_bytes;
    struct ws_delta_stats stats;

    ws_delta_stats(d->delta, &stats);
    if (stats.state == WS_DELTA_WHOLE) {
        ws_log(WS_LOG_INFO, "store",
               "delta made model=%s base=%lu version=%lu bytes=%lu changed=%lu seconds=%.3f", v->model->name,
               base->number, v->number, stats.bytes, stats.n_changed,
               (double)(ws_clock_ns() - began_ns) / 1e9);
        return;
    }
    const bool is_over = stats.bytes > d->most_bytes;
    const char *why = atomic_load(&d->comparison.stop) ? "one of both versions went, or the mount ends"
                      : is_over && d->most_bytes == total / PART
                          ? "it would be half as large as the version or more"
                      : is_over ? "it is larger than the room for deltas; mounts pull the version whole; "
                                  "delta-cache=SIZE makes room"
                                : "there was no memory for it; mounts pull the version whole";
    ws_log(WS_LOG_INFO, "store",
           "no delta model=%s base=%lu version=%lu bytes=%lu version_bytes=%lu room=%lu: %s", v->model->name,
           base->number, v->number, stats.bytes, total, d->most_bytes, why);
}

/* One that was given up stays listed where that tells readers that the next is as large; else it would only take room from those
 * before. With store->lock. */
static bool tells(const struct ws_derived_delta *d)
{
    const struct ws_version *v = d->comparison.target;
    const uint64_t total = ((struct ws_manifest *)atomic_load(&v->manifest))->total_bytes;
    struct ws_delta_stats stats;

    ws_delta_stats(d->delta, &stats);
    return stats.state == WS_DELTA_WHOLE ||
           (stats.bytes > total / PART && stats.bytes <= ws_model_delta_room(v->model));
}

static void end(struct ws_derived_delta *d)
{
    struct ws_version *v = d->comparison.target;

    pthread_mutex_lock(&v->store->lock);
    if (!tells(d))
        ws_delta_set_drop(&v->model->deltas, d->delta);
    ws_model_trim_deltas(v->model); /* how large it is is known now */
    pthread_mutex_unlock(&v->store->lock);
    ws_comparison_end(&d->comparison);
    ws_delta_put(d->delta);
    free(d);
}

void ws_derived_delta_make(struct ws_derived_delta *d)
{
    const uint64_t began_ns = ws_clock_ns();

    if (!d)
        return;
    compare(d);
    log_result(d, began_ns);
    end(d);
}

void ws_derived_delta_give_up(struct ws_derived_delta *d)
{
    struct ws_version *v = d ? d->comparison.target : NULL;

    if (!d)
        return;
    ws_delta_end(d->delta, WS_DELTA_GIVEN_UP);
    pthread_mutex_lock(&v->store->lock);
    ws_delta_set_drop(&v->model->deltas, d->delta); /* where it was listed: it has no records */
    pthread_mutex_unlock(&v->store->lock);
    end(d);
}
