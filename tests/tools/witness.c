/* A reader that knows what it must see: the files of tests/tools/rank.c, whose every byte follows from a
 * number, the content, that stands for version, lineage and model.
 * Reads commands, a line each, and answers each with a line:
 *   WAY HOLD PATH         read, direct, uring, splice, sendfile, map or private (mappings); for HOLD ms what
 *                         was read last stays where it is (mapped; in a pipe or a socket), the file closed
 *   right CONTENT BYTES   every byte is of that content, also after the pause
 *   error NUMBER WHERE    nothing was to be had, or not all of it
 *   skip WHERE            not on this machine
 *   wrong SENTENCE        bytes that are not of one content, or fewer than the file is said to have without
 *                         an error; what was read is kept as wrong.PID in the working folder */
#include "transports/format/safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE    (1UL << 18)
#define CONTENTS (UINT64_C(64) << 16)
#define IN_TURN  8

static struct {
    const char *path;
    int fd;
    size_t size;
    unsigned char *bytes; /* the bytes read */
    unsigned hold_ms;
    uint64_t random;
    char wrong[512];
} job;
static size_t room;
static sigjmp_buf bus;

static int fail(const char *where)
{
    printf("error %d %s\n", errno, where);
    return 1;
}

static int is_wrong(const char *where, size_t at)
{
    snprintf(job.wrong, sizeof(job.wrong), "%s ended at byte %zu of %zu without an error", where, at,
             job.size);
    return 1;
}

static size_t rest_of(size_t at)
{
    return job.size - at < PIECE ? job.size - at : PIECE;
}

static size_t any_place(void)
{
    job.random = job.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (size_t)((job.random >> 20) % job.size);
}

static uint16_t value(uint64_t content, uint64_t i)
{
    return (uint16_t)(i * 31 + (i >> 11) + (content + (i & 63)) / 64);
}

/* The content of the first 64 elements at p; CONTENTS: none. */
static uint64_t content_at(const unsigned char *p)
{
    uint16_t first, v;
    memcpy(&first, p, 2);
    for (uint64_t low = 0; low < 64; low++) {
        const uint64_t content = (uint64_t)first * 64 + low;
        uint64_t i = 0;
        do
            memcpy(&v, p + 2 * i, 2);
        while (v == value(content, i) && ++i < 64);
        if (i == 64)
            return content;
    }
    return CONTENTS;
}

static bool check_tensor(const struct ws_tensor *t, const unsigned char *bytes, uint64_t content)
{
    const uint64_t width = t->dtype == WS_U8 ? 1 : 2, n = (t->end - t->begin) / width;
    const unsigned char *p = bytes + t->begin;
    for (uint64_t i = 0; i < n; i++) {
        uint16_t want = value(content, i), got = 0;
        if (width == 1)
            want &= 255;
        memcpy(&got, p + i * width, width);
        if (got == want)
            continue;
        uint64_t n_wrong = 0, last = i;
        for (uint64_t k = i; k < n; k++) {
            want = width == 1 ? value(content, k) & 255 : value(content, k);
            got = 0;
            memcpy(&got, p + k * width, width);
            if (got != want)
                n_wrong++, last = k;
        }
        const uint64_t here = width == 2 && n >= 64 ? content_at(p + 2 * (i & ~UINT64_C(63))) : CONTENTS;
        snprintf(job.wrong, sizeof(job.wrong),
                 "%s of content %" PRIu64 ": %" PRIu64 " of %" PRIu64 " elements differ, %" PRIu64
                 " to %" PRIu64 " (bytes %" PRIu64 " to %" PRIu64 " of the file); content there: %" PRIu64
                 " (%" PRIu64 ": none)",
                 t->name, content, n_wrong, n, i, last, t->begin + i * width, t->begin + last * width, here,
                 CONTENTS);
        return false;
    }
    return true;
}

/* The content of the whole file; CONTENTS: not a single one. */
static uint64_t check(const unsigned char *bytes)
{
    struct ws_safetensors *st = NULL;
    struct ws_error err = {0};
    uint64_t content = CONTENTS;
    if (ws_safetensors_parse(bytes, job.size, job.size, &st, &err)) {
        snprintf(job.wrong, sizeof(job.wrong), "the header: %s", err.text);
        return CONTENTS;
    }
    const struct ws_tensor *rows = ws_safetensors_find(st, "rows");
    if (rows)
        content = content_at(bytes + rows->begin);
    if (content == CONTENTS)
        snprintf(job.wrong, sizeof(job.wrong), "rows begins with no content at all");
    for (size_t i = 0; content != CONTENTS && i < st->n_tensors; i++)
        if (!check_tensor(&st->tensors[i], bytes, content))
            content = CONTENTS;
    ws_safetensors_free(st);
    return content;
}

