#include "fs/fuse/request.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TRIES 8 /* a version that goes and comes while it is waited for */

void ws_request_start(fuse_req_t req, void (*run)(struct ws_request *), fuse_ino_t ino, const char *name,
                      size_t size, off_t off, const struct fuse_file_info *fi, bool plus)
{
    struct ws_request *rq = calloc(1, sizeof(*rq));
    if (rq && name && !(rq->name = strdup(name))) {
        free(rq);
        rq = NULL;
    }
    if (!rq) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    rq->fs = fuse_req_userdata(req);
    rq->req = req;
    rq->run = run;
    rq->ino = ino;
    rq->size = size;
    rq->off = off;
    rq->plus = plus;
    if (fi)
        rq->fi = *fi;
    pthread_mutex_init(&rq->lock, NULL);
    rq->refs = 1;
    run(rq);
}

static void unref(struct ws_request *rq)
{
    pthread_mutex_lock(&rq->lock);
    int left = --rq->refs;
    pthread_mutex_unlock(&rq->lock);
    if (left > 0)
        return;
    if (rq->waited_for)
        ws_version_put(rq->waited_for);
    pthread_mutex_destroy(&rq->lock);
    free(rq->name);
    free(rq);
}

void ws_request_end(struct ws_request *rq)
{
    unref(rq);
}

void ws_request_error(struct ws_request *rq, int code)
{
    fuse_reply_err(rq->req, code);
    ws_request_end(rq);
}

/* With rq->lock. True: what it waits for will not run it again. */
static bool cancel_wait(struct ws_request *rq)
{
    return rq->asks ? ws_inquiry_cancel(rq->fs->store, &rq->inquiry) : ws_waiter_cancel(&rq->wait);
}

/* libfuse runs this under the request's lock; taking the handler away waits for it. */
static void on_interrupt(fuse_req_t req, void *arg)
{
    struct ws_request *rq = arg;
    (void)req;
    pthread_mutex_lock(&rq->lock);
    bool ours = false;
    if (rq->phase == WS_REQUEST_STARTING) {
        rq->interrupted = true;
    } else if (rq->phase == WS_REQUEST_PARKED && cancel_wait(rq)) {
        rq->phase = WS_REQUEST_FINISHED;
        ours = true;
    }
    pthread_mutex_unlock(&rq->lock);
    if (ours)
        ws_request_error(rq, EINTR);
}

/* A version that is not to be had: no pull says so, since none began. With waited_for set. */
static void report_gone(struct ws_request *rq)
{
    struct ws_error why;

    (void)ws_version_explain(rq->waited_for, -ESTALE, 0, &why);
    ws_control_record_absent(rq->fs->control, rq->waited_for, &why);
}

static void finish(struct ws_request *rq)
{
    pthread_mutex_lock(&rq->lock);
    rq->phase = WS_REQUEST_FINISHED;
    pthread_mutex_unlock(&rq->lock);
    fuse_req_interrupt_func(rq->req, NULL, NULL);
}

static void on_done(struct ws_waiter *w, int result)
{
    struct ws_request *rq = (struct ws_request *)(void *)((char *)w - offsetof(struct ws_request, wait));
    finish(rq);
    if (result == -ESTALE)
        report_gone(rq);
    if (result < 0)
        ws_request_error(rq, -result);
    else
        rq->run(rq);
}

static void on_asked(struct ws_inquiry *q)
{
    struct ws_request *rq = (struct ws_request *)(void *)((char *)q - offsetof(struct ws_request, inquiry));
    finish(rq);
    rq->run(rq);
}

/* Before the wait begins, which may be done, and end the request, at once: with a reference for end_parking. */
static unsigned begin_parking(struct ws_request *rq, bool asks)
{
    pthread_mutex_lock(&rq->lock);
    rq->asks = asks;
    rq->phase = WS_REQUEST_STARTING;
    rq->interrupted = false;
    const unsigned generation = ++rq->generation;
    rq->refs++;
    pthread_mutex_unlock(&rq->lock);
    fuse_req_interrupt_func(rq->req, on_interrupt, rq);
    return generation;
}

/* waits: done will be called, or was. True: the request was interrupted meanwhile, and done is not called. */
static bool end_parking(struct ws_request *rq, unsigned generation, bool waits)
{
    bool interrupted = false;
    pthread_mutex_lock(&rq->lock);
    if (waits && rq->generation == generation && rq->phase == WS_REQUEST_STARTING) {
        rq->phase = WS_REQUEST_PARKED;
        interrupted = rq->interrupted && cancel_wait(rq);
        if (interrupted)
            rq->phase = WS_REQUEST_FINISHED;
    }
    pthread_mutex_unlock(&rq->lock);
    if (!waits || interrupted)
        fuse_req_interrupt_func(rq->req, NULL, NULL);
    return interrupted;
}

/* model NULL: until each source has answered once. True: it is parked. */
static bool inquire(struct ws_request *rq, const char *model, const uint64_t *number)
{
    rq->inquiry = (struct ws_inquiry){.done = on_asked};
    const unsigned generation = begin_parking(rq, true);
    const bool waits =
        (model ? ws_inquiry_start(rq->fs->store, model, number, &rq->inquiry)
               : ws_inquiry_await_first(rq->fs->store, rq->fs->sources_until_ns, &rq->inquiry)) == 0;
    if (end_parking(rq, generation, waits))
        ws_request_error(rq, EINTR);
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): begin_parking's reference, not the one that just ended */
    unref(rq);
    return waits;
}

bool ws_request_ask(struct ws_request *rq, const char *model, const uint64_t *number)
{
    rq->has_asked = true;
    return inquire(rq, model, number);
}

bool ws_request_await_sources(struct ws_request *rq)
{
    return rq->fs->sources_until_ns && inquire(rq, NULL, NULL);
}

void ws_request_deny(struct ws_request *rq, int code)
{
    if ((code == ENOENT || code == ESTALE) && ws_request_await_sources(rq))
        return;
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): inquire's own reference has ended, not the one that the caller has */
    ws_request_error(rq, code);
}

void ws_request_park(struct ws_request *rq, struct ws_version *v, size_t file, size_t first, size_t n,
                     unsigned timeout_ms)
{
    if (++rq->tries > MAX_TRIES) {
        ws_request_error(rq, EIO);
        return;
    }
    pthread_mutex_lock(&rq->lock);
    struct ws_version *before = rq->waited_for;
    rq->waited_for = ws_version_get(v);
    rq->wait = (struct ws_waiter){.done = on_done};
    pthread_mutex_unlock(&rq->lock);
    if (before)
        ws_version_put(before);
    const unsigned generation = begin_parking(rq, false);
    const int here = ws_version_await(v, file, first, n, timeout_ms, &rq->wait);
    const bool interrupted = end_parking(rq, generation, here == 0);
    if (!interrupted && here == -ESTALE)
        report_gone(rq);
    if (interrupted)
        ws_request_error(rq, EINTR);
    else if (here > 0)
        rq->run(rq);
    else if (here < 0)
        ws_request_error(rq, -here);
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): begin_parking's reference, not the one that just ended */
    unref(rq);
}
