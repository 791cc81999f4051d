#include "mount-helpers/cli/progress.h"
#include "mount-helpers/cli/cli.h"
#include <stdio.h>
#include <unistd.h>

#define BAR_COLUMNS 30

void progress_start(struct progress *p, const char *what)
{
    *p = (struct progress){.what = what, .start = cli_now(), .terminal = isatty(STDERR_FILENO)};
    p->last = p->start;
}

void progress_update(struct progress *p, uint64_t done, uint64_t total)
{
    double now = cli_now();
    if (!p->what || now - p->start < 1 || total == 0 || now - p->last < (p->terminal ? 0.1 : 5))
        return;
    p->last = now;
    double part = (double)done / (double)total;
    if (part > 1)
        part = 1;
    const char *rate = cli_rate(done, now - p->start);
    if (p->terminal) {
        int full = (int)(part * BAR_COLUMNS);
        fprintf(stderr, "\r%s [%.*s%*s] %3.0f %%  %s of %s  %s \033[K", p->what, full,
                "##############################", BAR_COLUMNS - full, "", part * 100, cli_size(done),
                cli_size(total), rate);
        p->drawn = true;
    } else {
        fprintf(stderr, "%s: %.0f %%, %s of %s, %s\n", p->what, part * 100, cli_size(done), cli_size(total),
                rate);
    }
    fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->drawn)
        fprintf(stderr, "\r\033[K");
    p->drawn = false;
}
