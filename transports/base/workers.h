/* Workers: threads for data-parallel work over blocks, and for waiting on many at once. */
#ifndef WS_TRANSPORTS_BASE_WORKERS_H
#define WS_TRANSPORTS_BASE_WORKERS_H
#include "transports/base/error.h"
#include <pthread.h>
#include <stddef.h>

/* A small set of worker threads for data-parallel work: runs job(arg, i) for i in [0, n) on the
 * workers and the caller, returns when all are done. One call at a time (others wait); a job must not
 * call run of the same workers. A worker that is not scheduled in time is not waited for. */
struct ws_workers;
/* n_threads counts the caller, so 1 starts none. NULL: no memory. Fewer threads than asked where the
 * system gives no more: ws_workers_count. */
struct ws_workers *ws_workers_new(unsigned n_threads, int nice);
void ws_workers_run(struct ws_workers *w, void (*job)(void *arg, size_t i), void *arg, size_t n);
/* As ws_workers_run; the job also gets the index of the worker that runs it, below ws_workers_count. What a caller
 * keeps for an index is used by one thread only until the call returns. */
void ws_workers_run_indexed(struct ws_workers *w, void (*job)(void *arg, size_t i, unsigned worker),
                            void *arg, size_t n);
unsigned ws_workers_count(const struct ws_workers *w);
void ws_workers_free(struct ws_workers *w); /* NULL is fine */
/* Runs job(arg, i) for i in [0, n) all at once, each on a thread of its own with a stack of 1 MiB (the last
 * one on the caller's; so are those that the system has no thread for, one after the other), and returns when
 * all are done. For jobs that wait more than they compute. */
void ws_workers_run_at_once(void (*job)(void *arg, size_t i), void *arg, size_t n);
/* Lowers the calling thread's priority, and that of threads that it starts later; 0 leaves it. */
void ws_thread_nice(int nice);
/* pthread_create of a thread that takes no signals, so that they reach the program's own threads.
 * 0 or -errno. */
WS_MUST_USE int ws_thread_start(pthread_t *thread, void *(*start)(void *arg), void *arg);

#endif
