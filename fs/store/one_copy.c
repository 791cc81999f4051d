#include "fs/store/one_copy.h"
#include "fs/store/content.h"
#include "fs/store/events.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/one_copy_parts.h"
#include "fs/store/version.h"
#include "fs/store/way_back.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/number.h"
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_MS      10
#define GIVE_BACK_MS 2000
#define SAY_NS       WS_SECOND_NS /* of waiting for readers, before the log says so */

/* --- which version; with store->lock --- */

/* copies=auto: do two copies of all models not fit? Once that is so it stays so: a mount does not go to and fro. */
static bool lacks_room_for_two(struct ws_store *s)
{
    char total[WS_NUMBER_CHARS], cache[WS_NUMBER_CHARS];
    uint64_t bytes = 0;
    unsigned n = 0;

    for (const struct ws_model *m = s->models; m && !s->keeps_one_copy; m = m->next) {
        const uint64_t largest = ws_model_is_hidden(m) ? 0 : ws_model_largest(m);
        bytes += largest;
        n += largest > 0;
    }
    if (s->keeps_one_copy || bytes <= s->options.cache_bytes / 2)
        return s->keeps_one_copy;
    ws_number_size_text(bytes, total);
    ws_number_size_text(s->options.cache_bytes, cache);
    ws_log(WS_LOG_INFO, "store",
           "one copy of each model is kept, which is patched from version to version, as copies=auto says: "
           "two of all, of %s each, do not fit into cache=%s models=%u",
           total, cache, n);
    s->keeps_one_copy = true;
    return true;
}

bool ws_one_copy_applies(struct ws_version *v)
{
    const struct ws_store_options *o = &v->store->options;

    if (o->copies == WS_COPIES_TWO || ws_model_is_hidden(v->model))
        return false;
    return o->copies == WS_COPIES_ONE || lacks_room_for_two(v->store);
}

bool ws_one_copy_is_spare(const struct ws_version *v)
{
    const struct ws_model *m = v->model;
    bool is_spare = false;

    if (v->store->options.copies != WS_COPIES_AUTO || ws_model_is_hidden(m) || v == m->current)
        return false;
    for (const struct ws_version *w = m->versions; w && !is_spare; w = w->next)
        is_spare = w != v && w->own_bytes > 0 && ws_version_is_complete(w) &&
                   (w == m->current || ws_version_is_newer(w, v));
    return is_spare && lacks_room_for_two(v->store);
}

struct ws_version *ws_one_copy_holder(const struct ws_version *v)
{
    for (struct ws_version *w = v->model->versions; w; w = w->next)
        if (w != v && w->own_bytes > 0)
            return w;
    return NULL;
}

struct ws_version *ws_one_copy_untouched(struct ws_version *v)
{
    const struct ws_version_id id = ws_version_id(v);
    const bool has_memory = v->own_bytes > 0 || ws_part_view(v);
    const struct ws_delta *growing = has_memory ? ws_way_back_growing(v->model, &id, v->digest) : NULL;
    const struct ws_delta_link *l = growing ? ws_delta_link(growing) : NULL;
    struct ws_version *w = l ? ws_version_lookup(v->model, l->target.version, l->target.lineage) : NULL;

    return w && ws_version_has_manifest(w) && strcmp(w->digest, l->target_digest) == 0 ? w : NULL;
}

static struct ws_version *directed(struct ws_model *m)
{
    return m->directed.lineage[0] ? ws_version_lookup(m, m->directed.version, m->directed.lineage) : NULL;
}

int ws_one_copy_may_take(const struct ws_version *v, struct ws_error *err)
{
    struct ws_model *m = v->model;
    const struct ws_version *holder = ws_one_copy_holder(v), *to = directed(m);

    if (!holder)
        return 0;
    if (holder->pinned)
        return ws_error_set(err, EBUSY,
                            "%s/%lu cannot be had: one version of it is in memory (copies), and that is %lu, "
                            "which is pinned: "
                            "echo \"unpin %lu\" > /wsync/%s/ctl first",
                            m->name, v->number, holder->number, holder->number, m->name);
    if (v->n_base_for > 0 || v == (to ? to : m->current))
        return 0;
    if (!m->current && holder->n_switches == 0 &&
        (ws_version_is_newer(v, holder) || (!ws_version_is_complete(holder) && !holder->pull)))
        return 0;
    return ws_error_set(
        err, ESTALE,
        "%s/%lu is not in memory, which holds one version of it (copies), and that is %lu%s: echo %lu > "
        "/wsync/%s/version, or echo \"pull %lu\" > /wsync/%s/ctl, has it take its place",
        m->name, v->number, holder->number,
        holder == m->current ? ", which the engines serve"
        : holder == to       ? ", to which it was told to go"
                             : "",
        v->number, m->name, v->number, m->name);
}

