/* Readers that Python cannot be: two private writable mappings at once as the engines make them, O_DIRECT and
 * io_uring reads, a mapping that outlives its file. Prints the XXH3 of what it saw.
 *   readers engine PATH      two opens at once, MAP_SHARED and MAP_PRIVATE|PROT_WRITE, closed before reading
 *   readers direct PATH      O_DIRECT reads
 *   readers uring PATH       io_uring reads, several in flight
 *   readers hold PATH        maps, closes, prints the hash, waits for a line on stdin, prints it again */
#include "transports/simd/copy.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE (1UL << 20)

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return 1;
}

static int open_file(const char *path, int flags, size_t *size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    if (fd < 0 || fstat(fd, &st) != 0)
        return -1;
    *size = (size_t)st.st_size;
    return fd;
}

static int print_hash(const void *p, size_t n)
{
    printf("%016" PRIx64 "\n", ws_hash(p, n));
    return fflush(stdout);
}

static int engine(const char *path)
{
    size_t n = 0;
    int a = open_file(path, 0, &n), b = open_file(path, 0, &n);
    if (a < 0 || b < 0)
        return fail("open");
    void *shared = mmap(NULL, n, PROT_READ, MAP_SHARED, a, 0);
    unsigned char *private = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE, b, 0);
    if (shared == MAP_FAILED || private == MAP_FAILED)
        return fail("mmap");
    (void)posix_fadvise(b, 0, 0, POSIX_FADV_SEQUENTIAL);
    close(a);
    close(b);
    if (memcmp(shared, private, n) != 0) {
        fprintf(stderr, "the two mappings differ\n");
        return 1;
    }
    private[0] ^= 1; /* a private page: no other process may see it */
    if (((unsigned char *)shared)[0] == private[0]) {
        fprintf(stderr, "a private write was seen\n");
        return 1;
    }
    return print_hash(shared, n);
}

static int direct(const char *path)
{
    size_t n = 0, at = 0;
    int fd = open_file(path, O_DIRECT, &n);
    unsigned char *all = aligned_alloc(4096, (n / PIECE + 2) * PIECE);
    if (fd < 0 || !all)
        return fail("open O_DIRECT");
    while (at < n) {
        ssize_t k = pread(fd, all + at, PIECE, (off_t)at);
        if (k <= 0)
            return fail("read O_DIRECT");
        at += (size_t)k;
    }
    int rc = print_hash(all, n);
    free(all);
    return rc;
}

static int uring(const char *path)
{
    struct io_uring ring;
    size_t n = 0, queued = 0, done = 0;
    int fd = open_file(path, 0, &n), rc = io_uring_queue_init(8, &ring, 0);
    unsigned char *all = malloc(n + 1);
    if (rc < 0) {
        printf("skip %s\n", strerror(-rc));
        free(all);
        return 0;
    }
    if (fd < 0 || !all) {
        free(all);
        return fail("open");
    }
    while (done < n) {
        struct io_uring_sqe *sqe;
        while (queued < n && (sqe = io_uring_get_sqe(&ring))) {
            size_t k = n - queued < PIECE ? n - queued : PIECE;
            io_uring_prep_read(sqe, fd, all + queued, (unsigned)k, queued);
            io_uring_sqe_set_data64(sqe, k);
            queued += k;
        }
        struct io_uring_cqe *cqe;
        io_uring_submit(&ring);
        if (io_uring_wait_cqe(&ring, &cqe) < 0 || cqe->res < 0 || (uint64_t)cqe->res != cqe->user_data) {
            free(all);
            return fail("io_uring read");
        }
        done += (size_t)cqe->res;
        io_uring_cqe_seen(&ring, cqe);
    }
    io_uring_queue_exit(&ring);
    rc = print_hash(all, n);
    free(all);
    return rc;
}

static int hold(const char *path)
{
    size_t n = 0;
    char line[16];
    int fd = open_file(path, 0, &n);
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return fail("mmap");
    close(fd);
    if (print_hash(p, n) || !fgets(line, sizeof(line), stdin))
        return fail("wait");
    return print_hash(p, n);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const char *path);
    } readers[] = {{"engine", engine}, {"direct", direct}, {"uring", uring}, {"hold", hold}};
    for (size_t i = 0; argc == 3 && i < sizeof(readers) / sizeof(readers[0]); i++)
        if (strcmp(argv[1], readers[i].name) == 0)
            return readers[i].run(argv[2]);
    fprintf(stderr, "usage: readers engine|direct|uring|hold PATH\n");
    return 2;
}
