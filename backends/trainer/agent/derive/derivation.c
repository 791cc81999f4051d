#include "backends/trainer/agent/derive/derivation.h"
#include "backends/trainer/agent/core/slots.h"
#include "backends/trainer/agent/delta/encoder.h"
#include "backends/trainer/agent/derive/blocks.h"
#include "transports/base/clock.h"
#include "transports/base/name.h"
#include "transports/base/vector.h"
#include "transports/format/folder_index.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define OWN_SLOTS   2 /* that a trainer needs of its model */
#define CONFIG      "config.json"
#define SUFFIX      ".safetensors"
#define NO_DIGEST   "00000000000000000000000000000000" /* a manifest's has as many characters */
#define PIECE_BYTES (4UL << 20)
#define SLOT_NS     (30 * WS_SECOND_NS) /* for a reader of this host that keeps a slot */

/* Rows of one source tensor, or all of a file that is copied. */
struct piece {
    const struct ws_derive_job *job; /* NULL: a file */
    size_t file;                     /* of the source's manifest, where job is NULL */
    uint64_t row, n_rows;
};
WS_VECTOR(pieces, struct piece);

struct work {
    struct ws_derivation *d;
    struct ws_slot_lease *lease;
    struct ws_slot_lease *base; /* the view's version before, which the delta leads from; NULL: none */
    struct ws_derived_blocks *blocks;
    struct ws_safetensors *
        *headers; /* of the source's files, by the manifest's places; NULL: no safetensors */
    struct ws_derive_source_file *files;
    size_t *places, n_files; /* of `files` in the source's manifest */
    struct ws_derive *derive;
    const struct ws_derived *before; /* what the slot held; NULL: not known, or of another layout */
    struct pieces pieces;
    pthread_mutex_t lock;
    size_t failed_piece; /* guarded by lock: the first that failed, whose error it is */
    int failed;          /* guarded by lock */
    struct ws_error *err;
    _Atomic uint64_t bytes_done, bytes_kept;
};

void ws_derived_reset(struct ws_derived *d)
{
    ws_manifest_free(d->source);
    *d = (struct ws_derived){0};
}

static int no_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "no memory for a view");
}

/* --- the source's lease --- */

static void on_revoked(void *arg)
{
    atomic_store(&((struct ws_derivation *)arg)->stop, true);
}

struct ws_slot *ws_derivation_find_newest(const struct ws_agent_model *source)
{
    for (unsigned i = 0; i < source->n_slots; i++)
        if (ws_slots_is_newest(source, source->slots[i]))
            return source->slots[i];
    return NULL;
}

static int refuse_taken(const struct work *w, struct ws_error *err)
{
    const struct ws_derivation *d = w->d;
    if (atomic_load(&d->agent->stop))
        return ws_error_set(err, ECANCELED, "the agent is stopping");
    return ws_error_set(err, ESTALE, "the trainer took the slot of %s/%" PRIu64 " for a later version",
                        d->source->name, d->id.version);
}

static int take_lease(struct work *w, struct ws_error *err)
{
    struct ws_derivation *d = w->d;
    char holder[WS_MAX_NAME + 16];
    snprintf(holder, sizeof(holder), "the view %s", d->view->name);
    pthread_mutex_lock(&d->agent->lock);
    struct ws_slot *s = NULL;
    for (unsigned i = 0; i < d->source->n_slots && !s; i++) {
        struct ws_slot *one = d->source->slots[i];
        if (one->state == WS_SLOT_SERVED && one->version == d->id.version &&
            strcmp(one->lineage, d->id.lineage) == 0)
            s = one;
    }
    const bool stops = atomic_load(&d->stop);
    w->lease = s && !stops ? ws_slot_lease_new(s, holder, on_revoked, d) : NULL;
    pthread_mutex_unlock(&d->agent->lock);
    if (w->lease)
        return 0;
    return s && !stops ? no_memory(err) : refuse_taken(w, err);
}

