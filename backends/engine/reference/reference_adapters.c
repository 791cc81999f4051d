#include "backends/engine/reference/reference_adapters.h"
#include "backends/engine/reference/reference_state.h"
#include "transports/base/log.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "base_model.model."
#define A_END  ".lora_A.weight"
#define B_END  ".lora_B.weight"

static struct ws_reference_adapter *find(struct ws_reference_adapters *all, const char *name)
{
    for (size_t i = 0; i < WS_REFERENCE_ADAPTERS; i++) {
        if (all->items[i].name && strcmp(all->items[i].name, name) == 0)
            return &all->items[i];
    }
    return NULL;
}

static void remove_adapter(struct ws_reference_adapter *a)
{
    free(a->name);
    free(a->path);
    *a = (struct ws_reference_adapter){0};
}

/* A free place; NULL: there is none. */
static struct ws_reference_adapter *place(struct ws_reference_adapters *all)
{
    for (size_t i = 0; i < WS_REFERENCE_ADAPTERS; i++) {
        if (!all->items[i].name)
            return &all->items[i];
    }
    for (size_t i = 0; i < WS_REFERENCE_ADAPTERS; i++) { /* one that is remembered only */
        struct ws_reference_adapter *a = &all->items[i];
        if (!a->listed && !a->users) {
            remove_adapter(a);
            return a;
        }
    }
    return NULL;
}

/* --- reading --- */

