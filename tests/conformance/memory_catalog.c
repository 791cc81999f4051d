#include "tests/conformance/memory_catalog.h"
#include "transports/copy.h"
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_VERSIONS 16
#define RUN          "testrun"

struct held {
    struct ws_hold base;
    struct item *item;
    void (*revoked)(void *arg);
    void *arg;
    struct held *next;
    /* of a version that arrives; guarded by asking, the first by the asker alone */
    struct ws_region **regions;
    bool has_manifest;
    size_t file, end; /* what was asked last is here: blocks before end */
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
    struct held *holds;
};

struct memory_catalog {
    pthread_mutex_t lock;
    _Atomic uint64_t seq;
    struct item items[MAX_VERSIONS]; /* guarded by lock */
    unsigned n_holds, n_reports;     /* guarded by lock */
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

static int take(void *self, const char *model, uint64_t version, const char *run, const char *holder,
                void (*revoked)(void *), void *arg, struct ws_hold **out, struct ws_error *err)
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
                           .next = it->holds};
        it->holds = h;
        c->n_holds++;
        *out = &h->base;
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static void drop(void *self, struct ws_hold *hold)
{
    struct memory_catalog *c = self;
    struct held *h = (struct held *)hold;
    assert(!h->arrived);
    free(h->regions);
    pthread_mutex_lock(&c->lock);
    struct held **at = &h->item->holds;
    while (*at != h)
        at = &(*at)->next;
    *at = h->next;
    c->n_holds--;
    pthread_mutex_unlock(&c->lock);
    free(h);
}

static int route(void *self, const char *method, const char *path, const char *query, const json_t *body,
                 json_t **reply, char **text, struct ws_error *err)
{
    struct memory_catalog *c = self;
    (void)query;
    (void)text;
    if (strcmp(method, "POST") != 0 || !strstr(path, "/loaded") || !json_is_object(body))
        return ws_error_set(err, ENOENT, "no %s %s", method, path);
    pthread_mutex_lock(&c->lock);
    c->n_reports++;
    pthread_mutex_unlock(&c->lock);
    *reply = json_object();
    return 0;
}

static const struct ws_catalog_ops ops = {
    .seq = get_seq, .models = get_models, .hold = take, .drop = drop, .route = route};

/* --- what arrives --- */

static int take_nothing(void *self, const char *model, uint64_t version, const char *run, const char *holder,
                        void (*revoked)(void *), void *arg, struct ws_hold **out, struct ws_error *err)
{
    int rc = take(self, model, version, run, holder, revoked, arg, out, err);
    if (rc == 0)
        **out = (struct ws_hold){0};
    return rc;
}

static bool is_here(const struct held *h, size_t file, size_t first, size_t n)
{
    return n == 0 ? h->has_manifest : file == h->file && first + n <= h->end;
}

static int here(void *self, struct ws_hold *hold, size_t file, size_t first, size_t n,
                void (*arrived)(void *), void *arg, struct ws_error *err)
{
    struct memory_catalog *c = self;
    struct held *h = (struct held *)hold;
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
    h->base = (struct ws_hold){.manifest = m, .regions = h->regions}; /* who wants it as text makes it */
    return 1;
}

static bool forget(void *self, struct ws_hold *hold)
{
    struct memory_catalog *c = self;
    struct held *h = (struct held *)hold;
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
            arrived(arrived_arg); /* h may be gone now */
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
                                                   .hold = take_nothing,
                                                   .drop = drop,
                                                   .here = here,
                                                   .forget = forget,
                                                   .route = route};

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

struct ws_catalog memory_catalog_of(struct memory_catalog *c)
{
    return (struct ws_catalog){&ops, c};
}

/* Revoking overwrites bytes that a slow reader still sends: a race on purpose, which hashes must catch. */
__attribute__((no_sanitize("thread"))) static void fill(struct ws_region *r, unsigned seed)
{
    uint64_t x = seed * 0x9E3779B97F4A7C15ULL + 1;
    unsigned char *p = ws_region_data(r);
    for (uint64_t i = 0; i < ws_region_size(r); i++) {
        if (i % 8 == 0)
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        p[i] = (unsigned char)(x >> (i % 8 * 8));
    }
}

void memory_catalog_publish(struct memory_catalog *c, const char *model, uint64_t version,
                            const uint64_t *sizes, size_t n, unsigned seed)
{
    struct ws_error err = {0};
    struct item it = {.used = true};
    int rc = ws_manifest_new(&it.manifest, model, version, RUN, &err);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        char name[32];
        struct ws_bundle_file *f;
        snprintf(name, sizeof(name), "file%zu", i);
        rc = ws_manifest_add(it.manifest, name, sizes[i], 0, &f, &err);
        if (rc == 0 && sizes[i] > 0) {
            rc = ws_region_new(&it.regions[i], sizes[i], &err);
            if (rc == 0)
                fill(it.regions[i], seed + (unsigned)i);
            for (size_t b = 0; rc == 0 && b < f->n_blocks; b++)
                f->hashes[b] =
                    ws_hash(ws_region_data(it.regions[i]) + b * WS_BLOCK_BYTES, ws_block_len(f, b));
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

void memory_catalog_revoke(struct memory_catalog *c, const char *model, uint64_t version, bool at_once)
{
    pthread_mutex_lock(&c->lock);
    struct item *it = find(c, model, version);
    it->gone = true;
    for (struct held *h = it->holds; h; h = h->next)
        if (h->revoked)
            h->revoked(h->arg);
    if (at_once)
        for (size_t i = 0; i < it->manifest->n_files; i++)
            if (it->regions[i])
                fill(it->regions[i], 999);
    pthread_mutex_unlock(&c->lock);
    atomic_fetch_add(&c->seq, 1);
}

unsigned memory_catalog_holds(struct memory_catalog *c)
{
    pthread_mutex_lock(&c->lock);
    unsigned n = c->n_holds;
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
    assert(c->n_holds == 0);
    pthread_mutex_lock(&c->asking);
    c->stop = true;
    pthread_mutex_unlock(&c->asking);
    if (c->brings)
        pthread_join(c->bringer, NULL);
    pthread_mutex_destroy(&c->asking);
    for (size_t i = 0; i < MAX_VERSIONS; i++) {
        for (size_t k = 0; k < 8; k++)
            ws_region_free(c->items[i].regions[k]);
        ws_manifest_free(c->items[i].manifest);
        free(c->items[i].json);
    }
    pthread_mutex_destroy(&c->lock);
    free(c);
}
