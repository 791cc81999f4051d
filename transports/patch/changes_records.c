#include "transports/patch/changes_records.h"
#include "transports/patch/changes_aligned.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- an edit --- */

struct walk {
    struct ws_changes_finder *j;
    struct ws_changes_scratch *s;
    size_t file, k; /* the tensor of the last unit */
    uint64_t at;    /* of the block */
    size_t len, n;  /* n: elements of that tensor so far, in s->at */
    uint64_t first; /* of the tensor's that lie whole in the block */
    size_t whole;
    int rc;
    struct ws_error *err;
};

/* Leaves those out that do not differ: a delta may name them all the same. */
static size_t only_different(uint32_t *at, size_t n, const unsigned char *a, const unsigned char *b,
                             unsigned width)
{
    size_t out = 0;
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + (size_t)at[i] * width, b + (size_t)at[i] * width, width) != 0)
            at[out++] = at[i];
    return out;
}

/* Ends the list of tensor k. */
static void end_tensor(struct walk *w)
{
    struct ws_changes_scratch *s = w->s;
    struct ws_changes_tensor *t = w->n ? w->j->by_place[w->file][w->k] : NULL;
    if (!t || w->rc < 0)
        return;
    const unsigned width = t->out.element_bytes;
    const size_t place = (size_t)(t->begin + w->first * width - w->at);
    w->n = only_different(s->at, w->n, s->before + place, s->after + place, width);
    w->rc = ws_changes_add_piece(w->j, t, w->first, s->at, w->n, s->before + place, s->after + place, w->err);
    w->n = 0;
}

/* The tensor that ends behind a byte is tensor k from here on; NULL: there is none. */
static const struct ws_changes_tensor *go_to(struct walk *w, uint64_t byte)
{
    struct ws_changes_tensor *const *list = w->j->by_place[w->file];
    const size_t n = w->j->n_by_place[w->file];
    if (w->k < n && byte < list[w->k]->end && w->whole != SIZE_MAX)
        return list[w->k];
    end_tensor(w);
    while (w->k < n && byte >= list[w->k]->end)
        w->k++;
    if (w->k == n)
        return NULL;
    w->whole = 0;
    if (list[w->k]->begin < w->at + w->len)
        w->first = ws_changes_elements_in(list[w->k], w->at, w->len, &w->whole);
    return list[w->k];
}

/* The element that a byte lies in, if it is whole in the block. */
static void add_byte(struct walk *w, uint64_t byte)
{
    const struct ws_changes_tensor *t = go_to(w, byte);
    if (!t || byte < t->begin)
        return;
    const uint64_t e = (byte - t->begin) / t->out.element_bytes;
    if (e < w->first || e - w->first >= w->whole)
        return;
    const uint32_t at = (uint32_t)(e - w->first);
    if (w->n == 0 || w->s->at[w->n - 1] != at)
        w->s->at[w->n++] = at;
}

static void on_unit(void *arg, uint32_t byte, unsigned width, uint32_t change)
{
    struct walk *w = arg;
    const uint64_t at = w->at + byte;
    const struct ws_changes_tensor *t = go_to(w, at);
    (void)change;
    if (t && width == t->out.element_bytes && at >= t->begin && (at - t->begin) % width == 0)
        add_byte(w, at);
    else
        for (unsigned i = 0; i < width; i++)
            add_byte(w, at + i);
}

#define AROUND WS_CHANGES_ELEMENT_BYTES

/* The bytes around a unit, so that all of each element that it is a part of is there. A copy of the block would cost more. */
static void bring_unit(void *arg, uint32_t byte, unsigned width, uint32_t change)
{
    const struct walk *w = arg;
    const size_t from = byte > AROUND ? byte - AROUND : 0;
    size_t n = byte + width + AROUND - from;
    (void)change;
    if (n > w->len - from)
        n = w->len - from;
    memcpy(w->s->before + from, w->s->after + from, n);
}

static void undo_unit(void *arg, uint32_t byte, unsigned width, uint32_t change)
{
    struct walk *w = arg;
    unsigned char *p = w->s->before + byte;
    uint32_t v = 0;
    memcpy(&v, p, width);
    v = ws_delta_undone(v, change);
    memcpy(p, &v, width);
}

