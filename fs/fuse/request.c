#include "fs/fuse/request.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TRIES 8 /* a version that goes and comes while it is waited for */

void ws_call_start(fuse_req_t req, void (*run)(struct ws_call *), fuse_ino_t ino, const char *name,
                   size_t size, off_t off, const struct fuse_file_info *fi, bool plus)
{
    struct ws_call *c = calloc(1, sizeof(*c));
    if (c && name && !(c->name = strdup(name))) {
        free(c);
        c = NULL;
    }
    if (!c) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    c->fs = fuse_req_userdata(req);
    c->req = req;
    c->run = run;
    c->ino = ino;
    c->size = size;
    c->off = off;
    c->plus = plus;
    if (fi)
        c->fi = *fi;
    pthread_mutex_init(&c->lock, NULL);
    c->refs = 1;
    run(c);
}

static void unref(struct ws_call *c)
{
    pthread_mutex_lock(&c->lock);
    int left = --c->refs;
    pthread_mutex_unlock(&c->lock);
    if (left > 0)
        return;
    if (c->held)
        ws_version_put(c->held);
    pthread_mutex_destroy(&c->lock);
    free(c->name);
    free(c);
}

void ws_call_end(struct ws_call *c)
{
    unref(c);
}

void ws_call_error(struct ws_call *c, int code)
{
    fuse_reply_err(c->req, code);
    ws_call_end(c);
}

/* libfuse runs this under the request's lock; taking the handler away waits for it. */
static void on_interrupt(fuse_req_t req, void *arg)
{
    struct ws_call *c = arg;
    (void)req;
    pthread_mutex_lock(&c->lock);
    bool ours = false;
    if (c->phase == WS_CALL_STARTING) {
        c->interrupted = true;
    } else if (c->phase == WS_CALL_PARKED && ws_wait_cancel(&c->wait)) {
        c->phase = WS_CALL_FINISHED;
        ours = true;
    }
    pthread_mutex_unlock(&c->lock);
    if (ours)
        ws_call_error(c, EINTR);
}

static void on_done(struct ws_wait *w, int result)
{
    struct ws_call *c = (struct ws_call *)(void *)((char *)w - offsetof(struct ws_call, wait));
    pthread_mutex_lock(&c->lock);
    c->phase = WS_CALL_FINISHED;
    pthread_mutex_unlock(&c->lock);
    fuse_req_interrupt_func(c->req, NULL, NULL);
    if (result < 0)
        ws_call_error(c, -result);
    else
        c->run(c);
}

void ws_call_park(struct ws_call *c, struct ws_version *v, size_t file, size_t first, size_t n,
                  unsigned timeout_ms)
{
    if (++c->tries > MAX_TRIES) {
        ws_call_error(c, EIO);
        return;
    }
    pthread_mutex_lock(&c->lock);
    struct ws_version *before = c->held;
    c->held = ws_version_get(v);
    c->wait = (struct ws_wait){.done = on_done};
    c->phase = WS_CALL_STARTING;
    c->interrupted = false;
    const unsigned generation = ++c->generation;
    c->refs++; /* until this function is through: done may come at once */
    pthread_mutex_unlock(&c->lock);
    if (before)
        ws_version_put(before);
    fuse_req_interrupt_func(c->req, on_interrupt, c);
    int here = ws_version_wait(v, file, first, n, timeout_ms, &c->wait);
    bool interrupted = false;
    pthread_mutex_lock(&c->lock);
    if (here == 0 && c->generation == generation && c->phase == WS_CALL_STARTING) {
        c->phase = WS_CALL_PARKED;
        interrupted = c->interrupted && ws_wait_cancel(&c->wait);
        if (interrupted)
            c->phase = WS_CALL_FINISHED;
    }
    pthread_mutex_unlock(&c->lock);
    if (here != 0 || interrupted)
        fuse_req_interrupt_func(c->req, NULL, NULL);
    if (interrupted)
        ws_call_error(c, EINTR);
    else if (here > 0)
        c->run(c);
    else if (here < 0)
        ws_call_error(c, -here);
    unref(c); /* NOLINT(clang-analyzer-unix.Malloc): the reference taken above, not the one that just ended */
}
