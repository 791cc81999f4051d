#include "tests/conformance/memory_catalog.h"
#include "tests/fixtures/unwatched.h"
#include "transports/delta/encode.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_VERSIONS 16
#define MAX_DELTAS   8
#define RUN          "testrun"

struct held {
    struct ws_lease base;
    struct item *item;
    void (*revoked)(void *arg);
    void *arg;
    struct held *next;
    /* of an arriving version; guarded by asking, the first written by the requester only */
    struct ws_region **regions;
    bool has_manifest;
    size_t file, end; /* blocks before end, the last request, are here */
    void (*arrived)(void *arg);
    void *arrived_arg;
    struct held *next_asked;
};

struct item {
    bool used, gone;
    struct ws_manifest *manifest;
    char *json;
    size_t json_bytes;
    struct ws_region *regions[8];
    struct held *leases;
};

struct memory_catalog {
    pthread_mutex_t lock;
    struct ws_ucx_server *ucx; /* NULL: none */
    _Atomic uint64_t seq;
    struct item items[MAX_VERSIONS]; /* guarded by lock */
    struct {
        struct ws_delta *delta;
        char model[64];
    } deltas[MAX_DELTAS];                /* guarded by lock; oldest first, NULL behind the last */
    unsigned n_leases, n_reports, level; /* guarded by lock */
    pthread_t bringer;
    bool brings;
    pthread_mutex_t asking;
    struct held *asked; /* guarded by asking */
    bool stop;          /* guarded by asking */
};

static struct item *find(struct memory_catalog *c, const char *model, uint64_t version)
{
    for (size_t i = 0; i < MAX_VERSIONS; i++)
        if (c->items[i].used && c->items[i].manifest->version == version &&
            strcmp(c->items[i].manifest->model, model) == 0)
            return &c->items[i];
    return NULL;
}

static uint64_t get_seq(void *self)
{
    return atomic_load(&((struct memory_catalog *)self)->seq);
}

static int get_models(void *self, const char *model, json_t **out, struct ws_error *err)
{
    struct memory_catalog *c = self;
    json_t *models = json_array();
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < MAX_VERSIONS; i++) {
        if (!c->items[i].used)
            continue;
        const char *name = c->items[i].manifest->model;
        bool first = !model || strcmp(model, name) == 0;
        for (size_t k = 0; k < i && first; k++)
            first = !c->items[k].used || strcmp(c->items[k].manifest->model, name) != 0;
        if (!first)
            continue;
        json_t *versions = json_array();
        uint64_t newest = 0;
        for (size_t k = i; k < MAX_VERSIONS; k++) {
            const struct item *it = &c->items[k];
            if (!it->used || strcmp(it->manifest->model, name) != 0)
                continue;
            newest = it->manifest->version > newest ? it->manifest->version : newest;
            if (!it->gone)
                json_array_append_new(
                    versions, json_pack("{s:I,s:s,s:s,s:I,s:I}", "version", (json_int_t)it->manifest->version,
                                        "run", RUN, "digest", it->manifest->digest, "bytes",
                                        (json_int_t)it->manifest->total_bytes, "created_ns", (json_int_t)1));
        }
        json_array_append_new(models, json_pack("{s:s,s:I,s:s,s:o}", "name", name, "newest",
                                                (json_int_t)newest, "run", RUN, "versions", versions));
    }
    pthread_mutex_unlock(&c->lock);
    if (model && json_array_size(models) == 0) {
        json_decref(models);
        return ws_error_set(err, ENOENT, "no model %s", model);
    }
    *out = json_pack("{s:I,s:o}", "seq", (json_int_t)get_seq(self), "models", models);
    return 0;
}

