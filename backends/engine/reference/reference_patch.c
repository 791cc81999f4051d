#include "backends/engine/reference/reference_patch.h"
#include "backends/engine/reference/reference_state.h"
#include "transports/base/log.h"
#include "transports/patch/patch.h"
#include "transports/patch/version_folder.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DENSEST      20 /* more than a part in so many is loaded */
#define LOST_STEP_US 50000
#define LOST_STEPS   1200 /* a minute */

static const char *const faults[] = {"prepare", "refuse-put", "half-put", "lose-put",
                                     "die-put", "half-undo",  "die-undo", "drift"};

int ws_reference_patches_check(const char *fault, struct ws_error *err)
{
    for (size_t i = 0; fault && i < sizeof(faults) / sizeof(faults[0]); i++)
        if (strcmp(fault, faults[i]) == 0)
            return 0;
    return fault ? ws_error_set(err, EINVAL,
                                "'%s' is no fault of a patch: prepare, refuse-put, half-put, lose-put, "
                                "die-put, half-undo, die-undo, drift",
                                fault)
                 : 0;
}

static bool fails(const struct ws_reference *r, const char *fault)
{
    return r->patches.fault && strcmp(r->patches.fault, fault) == 0;
}

static bool is_last(const struct ws_reference *r, size_t worker)
{
    return worker + 1 == r->patches.workers;
}

void ws_reference_patches_drop(struct ws_reference *r)
{
    struct ws_reference_patches *p = &r->patches;
    for (size_t i = 0; i < p->workers; i++) {
        ws_patch_free(p->of[i]);
        p->of[i] = NULL;
    }
    free(p->plan);
    free(p->target);
    free(p->base);
    p->plan = p->target = p->base = NULL;
    p->put = false;
}

/* --- plans that were dropped before they were there --- */

static void abandon(struct ws_reference_patches *p, const char *plan)
{
    snprintf(p->abandoned[p->n_abandoned++ % WS_REFERENCE_ABANDONED], sizeof(p->abandoned[0]), "%s", plan);
}

static bool is_abandoned(const struct ws_reference_patches *p, const char *plan)
{
    for (size_t i = 0; i < WS_REFERENCE_ABANDONED; i++)
        if (p->abandoned[i][0] && strcmp(p->abandoned[i], plan) == 0)
            return true;
    return false;
}

/* --- which version --- */

static struct ws_reference_version version_at(const char *path)
{
    struct ws_reference_version v = {0};
    struct ws_manifest *m = NULL;
    if (ws_version_folder_manifest(path, &m, NULL) == 0 && m) {
        v.number = m->version;
        snprintf(v.lineage, sizeof(v.lineage), "%s", m->lineage);
        snprintf(v.digest, sizeof(v.digest), "%s", m->digest);
    }
    ws_manifest_free(m);
    return v;
}

static bool is_same(const struct ws_reference_version *a, const struct ws_reference_version *b)
{
    return a->number == b->number && strcmp(a->lineage, b->lineage) == 0 && strcmp(a->digest, b->digest) == 0;
}

void ws_reference_patches_loaded(struct ws_reference *r, const char *path)
{
    r->patches.held = version_at(path);
}

/* Memory is compared where the versions differ; that the rest is the base's, only what was loaded can say. */
static int check_base(struct ws_reference *r, const char *base, struct ws_error *err)
{
    struct ws_reference_patches *p = &r->patches;
    p->of_base = version_at(base);
    if (p->of_base.lineage[0] ? is_same(&p->of_base, &p->held) : strcmp(base, r->path) == 0)
        return 0;
    return ws_error_set(err, ESTALE, "%s is not what is served: that is %s", base, r->path);
}

/* --- answers --- */

static json_t *answer(const char *stage, size_t worker, const char *why)
{
    return json_pack("{s:i, s:s, s:b, s:s}", "rank", (int)worker, "stage", stage, "ok", why == NULL, "why",
                     why ? why : "");
}

static json_t *answer_written(const char *stage, size_t worker, bool wrote, const char *why)
{
    json_t *one = answer(stage, worker, why);
    json_object_set_new(one, "wrote", json_boolean(wrote));
    json_object_set_new(one, "seconds", json_real(0.0001));
    return one;
}

