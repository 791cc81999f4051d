#include "transports/patch/changes.h"
#include "transports/base/cpu_features.h"
#include "transports/base/vector.h"
#include "transports/base/workers.h"
#include "transports/delta/block_impl.h"
#include "transports/patch/recorded.h"
#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_THREADS       8
#define MAX_ELEMENT_BYTES 8
#define FEW               (1UL << 20) /* so many changes are listed however dense they are */
#define DENSE             8           /* of more than one element in so many no list is made */

/* Changes of one tensor that lie near each other. */
struct piece {
    uint64_t first; /* the element that `at` counts from */
    uint32_t n;
    uint32_t *at;          /* ascending */
    unsigned char *values; /* n before, n after */
};
WS_VECTOR(pieces, struct piece);

/* A tensor of the target, where it lies there and in the base. */
struct tensor {
    struct ws_tensor_changes out;
    size_t file; /* of the target's folder */
    uint64_t begin, end;
    size_t base_file;
    uint64_t base_begin;
    pthread_mutex_t lock; /* guards pieces */
    struct pieces pieces;
};

struct ws_changes {
    size_t n;
    struct tensor *tensors; /* by name */
    char *names;
    uint64_t count, elements;
    bool recorded;
};

/* --- making them --- */

/* The bytes of a block next to its neighbours, as they are in the base. */
struct edges {
    bool is_known;
    unsigned char head[MAX_ELEMENT_BYTES], tail[MAX_ELEMENT_BYTES];
};

/* What one worker has. */
struct scratch {
    struct ws_delta_edit *edit;
    unsigned char raw[WS_BLOCK_BYTES + WS_DELTA_PAD_BYTES], before[WS_BLOCK_BYTES + WS_DELTA_PAD_BYTES],
        after[WS_BLOCK_BYTES + WS_DELTA_PAD_BYTES];
    uint32_t at[WS_BLOCK_BYTES + WS_DELTA_SLACK];
};

struct job {
    struct ws_changes *c;
    const struct ws_version_folder *target;
    const char *base_path;
    pthread_mutex_t base_lock;
    struct ws_version_folder
        base; /* guarded by base_lock until it is open: only where its bytes are needed */
    int base_rc;
    struct ws_error base_err;  /* likewise */
    struct tensor ***by_place; /* by file of the target's folder */
    size_t *n_by_place;
    struct edges **edges; /* by file of the target's folder, and block */
    unsigned char **
        headers; /* by file of the target's folder: what the header was; NULL: it is the same. Guarded by base_lock */
    const struct ws_recorded *recorded;
    int *file_of; /* of the manifest's files: their numbers in the folder */
    struct scratch **scratch;
    uint64_t most;
    atomic_ullong count;
    atomic_bool headers_differ;
    pthread_mutex_t lock;
    _Atomic(int) rc;     /* of the first that failed */
    struct ws_error err; /* guarded by lock */
};

static void fail(struct job *j, int rc, const struct ws_error *why)
{
    int none = 0;
    pthread_mutex_lock(&j->lock);
    if (atomic_compare_exchange_strong(&j->rc, &none, rc))
        j->err = *why;
    pthread_mutex_unlock(&j->lock);
}

static struct scratch *scratch_of(struct job *j, unsigned worker)
{
    struct scratch *s = j->scratch[worker];
    if (s)
        return s;
    s = malloc(sizeof(*s));
    if (s && !(s->edit = ws_delta_edit_new())) {
        free(s);
        s = NULL;
    }
    if (!s) {
        struct ws_error why;
        fail(j, ws_error_set(&why, ENOMEM, "no memory to list changes"), &why);
    }
    return j->scratch[worker] = s;
}

static void copy_element(unsigned char *to, const unsigned char *from, unsigned width)
{
    switch (width) {
    case 1:
        *to = *from;
        break;
    case 2:
        memcpy(to, from, 2);
        break;
    case 4:
        memcpy(to, from, 4);
        break;
    default:
        memcpy(to, from, 8);
    }
}

