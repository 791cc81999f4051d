/* Copies spans whose sources are on GPUs. The way of each is chosen anew for each run. A run goes in rounds:
 * while the devices copy one, the CPU finishes the one before, hashes what is in place and copies the rest.
 * */
#include "backends/trainer/offload/copy_plan_state.h"
#include "backends/trainer/offload/d2h.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define LONG_SPAN                                                                                            \
    (64UL << 10) /* from here on a copy of its own costs less than what it keeps from the kernel */
#define LONG_ROW    (4UL << 10)  /* of a strided copy */
#define ROUND_BYTES (64UL << 20) /* so that the CPU has something to do meanwhile */

/* --- which way --- */

static bool is_long(const struct ws_copy_plan *p, const struct ws_copy_span *s, bool kernels)
{
    const struct ws_box_extents *r = &p->pieces.ptr[s->piece].runs;
    const bool plain = r->conversion == WS_SAME_TYPE && r->extent_step == (int64_t)r->element_bytes;
    if (!plain || !p->run->pinned[s->file])
        return false;
    return r->n_loops == 0 ? !kernels || s->bytes >= LONG_SPAN : r->extent_bytes >= LONG_ROW;
}

bool ws_copy_plan_can_gather(const struct ws_copy_plan *p, const struct ws_copy_span *s,
                             enum ws_gather_form form)
{
    const struct ws_copy_piece *q = &p->pieces.ptr[s->piece];
    return ws_d2h_has_kernels(p->run->d2h, ws_copy_plan_device(p, s)) &&
           ws_gather_supports(&q->runs, ws_copy_plan_source(p, s), s->from, s->bytes,
                              form == WS_GATHER_PLACED ? ws_copy_plan_tensor(p, s) : NULL, form);
}

static int prepare(struct ws_copy_piece *q, struct ws_error *err)
{
    if (q->detour)
        return 0;
    q->detour = malloc(sizeof(*q->detour));
    if (!q->detour)
        return ws_error_set(err, ENOMEM, "no memory for copies from a GPU");
    ws_box_extents_packed(&q->detour->packed, &q->runs, true);
    ws_box_extents_packed(&q->detour->packed_raw, &q->runs, false);
    ws_box_extents_raw(&q->detour->raw, &q->runs);
    return 0;
}

static int route_span(struct ws_copy_plan *p, struct ws_copy_span *s, struct ws_error *err)
{
    const int device = ws_copy_plan_device(p, s);
    if (device < 0)
        s->way = WS_COPY_HOST;
    else if (is_long(p, s, ws_d2h_has_kernels(p->run->d2h, device)))
        s->way = WS_COPY_DIRECT;
    else
        s->way = ws_copy_plan_can_gather(p, s, WS_GATHER_PACKED) ? WS_COPY_PACKED : WS_COPY_RAW;
    return device < 0 ? 0 : prepare(&p->pieces.ptr[s->piece], err);
}

/* Can all of this block come to its place by itself, what is short by kernels of one device? */
static bool can_place_whole(const struct ws_copy_plan *p, const struct ws_copy_job *j)
{
    const struct ws_copy_span *s = &p->spans.ptr[j->first];
    bool can = j->whole && p->run->pinned[s->file];
    for (size_t i = 0; can && i < j->n; i++)
        can = s[i].way != WS_COPY_HOST && ws_copy_plan_device(p, &s[i]) == ws_copy_plan_device(p, s) &&
              (s[i].way == WS_COPY_DIRECT || ws_copy_plan_can_gather(p, &s[i], WS_GATHER_PLACED));
    return can;
}

static int route_job(struct ws_copy_plan *p, struct ws_copy_job *j, struct ws_error *err)
{
    struct ws_copy_span *s = &p->spans.ptr[j->first];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < j->n; i++)
        rc = route_span(p, &s[i], err);
    if (rc < 0)
        return rc;
    const bool whole = can_place_whole(p, j);
    j->has_placed = false;
    for (size_t i = 0; i < j->n; i++) {
        if (whole && s[i].way != WS_COPY_DIRECT)
            s[i].way = WS_COPY_GATHERED;
        j->has_placed = j->has_placed || s[i].way == WS_COPY_DIRECT || s[i].way == WS_COPY_GATHERED;
    }
    return 0;
}

/* --- sending --- */

/* Elements of the source that a span of the tensor's bytes is made of, in bytes of the source. */
static void raw_part(const struct ws_copy_piece *q, const struct ws_copy_span *s, uint64_t *from,
                     uint64_t *bytes)
{
    const uint64_t to = q->runs.element_bytes, of = q->runs.src_element_bytes;
    const uint64_t first = s->from / to, end = (s->from + s->bytes + to - 1) / to;
    *from = first * of;
    *bytes = (end - first) * of;
}

static uint64_t room_of(const struct ws_copy_plan *p, const struct ws_copy_span *s)
{
    uint64_t from, bytes = s->bytes;
    if (s->way == WS_COPY_HOST || s->way == WS_COPY_DIRECT)
        return 0;
    if (s->way == WS_COPY_RAW)
        raw_part(&p->pieces.ptr[s->piece], s, &from, &bytes);
    return ws_d2h_staging_bytes(bytes);
}

