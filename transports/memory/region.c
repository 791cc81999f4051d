#include "transports/memory/region.h"
#include "transports/base/descriptor_store.h"
#include "transports/base/limits.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include "transports/base/workers.h"
#include "transports/memory/file_lease.h"
#include "transports/memory/region_file.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* At once: the address space's lock is held that long, and a thread that maps memory (malloc does) waits for it, even
 * where this one has a low priority and is seldom run. One call a huge page costs no more than one for many. */
#define POPULATE_BYTES       WS_HUGE_BYTES
#define MAX_POPULATE_THREADS 16
#define NUMBER_DIGITS        16 /* of a name in the store */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

struct ws_region {
    enum ws_region_kind kind;
    uint64_t size_bytes;
    int fd;
    unsigned char *data;
    bool writable;
    atomic_bool shown;  /* another process could read it; set before it can, never cleared */
    unsigned long kept; /* number of the name that ws_region_file_keep made; 0: none */
    char stored[WS_DESCRIPTOR_NAME_CHARS + 1]; /* its name in the store; empty: it is in none */
    struct ws_region *next, *prev;             /* of this process's regions in the tmpfs */
};

/* This process's regions in the tmpfs. The rest of its bytes are those that other processes keep of regions that
 * this one has freed. */
static struct {
    pthread_mutex_t lock;
    struct ws_region *first;
    uint64_t closing_bytes; /* of those that are being closed */
} ours = {.lock = PTHREAD_MUTEX_INITIALIZER};

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

