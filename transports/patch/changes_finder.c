#include "transports/patch/changes_finder.h"
#include "transports/delta/block_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void ws_changes_fail(struct ws_changes_finder *j, int rc, const struct ws_error *why)
{
    int none = 0;
    pthread_mutex_lock(&j->lock);
    if (atomic_compare_exchange_strong(&j->rc, &none, rc))
        j->err = *why;
    pthread_mutex_unlock(&j->lock);
}

struct ws_changes_scratch *ws_changes_scratch_of(struct ws_changes_finder *j, unsigned worker)
{
    struct ws_changes_scratch *s = j->scratch[worker];
    if (s)
        return s;
    s = malloc(sizeof(*s));
    if (s && !(s->edit = ws_delta_edit_new())) {
        free(s);
        s = NULL;
    }
    if (!s) {
        struct ws_error why;
        ws_changes_fail(j, ws_error_set(&why, ENOMEM, "no memory to list changes"), &why);
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

int ws_changes_keep_piece(struct ws_changes_finder *j, struct ws_changes_tensor *t, struct ws_changes_piece p,
                          struct ws_error *err)
{
    int rc = p.at && p.values ? 0 : -ENOMEM;
    if (rc == 0 && atomic_fetch_add(&j->count, p.n) + p.n > j->most)
        rc = -E2BIG;
    if (rc == 0) {
        pthread_mutex_lock(&t->lock);
        rc = ws_changes_pieces_append(&t->pieces, p);
        pthread_mutex_unlock(&t->lock);
    }
    if (rc == 0)
        return 0;
    free(p.at);
    free(p.values);
    if (rc == -E2BIG)
        return ws_error_set(
            err, E2BIG, "more than an eighth of the elements changed: reading the version whole is better");
    return ws_error_set(err, ENOMEM, "no memory for the changes of %s", t->out.name);
}

int ws_changes_add_piece(struct ws_changes_finder *j, struct ws_changes_tensor *t, uint64_t first,
                         const uint32_t *at, size_t n, const unsigned char *before,
                         const unsigned char *after, struct ws_error *err)
{
    const unsigned w = t->out.element_bytes;
    struct ws_changes_piece p = {.first = first, .n = (uint32_t)n};
    if (n == 0)
        return 0;
    p.at = malloc(n * sizeof(*p.at));
    p.values = malloc(2 * n * w);
    if (p.at && p.values) {
        memcpy(p.at, at, n * sizeof(*p.at));
        gather(p.values, before, at, n, w);
        gather(p.values + n * w, after, at, n, w);
    }
    return ws_changes_keep_piece(j, t, p, err);
}

size_t ws_changes_find_different(uint32_t *at, const unsigned char *a, const unsigned char *b, size_t n,
                                 unsigned width)
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

uint64_t ws_changes_elements_in(const struct ws_changes_tensor *t, uint64_t at, size_t n, size_t *count)
{
    const unsigned w = t->out.element_bytes;
    const uint64_t from = at > t->begin ? at : t->begin, to = at + n < t->end ? at + n : t->end;
    const uint64_t first = (from - t->begin + w - 1) / w;
    const uint64_t end = to > t->begin ? (to - t->begin) / w : 0;
    *count = end > first ? (size_t)(end - first) : 0;
    return first;
}

size_t ws_changes_tensor_at(const struct ws_changes_finder *j, size_t file, uint64_t at)
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

int ws_changes_compare_block(struct ws_changes_finder *j, struct ws_changes_scratch *s, size_t file,
                             uint64_t at, size_t len, struct ws_error *err)
{
    int rc = 0;
    for (size_t k = ws_changes_tensor_at(j, file, at); rc == 0 && k < j->n_by_place[file]; k++) {
        struct ws_changes_tensor *t = j->by_place[file][k];
        size_t n;
        if (t->begin >= at + len)
            break;
        const uint64_t first = ws_changes_elements_in(t, at, len, &n);
        const size_t place = (size_t)(t->begin + first * t->out.element_bytes - at);
        if (n > 0)
            rc = ws_changes_add_piece(j, t, first, s->at,
                                      ws_changes_find_different(s->at, s->before + place, s->after + place, n,
                                                                t->out.element_bytes),
                                      s->before + place, s->after + place, err);
    }
    return rc;
}

int ws_changes_open_base(struct ws_changes_finder *j, struct ws_error *err)
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

int ws_changes_result(struct ws_changes_finder *j, int rc, struct ws_error *err)
{
    if (rc == 0 && (rc = atomic_load(&j->rc)) < 0 && err)
        *err = j->err;
    return rc;
}
