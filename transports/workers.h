/* Workers: threads for data-parallel work over blocks. */
#ifndef WS_TRANSPORTS_WORKERS_H
#define WS_TRANSPORTS_WORKERS_H
#include <stddef.h>

/* A small set of worker threads for data-parallel work: runs job(arg, i) for i in [0, n) on the
 * workers and the caller, returns when all are done. One call at a time (others wait). */
struct ws_workers;
struct ws_workers *ws_workers_new(unsigned n_threads, int nice); /* NULL: no memory or threads */
void ws_workers_run(struct ws_workers *w, void (*job)(void *arg, size_t i), void *arg, size_t n);
unsigned ws_workers_count(const struct ws_workers *w);
void ws_workers_free(struct ws_workers *w);
/* Lowers the calling thread's priority; 0 leaves it. */
void ws_thread_nice(int nice);

#endif
