#include "transports/delta/patcher.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define ROOM (WS_BLOCK_BYTES + WS_DELTA_PAD_BYTES)

struct ws_patcher {
    struct ws_hasher *hasher;
    struct ws_delta_edit *edits[WS_MAX_DELTA_CHAIN];
    unsigned char raw[ROOM], block[ROOM],
        buffer[ROOM]; /* an edit's bytes; a whole block's; one that is elsewhere */
};

struct ws_patcher *ws_patcher_new(void)
{
    struct ws_patcher *p = malloc(sizeof(*p));
    bool ok = p;
    if (p) {
        p->hasher = ws_hasher_new();
        ok = p->hasher;
        for (size_t i = 0; i < WS_MAX_DELTA_CHAIN; i++) {
            p->edits[i] = ws_delta_edit_new();
            ok = ok && p->edits[i];
        }
    }
    if (p && !ok) {
        ws_patcher_free(p);
        p = NULL;
    }
    return p;
}

void ws_patcher_free(struct ws_patcher *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < WS_MAX_DELTA_CHAIN; i++)
        ws_delta_edit_free(p->edits[i]);
    ws_hasher_free(p->hasher);
    free(p);
}

static int read_edit(struct ws_patcher *p, const struct ws_delta_record *r, size_t len,
                     struct ws_delta_edit *e, struct ws_error *err)
{
    const unsigned char *raw = ws_delta_record_raw(r, p->raw);
    if (!raw)
        return ws_error_set(err, EBADMSG, "the delta of a block cannot be unpacked");
    return ws_delta_edit_read(e, raw, r->raw_bytes, len, err);
}

/* Reads what is to be done: *src becomes the whole block that a record has, if one has it. */
static int read_chain(struct ws_patcher *p, size_t len, const struct ws_delta_record *const *chain, size_t n,
                      const unsigned char **src, size_t *n_edits, struct ws_error *err)
{
    size_t from = 0;
    int rc = 0;
    assert(n <= WS_MAX_DELTA_CHAIN);
    *n_edits = 0;
    for (size_t i = 0; i < n; i++)
        if (chain[i] && chain[i]->kind == WS_DELTA_BLOCK)
            from = i + 1; /* what was before it does not matter */
    if (from > 0) {
        *src = chain[from - 1]->raw_bytes == len ? ws_delta_record_raw(chain[from - 1], p->block) : NULL;
        if (!*src)
            return ws_error_set(err, EBADMSG, "a block in a delta cannot be unpacked");
    }
    for (size_t i = from; rc == 0 && i < n; i++)
        if (chain[i])
            rc = read_edit(p, chain[i], len, p->edits[(*n_edits)++], err);
    return rc;
}

int ws_patcher_block(struct ws_patcher *p, unsigned char *dst, const unsigned char *src, size_t len,
                     const struct ws_delta_record *const *chain, size_t n, uint64_t *hash,
                     struct ws_error *err)
{
    size_t n_edits;
    const int rc = read_chain(p, len, chain, n, &src, &n_edits, err);
    if (rc == 0)
        *hash = ws_delta_edit_apply(p->hasher, dst, src, len, p->edits, n_edits);
    return rc;
}

int ws_patcher_block_by(struct ws_patcher *p, const struct ws_delta_flow *flow, size_t len,
                        const struct ws_delta_record *const *chain, size_t n, uint64_t *hash,
                        struct ws_error *err)
{
    const unsigned char *src = NULL;
    size_t n_edits;
    const int rc = read_chain(p, len, chain, n, &src, &n_edits, err);
    if (rc == 0)
        *hash = ws_delta_edit_apply_by(p->hasher, p->buffer, src, len, p->edits, n_edits, flow);
    return rc;
}

int ws_patcher_block_runs(struct ws_patcher *p, const struct ws_delta_runs *runs, size_t len,
                          const struct ws_delta_record *const *chain, size_t n, uint64_t *hash,
                          struct ws_error *err)
{
    const unsigned char *src = NULL;
    size_t n_edits;
    const int rc = read_chain(p, len, chain, n, &src, &n_edits, err);
    if (rc < 0)
        return rc;
    if (!ws_delta_edit_fits_runs(p->edits, n_edits, runs))
        return ws_error_set(err, EXDEV, "an element of the block lies in two places");
    *hash = ws_delta_edit_apply_runs(p->hasher, runs, src, p->edits, n_edits);
    return 0;
}