static void gather(unsigned char *out, const unsigned char *from, const uint32_t *at, size_t n,
                   unsigned width)
{
    for (size_t i = 0; i < n; i++)
        copy_element(out + i * width, from + (size_t)at[i] * width, width);
}

/* Elements at[] of a run that begins with element `first`; their values are those before and after at the same places. */
static int add_piece(struct job *j, struct tensor *t, uint64_t first, const uint32_t *at, size_t n,
                     const unsigned char *before, const unsigned char *after, struct ws_error *err)
{
    const unsigned w = t->out.element_bytes;
    struct piece p = {.first = first, .n = (uint32_t)n};
    if (n == 0)
        return 0;
    if (atomic_fetch_add(&j->count, n) + n > j->most)
        return ws_error_set(
            err, E2BIG, "more than an eighth of the elements changed: reading the version whole is better");
    p.at = malloc(n * sizeof(*p.at));
    p.values = malloc(2 * n * w);
    int rc = p.at && p.values ? 0 : -ENOMEM;
    if (rc == 0) {
        memcpy(p.at, at, n * sizeof(*p.at));
        gather(p.values, before, at, n, w);
        gather(p.values + n * w, after, at, n, w);
        pthread_mutex_lock(&t->lock);
        rc = pieces_append(&t->pieces, p);
        pthread_mutex_unlock(&t->lock);
    }
    if (rc == 0)
        return 0;
    free(p.at);
    free(p.values);
    return ws_error_set(err, ENOMEM, "no memory for the changes of %s", t->out.name);
}

/* Elements of n that differ; of 8 bytes they are found as halves. */
static size_t find(uint32_t *at, const unsigned char *a, const unsigned char *b, size_t n, unsigned width)
{
    if (width < 8)
        return ws_delta_block_find(at, a, b, n, width);
    const size_t halves = ws_delta_block_find(at, a, b, 2 * n, 4);
    size_t out = 0;
    for (size_t i = 0; i < halves; i++)
        if (out == 0 || at[out - 1] != at[i] / 2)
            at[out++] = at[i] / 2;
    return out;
}

/* The whole elements of a tensor in n bytes of its file, from byte `at` on: the first, and how many. */
static uint64_t elements_in(const struct tensor *t, uint64_t at, size_t n, size_t *count)
{
    const unsigned w = t->out.element_bytes;
    const uint64_t from = at > t->begin ? at : t->begin, to = at + n < t->end ? at + n : t->end;
    const uint64_t first = (from - t->begin + w - 1) / w;
    const uint64_t end = to > t->begin ? (to - t->begin) / w : 0;
    *count = end > first ? (size_t)(end - first) : 0;
    return first;
}

