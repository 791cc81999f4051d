#include "backends/engine/reference/reference_state.h"
#include "transports/base/log.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

void ws_reference_die_if(const struct ws_reference *r, const char *step)
{
    if (!r->die_at || strcmp(r->die_at, step) != 0)
        return;
    ws_log(WS_LOG_WARN, "engine", "dies as told step=%s", step);
    _exit(1);
}

void ws_reference_lose_weights(struct ws_reference *r)
{
    pthread_mutex_lock(&r->load_lock);
    pthread_rwlock_wrlock(&r->weights_lock);
    memset(r->weights.memory, 0xa5, r->weights.used_bytes);
    pthread_rwlock_unlock(&r->weights_lock);
    pthread_mutex_unlock(&r->load_lock);
}

void ws_reference_wait_load(struct ws_reference *r)
{
    pthread_mutex_lock(&r->load_lock);
    pthread_mutex_unlock(&r->load_lock);
}

void ws_reference_set_version(struct ws_reference *r, char *version)
{
    pthread_rwlock_wrlock(&r->weights_lock);
    free(r->version);
    r->version = version;
    pthread_rwlock_unlock(&r->weights_lock);
}

void ws_reference_pause(struct ws_reference *r, bool in_place)
{
    pthread_mutex_lock(&r->pause_lock);
    r->paused = true;
    r->in_place = in_place;
    pthread_mutex_unlock(&r->pause_lock);
}

void ws_reference_resume(struct ws_reference *r)
{
    pthread_mutex_lock(&r->pause_lock);
    r->paused = false;
    pthread_cond_broadcast(&r->resumed);
    pthread_mutex_unlock(&r->pause_lock);
}

bool ws_reference_is_paused(struct ws_reference *r, bool *in_place)
{
    pthread_mutex_lock(&r->pause_lock);
    bool yes = r->paused;
    if (in_place)
        *in_place = r->in_place;
    pthread_mutex_unlock(&r->pause_lock);
    return yes;
}

bool ws_reference_wait(struct ws_reference *r)
{
    pthread_mutex_lock(&r->pause_lock);
    while (r->paused && !r->stopping)
        pthread_cond_wait(&r->resumed, &r->pause_lock);
    bool stopping = r->stopping;
    pthread_mutex_unlock(&r->pause_lock);
    return !stopping;
}

bool ws_reference_flush(struct ws_reference *r, bool local, bool external)
{
    if (local && atomic_load(&r->busy) > 0) {
        atomic_fetch_sub(&r->busy, 1);
        return false;
    }
    pthread_rwlock_wrlock(&r->weights_lock);
    r->cached = local ? 0 : r->cached;
    r->cached_externally = external ? 0 : r->cached_externally;
    pthread_rwlock_unlock(&r->weights_lock);
    return true;
}

json_t *ws_reference_use_caches(struct ws_reference *r)
{
    pthread_rwlock_wrlock(&r->weights_lock);
    r->cached = r->cached ? r->cached : r->loads;
    r->cached_externally = r->cached_externally ? r->cached_externally : r->loads;
    json_t *stale =
        json_pack("{s:b, s:b}", "local", r->cached != r->loads, "external", r->cached_externally != r->loads);
    pthread_rwlock_unlock(&r->weights_lock);
    return stale;
}

json_t *ws_reference_checksum(const struct ws_checkpoint *w, char combined[33])
{
    json_t *all = json_object();
    char hex[33];
    XXH3_state_t state;
    XXH128_hash_t whole;
    XXH3_128bits_reset(&state);
    for (size_t i = 0; i < w->n_tensors; i++) {
        const char *name = w->tensors[i].name;
        snprintf(hex, sizeof(hex), "%016lx", ws_checkpoint_tensor_hash(w, i));
        XXH3_128bits_update(&state, name, strlen(name) + 1);
        XXH3_128bits_update(&state, hex, 16);
        json_object_set_new_nocheck(all, name, json_string(hex));
    }
    whole = XXH3_128bits_digest(&state);
    snprintf(combined, 33, "%016lx%016lx", whole.high64, whole.low64);
    return all;
}

json_t *ws_reference_checksums(struct ws_reference *r, char combined[33])
{
    pthread_rwlock_rdlock(&r->weights_lock);
    json_t *all = ws_reference_checksum(&r->weights, combined);
    pthread_rwlock_unlock(&r->weights_lock);
    return all;
}