/* Can the part be made of what lies in its place in the holder? */
static bool knows_way_of_part(const struct ws_version *holder, unsigned i, const struct ws_version *part)
{
    struct ws_delta *steps[WS_MAX_DELTA_ENTRIES];
    const struct ws_version *there = ws_node_parts_shown(holder, i);
    const struct ws_part_base *base = there ? ws_part_base(there) : NULL;

    if (base)
        return ws_part_base_is(base, part) || ws_way_back_find(base->manifest, part, steps) > 0;
    return there && ws_way_back_find(atomic_load(&there->manifest), part, steps) > 0;
}

static bool knows_way_of_parts(const struct ws_version *holder, const struct ws_version *v)
{
    if (v->in_parts != holder->parts->n)
        return false;
    for (unsigned i = 0; i < holder->parts->n; i++) {
        const struct ws_version *part = ws_node_parts_lookup(v, i);
        if (!part || !knows_way_of_part(holder, i, part))
            return false;
    }
    return true;
}

bool ws_one_copy_knows_way(struct ws_version *v)
{
    struct ws_delta *steps[WS_MAX_DELTA_ENTRIES];
    const struct ws_part_base *base = ws_part_base(v);
    const bool has_memory = v->own_bytes > 0 || ws_part_view(v);

    if (base)
        return ws_part_base_is(base, v) || ws_way_back_find(base->manifest, v, steps) > 0;
    const struct ws_version *from = has_memory ? ws_one_copy_untouched(v) : ws_one_copy_holder(v);
    if (from && from->parts)
        return knows_way_of_parts(from, v);
    return from && atomic_load(&from->manifest) &&
           ws_way_back_find(atomic_load(&from->manifest), v, steps) > 0;
}

int ws_version_direct(struct ws_version *v, struct ws_error *err)
{
    struct ws_model *m = v->model;
    int rc = 0;

    pthread_mutex_lock(&v->store->lock);
    for (const struct ws_version *w = m->versions; w && rc == 0; w = w->next)
        if (w != v && w->n_switches > 0 && ws_one_copy_applies(v))
            rc = ws_error_set(
                err, EBUSY,
                "engines are being switched to %s/%lu, which the one copy is for: write cancel to its ctl, "
                "or wait for the switch's end",
                m->name, w->number);
    if (rc == 0) {
        m->directed = ws_version_id(v);
        v->failed_ns = 0; /* it was refused because the copy was for another */
    }
    pthread_mutex_unlock(&v->store->lock);
    return rc;
}

/* With store->lock. */
static void turn_back(struct ws_model *m)
{
    m->directed.lineage[0] = '\0';
    /* Best effort: its error says why no pull can start, and whoever opens it has one started. */
    if (m->current && ws_one_copy_applies(m->current) &&
        m->store->puller->request(m->current, WS_GOAL_ALL, WS_PRIORITY_SWITCH) < 0)
        ws_log(WS_LOG_DEBUG, "store", "no pull started model=%s version=%lu", m->name, m->current->number);
}

void ws_model_turn_back(struct ws_model *m)
{
    pthread_mutex_lock(&m->store->lock);
    turn_back(m);
    pthread_mutex_unlock(&m->store->lock);
}

void ws_version_turn_back(struct ws_version *v)
{
    const struct ws_version_id id = ws_version_id(v);

    pthread_mutex_lock(&v->store->lock);
    if (ws_version_id_equal(&v->model->directed, &id))
        turn_back(v->model);
    pthread_mutex_unlock(&v->store->lock);
}

void ws_version_refuse_open(struct ws_version *v)
{
    struct ws_store_events events;
    char text[WS_ERROR_TEXT];

    snprintf(text, sizeof(text),
             "%.200s/%lu cannot be opened now: one version of it is in memory (copies), and another is about "
             "to take its place",
             v->model->name, v->number);
    ws_store_events_init(&events);
    pthread_mutex_lock(&v->store->lock);
    free(v->error);
    v->error = strdup(text);
    v->error_code = v->error ? ESTALE : 0;
    ws_store_events_add(&events, WS_VERSION_READ_FAILED, v->model, v);
    pthread_mutex_unlock(&v->store->lock);
    ws_store_events_notify(&events, v->store);
}