/* The block before the edit is made of the one after it, where it changes, at both ends, and in the file's header. */
static int edit_block(struct ws_changes_finder *j, struct ws_changes_scratch *s, size_t file, uint64_t at,
                      size_t len, const struct ws_delta_record *r, struct ws_error *err)
{
    struct walk w = {.j = j, .s = s, .file = file, .at = at, .len = len, .whole = SIZE_MAX, .err = err};
    bool listed;
    const unsigned char *raw = ws_delta_record_raw(r, s->raw);
    int rc = raw ? ws_delta_edit_read(s->edit, raw, r->raw_bytes, len, err)
                 : ws_error_set(err, EBADMSG, "the delta of a block cannot be unpacked");
    if (rc < 0 || (rc = ws_changes_list_aligned(j, s, file, at, len, &listed, err)) < 0 || listed)
        return rc;
    const uint64_t header = j->target->folder->files[file].st->data_begin;
    const uint64_t first = at + AROUND > header ? AROUND : header - at;
    memcpy(s->before, s->after, first < len ? first : len);
    if (len > AROUND)
        memcpy(s->before + (len - AROUND), s->after + (len - AROUND), AROUND);
    ws_delta_edit_each(s->edit, bring_unit, &w);
    ws_delta_edit_each(s->edit, undo_unit, &w);
    w.k = ws_changes_tensor_at(j, file, at);
    ws_delta_edit_each(s->edit, on_unit, &w);
    end_tensor(&w);
    return w.rc;
}

static void keep_edges(struct ws_changes_edges *e, const unsigned char *before, size_t len)
{
    const size_t n = len < WS_CHANGES_ELEMENT_BYTES ? len : WS_CHANGES_ELEMENT_BYTES;
    e->is_known = true;
    memcpy(e->head, before, n);
    memcpy(e->tail + WS_CHANGES_ELEMENT_BYTES - n, before + len - n, n);
}

/* The base's bytes of a block that came whole. Where the base has no such file, its tensors lie otherwise. */
static int read_base_block(struct ws_changes_finder *j, struct ws_changes_scratch *s, size_t file,
                           uint64_t at, size_t len, struct ws_error *err)
{
    const struct ws_folder_file *f = &j->target->folder->files[file];
    const int rc = ws_changes_open_base(j, err);
    if (rc < 0)
        return rc;
    const int old = ws_version_folder_file(&j->base, f->name);
    if (old < 0 || j->base.folder->files[old].size_bytes != f->size_bytes || !j->base.folder->files[old].st) {
        atomic_store(&j->headers_differ, true);
        return 0;
    }
    return ws_version_folder_read(&j->base, (size_t)old, s->before, len, at, err);
}

/* Keeps what a file's header was, where a block shows that it was another. */
static int keep_header(struct ws_changes_finder *j, const struct ws_changes_scratch *s, size_t file,
                       uint64_t at, size_t len, struct ws_error *err)
{
    const uint64_t header = j->target->folder->files[file].st->data_begin;
    const size_t n = at >= header ? 0 : header - at < len ? (size_t)(header - at) : len;
    int rc = 0;
    if (memcmp(s->before, s->after, n) == 0)
        return 0;
    pthread_mutex_lock(&j->base_lock);
    if (!j->headers[file]) {
        j->headers[file] = malloc(header);
        rc = j->headers[file] ? ws_version_folder_read(j->target, file, j->headers[file], header, 0, err)
                              : ws_error_set(err, ENOMEM, "no memory for a header");
    }
    if (rc == 0)
        memcpy(j->headers[file] + at, s->before, n);
    pthread_mutex_unlock(&j->base_lock);
    return rc;
}

static bool lies_the_same(const struct ws_safetensors *a, const struct ws_safetensors *b)
{
    bool same = a->n_tensors == b->n_tensors;
    for (size_t i = 0; i < a->n_tensors && same; i++) {
        const struct ws_tensor *x = &a->tensors[i], *y = &b->tensors[i];
        same = strcmp(x->name, y->name) == 0 && x->dtype == y->dtype && x->begin == y->begin &&
               x->end == y->end && x->n_dims == y->n_dims &&
               memcmp(x->shape, y->shape, x->n_dims * sizeof(x->shape[0])) == 0;
    }
    return same;
}

