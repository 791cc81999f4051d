#include "fs/readiness.h"
#include "fs/connection.h"
#include "fs/fuse/life.h"
#include "fs/fuse/outside.h"
#include "fs/fuse/reads.h"
#include "fs/fuse/version_cache.h"
#include "fs/supervised.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BEGIN_MS         10000 /* for the kernel to begin with a mount that is there */
#define FORMER_NS        (10 * WS_SECOND_NS)
#define FIRST_CONTACT_MS 3000 /* a mount whose source is down comes up all the same, after this */
#define NEXT_CURRENT_MS                                                                                      \
    2000 /* for the link `current` of a next daemon, unless all of its version has to come again */

void ws_readiness_await(struct ws_fs *fs)
{
    if (ws_life_number(fs->life) == 0)
        return;
    fs->sources_until_ns = ws_clock_ns() + (uint64_t)fs->options.deadline_ms * WS_MS_NS;
    ws_control_wait_kept(fs->control, FIRST_CONTACT_MS);
    (void)ws_store_wait_first(fs->store,
                              NEXT_CURRENT_MS); /* before that nothing is known that could be current */
    ws_control_wait_restored(fs->control, NEXT_CURRENT_MS);
}

/* A reader may have a former daemon's answer, and not have looked at what is passed through by it yet. */
static void close_former(struct ws_fs *fs)
{
    const struct timespec wait = {.tv_nsec = 20 * WS_MS_NS};
    const uint64_t until = ws_clock_ns() + FORMER_NS;
    if (ws_life_former_passed() == 0)
        return;
    while (ws_clock_ns() < until && !ws_connection_is_over(fs))
        (void)nanosleep(&wait, NULL);
    if (!ws_connection_is_over(fs))
        ws_version_cache_close_former(fs, ws_life_former_passed());
}

/* What cannot be looked at, as a mount that somebody else makes, is there once the kernel has begun to talk. */
static int wait_begun(const struct ws_fs *fs)
{
    const struct timespec wait = {.tv_nsec = WS_MS_NS};
    for (unsigned ms = 0; ms < BEGIN_MS && !ws_connection_is_over(fs); ms++) {
        if (atomic_load(&fs->has_begun))
            return 0;
        (void)nanosleep(&wait, NULL);
    }
    return -ETIMEDOUT;
}

int ws_readiness_error(const struct ws_readiness *s, struct ws_error *err)
{
    if (ws_mount_options_is_given(&s->fs->options))
        return ws_error_set(err, -s->rc,
                            "the kernel says nothing by the descriptor of /dev/fuse that this process was "
                            "given: it is not mounted; "
                            "mount(2) has to come before, with fd= of it");
    return ws_error_set(err, -s->rc, "the mount on %s cannot be looked at, and ended: %s",
                        s->fs->options.mountpoint, strerror(-s->rc));
}

void *ws_readiness_run(void *arg)
{
    struct ws_readiness *s = arg;
    struct ws_fs *fs = s->fs;
    char path[4200];
    struct ws_error why;
    const bool given = ws_mount_options_is_given(&fs->options);
    snprintf(path, sizeof(path), "%s/status", fs->options.mountpoint);
    const bool has_begun = given || ws_life_number(fs->life) > 0; /* it may be at another path alone by now */
    s->rc = has_begun ? wait_begun(fs) : ws_outside_stat(path);
    if (s->rc < 0) {
        (void)ws_readiness_error(s, &why);
        ws_supervised_give_up(&why);
        ws_connection_end(fs);
        return NULL;
    }
    ws_reads_settle(fs);
    ws_control_wait_kept(fs->control, FIRST_CONTACT_MS);
    (void)ws_store_wait_first(fs->store, FIRST_CONTACT_MS);
    if (s->ready_pipe >= 0 && write(s->ready_pipe, &s->rc, sizeof(s->rc)) != (ssize_t)sizeof(s->rc))
        ws_log(WS_LOG_DEBUG, "mount", "the process that started the mount is gone");
    if (s->ready)
        s->ready();
    ws_supervised_say(WS_WORD_READY);
    ws_log(WS_LOG_INFO, "mount", "serving at=%s source=%s reads=%s", fs->options.mountpoint,
           fs->options.source, fs->mode_text);
    close_former(fs);
    return NULL;
}
