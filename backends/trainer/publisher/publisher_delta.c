/* gpu_delta: the shadow and the history that a publisher keeps of its last versions, on the GPU and on the
 * host, from one registration to the next, and what it sends the agent of them. */
#include "backends/trainer/publisher/file_widths.h"
#include "backends/trainer/publisher/publisher_state.h"
#include "transports/base/log.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define USUAL_SLOTS 4 /* a slot holds a version that is at most so many before */
#define MAX_DEVICES 16
#define SHARE       3 /* the history may take a third of what is written */

struct ws_publisher_delta {
    struct ws_copy_plan_delta plan;
    struct ws_copy_plan_device_state devices[MAX_DEVICES];
    struct ws_element_widths **widths;
    size_t n_files;
    bool ran; /* in the begun version */
    bool logged;
    char why[WS_ERROR_TEXT / 2]; /* the begun version goes without */
};

void ws_publisher_delta_free(struct ws_publisher_delta *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < d->plan.n_devices; i++) {
        ws_compare_free(d->devices[i].compare); /* waits for what is queued */
        ws_shadow_free(d->devices[i].shadow);
    }
    ws_history_free(d->plan.history);
    ws_copy_plan_scratch_free(d->plan.scratch);
    ws_file_widths_free(d->widths, d->n_files);
    free(d);
}

/* --- a version --- */

void ws_publisher_delta_begin(struct wsync_publisher *p, const json_t *reply)
{
    struct ws_publisher_delta *d = p->delta;
    const json_t *holds = json_object_get(reply, "holds");
    const char *run = json_string_value(json_object_get(holds, "run"));
    if (!d)
        return;
    for (size_t i = 0; i < d->plan.n_devices; i++)
        ws_shadow_begin(d->devices[i].shadow);
    d->ran = false;
    d->why[0] = 0;
    d->plan.slot =
        run ? ws_version_id_make((uint64_t)json_integer_value(json_object_get(holds, "version")), run)
            : (struct ws_version_id){0};
}

/* Each device that has parameters which this rank writes. */
static int add_devices(const struct wsync_publisher *p, struct ws_publisher_delta *d, struct ws_error *err)
{
    int rc = 0;
    d->plan.devices = d->devices;
    for (size_t i = 0; rc == 0 && i < p->n_params && d->plan.n_devices < MAX_DEVICES; i++) {
        bool known = p->devices[i] < 0 || !p->params[i].writes;
        for (size_t k = 0; k < d->plan.n_devices && !known; k++)
            known = ws_shadow_device(d->devices[k].shadow) == p->devices[i];
        if (known)
            continue;
        struct ws_copy_plan_device_state *k = &d->devices[d->plan.n_devices];
        rc = ws_shadow_new(&k->shadow, p->devices[i], p->file_sizes, p->n_files, err);
        if (rc == 0) {
            d->plan.n_devices++;
            ws_shadow_begin(k->shadow);
        }
    }
    return rc;
}

static int make(struct wsync_publisher *p, struct ws_error *err)
{
    struct ws_publisher_delta *d = p->delta = calloc(1, sizeof(*d));
    int rc = d && (d->widths = calloc(p->n_files + 1, sizeof(*d->widths)))
                 ? 0
                 : ws_error_set(err, ENOMEM, "no memory for gpu_delta");
    if (rc == 0) {
        d->n_files = p->n_files;
        d->plan.widths = d->widths;
        rc = add_devices(p, d, err);
    }
    if (rc == 0 && !(d->plan.history = ws_history_new(ws_shadow_n_blocks(d->devices[0].shadow))))
        rc = ws_error_set(err, ENOMEM, "no memory for gpu_delta");
    if (rc < 0) {
        ws_publisher_delta_free(d);
        p->delta = NULL;
    }
    return rc;
}

/* Parameters that have moved to another device leave nothing to compare with. */
static bool has_moved(const struct wsync_publisher *p, const struct ws_publisher_delta *d)
{
    for (size_t i = 0; i < p->n_params; i++) {
        bool known = p->devices[i] < 0 || !p->params[i].writes;
        for (size_t k = 0; k < d->plan.n_devices && !known; k++)
            known = ws_shadow_device(d->devices[k].shadow) == p->devices[i];
        if (!known)
            return true;
    }
    return false;
}

