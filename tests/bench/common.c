#include "tests/bench/common.h"
#include <assert.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double bench_rate(uint64_t bytes, double seconds)
{
    return (double)bytes / seconds / 1e9;
}

double bench_cpu_of(int pid)
{
    char path[64];
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f || fscanf(f, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
        bench_fail("cannot read %s", path);
    fclose(f);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, size_t n)
{
    assert(n > 0);
    qsort(values, n, sizeof(*values), ascending);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void bench_in_turns(struct bench_subject *subjects, size_t n, unsigned repeats)
{
    assert(n > 0 && repeats > 0 && repeats <= BENCH_MAX_REPEATS);
    double(*times)[BENCH_MAX_REPEATS] = calloc(n, sizeof(*times));
    if (!times)
        bench_fail("no memory for %zu subjects", n);
    for (size_t i = 0; i < n; i++)
        subjects[i].run(subjects[i].arg);
    for (unsigned r = 0; r < repeats; r++) {
        for (size_t i = 0; i < n; i++) {
            double begun = bench_now();
            subjects[i].run(subjects[i].arg);
            times[i][r] = bench_now() - begun;
        }
    }
    for (size_t i = 0; i < n; i++)
        subjects[i].seconds = bench_median(times[i], repeats);
    free(times);
}

static void print(const struct bench_row *row, double ratio)
{
    static bool begun;
    static const char *const signs[] = {
        [BENCH_AT_LEAST] = ">=", [BENCH_AT_MOST] = "<=", [BENCH_NO_GOAL] = ""};
    char baseline[32] = "", ratio_text[32] = "", target[32] = "";
    double judged = row->baseline > 0 ? ratio : row->value;
    bool met = row->goal == BENCH_AT_LEAST ? judged >= row->target : judged <= row->target;
    if (!begun)
        printf("%-24s %10s %-6s %10s %7s %8s\n", "name", "value", "unit", "baseline", "ratio", "target");
    begun = true;
    if (row->baseline > 0) {
        snprintf(baseline, sizeof(baseline), "%.4g", row->baseline);
        snprintf(ratio_text, sizeof(ratio_text), "%.3f", ratio);
    }
    if (row->goal != BENCH_NO_GOAL)
        snprintf(target, sizeof(target), "%s %.4g", signs[row->goal], row->target);
    printf("%-24s %10.4g %-6s %10s %7s %8s%s\n", row->name, row->value, row->unit, baseline, ratio_text,
           target, row->goal == BENCH_NO_GOAL || met ? "" : "  falls short");
    fflush(stdout);
}

static json_t *number_or_null(bool there, double value)
{
    return there ? json_real(value) : json_null();
}

/* Without a target rates are better where they are higher, and all else where it is lower. */
static const char *better(const struct bench_row *row)
{
    if (row->goal == BENCH_NO_GOAL)
        return strstr(row->unit, "/s") ? "higher" : "lower";
    return row->goal == BENCH_AT_LEAST ? "higher" : "lower";
}

void bench_row(const struct bench_row *row)
{
    const char *path = getenv("WSYNC_BENCH_ROWS");
    double ratio = row->baseline > 0 ? row->value / row->baseline : 0;
    print(row, ratio);
    if (!path)
        return;
    json_t *line = json_pack("{s:s, s:f, s:s, s:o, s:o, s:o, s:s}", "name", row->name, "value", row->value,
                             "unit", row->unit, "baseline", number_or_null(row->baseline > 0, row->baseline),
                             "ratio", number_or_null(row->baseline > 0, ratio), "target",
                             number_or_null(row->goal != BENCH_NO_GOAL, row->target), "better", better(row));
    FILE *f = fopen(path, "ae");
    if (!line || !f || json_dumpf(line, f, JSON_COMPACT | JSON_REAL_PRECISION(6)) != 0 ||
        fputc('\n', f) == EOF || fclose(f) != 0)
        bench_fail("cannot write the row %s to %s", row->name, path);
    json_decref(line);
}

void bench_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fflush(stdout);
    fputs("bench: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void bench_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("skipped: ", stdout);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
    exit(0);
}
