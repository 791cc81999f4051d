/* The holder's side of an audit (tensor/audit.h): hashes of pieces that other ranks hold too. What is hashed
 * is what would be written: converted, and with the elements in the order of the tensor. So it makes no
 * difference how a rank holds them. */
#include "backends/trainer/publisher/publisher_state.h"
#include "transports/base/log.h"
#include "transports/base/number.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct ws_publisher_audit {
    struct ws_block_range *wanted; /* by params: the chunks that the agent asked for */
    struct ws_block_hashes hashes; /* file: param, block: chunk */
};

static uint64_t bytes_of(const struct ws_registered_piece *r)
{
    return ws_piece_elements(&r->piece, r->tensor.n_dims) * ws_dtype_bits(r->tensor.dtype) / 8;
}

bool ws_publisher_audits(const struct wsync_publisher *p, size_t i)
{
    return p->audit && p->audit->wanted[i].n > 0;
}

static int read_chunks(struct wsync_publisher *p, const json_t *list, struct ws_error *err)
{
    const json_t *one;
    size_t k;
    json_array_foreach(list, k, one)
    {
        const uint64_t i = (uint64_t)json_integer_value(json_array_get(one, 0)),
                       first = (uint64_t)json_integer_value(json_array_get(one, 1)),
                       n = (uint64_t)json_integer_value(json_array_get(one, 2));
        const uint64_t chunks =
            i < p->n_params ? (bytes_of(&p->params[i]) + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES : 0;
        if (first > chunks || n > chunks - first)
            return ws_error_set(err, EPROTO,
                                "the agent at %s asks for an audit of pieces that this rank does not hold",
                                p->agent);
        p->audit->wanted[i] = (struct ws_block_range){first, n};
    }
    return 0;
}

int ws_publisher_audit_begin(struct wsync_publisher *p, const json_t *reply, struct ws_error *err)
{
    const json_t *list = json_object_get(reply, "audit");
    if (!list && p->world_size > 1 && p->audit_every != WSYNC_NO_AUDIT && !p->audit_logged) {
        p->audit_logged = true;
        ws_log(
            WS_LOG_WARN, "publisher",
            "no audits model=%s: the agent at %s is of a release without audits; replicas are not compared",
            p->model, p->agent);
    }
    if (json_array_size(list) == 0)
        return 0;
    p->audit = calloc(1, sizeof(*p->audit));
    if (p->audit)
        p->audit->wanted = calloc(p->n_params + 1, sizeof(*p->audit->wanted));
    if (!p->audit || !p->audit->wanted)
        return ws_error_set(err, ENOMEM, "no memory for an audit");
    return read_chunks(p, list, err);
}

/* Copies on GPUs wait for the streams that write what they read. */
static int begin_d2h(struct wsync_publisher *p, const wsync_param *params, size_t first, size_t n,
                     bool *on_device, struct ws_error *err)
{
    int rc = 0, device = -1;
    const void *stream = NULL;
    *on_device = false;
    for (size_t i = first; rc == 0 && i < first + n; i++) {
        const wsync_param *a = &params[i - first];
        if (p->devices[i] < 0 || !ws_publisher_audits(p, i) ||
            (p->devices[i] == device && a->stream == stream))
            continue;
        if (!*on_device && !p->d2h)
            rc = ws_d2h_new(&p->d2h, err);
        if (rc == 0 && !*on_device)
            rc = ws_d2h_begin(p->d2h, p->n_params, err);
        *on_device = true;
        device = p->devices[i];
        stream = a->stream;
        if (rc == 0)
            rc = ws_d2h_follow_stream(p->d2h, device, a->stream, err);
    }
    return rc;
}

static int add(struct ws_copy_plan *plan, const struct wsync_publisher *p, const wsync_param *a, size_t i,
               struct ws_error *err)
{
    const struct ws_copy_target goal = {.file = i, .alone = true};
    struct ws_source_layout l;
    int rc = ws_publisher_layout(a, &p->params[i], &l, err);
    return rc == 0 ? ws_publisher_plan(plan, p, &p->params[i], &l, &goal, err) : rc;
}

static int run(struct wsync_publisher *p, struct ws_copy_plan *plan, bool on_device, const bool *pinned,
               size_t n_chunks, struct ws_error *err)
{
    const size_t before = p->audit->hashes.len;
    struct ws_copy_plan_run run = {.sources = p->sources,
                                   .d2h = on_device ? p->d2h : NULL,
                                   .devices = p->devices,
                                   .pinned = pinned,
                                   .hashes = &p->audit->hashes};
    int rc = ws_copy_plan_run(plan, &run, p->workers, err);
    if (rc == 0 && p->audit->hashes.len - before != n_chunks)
        rc = ws_error_set(err, ENOMEM, "no memory for hashing this rank's replicas");
    return rc;
}

int ws_publisher_audit_hash(struct wsync_publisher *p, const wsync_param *params, size_t first, size_t n,
                            struct ws_error *err)
{
    struct ws_copy_plan *plan = NULL;
    size_t n_chunks = 0;
    bool on_device;
    for (size_t i = first; p->audit && i < first + n; i++)
        n_chunks += p->audit->wanted[i].n;
    if (n_chunks == 0)
        return 0;
    uint64_t *sizes = calloc(p->n_params, sizeof(*sizes));
    bool *pinned = calloc(p->n_params, sizeof(*pinned)); /* none: a run that only hashes has no files */
    int rc =
        sizes && pinned ? ws_copy_plan_new(&plan, err) : ws_error_set(err, ENOMEM, "no memory for an audit");
    if (rc == 0)
        rc = ws_publisher_check_audited(p, params, first, n, err);
    for (size_t i = first; rc == 0 && i < first + n; i++) {
        sizes[i] = bytes_of(&p->params[i]);
        if (ws_publisher_audits(p, i))
            rc = add(plan, p, &params[i - first], i, err);
    }
    if (rc == 0) {
        ws_copy_plan_restrict(plan, p->audit->wanted);
        rc = ws_copy_plan_compile(plan, sizes, p->n_params, err);
    }
    if (rc == 0)
        rc = begin_d2h(p, params, first, n, &on_device, err);
    if (rc == 0)
        rc = run(p, plan, on_device, pinned, n_chunks, err);
    ws_copy_plan_free(plan);
    free(pinned);
    free(sizes);
    return rc;
}

void ws_publisher_audit_report(const struct wsync_publisher *p, json_t *body)
{
    json_t *all = json_array();
    for (size_t i = 0; p->audit && i < p->audit->hashes.len; i++) {
        const struct ws_block_hash *h = &p->audit->hashes.ptr[i];
        json_array_append_new(
            all, json_pack("[I,I,o]", (json_int_t)h->file, (json_int_t)h->block, ws_number_hash(h->hash)));
    }
    json_object_set_new(body, "audit", all);
}

void ws_publisher_audit_end(struct wsync_publisher *p)
{
    if (!p->audit)
        return;
    free(p->audit->wanted);
    ws_block_hashes_reset(&p->audit->hashes);
    free(p->audit);
    p->audit = NULL;
}