static int read_pieces(const char *where)
{
    for (size_t at = 0; at < job.size;) {
        const ssize_t k = pread(job.fd, job.bytes + at, rest_of(at), (off_t)at);
        if (k < 0)
            return fail(where);
        if (k == 0)
            return is_wrong(where, at);
        at += (size_t)k;
    }
    return 0;
}

static int read_plain(void)
{
    return read_pieces("read");
}

static int read_direct(void)
{
    return read_pieces("O_DIRECT");
}

static int read_uring(void)
{
    struct io_uring ring;
    size_t queued = 0, done = 0, waiting = 0;
    int rc = io_uring_queue_init(IN_TURN, &ring, 0);
    if (rc < 0) {
        printf("skip io_uring: %s\n", strerror(-rc));
        return 1;
    }
    while (rc == 0 && done < job.size) {
        struct io_uring_sqe *sqe;
        struct io_uring_cqe *cqe;
        while (queued < job.size && waiting < IN_TURN && (sqe = io_uring_get_sqe(&ring))) {
            io_uring_prep_read(sqe, job.fd, job.bytes + queued, (unsigned)rest_of(queued), queued);
            io_uring_sqe_set_data64(sqe, rest_of(queued));
            queued += rest_of(queued);
            waiting++;
        }
        io_uring_submit(&ring);
        if ((rc = io_uring_wait_cqe(&ring, &cqe)) < 0) {
            errno = -rc;
            rc = errno == EINTR ? 0 : fail("io_uring's wait");
            continue;
        }
        if (cqe->res < 0) {
            errno = -cqe->res;
            rc = fail("io_uring");
        } else if ((uint64_t)cqe->res != cqe->user_data) {
            errno = EIO; /* a short read is the caller's to continue: this one does not */
            rc = cqe->res == 0 ? is_wrong("io_uring", done) : fail("io_uring, short");
        }
        done += cqe->res > 0 ? (size_t)cqe->res : 0;
        io_uring_cqe_seen(&ring, cqe);
        waiting--;
    }
    io_uring_queue_exit(&ring); /* waits for pending reads, which write into our memory */
    return rc;
}

/* Moves what fits of [at, at + n) into a pipe or a socket; returns the count, 0: nothing was there, -1. */
typedef ssize_t mover(int in, size_t at, size_t n, int out);

static ssize_t by_splice(int in, size_t at, size_t n, int out)
{
    off_t offset = (off_t)at;
    return splice(in, &offset, out, NULL, n, 0);
}

static ssize_t by_sendfile(int in, size_t at, size_t n, int out)
{
    off_t offset = (off_t)at;
    return sendfile(out, in, &offset, n);
}

static int take(int from, unsigned char *to, size_t n)
{
    for (size_t got = 0; got < n;) {
        const ssize_t k = read(from, to + got, n - got);
        if (k <= 0)
            return fail("the other end");
        got += (size_t)k;
    }
    return 0;
}

/* Reads all of it, and then leaves a piece there for a while after the file is closed. */
static int move(mover *by, const char *where, const int ends[2])
{
    for (size_t at = 0; at < job.size;) {
        const ssize_t k = by(job.fd, at, rest_of(at), ends[1]);
        if (k < 0)
            return fail(where);
        if (k == 0)
            return is_wrong(where, at);
        if (take(ends[0], job.bytes + at, (size_t)k))
            return 1;
        at += (size_t)k;
    }
    if (!job.hold_ms)
        return 0;
    static unsigned char again[PIECE];
    const size_t at = any_place();
    const ssize_t k = by(job.fd, at, rest_of(at), ends[1]);
    if (k < 0)
        return fail(where);
    close(job.fd);
    job.fd = -1;
    usleep(job.hold_ms * 1000);
    if (take(ends[0], again, (size_t)k))
        return 1;
    for (size_t i = 0; i < (size_t)k; i++)
        if (again[i] != job.bytes[at + i]) {
            snprintf(job.wrong, sizeof(job.wrong),
                     "%s: byte %zu of the file was changed while it waited %u ms at the other end, the file "
                     "closed",
                     where, at + i, job.hold_ms);
            memcpy(job.bytes + at, again, (size_t)k);
            return 1;
        }
    return 0;
}

static int read_splice(void)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return fail("pipe");
    (void)fcntl(ends[1], F_SETPIPE_SZ, PIECE);
    int rc = move(by_splice, "splice", ends);
    close(ends[0]);
    close(ends[1]);
    return rc;
}