/* Huge pages are mapped as such only at addresses that are multiples of their size. */
static void *map_aligned(int fd, uint64_t size, int protection)
{
    if (size < WS_HUGE_BYTES)
        return mmap(NULL, size, protection, MAP_SHARED, fd, 0);
    uint64_t room = size + WS_HUGE_BYTES;
    unsigned char *hole = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (hole == MAP_FAILED)
        return MAP_FAILED;
    size_t before = (size_t)(-(uintptr_t)hole & (WS_HUGE_BYTES - 1));
    unsigned char *start = hole + before;
    uint64_t mapped = (size + WS_PAGE_BYTES - 1) & ~(WS_PAGE_BYTES - 1);
    room = (room + WS_PAGE_BYTES - 1) & ~(WS_PAGE_BYTES - 1);
    void *p = mmap(start, size, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    if (p == MAP_FAILED) {
        munmap(hole, room);
        return MAP_FAILED;
    }
    if (before)
        munmap(hole, before);
    if (room > before + mapped)
        munmap(start + mapped, room - before - mapped);
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
    /* The first touch of a page decides its size, also in a file system whose pages are huge. Kernels without huge
     * pages refuse the advice and need none. */
    if (r->size_bytes < WS_REGION_SMALL_BYTES)
        (void)madvise(p, r->size_bytes, MADV_NOHUGEPAGE);
    else if (r->kind == WS_REGION_MEMFD_HUGE)
        (void)madvise(p, r->size_bytes, MADV_HUGEPAGE);
    /* A child's mapping belongs to this process's open file, so the lease of ws_region_idle would not see it. */
    (void)madvise(p, r->size_bytes, MADV_DONTFORK);
    return 0;
}

static uint64_t held_bytes(const struct ws_region *r)
{
    struct stat st;
    return fstat(r->fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

static void list(struct ws_region *r)
{
    pthread_mutex_lock(&ours.lock);
    r->next = ours.first;
    if (r->next)
        r->next->prev = r;
    ours.first = r;
    pthread_mutex_unlock(&ours.lock);
}

/* Its memory is free when both have closed it. */
static void close_descriptor(struct ws_region *r)
{
    close(r->fd);
    if (r->stored[0])
        ws_descriptor_store_remove(r->stored);
}

/* Closing gigabytes takes a while. Meanwhile they count as closing, not as kept by another process. */
static void close_listed(struct ws_region *r)
{
    uint64_t bytes = held_bytes(r);
    pthread_mutex_lock(&ours.lock);
    if (r->prev)
        r->prev->next = r->next;
    else
        ours.first = r->next;
    if (r->next)
        r->next->prev = r->prev;
    ours.closing_bytes += bytes;
    pthread_mutex_unlock(&ours.lock);
    close_descriptor(r);
    pthread_mutex_lock(&ours.lock);
    ours.closing_bytes -= bytes;
    pthread_mutex_unlock(&ours.lock);
}

uint64_t ws_region_left_bytes(void)
{
    pthread_mutex_lock(
        &ours.lock); /* first: a close between the two counts would look like another process's bytes */
    uint64_t used = ws_region_file_used(), known = ours.closing_bytes;
    for (const struct ws_region *r = ours.first; r; r = r->next)
        known += held_bytes(r);
    pthread_mutex_unlock(&ours.lock);
    return used > known ? used - known : 0;
}

int ws_region_new(struct ws_region **out, uint64_t size_bytes, struct ws_error *err)
{
    assert(out && size_bytes > 0);
    *out = NULL;
    if (size_bytes > WS_MAX_FILE_BYTES)
        return ws_error_set(err, EFBIG, "a region of %llu bytes is over the limit of %lu for one file",
                            (unsigned long long)size_bytes, WS_MAX_FILE_BYTES);
    struct ws_region *r = calloc(1, sizeof(*r));
    if (!r)
        return ws_error_set(err, ENOMEM, "no memory for a region");
    r->size_bytes = size_bytes;
    r->writable = true;
    r->fd = ws_region_file_new(&r->kind);
    int rc = r->fd < 0 ? r->fd : 0;
    if (rc == 0 && r->kind == WS_REGION_TMPFS_HUGE)
        list(r);
    if (rc == 0 && ftruncate(r->fd, (off_t)size_bytes) != 0)
        rc = -errno;
    if (rc < 0) {
        const char *hint = rc == -ENOENT   ? "; regions need /proc to be mounted"
                           : rc == -EINVAL ? "; WSYNC_REGION can be tmpfs, memfd or memfd-plain"
                                           : "";
        rc = ws_error_set(err, -rc, "cannot make a region of %llu bytes (%s): %s%s",
                          (unsigned long long)size_bytes, ws_region_kind_name(r->kind), strerror(-rc), hint);
    } else {
        rc = map_region(r, err);
    }
    if (rc < 0) {
        ws_region_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

bool ws_region_store(struct ws_region *r, const char *prefix)
{
    char number[NUMBER_DIGITS + 1];
    assert(r->kind != WS_REGION_IMPORTED && !r->stored[0]);
    if (!ws_descriptor_store_is_on() || ws_text_random(number, NUMBER_DIGITS / 2))
        return false;
    snprintf(r->stored, sizeof(r->stored), "%s%s", prefix, number);
    if (ws_descriptor_store_put(r->stored, r->fd) < 0)
        r->stored[0] = 0;
    return r->stored[0];
}

const char *ws_region_stored_as(const struct ws_region *r)
{
    return r->stored[0] ? r->stored : NULL;
}

/* Of which kind is a file that a process before this one has made? */
static enum ws_region_kind kind_of_file(const struct stat *st)
{
    struct stat ours_st;
    const int fs = ws_region_tmpfs();
    return fs >= 0 && fstat(fs, &ours_st) == 0 && ours_st.st_dev == st->st_dev ? WS_REGION_TMPFS_HUGE
                                                                               : WS_REGION_MEMFD_HUGE;
}

int ws_region_take_over(struct ws_region **out, const char *name, struct ws_error *err)
{
    struct stat st;
    struct ws_region *r = calloc(1, sizeof(*r));
    *out = NULL;
    if (!r)
        return ws_error_set(err, ENOMEM, "no memory for a region");
    r->writable = true;
    snprintf(r->stored, sizeof(r->stored), "%s", name);
    r->fd = ws_descriptor_store_take(name);
    if (r->fd < 0) {
        free(r);
        return ws_error_set(err, ENOENT, "the descriptor %s was not kept", name);
    }
    atomic_store(&r->shown, true);
    int rc = 0;
    if (fstat(r->fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
        rc = ws_error_set(err, EBADMSG, "the descriptor %s is no region's", name);
    if (rc == 0) {
        r->size_bytes = (uint64_t)st.st_size;
        r->kind = kind_of_file(&st);
        if (r->kind == WS_REGION_TMPFS_HUGE)
            list(r);
        rc = map_region(r, err);
    }
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
    else if (!S_ISREG(st.st_mode))
        rc = ws_error_set(err, EBADMSG, "a received descriptor is no regular file");
    else if ((uint64_t)st.st_size != size_bytes)
        rc = ws_error_set(err, EBADMSG, "a received file has %lld bytes where %llu were promised",
                          (long long)st.st_size, (unsigned long long)size_bytes);
    else
        rc = map_region(r, err);
    if (rc < 0) {
        ws_region_free(r);
        return rc;
    }
    if (writable)
        ws_region_close_descriptor(r);
    *out = r;
    return 0;
}

/* A child that was forked between the descriptor's arrival and here still has it: that is short. */
void ws_region_close_descriptor(struct ws_region *r)
{
    assert(r->kind == WS_REGION_IMPORTED);
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
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

/* Adds and removes permission bits of the region's file. */
static int change_mode(const struct ws_region *r, mode_t add, mode_t remove)
{
    struct stat st;
    if (fstat(r->fd, &st) != 0)
        return -errno;
    mode_t now = st.st_mode & 07777, want = (now | add) & ~remove;
    return want == now || fchmod(r->fd, want) == 0 ? 0 : -errno;
}

/* A read-only descriptor could be reopened for writing by any user that the file's mode lets write, so the mode
 * forbids it from the first descriptor on. Only the owner can allow it again, which is how a recycled region gets
 * its next writers. An imported file's mode is its owner's and stays. */
static int open_again(const struct ws_region *r, bool writable)
{
    if (r->kind == WS_REGION_IMPORTED) {
        int same = fcntl(r->fd, F_DUPFD_CLOEXEC, 0); /* counts for its owner's lease like the first */
        return same < 0 ? -errno : same;
    }
    int rc = writable ? change_mode(r, 0200, 0) : change_mode(r, 0, 0222);
    return rc < 0 ? rc : ws_region_file_reopen(r->fd, writable ? O_RDWR : O_RDONLY);
}

int ws_region_open(struct ws_region *r, enum ws_region_access access, int *fd, struct ws_error *err)
{
    bool writable = access == WS_REGION_WRITE;
    assert(fd && (!writable || r->writable) && r->fd >= 0);
    if (access == WS_REGION_READ)
        atomic_store(&r->shown, true);
    int again = open_again(r, writable);
    if (again < 0)
        return ws_error_set(err, -again, "cannot open a region's file again: %s%s", strerror(-again),
                            again == -ENOENT ? "; regions need /proc to be mounted" : "");
    *fd = again;
    return 0;
}

int ws_region_lend(const struct ws_region *r, int *fd, struct ws_error *err)
{
    *fd = fcntl(r->fd, F_DUPFD_CLOEXEC, 0);
    return *fd >= 0 ? 0 : ws_error_set(err, errno, "cannot lend a region's file: %s", strerror(errno));
}

int ws_region_protect(struct ws_region *r, bool writable, struct ws_error *err)
{
    if (mprotect(r->data, r->size_bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ) == 0)
        return 0;
    return ws_error_set(err, errno, "cannot make a region of %llu bytes %s: %s",
                        (unsigned long long)r->size_bytes, writable ? "writable" : "read-only",
                        strerror(errno));
}

int ws_region_unheld(const struct ws_region *r)
{
    return r->kind == WS_REGION_IMPORTED ? -EPERM : ws_file_lease_try(r->fd, F_WRLCK);
}

int ws_region_idle(const struct ws_region *r)
{
    int rc = ws_region_unheld(r);
    return rc == 0 && ws_region_was_shown(r) ? -EPERM
                                             : rc; /* its pages may be in a pipe or in a socket's queue */
}

/* A punched hole takes whole pages out of the file. Of a huge page that lies in the hole in part only, the kernel
 * would set that part to zero where it is, for its other holders, too: so holes begin and end at blocks, or reach
 * beyond the end of the file, and a block is a multiple of what a huge page can be. */
bool ws_region_can_renew(void)
{
    return sysconf(_SC_PAGESIZE) == (long)WS_PAGE_BYTES && WS_BLOCK_BYTES % WS_HUGE_BYTES == 0;
}

int ws_region_renew(struct ws_region *r, uint64_t offset, uint64_t n_bytes, struct ws_error *err)
{
    const uint64_t end = offset + n_bytes;
    assert(r->writable && r->fd >= 0 && offset % WS_BLOCK_BYTES == 0 && end <= r->size_bytes &&
           (end % WS_BLOCK_BYTES == 0 || end == r->size_bytes));
    const uint64_t hole = (n_bytes + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES * WS_BLOCK_BYTES;
    if (!ws_region_can_renew())
        return ws_error_set(err, ENOTSUP, "pages of a region cannot be renewed on this machine");
    if (fallocate(r->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)hole) == 0)
        return 0;
    return ws_error_set(err, errno, "cannot renew %llu bytes of a region: %s", (unsigned long long)n_bytes,
                        strerror(errno));
}

bool ws_region_was_shown(const struct ws_region *r)
{
    return r->kind == WS_REGION_IMPORTED || atomic_load(&r->shown);
}

/* A yes is kept. A no may have been a moment's (no descriptor, no memory), so the next call tries again. */
bool ws_region_leases_work(void)
{
    static atomic_bool work, said;
    struct ws_region *r = NULL;
    struct ws_error err = {0};
    if (atomic_load(&work))
        return true;
    int rc = ws_region_new(&r, WS_PAGE_BYTES, &err);
    if (rc == 0 && (rc = ws_region_idle(r)) < 0)
        (void)ws_error_set(&err, -rc, "F_SETLEASE is refused; sysctl fs.leases-enable, or a sandbox");
    ws_region_free(r);
    atomic_store(&work, rc == 0);
    if (rc < 0 && !atomic_exchange(&said, true))
        ws_log(
            WS_LOG_WARN, "region",
            "the kernel grants no leases (%s), so wsync cannot tell which processes still read a version: "
            "until "
            "it does, memory is given back and never reused, which is slower, and mounts on this machine get "
            "copies",
            err.text);
    return rc == 0;
}

struct populate {
    struct ws_region *region;
    uint64_t begin, end;
    int error;
};

static int populate(struct ws_region *r, uint64_t at, uint64_t n)
{
    if (madvise(r->data + at, n, MADV_POPULATE_WRITE) == 0)
        return 0;
    if (errno != EINVAL)
        return errno;
    for (uint64_t i = 0; i < n; i += WS_PAGE_BYTES) /* before Linux 5.14; changes no byte */
        (void)__atomic_fetch_or(r->data + at + i, 0, __ATOMIC_RELAXED);
    return 0;
}

static void *populate_part(void *arg)
{
    struct populate *p = arg;
    for (uint64_t at = p->begin; at < p->end && p->error == 0; at += POPULATE_BYTES)
        p->error = populate(p->region, at, p->end - at < POPULATE_BYTES ? p->end - at : POPULATE_BYTES);
    return NULL;
}

static uint64_t lesser(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

int ws_region_prefault_part(struct ws_region *r, uint64_t offset, uint64_t n_bytes, unsigned n_threads,
                            struct ws_error *err)
{
    assert(r->writable && offset % WS_PAGE_BYTES == 0 && offset <= r->size_bytes);
    struct populate parts[MAX_POPULATE_THREADS];
    pthread_t threads[MAX_POPULATE_THREADS];
    unsigned n = n_threads < 1 ? 1 : n_threads, started = 0;
    n = n > MAX_POPULATE_THREADS ? MAX_POPULATE_THREADS : n;
    uint64_t end = offset + lesser(n_bytes, r->size_bytes - offset);
    uint64_t step = ((end - offset) / n + WS_HUGE_BYTES) & ~(WS_HUGE_BYTES - 1);

    for (unsigned i = 0; i < n; i++)
        parts[i] = (struct populate){.region = r,
                                     .begin = lesser(offset + i * step, end),
                                     .end = lesser(offset + (i + 1) * step, end)};
    while (started + 1 < n && parts[started].begin < parts[started].end &&
           ws_thread_start(&threads[started], populate_part, &parts[started]) == 0)
        started++;
    for (unsigned i = started; i < n; i++)
        populate_part(&parts[i]);
    int error = 0;
    for (unsigned i = 0; i < n; i++) {
        if (i < started)
            pthread_join(threads[i], NULL);
        if (parts[i].error)
            error = parts[i].error == EFAULT ? ENOMEM : parts[i].error;
    }
    return error == 0 ? 0
                      : ws_error_set(err, error, "cannot take the memory of a region of %llu bytes: %s",
                                     (unsigned long long)r->size_bytes, strerror(error));
}

int ws_region_prefault(struct ws_region *r, unsigned n_threads, struct ws_error *err)
{
    return ws_region_prefault_part(r, 0, r->size_bytes, n_threads, err);
}

int ws_region_link(struct ws_region *r, int dirfd, const char *name)
{
    char path[64];
    if (r->kind != WS_REGION_TMPFS_HUGE)
        return -EXDEV;
    int rc = r->kept ? 0 : ws_region_file_keep(r->fd, &r->kept);
    if (rc < 0) {
        r->kept = 0;
        return rc;
    }
    atomic_store(&r->shown, true);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", r->fd);
    if (fchmod(r->fd, 0444) != 0 || linkat(AT_FDCWD, path, dirfd, name, AT_SYMLINK_FOLLOW) != 0)
        return -errno;
    return 0;
}

int ws_region_resize(struct ws_region *r, uint64_t size_bytes, struct ws_error *err)
{
    assert(r->writable && r->kind != WS_REGION_IMPORTED && size_bytes > 0);
    if (size_bytes > WS_MAX_FILE_BYTES)
        return ws_error_set(err, EFBIG, "a region of %llu bytes is over the limit of %lu for one file",
                            (unsigned long long)size_bytes, WS_MAX_FILE_BYTES);
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
    if (r->kept)
        ws_region_file_forget(r->kept);
    if (r->data)
        munmap(r->data, r->size_bytes);
    if (r->fd >= 0 && r->kind == WS_REGION_TMPFS_HUGE)
        close_listed(r);
    else if (r->fd >= 0)
        close_descriptor(r);
    free(r);
}
