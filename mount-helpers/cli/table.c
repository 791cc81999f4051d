#include "mount-helpers/cli/table.h"
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/terminal.h"
#include "transports/base/text.h"
#include "transports/base/vector.h"
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GAP       2 /* blanks between columns */
#define LEAST     8 /* minimum width of a column that is narrowed */
#define NOTE_DEEP 4 /* a note below its row */

struct line {
    char **cells; /* n_columns of the table; NULL: the line is a note */
    char *note;
};

struct table {
    const struct table_column *columns;
    size_t n_columns, n;
    unsigned indent;
    struct line *lines;
    size_t *widths;
};

static void *need(void *p)
{
    if (!p)
        exit(cli_fail("no memory for a table"));
    return p;
}

static char *copy(const char *text)
{
    char *out = need(strdup(text && *text ? text : "-"));
    ws_text_clean(out);
    return out;
}

struct table *table_new(const struct table_column *columns, size_t n, unsigned indent)
{
    struct table *t = need(calloc(1, sizeof(*t)));
    *t = (struct table){
        .columns = columns, .n_columns = n, .indent = indent, .widths = need(calloc(n, sizeof(size_t)))};
    for (size_t i = 0; i < n; i++)
        t->widths[i] = terminal_width(columns[i].name);
    return t;
}

static struct line *add(struct table *t)
{
    t->lines = need(ws_vector_room(t->lines, t->n, sizeof(*t->lines)));
    t->lines[t->n] = (struct line){0};
    return &t->lines[t->n++];
}

void table_row(struct table *t, const char *const cells[])
{
    struct line *l = add(t);
    l->cells = need(calloc(t->n_columns, sizeof(char *)));
    for (size_t i = 0; i < t->n_columns; i++) {
        l->cells[i] = copy(cells[i]);
        const size_t wide = terminal_width(l->cells[i]);
        if (wide > t->widths[i])
            t->widths[i] = wide;
    }
}

void table_note(struct table *t, const char *format, ...)
{
    struct line *l = add(t);
    va_list args;
    va_start(args, format);
    const int n = vasprintf(&l->note, format, args);
    va_end(args);
    if (n < 0)
        l->note = need(NULL);
    ws_text_clean(l->note);
}

/* Narrows columns until a row fits the terminal. The last column is broken between words instead. */
static void narrow(struct table *t, size_t end)
{
    size_t total = t->indent;
    for (size_t i = 0; i < t->n_columns; i++)
        total += t->widths[i] + (i ? GAP : 0);
    for (size_t i = 0; i + 1 < t->n_columns && total > end; i++) {
        if (!t->columns[i].gives_way || t->widths[i] <= LEAST)
            continue;
        const size_t spare = t->widths[i] - LEAST, over = total - end;
        t->widths[i] -= over < spare ? over : spare;
        total -= over < spare ? over : spare;
    }
}

static void print_row(const struct table *t, const char *const cells[], size_t end)
{
    size_t at = t->indent;
    printf("%*s", (int)t->indent, "");
    for (size_t i = 0; i + 1 < t->n_columns; i++) {
        const struct table_column *c = &t->columns[i];
        char *shown = need(malloc(strlen(cells[i]) + 3));
        terminal_fit(cells[i], c->gives_way ? t->widths[i] : SIZE_MAX, shown);
        const size_t wide = terminal_width(shown), blanks = wide < t->widths[i] ? t->widths[i] - wide : 0;
        printf("%*s%s%*s", c->right ? (int)blanks : 0, "", shown, (c->right ? 0 : (int)blanks) + GAP, "");
        at += t->widths[i] + GAP;
        free(shown);
    }
    const char *last = cells[t->n_columns - 1];
    const size_t width = t->widths[t->n_columns - 1], wide = terminal_width(last);
    const size_t blanks = t->columns[t->n_columns - 1].right && wide < width ? width - wide : 0;
    printf("%*s", (int)blanks, "");
    terminal_print(last, at + blanks, end);
}

static void free_line(const struct table *t, struct line *l)
{
    for (size_t i = 0; l->cells && i < t->n_columns; i++)
        free(l->cells[i]);
    free(l->cells);
    free(l->note);
}

void table_print(struct table *t)
{
    const size_t end = terminal_columns(STDOUT_FILENO);
    const char **names = need(calloc(t->n_columns, sizeof(char *)));
    for (size_t i = 0; i < t->n_columns; i++)
        names[i] = t->columns[i].name;
    if (end)
        narrow(t, end);
    if (t->n)
        print_row(t, names, end);
    for (size_t k = 0; k < t->n; k++) {
        struct line *l = &t->lines[k];
        if (l->cells) {
            print_row(t, (const char *const *)l->cells, end);
        } else {
            printf("%*s", (int)t->indent + NOTE_DEEP, "");
            terminal_print(l->note, t->indent + NOTE_DEEP, end);
        }
        free_line(t, l);
    }
    free(names);
    free(t->lines);
    free(t->widths);
    free(t);
}
