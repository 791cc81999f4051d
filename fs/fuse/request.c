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

/* libfuse runs this under the request's lock; taking the handler away waits for it. */
static void on_interrupt(fuse_req_t req, void *arg)
{
    struct ws_request *rq = arg;
    (void)req;
    pthread_mutex_lock(&rq->lock);
    bool ours = false;
    if (rq->phase == WS_REQUEST_STARTING) {
        rq->interrupted = true;
    } else if (rq->phase == WS_REQUEST_PARKED && ws_waiter_cancel(&rq->wait)) {
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

static void on_done(struct ws_waiter *w, int result)
{
    struct ws_request *rq = (struct ws_request *)(void *)((char *)w - offsetof(struct ws_request, wait));
    pthread_mutex_lock(&rq->lock);
    rq->phase = WS_REQUEST_FINISHED;
    pthread_mutex_unlock(&rq->lock);
    fuse_req_interrupt_func(rq->req, NULL, NULL);
    if (result == -ESTALE)
        report_gone(rq);
    if (result < 0)
        ws_request_error(rq, -result);
    else
        rq->run(rq);
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
    rq->phase = WS_REQUEST_STARTING;
    rq->interrupted = false;
    const unsigned generation = ++rq->generation;
    rq->refs++; /* until this function is through: done may come at once */
    pthread_mutex_unlock(&rq->lock);
    if (before)
        ws_version_put(before);
    fuse_req_interrupt_func(rq->req, on_interrupt, rq);
    int here = ws_version_await(v, file, first, n, timeout_ms, &rq->wait);
    bool interrupted = false;
    pthread_mutex_lock(&rq->lock);
    if (here == 0 && rq->generation == generation && rq->phase == WS_REQUEST_STARTING) {
        rq->phase = WS_REQUEST_PARKED;
        interrupted = rq->interrupted && ws_waiter_cancel(&rq->wait);
        if (interrupted)
            rq->phase = WS_REQUEST_FINISHED;
    }
    pthread_mutex_unlock(&rq->lock);
    if (here != 0 || interrupted)
        fuse_req_interrupt_func(rq->req, NULL, NULL);
    if (!interrupted && here == -ESTALE)
        report_gone(rq);
    if (interrupted)
        ws_request_error(rq, EINTR);
    else if (here > 0)
        rq->run(rq);
    else if (here < 0)
        ws_request_error(rq, -here);
    unref(
        rq); /* NOLINT(clang-analyzer-unix.Malloc): the reference taken above, not the one that just ended */
}