static int lease_version(void *self, const char *model, uint64_t version, const char *run, const char *holder,
                         void (*revoked)(void *), void *arg, struct ws_lease **out, struct ws_error *err)
{
    struct memory_catalog *c = self;
    (void)run;
    (void)holder;
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    struct item *it = find(c, model, version);
    if (!it) {
        rc = ws_error_set(err, ENOENT, "no %s/%llu", model, (unsigned long long)version);
    } else if (it->gone) {
        rc = ws_error_set(err, ESTALE, "%s/%llu is gone", model, (unsigned long long)version);
    } else {
        struct held *h = calloc(1, sizeof(*h));
        *h = (struct held){.base = {it->manifest, it->json, it->json_bytes, it->regions},
                           .item = it,
                           .revoked = revoked,
                           .arg = arg,
                           .next = it->leases};
        it->leases = h;
        c->n_leases++;
        *out = &h->base;
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static void release(void *self, struct ws_lease *lease)
{
    struct memory_catalog *c = self;
    struct held *h = (struct held *)lease;
    assert(!h->arrived);
    free(h->regions);
    pthread_mutex_lock(&c->lock);
    struct held **at = &h->item->leases;
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    c->n_leases--;
    pthread_mutex_unlock(&c->lock);
    free(h);
}

static int get_deltas(void *self, const char *model, uint64_t version, const char *run, bool look,
                      json_t **out, struct ws_error *err)
{
    (void)look;
    (void)err;
    struct memory_catalog *c = self;
    json_t *list = json_array();
    pthread_mutex_lock(&c->lock);
    for (size_t i = MAX_DELTAS; i-- > 0;) {
        struct ws_delta *d = c->deltas[i].delta;
        if (d && strcmp(c->deltas[i].model, model) == 0 && ws_delta_link(d)->target.version == version &&
            (!run || strcmp(run, RUN) == 0))
            json_array_append_new(list, ws_delta_entry_json(d));
    }
    pthread_mutex_unlock(&c->lock);
    *out = list;
    return 0;
}

static int get_delta(void *self, const char *model, uint64_t version, const char *run,
                     const struct ws_version_id *base, unsigned level, struct ws_delta **out,
                     struct ws_error *err)
{
    struct memory_catalog *c = self;
    (void)run;
    *out = NULL;
    pthread_mutex_lock(&c->lock);
    c->level = level;
    for (size_t i = 0; i < MAX_DELTAS && !*out; i++) {
        struct ws_delta *d = c->deltas[i].delta;
        if (d && strcmp(c->deltas[i].model, model) == 0 && ws_delta_link(d)->target.version == version &&
            ws_delta_link(d)->base.version == base->version)
            *out = ws_delta_get(d);
    }
    pthread_mutex_unlock(&c->lock);
    return *out ? 0 : ws_error_set(err, ENOENT, "no delta to %s/%llu", model, (unsigned long long)version);
}

static const struct ws_api_route *const *get_routes(void *self)
{
    static const struct ws_api_route table[] = {WS_API_ROUTE("POST", "/v1/{model}/{version}/loaded", REPORT),
                                                WS_API_ROUTE("POST", "/v1/{model}/{version}/ucx", READ),
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
    struct memory_catalog *c = self;
    struct ws_api_request q;
    (void)who;
    (void)text;
    if (c->ucx && ws_api_parse(path, query, &q, err) == 0 && strcmp(q.verb, "ucx") == 0)
        return ws_ucx_server_offer(c->ucx, "", &q, body, reply, err);
    if (strcmp(method, "POST") != 0 || !strstr(path, "/loaded") || !json_is_object(body))
        return ws_error_set(err, ENOENT, "no %s %s", method, path);
    pthread_mutex_lock(&c->lock);
    c->n_reports++;
    pthread_mutex_unlock(&c->lock);
    *reply = json_object();
    return 0;
}

static const struct ws_catalog_ops ops = {.seq = get_seq,
                                          .models = get_models,
                                          .lease = lease_version,
                                          .release = release,
                                          .deltas = get_deltas,
                                          .delta = get_delta,
                                          .routes = get_routes,
                                          .route = route,
                                          .no_route = no_route};

/* --- arriving versions --- */

static int lease_arriving(void *self, const char *model, uint64_t version, const char *run,
                          const char *holder, void (*revoked)(void *), void *arg, struct ws_lease **out,
                          struct ws_error *err)
{
    int rc = lease_version(self, model, version, run, holder, revoked, arg, out, err);
    if (rc == 0)
        **out = (struct ws_lease){0};
    return rc;
}

static bool is_here(const struct held *h, size_t file, size_t first, size_t n)
{
    return n == 0 ? h->has_manifest : file == h->file && first + n <= h->end;
}

static int here(void *self, struct ws_lease *lease, size_t file, size_t first, size_t n,
                void (*arrived)(void *), void *arg, struct ws_error *err)
{
    struct memory_catalog *c = self;
    struct held *h = (struct held *)lease;
    const struct ws_manifest *m = h->item->manifest;
    (void)err;
    pthread_mutex_lock(&c->asking);
    bool yes = is_here(h, file, first, n);
    assert(!h->arrived);
    if (!yes && arrived) {
        h->arrived = arrived;
        h->arrived_arg = arg;
        h->has_manifest = true;
        h->file = file;
        h->end = first + n;
        h->next_asked = c->asked;
        c->asked = h;
    }
    pthread_mutex_unlock(&c->asking);
    if (!yes)
        return 0;
    if (!h->regions)
        h->regions = calloc(m->n_files + 1, sizeof(struct ws_region *));
    if (n > 0)
        h->regions[file] = h->item->regions[file];
    h->base = (struct ws_lease){.manifest = m, .regions = h->regions}; /* converted to text on demand */
    return 1;
}

static bool forget(void *self, struct ws_lease *lease)
{
    struct memory_catalog *c = self;
    struct held *h = (struct held *)lease;
    bool found = false;
    pthread_mutex_lock(&c->asking);
    for (struct held **at = &c->asked; *at && !found; at = &(*at)->next_asked) {
        found = *at == h;
        if (found) {
            *at = h->next_asked;
            h->arrived = NULL;
            break;
        }
    }
    pthread_mutex_unlock(&c->asking);
    return found;
}

static void *bring(void *arg)
{
    struct memory_catalog *c = arg;
    pthread_mutex_lock(&c->asking);
    while (!c->stop) {
        for (struct held *h = c->asked; h; h = c->asked) {
            void (*arrived)(void *) = h->arrived;
            void *arrived_arg = h->arrived_arg;
            c->asked = h->next_asked;
            h->arrived = NULL;
            pthread_mutex_unlock(&c->asking);
            arrived(arrived_arg); /* h may be freed now */
            pthread_mutex_lock(&c->asking);
        }
        pthread_mutex_unlock(&c->asking);
        usleep(2000);
        pthread_mutex_lock(&c->asking);
    }
    pthread_mutex_unlock(&c->asking);
    return NULL;
}

static const struct ws_catalog_ops arriving_ops = {.seq = get_seq,
                                                   .models = get_models,
                                                   .lease = lease_arriving,
                                                   .release = release,
                                                   .here = here,
                                                   .forget = forget,
                                                   .routes = get_routes,
                                                   .route = route,
                                                   .no_route = no_route};

struct ws_catalog memory_catalog_arriving(struct memory_catalog *c)
{
    assert(!c->brings);
    c->brings = true;
    int rc = pthread_create(&c->bringer, NULL, bring, c);
    assert(rc == 0);
    return (struct ws_catalog){&arriving_ops, c};
}

struct memory_catalog *memory_catalog_new(void)
{
    struct memory_catalog *c = calloc(1, sizeof(*c));
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->asking, NULL);
    atomic_store(&c->seq, 1);
    return c;
}

void memory_catalog_offer_ucx(struct memory_catalog *c, struct ws_ucx_server *ucx)
{
    c->ucx = ucx;
}

struct ws_catalog memory_catalog_ops(struct memory_catalog *c)
{
    return (struct ws_catalog){&ops, c};
}

/* Revoking overwrites bytes that a slow reader still sends: a deliberate race, which hashes must detect. */
UNWATCHED static void fill(struct ws_region *r, unsigned seed)
{
    uint64_t x = seed * 0x9E3779B97F4A7C15ULL + 1;
    unsigned char *p = ws_region_data(r);
    const uint64_t n = ws_region_size(r);
    for (uint64_t i = 0; i < n; i++) {
        if (i % 8 == 0)
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        p[i] = (unsigned char)(x >> (i % 8 * 8));
    }
}

static void step(struct ws_region *to, struct ws_region *from)
{
    unsigned char *p = ws_region_data(to);
    memcpy(p, ws_region_data(from), ws_region_size(from));
    for (uint64_t i = 0; i < ws_region_size(to); i += 1000)
        p[i]++;
}

/* base NULL: bytes from `seed`. */
static void publish(struct memory_catalog *c, const char *model, uint64_t version, const uint64_t *sizes,
                    size_t n, unsigned seed, const struct item *base)
{
    struct ws_error err = {0};
    struct item it = {.used = true};
    int rc = ws_manifest_new(&it.manifest, model, version, RUN, &err);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        char name[32];
        struct ws_manifest_file *f;
        snprintf(name, sizeof(name), "file%zu", i);
        rc = ws_manifest_add(it.manifest, name, sizes[i], 0, &f, &err);
        if (rc == 0 && sizes[i] > 0) {
            rc = ws_region_new(&it.regions[i], sizes[i], &err);
            if (rc == 0 && base)
                step(it.regions[i], base->regions[i]);
            else if (rc == 0)
                fill(it.regions[i], seed + (unsigned)i);
            for (size_t b = 0; rc == 0 && b < f->n_blocks; b++)
                f->hashes[b] = ws_hash(ws_region_data(it.regions[i]) + b * WS_BLOCK_BYTES,
                                       ws_manifest_block_bytes(f, b));
        }
    }
    assert(rc == 0);
    ws_manifest_seal(it.manifest);
    rc = ws_manifest_to_json(it.manifest, &it.json, &it.json_bytes, &err);
    assert(rc == 0);
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < MAX_VERSIONS; i++) {
        if (!c->items[i].used) {
            c->items[i] = it;
            break;
        }
        assert(i + 1 < MAX_VERSIONS);
    }
    pthread_mutex_unlock(&c->lock);
    atomic_fetch_add(&c->seq, 1);
}

