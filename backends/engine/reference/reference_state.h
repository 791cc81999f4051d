/* The reference engine's inside, shared by its files: reference_state (what it serves, its pauses and caches), reference
 * (life, loading), reference_sglang and reference_vllm (the routes of either server over it).
 *
 * Locks, in this order: the adapters' own, load_lock (one load at a time), weights_lock (what is served), pause_lock. */
#ifndef WS_ENGINE_REFERENCE_REFERENCE_STATE_H
#define WS_ENGINE_REFERENCE_REFERENCE_STATE_H
#include "backends/engine/reference/checkpoint_loader.h"
#include "backends/engine/reference/reference.h"
#include "backends/engine/reference/reference_adapters.h"
#include "backends/engine/reference/reference_patch.h"
#include "backends/engine/reference/routes.h"
#include <pthread.h>
#include <stdatomic.h>

struct ws_reference {
    struct ws_http_server *http;
    char *refuse, *die_at, *load_format; /* NULL: none */
    unsigned slow_ms;
    unsigned workers;
    atomic_uint busy;           /* flushes that are still refused */
    atomic_uint refuse_resumes; /* resumes, likewise */
    bool realistic, lie;
    bool transfers;
    uint64_t started_ns;                 /* since 1970; 0: it does not say */
    char *start_path, *draft_start_path; /* the second NULL: it has no draft model */
    char *refuse_adapter;
    struct ws_reference_adapters adapters;
    struct ws_reference_patches patches;

    pthread_mutex_t load_lock;
    struct ws_checkpoint spare; /* guarded by load_lock: the memory of the next load */
    enum { WS_NO_SESSION, WS_TARGET_SESSION, WS_DRAFT_SESSION } session; /* vLLM's; guarded by load_lock */

    pthread_rwlock_t weights_lock; /* guards what is served: */
    struct ws_checkpoint weights, draft;
    char *path, *version;
    unsigned good_loads_needed; /* vLLM's: over 0 its weights are gone */
    unsigned loads;             /* so far, and, of what is in either cache, then; 0: it is empty */
    unsigned cached, cached_externally;

    pthread_mutex_t pause_lock;
    pthread_cond_t resumed;
    bool paused, in_place, stopping;                  /* guarded by pause_lock */
    bool weights_asleep, cache_asleep, graphs_asleep; /* the last: SGLang's */
    bool images_known,
        images_held; /* vLLM's: the scheduler has seen one, the workers keep what they made of it */
};

#define WS_REFERENCE_ADAPTER_ROUTES 2 /* vLLM's first ones */
extern const struct ws_http_route ws_reference_sglang_routes[], ws_reference_vllm_routes[];

/* Faults on command: ends the process at this step, as a kill does. */
void ws_reference_die_if(const struct ws_reference *r, const char *step);
/* Loads and serves; version NULL: keeps the present one. Takes the time of --slow. */
WS_MUST_USE int ws_reference_load(struct ws_reference *r, const char *path, const char *version,
                                  struct ws_error *err);
/* Loads the draft model. whole: a folder that lacks a tensor of it is refused, as by wsync's back end; else what
 * it lacks keeps its old bytes. Takes the time of --slow. */
WS_MUST_USE int ws_reference_load_draft(struct ws_reference *r, const char *path, bool whole,
                                        struct ws_error *err);
/* Fills what it serves with garbage, as memory that was given away and mapped again; it reports the same version. */
void ws_reference_lose_weights(struct ws_reference *r);
void ws_reference_set_version(struct ws_reference *r, char *version); /* takes it over */
void ws_reference_pause(struct ws_reference *r, bool in_place);
void ws_reference_resume(struct ws_reference *r);
bool ws_reference_is_paused(struct ws_reference *r, bool *in_place);
/* Empties its caches; false: it claims that requests are in the way (--busy). */
bool ws_reference_flush(struct ws_reference *r, bool local, bool external);
/* As a request does: fills empty caches, and reports which hold results of other weights: {"local": bool,
 * "external": bool}. New reference. */
json_t *ws_reference_use_caches(struct ws_reference *r);
/* Waits for the end of a running load: the real servers' schedulers answer only then. */
void ws_reference_wait_load(struct ws_reference *r);
/* Waits while paused; false: the server ends. */
bool ws_reference_wait(struct ws_reference *r);
/* Of a checkpoint that no load changes meanwhile: {NAME: hex, ...}, and one hash over all names and hashes in name
 * order (33 bytes). New reference. */
json_t *ws_reference_checksum(const struct ws_checkpoint *w, char combined[33]);
/* Of what is served. */
json_t *ws_reference_checksums(struct ws_reference *r, char combined[33]);
/* Adds to a reply what adapters hold ("adapters"), and a draft model ("draft_checksum"), where there are any. */
void ws_reference_add_checksums(struct ws_reference *r, json_t *reply);

#endif
