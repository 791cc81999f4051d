/* gpu_delta: what a publisher keeps of its last versions on the GPU and on the host, from registration to
 * registration, and what it tells the agent of it. */
#include "backends/trainer/publisher_state.h"
#include "transports/log.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define USUAL_SLOTS 3 /* a slot holds a version that is at most so many before */
#define SHARE       3 /* records may take a third of what is written */

struct ws_publisher_delta {
    struct ws_plan_delta plan;
    struct ws_widths **widths;
    size_t n_files;
    bool ran; /* in the begun version */
    bool told;
    char why[WS_ERROR_TEXT / 2]; /* the begun version goes without */
};

void ws_publisher_delta_free(struct ws_publisher_delta *d)
{
    if (!d)
        return;
    ws_comparer_free(d->plan.comparer); /* waits for what is queued */
    ws_kept_free(d->plan.kept);
    ws_records_free(d->plan.records);
    ws_plan_tools_free(d->plan.tools);
    for (size_t i = 0; i < d->n_files; i++)
        free(d->widths[i]);
    free(d->widths);
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
    ws_kept_begin(d->plan.kept);
    d->ran = false;
    d->why[0] = 0;
    d->plan.slot = run ? ws_mark_of((uint64_t)json_integer_value(json_object_get(holds, "version")), run)
                       : (struct ws_mark){0};
}

/* Elements as the agent sees them when it compares: by the header that it wrote into the slot. */
static int read_widths(struct wsync_publisher *p, struct ws_publisher_delta *d, struct ws_error *err)
{
    for (size_t i = 0; i < p->n_files; i++) {
        struct ws_safetensors *st = NULL;
        uint64_t header;
        if (d->widths[i] || !p->data[i] || p->file_sizes[i] < WS_BLOCK_BYTES)
            continue;
        if (ws_safetensors_header_bytes(p->data[i], p->file_sizes[i], &header, NULL) < 0 ||
            ws_safetensors_parse(p->data[i], header, p->file_sizes[i], &st, NULL) < 0)
            st = NULL; /* bytes, then */
        d->widths[i] = ws_widths_new(st);
        ws_safetensors_free(st);
        if (!d->widths[i])
            return ws_error_set(err, ENOMEM, "no memory for the widths of a file's elements");
    }
    return 0;
}

static int make(struct wsync_publisher *p, struct ws_error *err)
{
    struct ws_publisher_delta *d = p->delta = calloc(1, sizeof(*d));
    int rc = d ? 0 : ws_error_set(err, ENOMEM, "no memory for gpu_delta");
    if (rc == 0 && (d->widths = calloc(p->n_files + 1, sizeof(*d->widths)))) {
        d->n_files = p->n_files;
        d->plan.widths = d->widths;
        rc = ws_kept_new(&d->plan.kept, p->device, p->file_sizes, p->n_files, err);
    }
    if (rc == 0 && d->plan.kept)
        d->plan.records = ws_records_new(ws_kept_blocks(d->plan.kept));
    if (rc == 0 && !d->plan.records)
        rc = ws_error_set(err, ENOMEM, "no memory for gpu_delta");
    if (rc < 0) {
        ws_publisher_delta_free(d);
        p->delta = NULL;
        return rc;
    }
    ws_kept_begin(d->plan.kept);
    return 0;
}

int ws_publisher_delta_run(struct wsync_publisher *p, struct ws_plan_delta **out, struct ws_error *err)
{
    struct ws_error why = {0};
    *out = NULL;
    if (!p->gpu_delta)
        return 0;
    int rc = p->delta ? 0 : make(p, err);
    struct ws_publisher_delta *d = p->delta;
    if (rc < 0)
        return rc;
    assert(!d->ran);
    if (ws_device_of_kind(WS_CUDA)->has_kernels(ws_kept_device(d->plan.kept), &why) < 0) {
        snprintf(d->why, sizeof(d->why), "it needs kernels: %.400s", why.text);
        return 0;
    }
    rc = read_widths(p, d, err);
    if (rc == 0) {
        d->ran = true;
        *out = &d->plan;
    }
    return rc;
}

/* --- its end --- */

int ws_publisher_delta_export(struct wsync_publisher *p, json_t *body, struct ws_error *err)
{
    json_t *list = NULL;
    int fd = -1;
    if (!p->delta || !p->delta->ran || ws_records_export(p->delta->plan.records, &list, &fd, err) < 0)
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
    const struct ws_mark version = ws_mark_of(p->version, p->run);
    if (!d || !d->ran || !d->plan.comparer)
        return;
    ws_kept_commit(d->plan.kept, &version);
    ws_records_commit(d->plan.records, &version, p->max_slots > USUAL_SLOTS ? p->max_slots : USUAL_SLOTS,
                      ws_kept_bytes(d->plan.kept) / SHARE);
}

static const char *why_not(const struct ws_publisher_delta *d)
{
    if (!d || (!d->ran && !d->why[0]))
        return "it is for wsync_offload, not for single parameters";
    return d->why[0] ? d->why : d->plan.why;
}

void ws_publisher_delta_tell(struct wsync_publisher *p, char *out, size_t bytes)
{
    struct ws_publisher_delta *d = p->delta;
    if (!p->gpu_delta)
        return;
    if (why_not(d)[0]) {
        snprintf(out, bytes, "; no gpu_delta: %s", why_not(d));
        return;
    }
    const struct ws_plan_delta *f = &d->plan;
    const double last = (double)ws_kept_bytes(f->kept) / 1e6,
                 all = last + (double)ws_comparer_bytes(f->comparer) / 1e6;
    if (!d->told)
        ws_log(WS_LOG_INFO, "publisher",
               "gpu_delta takes %.1f MB on device %d, %.1f MB of them for the last published bytes", all,
               ws_kept_device(f->kept), last);
    d->told = true;
    snprintf(out, bytes,
             "; gpu_delta: %.3f MB of changes instead of %.1f MB, %.1f MB whole, %.1f MB taken on the GPU",
             (double)(f->came - f->whole) / 1e6, (double)f->patched / 1e6, (double)f->whole / 1e6, all);
}