void memory_catalog_publish(struct memory_catalog *c, const char *model, uint64_t version,
                            const uint64_t *sizes, size_t n, unsigned seed)
{
    publish(c, model, version, sizes, n, seed, NULL);
}

static struct item *find_locked(struct memory_catalog *c, const char *model, uint64_t version)
{
    pthread_mutex_lock(&c->lock);
    struct item *it = find(c, model, version);
    pthread_mutex_unlock(&c->lock);
    assert(it);
    return it;
}

void memory_catalog_step(struct memory_catalog *c, const char *model, uint64_t version, uint64_t base)
{
    const struct item *from = find_locked(c, model, base);
    uint64_t sizes[8];
    for (size_t i = 0; i < from->manifest->n_files; i++)
        sizes[i] = from->manifest->files[i].size_bytes;
    publish(c, model, version, sizes, from->manifest->n_files, 0, from);
}

struct ws_delta *memory_catalog_delta(struct memory_catalog *c, const char *model, uint64_t version,
                                      uint64_t base)
{
    const struct ws_manifest *from = find_locked(c, model, base)->manifest;
    const struct ws_manifest *to = find_locked(c, model, version)->manifest;
    struct ws_delta_link link = {.base = ws_version_id_make(base, RUN),
                                 .target = ws_version_id_make(version, RUN)};
    struct ws_delta *d;
    memcpy(link.base_digest, from->digest, sizeof(link.base_digest));
    memcpy(link.target_digest, to->digest, sizeof(link.target_digest));
    int rc = ws_delta_new(&d, &link, to, NULL);
    assert(rc == 0);
    pthread_mutex_lock(&c->lock);
    size_t i = 0;
    while (i < MAX_DELTAS && c->deltas[i].delta)
        i++;
    assert(i < MAX_DELTAS);
    c->deltas[i].delta = d;
    snprintf(c->deltas[i].model, sizeof(c->deltas[i].model), "%s", model);
    pthread_mutex_unlock(&c->lock);
    return d;
}

