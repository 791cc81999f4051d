#include "transports/patch/changes.h"
#include "transports/base/cpu_features.h"
#include "transports/patch/changes_compare.h"
#include "transports/patch/changes_records.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 8
#define FEW         (1UL << 20) /* so many changes are listed however dense they are */
#define DENSE       8           /* of more than one element in so many no list is made */

/* --- the lists --- */

static int by_first(const void *a, const void *b)
{
    const struct ws_changes_piece *x = a, *y = b;
    return x->first + x->at[0] < y->first + y->at[0] ? -1 : x->first + x->at[0] > y->first + y->at[0];
}

static void free_pieces(struct ws_changes_tensor *t)
{
    for (size_t i = 0; i < t->pieces.len; i++) {
        free(t->pieces.ptr[i].at);
        free(t->pieces.ptr[i].values);
    }
    ws_changes_pieces_reset(&t->pieces);
}

static bool join_pieces(struct ws_changes_tensor *t)
{
    struct ws_tensor_changes *out = &t->out;
    const unsigned w = out->element_bytes;
    uint64_t n = 0;
    if (t->pieces.len == 0)
        return true;
    qsort(t->pieces.ptr, t->pieces.len, sizeof(struct ws_changes_piece), by_first);
    for (size_t i = 0; i < t->pieces.len; i++)
        n += t->pieces.ptr[i].n;
    out->indexes = malloc(n * (out->is_wide ? sizeof(uint64_t) : sizeof(uint32_t)));
    out->before = malloc(n * w);
    out->after = malloc(n * w);
    if (!out->indexes || !out->before || !out->after)
        return false;
    for (size_t i = 0; i < t->pieces.len; i++) {
        struct ws_changes_piece *p = &t->pieces.ptr[i];
        for (uint32_t k = 0; k < p->n; k++)
            if (out->is_wide)
                ((uint64_t *)out->indexes)[out->n + k] = p->first + p->at[k];
            else
                ((uint32_t *)out->indexes)[out->n + k] = (uint32_t)(p->first + p->at[k]);
        memcpy(out->before + out->n * w, p->values, (size_t)p->n * w);
        memcpy(out->after + out->n * w, p->values + (size_t)p->n * w, (size_t)p->n * w);
        out->n += p->n;
        free(p->at);
        free(p->values);
        p->at = NULL;
        p->values = NULL;
    }
    return true;
}

static void join_tensor(void *arg, size_t i)
{
    struct ws_changes_finder *j = arg;
    struct ws_changes_tensor *t = &j->c->tensors[i];
    struct ws_error why;
    if (!join_pieces(t))
        ws_changes_fail(j, ws_error_set(&why, ENOMEM, "no memory for the changes of %s", t->out.name), &why);
    free_pieces(t);
}

static int join(struct ws_changes_finder *j, struct ws_workers *workers, struct ws_error *err)
{
    struct ws_changes *c = j->c;
    ws_workers_run(workers, join_tensor, j, c->n);
    for (size_t i = 0; i < c->n; i++)
        c->count += c->tensors[i].out.n;
    return ws_changes_result(j, 0, err);
}

