#include "backends/trainer/publisher/version_step.h"
#include "backends/trainer/publisher/publisher_state.h"
#include "transports/base/number.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void ws_version_step_end(struct wsync_publisher *p)
{
    for (size_t i = 0; p->regions && !p->uses_pinned && i < p->n_files; i++)
        ws_region_free(p->regions[i]);
    if (p->regions && p->uses_pinned)
        ws_pinned_slots_finish_version(p->pinned);
    free(p->regions);
    p->regions = NULL;
    ws_publisher_compare_end(p);
    ws_block_hashes_reset(&p->hashes);
    ws_publisher_audit_end(p);
    p->begun = false;
}

/* How many descriptors a version has. */
static size_t n_descriptors(const struct wsync_publisher *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_files; i++)
        n += p->file_sizes[i] > 0;
    return n;
}

static int map_slot(struct wsync_publisher *p, uint64_t slot, int *fds, size_t n_fds, struct ws_error *err)
{
    size_t used = 0;
    int rc = 0;
    p->regions = calloc(p->n_files + 1, sizeof(struct ws_region *));
    if (!p->regions)
        rc = ws_error_set(err, ENOMEM, "no memory for a slot");
    for (size_t i = 0; rc == 0 && i < p->n_files; i++) {
        if (p->file_sizes[i] == 0)
            continue;
        if (used == n_fds)
            rc = ws_error_set(err, EPROTO, "the agent sent %zu descriptors, too few", n_fds);
        else if (p->uses_pinned)
            rc = ws_pinned_slots_map(p->pinned, slot, fds[used++], p->file_sizes[i],
                                     ws_device_by_kind(WS_CUDA), p->device, &p->regions[i], err);
        else
            rc = ws_region_import(&p->regions[i], fds[used++], p->file_sizes[i], true, err);
    }
    while (used < n_fds)
        close(fds[used++]);
    return rc;
}

/* If the agent is short of memory, the rank first unmaps slots that will not be written again. */
static int request_begin(struct wsync_publisher *p, uint64_t version, bool on_demand, json_t **reply,
                         int fds[WS_MAX_FDS_PER_CALL], size_t *n, struct ws_error *err)
{
    const char *compare = ws_publisher_compare_request(p);
    for (size_t before = SIZE_MAX;;) {
        json_t *kept = p->uses_pinned ? ws_pinned_slots_to_json(p->pinned) : json_array();
        const size_t n_kept = json_array_size(kept);
        if (n_kept >= before) {
            json_decref(kept);
            return ws_error_set(err, EPROTO, "the agent at %s asks for memory that this rank does not have",
                                p->agent);
        }
        before = n_kept;
        int rc = ws_publisher_call(
            p, "begin",
            json_pack("{s:I,s:s,s:b,s:I,s:b,s:o,s:b,s:s,s:i}", "version", (json_int_t)version, "run",
                      p->lineage, "demanded", (int)on_demand, "timeout_ms", (json_int_t)p->timeout_ms, "keep",
                      (int)p->uses_pinned, "kept", kept, "changes", (int)(p->delta != NULL), "compare",
                      compare, "max_fds", WS_MAX_FDS_PER_CALL),
            reply, fds, WS_MAX_FDS_PER_CALL, n, err);
        if (rc < 0 || !json_is_true(json_object_get(*reply, "again")))
            return rc;
        if (p->uses_pinned)
            ws_pinned_slots_retain(p->pinned, json_object_get(*reply, "slots"));
        json_decref(*reply);
    }
}

