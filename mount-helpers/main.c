/* wsync: the command. One table of subcommands; called as mount.wsync it is mount(8)'s helper. */
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/version.h"
#include "transports/http/transfer.h"
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct cli_command *const commands[] = {
    &cmd_agent,  &cmd_publish, &cmd_mount,   &cmd_umount,  &cmd_export, &cmd_ls,
    &cmd_status, &cmd_events,  &cmd_load,    &cmd_release, &cmd_sync,   &cmd_pull,
    &cmd_wait,   &cmd_verify,  &cmd_inspect, &cmd_diff,    &cmd_save,   &cmd_engine,
    &cmd_bench,  &cmd_doctor,  &cmd_key,     &cmd_token,   &cmd_model,  &cmd_topology,
    &cmd_derive, &cmd_share,   &cmd_why,     &cmd_support, NULL,
};

static const struct cli_command *find(const char *name)
{
    if (!strcmp(name, "unmount"))
        name = "umount";
    for (const struct cli_command *const *c = commands; *c; c++)
        if (!strcmp((*c)->name, name))
            return *c;
    return NULL;
}

static int unknown(const char *name)
{
    fprintf(stderr, "wsync: there is no command '%s'; the commands are:", name);
    for (const struct cli_command *const *c = commands; *c; c++)
        fprintf(stderr, " %s", (*c)->name);
    fprintf(stderr, " version help\n");
    return CLI_USAGE;
}

/* help [COMMAND] | help --list | help --man [COMMAND] (the last two are for the build) */
static int help(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    if (word && !strcmp(word, "--list")) {
        for (const struct cli_command *const *c = commands; *c; c++)
            puts((*c)->name);
        return CLI_OK;
    }
    int man = word && !strcmp(word, "--man");
    if (man)
        word = argc > 2 ? argv[2] : NULL;
    const struct cli_command *command = word ? find(word) : NULL;
    if (word && !command)
        return unknown(word);
    if (man && command)
        cli_print_man(command);
    else if (man)
        cli_print_man_overview(commands);
    else if (command)
        cli_print_help(command);
    else
        cli_print_overview(commands);
    return CLI_OK;
}

/* Deltas come and go in pieces of some ten KiB beside scratch memory of some MiB. With glibc's own settings
 * the threshold above which memory is given back grows with the latter, and each thread keeps a heap of its
 * own: a mount of 16 MiB then keeps 100. */
static void keep_memory_small(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, 128 << 10);
    (void)mallopt(M_TRIM_THRESHOLD, 1 << 20);
    (void)mallopt(M_ARENA_MAX, 2);
}

/* Where a standard stream is closed, what is opened first would take its place, and get what is printed. Reading or
 * writing the stream fails as before. */
static void hold_standard_streams(void)
{
    int fd;
    do
        fd = open("/dev/null", O_PATH);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        (void)close(fd);
}

int main(int argc, char **argv)
{
    const char *base = strrchr(argv[0], '/');
    base = base ? base + 1 : argv[0];
    int code;
    (void)signal(SIGCHLD, SIG_DFL); /* who started us may ignore it, and then no child can be waited for */
    hold_standard_streams();
    keep_memory_small();
    ws_http_hide_curl();
    if (!strcmp(base, "mount.wsync") || !strcmp(base, "mount.fuse.wsync")) {
        code = cli_run(&cmd_mount, argc, argv);
    } else if (argc < 2) {
        cli_print_overview(commands);
        code = CLI_USAGE;
    } else if (!strcmp(argv[1], "help") || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        code = help(argc - 1, argv + 1);
    } else if (!strcmp(argv[1], "version") || !strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
        cli_print_version();
        code = CLI_OK;
    } else {
        const struct cli_command *command = find(argv[1]);
        code = command ? cli_run(command, argc - 1, argv + 1) : unknown(argv[1]);
    }
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "wsync: cannot write to standard output\n");
        code = code ? code : CLI_FAILED;
    }
    return code;
}
