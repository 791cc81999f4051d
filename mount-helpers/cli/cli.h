/* Cli: the wsync command's frame. A subcommand is one const table entry with its options and its
 * texts; parsing, --help and the manual pages are all made from that entry, so they cannot differ. */
#ifndef WS_MOUNT_HELPERS_CLI_CLI_H
#define WS_MOUNT_HELPERS_CLI_CLI_H
#include "transports/base/error.h"
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLI_OK         0
#define CLI_FAILED     1
#define CLI_USAGE      2
/* Of publish: the version does not follow the newest one. */
#define CLI_NOT_HIGHER 3

/* Tables of options leave out what most options do not have. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
struct cli_option {
    const char *name; /* long name without dashes; NULL ends the table */
    char letter;      /* 0: none */
    const char *arg;  /* placeholder of its value; NULL: a switch */
    const char *help;
    uint64_t min, max; /* of a whole number; max 0: the value is something else */
};

#define CLI_MAX_SECONDS 2000000 /* 23 days: as milliseconds it fits an int */
#define CLI_MAX_THREADS 1024
#define CLI_FOREVER     UINT64_MAX /* for a number of seconds that was not given */

struct cli_args;

struct cli_command {
    const char *name;
    const char *summary;     /* one line */
    const char *synopsis;    /* what follows the name; lines are alternatives */
    const char *description; /* paragraphs, separated by empty lines */
    const char *examples;    /* lines of shell; NULL: none */
    const char *statuses;    /* what an exit status above 2 means, as "3: ..."; NULL: there is none */
    const struct cli_option *options;
    unsigned min_words, max_words;           /* positional arguments */
    int (*run)(const struct cli_args *args); /* returns CLI_* */
};

extern const struct cli_command cmd_agent, cmd_publish, cmd_mount, cmd_umount, cmd_export, cmd_ls, cmd_status,
    cmd_events, cmd_load, cmd_release, cmd_sync, cmd_pull, cmd_wait, cmd_verify, cmd_inspect, cmd_diff,
    cmd_save, cmd_engine, cmd_bench, cmd_doctor, cmd_key, cmd_token, cmd_model, cmd_topology, cmd_derive,
    cmd_why, cmd_support, cmd_share;

/* Last value of an option, or NULL; all values with cli_nth. Switches give "". */
const char *cli_get(const struct cli_args *args, const char *option);
const char *cli_nth(const struct cli_args *args, const char *option, size_t n);
bool cli_has(const struct cli_args *args, const char *option);
const char *cli_word(const struct cli_args *args, size_t n); /* positional, or NULL */
size_t cli_words(const struct cli_args *args);
/* Numbers with a default: cli_run refuses those outside the option's min and max, which must be in its table.
 * Sizes take K M G T; a bad one prints why and exits with CLI_USAGE. */
uint64_t cli_u64(const struct cli_args *args, const char *option, uint64_t fallback);
uint64_t cli_bytes(const struct cli_args *args, const char *option, uint64_t fallback);

const char *cli_command_name(void); /* of the command that runs */
/* "wsync publish: sentence" on stderr; returns CLI_FAILED or CLI_USAGE. */
__attribute__((format(printf, 1, 2))) int cli_fail(const char *format, ...);
__attribute__((format(printf, 1, 2))) int cli_usage(const char *format, ...);
/* First line of a file or pipe without its newline (tokens), in secret memory (secret.h). Exits with a sentence on
 * failure. */
char *cli_read_token(const char *path);
/* Blocks until a signal that ends programs (base/end_signals.h). To be called after cli_block_signals in main thread. */
void cli_block_signals(void);
int cli_wait_signal(void);
/* For a daemon: as many open files as the hard limit allows. */
void cli_allow_descriptors(void);

/* Human figures in static per-thread buffers (four of them in turn). */
const char *cli_size(uint64_t bytes);                 /* "1.19 GB" */
const char *cli_time(double seconds);                 /* "1.25 s", "3 min 20 s" */
const char *cli_rate(uint64_t bytes, double seconds); /* "5.2 GB/s" */
double cli_now(void);                                 /* seconds, monotonic */

/* Parses argv (without the program's name) for a command and runs it; --help is answered here. */
int cli_run(const struct cli_command *command, int argc, char **argv);
/* Help of one command, of all (NULL-terminated); the same as roff manual pages. */
void cli_print_help(const struct cli_command *command);
void cli_print_overview(const struct cli_command *const *commands);
void cli_print_man(const struct cli_command *command);
void cli_print_man_overview(const struct cli_command *const *commands);

#endif
