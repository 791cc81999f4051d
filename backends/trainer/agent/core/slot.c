#include "backends/trainer/agent/core/slot.h"
#include "backends/trainer/agent/core/slot_record.h"
#include "transports/sign/statement.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ws_slot_state_name(enum ws_slot_state s)
{
    static const char *const names[] = {"free", "writing", "hashing", "sealed", "served", "retired"};
    return names[s];
}

static void free_regions(struct ws_slot *s)
{
    for (size_t i = 0; i < s->n_files; i++)
        ws_region_free(s->regions[i]);
    ws_region_free(s->record);
    free(s->regions);
    s->record = NULL;
    s->regions = NULL;
    s->n_files = 0;
    s->total_bytes = 0;
    s->placement_id[0] = 0;
    s->content = (struct ws_version_id){0};
}

bool ws_slot_fits(const struct ws_slot *s, const struct ws_placement *l)
{
    return s->regions && strcmp(s->placement_id, l->id) == 0;
}

void ws_slot_empty(struct ws_slot *s)
{
    free_regions(s);
}

static int new_region(const struct ws_placement_file *f, unsigned n_threads, struct ws_region **out,
                      struct ws_error *err)
{
    int rc = ws_region_new(out, f->size_bytes, err);
    if (rc == 0)
        rc = ws_region_prefault(*out, n_threads, err);
    if (rc == 0 && f->content)
        memcpy(ws_region_data(*out), f->content, f->content_bytes);
    if (rc == 0)
        (void)ws_region_store(
            *out, WS_SLOT_FILE_PREFIX); /* where it is not kept, the version ends with the agent */
    return rc;
}

struct move {
    unsigned char *to;
    const unsigned char *from;
    uint64_t bytes;
};

static void move_block(void *arg, size_t i)
{
    const struct move *m = arg;
    const uint64_t at = i * WS_BLOCK_BYTES, n = m->bytes - at;
    ws_copy_stream(m->to + at, m->from + at, n < WS_BLOCK_BYTES ? n : WS_BLOCK_BYTES);
}

