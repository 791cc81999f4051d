#include "tests/bench/large_model.h"
#include "tests/bench/common.h"
#include "transports/delta/listing.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 2093UL /* of a tensor: 30 MB of bf16 */
#define COLS 7168UL

struct large_model {
    const struct ws_placement *placement;
    struct version {
        struct ws_lease lease; /* the only one of its kind: nothing is ever revoked */
        struct large_model *model;
        const struct ws_manifest *manifest;
        char *json;
        size_t json_bytes;
    } versions[2];
    struct ws_delta *delta;
};

/* --- what it is --- */

struct ws_registration *large_model_registration(void)
{
    struct ws_registration *r = calloc(1, sizeof(*r));
    assert(r);
    r->entries = calloc(LARGE_MODEL_TENSORS, sizeof(*r->entries));
    assert(r->entries);
    for (size_t i = 0; i < LARGE_MODEL_TENSORS; i++) {
        static const char *const projections[] = {"gate_proj", "up_proj", "down_proj"};
        struct ws_entry *e = &r->entries[i];
        char *name = NULL;
        if (asprintf(&name, "model.layers.%zu.mlp.experts.%zu.%s.weight", i / 1200, i / 3 % 400,
                     projections[i % 3]) < 0)
            bench_fail("no memory");
        e->tensor = (struct ws_tensor){.name = name, .dtype = WS_BF16, .n_dims = 2, .shape = {ROWS, COLS}};
        e->piece = (struct ws_piece){.size = {ROWS, COLS}};
        r->n_entries++;
    }
    return r;
}

struct ws_placement *large_model_placement(struct ws_registration *r)
{
    const uint64_t shard_bytes = LARGE_MODEL_TENSORS / LARGE_MODEL_FILES * ROWS * COLS * 2;
    struct ws_placement *l = NULL;
    struct ws_error err = {0};
    if (ws_placement_make(&r, 1, shard_bytes, &l, &err) < 0)
        bench_fail("%s", err.text);
    return l;
}

/* The file's content from `at` on: its header, or all of a file that was made, and zeros. */
static void make_bytes(const struct ws_placement_file *f, uint64_t at, size_t n, unsigned char *out)
{
    const uint64_t there = at < f->content_bytes ? f->content_bytes - at : 0;
    const size_t some = there < n ? (size_t)there : n;
    if (some > 0)
        memcpy(out, (const unsigned char *)f->content + at, some);
    memset(out + some, 0, n - some);
}

uint64_t *large_model_header_hashes(const struct ws_placement *l)
{
    uint64_t *hashes = calloc(l->n_files, sizeof(*hashes));
    unsigned char *block = malloc(WS_BLOCK_BYTES);
    assert(hashes && block);
    for (size_t i = 0; i < l->n_files; i++) {
        const uint64_t size = l->files[i].size_bytes;
        const size_t n = size < WS_BLOCK_BYTES ? (size_t)size : WS_BLOCK_BYTES;
        make_bytes(&l->files[i], 0, n, block);
        hashes[i] = ws_hash(block, n);
    }
    free(block);
    return hashes;
}

static uint64_t made_hash(uint64_t version, size_t file, size_t block)
{
    const uint64_t x = (version << 48 ^ (uint64_t)file << 32 ^ block) * 0x9E3779B97F4A7C15ULL;
    return (x ^ x >> 29) * 0xBF58476D1CE4E5B9ULL;
}

struct ws_manifest *large_model_manifest(const struct ws_placement *l, const uint64_t *header_hashes,
                                         uint64_t version)
{
    struct ws_manifest *m = NULL;
    struct ws_error err = {0};
    int rc = ws_manifest_new(&m, LARGE_MODEL_NAME, version, LARGE_MODEL_RUN, &err);
    for (size_t i = 0; rc == 0 && i < l->n_files; i++) {
        struct ws_manifest_file *f;
        rc = ws_manifest_add(m, l->files[i].name, l->files[i].size_bytes, l->files[i].header_bytes, &f, &err);
        for (size_t b = 0; rc == 0 && b < f->n_blocks; b++)
            f->hashes[b] = b == 0 ? header_hashes[i] : made_hash(version, i, b);
    }
    if (rc < 0)
        bench_fail("%s", err.text);
    m->created_ns = version;
    ws_manifest_seal(m);
    return m;
}

/* --- the catalog --- */

static struct version *find(struct large_model *m, const char *model, uint64_t version)
{
    return strcmp(model, LARGE_MODEL_NAME) == 0 && (version == 1 || version == 2) ? &m->versions[version - 1]
                                                                                  : NULL;
}

static uint64_t get_seq(void *self)
{
    (void)self;
    return 1;
}