static void stay(struct ws_version *v)
{
    pthread_mutex_lock(&v->store->lock);
    if (atomic_fetch_sub(&v->leaving, 1) == 1 && v->error_code == ESTALE) {
        free(v->error);
        v->error = NULL;
        v->error_code = 0;
    }
    pthread_mutex_unlock(&v->store->lock);
}

bool ws_model_one_copy(struct ws_model *m, struct ws_one_copy_info *out)
{
    struct ws_version *any = NULL;
    size_t used = 0;

    memset(out, 0, sizeof(*out));
    pthread_mutex_lock(&m->store->lock);
    for (struct ws_version *v = m->versions; v; v = v->next) {
        any = v;
        if (v->own_bytes > 0)
            out->holder = v;
    }
    const bool applies = any && ws_one_copy_applies(out->holder ? out->holder : any);
    for (struct ws_version *v = m->versions; applies && out->holder && v; v = v->next) {
        if (v == out->holder || !ws_one_copy_knows_way(v))
            continue;
        const int n =
            snprintf(out->way_back + used, sizeof(out->way_back) - used, "%s%lu", used ? "," : "", v->number);
        used += n > 0 && (size_t)n < sizeof(out->way_back) - used ? (size_t)n : 0;
    }
    out->way_back_bytes = ws_way_back_bytes(m);
    if (!applies)
        out->holder = NULL;
    if (out->holder)
        ws_version_get(out->holder);
    pthread_mutex_unlock(&m->store->lock);
    return applies;
}

bool ws_model_has_one_copy(struct ws_model *m)
{
    struct ws_one_copy_info info;
    const bool has = ws_model_one_copy(m, &info);

    if (info.holder)
        ws_version_put(info.holder);
    return has;
}

/* --- the move --- */

struct move {
    struct ws_version *from, *to;
    const atomic_bool *stop;
    bool keeps;               /* else the memory is given back */
    _Atomic(uint64_t) **here; /* NULL: it is not asked for */
    const char *why;
    struct ws_version *const *to_parts; /* NULL: `to` has none that get it */
    struct ws_part_moves *parts;        /* NULL: `from` has none */
    struct ws_manifest *manifest;       /* NULL: from's is not known yet */
    struct ws_safetensors **headers;    /* by file */
    struct ws_region **regions;         /* to be given back, by file */
};

static void free_tables(struct move *m)
{
    const struct ws_manifest *of = atomic_load(&m->from->manifest);

    for (size_t i = 0; i < of->n_files; i++) {
        if (m->headers)
            ws_safetensors_free(m->headers[i]);
        if (m->here)
            free(m->here[i]);
    }
    free(m->headers);
    free(m->here);
    free(m->regions);
    ws_manifest_free(m->manifest);
    ws_part_moves_free(m->parts);
}

/* Of a file: the header that is known, whether its blocks are here or not, since a switch compares with it (switch/gate.h): a version
 * that is on its way back goes again before they are. Else the one that is here. NULL: none, or there is no memory. */
static struct ws_safetensors *header_of(struct ws_version *v, size_t file)
{
    const struct ws_manifest_file *f = &((struct ws_manifest *)atomic_load(&v->manifest))->files[file];
    const struct ws_safetensors *known = atomic_load_explicit(&v->files[file].header, memory_order_acquire);
    struct ws_safetensors *st = NULL;
    struct ws_error err;

    if (known)
        return ws_safetensors_copy(known);
    if (!f->header_bytes || !ws_content_has(v, file, 0, ws_content_header_blocks(f)) ||
        ws_safetensors_parse(ws_region_data(ws_content_region(v, file)), f->header_bytes, f->size_bytes, &st,
                             &err) < 0)
        return NULL;
    return st;
}

/* What the name goes on with. */
static int make_tables(struct move *m, bool with_bytes)
{
    struct ws_version *from = m->from;
    const struct ws_manifest *of = atomic_load(&from->manifest);
    const size_t n = of->n_files + 1;
    bool ok;

    m->headers = calloc(n, sizeof(*m->headers));
    m->regions = calloc(n, sizeof(*m->regions));
    m->here = with_bytes ? calloc(n, sizeof(*m->here)) : NULL;
    ok = m->headers && m->regions && (m->here || !with_bytes) &&
         (!ws_version_has_manifest(from) || ws_manifest_copy(of, &m->manifest) == 0) &&
         ws_part_moves_new(&m->parts, from, m->to_parts) == 0;
    for (size_t i = 0; ok && i < of->n_files; i++) {
        const struct ws_manifest_file *f = &of->files[i];
        if (with_bytes)
            ok = (m->here[i] = calloc((f->n_blocks + 63) / 64 + 1, sizeof(*m->here[i]))) != NULL;
        if (ok && m->manifest)
            m->headers[i] = header_of(from, i);
    }
    return ok ? 0 : -ENOMEM;
}

