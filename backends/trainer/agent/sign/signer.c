/* Signer: signs what this agent announces, where it has a key (--sign-key).
 *
 * The manifest is signed before the version is announced (core/slot.c). The tree of all blocks follows: a thread
 * hashes the slot under a lease that its revocation ends at once, at a low priority and after a moment, because only
 * whole pulls wait for it; a pull that does has it begun at once. Leaves of blocks that did not change are taken over
 * from a version before. A delta is signed as soon as it is whole. Trees and proofs stay in memory, the newest of each
 * model, and are answered at GET /v1/{model}/{version}/signature (transports/sign/proof_path.h). */
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/delta/encoder.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/sign/delta_proof.h"
#include "transports/sign/proof_path.h"
#include "transports/sign/tree.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#define MOST_TREES  WS_MAX_SLOTS /* of a model */
#define MOST_DELTAS 64
#define NICE        10
#define QUIET_NS    WS_SECOND_NS /* in which mounts take their step, for which no tree is needed */

enum proof_state { PENDING, SIGNED, GIVEN_UP };

/* Of a version (base.lineage empty), or of the delta that leads to it from base. */
struct proof {
    TAILQ_ENTRY(proof) entry;
    struct ws_version_id target, base;
    enum proof_state state;
    bool wanted;   /* somebody has asked for it */
    unsigned refs; /* the list's and its users' */
    /* Once the state is SIGNED they do not change, and who has a reference reads them without the lock. */
    struct ws_tree *tree;
    struct ws_manifest *manifest; /* of the tree: says which leaves another version may take over */
    struct ws_delta_proof *delta;
};
TAILQ_HEAD(proofs, proof);

/* A model's. Under lock. */
struct signing {
    struct proofs proofs; /* newest first */
    bool ready;           /* the list is initialized */
    uint64_t n_trees, n_deltas, n_given_up;
};

/* One version whose tree is to be made. */
struct job {
    STAILQ_ENTRY(job) entry;
    struct ws_agent *agent;
    struct ws_agent_model *model;
    struct proof *proof;
    struct ws_slot_lease *lease; /* NULL: it was revoked while the job waited */
    uint64_t due_ns;             /* it is begun then, or as soon as it is asked for */
    atomic_bool stop;
};

/* The agent's. Guarded by its lock once the thread runs. */
struct signer {
    pthread_t thread;
    bool runs;
    STAILQ_HEAD(jobs, job) waiting; /* first come first */
    struct job *current;
};

static struct signer *signer_of(const struct ws_agent *a)
{
    return a->feature_state[WS_FEATURE_sign];
}

static struct signing *signing_of(const struct ws_agent_model *m)
{
    struct signing *s = m->feature_state[WS_FEATURE_sign];

    if (!s->ready)
        TAILQ_INIT(&s->proofs);
    s->ready = true;
    return s;
}

/* --- the list of proofs; under lock --- */

static struct proof *get(struct proof *p)
{
    if (p)
        p->refs++;
    return p;
}

static void put(struct proof *p)
{
    if (!p || --p->refs > 0)
        return;
    ws_tree_free(p->tree);
    ws_manifest_free(p->manifest);
    ws_delta_proof_free(p->delta);
    free(p);
}

static void drop(struct signing *s, struct proof *p)
{
    TAILQ_REMOVE(&s->proofs, p, entry);
    put(p);
}

static struct proof *find(const struct signing *s, const struct ws_version_id *target,
                          const struct ws_version_id *base)
{
    struct proof *p;

    TAILQ_FOREACH(p, &s->proofs, entry)
    if (ws_version_id_equal(&p->target, target) &&
        (base ? ws_version_id_equal(&p->base, base) : !p->base.lineage[0]))
        return p;
    return NULL;
}

/* Drops the oldest beyond those that are kept. */
static void trim(struct signing *s)
{
    unsigned n_trees = 0, n_deltas = 0;

    for (struct proof *p = TAILQ_FIRST(&s->proofs), *next; p; p = next) {
        next = TAILQ_NEXT(p, entry);
        const bool over = p->base.lineage[0] ? ++n_deltas > MOST_DELTAS : ++n_trees > MOST_TREES;
        if (over)
            drop(s, p);
    }
}

/* NULL: no memory. One of before with the same name gives way. */
static struct proof *add(struct signing *s, const struct ws_version_id *target,
                         const struct ws_version_id *base)
{
    struct proof *p = find(s, target, base), *made = calloc(1, sizeof(*made));

    if (!made)
        return NULL;
    if (p)
        drop(s, p);
    made->refs = 1;
    made->target = *target;
    if (base)
        made->base = *base;
    TAILQ_INSERT_HEAD(&s->proofs, made, entry);
    trim(s);
    return made;
}