/* The first tensor by place that ends after a byte of the file. */
static size_t tensor_at(const struct job *j, size_t file, uint64_t at)
{
    size_t low = 0, high = j->n_by_place[file];
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (j->by_place[file][mid]->end > at)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* Compares a block of the target with the same one of a base whose tensors lie the same way. */
static int compare_block(struct job *j, struct scratch *s, size_t file, uint64_t at, size_t len,
                         struct ws_error *err)
{
    int rc = 0;
    for (size_t k = tensor_at(j, file, at); rc == 0 && k < j->n_by_place[file]; k++) {
        struct tensor *t = j->by_place[file][k];
        size_t n;
        if (t->begin >= at + len)
            break;
        const uint64_t first = elements_in(t, at, len, &n);
        const size_t place = (size_t)(t->begin + first * t->out.element_bytes - at);
        if (n > 0)
            rc = add_piece(j, t, first, s->at,
                           find(s->at, s->before + place, s->after + place, n, t->out.element_bytes),
                           s->before + place, s->after + place, err);
    }
    return rc;
}

/* --- an edit --- */

struct walk {
    struct job *j;
    struct scratch *s;
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
    struct scratch *s = w->s;
    struct tensor *t = w->n ? w->j->by_place[w->file][w->k] : NULL;
    if (!t || w->rc < 0)
        return;
    const unsigned width = t->out.element_bytes;
    const size_t place = (size_t)(t->begin + w->first * width - w->at);
    w->n = only_different(s->at, w->n, s->before + place, s->after + place, width);
    w->rc = add_piece(w->j, t, w->first, s->at, w->n, s->before + place, s->after + place, w->err);
    w->n = 0;
}

/* The tensor that ends behind a byte is tensor k from here on; NULL: there is none. */
static const struct tensor *go_to(struct walk *w, uint64_t byte)
{
    struct tensor *const *list = w->j->by_place[w->file];
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
        w->first = elements_in(list[w->k], w->at, w->len, &w->whole);
    return list[w->k];
}

/* The element that a byte lies in, if it is whole in the block. */
static void add_byte(struct walk *w, uint64_t byte)
{
    const struct tensor *t = go_to(w, byte);
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
    const struct tensor *t = go_to(w, at);
    (void)change;
    if (t && width == t->out.element_bytes && at >= t->begin && (at - t->begin) % width == 0)
        add_byte(w, at);
    else
        for (unsigned i = 0; i < width; i++)
            add_byte(w, at + i);
}

static void undo_unit(void *arg, uint32_t byte, unsigned width, uint32_t change)
{
    struct walk *w = arg;
    unsigned char *p = w->s->before + byte;
    const uint32_t z = change + 1, d = z % 2 ? 0U - (z / 2 + 1) : z / 2;
    uint32_t v = 0;
    memcpy(&v, p, width);
    v -= d;
    memcpy(p, &v, width);
}

/* The block before the edit is made of the one after it. */
static int edit_block(struct job *j, struct scratch *s, size_t file, uint64_t at, size_t len,
                      const struct ws_delta_record *r, struct ws_error *err)
{
    struct walk w = {.j = j, .s = s, .file = file, .at = at, .len = len, .whole = SIZE_MAX, .err = err};
    const unsigned char *raw = ws_delta_record_raw(r, s->raw);
    const int rc = raw ? ws_delta_edit_read(s->edit, raw, r->raw_bytes, len, err)
                       : ws_error_set(err, EBADMSG, "the delta of a block cannot be unpacked");
    if (rc < 0)
        return rc;
    memcpy(s->before, s->after, len);
    ws_delta_edit_each(s->edit, undo_unit, &w);
    w.k = tensor_at(j, file, at);
    ws_delta_edit_each(s->edit, on_unit, &w);
    end_tensor(&w);
    return w.rc;
}

static void keep_edges(struct edges *e, const unsigned char *before, size_t len)
{
    const size_t n = len < MAX_ELEMENT_BYTES ? len : MAX_ELEMENT_BYTES;
    e->is_known = true;
    memcpy(e->head, before, n);
    memcpy(e->tail + MAX_ELEMENT_BYTES - n, before + len - n, n);
}

/* A mount may be unable to show the base's files any more, or would have to pull them. */
static int open_base(struct job *j, struct ws_error *err)
{
    pthread_mutex_lock(&j->base_lock);
    if (!j->base.folder && j->base_rc == 0) {
        j->base_rc = ws_version_folder_open(&j->base, j->base_path, &j->base_err);
        if (j->base_rc < 0)
            ws_error_prefix(&j->base_err, "the base's bytes are needed to say what changed in %s",
                            j->target->path);
    }
    const int rc = j->base_rc;
    if (rc < 0)
        *err = j->base_err;
    pthread_mutex_unlock(&j->base_lock);
    return rc;
}

/* The base's bytes of a block that came whole. Where the base has no such file, its tensors lie otherwise. */
static int read_base_block(struct job *j, struct scratch *s, size_t file, uint64_t at, size_t len,
                           struct ws_error *err)
{
    const struct ws_folder_file *f = &j->target->folder->files[file];
    const int rc = open_base(j, err);
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
static int keep_header(struct job *j, const struct scratch *s, size_t file, uint64_t at, size_t len,
                       struct ws_error *err)
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
static void compare_headers(struct job *j)
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
    struct job *j = arg;
    const struct ws_delta_record *r = j->recorded->list[i];
    const struct ws_manifest_file *f = &j->target->manifest->files[r->file];
    const int file = j->file_of[r->file];
    struct scratch *s;
    struct ws_error why;
    if (file < 0 || !j->target->folder->files[file].st || atomic_load(&j->rc) ||
        atomic_load(&j->headers_differ) || !(s = scratch_of(j, worker)))
        return;
    const size_t len = ws_manifest_block_bytes(f, r->block);
    const uint64_t at = (uint64_t)r->block * WS_BLOCK_BYTES;
    int rc = ws_version_folder_read(j->target, (size_t)file, s->after, len, at, &why);
    if (rc == 0 && r->kind == WS_DELTA_EDIT)
        rc = edit_block(j, s, (size_t)file, at, len, r, &why);
    else if (rc == 0 && (rc = read_base_block(j, s, (size_t)file, at, len, &why)) == 0 &&
             !atomic_load(&j->headers_differ))
        rc = compare_block(j, s, (size_t)file, at, len, &why);
    if (rc == 0 && !atomic_load(&j->headers_differ))
        rc = keep_header(j, s, (size_t)file, at, len, &why);
    if (rc < 0)
        fail(j, rc, &why);
    else
        keep_edges(&j->edges[file][r->block], s->before, len);
}

/* --- elements that lie in two blocks --- */

static int add_straddler(struct job *j, struct tensor *t, uint64_t border, struct ws_error *err)
{
    const unsigned w = t->out.element_bytes;
    const uint64_t e = (border - t->begin) / w, at = t->begin + e * w;
    const unsigned left = (unsigned)(border - at);
    const struct edges *edges = &j->edges[t->file][border / WS_BLOCK_BYTES];
    unsigned char after[MAX_ELEMENT_BYTES], before[MAX_ELEMENT_BYTES];
    const uint32_t zero = 0;
    if (left == 0 || !(edges[-1].is_known || edges[0].is_known))
        return 0;
    const int rc = ws_version_folder_read(j->target, t->file, after, w, at, err);
    if (rc < 0)
        return rc;
    memcpy(before, after, w);
    if (edges[-1].is_known)
        memcpy(before, edges[-1].tail + MAX_ELEMENT_BYTES - left, left);
    if (edges[0].is_known)
        memcpy(before + left, edges[0].head, w - left);
    return memcmp(before, after, w) ? add_piece(j, t, e, &zero, 1, before, after, err) : 0;
}

static int add_straddlers(struct job *j, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < j->c->n; i++) {
        struct tensor *t = &j->c->tensors[i];
        if (t->begin % t->out.element_bytes == 0)
            continue;
        for (uint64_t b = (t->begin / WS_BLOCK_BYTES + 1) * WS_BLOCK_BYTES; rc == 0 && b < t->end;
             b += WS_BLOCK_BYTES)
            rc = add_straddler(j, t, b, err);
    }
    return rc;
}

