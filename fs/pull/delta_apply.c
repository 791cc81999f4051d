/* ws_delta_apply_new chooses, ws_delta_apply_run does it. Lanes fetch the last delta of the chain in parts
 * and patch each block as its record comes; then all threads patch the blocks without a record. Deltas before
 * the last are fetched first. Only a mount that missed some versions has to do so, and it keeps what it
 * fetched. */
#include "fs/pull/delta_apply.h"
#include "fs/pull/delta_lanes.h"
#include "fs/pull/delta_patch.h"
#include "fs/store/cache_budget.h"
#include "fs/store/content.h"
#include "fs/store/delta_cache.h"
#include "fs/store/one_copy.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "fs/store/wants.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One of each thread, and of each part that a parent has. */
static unsigned count_workers(const struct ws_delta_apply *p)
{
    const unsigned threads = p->version->store->options.threads;

    return threads > WS_FANOUT_STRIPES ? threads : WS_FANOUT_STRIPES;
}

static int make_tables(struct ws_delta_apply *p)
{
    const struct ws_manifest *m = p->manifest;

    p->base_file = calloc(m->n_files + 1, sizeof(*p->base_file));
    p->tried = calloc(m->n_files + 1, sizeof(*p->tried));
    p->workers = calloc(count_workers(p), sizeof(*p->workers));
    for (size_t i = 0; p->base_file && p->tried && i < m->n_files; i++) {
        const struct ws_manifest_file *f = ws_manifest_find(p->plan.base, m->files[i].name);
        p->base_file[i] = f ? (size_t)(f - p->plan.base->files) : WS_DELTA_NO_FILE;
        p->tried[i] = calloc(m->files[i].n_blocks + 1, sizeof(*p->tried[i]));
        if (!p->tried[i])
            return -ENOMEM;
    }
    return p->base_file && p->tried && p->workers ? 0 : -ENOMEM;
}

int ws_delta_apply_new(struct ws_delta_apply **out, struct ws_source_select *sel, char why[WS_HOW_CHARS],
                       struct ws_error *err)
{
    struct ws_version *v = sel->version;
    struct ws_error none = {0};
    struct ws_delta_apply *p;
    struct ws_delta_chain *chain;
    uint64_t room;
    bool wanted, knows_way;
    int rc = 0;

    *out = NULL;
    why[0] = '\0';
    pthread_mutex_lock(&v->store->lock);
    knows_way = ws_one_copy_knows_way(v);
    room = ws_model_delta_room(v->model);
    wanted = (room > 0 && ws_delta_plan_may_have_base(v)) || !ws_source_select_comes_whole(sel) || knows_way;
    pthread_mutex_unlock(&v->store->lock);
    if (!wanted)
        return 0;
    p = calloc(1, sizeof(*p));
    chain = atomic_exchange(&v->listed_deltas, NULL);
    const bool is_listed = chain;
    if (!chain)
        chain = calloc(1, sizeof(*chain));
    if (p && chain) {
        p->selection = sel;
        p->version = v;
        p->manifest = atomic_load(&v->manifest);
        pthread_mutex_init(&p->lock, NULL);
        pthread_mutex_init(&p->budget_lock, NULL);
        atomic_init(&p->budget_bytes, room);
        if (!knows_way && !is_listed && ws_delta_chain_query(sel, chain, &none) < 0)
            ws_log(WS_LOG_DEBUG, "store", "no list of deltas model=%s version=%lu error=\"%s\"",
                   v->model->name, v->number, none.text);
        rc = ws_delta_plan_make(&p->plan, sel, chain, why, err);
        if (rc > 0 && p->plan.base_was_whole)
            ws_undo_begin(sel, p->plan.base); /* first: blocks may be fetched whole, too */
        if (rc > 0)
            ws_part_base_forget(v);
        if (rc > 0 && make_tables(p) == 0)
            *out = p;
        else
            ws_delta_apply_free(p);
    } else {
        free(p);
    }
    free(chain);
    if (*out && p->plan.one_copy)
        p->undo = ws_undo_open(sel, count_workers(p));
    return rc < 0 ? rc : 0;
}

