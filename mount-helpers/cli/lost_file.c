#include "mount-helpers/cli/lost_file.h"
#include "mount-helpers/cli/cli.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char line[512]; /* written before the handler is there, read by it */

static void on_bus_error(int sig)
{
    static atomic_flag said;
    (void)sig;
    while (atomic_flag_test_and_set(&said)) /* another thread met it first, and ends them all */
        pause();
    (void)!write(STDERR_FILENO, line, strlen(line));
    _exit(CLI_FAILED);
}

void cli_lost_file_says(const char *sentence)
{
    snprintf(line, sizeof line, "wsync %s: %s\n", cli_command_name(), sentence);
    signal(SIGBUS, on_bus_error);
}
