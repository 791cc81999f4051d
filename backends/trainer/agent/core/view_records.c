#include "backends/trainer/agent/core/view_records.h"
#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ws_view_records {
    char base_digest[33];
    _Atomic(uint64_t) bytes;
    size_t n;
    struct ws_delta_record *at[]; /* NULL: none */
};

struct ws_view_records *ws_view_records_new(const char base_digest[33], size_t n_blocks)
{
    struct ws_view_records *r = calloc(1, sizeof(*r) + n_blocks * sizeof(r->at[0]));
    if (r) {
        snprintf(r->base_digest, sizeof(r->base_digest), "%s", base_digest);
        r->n = n_blocks;
    }
    return r;
}

void ws_view_records_free(struct ws_view_records *r)
{
    for (size_t i = 0; r && i < r->n; i++)
        free(r->at[i]);
    free(r);
}

uint64_t ws_view_records_put(struct ws_view_records *r, size_t number, struct ws_delta_record *record)
{
    assert(number < r->n && !r->at[number]);
    r->at[number] = record;
    return atomic_fetch_add(&r->bytes, record->bytes) + record->bytes;
}

size_t ws_view_records_give(struct ws_view_records *r, struct ws_delta *d)
{
    size_t given = 0;
    if (!r || strcmp(r->base_digest, ws_delta_link(d)->base_digest) != 0 || r->n != ws_delta_blocks(d))
        return 0;
    for (size_t i = 0; i < r->n; i++) {
        struct ws_delta_record *record = r->at[i];
        r->at[i] = NULL;
        if (record && ws_delta_add(d, record) == 0)
            given++;
    }
    return given;
}
