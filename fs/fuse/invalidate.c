#include "fs/fuse/invalidate.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct message {
    STAILQ_ENTRY(message) entry;
    struct fuse_pollhandle *ph; /* NULL: a name is gone */
    fuse_ino_t parent;
    char name[];
};

struct ws_invalidator {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    STAILQ_HEAD(messages, message) queue; /* guarded by lock */
    bool stop;                            /* guarded by lock */
};

static void *deliver(void *arg)
{
    struct ws_fs *fs = arg;
    struct ws_invalidator *inv = fs->invalidator;
    pthread_mutex_lock(&inv->lock);
    while (!STAILQ_EMPTY(&inv->queue) || !inv->stop) {
        struct message *m = STAILQ_FIRST(&inv->queue);
        if (!m) {
            pthread_cond_wait(&inv->changed, &inv->lock);
            continue;
        }
        STAILQ_REMOVE_HEAD(&inv->queue, entry);
        pthread_mutex_unlock(&inv->lock);
        if (m->ph) {
            (void)fuse_lowlevel_notify_poll(m->ph);
            fuse_pollhandle_destroy(m->ph);
        } else {
            (void)fuse_lowlevel_notify_inval_entry(fs->session, m->parent, m->name, strlen(m->name));
        }
        free(m);
        pthread_mutex_lock(&inv->lock);
    }
    pthread_mutex_unlock(&inv->lock);
    return NULL;
}

int ws_invalidate_start(struct ws_fs *fs)
{
    struct ws_invalidator *inv = calloc(1, sizeof(*inv));
    if (!inv)
        return -ENOMEM;
    STAILQ_INIT(&inv->queue);
    pthread_mutex_init(&inv->lock, NULL);
    pthread_cond_init(&inv->changed, NULL);
    fs->invalidator = inv;
    if (ws_thread_start(&inv->thread, deliver, fs) < 0) {
        fs->invalidator = NULL;
        free(inv);
        return -EAGAIN;
    }
    return 0;
}

void ws_invalidate_stop(struct ws_fs *fs)
{
    struct ws_invalidator *inv = fs->invalidator;
    if (!inv)
        return;
    pthread_mutex_lock(&inv->lock);
    inv->stop = true;
    pthread_cond_signal(&inv->changed);
    pthread_mutex_unlock(&inv->lock);
    pthread_join(inv->thread, NULL);
    pthread_cond_destroy(&inv->changed);
    pthread_mutex_destroy(&inv->lock);
    free(inv);
    fs->invalidator = NULL;
}

static void post(struct ws_fs *fs, struct message *m)
{
    struct ws_invalidator *inv = fs->invalidator;
    pthread_mutex_lock(&inv->lock);
    STAILQ_INSERT_TAIL(&inv->queue, m, entry);
    pthread_cond_signal(&inv->changed);
    pthread_mutex_unlock(&inv->lock);
}

void ws_invalidate_name(struct ws_fs *fs, fuse_ino_t folder, const char *name)
{
    struct message *m = fs->invalidator ? calloc(1, sizeof(*m) + strlen(name) + 1) : NULL;
    if (!m)
        return; /* names are asked for again anyway: this only lets the kernel forget sooner */
    m->parent = folder;
    memcpy(m->name, name, strlen(name) + 1);
    post(fs, m);
}

void ws_invalidate_poll(struct ws_fs *fs, struct fuse_pollhandle *ph)
{
    struct message *m = fs->invalidator ? calloc(1, sizeof(*m) + 1) : NULL;
    if (!m) {
        fuse_pollhandle_destroy(ph);
        return;
    }
    m->ph = ph;
    post(fs, m);
}
