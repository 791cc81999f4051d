#include "transports/patch/changes_compare.h"
#include <errno.h>
#include <stdlib.h>

struct span {
    struct ws_changes_tensor *t;
    uint64_t first;
    uint32_t n;
};
WS_VECTOR(spans, struct span);

struct comparing {
    struct ws_changes_finder *j;
    struct spans spans;
};

static void do_span(void *arg, size_t i, unsigned worker)
{
    struct comparing *k = arg;
    struct ws_changes_finder *j = k->j;
    const struct span *p = &k->spans.ptr[i];
    const struct ws_changes_tensor *t = p->t;
    const unsigned w = t->out.element_bytes;
    struct ws_changes_scratch *s;
    struct ws_error why;
    if (atomic_load(&j->rc) || !(s = ws_changes_scratch_of(j, worker)))
        return;
    int rc =
        ws_version_folder_read(j->target, t->file, s->after, (size_t)p->n * w, t->begin + p->first * w, &why);
    if (rc == 0)
        rc = ws_version_folder_read(&j->base, t->base_file, s->before, (size_t)p->n * w,
                                    t->base_begin + p->first * w, &why);
    if (rc == 0)
        rc = ws_changes_add_piece(j, p->t, p->first, s->at,
                                  ws_changes_find_different(s->at, s->before, s->after, p->n, w), s->before,
                                  s->after, &why);
    if (rc < 0)
        ws_changes_fail(j, rc, &why);
}

static int find_in_base(struct ws_changes_finder *j, struct ws_changes_tensor *t)
{
    for (size_t i = 0; i < j->base.folder->n_files; i++) {
        const struct ws_safetensors *st = j->base.folder->files[i].st;
        const struct ws_tensor *old = st ? ws_safetensors_find(st, t->out.name) : NULL;
        if (!old)
            continue;
        t->base_file = i;
        t->base_begin = old->begin;
        return old->end - old->begin == t->end - t->begin ? 0 : -EPROTO;
    }
    return -EPROTO;
}

static int check_layout(struct ws_changes_finder *j, struct ws_error *err)
{
    const struct ws_folder *sides[2] = {j->target->folder, j->base.folder};
    struct ws_safetensors **list[2] = {NULL, NULL};
    size_t n[2] = {0, 0};
    char *report = NULL;
    int rc = 0;
    for (size_t k = 0; k < 2; k++) {
        list[k] = calloc(sides[k]->n_files + 1, sizeof(*list[k]));
        rc = rc < 0 || !list[k] ? -ENOMEM : 0;
        for (size_t i = 0; rc == 0 && i < sides[k]->n_files; i++)
            if (sides[k]->files[i].st)
                list[k][n[k]++] = sides[k]->files[i].st;
    }
    if (rc == 0)
        rc = ws_layout_compare(list[0], n[0], list[1], n[1], &report);
    if (rc == -EPROTO)
        ws_error_set(err, EPROTO, "%s has other tensors than %s: %s", j->target->path, j->base.path,
                     report ? report : "");
    else if (rc < 0)
        ws_error_set(err, -rc, "no memory to compare %s with %s", j->target->path, j->base.path);
    free(report);
    free(list[0]);
    free(list[1]);
    return rc;
}

static int make_spans(struct ws_changes_finder *j, struct spans *out, struct ws_error *err)
{
    int rc = check_layout(j, err);
    for (size_t i = 0; rc == 0 && i < j->c->n; i++) {
        struct ws_changes_tensor *t = &j->c->tensors[i];
        const uint64_t most = WS_BLOCK_BYTES / t->out.element_bytes;
        rc = find_in_base(j, t);
        if (rc < 0)
            ws_error_set(err, -rc, "%s is not in %s", t->out.name, j->base.path);
        for (uint64_t e = 0; rc == 0 && e < t->out.elements; e += most) {
            const uint64_t n = t->out.elements - e < most ? t->out.elements - e : most;
            if ((rc = spans_append(out, (struct span){t, e, (uint32_t)n})) < 0)
                ws_error_set(err, ENOMEM, "no memory to compare %s with %s", j->target->path, j->base.path);
        }
    }
    return rc;
}

int ws_changes_from_folders(struct ws_changes_finder *j, struct ws_workers *workers, struct ws_error *err)
{
    struct comparing k = {.j = j};
    struct ws_error why;
    int rc = ws_changes_open_base(j, &why);
    if (rc < 0 && err)
        *err = why;
    if (rc == 0)
        rc = make_spans(j, &k.spans, err);
    if (rc == 0)
        ws_workers_run_indexed(workers, do_span, &k, k.spans.len);
    spans_reset(&k.spans);
    return rc;
}