static int read_sendfile(void)
{
    int ends[2];
    const int much = 16 * PIECE;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return fail("socketpair");
    if (setsockopt(ends[1], SOL_SOCKET, SO_SNDBUFFORCE, &much, sizeof(much))) {
        printf("skip sendfile: SO_SNDBUFFORCE: %s\n", strerror(errno));
        close(ends[0]);
        close(ends[1]);
        return 1;
    }
    int rc = move(by_sendfile, "sendfile", ends);
    close(ends[0]);
    close(ends[1]);
    return rc;
}

static void on_bus(int number)
{
    (void)number;
    siglongjmp(bus, 1);
}

static int read_mapping(int flags, int protection, const char *where)
{
    unsigned char *volatile p = mmap(NULL, job.size, protection, flags, job.fd, 0);
    if (p == MAP_FAILED)
        return fail(where);
    close(job.fd);
    job.fd = -1;
    volatile int rc = 0;
    if (sigsetjmp(bus, 1) == 0) {
        const uint64_t before = check(p);
        if (job.hold_ms)
            usleep(job.hold_ms * 1000);
        memcpy(job.bytes, p, job.size); /* is checked once more */
        if (before == CONTENTS || memcmp(p, job.bytes, job.size) != 0) {
            if (!job.wrong[0])
                snprintf(job.wrong, sizeof(job.wrong), "%s: changed while it was looked at", where);
            rc = 1;
        } else if (check(job.bytes) != before) {
            const size_t n = strlen(job.wrong);
            snprintf(job.wrong + n, sizeof(job.wrong) - n,
                     "; the mapping was of content %" PRIu64 " %u ms before", before, job.hold_ms);
            rc = 1;
        }
    } else {
        errno = EIO;
        rc = fail("a page of the mapping (SIGBUS)");
    }
    munmap(p, job.size);
    return rc;
}

static int read_map(void)
{
    return read_mapping(MAP_SHARED, PROT_READ, "MAP_SHARED");
}

static int read_private(void)
{
    return read_mapping(MAP_PRIVATE, PROT_READ | PROT_WRITE, "MAP_PRIVATE");
}

static void keep(void)
{
    char name[64];
    snprintf(name, sizeof(name), "wrong.%d", (int)getpid());
    FILE *f = fopen(name, "wb");
    if (f) {
        fwrite(job.bytes, 1, job.size, f);
        fclose(f);
    }
}

static void look(int flags, int (*read_by)(void))
{
    struct stat st;
    job.wrong[0] = 0;
    job.fd = open(job.path, O_RDONLY | O_CLOEXEC | flags);
    if (job.fd < 0 || fstat(job.fd, &st)) {
        fail("open");
    } else {
        job.size = (size_t)st.st_size;
        if (job.size + 2 * PIECE > room) {
            free(job.bytes);
            room = (job.size / PIECE + 3) * PIECE;
            job.bytes = aligned_alloc(4096, room);
        }
        if (!job.bytes || !job.size) {
            errno = job.size ? ENOMEM : ENODATA;
            room = 0;
            fail("memory");
        } else {
            const bool read_all = read_by() == 0;
            const uint64_t content = read_all ? check(job.bytes) : CONTENTS;
            if (job.wrong[0]) {
                keep();
                printf("wrong %s\n", job.wrong);
            } else if (read_all) {
                printf("right %" PRIu64 " %zu\n", content, job.size);
            }
        }
    }
    if (job.fd >= 0)
        close(job.fd);
}

int main(void)
{
    static const struct {
        const char *name;
        int flags, (*read)(void);
    } ways[] = {{"read", 0, read_plain},     {"direct", O_DIRECT, read_direct}, {"uring", 0, read_uring},
                {"splice", 0, read_splice},  {"sendfile", 0, read_sendfile},    {"map", 0, read_map},
                {"private", 0, read_private}};
    static char path[4097];
    char line[4352], way[16], hold_ms[16];
    const struct sigaction action = {.sa_handler = on_bus};
    sigaction(SIGBUS, &action, NULL);
    job.random = (uint64_t)getpid();
    while (fgets(line, sizeof(line), stdin)) {
        size_t i = 0;
        const size_t n = sizeof(ways) / sizeof(ways[0]);
        if (sscanf(line, "%15s %15[0-9] %4096[^\n]", way, hold_ms, path) == 3)
            while (i < n && strcmp(ways[i].name, way) != 0)
                i++;
        else
            i = n;
        job.path = path;
        job.hold_ms = i < n ? (unsigned)strtoul(hold_ms, NULL, 10) : 0;
        if (i < n)
            look(ways[i].flags, ways[i].read);
        else
            printf("wrong there is no such command: %s", line);
        fflush(stdout);
    }
    free(job.bytes);
    return 0;
}