static void side_of(const struct item *it, const unsigned char *files[8], struct ws_delta_side *out)
{
    for (size_t i = 0; i < it->manifest->n_files; i++)
        files[i] = it->regions[i] ? ws_region_data(it->regions[i]) : NULL;
    *out = (struct ws_delta_side){.manifest = it->manifest, .files = files};
}

struct ws_delta *memory_catalog_whole_delta(struct memory_catalog *c, const char *model, uint64_t version,
                                            uint64_t base)
{
    struct ws_delta *d = memory_catalog_delta(c, model, version, base);
    struct ws_workers *w = ws_workers_new(2, 0);
    const unsigned char *from[8], *to[8];
    struct ws_delta_side a, b;
    side_of(find_locked(c, model, base), from, &a);
    side_of(find_locked(c, model, version), to, &b);
    ws_delta_encode(d, &a, &b, 0, UINT64_MAX, w, NULL);
    ws_workers_free(w);
    assert(ws_delta_state(d) == WS_DELTA_WHOLE);
    return d;
}

void memory_catalog_drop_deltas(struct memory_catalog *c)
{
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < MAX_DELTAS; i++) {
        ws_delta_put(c->deltas[i].delta);
        c->deltas[i].delta = NULL;
    }
    pthread_mutex_unlock(&c->lock);
}

