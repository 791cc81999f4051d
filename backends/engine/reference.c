/* The reference engine: SGLang's routes over weights.c.
 *
 * It differs from the real server on purpose in one thing: a checkpoint is read into memory of its
 * own, and only then takes the place of the old one, so that a bad file leaves the old weights going
 * where the real server dies. What it does share: no check that a checkpoint is complete, shapes fixed
 * by the first load, `in_place` with flush_cache answered as a failure although the weights are new.
 *
 * Locks, in this order: load_lock (one load at a time), weights_lock (what is served), pause_lock. */
#include "backends/engine/reference.h"
#include "backends/engine/reference_http.h"
#include "backends/engine/weights.h"
#include "transports/log.h"
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

struct ws_reference {
    struct ws_reference_http *http;
    char *refuse, *die_at; /* NULL: none */
    unsigned slow_ms;

    pthread_mutex_t load_lock;
    struct ws_weights spare; /* guarded by load_lock: the memory of the next load */

    pthread_rwlock_t weights_lock; /* guards what is served: */
    struct ws_weights weights;
    char *path, *version;

    pthread_mutex_t pause_lock;
    pthread_cond_t resumed;
    bool paused, in_place, stopping; /* guarded by pause_lock */
};

/* Faults on command: as a killed process, without a word to anybody. */
static void die_if(const struct ws_reference *r, const char *step)
{
    if (!r->die_at || strcmp(r->die_at, step) != 0)
        return;
    ws_log(WS_LOG_WARN, "engine", "dies as told step=%s", step);
    _exit(1);
}

static void reached(void *arg, const char *step)
{
    die_if(arg, step);
}

/* --- routes --- */

static void answer_success(struct ws_answer *a, bool success, const char *message)
{
    a->status = success ? 200 : 400;
    a->json = json_pack("{s:b, s:s, s:i}", "success", success, "message", message, "num_paused_requests", 0);
}

static void answer_ok(struct ws_answer *a, const char *message)
{
    a->json = json_pack("{s:s, s:s}", "message", message, "status", "ok");
}

static double seconds_since(const struct timespec *start)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + (double)(now.tv_nsec - start->tv_nsec) / 1e9;
}

/* Under load_lock. model: NULL at the first load. */
static int load_into_spare(struct ws_reference *r, const struct ws_weights *model, const char *path,
                           struct ws_error *err)
{
    struct ws_weights_steps steps = {reached, r};
    struct timespec start;
    size_t missing = 0;
    int rc;

    clock_gettime(CLOCK_MONOTONIC, &start);
    rc = ws_weights_load(&r->spare, model, path, model ? &steps : NULL, &missing, err);
    if (rc) {
        ws_log(WS_LOG_WARN, "engine", "load failed path=%s: %s", path, err->text);
        return rc;
    }
    if (missing)
        ws_log(WS_LOG_WARN, "engine", "a mix of old and new weights: tensors missing=%zu path=%s", missing,
               path);
    ws_log(WS_LOG_INFO, "engine", "loaded path=%s tensors=%zu bytes=%zu seconds=%.3f", path,
           r->spare.n_tensors, r->spare.used_bytes, seconds_since(&start));
    return 0;
}

/* version NULL: keeps its text. Strings are stolen. */
static void serve_spare(struct ws_reference *r, char *path, char *version)
{
    struct ws_weights old;

    pthread_rwlock_wrlock(&r->weights_lock);
    old = r->weights;
    r->weights = r->spare;
    r->spare = old;
    free(r->path);
    r->path = path;
    if (version) {
        free(r->version);
        r->version = version;
    }
    pthread_rwlock_unlock(&r->weights_lock);
}

static bool is_paused_in_place(struct ws_reference *r)
{
    bool yes;

    pthread_mutex_lock(&r->pause_lock);
    yes = r->paused && r->in_place;
    pthread_mutex_unlock(&r->pause_lock);
    return yes;
}

static void load(struct ws_reference *r, const char *path, const char *version, bool flush,
                 struct ws_answer *a)
{
    char *own_path = strdup(path), *own_version = version ? strdup(version) : NULL;
    struct ws_error err = {0};
    char message[WS_ERROR_TEXT + 64];
    int rc;

    pthread_mutex_lock(&r->load_lock);
    rc = load_into_spare(r, &r->weights, path, &err);
    if (r->slow_ms)
        usleep(r->slow_ms * 1000U);
    if (!rc)
        serve_spare(r, own_path, own_version);
    pthread_mutex_unlock(&r->load_lock);
    if (rc) {
        free(own_path);
        free(own_version);
        snprintf(message, sizeof(message), "Failed to get weights iterator: %s", err.text);
        answer_success(a, false, message);
        return;
    }
    die_if(r, "reply");
    if (flush && is_paused_in_place(r))
        answer_success(a, false, "Cache flush failed after updating weights");
    else
        answer_success(a, true, "Succeeded to update model weights.");
}

