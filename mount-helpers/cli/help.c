/* Help: --help and the manual pages, both from the commands' table entries. */
#include "mount-helpers/cli/cli.h"
#include <stdio.h>
#include <string.h>

#define TEXT_COLUMNS 92

/* Prints text wrapped at TEXT_COLUMNS behind `indent` spaces; the first line starts where we are. */
static void print_wrapped(const char *text, int indent)
{
    int column = indent;
    while (*text) {
        size_t word = strcspn(text, " \n");
        if (column > indent && column + 1 + (int)word > TEXT_COLUMNS) {
            printf("\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            putchar(' ');
            column++;
        }
        printf("%.*s", (int)word, text);
        column += (int)word;
        text += word;
        if (text[0] == '\n' && text[1] == '\n') {
            printf("\n\n%*s", indent, "");
            column = indent;
        }
        text += strspn(text, " \n");
    }
    putchar('\n');
}

static void print_lines(const char *text, const char *prefix)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        printf("%s%.*s\n", prefix, (int)n, text);
        text += n + (text[n] == '\n');
    }
}

void cli_print_help(const struct cli_command *command)
{
    char prefix[64];
    printf("wsync %s: %s\n\nUsage:\n", command->name, command->summary);
    snprintf(prefix, sizeof prefix, "  wsync %s ", command->name);
    print_lines(command->synopsis, prefix);
    putchar('\n');
    print_wrapped(command->description, 0);
    if (command->options && command->options->name)
        printf("\nOptions:\n");
    for (const struct cli_option *o = command->options; o && o->name; o++) {
        char head[80];
        snprintf(head, sizeof head, "%c%c%s --%s%s%s", o->letter ? '-' : ' ', o->letter ? o->letter : ' ',
                 o->letter ? "," : " ", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
        printf("  %-28s ", head);
        if (strlen(head) > 28)
            printf("\n%31s", "");
        print_wrapped(o->help, 31);
    }
    if (command->examples) {
        printf("\nExamples:\n");
        print_lines(command->examples, "  ");
    }
}

void cli_print_overview(const struct cli_command *const *commands)
{
    printf("wsync: the weights of a training run as files: /wsync/MODEL/VERSION/model.safetensors\n\n"
           "Usage:\n  wsync COMMAND [OPTIONS] [ARGUMENTS]\n\nCommands:\n");
    for (const struct cli_command *const *c = commands; *c; c++)
        printf("  %-9s %s\n", (*c)->name, (*c)->summary);
    printf("  %-9s %s\n  %-9s %s\n\n", "version", "print the version and how reads can be served", "help",
           "print this, or the help of one command: wsync help COMMAND");
    printf("Every command has --help and a manual page (man wsync-COMMAND).\n"
           "Environment: WSYNC_AGENT and WSYNC_MOUNT are the defaults of --agent and --mount;\n"
           "WSYNC_LOG=error|warn|info|debug sets what is logged.\n");
}

/* Text as roff: backslashes and leading dots escaped, '-' kept copyable. */
static void print_roff(const char *text)
{
    for (int start = 1; *text; text++) {
        if (start && (*text == '.' || *text == '\''))
            printf("\\&");
        start = *text == '\n';
        if (*text == '\\')
            printf("\\e");
        else if (*text == '-')
            printf("\\-");
        else if (*text == '\n' && text[1] == '\n') {
            printf("\n.PP\n");
            text++;
            start = 1;
        } else
            putchar(*text);
    }
    putchar('\n');
}

void cli_print_man_overview(const struct cli_command *const *commands)
{
    printf(".TH WSYNC 1 \"\" \"wsync\" \"wsync\"\n.SH NAME\nwsync \\- the weights of a training run as "
           "files\n.SH SYNOPSIS\n.B wsync\n.I COMMAND\n[OPTIONS] [ARGUMENTS]\n.SH COMMANDS\n");
    for (const struct cli_command *const *c = commands; *c; c++) {
        printf(".TP\n.BR wsync\\-%s (1)\n", (*c)->name);
        print_roff((*c)->summary);
    }
    printf(".SH ENVIRONMENT\n.TP\nWSYNC_AGENT, WSYNC_MOUNT\ndefaults of \\-\\-agent and "
           "\\-\\-mount\n.TP\nWSYNC_LOG\nerror, warn, info (the default) or debug\n.SH SEE ALSO\n"
           ".BR wsync (7)\n");
}

void cli_print_man(const struct cli_command *command)
{
    printf(".TH WSYNC\\-%s 1 \"\" \"wsync\" \"wsync\"\n.SH NAME\nwsync\\-%s \\- ", command->name,
           command->name);
    print_roff(command->summary);
    printf(".SH SYNOPSIS\n.nf\n");
    for (const char *line = command->synopsis; *line;) {
        size_t n = strcspn(line, "\n");
        printf("\\fBwsync %s\\fR %.*s\n", command->name, (int)n, line);
        line += n + (line[n] == '\n');
    }
    printf(".fi\n.SH DESCRIPTION\n");
    print_roff(command->description);
    if (command->options && command->options->name)
        printf(".SH OPTIONS\n");
    for (const struct cli_option *o = command->options; o && o->name; o++) {
        printf(".TP\n.B ");
        if (o->letter)
            printf("\\-%c, ", o->letter);
        printf("\\-\\-%s%s%s\n", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
        print_roff(o->help);
    }
    if (command->examples) {
        printf(".SH EXAMPLES\n.nf\n");
        print_roff(command->examples);
        printf(".fi\n");
    }
    printf(".SH EXIT STATUS\n0: done. 1: it failed, the reason is on standard error. 2: wrong usage.\n");
    if (command->statuses)
        print_roff(command->statuses);
    printf(".SH SEE ALSO\n.BR wsync (1),\n.BR wsync (7)\n");
}
