#include "fs/fuse/lazy_read.h"
#include "fs/pull/lazy.h"
#include <errno.h>
#include <stdlib.h>

struct reading {
    struct ws_lazy_read read;
    pthread_mutex_t lock;
    struct ws_request *rq; /* guarded by lock; NULL: it was replied to */
};

/* The request is the caller's alone from then on; NULL: the other had it first. */
static struct ws_request *take(struct reading *r)
{
    pthread_mutex_lock(&r->lock);
    struct ws_request *rq = r->rq;
    r->rq = NULL;
    pthread_mutex_unlock(&r->lock);
    return rq;
}

/* libfuse runs this under the request's lock; taking the handler away waits for it. */
static void on_interrupt(fuse_req_t req, void *arg)
{
    struct ws_request *rq = take(arg);
    (void)req;
    if (rq)
        ws_request_error(rq, EINTR);
}

static void free_reading(struct reading *r)
{
    ws_version_put(r->read.version);
    pthread_mutex_destroy(&r->lock);
    free(r->read.out);
    free(r);
}

static void on_done(struct ws_lazy_read *read, int rc, const struct ws_error *err)
{
    struct reading *r = (struct reading *)read; /* it is its first member */
    struct ws_request *rq = take(r);
    if (rq) {
        fuse_req_interrupt_func(rq->req, NULL, NULL);
        if (rc < 0)
            ws_control_record_absent(rq->fs->control, read->version, err);
        if (rc == 0) {
            fuse_reply_buf(rq->req, (const char *)read->out, read->n);
            ws_request_end(rq);
        } else {
            ws_request_error(rq, -rc);
        }
    }
    free_reading(r);
}

void ws_lazy_read_start(struct ws_request *rq, struct ws_version *v, size_t file, uint64_t at, uint64_t n)
{
    struct reading *r = calloc(1, sizeof(*r));
    if (!r || !(r->read.out = malloc(n))) {
        free(r);
        ws_request_error(rq, ENOMEM);
        return;
    }
    r->read.version = ws_version_get(v);
    r->read.file = file;
    r->read.at = at;
    r->read.n = n;
    r->read.done = on_done;
    pthread_mutex_init(&r->lock, NULL);
    r->rq = rq;
    struct ws_lazy *lazy = rq->fs->lazy;
    fuse_req_interrupt_func(rq->req, on_interrupt, r); /* it may run at once, and end the request */
    ws_lazy_submit(lazy, &r->read);
}
