#include "backends/trainer/tensor/placement.h"
#include "transports/base/vector.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define INDEX "model.safetensors.index.json"

/* One tensor of the whole model. */
struct whole {
    struct ws_tensor tensor;
    const char *file; /* NULL: by size */
    struct ws_entry **parts;
    size_t n_parts;
    bool frozen, in_base;
};

struct maker {
    struct ws_registration *const *regs;
    unsigned world_size;
    struct ws_entry **all; /* every entry of every rank, by name */
    size_t n_all;
    struct whole *wholes; /* by name */
    size_t n_wholes;
    uint64_t *load;
    struct ws_placement *placement;
};

static int no_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "no memory for a placement");
}

static int by_name_and_rank(const void *x, const void *y)
{
    const struct ws_entry *a = *(struct ws_entry *const *)x, *b = *(struct ws_entry *const *)y;
    int c = strcmp(a->tensor.name, b->tensor.name);
    return c ? c : a->rank < b->rank ? -1 : a->rank > b->rank;
}

static bool same_meta(const struct ws_tensor *a, const struct ws_tensor *b)
{
    return a->dtype == b->dtype && a->n_dims == b->n_dims &&
           memcmp(a->shape, b->shape, a->n_dims * sizeof(a->shape[0])) == 0;
}

static int collect(struct maker *k, struct ws_error *err)
{
    const struct ws_registration *first = k->regs[0];
    assert(k->world_size > 0);
    size_t n = first->n_base;
    for (unsigned r = 0; r < k->world_size; r++)
        n += k->regs[r]->n_entries;
    k->all = calloc(n ? n : 1, sizeof(*k->all));
    k->wholes = calloc(n ? n : 1, sizeof(*k->wholes));
    k->load = calloc(k->world_size, sizeof(*k->load));
    if (!k->all || !k->wholes || !k->load)
        return no_memory(err);
    for (unsigned r = 0; r < k->world_size; r++)
        for (size_t i = 0; i < k->regs[r]->n_entries; i++)
            k->all[k->n_all++] = &k->regs[r]->entries[i];
    qsort(k->all, k->n_all, sizeof(k->all[0]), by_name_and_rank);
    return 0;
}

/* Entries of one name, by all ranks, become one tensor with one writer a piece. */
static int unify(struct maker *k, struct ws_entry **parts, size_t n, struct ws_error *err)
{
    struct ws_piece_holder *holders = calloc(n, sizeof(*holders));
    struct whole *w = &k->wholes[k->n_wholes++];
    int rc = holders ? 0 : no_memory(err);
    *w = (struct whole){
        .tensor = parts[0]->tensor, .file = parts[0]->requested_file, .parts = parts, .n_parts = n};
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (!same_meta(&parts[i]->tensor, &w->tensor))
            rc = ws_error_set(
                err, EPROTO,
                "ranks %u and %u disagree about the dtype or shape of %s: it has to be the same on all "
                "ranks that hold a part of it",
                parts[0]->rank, parts[i]->rank, w->tensor.name);
        else if (!w->file != !parts[i]->requested_file ||
                 (w->file && strcmp(w->file, parts[i]->requested_file) != 0))
            rc = ws_error_set(err, EPROTO, "ranks %u and %u put %s into different files", parts[0]->rank,
                              parts[i]->rank, w->tensor.name);
        holders[i] = (struct ws_piece_holder){.piece = parts[i]->piece, .rank = parts[i]->rank};
    }
    if (rc == 0)
        rc = ws_piece_assign_writers(&w->tensor, holders, n, k->load, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        parts[i]->writes = holders[i].writes;
    free(holders);
    return rc;
}

static int by_whole(const void *x, const void *y)
{
    return strcmp(((const struct whole *)x)->tensor.name, ((const struct whole *)y)->tensor.name);
}

static int by_shape(const void *x, const void *y)
{
    const struct ws_tensor *a = &(*(struct whole *const *)x)->tensor,
                           *b = &(*(struct whole *const *)y)->tensor;
    if (a->n_dims != b->n_dims)
        return a->n_dims < b->n_dims ? -1 : 1;
    for (unsigned d = 0; d < a->n_dims; d++)
        if (a->shape[d] != b->shape[d])
            return a->shape[d] < b->shape[d] ? -1 : 1;
    return 0;
}

/* A model in names of its own beside a base: a version would have the base's values under the names that engines read. It shows where the
 * base lacks most of what is held, and a third or more of its tensors that nobody holds have their like among that. What is new beside a
 * base, as a layer or a head, is little of it; a base that only completes what is held, as a projector, is little beside that. held: so
 * many wholes are, the first. */