/* Headers that are others may still say the same of all tensors: metadata changes with each version of a view. */
static void compare_headers(struct ws_changes_finder *j)
{
    for (size_t i = 0; i < j->target->folder->n_files; i++) {
        const struct ws_folder_file *f = &j->target->folder->files[i];
        struct ws_safetensors *old = NULL;
        if (!j->headers[i])
            continue;
        if (ws_safetensors_parse(j->headers[i], f->st->data_begin, f->size_bytes, &old, NULL) < 0 ||
            !lies_the_same(old, f->st))
            atomic_store(&j->headers_differ, true);
        ws_safetensors_free(old);
    }
}

static void do_record(void *arg, size_t i, unsigned worker)
{
    struct ws_changes_finder *j = arg;
    const struct ws_delta_record *r = j->recorded->list[i];
    const struct ws_manifest_file *f = &j->target->manifest->files[r->file];
    const int file = j->file_of[r->file];
    struct ws_changes_scratch *s;
    struct ws_error why;
    if (file < 0 || !j->target->folder->files[file].st || atomic_load(&j->rc) ||
        atomic_load(&j->headers_differ) || !(s = ws_changes_scratch_of(j, worker)))
        return;
    const size_t len = ws_manifest_block_bytes(f, r->block);
    const uint64_t at = (uint64_t)r->block * WS_BLOCK_BYTES;
    int rc = ws_version_folder_read(j->target, (size_t)file, s->after, len, at, &why);
    if (rc == 0 && r->kind == WS_DELTA_EDIT)
        rc = edit_block(j, s, (size_t)file, at, len, r, &why);
    else if (rc == 0 && (rc = read_base_block(j, s, (size_t)file, at, len, &why)) == 0 &&
             !atomic_load(&j->headers_differ))
        rc = ws_changes_compare_block(j, s, (size_t)file, at, len, &why);
    if (rc == 0 && !atomic_load(&j->headers_differ))
        rc = keep_header(j, s, (size_t)file, at, len, &why);
    if (rc < 0)
        ws_changes_fail(j, rc, &why);
    else
        keep_edges(&j->edges[file][r->block], s->before, len);
}

/* --- elements that lie in two blocks --- */

static int add_straddler(struct ws_changes_finder *j, struct ws_changes_tensor *t, uint64_t border,
                         struct ws_error *err)
{
    const unsigned w = t->out.element_bytes;
    const uint64_t e = (border - t->begin) / w, at = t->begin + e * w;
    const unsigned left = (unsigned)(border - at);
    const struct ws_changes_edges *edges = &j->edges[t->file][border / WS_BLOCK_BYTES];
    unsigned char after[WS_CHANGES_ELEMENT_BYTES], before[WS_CHANGES_ELEMENT_BYTES];
    const uint32_t zero = 0;
    if (left == 0 || !(edges[-1].is_known || edges[0].is_known))
        return 0;
    const int rc = ws_version_folder_read(j->target, t->file, after, w, at, err);
    if (rc < 0)
        return rc;
    memcpy(before, after, w);
    if (edges[-1].is_known)
        memcpy(before, edges[-1].tail + WS_CHANGES_ELEMENT_BYTES - left, left);
    if (edges[0].is_known)
        memcpy(before + left, edges[0].head, w - left);
    return memcmp(before, after, w) ? ws_changes_add_piece(j, t, e, &zero, 1, before, after, err) : 0;
}

static int add_straddlers(struct ws_changes_finder *j, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < j->c->n; i++) {
        struct ws_changes_tensor *t = &j->c->tensors[i];
        if (t->begin % t->out.element_bytes == 0)
            continue;
        for (uint64_t b = (t->begin / WS_BLOCK_BYTES + 1) * WS_BLOCK_BYTES; rc == 0 && b < t->end;
             b += WS_BLOCK_BYTES)
            rc = add_straddler(j, t, b, err);
    }
    return rc;
}

int ws_changes_from_records(struct ws_changes_finder *j, struct ws_workers *workers, bool *fits,
                            struct ws_error *err)
{
    ws_workers_run_indexed(workers, do_record, j, j->recorded->n);
    const int rc = ws_changes_result(j, 0, err);
    if (rc == 0)
        compare_headers(j);
    *fits = rc == 0 && !atomic_load(&j->headers_differ);
    return *fits ? add_straddlers(j, err) : rc;
}