static const char *text_in(const json_t *arguments, const char *key)
{
    const char *text = json_string_value(json_object_get(arguments, key));
    return text ? text : "";
}

static bool has_plan(const struct ws_reference *r, const json_t *arguments)
{
    return r->patches.plan && strcmp(r->patches.plan, text_in(arguments, "plan")) == 0;
}

static bool is_asleep(struct ws_reference *r)
{
    pthread_mutex_lock(&r->pause_lock);
    const bool asleep = r->weights_asleep;
    pthread_mutex_unlock(&r->pause_lock);
    return asleep;
}

/* --- stages, under load_lock --- */

static json_t *state(struct ws_reference *r, size_t worker)
{
    const struct ws_reference_patches *p = &r->patches;
    json_t *one = answer("state", worker, NULL);
    json_object_set_new(one, "ready", json_boolean(r->good_loads_needed == 0 && !is_asleep(r)));
    json_object_set_new(one, "patchable", json_real(1));
    json_object_set_new(one, "plan", p->plan ? json_string(p->plan) : json_null());
    json_object_set_new(one, "put", json_boolean(p->put));
    if (p->held.lineage[0])
        json_object_set_new(one, "served",
                            json_pack("{s:I, s:s, s:s}", "version", (json_int_t)p->held.number, "run",
                                      p->held.lineage, "digest", p->held.digest));
    return one;
}

/* The worker's share of the tensors. */
static int add_regions(struct ws_reference *r, size_t worker, struct ws_patch *p, const struct ws_changes *c,
                       struct ws_error *err)
{
    int rc = 0;
    for (size_t i = worker; rc == 0 && i < r->weights.n_tensors; i += r->patches.workers) {
        const struct ws_checkpoint_tensor *t = &r->weights.tensors[i];
        const struct ws_tensor_changes *of = ws_changes_find(c, t->name);
        const int64_t stride = 1;
        if (!of || of->elements == 0)
            continue;
        const struct ws_patch_region region = {.tensor = t->name,
                                               .memory = r->weights.memory + t->offset,
                                               .memory_elements = of->elements,
                                               .element_bytes = of->element_bytes,
                                               .n_dims = 1,
                                               .shape = &of->elements,
                                               .to_strides = &stride,
                                               .from_strides = &stride};
        rc = ws_patch_add(p, &region, err);
    }
    return rc;
}

static int prepare_one(struct ws_reference *r, size_t worker, const struct ws_changes *c,
                       struct ws_error *err)
{
    struct ws_patch *p = r->patches.of[worker] = ws_patch_new();
    int rc = p ? add_regions(r, worker, p, c, err) : ws_error_set(err, ENOMEM, "no memory for a patch");
    if (rc == 0)
        rc = ws_patch_prepare(p, c, 1, err);
    if (rc == 0)
        rc = ws_patch_check(p, err);
    if (rc == 0 && is_last(r, worker) && fails(r, "prepare"))
        rc = ws_error_set(err, EINVAL, "it was told to refuse");
    return rc;
}

/* rc: before it came to this worker, with err. */
static json_t *answer_prepared(struct ws_reference *r, const struct ws_changes *c, size_t worker, int rc,
                               const struct ws_error *before)
{
    struct ws_error err = *before;
    uint64_t bytes = 0;
    if (rc == 0)
        rc = prepare_one(r, worker, c, &err);
    json_t *one = answer("prepare", worker, rc ? err.text : NULL);
    if (rc == 0) {
        json_object_set_new(one, "changed",
                            json_integer((json_int_t)ws_patch_count(r->patches.of[worker], &bytes)));
        json_object_set_new(one, "bytes", json_integer((json_int_t)bytes));
    }
    return one;
}

