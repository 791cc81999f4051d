/* A derivation: what becomes of each tensor, laid out, and the texts that go with it. */
#include "transports/quant/derive.h"
#include "transports/base/json_cursor.h"
#include "transports/base/vector.h"
#include "transports/format/adapter_files.h"
#include "transports/format/folder_index.h"
#include "transports/quant/quantization_config.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN        "%.160s"
#define WEIGHT       ".weight"
#define DIGEST_CHARS 64
#define CONFIG_KEY   "quantization_config"
#define KEY_CHARS    256 /* of a member of config.json, as in select.c */
#define LM_HEAD      "lm_head"
#define SOURCE_KEY   "wsync.source"

static int out_of_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "out of memory for a derived checkpoint's layout");
}

static size_t module_chars(const char *name)
{
    return strlen(name) - strlen(WEIGHT);
}

/* --- jobs --- */

/* A row is the last dimension, so that work on a tensor with large first ones is in small pieces, too. */
static void plan_rows(struct ws_derive_job *job)
{
    const struct ws_tensor *t = job->source;
    const uint64_t bytes = t->end - t->begin;
    const uint64_t elements = t->n_dims ? t->shape[t->n_dims - 1] : 1;
    const uint64_t row_bits = elements * ws_dtype_bits(t->dtype);

    if (bytes == 0)
        return;
    job->row_bytes = row_bits % 8 == 0 ? row_bits / 8 : bytes;
    job->rows = bytes / job->row_bytes;
}

static size_t plan_jobs(struct ws_derive *d, const struct ws_derive_source *source, const bool *chosen)
{
    size_t n = 0;

    for (size_t f = 0; f < source->n_files; f++) {
        d->files[f].first_job = n;
        for (size_t t = 0; t < source->files[f].st->n_tensors; t++, n++) {
            struct ws_derive_job *job = &d->jobs[n];
            job->file = f;
            job->source = &source->files[f].st->tensors[t];
            job->quantised = chosen[n];
            job->step_rows = chosen[n] ? d->recipe->block_rows : 1;
            job->n_targets = 1;
            plan_rows(job);
            d->n_quantised += chosen[n];
            d->source_bytes += job->source->end - job->source->begin;
        }
    }
    return n;
}

/* --- layouts --- */

/* Targets of one file, and the memory of those names that are new. */
struct specs {
    struct ws_tensor *ptr;
    size_t n;
};

static void specs_free(struct specs *s, const struct ws_derive_job *jobs, size_t n_jobs)
{
    for (size_t j = 0, at = 0; j < n_jobs && at < s->n; j++)
        for (unsigned k = 0; k < jobs[j].n_targets && at < s->n; k++, at++)
            if (jobs[j].quantised)
                free((char *)(uintptr_t)s->ptr[at].name);
    free(s->ptr);
}

static int add_targets(struct specs *s, const struct ws_recipe *recipe, struct ws_derive_job *job,
                       struct ws_error *err)
{
    const struct ws_tensor *t = job->source;
    struct ws_recipe_target targets[WS_RECIPE_MAX_TARGETS];

    if (!job->quantised) {
        s->ptr[s->n++] = *t;
        return 0;
    }
    job->n_targets = ws_recipe_targets(recipe, t->dtype, t->shape[0], t->shape[1], targets);
    for (unsigned k = 0; k < job->n_targets; k++) {
        char *name;
        if (asprintf(&name, "%.*s%s", (int)module_chars(t->name), t->name, targets[k].suffix) < 0)
            return out_of_memory(err);
        s->ptr[s->n++] = (struct ws_tensor){.name = name,
                                            .dtype = targets[k].dtype,
                                            .n_dims = targets[k].n_dims,
                                            .shape = {targets[k].shape[0], targets[k].shape[1]}};
    }
    return 0;
}

/* The source's metadata and, behind it, what this file is of; the caller frees it. */
static char *metadata_of(const struct ws_derive *d, const struct ws_safetensors *st, const char *digest)
{
    json_t *all = st->metadata ? json_loads(st->metadata, 0, NULL) : json_pack("{s:s}", "format", "pt");
    char version[16], *text = NULL;
    const char *const members[][2] = {
        {"wsync.recipe", d->recipe->name}, {SOURCE_KEY, digest}, {"wsync.derive", version}};
    int rc = all ? 0 : -1;

    snprintf(version, sizeof(version), "%d", WS_DERIVE_VERSION);
    for (size_t i = 0; rc == 0 && i < sizeof(members) / sizeof(members[0]); i++) {
        (void)json_object_del(all, members[i][0]);
        rc = json_object_set_new(all, members[i][0], json_string(members[i][1]));
    }
    if (rc == 0)
        text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    return text;
}

