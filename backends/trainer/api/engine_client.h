/* Engine client: the state behind wsync_engine_client, for the files that have its functions. */
#ifndef WS_TRAINER_API_ENGINE_CLIENT_H
#define WS_TRAINER_API_ENGINE_CLIENT_H
#include "backends/trainer/api/arena.h"
#include "backends/trainer/wsync.h"
#include "transports/base/error.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/types.h>

/* A call under way, on its caller's stack. */
struct ws_engine_running {
    LIST_ENTRY(ws_engine_running) link;
    atomic_bool cancelled;
};

struct wsync_engine_client {
    struct ws_arena arena; /* the texts of: */
    wsync_engine engine;
    pid_t pid; /* the process that opened it and has the thread of http */
    struct ws_http_client *http;
    pthread_mutex_t lock; /* guards the list */
    LIST_HEAD(ws_engine_running_list, ws_engine_running) running;
};

/* -EPERM: this process is a fork of the one that opened the client. */
WS_MUST_USE int ws_engine_client_check(const wsync_engine_client *c, struct ws_error *err);
/* Between the two wsync_engine_client_cancel sets r->cancelled. */
void ws_engine_client_begin(wsync_engine_client *c, struct ws_engine_running *r);
void ws_engine_client_end(wsync_engine_client *c, struct ws_engine_running *r);

#endif