static int read_config(const char *path, unsigned max_rank, struct ws_error *err)
{
    char file[PATH_MAX];
    json_error_t why;
    int rc = 0;
    if (snprintf(file, sizeof(file), "%s/adapter_model.safetensors", path) >= (int)sizeof(file) ||
        access(file, R_OK))
        return ws_error_set(err, ENOENT, "No adapter found for %s", path);
    snprintf(file, sizeof(file), "%s/adapter_config.json", path);
    json_t *config = json_load_file(file, 0, &why);
    const char *type = json_string_value(json_object_get(config, "peft_type"));
    const json_int_t rank = json_integer_value(json_object_get(config, "r"));
    if (!config)
        rc = ws_error_set(err, EPROTO, "%s: %s", file, why.text);
    else if (!type || strcmp(type, "LORA") != 0 || rank < 1)
        rc = ws_error_set(err, EPROTO, "%s is no configuration of a LoRA adapter", file);
    else if (json_is_true(json_object_get(config, "use_dora")))
        rc = ws_error_set(err, EPROTO, "DoRA is not supported");
    else if (rank > (json_int_t)max_rank)
        rc = ws_error_set(err, EPROTO, "LoRA rank %lld is greater than max_lora_rank %u.", (long long)rank,
                          max_rank);
    json_decref(config);
    return rc;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

/* A [rank, in] and B [out, rank] beside the model's [out, in]. */
static int check_pair(const struct ws_checkpoint *adapter, const struct ws_checkpoint_tensor *a,
                      const struct ws_checkpoint *model, struct ws_error *err)
{
    char name[WS_MAX_NAME + 1];
    const int n = (int)(strlen(a->name) - strlen(A_END)), skip = (int)strlen(PREFIX);
    if (strncmp(a->name, PREFIX, strlen(PREFIX)) != 0 || n <= skip)
        return ws_error_set(err, EPROTO, "%s is no tensor of an adapter", a->name);
    snprintf(name, sizeof(name), "%.*s" B_END, n, a->name);
    const struct ws_checkpoint_tensor *b = ws_checkpoint_find(adapter, name);
    snprintf(name, sizeof(name), "%.*s.weight", n - skip, a->name + skip);
    const struct ws_checkpoint_tensor *target = ws_checkpoint_find(model, name);
    if (!b)
        return ws_error_set(err, EPROTO, "%s has no lora_B beside it", a->name);
    if (!target)
        return ws_error_set(err, EPROTO, "expected target modules of the model but received %s", name);
    if (a->n_dims != 2 || b->n_dims != 2 || target->n_dims != 2 || a->shape[0] != b->shape[1] ||
        a->shape[1] != target->shape[1] || b->shape[0] != target->shape[0])
        return ws_error_set(err, EPROTO, "size mismatch for %s: the model has another shape", name);
    return 0;
}

static int check_tensors(struct ws_reference *r, const struct ws_checkpoint *adapter, struct ws_error *err)
{
    int rc = 0;
    pthread_rwlock_rdlock(&r->weights_lock);
    for (size_t i = 0; !rc && i < adapter->n_tensors; i++) {
        const struct ws_checkpoint_tensor *t = &adapter->tensors[i];
        if (ends_with(t->name, A_END))
            rc = check_pair(adapter, t, &r->weights, err);
        else if (!ends_with(t->name, B_END))
            rc = ws_error_set(err, EPROTO, "%s is no tensor of an adapter", t->name);
    }
    pthread_rwlock_unlock(&r->weights_lock);
    return rc;
}

/* Under the lock, as the real servers' loops are busy with it. */
static int read_adapter(struct ws_reference *r, struct ws_reference_adapter *a, struct ws_error *err)
{
    struct ws_checkpoint read = {0};
    size_t missing;
    int rc = read_config(a->path, r->adapters.max_rank, err);
    if (!rc)
        rc = ws_checkpoint_load(&read, NULL, a->path, NULL, &missing, err);
    if (!rc)
        rc = check_tensors(r, &read, err);
    if (!rc) {
        json_decref(ws_reference_checksum(&read, a->checksum));
        a->tensors = read.n_tensors;
        a->held = true;
    }
    ws_checkpoint_release(&read);
    if (rc && rc != -ENOENT && rc != -EPROTO) {
        rc = -EPROTO;
        if (err)
            err->code = EPROTO;
    }
    return rc;
}

/* --- what the routes do --- */

static int add(struct ws_reference *r, const char *name, const char *path, struct ws_error *err)
{
    struct ws_reference_adapters *all = &r->adapters;
    struct ws_reference_adapter *a = find(all, name);
    struct ws_reference_adapter made = {.name = strdup(name), .path = strdup(path), .listed = true};
    int rc = 0;
    if (a && a->listed)
        rc = ws_error_set(err, EEXIST, "The lora adapter '%s' has already been loaded.", name);
    else if (!made.name || !made.path || !(a = a ? a : place(all)))
        rc = ws_error_set(err, ENOMEM, "no room for another adapter");
    if (!rc)
        rc = read_adapter(r, &made, err);
    if (rc) {
        remove_adapter(&made);
        return rc;
    }
    made.users = a->users;
    remove_adapter(a);
    *a = made;
    ws_log(WS_LOG_INFO, "engine", "loaded adapter=%s path=%s tensors=%zu", name, path, made.tensors);
    return 0;
}

static int check_enabled(const struct ws_reference_adapters *all, struct ws_error *err)
{
    return all->max_rank ? 0
                         : ws_error_set(err, ENOTSUP,
                                        "LoRA is not enabled. Please set `--enable-lora` to enable LoRA.");
}

int ws_reference_adapter_load(struct ws_reference *r, const char *name, const char *path,
                              struct ws_error *err)
{
    struct ws_reference_adapters *all = &r->adapters;
    int rc = check_enabled(all, err);
    if (rc)
        return rc;
    if (all->refuse && strcmp(all->refuse, name) == 0)
        return all->lie ? 0
                        : ws_error_set(err, EPROTO,
                                       "Refused: this reference engine was started with --refuse-adapter");
    pthread_mutex_lock(&all->lock);
    while (all->unloading)
        pthread_cond_wait(&all->changed, &all->lock);
    rc = add(r, name, path, err);
    if (r->slow_ms)
        usleep(r->slow_ms * 1000U);
    pthread_mutex_unlock(&all->lock);
    if (!rc)
        ws_reference_die_if(r, "adapter");
    return rc;
}

int ws_reference_adapter_unload(struct ws_reference *r, const char *name, struct ws_error *err)
{
    struct ws_reference_adapters *all = &r->adapters;
    int rc = check_enabled(all, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&all->lock);
    while (all->unloading)
        pthread_cond_wait(&all->changed, &all->lock);
    struct ws_reference_adapter *a = find(all, name);
    if (!a || !a->listed) {
        rc = ws_error_set(err, ENOENT, "The lora adapter '%s' cannot be found.", name);
    } else if (all->sglang) {
        a->listed = false;
        all->unloading = true;
        while (a->users > 0)
            pthread_cond_wait(&all->changed, &all->lock);
        a->held = false;
        all->unloading = false;
        pthread_cond_broadcast(&all->changed);
    } else if (a->users > 0) {
        a->listed = a->held = false; /* its last request removes it */
    } else {
        remove_adapter(a);
    }
    pthread_mutex_unlock(&all->lock);
    if (!rc)
        ws_log(WS_LOG_INFO, "engine", "unloaded adapter=%s", name);
    return rc;
}

int ws_reference_adapter_use(struct ws_reference *r, const char *name, json_t **out, struct ws_error *err)
{
    struct ws_reference_adapters *all = &r->adapters;
    int rc = 0;
    pthread_mutex_lock(&all->lock);
    struct ws_reference_adapter *a = find(all, name);
    if (!a || (!a->listed && !all->sglang))
        rc = ws_error_set(err, ENOENT, "The model `%s` does not exist.", name);
    else if (!a->held)
        rc = read_adapter(r, a, err);
    if (!rc) {
        a->listed = true;
        a->users++;
        *out = json_pack("{s:s, s:s, s:s}", "name", a->name, "path", a->path, "checksum", a->checksum);
    }
    pthread_mutex_unlock(&all->lock);
    return rc;
}

void ws_reference_adapter_done(struct ws_reference *r, const char *name)
{
    struct ws_reference_adapters *all = &r->adapters;
    pthread_mutex_lock(&all->lock);
    struct ws_reference_adapter *a = find(all, name);
    if (a) {
        a->users--;
        if (!a->users && !a->listed && !all->sglang)
            remove_adapter(a);
        pthread_cond_broadcast(&all->changed);
    }
    pthread_mutex_unlock(&all->lock);
}

void ws_reference_adapters_forget(struct ws_reference *r)
{
    pthread_mutex_lock(&r->adapters.lock);
    for (size_t i = 0; i < WS_REFERENCE_ADAPTERS; i++)
        r->adapters.items[i].held = false;
    pthread_mutex_unlock(&r->adapters.lock);
}

void ws_reference_adapters_list(struct ws_reference *r, json_t *cards)
{
    pthread_mutex_lock(&r->adapters.lock);
    for (size_t i = 0; i < WS_REFERENCE_ADAPTERS; i++) {
        const struct ws_reference_adapter *a = &r->adapters.items[i];
        if (a->listed)
            json_array_append_new(cards, json_pack("{s:s, s:s, s:s, s:s}", "id", a->name, "object", "model",
                                                   "root", a->path, "parent", r->start_path));
    }
    pthread_mutex_unlock(&r->adapters.lock);
}

json_t *ws_reference_adapters_checksums(struct ws_reference *r)
{
    json_t *all = json_object();
    pthread_mutex_lock(&r->adapters.lock);
    for (size_t i = 0; i < WS_REFERENCE_ADAPTERS; i++) {
        const struct ws_reference_adapter *a = &r->adapters.items[i];
        if (a->listed)
            json_object_set_new(all, a->name,
                                json_pack("{s:s, s:s}", "path", a->path, "checksum", a->checksum));
    }
    pthread_mutex_unlock(&r->adapters.lock);
    return all;
}

void ws_reference_adapters_release(struct ws_reference_adapters *all)
{
    for (size_t i = 0; i < WS_REFERENCE_ADAPTERS; i++)
        remove_adapter(&all->items[i]);
    pthread_cond_destroy(&all->changed);
    pthread_mutex_destroy(&all->lock);
}