static size_t place_of(const struct ws_safetensors *st, const char *name)
{
    const struct ws_tensor *t = ws_safetensors_find(st, name);
    assert(t);
    return (size_t)(t - st->tensors);
}

static int lay_out(struct ws_derive *d, size_t f, const struct ws_safetensors *source, const char *digest,
                   struct ws_error *err)
{
    struct ws_derive_file *file = &d->files[f];
    struct ws_derive_job *jobs = d->jobs + file->first_job;
    struct specs s = {.ptr = calloc(source->n_tensors * WS_RECIPE_MAX_TARGETS + 1, sizeof(*s.ptr))};
    char *metadata = metadata_of(d, source, digest);
    int rc = s.ptr && metadata ? 0 : out_of_memory(err);

    for (size_t i = 0; rc == 0 && i < source->n_tensors; i++)
        rc = add_targets(&s, d->recipe, &jobs[i], err);
    if (rc == 0)
        rc = ws_safetensors_layout(s.ptr, s.n, metadata, &file->st, &file->header, err);
    for (size_t i = 0, at = 0; rc == 0 && i < source->n_tensors; i++)
        for (unsigned k = 0; k < jobs[i].n_targets; k++, at++)
            jobs[i].targets[k] = place_of(file->st, s.ptr[at].name);
    for (size_t i = 0; rc == 0 && i < file->st->n_tensors; i++)
        d->bytes += file->st->tensors[i].end - file->st->tensors[i].begin;
    if (s.ptr)
        specs_free(&s, jobs, source->n_tensors);
    free(metadata);
    if (rc < 0)
        ws_error_prefix(err, "%s", file->name);
    return rc;
}

/* --- texts --- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

WS_VECTOR(names, char *);

static int add_name(struct names *v, const char *text, size_t n)
{
    char *name = strndup(text, n);
    if (name && names_append(v, name) == 0)
        return 0;
    free(name);
    return -ENOMEM;
}

static void free_names(struct names *v)
{
    for (size_t i = 0; i < v->len; i++)
        free(v->ptr[i]);
    names_reset(v);
}

/* The linear layers that stay as they are, sorted, lm_head among them: where embeddings are tied it has no tensor. */
static int add_untouched(const struct ws_derive *d, struct names *v)
{
    bool has_head = false;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < d->n_jobs; i++) {
        const struct ws_tensor *t = d->jobs[i].source;
        if (d->jobs[i].quantised || !ws_select_is_module(t))
            continue;
        has_head |= strcmp(t->name, LM_HEAD WEIGHT) == 0;
        rc = add_name(v, t->name, module_chars(t->name));
    }
    if (rc == 0 && !has_head)
        rc = add_name(v, LM_HEAD, strlen(LM_HEAD));
    if (rc == 0)
        qsort(v->ptr, v->len, sizeof(*v->ptr), by_text);
    return rc;
}

/* Where the last member of config.json's object ends. select.c has walked all of it. */
static size_t end_of_members(const char *config, size_t n, bool *empty)
{
    static const char blank[] = " \t\r\n";

    while (n > 0 && config[n - 1] != '}')
        n--;
    assert(n > 0);
    for (n--; n > 0 && memchr(blank, config[n - 1], sizeof(blank) - 1);)
        n--;
    assert(n > 0);
    *empty = config[n - 1] == '{';
    return n;
}

/* Where a member quantization_config is null, which is as good as none: how many bytes are in front of that word. 0: it is
 * not there. */
static size_t null_config(const char *config, size_t n)
{
    char key[KEY_CHARS];
    struct ws_json j;
    size_t at = 0;

    ws_json_start(&j, config, n);
    int rc = ws_json_enter(&j, '{', NULL);
    while (rc == 0 && (rc = ws_json_member(&j, key, sizeof(key), NULL)) == 1) {
        if (strcmp(key, CONFIG_KEY) == 0 && ws_json_is_null(&j))
            at = j.at;
        rc = ws_json_skip(&j, NULL);
    }
    return at;
}