/* 0: nobody in this process reads its bytes, and it may go; 1: not yet. With store->lock. */
static int check_quiet(const struct move *m, struct ws_error *err)
{
    struct ws_version *from = m->from;
    const struct ws_model *model = from->model;
    int rc = ws_one_copy_may_take(m->to, err);

    if (rc < 0)
        return rc;
    if (atomic_load(m->stop) || !m->to->named)
        return ws_error_set(err, ECANCELED, "the pull of %s/%lu was stopped", model->name, m->to->number);
    if (!from->named || from->own_bytes == 0)
        return ws_error_set(err, ENOENT, "%s/%lu is not in memory any more", model->name, from->number);
    if (from->pull) {
        from->store->puller->stop(from->pull);
        return 1;
    }
    const size_t n_parts = ws_part_moves_quiet(from);
    const size_t known = 1 + (model->current == from) + (model->previous == from) + from->n_switches +
                         atomic_load(&from->leaving) + n_parts;
    return n_parts == SIZE_MAX || atomic_load(&from->refs) != known;
}

/* 0: no process has any of it open or mapped; 1: one has. */
static int check_unheld(const struct move *m, struct ws_error *err)
{
    struct ws_version *from = m->from;
    const struct ws_store_readers *readers = &from->store->readers;
    const struct ws_manifest *of = atomic_load(&from->manifest);

    if (readers->close)
        readers->close(readers->arg, from);
    for (size_t i = 0; i < of->n_files; i++) {
        const struct ws_region *r = ws_content_region(from, i);
        const int rc = r ? ws_region_unheld(r) : 0;
        if (rc == -EBUSY)
            return 1;
        if (rc < 0)
            return ws_error_set(
                err, -rc,
                "the one copy of %s cannot go on to %lu: the kernel does not tell who reads %lu (no leases: "
                "sysctl fs.leases-enable, or a sandbox); mount with copies=2",
                from->model->name, m->to->number, from->number);
    }
    return 0;
}

/* With store->lock. */
static void take_regions(struct move *m, uint64_t own_bytes)
{
    struct ws_version *from = m->from, *to = m->to;
    const struct ws_manifest *of = atomic_load(&from->manifest);

    assert(to->own_bytes == 0);
    for (size_t i = 0; i < of->n_files; i++) {
        struct ws_file_state *f = &from->files[i];
        struct ws_region *r = atomic_exchange(&f->region, NULL);
        for (size_t w = 0; w < (of->files[i].n_blocks + 63) / 64; w++) {
            const uint64_t bits = atomic_exchange(&f->here[w], 0);
            if (m->here)
                atomic_store(&m->here[i][w], bits);
        }
        atomic_store(&f->n_here, 0);
        if (m->keeps)
            atomic_store(&to->files[i].region, r);
        else
            m->regions[i] = r;
    }
    if (m->keeps)
        to->own_bytes = own_bytes;
}

/* What leads back from `from`, of which complete says whether it was whole. The parts' pulls see to theirs. With
 * store->lock. */
static void keep_way_back(const struct move *m, bool complete)
{
    const struct ws_version_id from = ws_version_id(m->from);

    if (!m->keeps)
        ws_way_back_clear(m->from->model);
    else if (!m->to_parts && !complete)
        ws_way_back_go(m->to, &from, m->from->digest);
}

/* So that there are not two copies for a moment. */
static void wait_given_back(struct ws_store *s)
{
    const uint64_t until = ws_clock_ns() + GIVE_BACK_MS * WS_MS_NS;
    struct ws_pool_stats pool;

    ws_pool_stats(s->pool, &pool);
    while (pool.waiting_bytes > 0 && ws_clock_ns() < until) {
        (void)poll(NULL, 0, STEP_MS);
        ws_pool_stats(s->pool, &pool);
    }
}

