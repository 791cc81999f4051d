#include "transports/base/workers.h"
#include <assert.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_WORKERS 256
#define STACK_BYTES                                                                                          \
    (1UL << 20) /* some jobs parse answers of untrusted peers; only what is touched takes memory */

typedef void worker_job(void *arg, size_t i, unsigned worker);

struct ws_workers {
    pthread_mutex_t turn; /* held by the caller of run; taken before lock */
    pthread_mutex_t lock;
    pthread_cond_t start, finished;
    /* guarded by lock */
    unsigned long round;
    unsigned active; /* workers inside the round */
    bool stop;
    worker_job *job; /* NULL: the round is over, and a worker that wakes up only now stays out of it */
    void *arg;
    size_t n;
    /* end of guarded */
    atomic_size_t next;
    int nice;
    unsigned n_threads; /* the caller counts as one */
    struct thread {
        struct ws_workers *workers;
        unsigned index; /* from 1: 0 is the caller */
        pthread_t thread;
    } threads[];
};

void ws_thread_nice(int nice)
{
    if (nice > 0) /* the calling thread only: Linux keeps priorities by thread */
        (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice);
}

static void block_signals(sigset_t *before)
{
    static const int own_faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(own_faults) / sizeof(own_faults[0]); i++)
        sigdelset(&all, own_faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

int ws_thread_start(pthread_t *thread, void *(*start)(void *arg), void *arg)
{
    sigset_t before;
    block_signals(&before);
    int rc = pthread_create(thread, NULL, start, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -rc;
}

/* --- all at once --- */

struct one {
    void (*job)(void *arg, size_t i);
    void *arg;
    size_t i;
    pthread_t thread;
    bool started;
};

static void *run_one(void *self)
{
    const struct one *o = self;
    o->job(o->arg, o->i);
    return NULL;
}

void ws_workers_run_at_once(void (*job)(void *arg, size_t i), void *arg, size_t n)
{
    struct one *all = calloc(n + 1, sizeof(*all));
    pthread_attr_t attr;
    sigset_t before;
    pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    for (size_t i = 0; all && i + 1 < n; i++) {
        all[i] = (struct one){.job = job, .arg = arg, .i = i};
        block_signals(&before);
        all[i].started = pthread_create(&all[i].thread, &attr, run_one, &all[i]) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    for (size_t i = n; i-- > 0;)
        if (!all || !all[i].started)
            job(arg, i);
    for (size_t i = 0; all && i < n; i++)
        if (all[i].started)
            pthread_join(all[i].thread, NULL);
    pthread_attr_destroy(&attr);
    free(all);
}

/* --- workers --- */

static void work(struct ws_workers *w, worker_job *job, void *arg, size_t n, unsigned worker)
{
    for (size_t i; (i = atomic_fetch_add(&w->next, 1)) < n;)
        job(arg, i, worker);
}

static void *worker(void *self)
{
    const struct thread *t = self;
    struct ws_workers *w = t->workers;
    unsigned long seen = 0;
    ws_thread_nice(w->nice);
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->stop && (!w->job || w->round == seen))
            pthread_cond_wait(&w->start, &w->lock);
        if (w->stop)
            break;
        seen = w->round;
        worker_job *job = w->job;
        void *arg = w->arg;
        size_t n = w->n;
        w->active++;
        pthread_mutex_unlock(&w->lock);
        work(w, job, arg, n, t->index);
        pthread_mutex_lock(&w->lock);
        if (--w->active == 0)
            pthread_cond_signal(&w->finished);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct ws_workers *ws_workers_new(unsigned n_threads, int nice)
{
    unsigned n = n_threads < 1 ? 1 : n_threads > MAX_WORKERS ? MAX_WORKERS : n_threads;
    struct ws_workers *w = calloc(1, sizeof(*w) + (n - 1) * sizeof(w->threads[0]));
    if (!w)
        return NULL;
    pthread_mutex_init(&w->turn, NULL);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->start, NULL);
    pthread_cond_init(&w->finished, NULL);
    w->nice = nice;
    w->n_threads = 1;
    for (; w->n_threads < n; w->n_threads++) {
        struct thread *t = &w->threads[w->n_threads - 1];
        *t = (struct thread){.workers = w, .index = w->n_threads};
        if (ws_thread_start(&t->thread, worker, t) < 0)
            break;
    }
    return w;
}

void ws_workers_run_indexed(struct ws_workers *w, void (*job)(void *arg, size_t i, unsigned worker),
                            void *arg, size_t n)
{
    assert(job);
    if (n == 0)
        return;
    pthread_mutex_lock(&w->turn);
    pthread_mutex_lock(&w->lock);
    assert(w->active == 0 && !w->job);
    atomic_store(&w->next, 0);
    w->job = job;
    w->arg = arg;
    w->n = n;
    w->round++;
    if (n > 1)
        pthread_cond_broadcast(&w->start);
    pthread_mutex_unlock(&w->lock);
    work(w, job, arg, n, 0);
    pthread_mutex_lock(&w->lock);
    w->job = NULL;
    while (w->active > 0)
        pthread_cond_wait(&w->finished, &w->lock);
    pthread_mutex_unlock(&w->lock);
    pthread_mutex_unlock(&w->turn);
}

struct plain {
    void (*job)(void *arg, size_t i);
    void *arg;
};

static void run_plain(void *self, size_t i, unsigned worker)
{
    const struct plain *p = self;
    (void)worker;
    p->job(p->arg, i);
}

void ws_workers_run(struct ws_workers *w, void (*job)(void *arg, size_t i), void *arg, size_t n)
{
    ws_workers_run_indexed(w, run_plain, &(struct plain){job, arg}, n);
}

unsigned ws_workers_count(const struct ws_workers *w)
{
    return w->n_threads;
}

void ws_workers_free(struct ws_workers *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->start);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i + 1 < w->n_threads; i++)
        pthread_join(w->threads[i].thread, NULL);
    pthread_cond_destroy(&w->finished);
    pthread_cond_destroy(&w->start);
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->turn);
    free(w);
}