unsigned memory_catalog_level(struct memory_catalog *c)
{
    pthread_mutex_lock(&c->lock);
    unsigned level = c->level;
    pthread_mutex_unlock(&c->lock);
    return level;
}

void memory_catalog_revoke(struct memory_catalog *c, const char *model, uint64_t version, bool at_once)
{
    pthread_mutex_lock(&c->lock);
    struct item *it = find(c, model, version);
    it->gone = true;
    for (struct held *h = it->leases; h; h = h->next)
        if (h->revoked)
            h->revoked(h->arg);
    if (at_once)
        for (size_t i = 0; i < it->manifest->n_files; i++)
            if (it->regions[i])
                fill(it->regions[i], 999);
    pthread_mutex_unlock(&c->lock);
    atomic_fetch_add(&c->seq, 1);
}

unsigned memory_catalog_leases(struct memory_catalog *c)
{
    pthread_mutex_lock(&c->lock);
    unsigned n = c->n_leases;
    pthread_mutex_unlock(&c->lock);
    return n;
}

unsigned memory_catalog_reports(struct memory_catalog *c)
{
    pthread_mutex_lock(&c->lock);
    unsigned n = c->n_reports;
    pthread_mutex_unlock(&c->lock);
    return n;
}

const unsigned char *memory_catalog_bytes(struct memory_catalog *c, const char *model, uint64_t version,
                                          size_t file)
{
    pthread_mutex_lock(&c->lock);
    struct item *it = find(c, model, version);
    const unsigned char *p = it->regions[file] ? ws_region_data(it->regions[file]) : NULL;
    pthread_mutex_unlock(&c->lock);
    return p;
}

void memory_catalog_free(struct memory_catalog *c)
{
    assert(c->n_leases == 0);
    pthread_mutex_lock(&c->asking);
    c->stop = true;
    pthread_mutex_unlock(&c->asking);
    if (c->brings)
        pthread_join(c->bringer, NULL);
    pthread_mutex_destroy(&c->asking);
    memory_catalog_drop_deltas(c);
    for (size_t i = 0; i < MAX_VERSIONS; i++) {
        for (size_t k = 0; k < 8; k++)
            ws_region_free(c->items[i].regions[k]);
        ws_manifest_free(c->items[i].manifest);
        free(c->items[i].json);
    }
    pthread_mutex_destroy(&c->lock);
    free(c);
}