int ws_publisher_delta_run(struct wsync_publisher *p, struct ws_copy_plan_delta **out, struct ws_error *err)
{
    struct ws_error why = {0};
    *out = NULL;
    if (!p->gpu_delta || p->no_delta[0])
        return 0;
    if (p->delta && has_moved(p, p->delta)) {
        ws_publisher_delta_free(p->delta);
        p->delta = NULL;
    }
    int rc = p->delta ? 0 : make(p, err);
    struct ws_publisher_delta *d = p->delta;
    if (rc < 0)
        return rc;
    assert(!d->ran);
    if (ws_device_by_kind(WS_CUDA)->has_kernels(ws_shadow_device(d->devices[0].shadow), &why) < 0) {
        snprintf(d->why, sizeof(d->why), "it needs kernels: %.400s", why.text);
        return 0;
    }
    rc = ws_file_widths_read(d->widths, p->data, p->file_sizes, p->n_files, err);
    if (rc == 0) {
        d->ran = true;
        *out = &d->plan;
    }
    return rc;
}

void ws_publisher_delta_give_up(struct wsync_publisher *p, const char *why)
{
    ws_publisher_delta_free(p->delta);
    p->delta = NULL;
    snprintf(p->no_delta, sizeof(p->no_delta), "%s", why);
    ws_log(WS_LOG_WARN, "publisher", "no gpu_delta any more: %s", why);
}

/* --- its end --- */

int ws_publisher_delta_export(struct wsync_publisher *p, json_t *body, struct ws_error *err)
{
    json_t *list = NULL;
    int fd = -1;
    if (!p->delta || !p->delta->ran || ws_history_export(p->delta->plan.history, &list, &fd, err) < 0)
        return -1;
    if (fd >= 0 && json_object_set_new(body, "records", list) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

void ws_publisher_delta_commit(struct wsync_publisher *p)
{
    struct ws_publisher_delta *d = p->delta;
    const struct ws_version_id version = ws_version_id_make(p->version, p->lineage);
    uint64_t bytes = 0;
    if (!d || !d->ran)
        return;
    for (size_t i = 0; i < d->plan.n_devices; i++) {
        ws_shadow_commit(d->devices[i].shadow, &version);
        bytes += ws_shadow_bytes(d->devices[i].shadow);
    }
    ws_history_commit(d->plan.history, &version, p->max_slots > USUAL_SLOTS ? p->max_slots : USUAL_SLOTS,
                      bytes / SHARE);
}

/* What deltas take on the GPUs: the shadows, and all of it. */
static void count_device_bytes(const struct ws_publisher_delta *d, double *last, double *all)
{
    *last = *all = 0;
    for (size_t i = 0; i < d->plan.n_devices; i++) {
        const struct ws_copy_plan_device_state *k = &d->devices[i];
        if (!k->compare)
            continue;
        *last += (double)ws_shadow_bytes(k->shadow) / 1e6;
        *all += (double)(ws_shadow_bytes(k->shadow) + ws_compare_device_bytes(k->compare)) / 1e6;
    }
}

/* Why no block has a shadow; empty: some have. */
static const char *why_not(const struct ws_publisher_delta *d)
{
    if (!d || (!d->ran && !d->why[0]))
        return "it is for wsync_offload, not for single parameters";
    for (size_t i = 0; d->ran && i < d->plan.n_devices; i++)
        if (d->devices[i].compare)
            return "";
    return d->ran ? d->devices[0].why : d->why;
}

void ws_publisher_delta_describe(struct wsync_publisher *p, char *out, size_t bytes)
{
    struct ws_publisher_delta *d = p->delta;
    double last, all;
    if (!p->gpu_delta)
        return;
    if (p->no_delta[0] || why_not(d)[0]) {
        snprintf(out, bytes, "; no gpu_delta: %s", p->no_delta[0] ? p->no_delta : why_not(d));
        return;
    }
    count_device_bytes(d, &last, &all);
    if (!d->logged)
        ws_log(WS_LOG_INFO, "publisher",
               "gpu_delta takes %.1f MB on the GPU, %.1f MB of them for the last published bytes", all, last);
    d->logged = true;
    snprintf(out, bytes,
             "; gpu_delta: %.3f MB of changes instead of %.1f MB, %.1f MB whole, %.1f MB taken on the GPU",
             d->plan.patched_bytes ? (double)(d->plan.copied_bytes - d->plan.whole_bytes) / 1e6
                                   : 0.0, /* nothing was patched */
             (double)d->plan.patched_bytes / 1e6, (double)d->plan.whole_bytes / 1e6, all);
}