static int refuse_other_names(const struct maker *k, size_t held, struct ws_error *err)
{
    const size_t n_frozen = k->n_wholes - held;
    const struct whole **w = calloc(k->n_wholes + 1, sizeof(struct whole *)), *here = NULL, *there = NULL;
    size_t n = 0, same = 0;
    if (!w)
        return no_memory(err);
    for (size_t i = 0; i < held; i++)
        if (!k->wholes[i].in_base)
            w[n++] = &k->wholes[i];
    const struct whole **frozen = w + n;
    for (size_t i = 0; i < n_frozen; i++)
        frozen[i] = &k->wholes[held + i];
    qsort(w, n, sizeof(struct whole *), by_shape);
    qsort(frozen, n_frozen, sizeof(struct whole *), by_shape);
    for (size_t i = 0, j = 0; i < n && j < n_frozen;) {
        const int c = by_shape(&w[i], &frozen[j]);
        if (c == 0 && same++ == 0) {
            here = w[i];
            there = frozen[j];
        }
        i += c <= 0;
        j += c >= 0;
    }
    free(w);
    if (n <= held / 2 || n_frozen < n / 2 || same <= n_frozen / 3)
        return 0;
    return ws_error_set(err, EINVAL,
                        "the base checkpoint lacks %zu of the %zu tensors that ranks hold, and has others of "
                        "their shapes that nobody holds: %s here may be %s there, whose value would stay the "
                        "base's; publish in the names that the base has, or leave the base out",
                        n, held, here->tensor.name, there->tensor.name);
}

static int unify_all(struct maker *k, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0, n; rc == 0 && i < k->n_all; i += n) {
        for (n = 1; i + n < k->n_all && strcmp(k->all[i]->tensor.name, k->all[i + n]->tensor.name) == 0; n++)
            ;
        rc = unify(k, &k->all[i], n, err);
        if (rc == 0)
            rc = ws_replicas_add(&k->placement->replicas, k->regs, &k->all[i], n, err);
    }
    ws_replicas_finish(&k->placement->replicas, k->regs, k->world_size);
    /* What no rank holds comes from the base checkpoint. */
    size_t held = k->n_wholes;
    const struct ws_registration *first = k->regs[0];
    for (size_t i = 0; rc == 0 && i < first->n_base; i++) {
        struct whole key = {.tensor = first->base[i].tensor};
        struct ws_entry *e = &first->base[i];
        struct whole *other = bsearch(&key, k->wholes, held, sizeof(key), by_whole);
        if (other && !same_meta(&other->tensor, &e->tensor))
            rc = ws_error_set(err, EPROTO,
                              "%s has another dtype or shape in the base checkpoint: %s there, %s here, in "
                              "%u and %u dimensions; publish it as the base has it",
                              e->tensor.name, ws_dtype_name(e->tensor.dtype),
                              ws_dtype_name(other->tensor.dtype), e->tensor.n_dims, other->tensor.n_dims);
        e->writes = false;
        if (other) {
            other->in_base = true;
            continue;
        }
        k->all[k->n_all] = e;
        k->wholes[k->n_wholes++] = (struct whole){.tensor = e->tensor,
                                                  .file = e->requested_file,
                                                  .parts = &k->all[k->n_all],
                                                  .n_parts = 1,
                                                  .frozen = true};
        k->n_all++;
        e->writes = true;
    }
    if (rc == 0)
        rc = refuse_other_names(k, held, err);
    qsort(k->wholes, k->n_wholes, sizeof(k->wholes[0]), by_whole);
    if (rc == 0 && k->n_wholes == 0)
        rc = ws_error_set(err, EINVAL, "no rank registered a tensor: give at least one");
    return rc;
}

/* --- files --- */

/* Which shard each tensor goes to: as asked for, else in name order by size. */
static int name_shards(struct maker *k, uint64_t shard_bytes, char *(*names)[WS_MAX_FILES],
                       struct ws_error *err)
{
    bool any_named = false;
    size_t n_shards = 1, at = 0;
    uint64_t in_shard = 0;
    for (size_t i = 0; i < k->n_wholes; i++)
        any_named = any_named || k->wholes[i].file;
    for (int pass = 0; pass < 2; pass++) {
        at = 0;
        in_shard = 0;
        for (size_t i = 0; i < k->n_wholes; i++) {
            struct whole *w = &k->wholes[i];
            uint64_t bytes;
            (void)ws_dtype_bytes(w->tensor.dtype, w->tensor.shape, w->tensor.n_dims, &bytes);
            if (w->file && pass == 0)
                continue;
            if (!any_named && shard_bytes && in_shard && in_shard + bytes > shard_bytes) {
                at++;
                in_shard = 0;
            }
            in_shard += bytes;
            if (at >= WS_MAX_FILES)
                return ws_error_set(err, E2BIG, "shards of %" PRIu64 " bytes make over %d files", shard_bytes,
                                    WS_MAX_FILES);
            if (pass == 0)
                continue;
            if (w->file)
                continue;
            if (!(*names)[at] && (n_shards == 1 ? asprintf(&(*names)[at], "model.safetensors")
                                                : asprintf(&(*names)[at], "model-%05zu-of-%05zu.safetensors",
                                                           at + 1, n_shards)) < 0)
                return no_memory(err);
            w->file = (*names)[at];
        }
        n_shards = at + 1;
    }
    return 0;
}