static json_t *prepare_all(struct ws_reference *r, const json_t *arguments)
{
    struct ws_reference_patches *p = &r->patches;
    struct ws_changes *c = NULL;
    struct ws_error err = {0};
    json_t *all = json_array();
    bool good = true;
    ws_reference_patches_drop(r);
    int rc = is_abandoned(p, text_in(arguments, "plan"))
                 ? ws_error_set(&err, ECANCELED, "the plan was dropped before it came")
             : is_asleep(r) || r->good_loads_needed > 0
                 ? ws_error_set(&err, EAGAIN, "the weights are asleep, or gone")
                 : check_base(r, text_in(arguments, "base"), &err);
    if (rc == 0)
        rc = ws_changes_open(&c, text_in(arguments, "target"), text_in(arguments, "base"), 1, &err);
    if (rc == 0 && ws_changes_count(c) > ws_changes_elements(c) / DENSEST)
        rc = ws_error_set(&err, E2BIG, "more than a part in %d has changed", DENSEST);
    for (size_t i = 0; i < p->workers; i++) {
        json_t *one = answer_prepared(r, c, i, rc, &err);
        good = good && json_is_true(json_object_get(one, "ok"));
        json_array_append_new(all, one);
    }
    ws_changes_free(c);
    if (good) {
        p->plan = strdup(text_in(arguments, "plan"));
        p->target = strdup(text_in(arguments, "target"));
        p->base = strdup(text_in(arguments, "base"));
        p->of_target = version_at(text_in(arguments, "target"));
    }
    if (!p->plan || !p->target || !p->base)
        ws_reference_patches_drop(r);
    return all;
}

/* What it serves is from there now; a load of it without a path would read that. */
static void serve(struct ws_reference *r, const char *path, const struct ws_reference_version *version)
{
    char *own = strdup(path);
    r->patches.held = *version;
    if (!own)
        return;
    free(r->path);
    r->path = own;
    r->loads++;
}

static void flip(struct ws_reference *r)
{
    ws_log(WS_LOG_WARN, "engine", "flips a bit as told");
    r->weights.memory[r->weights.tensors[r->weights.n_tensors / 2].offset] ^= 1;
}

static void die(const char *fault)
{
    ws_log(WS_LOG_WARN, "engine", "dies as told step=%s", fault);
    _exit(1);
}

static json_t *put_all(struct ws_reference *r, const json_t *arguments)
{
    struct ws_reference_patches *p = &r->patches;
    json_t *all = json_array();
    const char *why = !has_plan(r, arguments) ? "there is no such plan" : NULL;
    bool whole = true;
    for (size_t i = 0; !why && i < p->workers; i++) /* all of them first: they agree */
        if (ws_patch_check(p->of[i], NULL) < 0 && !p->put)
            why = "the weights are others since the plan was prepared";
    if (fails(r, "refuse-put"))
        why = "it was told to refuse";
    pthread_rwlock_wrlock(&r->weights_lock);
    for (size_t i = 0; i < p->workers; i++) {
        const bool broken = !why && is_last(r, i) && fails(r, "half-put");
        if (!why && is_last(r, i) && fails(r, "die-put"))
            die("put");
        if (!why && !broken)
            ws_patch_put(p->of[i]);
        p->put = p->put || !why;
        whole = whole && !broken;
        json_array_append_new(all, answer_written("put", i, !why,
                                                  why      ? why
                                                  : broken ? "it was told to fail half-way"
                                                           : NULL));
    }
    if (!why && whole)
        serve(r, p->target, &p->of_target);
    if (!why && fails(r, "drift"))
        flip(r);
    pthread_rwlock_unlock(&r->weights_lock);
    if (!why && r->slow_ms)
        usleep(r->slow_ms * 1000U);
    return all;
}

static json_t *undo_all(struct ws_reference *r, const json_t *arguments)
{
    struct ws_reference_patches *p = &r->patches;
    json_t *all = json_array();
    const char *why = has_plan(r, arguments) ? NULL : "there is no such plan";
    bool whole = true;
    pthread_rwlock_wrlock(&r->weights_lock);
    for (size_t i = 0; i < p->workers; i++) {
        const bool broken = !why && is_last(r, i) && fails(r, "half-undo");
        if (!why && is_last(r, i) && fails(r, "die-undo"))
            die("undo");
        if (!why && !broken && p->put)
            ws_patch_undo(p->of[i]);
        whole = whole && !broken;
        json_array_append_new(all, answer_written("undo", i, !why,
                                                  why      ? why
                                                  : broken ? "it was told to fail half-way"
                                                           : NULL));
    }
    if (!why && whole) {
        serve(r, p->base, &p->of_base);
        p->put = false;
    }
    pthread_rwlock_unlock(&r->weights_lock);
    return all;
}