static void update_from_disk(void *self, const json_t *body, struct ws_answer *a)
{
    struct ws_reference *r = self;
    const char *path = json_string_value(json_object_get(body, "model_path"));
    const json_t *version = json_object_get(body, "weight_version");
    const json_t *flush = json_object_get(body, "flush_cache");
    const char *text = json_string_value(version);

    if (!path)
        ws_answer_bad(a, "model_path: a string is needed");
    else if (version && !json_is_null(version) && !text)
        ws_answer_bad(a, "weight_version: not a string");
    else if (text && r->refuse && !strcmp(text, r->refuse))
        answer_success(a, false, "Refused: this reference engine was started with --refuse");
    else
        load(r, path, text, !json_is_false(flush), a);
}

static void pause_generation(void *self, const json_t *body, struct ws_answer *a)
{
    struct ws_reference *r = self;
    const json_t *word = json_object_get(body, "mode");
    const char *mode = word ? json_string_value(word) : "abort";

    die_if(r, "pause");
    if (!mode || (strcmp(mode, "abort") && strcmp(mode, "retract") && strcmp(mode, "in_place"))) {
        ws_answer_bad(a, "mode: abort, retract or in_place");
        return;
    }
    pthread_mutex_lock(&r->pause_lock);
    r->paused = true;
    r->in_place = !strcmp(mode, "in_place");
    pthread_mutex_unlock(&r->pause_lock);
    answer_ok(a, "Generation paused successfully.");
}

static void continue_generation(void *self, const json_t *body, struct ws_answer *a)
{
    struct ws_reference *r = self;
    die_if(r, "continue");
    if (!body) {
        ws_answer_bad(a, "a body is needed");
        return;
    }
    pthread_mutex_lock(&r->pause_lock);
    r->paused = false;
    pthread_cond_broadcast(&r->resumed);
    pthread_mutex_unlock(&r->pause_lock);
    answer_ok(a, "Generation continued successfully.");
}

static void update_weight_version(void *self, const json_t *body, struct ws_answer *a)
{
    struct ws_reference *r = self;
    const char *version = json_string_value(json_object_get(body, "new_version"));
    char *own = version ? strdup(version) : NULL;

    if (!own) {
        ws_answer_bad(a, "new_version: a string is needed");
        return;
    }
    a->json = json_pack("{s:b, s:s, s:s}", "success", true, "message", "Weight version updated",
                        "new_version", own);
    pthread_rwlock_wrlock(&r->weights_lock);
    free(r->version);
    r->version = own;
    pthread_rwlock_unlock(&r->weights_lock);
}

static void model_info(void *self, const json_t *body, struct ws_answer *a)
{
    struct ws_reference *r = self;

    (void)body;
    pthread_rwlock_rdlock(&r->weights_lock);
    a->json = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b}", "model_path", r->path, "served_model_name", r->path,
                        "weight_version", r->version, "load_format", "auto", "model_type", "reference",
                        "is_generation", true);
    pthread_rwlock_unlock(&r->weights_lock);
}

/* Every tensor's hash, and one over all names and hashes in name order. */
static void weights_checker(void *self, const json_t *body, struct ws_answer *a)
{
    struct ws_reference *r = self;
    const char *action = json_string_value(json_object_get(body, "action"));
    json_t *all = json_object();
    char hex[33], combined[33];
    XXH3_state_t state;
    XXH128_hash_t whole;

    if (!action || strcmp(action, "checksum") != 0) {
        json_decref(all);
        ws_answer_bad(a, "action: checksum is the only one that is known");
        return;
    }
    XXH3_128bits_reset(&state);
    pthread_rwlock_rdlock(&r->weights_lock);
    for (size_t i = 0; i < r->weights.n_tensors; i++) {
        const char *name = r->weights.tensors[i].name;
        snprintf(hex, sizeof(hex), "%016lx", ws_weight_hash(&r->weights, i));
        XXH3_128bits_update(&state, name, strlen(name) + 1);
        XXH3_128bits_update(&state, hex, 16);
        json_object_set_new_nocheck(all, name, json_string(hex));
    }
    pthread_rwlock_unlock(&r->weights_lock);
    whole = XXH3_128bits_digest(&state);
    snprintf(combined, sizeof(combined), "%016lx%016lx", whole.high64, whole.low64);
    a->json = json_pack("{s:b, s:s, s:[{s:o, s:s}], s:s}", "success", true, "message", "", "ranks",
                        "checksums", all, "per_gpu_checksum", combined, "per_engine_checksum", combined);
}