static int by_file_and_name(const void *x, const void *y)
{
    const struct whole *a = x, *b = y;
    int c = strcmp(a->file, b->file);
    return c ? c : strcmp(a->tensor.name, b->tensor.name);
}

struct ws_placement_file *ws_placement_add_file(struct ws_placement *l, const char *name, const char *suffix)
{
    if (l->n_files == WS_MAX_FILES)
        return NULL;
    struct ws_placement_file *files = ws_vector_room(l->files, l->n_files, sizeof(*files));
    if (!files)
        return NULL;
    l->files = files;
    struct ws_placement_file *f = &files[l->n_files];
    *f = (struct ws_placement_file){0};
    if (asprintf(&f->name, "%s%s", name, suffix) < 0)
        return NULL;
    l->n_files++;
    return f;
}

static int lay_out_shard(struct maker *k, struct whole *w, size_t n, struct ws_error *err)
{
    struct ws_placement_file *f = ws_placement_add_file(k->placement, w->file, "");
    struct ws_tensor *specs = calloc(n, sizeof(*specs));
    struct ws_safetensors *st = NULL;
    void *header = NULL;
    int rc = f && specs ? 0 : no_memory(err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        specs[i] = w[i].tensor;
    if (rc == 0)
        rc = ws_safetensors_layout(specs, n, "{\"format\":\"pt\"}", &st, &header, err);
    if (rc == 0) {
        f->size_bytes = st->file_bytes;
        f->header_bytes = f->content_bytes = st->data_begin;
        f->content = header;
        for (size_t i = 0; i < n; i++) {
            const struct ws_tensor *t = ws_safetensors_find(st, w[i].tensor.name);
            assert(t);
            for (size_t p = 0; p < w[i].n_parts; p++) {
                w[i].parts[p]->tensor.begin = t->begin;
                w[i].parts[p]->tensor.end = t->end;
            }
        }
    }
    ws_safetensors_free(st);
    free(specs);
    return rc;
}

static int add_index(struct maker *k, struct ws_error *err)
{
    json_t *map = json_object();
    uint64_t total = 0;
    for (size_t i = 0; i < k->n_wholes; i++) {
        uint64_t bytes;
        (void)ws_dtype_bytes(k->wholes[i].tensor.dtype, k->wholes[i].tensor.shape, k->wholes[i].tensor.n_dims,
                             &bytes);
        total += bytes;
        json_object_set_new(map, k->wholes[i].tensor.name, json_string(k->wholes[i].file));
    }
    json_t *index =
        json_pack("{s:{s:I},s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    struct ws_placement_file *f = ws_placement_add_file(k->placement, INDEX, "");
    if (f) {
        f->content = index ? json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
        f->size_bytes = f->content_bytes = f->content ? strlen(f->content) : 0;
    }
    json_decref(index);
    return f && f->content ? 0 : no_memory(err);
}

static int add_sidecars(struct maker *k, struct ws_error *err)
{
    const struct ws_registration *first = k->regs[0];
    for (size_t i = 0; i < first->n_sidecars; i++) {
        const struct ws_sidecar *s = &first->sidecars[i];
        for (size_t j = 0; j < k->placement->n_files; j++)
            if (strcmp(k->placement->files[j].name, s->name) == 0)
                return ws_error_set(err, EINVAL, "the sidecar %s has the name of another file of the version",
                                    s->name);
        struct ws_placement_file *f = ws_placement_add_file(k->placement, s->name, "");
        if (!f)
            return no_memory(err);
        f->size_bytes = s->size_bytes;
    }
    return 0;
}

static int by_file_name(const void *x, const void *y)
{
    return strcmp(((const struct ws_placement_file *)x)->name, ((const struct ws_placement_file *)y)->name);
}

static void set_places(struct maker *k)
{
    const struct ws_placement *l = k->placement;
    for (size_t i = 0; i < k->n_wholes; i++) {
        const struct whole *w = &k->wholes[i];
        struct ws_placement_file key = {.name = (char *)(uintptr_t)w->file};
        const struct ws_placement_file *f = bsearch(&key, l->files, l->n_files, sizeof(key), by_file_name);
        assert(f);
        for (size_t p = 0; p < w->n_parts; p++)
            w->parts[p]->file_index = (size_t)(f - l->files);
    }
}

/* A hash of a description: files, headers, sidecar contents, frozen names. */
static int set_id(struct maker *k, struct ws_error *err)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return no_memory(err);
    for (size_t i = 0; i < k->regs[0]->n_sidecars; i++)
        fprintf(f, "s %s %" PRIx64 "\n", k->regs[0]->sidecars[i].name, k->regs[0]->sidecars[i].hash);
    int rc = fclose(f) == 0 ? ws_placement_set_id(k->placement, text, err) : no_memory(err);
    free(text);
    return rc;
}

static int lay_out(struct maker *k, struct ws_error *err)
{
    struct ws_placement *l = k->placement;
    size_t n_shards = 0;
    int rc = 0;
    qsort(k->wholes, k->n_wholes, sizeof(k->wholes[0]), by_file_and_name);
    l->frozen = calloc(k->n_wholes, sizeof(*l->frozen));
    if (!l->frozen)
        return no_memory(err);
    for (size_t i = 0, n; rc == 0 && i < k->n_wholes; i += n, n_shards++) {
        const char *file = k->wholes[i].file;
        for (n = 1; i + n < k->n_wholes && strcmp(file, k->wholes[i + n].file) == 0; n++)
            ;
        rc = lay_out_shard(k, &k->wholes[i], n, err);
        for (size_t j = i; rc == 0 && j < i + n; j++) {
            k->wholes[j].file = l->files[l->n_files - 1].name;
            if (k->wholes[j].frozen && !(l->frozen[l->n_frozen++] = strdup(k->wholes[j].tensor.name)))
                rc = no_memory(err);
        }
    }
    if (rc == 0 && n_shards > 1)
        rc = add_index(k, err);
    if (rc == 0)
        rc = add_sidecars(k, err);
    if (rc < 0)
        return rc;
    qsort(l->files, l->n_files, sizeof(l->files[0]), by_file_name);
    set_places(k);
    for (size_t i = 0; i < l->n_files; i++)
        l->total_bytes += l->files[i].size_bytes;
    if (l->n_frozen > 0)
        memcpy(l->base_id, k->regs[0]->base_id, sizeof(l->base_id));
    return set_id(k, err);
}

int ws_placement_set_id(struct ws_placement *l, const char *more, struct ws_error *err)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f)
        return no_memory(err);
    for (size_t i = 0; i < l->n_files; i++)
        fprintf(f, "f %s %" PRIu64 " %" PRIx64 "\n", l->files[i].name, l->files[i].size_bytes,
                l->files[i].content ? ws_hash(l->files[i].content, l->files[i].content_bytes) : 0);
    fputs(more, f);
    for (size_t i = 0; i < l->n_frozen; i++)
        fprintf(f, "z %s\n", l->frozen[i]);
    bool whole = fclose(f) == 0;
    if (whole) {
        XXH128_hash_t h = XXH3_128bits(text, n);
        snprintf(l->id, sizeof(l->id), "%016" PRIx64 "%016" PRIx64, (uint64_t)h.high64, (uint64_t)h.low64);
    }
    free(text);
    return whole ? 0 : no_memory(err);
}

