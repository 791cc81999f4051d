#include "transports/region.h"
#include "transports/limits.h"
#include "transports/log.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HUGE_BYTES (2UL << 20)
#define SMALL_BYTES (1UL << 20) /* below: 4 KiB pages, a small sidecar must not cost 2 MiB */
#define POPULATE_BYTES (64UL << 20)
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

struct ws_region {
    enum ws_region_kind kind;
    uint64_t size_bytes;
    int fd;
    unsigned char *data;
    bool writable;
};

static pthread_once_t tmpfs_once = PTHREAD_ONCE_INIT;
static int tmpfs_fd = -ENOSYS; /* written once by make_tmpfs */

/* The system calls are younger than some C libraries. */
static int set_option(int fs, const char *key, const char *value)
{
    unsigned cmd = value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG;
    return (int)syscall(SYS_fsconfig, fs, cmd, key, value, 0);
}

static int make_detached_tmpfs(void)
{
    int fs = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC), mnt = -1, rc = 0;
    if (fs < 0)
        return -errno;
    if (set_option(fs, "huge", "always") || set_option(fs, "size", "0") || set_option(fs, "mode", "0755")) {
        rc = -errno;
        goto out;
    }
    (void)set_option(fs, "noswap", NULL); /* Linux 6.4; without it weights may be swapped */
    if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0)) {
        rc = -errno;
        goto out;
    }
    mnt = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC,
                       MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC);
    if (mnt < 0)
        rc = -errno;
out:
    close(fs);
    return rc ? rc : mnt;
}

static void make_tmpfs(void)
{
    const char *forced = getenv("WSYNC_REGION");
    if (forced && strcmp(forced, "tmpfs") != 0)
        tmpfs_fd = -ENOSYS;
    else
        tmpfs_fd = make_detached_tmpfs();
    if (tmpfs_fd < 0 && !forced)
        ws_log(WS_LOG_WARN, "region",
               "no huge-page tmpfs (%s): using memfd; reads are slower, CAP_SYS_ADMIN would help",
               strerror(-tmpfs_fd));
}

int ws_region_tmpfs(void)
{
    pthread_once(&tmpfs_once, make_tmpfs);
    return tmpfs_fd;
}

const char *ws_region_kind_name(enum ws_region_kind kind)
{
    static const char *const names[] = {
        [WS_REGION_TMPFS_HUGE] = "tmpfs-huge",
        [WS_REGION_MEMFD_HUGE] = "memfd-huge",
        [WS_REGION_MEMFD] = "memfd",
        [WS_REGION_IMPORTED] = "imported",
    };
    return names[kind];
}

static int reopen(int fd, int flags)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = open(path, flags | O_CLOEXEC);
    return again < 0 ? -errno : again;
}

/* A memfd's first descriptor is not counted as a writer, so that the lease of ws_region_idle would never be
 * granted on it: it is reopened, as any other file is opened. */
