/* The public functions for readers of safetensors: headers, indexes and folders, by the checks that everything
 * here reads checkpoints by. */
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/wsync.h"
#include "transports/format/folder_index.h"
#include "transports/format/shards.h"
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(WSYNC_MAX_DIMS == WS_MAX_DIMS, "shapes are copied");

/* --- a file --- */

struct wsync_safetensors {
    size_t n;
    struct ws_safetensors *st; /* names and metadata */
    wsync_tensor tensors[];    /* in the order of their data */
};

static wsync_tensor public_tensor(const struct ws_tensor *t)
{
    wsync_tensor out = {.name = t->name,
                        .dtype = (wsync_dtype)t->dtype,
                        .n_dims = t->n_dims,
                        .begin = t->begin,
                        .end = t->end};
    memcpy(out.shape, t->shape, sizeof(out.shape));
    return out;
}

static int by_place(const void *a, const void *b)
{
    const wsync_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

int wsync_safetensors_open(int fd, wsync_safetensors **out)
{
    struct ws_safetensors *st = NULL;
    int rc = ws_safetensors_read_fd(fd, &st, ws_last_error());
    *out = NULL;
    if (rc < 0)
        return rc;
    *out = malloc(sizeof(**out) + st->n_tensors * sizeof(wsync_tensor));
    if (!*out) {
        ws_safetensors_free(st);
        return ws_error_set(ws_last_error(), ENOMEM, "out of memory for a safetensors header");
    }
    (*out)->n = st->n_tensors;
    (*out)->st = st;
    for (size_t i = 0; i < st->n_tensors; i++)
        (*out)->tensors[i] = public_tensor(&st->tensors[i]);
    qsort((*out)->tensors, st->n_tensors, sizeof(wsync_tensor), by_place);
    return 0;
}

const wsync_tensor *wsync_safetensors_tensor(const wsync_safetensors *st, size_t i)
{
    return i < st->n ? &st->tensors[i] : NULL;
}

const char *wsync_safetensors_metadata(const wsync_safetensors *st)
{
    return st->st->metadata;
}

void wsync_safetensors_close(wsync_safetensors *st)
{
    if (!st)
        return;
    ws_safetensors_free(st->st);
    free(st);
}

/* --- an index --- */

struct wsync_index {
    struct ws_folder_index *index;
};

int wsync_index_open(int fd, wsync_index **out)
{
    struct ws_error *err = ws_last_error();
    *out = calloc(1, sizeof(**out));
    int rc = *out ? ws_folder_index_read(fd, &(*out)->index, err)
                  : ws_error_set(err, ENOMEM, "out of memory for an index");
    if (rc < 0) {
        free(*out);
        *out = NULL;
    }
    return rc;
}

const char *wsync_index_tensor(const wsync_index *index, size_t i, const char **file)
{
    if (i >= index->index->n)
        return NULL;
    if (file)
        *file = index->index->entries[i].file;
    return index->index->entries[i].tensor;
}

int wsync_index_check(const wsync_index *index, const char *file, const wsync_safetensors *st)
{
    return ws_folder_index_check(index->index, file, st->st, ws_last_error());
}

void wsync_index_close(wsync_index *index)
{
    if (!index)
        return;
    ws_folder_index_free(index->index);
    free(index);
}

/* --- a folder --- */

struct named {
    const char *name;
    size_t place;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

int wsync_select_weights(const char *const *names, size_t n, const wsync_index *index, unsigned char *chosen)
{
    struct ws_error *err = ws_last_error();
    struct named *sorted = calloc(n + 1, sizeof(*sorted));
    const char **listed = calloc(n + 1, sizeof(*listed));
    bool *wanted = calloc(n + 1, sizeof(*wanted));
    int rc = sorted && listed && wanted ? 0 : ws_error_set(err, ENOMEM, "out of memory for %zu names", n);

    for (size_t i = 0; rc == 0 && i < n; i++)
        sorted[i] = (struct named){names[i], i};
    if (rc == 0) {
        qsort(sorted, n, sizeof(*sorted), by_name);
        for (size_t i = 0; i < n; i++)
            listed[i] = sorted[i].name;
        rc = ws_shards_select(listed, n, index ? index->index : NULL, wanted, err);
    }
    for (size_t i = 0; rc == 0 && i < n; i++)
        chosen[sorted[i].place] = wanted[i];
    free(sorted);
    free(listed);
    free(wanted);
    return rc;
}
