/* Progress: one line that says how far a long piece of work is. On a terminal a bar that is drawn again in place and fits
 * the terminal's width; elsewhere a plain line every few seconds. Nothing is printed for work that takes less than a second. */
#ifndef WS_MOUNT_HELPERS_CLI_PROGRESS_H
#define WS_MOUNT_HELPERS_CLI_PROGRESS_H
#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; /* "publishing actor/2"; must outlive the progress; NULL: nothing is shown */
    double start, last;
    bool drawn, terminal;
};

void progress_start(struct progress *p, const char *what);
void progress_update(struct progress *p, uint64_t done_bytes, uint64_t total_bytes);
void progress_end(struct progress *p); /* clears the bar */

#endif