/* 0: done; 1: not now. */
static int go_on(struct move *m, struct ws_error *err)
{
    struct ws_version *from = m->from;
    struct ws_store *s = from->store;
    const size_t n_files = ((struct ws_manifest *)atomic_load(&from->manifest))->n_files;
    uint64_t own_bytes = 0;
    struct ws_store_events events;

    ws_store_events_init(&events);
    pthread_mutex_lock(&s->lock);
    int rc = check_quiet(m, err);
    if (rc == 0) {
        const bool complete = ws_version_is_complete(from);
        own_bytes = from->own_bytes;
        from->own_bytes = 0; /* before it loses its name: they are not about to come back to the cache */
        struct ws_version *again = ws_version_go_on(from, m->manifest, m->headers, &events);
        m->manifest = NULL;
        if (again) {
            memset(m->headers, 0, n_files * sizeof(*m->headers));
            take_regions(m, own_bytes);
            ws_part_moves_run(m->parts, from, m->to, &events);
            keep_way_back(m, complete);
            if (!m->keeps && complete) {
                again->error = strdup(m->why);
                again->error_code = again->error ? ESTALE : 0;
            }
        } else {
            from->own_bytes = own_bytes;
            rc = ws_error_set(err, ENOMEM, "out of memory, or too many versions of %s", from->model->name);
        }
    }
    pthread_mutex_unlock(&s->lock);
    ws_store_events_notify(&events, s);
    for (size_t i = 0; rc == 0 && i < n_files; i++)
        ws_pool_put(s->pool, m->regions[i]);
    if (rc == 0 && !m->keeps) {
        wait_given_back(s);
        pthread_mutex_lock(&s->lock);
        s->used_bytes -= own_bytes;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
    }
    return rc;
}

static int try_move(struct move *m, struct ws_error *err)
{
    struct ws_store *s = m->from->store;

    pthread_mutex_lock(&s->lock);
    int rc = check_quiet(m, err);
    pthread_mutex_unlock(&s->lock);
    if (rc == 0)
        rc = check_unheld(m, err);
    return rc == 0 ? go_on(m, err) : rc;
}

static int refuse(const struct move *m, struct ws_error *err)
{
    struct ws_version *from = m->from;
    const struct ws_store_readers *readers = &from->store->readers;
    char who[WS_ERROR_TEXT / 2] = "";

    if (readers->describe)
        readers->describe(readers->arg, from, who, sizeof(who));
    return ws_error_set(err, EBUSY,
                        "%s/%lu cannot take the place of %lu, of which one copy is in memory (copies): it is "
                        "still read by %s; "
                        "end the reader, or mount with copies=2",
                        from->model->name, m->to->number, from->number,
                        who[0] ? who : "a process that is not known");
}

static int move_on(struct move *m, struct ws_error *err)
{
    struct ws_version *from = m->from;
    const uint64_t began = ws_clock_ns(), until = began + from->store->options.deadline_ms * WS_MS_NS;
    bool said = false;
    int rc = 1;

    atomic_fetch_add(&from->leaving, 1);
    while ((rc = try_move(m, err)) == 1 && ws_clock_ns() < until) {
        if (!said && ws_clock_ns() - began > SAY_NS)
            ws_log(WS_LOG_INFO, "store", "version %lu waits for readers of %lu to end model=%s",
                   m->to->number, from->number, m->to->model->name);
        said = said || ws_clock_ns() - began > SAY_NS;
        (void)poll(NULL, 0, STEP_MS);
    }
    if (rc == 1)
        rc = refuse(m, err);
    if (rc < 0)
        stay(from);
    return rc;
}

static int run(struct move *m, bool with_bytes, struct ws_error *err)
{
    if (make_tables(m, with_bytes) == 0)
        return move_on(m, err);
    return ws_error_set(err, ENOMEM, "out of memory for %s/%lu", m->to->model->name, m->to->number);
}

int ws_one_copy_move(struct ws_version *from, struct ws_version *to, const atomic_bool *stop,
                     _Atomic(uint64_t) ***here, const char *why, struct ws_error *err)
{
    struct move m = {.from = from, .to = to, .stop = stop, .why = why, .keeps = here != NULL};
    const int rc = run(&m, here != NULL, err);

    if (rc == 0 && here) {
        *here = m.here;
        m.here = NULL;
    }
    free_tables(&m);
    return rc;
}

int ws_one_copy_move_parts(struct ws_version *from, struct ws_version *to, struct ws_version *const *parts,
                           const atomic_bool *stop, struct ws_error *err)
{
    struct move m = {.from = from, .to = to, .stop = stop, .keeps = true, .to_parts = parts};
    const int rc = run(&m, false, err);

    free_tables(&m);
    return rc;
}