/* --- comparing tensors, wherever they lie --- */

struct span {
    struct tensor *t;
    uint64_t first;
    uint32_t n;
};
WS_VECTOR(spans, struct span);

struct comparing {
    struct job *j;
    struct spans spans;
};

static void do_span(void *arg, size_t i, unsigned worker)
{
    struct comparing *k = arg;
    struct job *j = k->j;
    const struct span *p = &k->spans.ptr[i];
    const struct tensor *t = p->t;
    const unsigned w = t->out.element_bytes;
    struct scratch *s;
    struct ws_error why;
    if (atomic_load(&j->rc) || !(s = scratch_of(j, worker)))
        return;
    int rc =
        ws_version_folder_read(j->target, t->file, s->after, (size_t)p->n * w, t->begin + p->first * w, &why);
    if (rc == 0)
        rc = ws_version_folder_read(&j->base, t->base_file, s->before, (size_t)p->n * w,
                                    t->base_begin + p->first * w, &why);
    if (rc == 0)
        rc = add_piece(j, p->t, p->first, s->at, find(s->at, s->before, s->after, p->n, w), s->before,
                       s->after, &why);
    if (rc < 0)
        fail(j, rc, &why);
}

static int find_in_base(struct job *j, struct tensor *t)
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

static int check_layout(struct job *j, struct ws_error *err)
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

