/* wsync bench: how fast readers get a mounted file, against the same bytes in plain memory files. */
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/json_print.h"
#include "mount-helpers/cli/lost_file.h"
#include "mount-helpers/cli/mounts.h"
#include "transports/memory/region.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_BYTES (1UL << 20)
#define LINE_BYTES 64
#define MAX_REPEAT 101

static const struct cli_option options[] = {
    {"repeat", 'r', "N", "measurements of each row, interleaved; the median counts; default 5", 1,
     MAX_REPEAT},
    {"json", 'j', NULL, "print rows as [{name, value, unit, baseline, ratio}]"},
    {"no-shm", 0, NULL, "leave the copy in /dev/shm out"},
    {0},
};

typedef double measure_fn(int fd, uint64_t size);

/* Seconds to read it all with 1 MiB reads. Negative: -errno. */
static double read_all(int fd, uint64_t size)
{
    static unsigned char *buffer;
    if (!buffer && !(buffer = aligned_alloc(1UL << 21, READ_BYTES)))
        return -ENOMEM;
    memset(buffer, 1, READ_BYTES);
    double start = cli_now();
    for (uint64_t at = 0; at < size;) {
        ssize_t n = pread(fd, buffer, READ_BYTES, (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        at += (uint64_t)n;
    }
    return cli_now() - start;
}

/* Seconds to map it privately and look at every cache line. */
static double touch_all(int fd, uint64_t size)
{
    static volatile uint64_t sink;
    uint64_t sum = 0;
    double start = cli_now();
    unsigned char *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    (void)madvise(p, size, MADV_SEQUENTIAL);
    for (uint64_t i = 0; i + 8 <= size; i += LINE_BYTES)
        sum += *(const uint64_t *)(const void *)(p + i);
    sink = sum;
    munmap(p, size);
    (void)sink;
    return cli_now() - start;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct subject {
    const char *name;
    int fd;
    double seconds[MAX_REPEAT];
};

static double median(struct subject *s, size_t n)
{
    qsort(s->seconds, n, sizeof s->seconds[0], by_value);
    return s->seconds[n / 2];
}

static int copy_to(int from, int to, uint64_t size)
{
    for (off_t at = 0; (uint64_t)at < size;) {
        static unsigned char buffer[READ_BYTES];
        ssize_t n = pread(from, buffer, sizeof buffer, at);
        if (n <= 0 || pwrite(to, buffer, (size_t)n, at) != n)
            return -EIO;
        at += n;
    }
    return 0;
}

static int shm_copy(int from, uint64_t size)
{
    int fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 && copy_to(from, fd, size)) {
        close(fd);
        return -1;
    }
    return fd;
}

static int print_row(json_t *rows, const char *name, const char *versus, uint64_t size, double seconds,
                     double base)
{
    double value = (double)size / seconds / 1e9, baseline = (double)size / base / 1e9;
    if (rows)
        return json_array_append_new(rows,
                                     json_pack("{s:s,s:f,s:s,s:f,s:f}", "name", name, "value", value, "unit",
                                               "GB/s", "baseline", baseline, "ratio", value / baseline));
    printf("%-18s %6.2f GB/s   %-22s %6.2f GB/s   ratio %.2f\n", name, value, versus, baseline,
           value / baseline);
    return 0;
}

static int measure(const struct cli_args *args, struct subject *s, size_t n_subjects, uint64_t size,
                   json_t *rows)
{
    static const struct {
        const char *name, *shm_name;
        measure_fn *fn;
    } kinds[] = {{"read-mount", "read-mount-vs-shm", read_all},
                 {"mmap-mount", "mmap-mount-vs-shm", touch_all}};
    size_t repeat = (size_t)cli_u64(args, "repeat", 5);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (size_t i = 0; i < n_subjects; i++) /* page tables and caches of all alike */
            if (kinds[k].fn(s[i].fd, size) < 0)
                return cli_fail("cannot read %s", s[i].name);
        for (size_t r = 0; r < repeat; r++)
            for (size_t i = 0; i < n_subjects; i++)
                if ((s[i].seconds[r] = kinds[k].fn(s[i].fd, size)) < 0)
                    return cli_fail("cannot read %s: %s", s[i].name, strerror((int)-s[i].seconds[r]));
        double mounted = median(&s[0], repeat);
        print_row(rows, kinds[k].name, "huge-page tmpfs file", size, mounted, median(&s[1], repeat));
        if (n_subjects > 2)
            print_row(rows, kinds[k].shm_name, "copy in /dev/shm", size, mounted, median(&s[2], repeat));
    }
    return CLI_OK;
}

static int run(const struct cli_args *args)
{
    const char *path = cli_word(args, 0);
    struct subject subjects[3] = {{.name = path, .fd = -1},
                                  {.name = "the region", .fd = -1},
                                  {.name = "the copy in /dev/shm", .fd = -1}};
    struct ws_error err = {0};
    struct ws_region *region = NULL;
    struct stat st;
    json_t *rows = cli_has(args, "json") ? json_array() : NULL;
    int code = CLI_FAILED;

    cli_lost_file_says("the file shrank, or its mount failed, while it was read");
    subjects[0].fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a FIFO would block */
    if (subjects[0].fd < 0 || fstat(subjects[0].fd, &st) || !S_ISREG(st.st_mode) || st.st_size == 0) {
        cli_fail("cannot open %s as a file with bytes in it: %s", path, strerror(errno));
        goto out;
    }
    uint64_t size = (uint64_t)st.st_size;
    if (ws_region_new(&region, size, &err)) {
        cli_fail("%s", err.text);
        goto out;
    }
    subjects[1].fd = ws_region_fd(region);
    if (copy_to(subjects[0].fd, subjects[1].fd, size)) {
        cli_fail("cannot copy %s to memory: %s", path, strerror(errno));
        goto out;
    }
    if (!cli_has(args, "no-shm"))
        subjects[2].fd = shm_copy(subjects[0].fd, size);
    code = measure(args, subjects, subjects[2].fd >= 0 ? 3 : 2, size, rows);
    if (rows && code == CLI_OK)
        code = json_print(json_incref(rows));
out:
    json_decref(rows);
    ws_region_free(region);
    if (subjects[0].fd >= 0)
        close(subjects[0].fd);
    if (subjects[2].fd >= 0)
        close(subjects[2].fd);
    return code;
}

const struct cli_command cmd_bench = {
    .name = "bench",
    .summary = "measure how fast a mounted file is read on this machine",
    .synopsis = "[OPTIONS] FILE",
    .description =
        "Reads FILE with 1 MiB reads and by touching every line of a private mapping, side by side with "
        "the same bytes in a huge-page tmpfs file (what memory allows) and in a copy in /dev/shm (what "
        "one would do otherwise), interleaved, and prints medians and ratios. Needs memory for "
        "two copies of the file.",
    .examples = "wsync bench /wsync/actor/1/model.safetensors",
    .options = options,
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
