/* Streams: a thread each, which runs the pushed operations in order, with occasional delays. An operation has
 * a number in its context; the legacy default stream waits for lower numbers in all streams that are not
 * "non-blocking", and they wait for its lower numbers. */
#include "tests/fakes/fake.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define POLL_NS     200000L
#define END_SECONDS 5 /* for threads of destroyed streams, at the process's end */

struct CUstream_st {
    struct CUstream_st *next;
    CUcontext ctx;
    pthread_t thread;
    unsigned flags, waiters;
    bool destroyed;
    uint64_t seed;
    struct fake_op *first, **last; /* the first one may be running */
};

static struct CUstream_st *ended;                /* whose threads are to be joined; guarded by fake_lock */
static _Thread_local CUstream own[FAKE_DEVICES]; /* this thread's default streams */

static uint64_t next_random(uint64_t *s)
{
    *s = *s * 6364136223846793005UL + 1442695040888963407UL;
    return *s >> 33;
}

/* Whether the stream has an operation pushed before number. */
static bool has_older(const struct CUstream_st *s, uint64_t number)
{
    return s->first && s->first->number < number;
}

static bool may_run(const struct CUstream_st *s, const struct fake_op *op)
{
    const struct CUstream_st *legacy = s->ctx->legacy;
    if (op->ready && !op->ready(op) && s->ctx->sticky == CUDA_SUCCESS)
        return false;
    if (s->flags & CU_STREAM_NON_BLOCKING)
        return true;
    if (s != legacy)
        return !has_older(legacy, op->number);
    for (const struct CUstream_st *o = s->ctx->streams; o; o = o->next)
        if (o != s && !(o->flags & CU_STREAM_NON_BLOCKING) && has_older(o, op->number))
            return false;
    return true;
}

static void wait_for_turn(struct CUstream_st *s)
{
    while (!(s->first && may_run(s, s->first)) && !(s->destroyed && !s->first && !s->waiters)) {
        if (s->first && s->first->polled) {
            struct timespec t;
            clock_gettime(CLOCK_REALTIME, &t);
            t.tv_nsec += POLL_NS;
            t.tv_sec += t.tv_nsec / 1000000000L;
            t.tv_nsec %= 1000000000L;
            pthread_cond_timedwait(&fake_changed, &fake_lock, &t);
        } else {
            pthread_cond_wait(&fake_changed, &fake_lock);
        }
    }
}

/* Without the lock. */
static void be_late(struct CUstream_st *s)
{
    unsigned most = fake_plan()->delay_us;
    if (most && next_random(&s->seed) % 4 == 0)
        usleep((useconds_t)(next_random(&s->seed) % most + 1));
}

