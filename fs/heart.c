#include "fs/heart.h"
#include "fs/fuse/life.h"
#include "fs/fuse/packet.h"
#include "fs/supervised.h"
#include "fs/supervisor.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

struct ws_heart {
    struct ws_fs *fs;
    int channel;
    pthread_t thread;
    uint64_t seen; /* of ws_life_reads */
};

/* One that deadlocks here gives no answer. */
static bool beats(struct ws_heart *h)
{
    struct ws_fs *fs = h->fs;
    struct ws_store_stats stats;
    ws_store_stats(fs->store, &stats);
    pthread_mutex_lock(&fs->lock);
    pthread_mutex_unlock(&fs->lock);
    (void)ws_control_wait_idle(fs->control, 0);
    return ws_life_reads(&h->seen) || atomic_load(&fs->has_ended);
}

static void *answer(void *arg)
{
    struct ws_heart *h = arg;
    struct ws_word word;
    while (ws_packet_recv(h->channel, &word, sizeof(word), NULL) == 0) {
        if (word.kind == WS_WORD_LIVES && !beats(h))
            continue;
        if (word.kind == WS_WORD_IDLE && !ws_control_wait_idle(h->fs->control, WS_SUPERVISOR_IDLE_MS))
            word.kind = WS_WORD_BUSY;
        if (ws_packet_send(h->channel, &word, sizeof(word), -1) < 0)
            break;
    }
    return NULL;
}

int ws_heart_start(struct ws_heart **out, struct ws_fs *fs, int channel)
{
    *out = NULL;
    if (channel < 0)
        return 0;
    struct ws_heart *h = calloc(1, sizeof(*h));
    if (!h)
        return -ENOMEM;
    h->fs = fs;
    h->channel = channel;
    const int rc = ws_thread_start(&h->thread, answer, h);
    if (rc < 0)
        free(h);
    else
        *out = h;
    return rc;
}

void ws_heart_stop(struct ws_heart *h)
{
    if (!h)
        return;
    (void)shutdown(h->channel, SHUT_RD);
    pthread_join(h->thread, NULL);
    free(h);
}
