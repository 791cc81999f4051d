/* The reference engine: what both servers' routes stand on.
 *
 * It differs from the real servers on purpose in one thing: a checkpoint is read into memory of its own, and
 * only then replaces the old one, so that after a bad file the old weights are still served. With `realistic`
 * it fails as they do: SGLang's dies without a reply, vLLM's weights are gone. What it always shares: no
 * check that a checkpoint is complete, shapes fixed by the first load. */
#include "backends/engine/reference/reference_state.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void reached(void *arg, const char *step)
{
    ws_reference_die_if(arg, step);
}

/* Under load_lock. model: NULL at the first load. */
static int load_into_spare(struct ws_reference *r, const struct ws_checkpoint *model, const char *path,
                           struct ws_error *err)
{
    struct ws_checkpoint_hooks steps = {reached, r};
    const uint64_t start = ws_clock_ns();
    size_t missing = 0;
    int rc;

    rc = ws_checkpoint_load(&r->spare, model, path, model ? &steps : NULL, &missing, err);
    if (rc) {
        ws_log(WS_LOG_WARN, "engine", "load failed path=%s: %s", path, err->text);
        return rc;
    }
    if (missing)
        ws_log(WS_LOG_WARN, "engine", "a mix of old and new weights: tensors missing=%zu path=%s", missing,
               path);
    ws_log(WS_LOG_INFO, "engine", "loaded path=%s tensors=%zu bytes=%zu seconds=%.3f", path,
           r->spare.n_tensors, r->spare.used_bytes, (double)(ws_clock_ns() - start) / 1e9);
    return 0;
}

/* version NULL: keeps its text. Strings are stolen. */
static void serve_spare(struct ws_reference *r, char *path, char *version)
{
    struct ws_checkpoint old;

    pthread_rwlock_wrlock(&r->weights_lock);
    old = r->weights;
    r->weights = r->spare;
    r->spare = old;
    free(r->path);
    r->path = path;
    r->loads++;
    if (version) {
        free(r->version);
        r->version = version;
    }
    pthread_rwlock_unlock(&r->weights_lock);
}

int ws_reference_load(struct ws_reference *r, const char *path, const char *version, struct ws_error *err)
{
    char *own_path = strdup(path), *own_version = version ? strdup(version) : NULL;
    int rc = own_path && (own_version || !version) ? 0 : ws_error_set(err, ENOMEM, "no memory for a path");
    if (!rc) {
        pthread_mutex_lock(&r->load_lock);
        ws_reference_patches_drop(r);
        rc = load_into_spare(r, &r->weights, path, err);
        if (r->slow_ms)
            usleep(r->slow_ms * 1000U);
        if (!rc) {
            ws_reference_patches_loaded(r, path);
            serve_spare(r, own_path, own_version);
        }
        pthread_mutex_unlock(&r->load_lock);
    }
    if (rc) {
        free(own_path);
        free(own_version);
    } else {
        ws_reference_die_if(r, "reply");
    }
    return rc;
}

int ws_reference_load_draft(struct ws_reference *r, const char *path, bool whole, struct ws_error *err)
{
    struct ws_checkpoint made = {0};
    size_t missing = 0;
    pthread_mutex_lock(&r->load_lock);
    int rc = ws_checkpoint_load(&made, &r->draft, path, NULL, &missing, err);
    if (!rc && missing && whole)
        rc = ws_error_set(err, EBADMSG, "%s has nothing for %zu of the draft model's tensors", path, missing);
    if (r->slow_ms)
        usleep(r->slow_ms * 1000U);
    if (!rc) {
        pthread_rwlock_wrlock(&r->weights_lock);
        struct ws_checkpoint old = r->draft;
        r->draft = made;
        made = old;
        pthread_rwlock_unlock(&r->weights_lock);
    }
    ws_checkpoint_release(&made);
    pthread_mutex_unlock(&r->load_lock);
    if (rc)
        return rc;
    ws_log(WS_LOG_INFO, "engine", "loaded draft path=%s", path);
    ws_reference_die_if(r, "draft");
    return 0;
}

void ws_reference_add_checksums(struct ws_reference *r, json_t *reply)
{
    char combined[33];
    if (r->draft_start_path) {
        pthread_rwlock_rdlock(&r->weights_lock);
        json_decref(ws_reference_checksum(&r->draft, combined));
        pthread_rwlock_unlock(&r->weights_lock);
        json_object_set_new(reply, "draft_checksum", json_string(combined));
    }
    if (r->adapters.max_rank)
        json_object_set_new(reply, "adapters", ws_reference_adapters_checksums(r));
}