static json_t *drop_all(struct ws_reference *r, const json_t *arguments)
{
    json_t *all = json_array();
    if (has_plan(r, arguments))
        ws_reference_patches_drop(r);
    else
        abandon(&r->patches, text_in(arguments, "plan"));
    for (size_t i = 0; i < r->patches.workers; i++)
        json_array_append_new(all, answer("drop", i, NULL));
    return all;
}

/* Against the files of what it serves. */
static int compare(struct ws_reference *r, json_t *const *differs, struct ws_error *err)
{
    struct ws_checkpoint file = {0};
    size_t missing;
    pthread_rwlock_rdlock(&r->weights_lock);
    const int rc = ws_checkpoint_load(&file, &r->weights, r->path, NULL, &missing, err);
    for (size_t i = 0; rc == 0 && i < r->weights.n_tensors; i++) {
        const struct ws_checkpoint_tensor *t = &r->weights.tensors[i];
        const struct ws_checkpoint_tensor *f = &file.tensors[i];
        if (t->bytes != f->bytes ||
            memcmp(r->weights.memory + t->offset, file.memory + f->offset, t->bytes) != 0)
            json_array_append_new(differs[i % r->patches.workers], json_string(t->name));
    }
    pthread_rwlock_unlock(&r->weights_lock);
    ws_checkpoint_release(&file);
    return rc;
}

static json_t *verify_all(struct ws_reference *r)
{
    const size_t n = r->patches.workers;
    json_t *all = json_array(), *differs[WS_REFERENCE_WORKERS] = {0};
    struct ws_error err = {0};
    for (size_t i = 0; i < n; i++)
        differs[i] = json_array();
    const int rc = compare(r, differs, &err);
    for (size_t i = 0; i < n; i++) {
        const bool differ = json_array_size(differs[i]) > 0;
        json_t *one = answer("verify", i, rc ? err.text : differ ? "tensors differ from the file" : NULL);
        json_object_set_new(one, "differs", differs[i]);
        json_array_append_new(all, one);
    }
    return all;
}

/* Not longer than the server lives. */
static void stay_silent(struct ws_reference *r)
{
    bool stopping = false;
    for (int i = 0; !stopping && i < LOST_STEPS; i++) {
        usleep(LOST_STEP_US);
        pthread_mutex_lock(&r->pause_lock);
        stopping = r->stopping;
        pthread_mutex_unlock(&r->pause_lock);
    }
}

json_t *ws_reference_patch(struct ws_reference *r, const json_t *arguments)
{
    const char *stage = text_in(arguments, "stage");
    json_t *all = NULL;
    pthread_mutex_lock(&r->load_lock);
    if (strcmp(stage, "prepare") == 0)
        all = prepare_all(r, arguments);
    else if (strcmp(stage, "put") == 0)
        all = put_all(r, arguments);
    else if (strcmp(stage, "undo") == 0)
        all = undo_all(r, arguments);
    else if (strcmp(stage, "drop") == 0)
        all = drop_all(r, arguments);
    else if (strcmp(stage, "verify") == 0)
        all = verify_all(r);
    if (!all) {
        const bool knows = strcmp(stage, "state") == 0;
        all = json_array();
        for (size_t i = 0; i < r->patches.workers; i++)
            json_array_append_new(all, knows ? state(r, i) : answer(stage, i, "there is no such stage"));
    }
    pthread_mutex_unlock(&r->load_lock);
    if (strcmp(stage, "put") == 0 && fails(r, "lose-put"))
        stay_silent(r);
    return all;
}

bool ws_reference_patch_note(struct ws_reference *r, const char *plan, const char *path, const char *version)
{
    struct ws_reference_patches *p = &r->patches;
    char *own = version ? strdup(version) : NULL;
    pthread_mutex_lock(&r->load_lock);
    const bool agrees = own && p->plan && plan && strcmp(p->plan, plan) == 0 &&
                        strcmp(p->put ? p->target : p->base, path) == 0;
    if (agrees) {
        ws_reference_set_version(r, own);
        own = NULL;
    }
    pthread_mutex_unlock(&r->load_lock);
    free(own);
    return agrees;
}
