#include "mount-helpers/cli/progress.h"
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/terminal.h"
#include "transports/base/number.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define BAR_LEAST 5 /* a bar with fewer columns says nothing: it is left out */
#define BAR_MOST  30
#define FORESEEN  0.02 /* before so much is done its rate says nothing of the time that is left */

void progress_start(struct progress *p, const char *what)
{
    *p = (struct progress){.what = what, .start = cli_now(), .terminal = isatty(STDERR_FILENO)};
    p->last = p->start;
}

/* What is said of it, the most important first: "42 %", "1.19 GB of 2.38 GB", "1.10 GB/s", "3 s left"; the last may be empty. */
enum { PERCENT, AMOUNT, RATE, LEFT, N_FIGURES };
typedef char figures[N_FIGURES][WS_NUMBER_CHARS * 2 + 8];

static void compute(figures f, double seconds, uint64_t done, uint64_t total)
{
    const double part = done < total ? (double)done / (double)total : 1,
                 left = part > 0 ? seconds / part - seconds : 0;
    snprintf(f[PERCENT], sizeof f[0], "%3.0f %%", part * 100);
    snprintf(f[AMOUNT], sizeof f[0], "%s of %s", cli_size(done), cli_size(total));
    snprintf(f[RATE], sizeof f[0], "%s", cli_rate(done, seconds));
    f[LEFT][0] = 0;
    if (part < FORESEEN || left < 1)
        return;
    if (left < 99.5)
        snprintf(f[LEFT], sizeof f[0], "%.0f s left", left);
    else
        snprintf(f[LEFT], sizeof f[0], "%s left", cli_time(left));
}

/* As many of them as fit behind the name; gives their columns. */
static size_t join(const figures f, size_t room, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; i < N_FIGURES; i++) {
        const size_t more = strlen(f[i]) + (n ? 2 : 0);
        if (!f[i][0] || n + more > room)
            break;
        n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? "  " : "", f[i]);
    }
    return n;
}

/* "pull model/3 [#####     ]  50 %  1.19 GB of 2.38 GB  1.10 GB/s  3 s left", within the terminal. */
static void draw(struct progress *p, double part, const figures f)
{
    char text[sizeof(figures) + 16];
    const size_t columns = terminal_columns(STDERR_FILENO) - 1; /* in the last column the cursor would wrap */
    size_t name = strlen(p->what);
    if (name + 10 > columns)
        name = columns > 10 ? columns - 10 : 0;
    const size_t taken = name + 1 + join(f, columns - name - 1, text, sizeof text);
    const size_t room = columns > taken + 3 ? columns - taken - 3 : 0;
    const int bar = room < BAR_LEAST ? 0 : room < BAR_MOST ? (int)room : BAR_MOST;
    const int full = (int)(part * bar);
    fprintf(stderr, "\r%.*s ", (int)name, p->what);
    if (bar)
        fprintf(stderr, "[%.*s%*s] ", full, "##############################", bar - full, "");
    fprintf(stderr, "%s\033[K", text);
    p->drawn = true;
}

void progress_update(struct progress *p, uint64_t done, uint64_t total)
{
    const double now = cli_now(), seconds = now - p->start;
    figures f;
    char text[sizeof(figures) + 16];
    if (!p->what || seconds < 1 || total == 0 || now - p->last < (p->terminal ? 0.1 : 5))
        return;
    p->last = now;
    compute(f, seconds, done, total);
    if (p->terminal) {
        draw(p, done < total ? (double)done / (double)total : 1, f);
    } else {
        join(f, SIZE_MAX, text, sizeof text);
        fprintf(stderr, "%s: %s\n", p->what, text + strspn(text, " "));
    }
    fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->drawn)
        fprintf(stderr, "\r\033[K");
    p->drawn = false;
}