static void end_lease(struct work *w)
{
    if (!w->lease)
        return;
    pthread_mutex_lock(&w->d->agent->lock);
    ws_slot_lease_free(w->lease);
    w->lease = NULL;
    if (w->base)
        ws_slot_lease_free(w->base);
    w->base = NULL;
    pthread_cond_broadcast(&w->d->agent->changed);
    pthread_mutex_unlock(&w->d->agent->lock);
}

/* The view's newest version, if a delta leads from it: while the source's lease holds. Nobody takes it meanwhile: as long
 * as view->preparing is set no rank gets a view's slot (core/slots.c) and nobody removes the model. */
static struct ws_derived_base take_base(struct work *w)
{
    struct ws_derivation *d = w->d;
    struct ws_derived_base base = {0};
    pthread_mutex_lock(&d->agent->lock);
    struct ws_slot *s = ws_derivation_find_newest(d->view);
    if (s &&
        ws_encoder_terms(d->agent, d->view, d->view->placement->total_bytes, &base.level, &base.most_bytes) &&
        base.most_bytes > 0)
        w->base = ws_slot_lease_new(s, "the delta to the next version", NULL, NULL);
    pthread_mutex_unlock(&d->agent->lock);
    base.lease = w->base;
    return base;
}

/* --- what is to be made --- */

static bool is_safetensors(const char *name)
{
    const size_t n = strlen(name), k = strlen(SUFFIX);
    return n > k && strcmp(name + n - k, SUFFIX) == 0;
}

static size_t place_of(const struct ws_manifest *m, const char *name)
{
    const struct ws_manifest_file *f = ws_manifest_find(m, name);
    return f ? (size_t)(f - m->files) : SIZE_MAX;
}

static const unsigned char *source_bytes(const struct work *w, size_t file)
{
    struct ws_region *r = w->lease->base.regions[file];
    return r ? ws_region_data(r) : NULL;
}

static int read_headers(struct work *w, struct ws_error *err)
{
    const struct ws_manifest *m = w->d->made.source;
    uint64_t hashes[2] = {0};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        const struct ws_manifest_file *f = &m->files[i];
        if (!is_safetensors(f->name))
            continue;
        rc = ws_safetensors_parse(source_bytes(w, i), f->header_bytes, f->size_bytes, &w->headers[i], err);
        if (rc < 0)
            break;
        hashes[1] = ws_hash(source_bytes(w, i), w->headers[i]->data_begin);
        hashes[0] = ws_hash(hashes, sizeof(hashes));
        w->places[w->n_files] = i;
        w->files[w->n_files++] = (struct ws_derive_source_file){f->name, w->headers[i]};
    }
    w->d->made.headers = hashes[0];
    return rc;
}

static int plan(struct work *w, struct ws_error *err)
{
    struct ws_derivation *d = w->d;
    const struct ws_manifest *m = w->lease->base.manifest;
    w->headers = calloc(m->n_files + 1, sizeof(struct ws_safetensors *));
    w->files = calloc(m->n_files + 1, sizeof(*w->files));
    w->places = calloc(m->n_files + 1, sizeof(*w->places));
    if (!w->headers || !w->files || !w->places || ws_manifest_copy(m, &d->made.source) < 0)
        return no_memory(err);
    d->made.id = d->id;
    m = d->made.source;
    int rc = read_headers(w, err);
    if (rc < 0)
        return rc;
    const size_t config = place_of(m, CONFIG);
    const bool has_config = config != SIZE_MAX && m->files[config].size_bytes > 0;
    const struct ws_derive_source source = {
        w->files, w->n_files, has_config ? (const char *)source_bytes(w, config) : NULL,
        has_config ? m->files[config].size_bytes : 0, ws_manifest_find(m, WS_FOLDER_INDEX_NAME) != NULL};
    return ws_derive_new(&source, d->terms->recipe, &d->terms->select, NO_DIGEST, &w->derive, err);
}

/* --- the slot --- */

static int add_file(struct ws_placement *l, const char *name, uint64_t size, const void *content,
                    size_t content_bytes, struct ws_error *err)
{
    struct ws_placement_file *f = ws_placement_add_file(l, name, "");
    if (!f || (content && !(f->content = malloc(content_bytes + 1))))
        return no_memory(err);
    f->size_bytes = size;
    f->content_bytes = content_bytes;
    if (content)
        memcpy(f->content, content, content_bytes);
    l->total_bytes += size;
    return 0;
}

