#include "fs/engines/job.h"
#include "transports/base/clock.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <stdlib.h>

struct job {
    struct ws_control *control;
    void (*fn)(void *arg);
    void *arg;
};

static void count_down(struct ws_control *c)
{
    pthread_mutex_lock(&c->lock);
    if (--c->n_jobs == 0)
        pthread_cond_broadcast(&c->idle);
    pthread_mutex_unlock(&c->lock);
}

static void *run(void *arg)
{
    struct job j = *(struct job *)arg;
    free(arg);
    j.fn(j.arg);
    count_down(j.control);
    return NULL;
}

int ws_job_start(struct ws_control *c, void (*fn)(void *arg), void *arg)
{
    pthread_t thread;
    struct job *j = malloc(sizeof(*j));
    if (!j)
        return -EAGAIN;
    *j = (struct job){c, fn, arg};
    pthread_mutex_lock(&c->lock);
    bool stop = atomic_load(&c->stop);
    c->n_jobs += !stop;
    pthread_mutex_unlock(&c->lock);
    if (!stop && ws_thread_start(&thread, run, j) == 0) {
        pthread_detach(thread);
        return 0;
    }
    free(j);
    if (!stop)
        count_down(c);
    return stop ? -ESHUTDOWN : -EAGAIN;
}

void ws_jobs_wait(struct ws_control *c)
{
    pthread_mutex_lock(&c->lock);
    while (c->n_jobs > 0 && ws_cond_wait_until(&c->idle, &c->lock, c->end_by_ns) != ETIMEDOUT)
        ;
    atomic_store(&c->calls_cut, c->n_jobs > 0);
    while (c->n_jobs > 0)
        pthread_cond_wait(&c->idle, &c->lock);
    pthread_mutex_unlock(&c->lock);
}