/* Waits while paused, as the real server's requests do; generates nothing and says so. */
static void generate(void *self, const json_t *body, struct ws_answer *a)
{
    struct ws_reference *r = self;
    bool stopping;

    (void)body;
    pthread_mutex_lock(&r->pause_lock);
    while (r->paused && !r->stopping)
        pthread_cond_wait(&r->resumed, &r->pause_lock);
    stopping = r->stopping;
    pthread_mutex_unlock(&r->pause_lock);
    pthread_rwlock_rdlock(&r->weights_lock);
    a->json = json_pack("{s:s, s:[], s:{s:{s:s}, s:i, s:i, s:s}}", "text",
                        "This is wsync's reference engine: it holds weights and generates no text.",
                        "output_ids", "meta_info", "finish_reason", "type", stopping ? "abort" : "stop",
                        "prompt_tokens", 0, "completion_tokens", 0, "weight_version", r->version);
    pthread_rwlock_unlock(&r->weights_lock);
}

static void flush_cache(void *self, const json_t *body, struct ws_answer *a)
{
    (void)self;
    (void)body;
    a->text = "Cache flushed.\n";
}

static void health(void *self, const json_t *body, struct ws_answer *a)
{
    (void)self;
    (void)body;
    a->text = "";
}

static const struct ws_route routes[] = {
    {"/health", WS_GET, true, health},
    {"/ready", WS_GET, true, health},
    {"/model_info", WS_GET, false, model_info},
    {"/get_model_info", WS_GET, false, model_info},
    {"/pause_generation", WS_POST, false, pause_generation},
    {"/continue_generation", WS_POST, false, continue_generation},
    {"/flush_cache", WS_GET | WS_POST, false, flush_cache},
    {"/update_weights_from_disk", WS_POST, false, update_from_disk},
    {"/update_weight_version", WS_POST, false, update_weight_version},
    {"/weights_checker", WS_GET | WS_POST, false, weights_checker},
    {"/generate", WS_POST, false, generate},
};
#define ROUTES (sizeof(routes) / sizeof(routes[0]))

/* --- life --- */

static int check_options(const struct ws_reference_options *o, struct ws_error *err)
{
    static const char *const steps[] = {"pause", "open", "load", "reply", "continue"};

    if (!o->die_at)
        return 0;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        if (!strcmp(steps[i], o->die_at))
            return 0;
    }
    return ws_error_set(err, EINVAL, "'%s' is no step to die at: pause, open, load, reply, continue",
                        o->die_at);
}

static char *copy_or_null(const char *text, bool *ok)
{
    char *copy = text ? strdup(text) : NULL;

    if (text && !copy)
        *ok = false;
    return copy;
}

int ws_reference_new(struct ws_reference **out, const struct ws_reference_options *o, struct ws_error *err)
{
    struct ws_error own = {0};
    struct ws_reference *r;
    bool ok = true;
    int rc = check_options(o, err);

    if (rc)
        return rc;
    r = calloc(1, sizeof(*r));
    if (!r)
        return ws_error_set(err, ENOMEM, "no memory for the engine");
    pthread_mutex_init(&r->load_lock, NULL);
    pthread_rwlock_init(&r->weights_lock, NULL);
    pthread_mutex_init(&r->pause_lock, NULL);
    pthread_cond_init(&r->resumed, NULL);
    r->refuse = copy_or_null(o->refuse, &ok);
    r->die_at = copy_or_null(o->die_at, &ok);
    r->path = copy_or_null(o->model_path, &ok);
    r->version = copy_or_null("default", &ok);
    r->slow_ms = o->slow_ms;
    rc = ok ? load_into_spare(r, NULL, o->model_path, &own)
            : ws_error_set(&own, ENOMEM, "no memory for the engine");
    if (!rc) {
        r->weights = r->spare;
        r->spare = (struct ws_weights){0};
        rc = ws_reference_http_new(&r->http, o->listen, o->api_key, routes, ROUTES, r, &own);
    }
    if (rc) {
        if (err)
            *err = own;
        ws_reference_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

unsigned ws_reference_port(const struct ws_reference *r)
{
    return ws_reference_http_port(r->http);
}

void ws_reference_free(struct ws_reference *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->pause_lock);
    r->stopping = true;
    pthread_cond_broadcast(&r->resumed);
    pthread_mutex_unlock(&r->pause_lock);
    ws_reference_http_free(r->http);
    ws_weights_release(&r->spare);
    ws_weights_release(&r->weights);
    pthread_cond_destroy(&r->resumed);
    pthread_mutex_destroy(&r->pause_lock);
    pthread_rwlock_destroy(&r->weights_lock);
    pthread_mutex_destroy(&r->load_lock);
    free(r->refuse);
    free(r->die_at);
    free(r->path);
    free(r->version);
    free(r);
}