static int by_name(const void *x, const void *y)
{
    return strcmp(((const struct ws_placement_file *)x)->name, ((const struct ws_placement_file *)y)->name);
}

/* As that of ranks, so that slots are laid out and used again by the same rules. Headers have no digest yet: the layout
 * is the same for all versions. */
static int make_placement(const struct work *w, struct ws_placement **out, struct ws_error *err)
{
    const struct ws_manifest *m = w->d->made.source;
    const struct ws_derive *d = w->derive;
    struct ws_placement *l = *out = calloc(1, sizeof(*l));
    int rc = l ? 0 : no_memory(err);
    for (size_t i = 0; rc == 0 && i < d->n_files; i++) {
        const struct ws_derive_file *f = &d->files[i];
        rc = add_file(l, f->name, f->st->file_bytes, f->header, f->st->data_begin, err);
        if (rc == 0)
            l->files[l->n_files - 1].header_bytes = f->st->data_begin;
    }
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        const char *name = m->files[i].name;
        if (strcmp(name, CONFIG) == 0)
            rc = add_file(l, name, d->config_bytes, d->config, d->config_bytes, err);
        else if (strcmp(name, WS_FOLDER_INDEX_NAME) == 0)
            rc = add_file(l, name, d->index_bytes, d->index, d->index_bytes, err);
        else if (!w->headers[i])
            rc = add_file(l, name, m->files[i].size_bytes, NULL, 0, err);
    }
    if (rc == 0) {
        assert(l->files); /* config.json at least */
        qsort(l->files, l->n_files, sizeof(*l->files), by_name);
        rc = ws_placement_set_id(l, "view\n", err);
    }
    return rc;
}

static const struct ws_derived *find_known(const struct work *w, const struct ws_version_id *id)
{
    const struct ws_derivation *d = w->d;
    for (size_t i = 0; i < d->n_known; i++)
        if (ws_version_id_equal(&d->known[i].id, id) && d->known[i].headers == d->made.headers)
            return &d->known[i];
    return NULL;
}

/* Under lock. A view is never in the trainer's way: each model of ranks can still get its two slots. */
static int check_room(const struct ws_derivation *d, uint64_t bytes, struct ws_error *err)
{
    if (d->view->n_slots >= OWN_SLOTS)
        return 0; /* it takes one of them, in whose place it may be laid out anew */
    for (const struct ws_agent_model *m = d->agent->models; m; m = m->next) {
        const struct ws_placement *l = ws_agent_model_local_placement(m);
        if (l && m->slot_owner && !ws_name_is_view(m->name, NULL, NULL) && m->slot_owner->n_slots < OWN_SLOTS)
            bytes += (OWN_SLOTS - m->slot_owner->n_slots) * l->total_bytes;
    }
    const int rc = ws_slots_check_budget(d->agent, bytes, err);
    if (rc < 0)
        ws_error_prefix(err,
                        "there is no memory for it beside two versions of each model that ranks publish");
    return rc;
}

static int prepare_slot(struct work *w, struct ws_error *err)
{
    struct ws_derivation *d = w->d;
    struct ws_agent *a = d->agent;
    struct ws_placement *l = NULL;
    const uint64_t deadline = ws_clock_ns() + SLOT_NS;
    int rc = make_placement(w, &l, err);
    if (rc < 0) {
        ws_placement_free(l);
        return rc;
    }
    pthread_mutex_lock(&a->lock);
    ws_placement_free(d->view->placement);
    d->view->placement = l;
    rc = check_room(d, l->total_bytes, err);
    if (rc == 0)
        rc = ws_slots_acquire(a, d->view, NULL, &d->slot, deadline, err);
    if (rc == 0)
        rc = ws_slots_prepare(a, d->view, NULL, d->slot, true, deadline, err);
    if (rc == 0)
        rc = ws_slot_begin(d->slot, l, d->view->name, d->id.version, d->id.lineage, err);
    if (rc == 0)
        w->before = find_known(w, &d->slot->content_before);
    pthread_mutex_unlock(&a->lock);
    return rc;
}

