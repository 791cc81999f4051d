/* Terminal: how wide it is, and how wide a text is on it. */
#ifndef WS_MOUNT_HELPERS_CLI_TERMINAL_H
#define WS_MOUNT_HELPERS_CLI_TERMINAL_H
#include <stddef.h>

/* Columns of the terminal that fd is; 0: it is none, and lines may have any length. */
size_t terminal_columns(int fd);
/* Columns that a UTF-8 text takes: a letter is one. */
size_t terminal_width(const char *text);
/* The text in so many columns at most: where it is wider, its middle becomes "..". out holds every byte of text. */
void terminal_fit(const char *text, size_t columns, char *out);
/* Prints a text from column `left` on, where the cursor is, and its line's end. Broken between words so that it ends before column
 * `end`; end 0: not broken. */
void terminal_print(const char *text, size_t left, size_t end);

#endif