static int exchange(struct ws_slot *s, size_t i, const struct ws_placement_file *f,
                    struct ws_workers *workers, unsigned n_threads, struct ws_error *err)
{
    struct ws_region *fresh = NULL;
    int rc = new_region(f, n_threads, &fresh, err);
    if (rc < 0) {
        ws_region_free(fresh);
        return rc;
    }
    struct move m = {ws_region_data(fresh), ws_region_data(s->regions[i]), f->size_bytes};
    ws_workers_run(workers, move_block, &m, (m.bytes + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES);
    ws_region_free(s->regions[i]);
    s->regions[i] = fresh;
    return 0;
}

int ws_slot_exchange(struct ws_slot *s, const struct ws_placement *l, unsigned n_threads,
                     const struct ws_slot_budget *budget, struct ws_error *err)
{
    assert(s->state == WS_SLOT_WRITING && s->n_leases == 0 && ws_slot_fits(s, l));
    struct ws_workers *workers = ws_workers_new(n_threads, 0);
    int rc = workers ? 0 : ws_error_set(err, ENOMEM, "no memory for the threads of a copy");
    for (size_t i = 0; rc == 0 && i < l->n_files; i++) {
        if (!s->regions[i])
            continue;
        rc = budget->reserve(budget->arg, l->files[i].size_bytes, err);
        if (rc < 0)
            break;
        rc = exchange(s, i, &l->files[i], workers, n_threads, err);
        budget->release(budget->arg, l->files[i].size_bytes);
    }
    ws_workers_free(workers);
    return rc;
}

int ws_slot_lay_out(struct ws_slot *s, const struct ws_placement *l, unsigned n_threads, struct ws_error *err)
{
    int rc = 0;
    assert(s->state == WS_SLOT_WRITING && s->n_leases == 0 && !s->regions);
    s->regions = calloc(l->n_files, sizeof(struct ws_region *));
    if (!s->regions)
        return ws_error_set(err, ENOMEM, "no memory for a slot");
    s->n_files = l->n_files;
    for (size_t i = 0; rc == 0 && i < l->n_files; i++)
        if (l->files[i].size_bytes)
            rc = new_region(&l->files[i], n_threads, &s->regions[i], err);
    s->total_bytes = l->total_bytes;
    memcpy(s->placement_id, l->id, sizeof(s->placement_id));
    memcpy(s->base_id, l->base_id, sizeof(s->base_id));
    s->fresh = true;
    if (rc < 0)
        free_regions(s);
    else
        s->record = ws_slot_record_new(l);
    return rc;
}

void ws_slot_serve(struct ws_slot *s, const char *nodes)
{
    s->content = ws_version_id_make(s->version, s->lineage);
    memcpy(s->content_digest, s->manifest->digest, sizeof(s->content_digest));
    s->state = WS_SLOT_SERVED;
    ws_slot_record_serve(s, nodes);
}

void ws_slot_retire(struct ws_slot *s)
{
    ws_slot_record_unserve(s);
    s->state = WS_SLOT_RETIRED;
}

void ws_slot_rebase(struct ws_slot *s, const struct ws_placement *l)
{
    if (!ws_slot_fits(s, l) || strcmp(s->base_id, l->base_id) == 0)
        return;
    s->fresh = true;
    s->content = (struct ws_version_id){0};
    memcpy(s->base_id, l->base_id, sizeof(s->base_id));
}

bool ws_slot_is_useful(const struct ws_slot *s, const struct ws_placement *l, bool changes)
{
    return ws_slot_fits(s, l) && !s->fresh && (changes || l->n_frozen > 0);
}

static void free_hashed(struct ws_slot *s, size_t n)
{
    for (size_t i = 0; s->hashed && i < n; i++)
        free(s->hashed[i]);
    free(s->hashed);
    s->hashed = NULL;
}

int ws_slot_begin(struct ws_slot *s, const struct ws_placement *l, const char *model, uint64_t version,
                  const char *lineage, struct ws_error *err)
{
    assert(!s->manifest && !s->hashed && !ws_slot_record_is_served(s));
    int rc = ws_manifest_new(&s->manifest, model, version, lineage, err);
    for (size_t i = 0; rc == 0 && i < l->n_files; i++) {
        struct ws_manifest_file *f;
        rc = ws_manifest_add(s->manifest, l->files[i].name, l->files[i].size_bytes, l->files[i].header_bytes,
                             &f, err);
    }
    struct ws_manifest *m = s->manifest;
    if (rc == 0 && !(s->hashed = calloc(m->n_files ? m->n_files : 1, sizeof(*s->hashed))))
        rc = ws_error_set(err, ENOMEM, "no memory for a manifest");
    for (size_t i = 0; rc == 0 && i < m->n_files; i++)
        if (!(s->hashed[i] = calloc(m->files[i].n_blocks + 1, 1)))
            rc = ws_error_set(err, ENOMEM, "no memory for a manifest");
    for (size_t i = 0; rc == 0 && i < l->n_frozen; i++)
        rc = ws_manifest_freeze(m, l->frozen[i], err);
    s->version = version;
    snprintf(s->lineage, sizeof(s->lineage), "%s", lineage);
    s->content_before = s->content;
    s->content = (struct ws_version_id){0};
    return rc;
}

int ws_slot_record_hash(struct ws_slot *s, uint64_t file, uint64_t block, uint64_t hash)
{
    if (file >= s->manifest->n_files || block >= s->manifest->files[file].n_blocks)
        return -EINVAL;
    s->manifest->files[file].hashes[block] = hash;
    s->hashed[file][block] = 1;
    return 0;
}

int ws_slot_idle(const struct ws_slot *s)
{
    int all = 0;
    for (size_t i = 0; i < s->n_files; i++) {
        int rc = s->regions[i] ? ws_region_idle(s->regions[i]) : 0;
        if (rc == -EBUSY)
            return rc;
        all = rc < 0 ? rc : all;
    }
    return all;
}

bool ws_slot_is_reusable(const struct ws_slot *s)
{
    bool stays = s->regions && ws_region_leases_work();
    for (size_t i = 0; i < s->n_files; i++)
        stays = stays && !(s->regions[i] && ws_region_was_shown(s->regions[i]));
    return stays;
}

struct hash_job {
    struct ws_slot *slot;
    size_t file;
};

static void hash_block(void *arg, size_t block)
{
    struct hash_job *j = arg;
    struct ws_manifest_file *f = &j->slot->manifest->files[j->file];
    if (j->slot->hashed[j->file][block])
        return;
    f->hashes[block] = ws_hash(ws_region_data(j->slot->regions[j->file]) + block * WS_BLOCK_BYTES,
                               ws_manifest_block_bytes(f, block));
}

int ws_slot_seal(struct ws_slot *s, struct ws_workers *workers, const struct ws_secret_key *key,
                 struct ws_error *err)
{
    struct ws_manifest *m = s->manifest;
    assert(s->state == WS_SLOT_HASHING);
    for (size_t i = 0; i < m->n_files; i++) {
        struct hash_job job = {s, i};
        ws_workers_run(workers, hash_block, &job, m->files[i].n_blocks);
    }
    free_hashed(s, m->n_files);
    ws_manifest_seal(m);
    int rc = key ? ws_manifest_sign(m, key, err) : 0;
    if (rc < 0)
        return rc;
    return ws_manifest_to_json(m, &s->json, &s->json_bytes, err);
}

void ws_slot_clear(struct ws_slot *s)
{
    assert(s->n_leases == 0);
    free_hashed(s, s->manifest ? s->manifest->n_files : 0);
    ws_manifest_free(s->manifest);
    s->manifest = NULL;
    ws_rank_deltas_free(s->rank_deltas);
    s->rank_deltas = NULL;
    ws_view_records_free(s->view_records);
    s->view_records = NULL;
    free(s->json);
    s->json = NULL;
    s->json_bytes = 0;
}

void ws_slot_free(struct ws_slot *s)
{
    if (!s)
        return;
    ws_slot_clear(s);
    free_regions(s);
    free(s);
}

struct ws_slot_lease *ws_slot_lease_new(struct ws_slot *s, const char *holder, void (*revoked)(void *),
                                        void *arg)
{
    struct ws_slot_lease *h = calloc(1, sizeof(*h));
    if (!h)
        return NULL;
    *h = (struct ws_slot_lease){
        .base = {.manifest = s->manifest,
                 .manifest_json = s->json,
                 .manifest_json_bytes = s->json_bytes,
                 .regions = s->regions},
        .slot = s,
        .next = s->leases,
        .revoked = revoked,
        .arg = arg,
    };
    snprintf(h->holder, sizeof(h->holder), "%s", holder);
    if (s->leases)
        s->leases->prev = h;
    s->leases = h;
    s->n_leases++;
    return h;
}

void ws_slot_lease_free(struct ws_slot_lease *h)
{
    struct ws_slot *s = h->slot;
    if (h->prev)
        h->prev->next = h->next;
    else
        s->leases = h->next;
    if (h->next)
        h->next->prev = h->prev;
    assert(s->n_leases > 0);
    s->n_leases--;
    free(h);
}

bool ws_slot_has_firm_leases(const struct ws_slot *s)
{
    for (const struct ws_slot_lease *h = s->leases; h; h = h->next)
        if (!h->revoked)
            return true;
    return false;
}

void ws_slot_revoke(struct ws_slot *s)
{
    for (struct ws_slot_lease *h = s->leases, *next; h; h = next) {
        next = h->next; /* it may be dropped at once */
        if (h->revoked) {
            void (*revoked)(void *) = h->revoked;
            h->revoked = NULL; /* once */
            revoked(h->arg);
        }
    }
}

void ws_slot_holders(const struct ws_slot *s, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = 0;
    for (const struct ws_slot_lease *h = s->leases; h && n < cap; h = h->next)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", h->holder);
    bool in_work = s->state == WS_SLOT_WRITING || s->state == WS_SLOT_HASHING || s->state == WS_SLOT_SEALED;
    if (!s->leases && !in_work && ws_slot_idle(s) == -EBUSY) /* in work its regions are others' */
        snprintf(out, cap, "a process that still maps it");
}
