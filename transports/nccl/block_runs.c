#include "transports/nccl/block_runs.h"
#include "transports/base/number.h"
#include "transports/base/vector.h"
#include <errno.h>
#include <stdlib.h>

WS_VECTOR(runs, struct ws_block_run);

/* Lengthens the last run or adds one. */
static int add(struct runs *runs, size_t file, size_t block)
{
    struct ws_block_run *last = runs->len ? &runs->ptr[runs->len - 1] : NULL;
    if (last && last->file == file && last->first + last->n == block) {
        last->n++;
        return 0;
    }
    return runs_append(runs, (struct ws_block_run){file, block, 1});
}

int ws_block_runs_new(const struct ws_manifest *m, bool (*in)(void *arg, size_t file, size_t block),
                      void *arg, struct ws_block_run **out, size_t *n, struct ws_error *err)
{
    struct runs runs = {0};
    int rc = 0;
    for (size_t f = 0; rc == 0 && f < m->n_files; f++)
        for (size_t b = 0; rc == 0 && b < m->files[f].n_blocks; b++)
            if (in(arg, f, b))
                rc = add(&runs, f, b);
    if (rc < 0) {
        runs_reset(&runs);
        return ws_error_set(err, ENOMEM, "no memory for a list of blocks");
    }
    *out = runs.ptr;
    *n = runs.len;
    return 0;
}

json_t *ws_block_runs_json(const struct ws_block_run *runs, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_t *run =
            json_pack("[I,I,I]", (json_int_t)runs[i].file, (json_int_t)runs[i].first, (json_int_t)runs[i].n);
        if (json_array_append_new(list, run) < 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static bool is_after(const struct ws_block_run *r, const struct ws_block_run *last)
{
    return !last || r->file > last->file || (r->file == last->file && r->first > last->first + last->n - 1);
}

static int parse_run(const json_t *item, const struct ws_manifest *m, const struct ws_block_run *last,
                     struct ws_block_run *out)
{
    uint64_t v[3];
    for (size_t k = 0; k < 3; k++)
        if (ws_number_read(json_array_get(item, k), &v[k]) < 0)
            return -EPROTO;
    *out = (struct ws_block_run){v[0], v[1], v[2]};
    return out->file < m->n_files && out->n > 0 && out->first < m->files[out->file].n_blocks &&
                   out->n <= m->files[out->file].n_blocks - out->first && is_after(out, last)
               ? 0
               : -EPROTO;
}

int ws_block_runs_from_json(const json_t *list, const struct ws_manifest *m, struct ws_block_run **out,
                            size_t *n, struct ws_error *err)
{
    size_t count = json_array_size(list);
    int rc = json_is_array(list) && count > 0 ? 0 : -EPROTO;
    struct ws_block_run *runs = rc == 0 ? calloc(count, sizeof(*runs)) : NULL;
    if (rc == 0 && !runs)
        return ws_error_set(err, ENOMEM, "no memory for a list of blocks");
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = parse_run(json_array_get(list, i), m, i ? &runs[i - 1] : NULL, &runs[i]);
    if (rc < 0) {
        free(runs);
        return ws_error_set(err, EPROTO, "the list of blocks to broadcast does not fit %s's manifest",
                            m->model);
    }
    *out = runs;
    *n = count;
    return 0;
}