/* --- trees --- */

/* Under lock. The trainer waits for nothing: a job that is not begun gives the slot back here, the thread's own within
 * one piece of a block. */
static void on_revoked(void *arg)
{
    struct job *j = arg;

    atomic_store(&j->stop, true);
    if (signer_of(j->agent)->current != j) {
        ws_slot_lease_free(j->lease);
        j->lease = NULL;
    }
    pthread_cond_broadcast(&j->agent->changed);
}

static void free_job(struct job *j)
{
    if (j->lease)
        ws_slot_lease_free(j->lease);
    put(j->proof);
    free(j);
}

static void filled(struct ws_agent *a, struct ws_agent_model *ranks, struct ws_slot *slot)
{
    struct ws_agent_model *m = ranks->slot_owner;
    const struct ws_version_id id = ws_version_id_make(slot->version, slot->lineage);
    struct signer *signer = signer_of(a);
    struct job *j = signer->runs ? calloc(1, sizeof(*j)) : NULL;

    if (!j)
        return;
    j->agent = a;
    j->model = m;
    j->due_ns = ws_clock_ns() + QUIET_NS;
    j->lease = ws_slot_lease_new(slot, "its signature", on_revoked, j);
    j->proof = j->lease ? get(add(signing_of(m), &id, NULL)) : NULL;
    if (!j->proof) {
        free_job(j);
        return;
    }
    STAILQ_INSERT_TAIL(&signer->waiting, j, entry);
    pthread_cond_broadcast(&a->changed);
}

struct hashing {
    const struct job *job;
    struct ws_tree *tree;
    const struct proof *before; /* whose leaves may be taken over; NULL: none */
    size_t file;
};

static bool is_unchanged(const struct hashing *h, size_t block)
{
    const struct ws_manifest *m = h->job->lease->base.manifest;

    return h->before && h->before->manifest->files[h->file].hashes[block] == m->files[h->file].hashes[block];
}

static void hash_block(void *arg, size_t block)
{
    const struct hashing *h = arg;
    const struct ws_lease *lease = &h->job->lease->base;
    unsigned char *leaf = h->tree->leaves[h->file][block];

    if (is_unchanged(h, block))
        memcpy(leaf, h->before->tree->leaves[h->file][block], WS_HASH_BYTES);
    else
        (void)ws_tree_leaf_until(
            h->file, block,
            (const unsigned char *)ws_region_data(lease->regions[h->file]) + block * WS_BLOCK_BYTES,
            ws_manifest_block_bytes(&lease->manifest->files[h->file], block), &h->job->stop, leaf);
}

/* The newest tree of a version with the same files. Under lock. */
static struct proof *find_before(const struct signing *s, const struct ws_manifest *m)
{
    struct proof *p;

    TAILQ_FOREACH(p, &s->proofs, entry)
    if (p->state == SIGNED && p->tree && ws_manifest_has_same_files(p->manifest, m))
        return p;
    return NULL;
}

/* Not under lock: the lease keeps the slot. NULL: it was revoked, or there is no memory. */
static struct ws_tree *make_tree(const struct ws_agent *a, struct job *j, const struct proof *before,
                                 struct ws_workers *workers)
{
    const struct ws_manifest *m = j->lease->base.manifest;
    struct hashing h = {.job = j, .tree = ws_tree_new(m), .before = before};

    for (size_t i = 0; h.tree && i < m->n_files; i++) {
        h.file = i;
        ws_workers_run(workers, hash_block, &h, m->files[i].n_blocks);
    }
    if (h.tree && atomic_load(&j->stop)) {
        ws_tree_free(h.tree);
        return NULL;
    }
    if (h.tree)
        ws_tree_sign(h.tree, a->options.sign_key);
    return h.tree;
}

/* Under lock, which it leaves meanwhile. */
static void sign_version(struct ws_agent *a, struct job *j, struct ws_workers *workers)
{
    struct signing *s = signing_of(j->model);
    struct proof *before, *p = j->proof;
    struct ws_manifest *manifest = NULL;
    const uint64_t began = ws_clock_ns();

    if (!j->lease) {
        p->state = GIVEN_UP;
        s->n_given_up++;
        return;
    }
    before = get(find_before(s, j->lease->base.manifest));
    pthread_mutex_unlock(&a->lock);
    struct ws_tree *tree = workers ? make_tree(a, j, before, workers) : NULL;
    if (tree && ws_manifest_copy(j->lease->base.manifest, &manifest) < 0) {
        ws_tree_free(tree);
        tree = NULL;
    }
    pthread_mutex_lock(&a->lock);
    put(before);
    p->tree = tree;
    p->manifest = manifest;
    p->state = tree ? SIGNED : GIVEN_UP;
    *(tree ? &s->n_trees : &s->n_given_up) += 1;
    ws_log(WS_LOG_INFO, "agent", "%s model=%s version=%" PRIu64 " seconds=%.3f",
           tree ? "signed, all blocks"
                : "its blocks are not signed: the slot was wanted, or there was no memory",
           j->model->name, p->target.version, (double)(ws_clock_ns() - began) / 1e9);
    trim(s);
}