static void free_slot(struct ws_derivation *d)
{
    if (!d->slot)
        return;
    pthread_mutex_lock(&d->agent->lock);
    ws_slot_clear(d->slot);
    d->slot->state = WS_SLOT_FREE;
    d->slot = NULL;
    pthread_cond_broadcast(&d->agent->changed);
    pthread_mutex_unlock(&d->agent->lock);
}

/* --- the work; the lease holds --- */

static size_t target_place(const struct work *w, const char *name)
{
    return place_of(w->d->slot->manifest, name);
}

static unsigned char *target_bytes(const struct work *w, const char *name)
{
    struct ws_region *r = w->d->slot->regions[target_place(w, name)];
    return r ? ws_region_data(r) : NULL;
}

/* Have these bytes of a source file the hashes that they had when the slot was filled before? */
static bool is_unchanged(const struct work *w, size_t file, uint64_t begin, uint64_t end)
{
    if (!w->before || begin == end)
        return false;
    const struct ws_manifest_file *now = &w->d->made.source->files[file],
                                  *then = ws_manifest_find(w->before->source, now->name);
    if (!then || then->size_bytes != now->size_bytes)
        return false;
    const size_t first = begin / WS_BLOCK_BYTES, last = (end - 1) / WS_BLOCK_BYTES;
    return memcmp(&now->hashes[first], &then->hashes[first], (last - first + 1) * sizeof(now->hashes[0])) ==
           0;
}

static int run_rows(struct work *w, const struct piece *p, unsigned worker, struct ws_error *err)
{
    const struct ws_derive_job *job = p->job;
    const char *name = w->derive->files[job->file].name;
    const size_t place = w->places[job->file], target = target_place(w, name);
    unsigned char *file = target_bytes(w, name);
    void *dst[WS_RECIPE_MAX_TARGETS] = {0};
    uint64_t begin, end, to[WS_RECIPE_MAX_TARGETS], to_end[WS_RECIPE_MAX_TARGETS];
    int rc = 0;
    ws_derive_source_range(job, p->row, p->n_rows, &begin, &end);
    for (unsigned k = 0; k < job->n_targets; k++) {
        ws_derive_target_range(w->derive, job, k, p->row, p->n_rows, &to[k], &to_end[k]);
        dst[k] = file + to[k];
    }
    if (is_unchanged(w, place, begin, end)) {
        atomic_fetch_add(&w->bytes_kept, end - begin);
    } else {
        atomic_fetch_add(&w->bytes_done, end - begin);
        rc = ws_derive_run(w->derive, job, p->row, p->n_rows, source_bytes(w, place) + begin, dst, err);
    }
    for (unsigned k = 0; rc == 0 && k < job->n_targets; k++)
        ws_derived_blocks_written(w->blocks, target, to[k], to_end[k], worker);
    return rc;
}

/* The view's own config.json and index are there with the slot. */
static bool is_made_with_slot(const char *name)
{
    return strcmp(name, CONFIG) == 0 || strcmp(name, WS_FOLDER_INDEX_NAME) == 0;
}

static void copy_file(struct work *w, size_t file, unsigned worker)
{
    const struct ws_manifest_file *f = &w->d->made.source->files[file];
    const size_t target = target_place(w, f->name);
    if (f->size_bytes && !is_made_with_slot(f->name) && !is_unchanged(w, file, 0, f->size_bytes))
        ws_copy_stream(target_bytes(w, f->name), source_bytes(w, file), f->size_bytes);
    ws_derived_blocks_written(w->blocks, target, 0, w->d->slot->manifest->files[target].size_bytes, worker);
}

