#include "fs/fuse/invalidate.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct message {
    struct message *next;
    struct fuse_pollhandle *ph; /* NULL: a name is gone */
    fuse_ino_t parent;
    char name[];
};

struct ws_notify {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct message *first, **last; /* guarded by lock */
    bool stop;                     /* guarded by lock */
};

static void *deliver(void *arg)
{
    struct ws_fs *fs = arg;
    struct ws_notify *n = fs->notify;
    pthread_mutex_lock(&n->lock);
    while (n->first || !n->stop) {
        struct message *m = n->first;
        if (!m) {
            pthread_cond_wait(&n->changed, &n->lock);
            continue;
        }
        n->first = m->next;
        if (!n->first)
            n->last = &n->first;
        pthread_mutex_unlock(&n->lock);
        if (m->ph) {
            (void)fuse_lowlevel_notify_poll(m->ph);
            fuse_pollhandle_destroy(m->ph);
        } else {
            (void)fuse_lowlevel_notify_inval_entry(fs->session, m->parent, m->name, strlen(m->name));
        }
        free(m);
        pthread_mutex_lock(&n->lock);
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

int ws_notify_start(struct ws_fs *fs)
{
    struct ws_notify *n = calloc(1, sizeof(*n));
    if (!n)
        return -ENOMEM;
    n->last = &n->first;
    pthread_mutex_init(&n->lock, NULL);
    pthread_cond_init(&n->changed, NULL);
    fs->notify = n;
    if (ws_thread_start(&n->thread, deliver, fs) < 0) {
        fs->notify = NULL;
        free(n);
        return -EAGAIN;
    }
    return 0;
}

void ws_notify_stop(struct ws_fs *fs)
{
    struct ws_notify *n = fs->notify;
    if (!n)
        return;
    pthread_mutex_lock(&n->lock);
    n->stop = true;
    pthread_cond_signal(&n->changed);
    pthread_mutex_unlock(&n->lock);
    pthread_join(n->thread, NULL);
    pthread_cond_destroy(&n->changed);
    pthread_mutex_destroy(&n->lock);
    free(n);
    fs->notify = NULL;
}

static void post(struct ws_fs *fs, struct message *m)
{
    struct ws_notify *n = fs->notify;
    pthread_mutex_lock(&n->lock);
    *n->last = m;
    n->last = &m->next;
    pthread_cond_signal(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

void ws_notify_gone(struct ws_fs *fs, uint64_t model_id, const char *name)
{
    struct message *m = fs->notify ? calloc(1, sizeof(*m) + strlen(name) + 1) : NULL;
    if (!m)
        return; /* names are asked for again anyway: this only lets the kernel forget sooner */
    m->parent = ws_ino(model_id, WS_KIND_MODEL, 0);
    memcpy(m->name, name, strlen(name) + 1);
    post(fs, m);
}

void ws_notify_poll(struct ws_fs *fs, struct fuse_pollhandle *ph)
{
    struct message *m = fs->notify ? calloc(1, sizeof(*m) + 1) : NULL;
    if (!m) {
        fuse_pollhandle_destroy(ph);
        return;
    }
    m->ph = ph;
    post(fs, m);
}
