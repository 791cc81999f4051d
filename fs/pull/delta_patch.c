#include "fs/pull/delta_patch.h"
#include "fs/store/content.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "fs/store/wants.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BITS 64

struct ws_delta_worker *ws_delta_worker_get(struct ws_delta_apply *p, unsigned index)
{
    struct ws_delta_worker *w = &p->workers[index];

    if (!w->patcher)
        w->patcher = ws_patcher_new();
    const bool of_part = ws_part_view(p->version);
    if (!w->made && p->plan.one_copy)
        w->made = malloc(WS_BLOCK_BYTES);
    if (!w->was && p->plan.one_copy && of_part)
        w->was = malloc(WS_BLOCK_BYTES);
    if (!w->runs && !p->plan.one_copy && of_part)
        w->runs = malloc(sizeof(*w->runs));
    const bool has_all = p->plan.one_copy ? w->made && (w->was || !of_part) : w->runs || !of_part;
    return w->patcher && has_all ? w : NULL;
}

bool ws_delta_base_has(const struct ws_delta_apply *p, size_t file, size_t block)
{
    size_t f = p->base_file[file];

    if (f == WS_DELTA_NO_FILE)
        return false;
    if (p->plan.copied)
        return ws_content_has(p->plan.copied, f, block, 1);
    return !p->plan.here || (atomic_load(&p->plan.here[f][block / BITS]) & 1UL << (block % BITS));
}

static const unsigned char *base_data(const struct ws_delta_apply *p, size_t file, size_t block)
{
    if (!p->plan.copied || p->base_file[file] == WS_DELTA_NO_FILE)
        return NULL;
    return ws_region_data(ws_content_region(p->plan.copied, p->base_file[file])) + block * WS_BLOCK_BYTES;
}

/* A block of a part, on its way from the base into the files of the whole version. */
struct part_block {
    const struct ws_delta_apply *apply;
    size_t file;
    uint64_t begin; /* in the file */
    bool misfits;   /* the part is described otherwise than its base */
};

static void load_part(void *arg, size_t at, size_t n, unsigned char *to)
{
    const struct part_block *b = arg;
    struct ws_version *base = b->apply->plan.copied;

    if (base)
        ws_part_view_read(base, b->apply->base_file[b->file], b->begin + at, n, to);
    else
        ws_part_view_read(b->apply->version, b->file, b->begin + at, n, to); /* it lies in the part's place */
}

static void store_part(void *arg, size_t at, size_t n, const unsigned char *from)
{
    struct part_block *b = arg;

    if (!ws_part_view_write(b->apply->version, b->file, b->begin + at, n, from))
        b->misfits = true;
}

/* A block of a part, where it is patched if it lies in few runs. */
struct lying {
    struct ws_version *version;
    const struct ws_part_runs *runs;
};

static void patched(void *arg, size_t run, size_t at, size_t n)
{
    const struct lying *l = arg;

    ws_part_view_wrote(l->version, l->runs, run, at, n);
}

/* -EXDEV: it does not, and nothing was written. */
static int patch_lying(struct ws_delta_apply *p, struct ws_delta_worker *w, size_t file, size_t block,
                       size_t len, const struct ws_delta_record *const *records, uint64_t *hash)
{
    struct lying l = {.version = p->version, .runs = w->runs};

    if (p->plan.copied || !ws_part_view_runs(p->version, file, block, w->runs))
        return -EXDEV;
    const struct ws_delta_runs runs = {.runs = w->runs->runs, .n = w->runs->n, .patched = patched, .arg = &l};
    return ws_patcher_block_runs(w->patcher, &runs, len, records, p->plan.n_steps, hash, NULL);
}

/* The block as it is in the one copy: in the region, or gathered into w->was. */
static const unsigned char *old_bytes(struct ws_delta_apply *p, struct ws_delta_worker *w, size_t file,
                                      size_t block)
{
    return ws_content_block(p->version, file, block, w->was);
}