/* --- the target's tensors --- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct ws_changes_tensor *)a)->out.name,
                  ((const struct ws_changes_tensor *)b)->out.name);
}

static unsigned element_bytes(enum ws_dtype dtype)
{
    const unsigned bits = ws_dtype_bits(dtype);
    return bits < 8 ? 1 : bits / 8;
}

static int list_tensors(struct ws_changes *c, const struct ws_folder *f, struct ws_error *err)
{
    size_t n = 0, chars = 0;
    for (size_t i = 0; i < f->n_files; i++)
        for (size_t k = 0; f->files[i].st && k < f->files[i].st->n_tensors; k++, n++)
            chars += strlen(f->files[i].st->tensors[k].name) + 1;
    c->tensors = calloc(n + 1, sizeof(*c->tensors));
    c->names = malloc(chars + 1);
    if (!c->tensors || !c->names)
        return ws_error_set(err, ENOMEM, "no memory for %zu tensors", n);
    char *name = c->names;
    for (size_t i = 0; i < f->n_files; i++)
        for (size_t k = 0; f->files[i].st && k < f->files[i].st->n_tensors; k++) {
            const struct ws_tensor *from = &f->files[i].st->tensors[k];
            struct ws_changes_tensor *t = &c->tensors[c->n++];
            const size_t bytes = strlen(from->name) + 1;
            memcpy(name, from->name, bytes);
            t->out.name = name;
            name += bytes;
            t->out.element_bytes = element_bytes(from->dtype);
            t->out.elements = (from->end - from->begin) / t->out.element_bytes;
            t->out.is_wide = t->out.elements > (uint64_t)UINT32_MAX + 1;
            t->file = i;
            t->begin = from->begin;
            t->end = from->end;
            c->elements += t->out.elements;
        }
    qsort(c->tensors, c->n, sizeof(*c->tensors), by_name);
    for (size_t i = 0; i < c->n; i++)
        pthread_mutex_init(&c->tensors[i].lock, NULL);
    return 0;
}

static int by_begin(const void *a, const void *b)
{
    const struct ws_changes_tensor *x = *(struct ws_changes_tensor *const *)a,
                                   *y = *(struct ws_changes_tensor *const *)b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static bool place_tensors(struct ws_changes_finder *j)
{
    const size_t n_files = j->target->folder->n_files;
    j->by_place = calloc(n_files + 1, sizeof(*j->by_place));
    j->n_by_place = calloc(n_files + 1, sizeof(*j->n_by_place));
    j->edges = calloc(n_files + 1, sizeof(*j->edges));
    j->headers = calloc(n_files + 1, sizeof(*j->headers));
    bool ok = j->by_place && j->n_by_place && j->edges && j->headers;
    for (size_t i = 0; ok && i < n_files; i++) {
        const struct ws_folder_file *f = &j->target->folder->files[i];
        j->by_place[i] = calloc((f->st ? f->st->n_tensors : 0) + 1, sizeof(struct ws_changes_tensor *));
        j->edges[i] = calloc(ws_manifest_count_blocks(f->size_bytes) + 1, sizeof(struct ws_changes_edges));
        ok = j->by_place[i] && j->edges[i];
    }
    for (size_t i = 0; ok && i < j->c->n; i++) {
        struct ws_changes_tensor *t = &j->c->tensors[i];
        if (t->end > t->begin)
            j->by_place[t->file][j->n_by_place[t->file]++] = t;
    }
    for (size_t i = 0; ok && i < n_files; i++)
        qsort(j->by_place[i], j->n_by_place[i], sizeof(struct ws_changes_tensor *), by_begin);
    return ok;
}

static bool number_files(struct ws_changes_finder *j)
{
    const struct ws_manifest *m = j->target->manifest;
    j->file_of = calloc(m->n_files + 1, sizeof(*j->file_of));
    for (size_t i = 0; j->file_of && i < m->n_files; i++)
        j->file_of[i] = ws_version_folder_file(j->target, m->files[i].name);
    return j->file_of;
}

static void free_job(struct ws_changes_finder *j, unsigned n_workers)
{
    for (size_t i = 0; i < j->target->folder->n_files; i++) {
        if (j->by_place)
            free(j->by_place[i]);
        if (j->edges)
            free(j->edges[i]);
        if (j->headers)
            free(j->headers[i]);
    }
    for (unsigned i = 0; j->scratch && i < n_workers; i++)
        if (j->scratch[i]) {
            ws_delta_edit_free(j->scratch[i]->edit);
            free(j->scratch[i]);
        }
    free(j->scratch);
    free(j->by_place);
    free(j->n_by_place);
    free(j->edges);
    free(j->headers);
    free(j->file_of);
    ws_version_folder_close(&j->base);
    pthread_mutex_destroy(&j->base_lock);
    pthread_mutex_destroy(&j->lock);
}

/* Forgets what was found, to begin again another way. */
static void restart(struct ws_changes_finder *j)
{
    for (size_t i = 0; i < j->c->n; i++)
        free_pieces(&j->c->tensors[i]);
    atomic_store(&j->count, 0);
}

