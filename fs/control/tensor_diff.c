#include "fs/control/tensor_diff.h"
#include "fs/store/content.h"
#include "fs/store/version.h"
#include "transports/base/text.h"
#include "transports/delta/ulp_distance.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct pairs {
    size_t n;
    struct ws_ulp_pair *list;
    const char **names;
    uint64_t only_here, away;
};

static const struct ws_tensor *find_tensor(struct ws_version *v, const char *name, size_t *file)
{
    const struct ws_manifest *m = ws_version_manifest(v, NULL);

    for (size_t i = 0; i < m->n_files; i++) {
        const struct ws_safetensors *st = m->files[i].header_bytes ? ws_version_header(v, i, NULL) : NULL;
        const struct ws_tensor *t = st ? ws_safetensors_find(st, name) : NULL;
        if (t) {
            *file = i;
            return t;
        }
    }
    return NULL;
}

static bool has_same_shape(const struct ws_tensor *a, const struct ws_tensor *b)
{
    return a->dtype == b->dtype && a->end - a->begin == b->end - b->begin;
}

static void add_tensor(struct pairs *p, struct ws_version *v, size_t file, const struct ws_tensor *t,
                       struct ws_version *before)
{
    size_t other = 0;
    const struct ws_tensor *old = find_tensor(before, t->name, &other);

    if (!old || !has_same_shape(t, old)) {
        p->only_here++;
        return;
    }
    const uint64_t n = t->end - t->begin;
    if (n > 0 &&
        !(ws_version_has_range(v, file, t->begin, n) && ws_version_has_range(before, other, old->begin, n))) {
        p->away++;
        return;
    }
    if (t->end > t->begin) {
        p->names[p->n] = t->name;
        p->list[p->n++] =
            (struct ws_ulp_pair){.dtype = t->dtype,
                                 .a = ws_region_data(ws_version_region(before, other)) + old->begin,
                                 .b = ws_region_data(ws_version_region(v, file)) + t->begin,
                                 .bytes = t->end - t->begin};
    }
}

static int collect(struct pairs *p, struct ws_version *v, struct ws_version *before)
{
    const struct ws_manifest *m = ws_version_manifest(v, NULL);
    size_t room = 1;

    for (size_t i = 0; i < m->n_files; i++) {
        const struct ws_safetensors *st = m->files[i].header_bytes ? ws_version_header(v, i, NULL) : NULL;
        room += st ? st->n_tensors : 0;
    }
    p->list = calloc(room, sizeof(*p->list));
    p->names = calloc(room, sizeof(*p->names));
    for (size_t i = 0; p->list && p->names && i < m->n_files; i++) {
        const struct ws_safetensors *st = m->files[i].header_bytes ? ws_version_header(v, i, NULL) : NULL;
        for (size_t k = 0; st && k < st->n_tensors; k++)
            add_tensor(p, v, i, &st->tensors[k], before);
    }
    return p->list && p->names ? 0 : -ENOMEM;
}

static void print(const struct pairs *p, struct ws_version *v, struct ws_version *before, FILE *f)
{
    uint64_t elements = 0, changed = 0;

    for (size_t i = 0; i < p->n; i++) {
        elements += p->list[i].out.elements;
        changed += p->list[i].out.changed;
    }
    fprintf(f, "# from %" PRIu64 " to %" PRIu64 ": %" PRIu64 " of %" PRIu64 " elements changed (%.4f%%)\n",
            ws_version_number(before), ws_version_number(v), changed, elements,
            elements ? 100.0 * (double)changed / (double)elements : 0.0);
    if (p->only_here)
        fprintf(f, "# %" PRIu64 " tensors have no counterpart of the same type and size\n", p->only_here);
    if (p->away)
        fprintf(f, "# %" PRIu64 " tensors are not here, as nobody read them (need=learn)\n", p->away);
    fprintf(f, "# elements changed fraction largest_ulp dtype name\n");
    for (size_t i = 0; i < p->n; i++) {
        const struct ws_ulp_distance *d = &p->list[i].out;
        char name[WS_MAX_TENSOR_NAME + 1];
        snprintf(name, sizeof(name), "%s", p->names[i]);
        ws_text_clean(name);
        fprintf(f, "%" PRIu64 " %" PRIu64 " %.6f %" PRIu64 " %s %s\n", d->elements, d->changed,
                d->elements ? (double)d->changed / (double)d->elements : 0.0, d->largest,
                ws_dtype_name(p->list[i].dtype), name);
    }
}

static int compare(struct ws_version *v, struct ws_version *before, char **text)
{
    const struct ws_store_options *o = &v->store->options;
    struct ws_workers *workers = ws_workers_new(o->threads, o->nice);
    struct pairs p = {0};
    size_t len;
    int rc = workers ? collect(&p, v, before) : -ENOMEM;

    if (rc == 0)
        rc = ws_ulp_distances(p.list, p.n, workers);
    FILE *f = rc == 0 ? open_memstream(text, &len) : NULL;
    if (f) {
        print(&p, v, before, f);
        rc = fclose(f) == 0 ? 0 : -ENOMEM;
    } else {
        rc = -ENOMEM;
    }
    ws_workers_free(workers);
    free(p.list);
    free(p.names);
    return rc;
}

int ws_tensor_diff_print(struct ws_version *v, FILE *f)
{
    struct ws_version *before = NULL;
    int rc = 0;

    pthread_mutex_lock(&v->tensor_diff_lock); /* one comparison at a time */
    if (!v->tensor_diff && ws_version_is_complete(v) && (before = ws_version_below(v))) {
        rc = compare(v, before, &v->tensor_diff);
        ws_version_retain(before, -1);
        ws_version_put(before);
    }
    if (v->tensor_diff)
        fputs(v->tensor_diff, f);
    else if (rc == 0)
        fprintf(f, "# %s\n",
                ws_version_is_complete(v) ? "the version before this one is not here: nothing to compare with"
                                          : "this version is not here: pull it first");
    pthread_mutex_unlock(&v->tensor_diff_lock);
    return rc;
}
