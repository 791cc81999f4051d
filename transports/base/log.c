/* The log: one line, one write(2), so that lines of several threads and processes on one stderr never
 * mix. Keeps errno, because it is called on the way out of failures. */
#include "transports/base/log.h"
#include "transports/base/text.h"
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_BYTES  4096 /* a longer line is cut */
#define LEVEL_UNSET (-1)

static const char *const level_names[] = {
    [WS_LOG_ERROR] = "error",
    [WS_LOG_WARN] = "warn",
    [WS_LOG_INFO] = "info",
    [WS_LOG_DEBUG] = "debug",
};
#define LEVELS (sizeof(level_names) / sizeof(level_names[0]))

/* Set by the first line or by ws_log_set_level, whichever comes first; two threads that set it at once arrive at the same value. */
static atomic_int current_level = LEVEL_UNSET;

static int level_of_environment(void)
{
    const char *wanted = getenv("WSYNC_LOG");

    for (size_t i = 0; wanted && i < LEVELS; i++) {
        if (strcmp(wanted, level_names[i]) == 0)
            return (int)i;
    }
    return WS_LOG_INFO;
}

static int level_now(void)
{
    int level = atomic_load_explicit(&current_level, memory_order_relaxed);
    int unset = LEVEL_UNSET;

    if (level != LEVEL_UNSET)
        return level;
    level = level_of_environment();
    /* A level that ws_log_set_level has put there meanwhile wins. */
    if (!atomic_compare_exchange_strong(&current_level, &unset, level))
        level = unset;
    return level;
}

void ws_log_set_level(enum ws_log_level level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

static void write_line(const char *line, size_t length)
{
    while (length > 0) {
        ssize_t n = write(STDERR_FILENO, line, length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* stderr has no reader: there is no other place to report it */
        line += n;
        length -= (size_t)n;
    }
}

void ws_log(enum ws_log_level level, const char *component, const char *format, ...)
{
    char line[LINE_BYTES];
    int saved_errno = errno;
    size_t length;
    va_list args;
    int n;

    if ((int)level > level_now())
        return;
    n = snprintf(line, sizeof(line), "%s %s ", level_names[level], component);
    if (n >= 0 && (size_t)n < sizeof(line)) {
        va_start(args, format);
        errno = saved_errno; /* for %m */
        n = vsnprintf(line + n, sizeof(line) - (size_t)n, format, args);
        va_end(args);
    }
    if (n >= 0) {
        ws_text_clean(line);
        length = strnlen(line, sizeof(line) - 1);
        line[length] = '\n'; /* in the place of the NUL: written by length */
        write_line(line, length + 1);
    }
    errno = saved_errno;
}
