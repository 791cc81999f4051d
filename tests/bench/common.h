/* What the benchmarks share: a clock, medians of interleaved repeats, rows.
 *
 * A row compares what was measured with a baseline measured in the same run, because machines differ and
 * one machine differs from minute to minute; subjects are therefore run in turns, and the median of
 * each is taken. tests/bench/run gathers the rows of all programs into build/bench.json. */
#ifndef WS_BENCH_COMMON_H
#define WS_BENCH_COMMON_H
#include <stddef.h>
#include <stdint.h>

double bench_now(void); /* seconds, monotonic */
/* Sorts values; the mean of the two in the middle when n is even. n > 0. */
double bench_median(double *values, size_t n);
/* In GB/s (1e9). */
double bench_rate(uint64_t bytes, double seconds);

struct bench_subject {
    void (*run)(void *arg);
    void *arg;
    double seconds; /* out: the median */
};
/* Runs each once to warm up, then all in turns, `repeats` times (at most BENCH_MAX_REPEATS). */
#define BENCH_MAX_REPEATS 101
void bench_in_turns(struct bench_subject *subjects, size_t n, unsigned repeats);

enum bench_goal { BENCH_AT_LEAST, BENCH_AT_MOST, BENCH_NO_GOAL };
struct bench_row {
    const char *name;
    double value;
    const char *unit;
    double baseline; /* in the same unit; 0: none */
    enum bench_goal goal;
    double target; /* of value / baseline, or of value where there is no baseline */
};
/* Prints the row as a line of a table (its head before the first), and appends it as a line of JSON to
 * the file that WSYNC_BENCH_ROWS names. Ends the program when that fails. */
void bench_row(const struct bench_row *row);
/* Says what is wrong and ends the program with 1. */
__attribute__((format(printf, 1, 2), noreturn)) void bench_fail(const char *format, ...);
/* For what cannot run here: says why and ends the program with 0. */
__attribute__((format(printf, 1, 2), noreturn)) void bench_skip(const char *format, ...);

#endif