int ws_version_step_begin(struct wsync_publisher *p, uint64_t version, bool on_demand, struct ws_error *err)
{
    int fds[WS_MAX_FDS_PER_CALL];
    size_t n = 0;
    json_t *reply = NULL;
    if (!p->params)
        return ws_error_set(err, EINVAL, "register the parameters before begin");
    if (version > INT64_MAX)
        return ws_error_set(err, EINVAL, "a version has at most 63 bits, %" PRIu64 " has more", version);
    if (p->begun)
        return ws_error_set(err, EALREADY, "version %" PRIu64 " is begun and neither committed nor abandoned",
                            p->version);
    p->uses_pinned = p->device >= 0;
    if (!p->uses_pinned) {
        ws_pinned_slots_free(p->pinned);
        p->pinned = NULL;
    }
    if (p->uses_pinned && !p->pinned && !(p->pinned = ws_pinned_slots_new()))
        return ws_error_set(err, ENOMEM, "no memory for a slot");
    int rc = request_begin(p, version, on_demand, &reply, fds, &n, err);
    if (rc == 0 || rc == -ECANCELED)
        p->last_begun = version;
    if (rc < 0)
        return rc;
    p->begun = true;
    p->version = version;
    /* An agent that tells no slots (0.1.0) does not tell one base from the next either. */
    p->fresh = json_is_true(json_object_get(reply, "fresh")) || !json_object_get(reply, "slot");
    const size_t n_slot = n_descriptors(p), of_slot = n < n_slot ? n : n_slot;
    ws_publisher_delta_begin(p, reply);
    ws_publisher_compare_begin(p, reply, fds + of_slot, n - of_slot);
    rc = ws_publisher_audit_begin(p, reply, err);
    const uint64_t slot = (uint64_t)json_integer_value(json_object_get(reply, "slot"));
    if (p->uses_pinned)
        ws_pinned_slots_retain(p->pinned, json_object_get(reply, "slots"));
    json_decref(reply);
    memset(p->put, 0, p->n_params * sizeof(p->put[0]));
    memset((void *)p->overflows, 0, p->n_params * sizeof(p->overflows[0]));
    const int mapped = map_slot(p, slot, fds, of_slot, rc == 0 ? err : NULL);
    rc = rc < 0 ? rc : mapped;
    if (rc < 0) {
        struct ws_error ignored;
        (void)ws_publisher_call(p, "abandon", json_object(), NULL, NULL, 0, NULL, &ignored);
        ws_version_step_end(p);
    }
    return rc;
}

/* --- commit --- */

static json_t *hashes_json(const struct wsync_publisher *p)
{
    json_t *all = json_array();
    for (size_t i = 0; i < p->hashes.len; i++) {
        const struct ws_block_hash *h = &p->hashes.ptr[i];
        json_array_append_new(
            all, json_pack("[I,I,o]", (json_int_t)h->file, (json_int_t)h->block, ws_number_hash(h->hash)));
    }
    return json_pack("{s:o}", "hashes", all);
}

int ws_version_step_commit(struct wsync_publisher *p, struct ws_error *err)
{
    if (!p->begun)
        return ws_error_set(err, EINVAL, "nothing is begun");
    for (size_t i = 0; i < p->n_params; i++)
        if (!p->put[i] && p->params[i].writes)
            return ws_error_set(err, ENODATA, "version %" PRIu64 " is not whole: %s was not put", p->version,
                                p->params[i].tensor.name);
    json_t *body = hashes_json(p);
    if (body)
        ws_publisher_audit_report(p, body);
    int records = body ? ws_publisher_delta_export(p, body, err) : -1;
    if (body && records < 0)
        records = ws_publisher_compare_export(p, body, err);
    ws_version_step_end(p); /* before the agent looks whether a process could still write */
    json_t *reply = NULL;
    int rc = ws_publisher_send(p, "commit", body, &records, records >= 0, &reply, err);
    if (rc == 0 && p->pinned)
        ws_pinned_slots_retain(p->pinned, json_object_get(reply, "slots"));
    json_decref(reply);
    if (records >= 0)
        close(records);
    if (rc == 0 || p->sock < 0) { /* the lineage is opened; or may be: the answer was lost */
        p->new_run = false;
        free(p->lineage_requested);
        p->lineage_requested = NULL;
    }
    if (rc == 0) {
        ws_publisher_delta_commit(p);
        ws_publisher_compare_commit(p);
        ws_publisher_share_committed(p);
    }
    return rc;
}

int ws_version_step_abandon(struct wsync_publisher *p, struct ws_error *err)
{
    if (!p->begun)
        return ws_error_set(err, EINVAL, "nothing is begun");
    ws_version_step_end(p);
    return ws_publisher_call(p, "abandon", json_object(), NULL, NULL, 0, NULL, err);
}