int ws_placement_make(struct ws_registration *const *regs, unsigned world_size, uint64_t shard_bytes,
                      struct ws_placement **out, struct ws_error *err)
{
    struct maker k = {.regs = regs, .world_size = world_size};
    char *(*names)[WS_MAX_FILES] = calloc(1, sizeof(*names));
    *out = NULL;
    k.placement = calloc(1, sizeof(*k.placement));
    int rc = k.placement && names ? collect(&k, err) : no_memory(err);
    if (rc == 0)
        rc = unify_all(&k, err);
    if (rc == 0)
        rc = name_shards(&k, shard_bytes, names, err);
    if (rc == 0)
        rc = lay_out(&k, err);
    for (size_t i = 0; names && i < WS_MAX_FILES; i++)
        free((*names)[i]);
    free(names);
    free(k.all);
    free(k.wholes);
    free(k.load);
    if (rc < 0) {
        ws_placement_free(k.placement);
        return rc;
    }
    *out = k.placement;
    return 0;
}

void ws_placement_free(struct ws_placement *l)
{
    if (!l)
        return;
    for (size_t i = 0; i < l->n_files; i++) {
        free(l->files[i].name);
        free(l->files[i].content);
    }
    for (size_t i = 0; i < l->n_frozen; i++)
        free(l->frozen[i]);
    ws_replicas_clear(&l->replicas);
    free(l->frozen);
    free(l->files);
    free(l);
}
