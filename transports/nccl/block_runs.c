/* What a broadcast carries, as runs of blocks, in memory and in JSON. */
#include "transports/base/number.h"
#include "transports/nccl/broadcast_plan.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct growing {
    struct ws_block_run *runs;
    size_t n, room;
};

/* Lengthens the last run or adds one. */
static int add(struct growing *g, size_t file, size_t block)
{
    struct ws_block_run *last = g->n ? &g->runs[g->n - 1] : NULL;
    if (last && last->file == file && last->first + last->n == block) {
        last->n++;
        return 0;
    }
    if (g->n == g->room) {
        size_t room = g->room ? 2 * g->room : 64;
        struct ws_block_run *more = realloc(g->runs, room * sizeof(*more));
        if (!more)
            return -ENOMEM;
        g->runs = more;
        g->room = room;
    }
    g->runs[g->n++] = (struct ws_block_run){file, block, 1};
    return 0;
}

int ws_block_runs_new(const struct ws_manifest *m, bool (*in)(void *arg, size_t file, size_t block),
                      void *arg, struct ws_block_run **out, size_t *n, struct ws_error *err)
{
    struct growing g = {0};
    int rc = 0;
    for (size_t f = 0; rc == 0 && f < m->n_files; f++)
        for (size_t b = 0; rc == 0 && b < m->files[f].n_blocks; b++)
            if (in(arg, f, b))
                rc = add(&g, f, b);
    if (rc < 0) {
        free(g.runs);
        return ws_error_set(err, ENOMEM, "no memory for a list of blocks");
    }
    *out = g.runs;
    *n = g.n;
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

static int take(const json_t *item, const struct ws_manifest *m, const struct ws_block_run *last,
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

int ws_block_runs_of(const json_t *list, const struct ws_manifest *m, struct ws_block_run **out, size_t *n,
                     struct ws_error *err)
{
    size_t count = json_array_size(list);
    int rc = json_is_array(list) && count > 0 ? 0 : -EPROTO;
    struct ws_block_run *runs = rc == 0 ? calloc(count, sizeof(*runs)) : NULL;
    if (rc == 0 && !runs)
        return ws_error_set(err, ENOMEM, "no memory for a list of blocks");
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = take(json_array_get(list, i), m, i ? &runs[i - 1] : NULL, &runs[i]);
    if (rc < 0) {
        free(runs);
        return ws_error_set(err, EPROTO, "the list of blocks to broadcast is none of %s's", m->model);
    }
    *out = runs;
    *n = count;
    return 0;
}

void ws_nccl_id_text(const unsigned char id[WS_NCCL_ID_BYTES], char out[WS_NCCL_ID_TEXT])
{
    for (size_t i = 0; i < WS_NCCL_ID_BYTES; i++)
        sprintf(out + 2 * i, "%02x", (unsigned)id[i]);
}

int ws_nccl_id_of(const char *text, unsigned char out[WS_NCCL_ID_BYTES])
{
    if (!text || strlen(text) != WS_NCCL_ID_TEXT - 1)
        return -EPROTO;
    for (size_t i = 0; i < WS_NCCL_ID_BYTES; i++) {
        const char digits[3] = {text[2 * i], text[2 * i + 1], 0};
        if (!isxdigit((unsigned char)digits[0]) || !isxdigit((unsigned char)digits[1]))
            return -EPROTO;
        out[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    return 0;
}