/* --- life --- */

static int check_options(const struct ws_reference_options *o, struct ws_error *err)
{
    static const char *const steps[] = {"pause", "open",     "load",    "reply",
                                        "wake",  "continue", "adapter", "draft"};

    if (o->api && strcmp(o->api, "sglang") != 0 && strcmp(o->api, "vllm") != 0)
        return ws_error_set(err, EINVAL, "'%s' is no API that it can speak: sglang or vllm", o->api);
    if (o->patch_workers > WS_REFERENCE_WORKERS)
        return ws_error_set(err, EINVAL, "it plays %d workers that patch, at most", WS_REFERENCE_WORKERS);
    int rc = ws_reference_patches_check(o->patch_fault, err);
    if (rc || !o->die_at)
        return rc;
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        if (!strcmp(steps[i], o->die_at))
            return 0;
    }
    return ws_error_set(err, EINVAL,
                        "'%s' is no step to die at: pause, open, load, reply, continue, adapter, draft",
                        o->die_at);
}

static char *copy_or_null(const char *text, bool *ok)
{
    char *copy = text ? strdup(text) : NULL;

    if (text && !copy)
        *ok = false;
    return copy;
}

static int load_first_draft(struct ws_reference *r, const char *path, struct ws_error *err)
{
    size_t missing;
    return ws_checkpoint_load(&r->draft, NULL, path, NULL, &missing, err);
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
    pthread_mutex_init(&r->adapters.lock, NULL);
    pthread_cond_init(&r->adapters.changed, NULL);
    r->refuse = copy_or_null(o->refuse, &ok);
    r->die_at = copy_or_null(o->die_at, &ok);
    r->path = copy_or_null(o->model_path, &ok);
    r->version = copy_or_null("default", &ok);
    r->load_format = copy_or_null(o->load_format, &ok);
    r->start_path = copy_or_null(o->model_path, &ok);
    r->draft_start_path = copy_or_null(o->draft_path, &ok);
    r->refuse_adapter = copy_or_null(o->refuse_adapter, &ok);
    r->patches.fault = copy_or_null(o->patch_fault, &ok);
    r->patches.workers = o->patch_workers;
    r->transfers = o->transfers;
    r->started_ns = o->api_servers > 1 ? 0 : ws_clock_day_ns();
    const bool vllm = o->api && strcmp(o->api, "vllm") == 0;
    r->adapters.max_rank = o->max_lora_rank;
    r->adapters.sglang = !vllm;
    r->adapters.refuse = r->refuse_adapter;
    r->adapters.lie = o->lie;
    r->slow_ms = o->slow_ms;
    r->workers = o->workers ? o->workers : 1;
    atomic_init(&r->busy, o->busy);
    atomic_init(&r->refuse_resumes, o->refuse_resumes);
    r->loads = 1;
    r->lie = o->lie;
    r->realistic = o->realistic;
    rc = ok ? load_into_spare(r, NULL, o->model_path, &own)
            : ws_error_set(&own, ENOMEM, "no memory for the engine");
    if (!rc) {
        r->weights = r->spare;
        r->spare = (struct ws_checkpoint){0};
        ws_reference_patches_loaded(r, o->model_path);
        if (o->draft_path)
            rc = load_first_draft(r, o->draft_path, &own);
    }
    if (!rc) {
        rc = ws_reference_serve(&r->http, o->listen, o->api_key,
                                vllm ? ws_reference_vllm_routes +
                                           (o->max_lora_rank ? 0 : WS_REFERENCE_ADAPTER_ROUTES)
                                     : ws_reference_sglang_routes,
                                r, &own);
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
    return ws_http_server_port(r->http);
}

void ws_reference_free(struct ws_reference *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->pause_lock);
    r->stopping = true;
    pthread_cond_broadcast(&r->resumed);
    pthread_mutex_unlock(&r->pause_lock);
    ws_http_server_free(r->http);
    ws_reference_patches_drop(r);
    free(r->patches.fault);
    ws_checkpoint_release(&r->spare);
    ws_checkpoint_release(&r->weights);
    ws_checkpoint_release(&r->draft);
    ws_reference_adapters_release(&r->adapters);
    pthread_cond_destroy(&r->resumed);
    pthread_mutex_destroy(&r->pause_lock);
    pthread_rwlock_destroy(&r->weights_lock);
    pthread_mutex_destroy(&r->load_lock);
    free(r->refuse);
    free(r->die_at);
    free(r->load_format);
    free(r->path);
    free(r->start_path);
    free(r->draft_start_path);
    free(r->refuse_adapter);
    free(r->version);
    free(r);
}
