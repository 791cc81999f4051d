/* Shared by the benchmarks: a clock, medians of interleaved repeats, rows. A row compares a measurement with
 * a baseline measured in the same run, because machines differ and one machine differs from minute to minute;
 * subjects therefore alternate, and each one's median is used. tests/bench/run collects the rows of all
 * programs in build/bench.json. */
#ifndef WS_BENCH_COMMON_H
#define WS_BENCH_COMMON_H
#include <stddef.h>
#include <stdint.h>

double bench_now(void);       /* seconds, monotonic */
double bench_cpu_of(int pid); /* seconds, of all threads of another process */
/* Sorts values; the mean of the two in the middle when n is even. n > 0. */
double bench_median(double *values, size_t n);
/* In GB/s (1e9). */
double bench_rate(uint64_t bytes, double seconds);

struct bench_subject {
    void (*run)(void *arg);
    void *arg;
    double seconds; /* out: the median */
};
/* Runs each once to warm up, then all alternating, `repeats` times (at most BENCH_MAX_REPEATS). */
#define BENCH_MAX_REPEATS 101
void bench_in_turns(struct bench_subject *subjects, size_t n, unsigned repeats);

enum bench_goal { BENCH_AT_LEAST, BENCH_AT_MOST, BENCH_NO_GOAL };
struct bench_row {
    const char *name;
    double value;
    const char *unit;
    double baseline; /* in the same unit; 0: none */
    enum bench_goal goal;
    double target; /* of value / baseline, or of value if there is no baseline */
};
/* Prints the row as a line of a table (with a heading before the first), and appends it as a line of JSON to
 * the file that WSYNC_BENCH_ROWS names. Ends the program on failure. */
void bench_row(const struct bench_row *row);
/* Prints the error and ends the program with 1. */
__attribute__((format(printf, 1, 2), noreturn)) void bench_fail(const char *format, ...);
/* If the benchmark cannot run here: prints the reason and ends the program with 0. */
__attribute__((format(printf, 1, 2), noreturn)) void bench_skip(const char *format, ...);

#endif
