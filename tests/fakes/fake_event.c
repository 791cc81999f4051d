/* Events. A record is a number, which is complete or not; a wait is for the newest number at the time of the
 * call. An event shared with other processes keeps these numbers in a page of a memory file, which waits
 * poll. */
#include "tests/fakes/fake.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define POLL_US 200

/* guarded by fake_lock */
static struct CUevent_st *events;

CUresult fake_event_add(CUcontext ctx, unsigned flags, int fd, CUevent *out)
{
    struct CUevent_st *e = malloc(sizeof(*e));
    void *state = fd < 0 ? calloc(1, sizeof(*e->state)) : fake_map(fd, 0, FAKE_PAGE, PROT_READ | PROT_WRITE);
    if (!e || !state) {
        free(e);
        if (fd >= 0)
            close(fd);
        else
            free(state);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *e = (struct CUevent_st){
        .next = events, .ctx = ctx, .flags = flags, .refs = 1, .state = state, .fd = fd, .id = fake_new_id()};
    events = e;
    *out = e;
    return CUDA_SUCCESS;
}

CUevent fake_event_find(CUevent handle)
{
    struct CUevent_st *e = events;
    while (e && e != handle)
        e = e->next;
    return e && !e->destroyed ? e : NULL;
}

static void put(CUevent e)
{
    if (--e->refs)
        return;
    struct CUevent_st **at = &events;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    if (e->fd >= 0) {
        munmap(e->state, FAKE_PAGE);
        close(e->fd);
    } else {
        free(e->state);
    }
    free(e);
}

static bool is_done(const struct fake_event_state *s, uint64_t record)
{
    return atomic_load(&s->done[record % FAKE_EVENT_RING]) >= record;
}

CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
    FAKE_ENTER(FAKE_CONTEXT);
    bool shared = flags & CU_EVENT_INTERPROCESS;
    int fd = -1;
    if (flags & ~7U || (shared && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    if (shared && !fake_plan()->legacy)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (shared && ((fd = memfd_create("fake-event", MFD_CLOEXEC)) < 0 || ftruncate(fd, FAKE_PAGE))) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&fake_lock);
    CUresult rc = fake_event_add(fake_context(), flags, fd, out);
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult cuEventDestroy_v2(CUevent handle)
{
    FAKE_ENTER(FAKE_CONTEXT);
    pthread_mutex_lock(&fake_lock);
    CUevent e = fake_event_find(handle);
    if (e) {
        e->destroyed = true;
        put(e);
    }
    pthread_mutex_unlock(&fake_lock);
    return e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

struct event_op {
    struct fake_op op;
    CUevent event;
    uint64_t record;
};

static void let_go(struct fake_op *op)
{
    put(((struct event_op *)op)->event);
}

static CUresult run_record(struct fake_op *op)
{
    const struct event_op *o = (const struct event_op *)op;
    _Atomic uint64_t *done = &o->event->state->done[o->record % FAKE_EVENT_RING];
    uint64_t was = atomic_load(done);
    while (was < o->record && !atomic_compare_exchange_weak(done, &was, o->record))
        ;
    return CUDA_SUCCESS;
}

static CUresult run_wait(struct fake_op *op)
{
    (void)op;
    return CUDA_SUCCESS;
}

static bool wait_is_over(const struct fake_op *op)
{
    const struct event_op *o = (const struct event_op *)op;
    return is_done(o->event->state, o->record);
}

static struct event_op *new_op(CUevent handle, CUresult *rc)
{
    struct event_op *o = calloc(1, sizeof(*o));
    pthread_mutex_lock(&fake_lock);
    CUevent e = fake_event_find(handle);
    *rc = !o ? CUDA_ERROR_OUT_OF_MEMORY : e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    if (*rc == CUDA_SUCCESS) {
        e->refs++;
        *o = (struct event_op){.op = {.free = let_go, .polled = e->fd >= 0}, .event = e};
    }
    pthread_mutex_unlock(&fake_lock);
    if (*rc != CUDA_SUCCESS) {
        free(o);
        return NULL;
    }
    return o;
}

CUresult cuEventRecord(CUevent handle, CUstream stream)
{
    FAKE_ENTER(FAKE_CONTEXT);
    CUresult rc;
    struct event_op *o = new_op(handle, &rc);
    if (!o)
        return rc;
    pthread_mutex_lock(&fake_lock);
    CUstream s = fake_stream_find(stream);
    bool fits = s && (fake_stream_context(s) == o->event->ctx);
    if (!fits)
        let_go(&o->op);
    else
        o->record = atomic_fetch_add(&o->event->state->recorded, 1) + 1;
    pthread_mutex_unlock(&fake_lock);
    if (!fits) { /* as in CUDA, an event belongs to its context */
        free(o);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    o->op.run = run_record;
    o->op.always = true;
    return fake_stream_push(stream, &o->op, false);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned int flags)
{
    FAKE_ENTER(FAKE_CONTEXT);
    CUresult rc;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct event_op *o = new_op(handle, &rc);
    if (!o)
        return rc;
    o->record = atomic_load(&o->event->state->recorded); /* 0: never recorded, and complete */
    o->op.run = run_wait;
    o->op.ready = wait_is_over;
    return fake_stream_push(stream, &o->op, false);
}

CUresult cuEventQuery(CUevent handle)
{
    FAKE_ENTER(FAKE_INIT);
    pthread_mutex_lock(&fake_lock);
    CUevent e = fake_event_find(handle);
    CUresult rc = !e ? CUDA_ERROR_INVALID_HANDLE : fake_sticky(e->ctx);
    if (rc == CUDA_SUCCESS && !is_done(e->state, atomic_load(&e->state->recorded)))
        rc = CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult cuEventSynchronize(CUevent handle)
{
    FAKE_ENTER(FAKE_CONTEXT);
    pthread_mutex_lock(&fake_lock);
    CUevent e = fake_event_find(handle);
    CUresult rc = !e ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
    if (e) {
        uint64_t record = atomic_load(&e->state->recorded);
        e->refs++;
        while (!is_done(e->state, record) && e->ctx->sticky == CUDA_SUCCESS) {
            if (e->fd < 0) {
                pthread_cond_wait(&fake_changed, &fake_lock);
                continue;
            }
            pthread_mutex_unlock(&fake_lock);
            usleep(POLL_US);
            pthread_mutex_lock(&fake_lock);
        }
        rc = fake_sticky(e->ctx);
        put(e);
    }
    pthread_mutex_unlock(&fake_lock);
    return rc;
}