static int make_spans(struct job *j, struct spans *out, struct ws_error *err)
{
    int rc = check_layout(j, err);
    for (size_t i = 0; rc == 0 && i < j->c->n; i++) {
        struct tensor *t = &j->c->tensors[i];
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

static int compare(struct job *j, struct ws_workers *workers, struct ws_error *err)
{
    struct comparing k = {.j = j};
    struct ws_error why;
    int rc = open_base(j, &why);
    if (rc < 0 && err)
        *err = why;
    if (rc == 0)
        rc = make_spans(j, &k.spans, err);
    if (rc == 0)
        ws_workers_run_indexed(workers, do_span, &k, k.spans.len);
    spans_reset(&k.spans);
    return rc;
}

/* --- the lists --- */

static int by_first(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    return x->first + x->at[0] < y->first + y->at[0] ? -1 : x->first + x->at[0] > y->first + y->at[0];
}

static void free_pieces(struct tensor *t)
{
    for (size_t i = 0; i < t->pieces.len; i++) {
        free(t->pieces.ptr[i].at);
        free(t->pieces.ptr[i].values);
    }
    pieces_reset(&t->pieces);
}

static bool join_pieces(struct tensor *t)
{
    struct ws_tensor_changes *out = &t->out;
    const unsigned w = out->element_bytes;
    uint64_t n = 0;
    if (t->pieces.len == 0)
        return true;
    qsort(t->pieces.ptr, t->pieces.len, sizeof(struct piece), by_first);
    for (size_t i = 0; i < t->pieces.len; i++)
        n += t->pieces.ptr[i].n;
    out->indexes = malloc(n * (out->is_wide ? sizeof(uint64_t) : sizeof(uint32_t)));
    out->before = malloc(n * w);
    out->after = malloc(n * w);
    if (!out->indexes || !out->before || !out->after)
        return false;
    for (size_t i = 0; i < t->pieces.len; i++) {
        struct piece *p = &t->pieces.ptr[i];
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

static int join(struct ws_changes *c, struct ws_error *err)
{
    for (size_t i = 0; i < c->n; i++) {
        if (!join_pieces(&c->tensors[i]))
            return ws_error_set(err, ENOMEM, "no memory for the changes of %s", c->tensors[i].out.name);
        free_pieces(&c->tensors[i]);
        c->count += c->tensors[i].out.n;
    }
    return 0;
}

/* --- the target's tensors --- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->out.name, ((const struct tensor *)b)->out.name);
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
            struct tensor *t = &c->tensors[c->n++];
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
    const struct tensor *x = *(struct tensor *const *)a, *y = *(struct tensor *const *)b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static bool place_tensors(struct job *j)
{
    const size_t n_files = j->target->folder->n_files;
    j->by_place = calloc(n_files + 1, sizeof(*j->by_place));
    j->n_by_place = calloc(n_files + 1, sizeof(*j->n_by_place));
    j->edges = calloc(n_files + 1, sizeof(*j->edges));
    j->headers = calloc(n_files + 1, sizeof(*j->headers));
    bool ok = j->by_place && j->n_by_place && j->edges && j->headers;
    for (size_t i = 0; ok && i < n_files; i++) {
        const struct ws_folder_file *f = &j->target->folder->files[i];
        j->by_place[i] = calloc((f->st ? f->st->n_tensors : 0) + 1, sizeof(struct tensor *));
        j->edges[i] = calloc(ws_manifest_count_blocks(f->size_bytes) + 1, sizeof(struct edges));
        ok = j->by_place[i] && j->edges[i];
    }
    for (size_t i = 0; ok && i < j->c->n; i++) {
        struct tensor *t = &j->c->tensors[i];
        if (t->end > t->begin)
            j->by_place[t->file][j->n_by_place[t->file]++] = t;
    }
    for (size_t i = 0; ok && i < n_files; i++)
        qsort(j->by_place[i], j->n_by_place[i], sizeof(struct tensor *), by_begin);
    return ok;
}

static bool number_files(struct job *j)
{
    const struct ws_manifest *m = j->target->manifest;
    j->file_of = calloc(m->n_files + 1, sizeof(*j->file_of));
    for (size_t i = 0; j->file_of && i < m->n_files; i++)
        j->file_of[i] = ws_version_folder_file(j->target, m->files[i].name);
    return j->file_of;
}

static void free_job(struct job *j, unsigned n_workers)
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

static int result_of(struct job *j, int rc, struct ws_error *err)
{
    if (rc == 0 && (rc = atomic_load(&j->rc)) < 0 && err)
        *err = j->err;
    return rc;
}

/* Forgets what was found, to begin again another way. */
static void restart(struct job *j)
{
    for (size_t i = 0; i < j->c->n; i++)
        free_pieces(&j->c->tensors[i]);
    atomic_store(&j->count, 0);
}

/* A record of another layout of the same files says nothing of tensors: then they are compared. */
static int collect(struct job *j, struct ws_workers *workers, struct ws_error *err)
{
    int rc = 0;
    if (!j->recorded)
        return result_of(j, compare(j, workers, err), err);
    ws_workers_run_indexed(workers, do_record, j, j->recorded->n);
    rc = result_of(j, 0, err);
    if (rc == 0)
        compare_headers(j);
    if (rc == 0 && !atomic_load(&j->headers_differ)) {
        j->c->recorded = true;
        return add_straddlers(j, err);
    }
    if (rc < 0)
        return rc;
    restart(j);
    return result_of(j, compare(j, workers, err), err);
}

static int make(struct ws_changes *c, const struct ws_version_folder *target, const char *base,
                const struct ws_recorded *recorded, unsigned threads, struct ws_error *err)
{
    struct ws_workers *workers = ws_workers_new(threads ? threads : ws_cpu_cores(MAX_THREADS), 0);
    struct job j = {.c = c, .target = target, .base_path = base, .recorded = recorded};
    pthread_mutex_init(&j.lock, NULL);
    pthread_mutex_init(&j.base_lock, NULL);
    int rc = list_tensors(c, target->folder, err);
    const unsigned n_workers = workers ? ws_workers_count(workers) : 0;
    j.most = c->elements / DENSE > FEW ? c->elements / DENSE : FEW;
    j.scratch = calloc(n_workers + 1, sizeof(struct scratch *));
    if (rc == 0 && !(workers && j.scratch && place_tensors(&j) && (!recorded || number_files(&j))))
        rc = ws_error_set(err, ENOMEM, "no memory to list the changes of %s", target->path);
    if (rc == 0)
        rc = collect(&j, workers, err);
    if (rc == 0)
        rc = join(c, err);
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
    if (rc == 0 && t.manifest) {
        rc = ws_recorded_read(&recorded, &t, base, base_manifest, err);
        has_records = rc == 0;
        if (rc == -ENOENT || rc == -EOPNOTSUPP)
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