void ws_delta_apply_free(struct ws_delta_apply *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->plan.n_steps; i++) {
        ws_delta_put(p->chain[i]);
        ws_delta_proof_free(p->proofs[i]);
    }
    for (size_t i = 0; p->tried && i < p->manifest->n_files; i++)
        free(p->tried[i]);
    free(p->tried);
    free(p->base_file);
    free(p->only);
    ws_delta_plan_release(&p->plan);
    for (unsigned i = 0; p->workers && i < count_workers(p); i++) {
        ws_patcher_free(p->workers[i].patcher);
        free(p->workers[i].made);
        free(p->workers[i].was);
        free(p->workers[i].runs);
    }
    free(p->workers);
    ws_undo_close(p->undo);
    if (p->borrowed)
        ws_cache_budget_return(p->version->store, p->borrowed);
    pthread_mutex_destroy(&p->budget_lock);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* --- deltas that are kept --- */

/* Begins to fetch a delta, which mounts that pull from this one see. */
static int add_delta(struct ws_delta_apply *p, size_t i)
{
    struct ws_store *s = p->version->store;
    /* All versions of a chain have the same files, else there would be no chain. */
    int rc = ws_delta_new(&p->chain[i], &p->plan.steps[i].entry.link, p->manifest, NULL);

    if (rc < 0 || ws_delta_blocks(p->chain[i]) != p->plan.steps[i].entry.n_blocks)
        return -EPROTO;
    pthread_mutex_lock(&s->lock);
    ws_delta_set_add(&p->version->model->deltas, ws_delta_get(p->chain[i]));
    ws_model_trim_deltas(p->version->model);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

/* --- signatures --- */

/* Has the delta a proof that leads on from the step before, or from the base? */
static bool follows(const struct ws_delta_apply *p, size_t i)
{
    unsigned char id[WS_HASH_BYTES];
    const struct ws_delta_proof *proof = p->proofs[i];

    if (i > 0)
        memcpy(id, p->proofs[i - 1]->target_id, sizeof(id));
    else
        ws_manifest_id(p->plan.base, id);
    if (memcmp(id, proof->base_id, sizeof(id)) != 0)
        return false;
    ws_manifest_id(p->manifest, id);
    return i + 1 < p->plan.n_steps || memcmp(id, proof->target_id, sizeof(id)) == 0;
}

/* Gets the proof of a delta, by which each record is checked before its block is patched. False: there is none, and the
 * delta is not used. */
static bool prove(struct ws_delta_apply *p, size_t i)
{
    const struct ws_version *v = p->version;
    struct ws_error err = {0};
    int rc = 0;

    if (!ws_version_must_be_signed(v) || p->plan.steps[i].is_way_back)
        return true;
    if (i > 0 && !p->proofs[i - 1])
        return false;
    rc = ws_signatures_get_delta(p->selection, &p->plan.steps[i].entry.link, &p->proofs[i], &err);
    if (rc == 0 && !follows(p, i)) {
        rc = ws_error_set(&err, EBADMSG, "the signature of a delta is that of other versions");
        ws_delta_proof_free(p->proofs[i]);
        p->proofs[i] = NULL;
    }
    if (rc < 0) {
        ws_log(WS_LOG_INFO, "store", "delta not taken model=%s version=%lu errno=%s error=\"%s\"",
               v->model->name, v->number, ws_errno_name(-rc), err.text);
        ws_delta_lanes_record_error(p, &err);
    }
    return rc == 0;
}

/* --- the whole --- */

/* How long a source takes to make a delta is seen by fetching it meanwhile. */
static bool fetch(struct ws_delta_apply *p, size_t i)
{
    struct ws_speeds *speeds = &p->version->store->speeds;
    const uint64_t began_ns = ws_clock_ns();
    const bool whole = ws_delta_lanes_fetch(p, i);

    if (whole && p->plan.steps[i].entry.stats.state == WS_DELTA_GROWING)
        ws_speeds_record(speeds, &speeds->making, ws_version_wanted_bytes(p->version),
                         (double)(ws_clock_ns() - began_ns) / 1e9);
    return whole;
}

static bool fetch_chain(struct ws_delta_apply *p)
{
    bool whole = true;

    for (size_t i = 0; i < p->plan.n_steps; i++) {
        if (p->plan.steps[i].held)
            p->chain[i] = ws_delta_get(p->plan.steps[i].held);
        else
            whole = whole && add_delta(p, i) == 0;
    }
    atomic_store(&p->version->way_chosen, true);
    for (size_t i = 0; i < p->plan.n_steps; i++) {
        if (p->plan.steps[i].held || !p->chain[i])
            continue;
        whole = whole && fetch(p, i);
        /* One that lacks records says nothing of the blocks without one. */
        ws_delta_end(p->chain[i], whole && ws_delta_lanes_take_all(p) ? WS_DELTA_WHOLE : WS_DELTA_GIVEN_UP);
    }
    for (size_t i = 0; i < p->plan.n_steps && !atomic_load(&p->selection->stop); i++)
        whole = prove(p, i) && whole;
    return whole;
}

struct rest {
    struct ws_delta_apply *apply;
    size_t file;
    bool whole; /* a block without a record is unchanged */
};

static bool has_last_record(const struct ws_delta_apply *p, size_t file, size_t block)
{
    const struct ws_delta *last = p->chain[p->plan.n_steps - 1];

    return last && ws_delta_at(last, file, block);
}

static void patch_rest(void *arg, size_t block, unsigned worker)
{
    struct rest *r = arg;
    struct ws_delta_apply *p = r->apply;
    const struct ws_manifest_file *f = &p->manifest->files[r->file];
    size_t base = p->base_file[r->file];
    bool same =
        ws_delta_base_has(p, r->file, block) && p->plan.base->files[base].hashes[block] == f->hashes[block];
    struct ws_delta_worker *w;

    if (atomic_load(&p->selection->stop) || (!r->whole && !same && !has_last_record(p, r->file, block)))
        return;
    w = ws_delta_worker_get(p, worker);
    if (w)
        ws_delta_patch_block(p, w, r->file, block);
}

/* Has each record of the last delta made its block? Blocks that came otherwise tell nothing of theirs; and a chain makes
 * right blocks of right ones only where the deltas before the last are known to. */
static bool is_verified(const struct ws_delta_apply *p)
{
    const size_t last = p->plan.n_steps - 1;
    struct ws_delta_stats stats;

    for (size_t i = 0; i < last; i++)
        if (!p->chain[i] || !(p->plan.steps[i].is_way_back || ws_delta_is_verified(p->chain[i])))
            return false;
    if (!p->chain[last])
        return false;
    ws_delta_stats(p->chain[last], &stats);
    return stats.state == WS_DELTA_WHOLE && atomic_load(&p->n_verified) == stats.n_records;
}

void ws_delta_apply_run(struct ws_delta_apply *p, const char **transport)
{
    const struct ws_store_options *o = &p->version->store->options;
    struct ws_speeds *speeds = &p->version->store->speeds;
    bool whole = fetch_chain(p);
    struct ws_workers *workers = ws_workers_new(o->threads, o->nice);

    for (size_t i = 0; workers && i < p->manifest->n_files; i++) {
        struct rest r = {.apply = p, .file = i, .whole = whole};
        ws_workers_run_indexed(workers, patch_rest, &r, p->manifest->files[i].n_blocks);
    }
    ws_workers_free(workers);
    if (is_verified(p))
        ws_delta_set_verified(p->chain[p->plan.n_steps - 1]);
    pthread_mutex_lock(&p->version->store->lock);
    for (size_t i = 0; i < p->plan.n_steps && !ws_delta_lanes_take_all(p); i++)
        if (p->chain[i] && !p->plan.steps[i].held)
            ws_delta_set_drop(&p->version->model->deltas, p->chain[i]); /* of no use to another version */
    ws_model_trim_deltas(p->version->model);                            /* how large they are is known now */
    pthread_mutex_unlock(&p->version->store->lock);
    ws_speeds_record(speeds, p->plan.copied ? &speeds->copy : &speeds->patch, atomic_load(&p->patched_bytes),
                     (double)atomic_load(&p->patched_ns) / 1e9);
    if (p->transport)
        *transport = p->transport;
}

int ws_delta_apply_result(struct ws_delta_apply *p, struct ws_error *err)
{
    struct ws_version *v = p->version;
    int code;

    if (ws_version_has_wanted(v))
        return 0;
    if (atomic_load(&p->selection->stop))
        return ws_source_select_canceled(p->selection, err);
    pthread_mutex_lock(&p->lock);
    code = p->err.code;
    if (code)
        ws_error_set(err, code, "%s/%lu is at its sources only as a delta: %s", v->model->name, v->number,
                     p->err.text);
    pthread_mutex_unlock(&p->lock);
    if (code)
        return -code;
    return ws_error_set(
        err, EBADMSG,
        "%s/%lu is at its sources only as a delta, and with what it is made of (%lu) that gives "
        "other bytes than its manifest's",
        v->model->name, v->number, p->plan.base->version);
}
