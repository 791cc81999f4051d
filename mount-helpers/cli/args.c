/* Args: command lines parsed by a subcommand's option table (getopt_long). */
#include "mount-helpers/cli/cli.h"
#include "transports/base/number.h"
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPTIONS 40
#define MAX_VALUES  256

struct cli_value {
    const char *option;
    const char *text;
};

struct cli_args {
    const struct cli_command *command;
    struct cli_value values[MAX_VALUES];
    size_t n_values;
    char **words;
    size_t n_words;
};

static const struct cli_command *running;

const char *cli_command_name(void)
{
    return running ? running->name : "";
}

static int complain(int code, const char *format, va_list ap)
{
    char text[2048];
    vsnprintf(text, sizeof text, format, ap);
    fprintf(stderr, "wsync%s%s: %s\n", running ? " " : "", running ? running->name : "", text);
    return code;
}

int cli_fail(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int code = complain(CLI_FAILED, format, ap);
    va_end(ap);
    return code;
}

int cli_usage(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    int code = complain(CLI_USAGE, format, ap);
    va_end(ap);
    if (running)
        fprintf(stderr, "Try 'wsync %s --help'.\n", running->name);
    else
        fprintf(stderr, "Try 'wsync help'.\n");
    return code;
}

const char *cli_nth(const struct cli_args *args, const char *option, size_t n)
{
    for (size_t i = 0; i < args->n_values; i++)
        if (!strcmp(args->values[i].option, option) && n-- == 0)
            return args->values[i].text;
    return NULL;
}

const char *cli_get(const struct cli_args *args, const char *option)
{
    const char *last = NULL;
    for (size_t i = 0; i < args->n_values; i++)
        if (!strcmp(args->values[i].option, option))
            last = args->values[i].text;
    return last;
}

bool cli_has(const struct cli_args *args, const char *option)
{
    return cli_get(args, option) != NULL;
}

const char *cli_word(const struct cli_args *args, size_t n)
{
    return n < args->n_words ? args->words[n] : NULL;
}

size_t cli_words(const struct cli_args *args)
{
    return args->n_words;
}

/* Is the text a whole number that the option takes? Else the exit code, with its sentence. */
static int check_number(const struct cli_option *o, const char *text)
{
    char *end;
    errno = 0;
    uint64_t v = strtoull(text, &end, 10);
    if (end == text || *end || !isdigit((unsigned char)text[0]))
        return cli_usage("--%s: '%s' is not a whole number", o->name, text);
    if (errno || v < o->min || v > o->max)
        return cli_usage("--%s is %" PRIu64 " to %" PRIu64 ", not %s", o->name, o->min, o->max, text);
    return CLI_OK;
}

uint64_t cli_u64(const struct cli_args *args, const char *option, uint64_t fallback)
{
    const char *text = cli_get(args, option); /* checked when it was parsed */
    return text ? strtoull(text, NULL, 10) : fallback;
}

uint64_t cli_bytes(const struct cli_args *args, const char *option, uint64_t fallback)
{
    const char *text = cli_get(args, option);
    if (!text)
        return fallback;
    uint64_t bytes;
    if (ws_number_size(text, &bytes) < 0)
        exit(cli_usage("--%s: '%s' is not a size; write bytes, or 512M, 80G", option, text));
    return bytes;
}

static int reject(const struct cli_command *command, int argc, char **argv, int index)
{
    (void)command;
    const char *text = index > 0 && index < argc ? argv[index] : "?";
    return cli_usage("unknown option, or an option without its value: '%s'", text);
}

int cli_run(const struct cli_command *command, int argc, char **argv)
{
    struct option longs[MAX_OPTIONS + 2];
    char shorts[2 * MAX_OPTIONS + 4] = ":h";
    size_t n = 0, s = strlen(shorts);
    running = command;
    for (const struct cli_option *o = command->options; o && o->name; o++, n++) {
        assert(n < MAX_OPTIONS);
        longs[n] = (struct option){o->name, o->arg ? required_argument : no_argument, NULL, 256 + (int)n};
        if (o->letter) {
            shorts[s++] = o->letter;
            if (o->arg)
                shorts[s++] = ':';
        }
    }
    shorts[s] = 0;
    longs[n] = (struct option){"help", no_argument, NULL, 'h'};
    longs[n + 1] = (struct option){0};

    static struct cli_args args; /* one command a process; words point into argv */
    args = (struct cli_args){.command = command};
    opterr = 0;
    optind = 1;
    for (int c; (c = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        if (c == 'h') {
            cli_print_help(command);
            return CLI_OK;
        }
        if (c == '?' || c == ':')
            return reject(command, argc, argv, optind - 1);
        const struct cli_option *o = command->options;
        assert(o); /* getopt found one of them */
        if (c >= 256)
            o += c - 256;
        else
            while (o->letter != c)
                o++;
        if (args.n_values == MAX_VALUES)
            return cli_usage("more than %d options", MAX_VALUES);
        int code = o->max ? check_number(o, optarg) : CLI_OK;
        if (code != CLI_OK)
            return code;
        args.values[args.n_values++] = (struct cli_value){o->name, o->arg ? optarg : ""};
    }
    args.words = argv + optind;
    args.n_words = (size_t)(argc - optind);
    if (args.n_words < command->min_words)
        return cli_usage("something is missing; usage: wsync %s %s", command->name, command->synopsis);
    if (args.n_words > command->max_words)
        return cli_usage("one argument too many: '%s'", args.words[command->max_words]);
    return command->run(&args);
}