static void *signer_main(void *arg)
{
    struct ws_agent *a = arg;
    struct signer *signer = signer_of(a);

    ws_thread_nice(NICE);
    struct ws_workers *workers = ws_workers_new(a->options.n_threads, NICE);
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->stop)) {
        struct job *j = STAILQ_FIRST(&signer->waiting);
        if (!j) {
            pthread_cond_wait(&a->changed, &a->lock);
            continue;
        }
        if (!j->proof->wanted && !atomic_load(&j->stop) && ws_clock_ns() < j->due_ns) {
            (void)ws_agent_wait(a, j->due_ns);
            continue;
        }
        STAILQ_REMOVE_HEAD(&signer->waiting, entry);
        signer->current = j;
        sign_version(a, j, workers);
        signer->current = NULL;
        free_job(j);
        pthread_cond_broadcast(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
    ws_workers_free(workers);
    return NULL;
}

/* --- deltas --- */

static void delta_made(struct ws_agent *a, struct ws_agent_model *m, struct ws_delta *d,
                       const struct ws_lease *base, const struct ws_lease *target)
{
    const struct ws_delta_link *link = ws_delta_link(d);
    struct ws_delta_proof *made;
    struct ws_error err = {0};

    if (!a->options.sign_key)
        return;
    int rc = ws_delta_proof_make(&made, d, base->manifest, target->manifest, a->options.sign_key, &err);
    pthread_mutex_lock(&a->lock);
    struct signing *s = signing_of(m);
    struct proof *p = add(s, &link->target, &link->base);
    if (p) {
        p->delta = made;
        p->state = rc == 0 ? SIGNED : GIVEN_UP;
        *(rc == 0 ? &s->n_deltas : &s->n_given_up) += 1;
    } else {
        ws_delta_proof_free(made);
    }
    pthread_mutex_unlock(&a->lock);
}

/* --- the agent's life --- */

static int start(struct ws_agent *a, struct ws_error *err)
{
    struct signer *signer = signer_of(a);

    STAILQ_INIT(&signer->waiting);
    if (!a->options.sign_key)
        return 0;
    if (ws_thread_start(&signer->thread, signer_main, a) < 0)
        return ws_error_set(err, EAGAIN, "cannot start the agent's threads");
    signer->runs = true;
    const struct ws_public_key *k = ws_secret_key_public(a->options.sign_key);
    ws_log(WS_LOG_INFO, "agent", "versions are signed key=%s name=%s", k->id, k->name);
    return 0;
}

static void stop(struct ws_agent *a)
{
    struct signer *signer = signer_of(a);

    if (!signer->runs)
        return;
    pthread_mutex_lock(&a->lock);
    if (signer->current)
        atomic_store(&signer->current->stop, true);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    pthread_join(signer->thread, NULL);
    pthread_mutex_lock(&a->lock); /* of the leases */
    signer->runs = false;
    for (struct job *j; (j = STAILQ_FIRST(&signer->waiting));) {
        STAILQ_REMOVE_HEAD(&signer->waiting, entry);
        j->proof->state = GIVEN_UP;
        free_job(j);
    }
    pthread_mutex_unlock(&a->lock);
}

static void free_proofs(struct ws_agent_model *m)
{
    struct signing *s = signing_of(m);

    for (struct proof *p; (p = TAILQ_FIRST(&s->proofs));)
        drop(s, p);
}

/* --- what mounts ask --- */

/* Is there such a delta, or will there be? Then its proof comes. Not under lock. */
static bool is_coming(struct ws_agent *a, const char *model, const struct ws_version_id *target,
                      const struct ws_version_id *base)
{
    struct ws_delta *d;
    bool comes = false;

    if (ws_encoder_delta(a, model, target->version, target->lineage, base, 0, &d, &(struct ws_error){0}) ==
        0) {
        comes = ws_delta_state(d) != WS_DELTA_GIVEN_UP;
        ws_delta_put(d);
    }
    return comes;
}

/* *out: a reference. -ENOENT: there is none / -EAGAIN: it is being made / -ESTALE: it was given up. Under lock. */
static int find_signed(struct ws_agent *a, const struct signing *s, const struct ws_version_id *target,
                       const struct ws_version_id *base, struct proof **out)
{
    struct proof *p = find(s, target, base);

    if (!p)
        return -ENOENT;
    if (!p->wanted && p->state == PENDING) {
        p->wanted = true;
        pthread_cond_broadcast(&a->changed);
    }
    if (p->state != SIGNED)
        return p->state == PENDING ? -EAGAIN : -ESTALE;
    *out = get(p);
    return 0;
}

static json_t *proof_json(const struct proof *p)
{
    return p->delta ? ws_delta_proof_to_json(p->delta) : ws_tree_to_json(p->tree);
}

/* Leaves the lock meanwhile: of a large version's tree megabytes of text are made. */
static int signature(struct ws_agent *a, struct ws_agent_model *m, const struct ws_version_id *target,
                     const struct ws_version_id *base, char **text)
{
    struct proof *p;
    int rc = a->options.sign_key ? find_signed(a, signing_of(m), target, base, &p) : -ENOENT;

    if (rc < 0)
        return rc;
    pthread_mutex_unlock(&a->lock);
    json_t *json = proof_json(p);
    *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    pthread_mutex_lock(&a->lock);
    put(p);
    return *text ? 0 : -ENOMEM;
}

/* *out: a reference. Not under lock. */
static int find_asked(struct ws_agent *a, const char *model, struct ws_version_id *target,
                      struct ws_version_id *base, struct proof **out)
{
    int rc = -ENOENT;

    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = ws_agent_model_find(a, model);
    if (m && !target->lineage[0])
        *target = ws_version_id_make(target->version, m->lineage);
    if (base && !base->lineage[0])
        *base = ws_version_id_make(base->version, target->lineage);
    if (m)
        rc = find_signed(a, signing_of(m), target, base, out);
    pthread_mutex_unlock(&a->lock);
    return rc;
}

static int find_json(struct ws_agent *a, const char *model, struct ws_version_id *target,
                     struct ws_version_id *base, json_t **reply)
{
    struct proof *p;
    int rc = find_asked(a, model, target, base, &p);

    if (rc < 0)
        return rc;
    *reply = proof_json(p);
    pthread_mutex_lock(&a->lock);
    put(p);
    pthread_mutex_unlock(&a->lock);
    return *reply ? 0 : -ENOMEM;
}

static int explain(int rc, const char *model, const struct ws_version_id *target, struct ws_error *err)
{
    const char *why = rc == -EAGAIN   ? "is being made, ask again"
                      : rc == -ESTALE ? "was given up: its slot was wanted for the next version"
                      : rc == -ENOMEM ? "has no memory here"
                                      : "is not here (any more)";

    return ws_error_set(err, -rc, "the signature of %s/%" PRIu64 " %s", model, target->version, why);
}

static int route(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply, struct ws_error *err)
{
    struct ws_version_id target = ws_version_id_make(r->q->version, r->q->lineage), base;
    bool has_base;

    if (strcmp(r->method, "GET") != 0 || !r->q->has_version || strcmp(r->q->verb, WS_PROOF_VERB) != 0)
        return WS_ROUTE_OTHER;
    if (ws_proof_base(r->query, &has_base, &base) < 0)
        return ws_error_set(err, EINVAL, "the base of a delta in this request is malformed");
    if (!a->options.sign_key)
        return ws_error_set(err, ENOENT, "this agent signs nothing: start it with --sign-key");
    int rc = find_json(a, r->q->model, &target, has_base ? &base : NULL, reply);
    if (rc == -ENOENT && has_base && is_coming(a, r->q->model, &target, &base))
        rc = -EAGAIN;
    return rc < 0 ? explain(rc, r->q->model, &target, err) : 0;
}

/* --- what is shown --- */

static void put_status(const struct ws_agent *a, json_t *out)
{
    if (!a->options.sign_key)
        return;
    const struct ws_public_key *k = ws_secret_key_public(a->options.sign_key);
    json_object_set_new(out, "sign_key", json_pack("{s:s,s:s}", "id", k->id, "name", k->name));
}

static const struct ws_api_route routes[] = {
    WS_API_ROUTE("GET", "/v1/{model}/{version}/" WS_PROOF_VERB, READ), {0}};

const struct ws_agent_feature ws_feature_sign = {
    .agent_bytes = sizeof(struct signer),
    .model_bytes = sizeof(struct signing),
    .start = start,
    .stop = stop,
    .free = free_proofs,
    .filled = filled,
    .delta_made = delta_made,
    .signature = signature,
    .status = put_status,
    .routes = routes,
    .route = route,
};