/* Gathered spans that follow each other in the file, from s[0] on: one stretch of the device's buffer. */
static size_t stretch_of(const struct ws_copy_span *s, size_t n, uint64_t *end)
{
    size_t k = 1;
    *end = s[0].end;
    for (; k < n && s[k].way == WS_COPY_GATHERED && s[k].first <= *end; k++)
        *end = s[k].end > *end ? s[k].end : *end;
    return k;
}

static int send_stretch(struct ws_copy_plan *p, const struct ws_copy_span *s, size_t n, uint64_t end,
                        struct ws_error *err)
{
    const struct ws_copy_plan_run *run = p->run;
    const int device = ws_copy_plan_device(p, s);
    unsigned char *staged = ws_d2h_stage(run->d2h, device, run->data[s->file] + s->first, end - s->first);
    if (!staged)
        return ws_error_set(err, ENOMEM, "no memory for copies from a GPU");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct ws_copy_piece *q = &p->pieces.ptr[s[i].piece];
        unsigned char *tensor = (unsigned char *)((uintptr_t)staged + q->begin - s->first);
        rc = ws_d2h_gather(run->d2h, device, &q->runs, ws_copy_plan_source(p, &s[i]), s[i].from, s[i].bytes,
                           tensor, WS_GATHER_PLACED, q->source, err);
    }
    return rc;
}

static int send_span(struct ws_copy_plan *p, struct ws_copy_span *s, struct ws_error *err)
{
    const struct ws_copy_piece *q = &p->pieces.ptr[s->piece];
    struct ws_d2h *c = p->run->d2h;
    const int device = ws_copy_plan_device(p, s);
    uint64_t from, bytes;
    const unsigned char *at = NULL;
    int rc = 0;
    if (s->way == WS_COPY_DIRECT)
        return ws_d2h_copy_direct(c, device, &q->runs, ws_copy_plan_source(p, s), s->from, s->bytes,
                                  ws_copy_plan_tensor(p, s), err);
    if (s->way == WS_COPY_PACKED) {
        unsigned char *staged = ws_d2h_bounce(c, device, s->bytes, &at);
        s->at = at - s->from;
        return ws_d2h_gather(c, device, &q->runs, ws_copy_plan_source(p, s), s->from, s->bytes, staged,
                             WS_GATHER_PACKED, q->source, err);
    }
    raw_part(q, s, &from, &bytes);
    rc = ws_d2h_copy_raw(c, device, &q->detour->raw, ws_copy_plan_source(p, s), from, bytes, &at, err);
    s->at = at - from;
    return rc;
}

static int send_job(struct ws_copy_plan *p, const struct ws_copy_job *j, struct ws_error *err)
{
    struct ws_copy_span *s = &p->spans.ptr[j->first];
    uint64_t end;
    int rc = 0;
    for (size_t i = 0, n; rc == 0 && i < j->n; i += n) {
        n = 1;
        if (s[i].way == WS_COPY_GATHERED) {
            n = stretch_of(&s[i], j->n - i, &end);
            rc = send_stretch(p, &s[i], n, end, err);
        } else if (s[i].way != WS_COPY_HOST) {
            rc = send_span(p, &s[i], err);
        }
    }
    return rc;
}

/* --- rounds --- */

struct rounds {
    size_t first[WS_D2H_ROUNDS], n[WS_D2H_ROUNDS]; /* jobs */
};

/* Jobs from `first` on that a round has room for, at least one. */
static int send_round(struct ws_copy_plan *p, unsigned round, size_t first, size_t *n, struct ws_error *err)
{
    uint64_t room = 0, bytes = 0;
    int rc = 0;
    ws_d2h_begin_round(p->run->d2h, round);
    for (*n = 0; rc == 0 && first + *n < p->jobs.len && bytes < ROUND_BYTES; ++*n) {
        struct ws_copy_job *j = &p->jobs.ptr[first + *n];
        uint64_t more = 0;
        if (j->done)
            continue;
        rc = route_job(p, j, err);
        for (size_t i = 0; rc == 0 && i < j->n; i++)
            more += room_of(p, &p->spans.ptr[j->first + i]);
        if (rc < 0 || (*n > 0 && room + more > WS_D2H_STAGING_BYTES))
            break;
        room += more;
        bytes += WS_BLOCK_BYTES;
        rc = send_job(p, j, err);
    }
    return rc == 0 ? ws_d2h_send(p->run->d2h, err) : rc;
}

int ws_copy_plan_run_device(struct ws_copy_plan *p, struct ws_workers *workers, struct ws_error *err)
{
    struct rounds r = {0};
    size_t at = 0;
    unsigned sent = 0, done = 0;
    int rc = p->run->delta  ? ws_copy_plan_run_delta(p, workers, err)
             : p->run->data ? 0
                            : ws_copy_plan_run_hashes(p, err);
    while (rc == 0 && (at < p->jobs.len || done < sent)) {
        if (at < p->jobs.len && sent - done < WS_D2H_ROUNDS) {
            unsigned k = sent % WS_D2H_ROUNDS;
            r.first[k] = at;
            rc = send_round(p, sent, at, &r.n[k], err);
            at += r.n[k];
            sent++;
            continue;
        }
        unsigned k = done % WS_D2H_ROUNDS;
        rc = ws_d2h_wait(p->run->d2h, done, err);
        if (rc == 0)
            ws_copy_plan_run_jobs(p, r.first[k], r.n[k], workers);
        done++;
    }
    if (rc < 0)
        ws_d2h_stop(p->run->d2h);
    return rc;
}