/* The source's text stays, byte by byte: numbers written anew may look otherwise. */
static int write_config(struct ws_derive *d, const char *config, size_t config_bytes, struct ws_error *err)
{
    struct names v = {0};
    bool empty = false;
    const size_t is_null = null_config(config, config_bytes),
                 n = is_null ? is_null : end_of_members(config, config_bytes, &empty);
    FILE *f = open_memstream(&d->config, &d->config_bytes);
    int rc = f && add_untouched(d, &v) == 0 ? 0 : out_of_memory(err);

    if (rc == 0) {
        fwrite(config, 1, n, f);
        if (!is_null)
            fputs(empty ? "\n  \"" CONFIG_KEY "\": " : ",\n  \"" CONFIG_KEY "\": ", f);
        rc = ws_quantization_config_write(f, d->recipe, (const char *const *)v.ptr, v.len, err);
        if (is_null)
            fwrite(config + n + strlen("null"), 1, config_bytes - n - strlen("null"), f);
        else
            fputs("\n}\n", f);
    }
    if (f && fclose(f) != 0 && rc == 0)
        rc = out_of_memory(err);
    free_names(&v);
    return rc;
}

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const struct ws_folder_index_entry *)a)->tensor,
                  ((const struct ws_folder_index_entry *)b)->tensor);
}

/* All tensors by name; the caller frees it. A name in two files would mean whichever an engine happens to read last. */
static int place_all(const struct ws_derive *d, struct ws_folder_index_entry **out, size_t *n,
                     struct ws_error *err)
{
    struct ws_folder_index_entry *all;

    *n = 0;
    for (size_t f = 0; f < d->n_files; f++)
        *n += d->files[f].st->n_tensors;
    all = *out = calloc(*n + 1, sizeof(*all));
    if (!all)
        return out_of_memory(err);
    for (size_t f = 0; f < d->n_files; f++)
        for (size_t t = 0; t < d->files[f].st->n_tensors; t++)
            *all++ = (struct ws_folder_index_entry){d->files[f].st->tensors[t].name, d->files[f].name};
    all = *out;
    qsort(all, *n, sizeof(*all), by_tensor);
    for (size_t i = 1; i < *n; i++)
        if (strcmp(all[i - 1].tensor, all[i].tensor) == 0)
            return ws_error_set(err, EINVAL,
                                "tensor \"" SHOWN
                                "\" would be in both %s and %s: rename the one that is there, or "
                                "ignore the layer",
                                all[i].tensor, all[i - 1].file, all[i].file);
    return 0;
}

static int write_index(struct ws_derive *d, const struct ws_folder_index_entry *all, size_t n,
                       struct ws_error *err)
{
    FILE *f = open_memstream(&d->index, &d->index_bytes);
    int rc;

    if (!f)
        return out_of_memory(err);
    rc = ws_folder_index_write(f, all, n, d->bytes, err);
    if (fclose(f) != 0 && rc == 0)
        rc = out_of_memory(err);
    return rc;
}

static int write_texts(struct ws_derive *d, const struct ws_derive_source *source, struct ws_error *err)
{
    struct ws_folder_index_entry *all = NULL;
    size_t n;
    int rc = place_all(d, &all, &n, err);

    if (rc == 0)
        rc = write_config(d, source->config, source->config_bytes, err);
    if (rc == 0 && source->has_index)
        rc = write_index(d, all, n, err);
    free(all);
    return rc;
}

/* --- all of it --- */

static int check_digest(const char *digest, struct ws_error *err)
{
    size_t n = 0;

    while (digest[n] > ' ' && digest[n] <= '~' && digest[n] != '"' && digest[n] != '\\')
        n++;
    if (n > 0 && n <= DIGEST_CHARS && digest[n] == '\0')
        return 0;
    return ws_error_set(err, EINVAL, "the source's digest \"%.80s\" is not 1 to %d printable characters",
                        digest, DIGEST_CHARS);
}

static size_t count_tensors(const struct ws_derive_source *source)
{
    size_t n = 0;
    for (size_t f = 0; f < source->n_files; f++)
        n += source->files[f].st->n_tensors;
    return n;
}

static int allocate(const struct ws_derive_source *source, const struct ws_recipe *recipe, const char *digest,
                    struct ws_derive **out, struct ws_error *err)
{
    struct ws_derive *d = calloc(1, sizeof(*d));

