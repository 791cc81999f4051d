/* Table: rows for people, in columns as wide as their widest cell. On a terminal the table keeps to the terminal's width: the cells of
 * columns that give way are cut in their middle, the last column and notes are broken between words. Into a file or a pipe nothing is
 * cut or broken. */
#ifndef WS_MOUNT_HELPERS_CLI_TABLE_H
#define WS_MOUNT_HELPERS_CLI_TABLE_H
#include <stdbool.h>
#include <stddef.h>

struct table_column {
    const char *name; /* its heading */
    bool right;       /* figures: aligned on the right */
    bool gives_way;   /* names and addresses: cut where the terminal is narrow */
};

struct table;

/* columns must outlive the table. Exits with a sentence when there is no memory, as all of these do. */
struct table *table_new(const struct table_column *columns, size_t n, unsigned indent);
/* Adds a row of n cells, which are copied and made printable; NULL or "": "-". */
void table_row(struct table *t, const char *const cells[]);
/* Adds a line below the last row, indented under it: what went wrong with it, say. */
__attribute__((format(printf, 2, 3))) void table_note(struct table *t, const char *format, ...);
/* Prints the headings and all rows to standard output, or nothing where there is no row, and frees the table. */
void table_print(struct table *t);

#endif