static void run_piece(void *arg, size_t i, unsigned worker)
{
    struct work *w = arg;
    const struct piece *p = &w->pieces.ptr[i];
    struct ws_error err = {0};
    int rc = 0;
    if (atomic_load(&w->d->stop))
        rc = -ESTALE;
    else if (p->job)
        rc = run_rows(w, p, worker, &err);
    else
        copy_file(w, p->file, worker);
    if (rc == 0)
        return;
    pthread_mutex_lock(&w->lock);
    if (w->failed == 0 || (i < w->failed_piece && rc != -ESTALE) || w->failed == -ESTALE) {
        w->failed = rc;
        w->failed_piece = i;
        *w->err = err;
    }
    pthread_mutex_unlock(&w->lock);
}

static int cut_pieces(struct work *w, struct ws_error *err)
{
    const struct ws_manifest *m = w->d->made.source;
    for (size_t i = 0; i < w->derive->n_jobs; i++) {
        const struct ws_derive_job *job = &w->derive->jobs[i];
        const uint64_t steps = job->rows ? PIECE_BYTES / (job->row_bytes * job->step_rows) : 0;
        const uint64_t rows = (steps ? steps : 1) * job->step_rows;
        for (uint64_t row = 0; row < job->rows; row += rows) {
            const struct piece p = {job, 0, row, job->rows - row < rows ? job->rows - row : rows};
            if (pieces_append(&w->pieces, p) < 0)
                return no_memory(err);
        }
    }
    for (size_t i = 0; i < m->n_files; i++)
        if (!w->headers[i] && pieces_append(&w->pieces, (struct piece){NULL, i, 0, 0}) < 0)
            return no_memory(err);
    return 0;
}

static int begin_blocks(struct work *w, struct ws_error *err)
{
    const struct ws_derived_base base = take_base(w);
    for (size_t i = 0; i < w->derive->n_files; i++)
        memcpy(target_bytes(w, w->derive->files[i].name), w->derive->files[i].header,
               w->derive->files[i].st->data_begin);
    w->blocks = ws_derived_blocks_new(w->d->slot, &base, ws_workers_count(w->d->workers));
    if (!w->blocks)
        return no_memory(err);
    for (size_t i = 0; i < w->derive->n_files; i++)
        ws_derived_blocks_written(w->blocks, target_place(w, w->derive->files[i].name), 0,
                                  w->derive->files[i].st->data_begin, 0);
    return 0;
}

static int fill(struct work *w, struct ws_error *err)
{
    int rc = ws_derive_set_source(w->derive, w->d->made.source->digest, err);
    if (rc == 0)
        rc = cut_pieces(w, err);
    if (rc == 0)
        rc = begin_blocks(w, err);
    if (rc < 0)
        return rc;
    w->err = err;
    ws_workers_run_indexed(w->d->workers, run_piece, w, w->pieces.len);
    if (w->failed == 0)
        ws_derived_blocks_end(w->blocks);
    return w->failed == -ESTALE ? refuse_taken(w, err) : w->failed;
}

static void free_work(struct work *w)
{
    ws_derived_blocks_free(w->blocks);
    ws_derive_free(w->derive);
    for (size_t i = 0; w->headers && w->d->made.source && i < w->d->made.source->n_files; i++)
        ws_safetensors_free(w->headers[i]);
    free(w->headers);
    free(w->files);
    free(w->places);
    pieces_reset(&w->pieces);
    pthread_mutex_destroy(&w->lock);
}

/* The slot is prepared without a lease: that may take seconds, for which no trainer waits. */
int ws_derivation_run(struct ws_derivation *d, struct ws_error *err)
{
    struct work w = {.d = d};
    pthread_mutex_init(&w.lock, NULL);
    int rc = take_lease(&w, err);
    if (rc == 0)
        rc = plan(&w, err);
    end_lease(&w);
    if (rc == 0)
        rc = prepare_slot(&w, err);
    if (rc == 0)
        rc = take_lease(&w, err);
    if (rc == 0)
        rc = fill(&w, err);
    end_lease(&w);
    d->bytes_done = atomic_load(&w.bytes_done);
    d->bytes_kept = atomic_load(&w.bytes_kept);
    free_work(&w);
    if (rc < 0) {
        free_slot(d);
        ws_derived_reset(&d->made);
    }
    return rc;
}