    if (!d)
        return out_of_memory(err);
    *out = d;
    d->recipe = recipe;
    d->digest_chars = strlen(digest);
    d->n_jobs = count_tensors(source);
    d->files = calloc(source->n_files + 1, sizeof(*d->files));
    d->jobs = calloc(d->n_jobs + 1, sizeof(*d->jobs));
    if (!d->files || !d->jobs)
        return out_of_memory(err);
    for (; d->n_files < source->n_files; d->n_files++) {
        char *name = strdup(source->files[d->n_files].name);
        if (!name)
            return out_of_memory(err);
        d->files[d->n_files].name = name;
    }
    return 0;
}

static int choose(const struct ws_derive_source *source, const struct ws_recipe *recipe,
                  const struct ws_select_options *options, bool *chosen, struct ws_error *err)
{
    const size_t n = count_tensors(source);
    const struct ws_tensor **all = calloc(n + 1, sizeof(*all));
    size_t at = 0;

    if (!all)
        return out_of_memory(err);
    for (size_t f = 0; f < source->n_files; f++)
        for (size_t t = 0; t < source->files[f].st->n_tensors; t++)
            all[at++] = &source->files[f].st->tensors[t];
    int rc = ws_select(recipe, options, source->config, source->config_bytes, all, n, chosen, err);
    free(all);
    return rc;
}

/* Is there what says how a model is built? An adapter has matrices that look like a model's weights. */
static int check_kind(const struct ws_derive_source *source, struct ws_error *err)
{
    for (size_t f = 0; f < source->n_files; f++)
        if (strcmp(source->files[f].name, WS_ADAPTER_WEIGHTS_NAME) == 0)
            return ws_error_set(
                err, EINVAL,
                "it is an adapter, and adapters have no quantised views: engines load them as "
                "they are, also beside a quantised base");
    if (!source->config_bytes)
        return ws_error_set(err, EINVAL,
                            "it has no config.json, which says which layers a model has and how engines read "
                            "them: publish it with the weights");
    return 0;
}

int ws_derive_new(const struct ws_derive_source *source, const struct ws_recipe *recipe,
                  const struct ws_select_options *options, const char *source_digest, struct ws_derive **out,
                  struct ws_error *err)
{
    struct ws_derive *d = NULL;
    bool *chosen = calloc(count_tensors(source) + 1, sizeof(*chosen));
    int rc = chosen ? check_digest(source_digest, err) : out_of_memory(err);

    if (rc == 0)
        rc = check_kind(source, err);
    if (rc == 0)
        rc = allocate(source, recipe, source_digest, &d, err);
    if (rc == 0)
        rc = choose(source, recipe, options, chosen, err);
    if (rc == 0) {
        const size_t n = plan_jobs(d, source, chosen);
        assert(n == d->n_jobs);
    }
    for (size_t f = 0; rc == 0 && f < d->n_files; f++)
        rc = lay_out(d, f, source->files[f].st, source_digest, err);
    if (rc == 0)
        rc = write_texts(d, source, err);
    free(chosen);
    if (rc == 0)
        *out = d;
    else
        ws_derive_free(d);
    return rc;
}

/* In a text of JSON a quote within a string has a backslash, so that with the comma this can be a member alone. */
static void put_digest(char *text, size_t n, const char *digest, size_t digest_chars)
{
    static const char member[] = ",\"" SOURCE_KEY "\":\"";
    char *at = memmem(text, n, member, strlen(member));

    assert(at);
    memcpy(at + strlen(member), digest, digest_chars);
}

int ws_derive_set_source(struct ws_derive *d, const char *source_digest, struct ws_error *err)
{
    const size_t n = strlen(source_digest);
    int rc = check_digest(source_digest, err);

    if (rc == 0 && n != d->digest_chars)
        rc = ws_error_set(err, EINVAL, "the source's digest has %zu characters now, and had %zu", n,
                          d->digest_chars);
    for (size_t f = 0; rc == 0 && f < d->n_files; f++) {
        struct ws_safetensors *st = d->files[f].st;
        put_digest(d->files[f].header, st->data_begin, source_digest, n);
        put_digest(st->metadata, strlen(st->metadata), source_digest, n);
    }
    return rc;
}

void ws_derive_free(struct ws_derive *d)
{
    if (!d)
        return;
    for (size_t f = 0; f < d->n_files; f++) {
        free((char *)(uintptr_t)d->files[f].name);
        ws_safetensors_free(d->files[f].st);
        free(d->files[f].header);
    }
    free(d->files);
    free(d->jobs);
    free(d->config);
    free(d->index);
    free(d);
}