/* Where the records do not fit the tensors, these are compared. */
static int collect(struct ws_changes_finder *j, struct ws_workers *workers, struct ws_error *err)
{
    if (j->recorded) {
        const int rc = ws_changes_from_records(j, workers, &j->c->recorded, err);
        if (rc < 0 || j->c->recorded)
            return rc;
        restart(j);
    }
    return ws_changes_result(j, ws_changes_from_folders(j, workers, err), err);
}

static int make(struct ws_changes *c, const struct ws_version_folder *target, const char *base,
                const struct ws_recorded *recorded, unsigned threads, struct ws_error *err)
{
    struct ws_workers *workers = ws_workers_new(threads ? threads : ws_cpu_cores(MAX_THREADS), 0);
    struct ws_changes_finder j = {.c = c, .target = target, .base_path = base, .recorded = recorded};
    pthread_mutex_init(&j.lock, NULL);
    pthread_mutex_init(&j.base_lock, NULL);
    int rc = list_tensors(c, target->folder, err);
    const unsigned n_workers = workers ? ws_workers_count(workers) : 0;
    j.most = c->elements / DENSE > FEW ? c->elements / DENSE : FEW;
    j.scratch = calloc(n_workers + 1, sizeof(struct ws_changes_scratch *));
    if (rc == 0 && !(workers && j.scratch && place_tensors(&j) && (!recorded || number_files(&j))))
        rc = ws_error_set(err, ENOMEM, "no memory to list the changes of %s", target->path);
    if (rc == 0)
        rc = collect(&j, workers, err);
    if (rc == 0)
        rc = join(&j, workers, err);
    free_job(&j, n_workers);
    ws_workers_free(workers);
    return rc;
}

/* --- opening --- */

int ws_changes_open(struct ws_changes **out, const char *target, const char *base, unsigned threads,
                    struct ws_error *err)
{
    struct ws_version_folder t = {0};
    struct ws_manifest *base_manifest = NULL;
    struct ws_recorded recorded = {0};
    bool has_records = false;
    struct ws_changes *c = calloc(1, sizeof(*c));
    *out = NULL;
    int rc =
        c ? ws_version_folder_open(&t, target, err) : ws_error_set(err, ENOMEM, "no memory to list changes");
    if (rc == 0)
        rc = ws_version_folder_manifest(base, &base_manifest, err);
    if (rc == 0 && t.manifest && base_manifest) {
        rc = ws_recorded_read(&recorded, &t, base_manifest, err);
        has_records = rc == 0;
        if (rc == -ENOENT)
            rc = 0;
    }
    if (rc == 0)
        rc = make(c, &t, base, has_records ? &recorded : NULL, threads, err);
    ws_recorded_free(&recorded);
    ws_manifest_free(base_manifest);
    ws_version_folder_close(&t);
    if (rc == 0)
        *out = c;
    else
        ws_changes_free(c);
    return rc;
}

void ws_changes_free(struct ws_changes *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n; i++) {
        free_pieces(&c->tensors[i]);
        free(c->tensors[i].out.indexes);
        free(c->tensors[i].out.before);
        free(c->tensors[i].out.after);
        pthread_mutex_destroy(&c->tensors[i].lock);
    }
    free(c->tensors);
    free(c->names);
    free(c);
}

const struct ws_tensor_changes *ws_changes_find(const struct ws_changes *c, const char *tensor)
{
    size_t low = 0, high = c->n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const int order = strcmp(tensor, c->tensors[mid].out.name);
        if (order == 0)
            return &c->tensors[mid].out;
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

uint64_t ws_changes_count(const struct ws_changes *c)
{
    return c->count;
}

uint64_t ws_changes_elements(const struct ws_changes *c)
{
    return c->elements;
}

bool ws_changes_are_recorded(const struct ws_changes *c)
{
    return c->recorded;
}
