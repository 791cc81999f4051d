#include "transports/memory/region_file.h"
#include "transports/base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#define KEEP_FOLDER ".keep"

enum forced { FORCED_NOT, FORCED_TMPFS, FORCED_MEMFD, FORCED_PLAIN, FORCED_WRONG };

static pthread_once_t tmpfs_once = PTHREAD_ONCE_INIT;
static int tmpfs_fd = -ENOSYS; /* written once by make_tmpfs */
static atomic_ulong last_kept;

static enum forced forced_kind(void)
{
    static const char *const words[] = {
        [FORCED_TMPFS] = "tmpfs", [FORCED_MEMFD] = "memfd", [FORCED_PLAIN] = "memfd-plain"};
    const char *word = getenv("WSYNC_REGION");
    if (!word || !*word)
        return FORCED_NOT;
    for (enum forced f = FORCED_TMPFS; f <= FORCED_PLAIN; f++)
        if (strcmp(word, words[f]) == 0)
            return f;
    return FORCED_WRONG;
}

/* By system call number: some C libraries are older than these calls. */
static int set_option(int fs, const char *key, const char *value)
{
    unsigned cmd = value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG;
    return (int)syscall(SYS_fsconfig, fs, cmd, key, value, 0);
}

static int make_detached_tmpfs(void)
{
    int fs = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC), rc;
    if (fs < 0)
        return -errno;
    /* size: more than any machine has. The default would be half of the memory, and without a limit (0) the kernel
     * counts nothing (ws_region_file_used). */
    if (set_option(fs, "huge", "always") || set_option(fs, "size", "1P") || set_option(fs, "mode", "0755")) {
        rc = -errno;
        goto out;
    }
    (void)set_option(fs, "noswap", NULL); /* Linux 6.4; before, weights may be swapped */
    if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0)) {
        rc = -errno;
        goto out;
    }
    rc = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
                      MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    if (rc < 0)
        rc = -errno;
out:
    close(fs);
    return rc;
}

static void make_tmpfs(void)
{
    tmpfs_fd = make_detached_tmpfs();
    if (tmpfs_fd < 0)
        ws_log(WS_LOG_WARN, "region",
               "no huge-page tmpfs for weights (%s): using memfd, which is slower to read; run with "
               "CAP_SYS_ADMIN to have it",
               strerror(-tmpfs_fd));
}

int ws_region_tmpfs(void)
{
    enum forced forced = forced_kind();
    if (forced == FORCED_MEMFD || forced == FORCED_PLAIN)
        return -ENOSYS;
    pthread_once(&tmpfs_once, make_tmpfs);
    return tmpfs_fd;
}

uint64_t ws_region_file_used(void)
{
    struct statfs st;
    int fs = ws_region_tmpfs();
    if (fs < 0 || fstatfs(fs, &st) != 0 || st.f_blocks < st.f_bfree)
        return 0;
    return (uint64_t)(st.f_blocks - st.f_bfree) * (uint64_t)st.f_bsize;
}

int ws_region_file_reopen(int fd, int flags)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = open(path, flags | O_CLOEXEC);
    return again < 0 ? -errno : again;
}

/* A memfd's first descriptor is not counted as a writer, so that the lease of ws_region_idle would never be
 * granted on it: the file is reopened, as any other file is opened. It is sealed only against more seals: the
 * pool writes it and changes its size, and no peer with a writable descriptor may forbid that. */
static int new_memfd(void)
{
    int first = memfd_create("wsync", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
    if (first < 0 && errno == EINVAL) /* before Linux 6.3 */
        first = memfd_create("wsync", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (first < 0)
        return -errno;
    int rc = fchmod(first, 0600) != 0 || fcntl(first, F_ADD_SEALS, F_SEAL_SEAL) != 0 ? -errno : 0;
    if (rc == 0)
        rc = ws_region_file_reopen(first, O_RDWR);
    close(first);
    return rc;
}

int ws_region_file_new(enum ws_region_kind *kind)
{
    enum forced forced = forced_kind();
    if (forced == FORCED_WRONG)
        return -EINVAL;
    int fs = ws_region_tmpfs();
    if (fs >= 0 || forced == FORCED_TMPFS) {
        *kind = WS_REGION_TMPFS_HUGE;
        int fd = fs < 0 ? fs : openat(fs, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        return fs < 0 ? fs : fd < 0 ? -errno : fd;
    }
    *kind = forced == FORCED_PLAIN ? WS_REGION_MEMFD : WS_REGION_MEMFD_HUGE;
    return new_memfd();
}

int ws_region_file_keep(int fd, unsigned long *number)
{
    char path[64], name[64];
    int fs = ws_region_tmpfs();
    if (fs < 0)
        return -EXDEV;
    if (mkdirat(fs, KEEP_FOLDER, 0700) != 0 && errno != EEXIST)
        return -errno;
    *number = atomic_fetch_add(&last_kept, 1) + 1;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    snprintf(name, sizeof(name), KEEP_FOLDER "/%lu", *number);
    return linkat(AT_FDCWD, path, fs, name, AT_SYMLINK_FOLLOW) == 0 ? 0 : -errno;
}

void ws_region_file_forget(unsigned long number)
{
    char name[64];
    snprintf(name, sizeof(name), KEEP_FOLDER "/%lu", number);
    (void)unlinkat(tmpfs_fd, name, 0);
}