static int get_models(void *self, const char *model, json_t **out, struct ws_error *err)
{
    struct large_model *m = self;
    if (model && strcmp(model, LARGE_MODEL_NAME) != 0)
        return ws_error_set(err, ENOENT, "no model %s", model);
    json_t *versions = json_array();
    for (size_t i = 0; i < 2; i++)
        json_array_append_new(versions,
                              json_pack("{s:I,s:s,s:s,s:I,s:I}", "version", (json_int_t)i + 1, "run",
                                        LARGE_MODEL_RUN, "digest", m->versions[i].manifest->digest, "bytes",
                                        (json_int_t)m->versions[i].manifest->total_bytes, "created_ns",
                                        (json_int_t)i + 1));
    *out = json_pack("{s:I,s:[{s:s,s:I,s:s,s:o}]}", "seq", (json_int_t)1, "models", "name", LARGE_MODEL_NAME,
                     "newest", (json_int_t)2, "run", LARGE_MODEL_RUN, "versions", versions);
    return *out ? 0 : ws_error_set(err, ENOMEM, "no memory");
}

static void read_bytes(struct ws_lease *lease, size_t file, uint64_t at, size_t n, void *out)
{
    const struct version *v = (struct version *)lease;
    make_bytes(&v->model->placement->files[file], at, n, out);
}

static int lease_version(void *self, const char *model, uint64_t version, const char *run, const char *holder,
                         void (*revoked)(void *), void *arg, struct ws_lease **out, struct ws_error *err)
{
    struct version *v = find(self, model, version);
    (void)run;
    (void)holder;
    (void)revoked;
    (void)arg;
    if (!v)
        return ws_error_set(err, ENOENT, "no %s/%lu", model, version);
    *out = &v->lease;
    return 0;
}

static void release(void *self, struct ws_lease *lease)
{
    (void)self;
    (void)lease;
}

static int get_deltas(void *self, const char *model, uint64_t version, const char *run, bool look,
                      json_t **out, struct ws_error *err)
{
    struct large_model *m = self;
    (void)run;
    (void)look;
    (void)err;
    *out = json_array();
    if (find(m, model, version) && version == 2)
        json_array_append_new(*out, ws_delta_entry_json(m->delta));
    return 0;
}

static int get_delta(void *self, const char *model, uint64_t version, const char *run,
                     const struct ws_version_id *base, unsigned level, struct ws_delta **out,
                     struct ws_error *err)
{
    struct large_model *m = self;
    (void)run;
    (void)level;
    if (!find(m, model, version) || version != 2 || base->version != 1)
        return ws_error_set(err, ENOENT, "no delta to %s/%lu", model, version);
    *out = ws_delta_get(m->delta);
    return 0;
}

static const struct ws_api_route *const *get_routes(void *self)
{
    static const struct ws_api_route table[] = {WS_API_ROUTE("POST", "/v1/{model}/{version}/loaded", REPORT),
                                                {0}};
    static const struct ws_api_route *const tables[] = {table, NULL};
    (void)self;
    return tables;
}

static int no_route(void *self, const char *method, const char *path, struct ws_error *err)
{
    (void)self;
    return ws_error_set(err, ENOENT, "no %s %s", method, path);
}

static int route(void *self, const struct ws_identity *who, const char *method, const char *path,
                 const char *query, const json_t *body, json_t **reply, char **text, struct ws_error *err)
{
    (void)self;
    (void)who;
    (void)method;
    (void)path;
    (void)query;
    (void)body;
    (void)text;
    (void)err;
    *reply = json_object();
    return 0;
}

static const struct ws_catalog_ops ops = {
    .seq = get_seq,
    .models = get_models,
    .lease = lease_version,
    .release = release,
    .deltas = get_deltas,
    .delta = get_delta,
    .routes = get_routes,
    .route = route,
    .no_route = no_route,
};

struct large_model *large_model_new(const struct ws_placement *l, struct ws_manifest *const manifests[2])
{
    struct large_model *m = calloc(1, sizeof(*m));
    struct ws_error err = {0};
    struct ws_delta_link link = {.base = ws_version_id_make(1, LARGE_MODEL_RUN),
                                 .target = ws_version_id_make(2, LARGE_MODEL_RUN)};
    assert(m);
    m->placement = l;
    memcpy(link.base_digest, manifests[0]->digest, sizeof(link.base_digest));
    memcpy(link.target_digest, manifests[1]->digest, sizeof(link.target_digest));
    if (ws_delta_new(&m->delta, &link, manifests[1], &err) < 0)
        bench_fail("%s", err.text);
    for (size_t i = 0; i < 2; i++) {
        struct version *v = &m->versions[i];
        *v = (struct version){.model = m, .manifest = manifests[i]};
        if (ws_manifest_to_json(v->manifest, &v->json, &v->json_bytes, &err) < 0)
            bench_fail("%s", err.text);
        v->lease = (struct ws_lease){.manifest = v->manifest,
                                     .manifest_json = v->json,
                                     .manifest_json_bytes = v->json_bytes,
                                     .read = read_bytes};
    }
    return m;
}

struct ws_catalog large_model_catalog(struct large_model *m)
{
    return (struct ws_catalog){&ops, m};
}

void large_model_free(struct large_model *m)
{
    ws_delta_put(m->delta);
    free(m->versions[0].json);
    free(m->versions[1].json);
    free(m);
}
