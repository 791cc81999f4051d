#include "fs/fuse/reads.h"
#include "fs/fuse/outside.h"
#include "fs/fuse/version_cache.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include "transports/memory/region.h"
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#define READ_AHEAD_KB 4096 /* of mounts that do not learn what is read */

static bool may_administer(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}};
    if (syscall(SYS_capget, &head, data) != 0)
        return false;
    return data[CAP_SYS_ADMIN / 32].effective >> (CAP_SYS_ADMIN % 32) & 1;
}

static bool kernel_passes_through(void)
{
    struct utsname u;
    uint64_t major, minor;
    const char *at = u.release;
    return uname(&u) == 0 && ws_text_digits(&at, &major) == 0 && *at++ == '.' &&
           ws_text_digits(&at, &minor) == 0 && (major > 6 || (major == 6 && minor >= 9));
}

bool ws_reads_lack_privilege(void)
{
    return !may_administer();
}

const char *ws_reads_lack_passthrough(void)
{
    if (!WS_HAVE_PASSTHROUGH)
        return "libfuse is older than 3.17";
    if (!kernel_passes_through())
        return "Linux is older than 6.9";
    return may_administer() ? NULL : "CAP_SYS_ADMIN is missing";
}

/* Before mounting: what can be hoped for, and why not better. */
static enum ws_reads choose(const struct ws_mount_options *o, char *why, size_t cap)
{
    const char *lack = ws_reads_lack_passthrough();
    snprintf(why, cap, "%s", "");
    if ((o->reads == WS_READS_AUTO && !lack) || (o->reads == WS_READS_PASSTHROUGH && !lack))
        return WS_READS_PASSTHROUGH;
    if (o->reads == WS_READS_LINK || o->reads == WS_READS_AUTO || o->reads == WS_READS_PASSTHROUGH) {
        snprintf(why, cap, "%s", o->reads == WS_READS_LINK ? "as asked for" : lack);
        if (o->store.copies != WS_COPIES_TWO &&
            o->reads != WS_READS_LINK) /* which are opened without the daemon */
            return WS_READS_CACHED;
        if (may_administer() && !o->run_as.name && ws_region_tmpfs() >= 0)
            return WS_READS_LINK;
        snprintf(why, cap, "%s; no links either: a tmpfs cannot be mounted", lack ? lack : "as asked for");
        return WS_READS_CACHED;
    }
    snprintf(why, cap, "as asked for");
    return WS_READS_CACHED;
}

static void describe(struct ws_fs *fs, const char *why)
{
    static const char *const speed[] = {[WS_READS_PASSTHROUGH] = "",
                                        [WS_READS_LINK] = "",
                                        [WS_READS_CACHED] = " (slower, and pages are held twice)"};
    if (why[0]) {
        snprintf(fs->mode_text, sizeof(fs->mode_text), "%s%s: %s", ws_reads_name(fs->reads), speed[fs->reads],
                 why);
        ws_log(WS_LOG_WARN, "mount", "complete files are read by %s", fs->mode_text);
    } else {
        snprintf(fs->mode_text, sizeof(fs->mode_text), "%s", ws_reads_name(fs->reads));
    }
}

void ws_reads_choose(struct ws_fs *fs)
{
    char why[160];
    fs->reads = choose(&fs->options, why, sizeof(why));
    describe(fs, why);
}

void ws_reads_open_ahead(struct ws_fs *fs)
{
    const dev_t dev = fs->place.dev;
    char path[128];
    snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb", major(dev), minor(dev));
    fs->read_ahead = open(path, O_WRONLY | O_CLOEXEC);
}

static void set_read_ahead(struct ws_fs *fs, int kb)
{
    if (fs->read_ahead < 0)
        return;
    (void)dprintf(fs->read_ahead, "%d\n", kb);
    close(fs->read_ahead);
    fs->read_ahead = -1;
}

static int mount_regions(const struct ws_fs *fs)
{
    char path[4200];
    snprintf(path, sizeof(path), "%s/" WS_REGIONS_NAME, fs->options.mountpoint);
    return ws_outside_attach(ws_region_tmpfs(), path);
}

static void fall_back(struct ws_fs *fs, int error)
{
    fs->reads = WS_READS_CACHED;
    describe(fs, strerror(error));
}

void ws_reads_settle(struct ws_fs *fs)
{
    if (fs->reads == WS_READS_PASSTHROUGH) {
        int probe = ws_version_cache_probe(fs);
        if (probe < 0)
            fall_back(fs, -probe);
    }
    if (fs->reads == WS_READS_LINK) {
        int linked = mount_regions(fs);
        atomic_store(&fs->has_links, linked == 0);
        if (linked < 0)
            fall_back(fs, -linked);
    }
    set_read_ahead(fs, ws_store_learns(fs->store) ? WS_LEARNED_AHEAD_KB : READ_AHEAD_KB);
}
