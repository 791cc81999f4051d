#include "fs/supervised.h"
#include "fs/fuse/packet.h"
#include "transports/base/log.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static int channel = -1;
static atomic_bool leaves_mount;
static struct ws_kept_regions inherited; /* guarded by lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void ws_word_send(int to, int kind, const char *text, int fd)
{
    struct ws_word w = {.kind = kind};
    snprintf(w.text, sizeof(w.text), "%s", text);
    if (to >= 0 && ws_packet_send(to, &w, sizeof(w), fd) < 0)
        ws_log(WS_LOG_DEBUG, "mount", "the other end of the supervisor's channel is gone, or full");
}

void ws_supervised_begin(int to, bool is_next, const struct ws_kept_regions *regions)
{
    channel = to;
    atomic_store(&leaves_mount, is_next);
    inherited = *regions;
}

int ws_supervised_channel(void)
{
    return channel;
}

void ws_supervised_say(int kind)
{
    if (kind == WS_WORD_READY)
        atomic_store(&leaves_mount, false);
    ws_word_send(channel, kind, "", -1);
}

void ws_supervised_give_up(const struct ws_error *why)
{
    if (!atomic_load(&leaves_mount))
        return;
    ws_log(WS_LOG_ERROR, "mount", "%s", why->text);
    ws_word_send(channel, WS_WORD_FAILED, why->text, -1);
    _exit(1);
}

/* --- memory --- */

static void keep(const char *label, int fd)
{
    ws_word_send(channel, WS_WORD_KEEP, label, fd);
}

static void forget(const char *label)
{
    ws_word_send(channel, WS_WORD_FORGET, label, -1);
}

static int take(const char *label)
{
    pthread_mutex_lock(&lock);
    const int fd = ws_kept_regions_take(&inherited, label);
    pthread_mutex_unlock(&lock);
    return fd;
}

static uint64_t left(void)
{
    uint64_t bytes = 0;
    struct stat st;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < inherited.len; i++)
        bytes += fstat(inherited.ptr[i].fd, &st) == 0 ? (uint64_t)st.st_size : 0;
    pthread_mutex_unlock(&lock);
    return bytes;
}

static void drop(void)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < inherited.len; i++)
        forget(inherited.ptr[i].label);
    ws_kept_regions_close(&inherited);
    pthread_mutex_unlock(&lock);
}

const struct ws_store_keeper *ws_supervised_keeper(void)
{
    static const struct ws_store_keeper keeper = {
        .keep = keep, .forget = forget, .take = take, .left = left, .drop = drop};
    return channel >= 0 ? &keeper : NULL;
}
