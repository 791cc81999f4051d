/* wsync events: what happened on a mount or to one of its models, as the file `events` says (fs/engines/event_log.h). */
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/mounts.h"
#include "mount-helpers/cli/terminal.h"
#include "transports/base/text.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_LINES 20
#define POLL_MS       500
#define TIME_COLUMNS  23
#define EVENT_COLUMNS 14 /* of the longest word but few */

static const struct cli_option events_options[] = {
    {"mount", 'd', "DIR", "the mount; default $WSYNC_MOUNT, or the only one on this machine"},
    {"lines", 'n', "N", "the last N events; default 20, 0 for all", 0, UINT32_MAX},
    {"follow", 'f', NULL, "go on with what happens, until interrupted"},
    {"raw", 'r', NULL, "the lines of the file as they are"},
    {0},
};

/* Cuts off the text up to the next blank, and gives what is behind it. */
static char *cut_word(char *text)
{
    char *end = text + strcspn(text, " ");
    if (*end)
        *end++ = 0;
    return end;
}

/* Lines come one after the other while events are followed: these columns are fixed. */
static void print_line(const char *time, const char *event, const char *what)
{
    const int n = printf("%-*s  %-*s  ", TIME_COLUMNS, time, EVENT_COLUMNS, event);
    terminal_print(what, (size_t)n, terminal_columns(STDOUT_FILENO));
}

static void print_event(char *line)
{
    char *event = cut_word(line), *what = cut_word(event);
    char *second = strchr(line, 'T'), *fraction = strchr(line, '.'); /* 2026-11-21T07:37:41.123Z */
    if (second)
        *second = ' ';
    if (fraction && strlen(fraction) > 4)
        fraction[4] = 0;
    print_line(line, event, what);
}

/* Prints the whole lines of text from *at on, and moves *at behind them. */
static void print_events(char *text, size_t *at, bool raw)
{
    char *line = text + *at, *end;
    for (; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        ws_text_clean(line);
        if (raw)
            puts(line);
        else
            print_event(line);
    }
    *at = (size_t)(line - text);
    fflush(stdout);
}

/* Where the last n lines begin; 0: all of them. */
static size_t last_lines(const char *text, uint64_t n)
{
    size_t at = strlen(text);
    while (n && at > 0) {
        at--;
        if (at == 0 || text[at - 1] == '\n')
            n--;
    }
    return at;
}

/* Where the text goes on behind the line that was printed last. Its place changes when the older half is dropped. Where
 * it is not there any more, all of the text is news, and what came between cannot be told. */
static size_t new_lines(const char *text, size_t at, const char *last)
{
    const size_t n = strlen(last);
    const char *found = NULL;
    if (at >= n && at <= strlen(text) && !strncmp(text + at - n, last, n))
        return at;
    for (const char *line = text; (line = strstr(line, last)); line++)
        if (line == text || line[-1] == '\n')
            found = line;
    if (!found)
        fprintf(stderr,
                "wsync events: the mount was started anew, or more came than it keeps: some events may "
                "be missing here\n");
    return found ? (size_t)(found - text) + n : 0;
}

/* The line that ends at `at`, with its newline. */
static char *line_before(const char *text, size_t at)
{
    size_t begin = at;
    while (begin > 0 && (begin == at || text[begin - 1] != '\n'))
        begin--;
    return strndup(text + begin, at - begin);
}

static int run_events(const struct cli_args *args)
{
    const char *model, *mount = mounts_pick_model(args, &model);
    const uint64_t lines = cli_u64(args, "lines", DEFAULT_LINES);
    const bool follow = cli_has(args, "follow"), raw = cli_has(args, "raw");
    char *last = NULL; /* that was printed */
    size_t at = 0;
    for (;;) {
        char *text = model ? mounts_read("%s/%s/events", mount, model) : mounts_read("%s/events", mount);
        if (!text) {
            const int code = cli_fail("cannot read %s%s%s/events: %s%s", mount, model ? "/" : "",
                                      model ? model : "", strerror(errno), mounts_hint(errno));
            free(last);
            return code;
        }
        if (!last && !raw)
            print_line("TIME (UTC)", "EVENT", "WHAT");
        at = last ? new_lines(text, at, last) : lines ? last_lines(text, lines) : 0;
        free(last);
        last = line_before(text, strlen(text));
        print_events(text, &at, raw);
        free(text);
        if (!last)
            return cli_fail("no memory for an event");
        if (!follow) {
            free(last);
            return CLI_OK;
        }
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL);
    }
}

const struct cli_command cmd_events = {
    .name = "events",
    .summary = "show what happened on a mount: versions, engines, switches, failures",
    .synopsis = "[OPTIONS] [MODEL]\n[OPTIONS] DIR [MODEL]",
    .description =
        "Prints the newest events of the mount, or of one of its models, oldest first. What the words mean "
        "is said in wsync-control(7). With --raw the lines are those of the mount's file 'events'.",
    .examples = "wsync events\nwsync events actor -n 100\nwsync events --follow --raw | grep failed",
    .options = events_options,
    .max_words = 2,
    .run = run_events,
};