static void *work(void *arg)
{
    struct CUstream_st *s = arg;
    fake_in_stream = true;
    pthread_mutex_lock(&fake_lock);
    for (;;) {
        wait_for_turn(s);
        struct fake_op *op = s->first;
        if (!op)
            break;
        bool sound = s->ctx->sticky == CUDA_SUCCESS && !op->fault;
        if (op->fault)
            fake_break(s->ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
        s->ctx->running += !op->is_host;
        pthread_mutex_unlock(&fake_lock);
        if (sound)
            be_late(s);
        CUresult rc = sound || op->always ? op->run(op) : CUDA_SUCCESS;
        pthread_mutex_lock(&fake_lock);
        s->ctx->running -= !op->is_host;
        if (rc != CUDA_SUCCESS)
            fake_break(s->ctx, rc);
        s->first = op->next;
        if (!s->first)
            s->last = &s->first;
        if (op->free)
            op->free(op);
        free(op);
        pthread_cond_broadcast(&fake_changed);
    }
    for (struct CUstream_st **at = &s->ctx->streams; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            break;
        }
    s->next = ended;
    ended = s;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

/* With the lock, which it releases. */
static void join_ended(void)
{
    struct CUstream_st *s = ended;
    ended = NULL;
    pthread_mutex_unlock(&fake_lock);
    for (struct CUstream_st *next; s; s = next) {
        next = s->next;
        pthread_join(s->thread, NULL);
        free(s);
    }
    pthread_mutex_lock(&fake_lock);
}

static bool are_ending(void)
{
    for (unsigned i = 0; i < fake_device_count(); i++)
        for (const struct CUstream_st *s = fake_context_of((int)i)->streams; s; s = s->next)
            if (s->destroyed)
                return true;
    return false;
}

/* Destroyed streams end before the process does; their threads are joined. */
static void at_exit(void)
{
    struct timespec end;
    if (!fake_is_owner())
        return; /* a fork's child does not have these threads */
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += END_SECONDS;
    pthread_mutex_lock(&fake_lock);
    while (are_ending() && pthread_cond_timedwait(&fake_changed, &fake_lock, &end) == 0)
        ;
    join_ended();
    pthread_mutex_unlock(&fake_lock);
}

static void leave_at_exit(void)
{
    atexit(at_exit);
}

CUresult fake_stream_new(CUcontext ctx, unsigned flags, CUstream *out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct CUstream_st *s = calloc(1, sizeof(*s));
    sigset_t all, before;

    pthread_once(&once, leave_at_exit);
    if (!s)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *s = (struct CUstream_st){.next = ctx->streams,
                              .ctx = ctx,
                              .flags = flags,
                              .seed = (fake_plan()->seed + fake_new_id() * 7919) * 0x9e3779b97f4a7c15UL,
                              .last = &s->first};
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int rc = pthread_create(&s->thread, NULL, work, s); /* begins with the lock, held by the caller */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        free(s);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    ctx->streams = s;
    *out = s;
    return CUDA_SUCCESS;
}

CUcontext fake_stream_context(CUstream stream)
{
    return stream->ctx;
}

CUstream fake_stream_find(CUstream handle)
{
    CUcontext ctx = fake_context();
    if (!handle || handle == CU_STREAM_LEGACY)
        return ctx ? ctx->legacy : NULL;
    if (handle == CU_STREAM_PER_THREAD) {
        if (ctx && !own[ctx->device] &&
            fake_stream_new(ctx, CU_STREAM_DEFAULT, &own[ctx->device]) != CUDA_SUCCESS)
            return NULL;
        return ctx ? own[ctx->device] : NULL;
    }
    for (unsigned i = 0; i < fake_device_count(); i++)
        for (struct CUstream_st *s = fake_context_of((int)i)->streams; s; s = s->next)
            if (s == handle && !s->destroyed)
                return s;
    return NULL;
}

CUresult fake_stream_push(CUstream handle, struct fake_op *op, bool wait)
{
    op->fault = fake_take_fault();
    pthread_mutex_lock(&fake_lock);
    CUstream s = fake_stream_find(handle);
    CUresult rc = s ? s->ctx->sticky : CUDA_ERROR_INVALID_HANDLE;
    if (rc != CUDA_SUCCESS) {
        if (op->free)
            op->free(op);
        pthread_mutex_unlock(&fake_lock);
        free(op);
        return rc;
    }
    uint64_t number = ++s->ctx->submitted;
    op->ctx = s->ctx;
    op->number = number;
    op->next = NULL;
    *s->last = op;
    s->last = &op->next;
    pthread_cond_broadcast(&fake_changed);
    s->waiters += wait;
    while (wait && has_older(s, number + 1))
        pthread_cond_wait(&fake_changed, &fake_lock);
    s->waiters -= wait;
    rc = wait ? fake_sticky(s->ctx) : CUDA_SUCCESS;
    if (wait && s->destroyed)
        pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

static bool has_older_work(CUcontext ctx, uint64_t number)
{
    for (const struct CUstream_st *s = ctx->streams; s; s = s->next)
        if (has_older(s, number))
            return true;
    return false;
}

void fake_quiesce(CUcontext ctx)
{
    uint64_t upto = ctx->submitted + 1;
    while (has_older_work(ctx, upto))
        pthread_cond_wait(&fake_changed, &fake_lock);
}

CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
    FAKE_ENTER(FAKE_CONTEXT);
    if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    join_ended();
    CUresult rc = fake_stream_new(fake_context(), flags, out);
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
    FAKE_ENTER(FAKE_CONTEXT);
    bool of_driver = !handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
    pthread_mutex_lock(&fake_lock);
    CUstream s = of_driver ? NULL : fake_stream_find(handle);
    if (s) {
        s->destroyed = true; /* its thread ends it when it is empty */
        pthread_cond_broadcast(&fake_changed);
    }
    pthread_mutex_unlock(&fake_lock);
    return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult nothing(struct fake_op *op)
{
    (void)op;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle)
{
    FAKE_ENTER(FAKE_CONTEXT);
    struct fake_op *op = calloc(1, sizeof(*op));
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->run = nothing;
    return fake_stream_push(handle, op, true);
}

CUresult cuStreamQuery(CUstream handle)
{
    FAKE_ENTER(FAKE_CONTEXT);
    pthread_mutex_lock(&fake_lock);
    CUstream s = fake_stream_find(handle);
    CUresult rc = !s ? CUDA_ERROR_INVALID_HANDLE : s->ctx->sticky;
    if (rc == CUDA_SUCCESS && s->first)
        rc = CUDA_ERROR_NOT_READY;
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

struct host_op {
    struct fake_op op;
    CUhostFn run, drop;
    void *arg;
};

static CUresult run_host(struct fake_op *op)
{
    struct host_op *h = (struct host_op *)op;
    h->drop = NULL;
    h->run(h->arg);
    return CUDA_SUCCESS;
}

static void drop_host(struct fake_op *op)
{
    const struct host_op *h = (const struct host_op *)op;
    if (h->drop)
        h->drop(h->arg);
}

CUresult ws_fake_host_work(CUstream handle, CUhostFn run, CUhostFn drop, void *arg)
{
    struct host_op *h = calloc(1, sizeof(*h));
    if (!h)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *h = (struct host_op){
        .op = {.is_host = true, .run = run_host, .free = drop_host}, .run = run, .drop = drop, .arg = arg};
    return fake_stream_push(handle, &h->op, false);
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn fn, void *arg)
{
    FAKE_ENTER(FAKE_CONTEXT);
    return ws_fake_host_work(handle, fn, NULL, arg);
}