static int new_memfd(void)
{
    int first = memfd_create("wsync", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
    if (first < 0 && errno == EINVAL) /* before Linux 6.3 */
        first = memfd_create("wsync", MFD_CLOEXEC);
    if (first < 0)
        return -errno;
    int fd = reopen(first, O_RDWR);
    close(first);
    return fd;
}

static int new_file(uint64_t size_bytes, enum ws_region_kind *kind)
{
    const char *forced = getenv("WSYNC_REGION");
    int fs = ws_region_tmpfs();
    if (fs >= 0 && size_bytes >= SMALL_BYTES) {
        int fd = openat(fs, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        *kind = WS_REGION_TMPFS_HUGE;
        return fd < 0 ? -errno : fd;
    }
    bool plain = size_bytes < SMALL_BYTES || (forced && strcmp(forced, "memfd-plain") == 0);
    *kind = plain ? WS_REGION_MEMFD : WS_REGION_MEMFD_HUGE;
    return new_memfd();
}

/* Huge pages are only mapped as such at addresses that are multiples of their size. */
static void *map_aligned(int fd, uint64_t size, int protection)
{
    if (size < HUGE_BYTES)
        return mmap(NULL, size, protection, MAP_SHARED, fd, 0);
    uint64_t room = size + HUGE_BYTES;
    unsigned char *hole = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (hole == MAP_FAILED)
        return MAP_FAILED;
    unsigned char *start = (unsigned char *)(((uintptr_t)hole + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1));
    void *p = mmap(start, size, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    uint64_t mapped = (size + WS_PAGE_BYTES - 1) & ~(WS_PAGE_BYTES - 1);
    if (p == MAP_FAILED) {
        munmap(hole, room);
        return MAP_FAILED;
    }
    if (start > hole)
        munmap(hole, (size_t)(start - hole));
    if (hole + room > start + mapped)
        munmap(start + mapped, (size_t)(hole + room - (start + mapped)));
    return p;
}

static int map_region(struct ws_region *r, struct ws_error *err)
{
    if (r->size_bytes == 0)
        return 0;
    void *p = map_aligned(r->fd, r->size_bytes, PROT_READ | (r->writable ? PROT_WRITE : 0));
    if (p == MAP_FAILED)
        return ws_error_set(err, errno, "cannot map a region of %llu bytes: %s",
                            (unsigned long long)r->size_bytes, strerror(errno));
    r->data = p;
    if (r->kind == WS_REGION_MEMFD_HUGE)
        (void)madvise(p, r->size_bytes, MADV_HUGEPAGE);
    return 0;
}

int ws_region_new(struct ws_region **out, uint64_t size_bytes, struct ws_error *err)
{
    assert(out && size_bytes > 0);
    *out = NULL;
    if (size_bytes > WS_MAX_FILE_BYTES)
        return ws_error_set(err, EFBIG, "a region of %llu bytes is over the limit of %lu",
                            (unsigned long long)size_bytes, WS_MAX_FILE_BYTES);
    struct ws_region *r = calloc(1, sizeof(*r));
    if (!r)
        return ws_error_set(err, ENOMEM, "no memory for a region");
    r->size_bytes = size_bytes;
    r->writable = true;
    r->fd = new_file(size_bytes, &r->kind);
    int rc = r->fd < 0 ? r->fd : 0;
    if (rc == 0 && ftruncate(r->fd, (off_t)size_bytes) != 0)
        rc = -errno;
    if (rc < 0)
        rc = ws_error_set(err, -rc, "cannot make a region of %llu bytes (%s): %s",
                          (unsigned long long)size_bytes, ws_region_kind_name(r->kind), strerror(-rc));
    else
        rc = map_region(r, err);
    if (rc < 0) {
        ws_region_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

int ws_region_import(struct ws_region **out, int fd, uint64_t size_bytes, bool writable, struct ws_error *err)
{
    assert(out && fd >= 0);
    *out = NULL;
    struct stat st;
    struct ws_region *r = calloc(1, sizeof(*r));
    if (!r) {
        close(fd);
        return ws_error_set(err, ENOMEM, "no memory for a region");
    }
    *r = (struct ws_region){
        .kind = WS_REGION_IMPORTED, .size_bytes = size_bytes, .fd = fd, .writable = writable};
    int rc = 0;
    if (fstat(fd, &st) != 0)
        rc = ws_error_set(err, errno, "cannot look at a received descriptor: %s", strerror(errno));
    else if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != size_bytes)
        rc = ws_error_set(err, EBADMSG, "a received descriptor is no file of %llu bytes (it has %lld)",
                          (unsigned long long)size_bytes, (long long)st.st_size);
    else
        rc = map_region(r, err);
    if (rc < 0) {
        ws_region_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

enum ws_region_kind ws_region_kind(const struct ws_region *r)
{
    return r->kind;
}

unsigned char *ws_region_data(struct ws_region *r)
{
    return r->data;
}

uint64_t ws_region_size(const struct ws_region *r)
{
    return r->size_bytes;
}

int ws_region_fd(const struct ws_region *r)
{
    return r->fd;
}

int ws_region_open(const struct ws_region *r, bool writable, int *fd, struct ws_error *err)
{
    assert(!writable || r->writable);
    /* Whoever gets a read-only descriptor must not be able to reopen it for writing; we can, by owning it. */
    int again = reopen(r->fd, writable ? O_RDWR : O_RDONLY);
    if (again < 0)
        return ws_error_set(err, -again, "cannot reopen a region: %s; is /proc mounted?", strerror(-again));
    *fd = again;
    return 0;
}

int ws_region_idle(const struct ws_region *r)
{
    if (r->kind == WS_REGION_IMPORTED)
        return -EPERM;
    /* The lease lives for microseconds. Should somebody open the file just then the kernel sends SIGIO, whose
     * default would end the process: it is blocked meanwhile and what came is taken. */
    sigset_t io, before;
    sigemptyset(&io);
    sigaddset(&io, SIGIO);
    pthread_sigmask(SIG_BLOCK, &io, &before);
    int rc = fcntl(r->fd, F_SETLEASE, F_WRLCK) == 0 ? 0 : errno == EAGAIN ? -EBUSY : -EPERM;
    if (rc == 0)
        (void)fcntl(r->fd, F_SETLEASE, F_UNLCK);
    if (!sigismember(&before, SIGIO)) {
        (void)sigtimedwait(&io, NULL, &(struct timespec){0});
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    return rc;
}

struct populate {
    struct ws_region *region;
    uint64_t begin, end;
    int error;
};

static void *populate_part(void *arg)
{
    struct populate *p = arg;
    for (uint64_t at = p->begin; at < p->end && p->error == 0; at += POPULATE_BYTES) {
        uint64_t n = p->end - at < POPULATE_BYTES ? p->end - at : POPULATE_BYTES;
        if (madvise(p->region->data + at, n, MADV_POPULATE_WRITE) != 0) {
            if (errno != EINVAL) {
                p->error = errno;
                break;
            }
            for (uint64_t i = 0; i < n; i += WS_PAGE_BYTES) { /* before Linux 5.14 */
                volatile unsigned char *byte = p->region->data + at + i;
                *byte = *byte;
            }
        }
    }
    return NULL;
}

int ws_region_prefault(struct ws_region *r, unsigned n_threads, struct ws_error *err)
{
    enum { MAX_THREADS = 16 };
    struct populate parts[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    unsigned n = n_threads < 1 ? 1 : n_threads > MAX_THREADS ? MAX_THREADS : n_threads, started = 0;
    uint64_t step = (r->size_bytes / n + HUGE_BYTES) & ~(HUGE_BYTES - 1);

    assert(r->writable);
    for (unsigned i = 0; i < n; i++) {
        uint64_t begin = i * step, end = (i + 1) * step;
        parts[i] = (struct populate){.region = r,
                                     .begin = begin < r->size_bytes ? begin : r->size_bytes,
                                     .end = end < r->size_bytes ? end : r->size_bytes};
    }
    while (started + 1 < n && pthread_create(&threads[started], NULL, populate_part, &parts[started]) == 0)
        started++;
    for (unsigned i = started; i < n; i++)
        populate_part(&parts[i]);
    int error = 0;
    for (unsigned i = 0; i < n; i++) {
        if (i < started)
            pthread_join(threads[i], NULL);
        if (parts[i].error)
            error = parts[i].error;
    }
    if (error)
        return ws_error_set(err, error == EFAULT ? ENOMEM : error,
                            "cannot take the memory of a region of %llu bytes: %s",
                            (unsigned long long)r->size_bytes, strerror(error));
    return 0;
}

int ws_region_link(const struct ws_region *r, int dirfd, const char *name)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", r->fd);
    if (fchmod(r->fd, 0444) != 0)
        return -errno;
    return linkat(AT_FDCWD, path, dirfd, name, AT_SYMLINK_FOLLOW) == 0 ? 0 : -errno;
}

int ws_region_resize(struct ws_region *r, uint64_t size_bytes, struct ws_error *err)
{
    assert(r->writable && size_bytes > 0);
    if (size_bytes == r->size_bytes)
        return 0;
    if (r->data)
        munmap(r->data, r->size_bytes);
    r->data = NULL;
    if (ftruncate(r->fd, (off_t)size_bytes) != 0)
        return ws_error_set(err, errno, "cannot resize a region to %llu bytes: %s",
                            (unsigned long long)size_bytes, strerror(errno));
    r->size_bytes = size_bytes;
    return map_region(r, err);
}

void ws_region_free(struct ws_region *r)
{
    if (!r)
        return;
    if (r->data)
        munmap(r->data, r->size_bytes);
    if (r->fd >= 0)
        close(r->fd);
    free(r);
}