/* Stores the block with the records that change it: the one copy's in w->made. */
static int patch(struct ws_delta_apply *p, struct ws_delta_worker *w, size_t file, size_t block, size_t len,
                 const struct ws_delta_record *const *records, uint64_t *hash)
{
    const size_t n = p->plan.n_steps;
    struct part_block part = {.apply = p, .file = file, .begin = block * WS_BLOCK_BYTES};
    const struct ws_delta_flow flow = {.load = load_part, .store = store_part, .arg = &part};
    int rc;

    if (p->plan.one_copy)
        return ws_patcher_block(w->patcher, w->made, old_bytes(p, w, file, block), len, records, n, hash,
                                NULL);
    if (!ws_part_view(p->version)) {
        unsigned char *dst = ws_region_data(ws_content_region(p->version, file)) + part.begin;
        return ws_patcher_block(w->patcher, dst, base_data(p, file, block), len, records, n, hash, NULL);
    }
    rc = patch_lying(p, w, file, block, len, records, hash);
    if (rc != -EXDEV)
        return rc;
    rc = ws_patcher_block_by(w->patcher, &flow, len, records, n, hash, NULL);
    return rc == 0 && part.misfits ? -ESTALE : rc;
}

/* Do the records of the block make what was signed? The base was verified when it came, so it is enough that each
 * step has the signed record, or none where none was signed. Records are checked here, whoever brought them when. */
static bool are_signed(const struct ws_delta_apply *p, size_t file, size_t block,
                       const struct ws_delta_record *const *records)
{
    bool all = true;

    if (!ws_version_must_be_signed(p->version))
        return true;
    for (size_t i = 0; all && i < p->plan.n_steps; i++)
        all = p->plan.steps[i].is_way_back || p->proofs[i]; /* what was verified here needs no other proof */
    for (size_t i = 0; all && i < p->plan.n_steps; i++)
        all = p->plan.steps[i].is_way_back || (records[i] ? ws_delta_proof_has(p->proofs[i], records[i])
                                                          : !ws_delta_proof_names(p->proofs[i], file, block));
    return all;
}

/* In a copy that a pull before this one left half-way, a block without a record of the way back is as it was. */
static bool is_untouched(struct ws_delta_apply *p, struct ws_delta_worker *w, size_t file, size_t block)
{
    const struct ws_manifest_file *f = &p->manifest->files[file];

    return p->plan.n_steps == 1 && p->plan.steps[0].is_way_back && !ws_delta_at(p->chain[0], file, block) &&
           ws_hash(old_bytes(p, w, file, block), ws_manifest_block_bytes(f, block)) == f->hashes[block];
}

/* Makes the block with those deltas of the chain that are here. One that has the hash of the base's in both
 * manifests, which are signed where they must be, is the base's. */
static bool make_block(struct ws_delta_apply *p, struct ws_delta_worker *w, size_t file, size_t block)
{
    const struct ws_manifest_file *f = &p->manifest->files[file];
    const struct ws_delta_record *records[WS_MAX_DELTA_CHAIN];
    size_t len = ws_manifest_block_bytes(f, block), n = p->plan.n_steps;
    uint64_t began = ws_clock_ns(), hash = 0;
    struct ws_error err = {0};
    bool based = ws_delta_base_has(p, file, block);
    bool same = based && p->plan.base->files[p->base_file[file]].hashes[block] == f->hashes[block];

    if (same && !p->plan.copied)
        return true;
    for (size_t i = 0; i < n; i++) {
        records[i] = same || !p->chain[i] ? NULL : ws_delta_at(p->chain[i], file, block);
        based = based || (records[i] && records[i]->kind == WS_DELTA_BLOCK);
    }
    if (!same && !are_signed(p, file, block, records))
        return false;
    if (!based)
        return p->plan.one_copy && is_untouched(p, w, file, block);
    if (patch(p, w, file, block, len, records, &hash) < 0)
        return false;
    if (p->plan.one_copy && hash == f->hashes[block] &&
        ws_undo_write(p->undo, p->version, (unsigned)(w - p->workers), file, block, w->made, w->was, &err) <
            0)
        return false; /* the transfer says why */
    atomic_fetch_add(&p->patched_bytes, len);
    atomic_fetch_add(&p->patched_ns, ws_clock_ns() - began);
    if (hash != f->hashes[block])
        return false;
    if (n > 0 && records[n - 1])
        atomic_fetch_add(&p->n_verified, 1);
    return true;
}

void ws_delta_patch_block(struct ws_delta_apply *p, struct ws_delta_worker *w, size_t file, size_t block)
{
    struct ws_version *v = p->version;

    if (atomic_exchange(&p->tried[file][block], 1) || ws_content_has(v, file, block, 1) ||
        !ws_version_wants(v, file, block))
        return;
    if (make_block(p, w, file, block)) {
        ws_content_arrived(v, file, block);
        if (ws_part_view(v))
            ws_part_view_arrived(v, file, block);
        atomic_store(&p->selection->progress_ns, ws_clock_ns());
        ws_waiters_wake(v);
    }
}
