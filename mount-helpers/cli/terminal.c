#include "mount-helpers/cli/terminal.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define LEAST_WORDS 20 /* with fewer columns a text is left to the terminal's own breaks */
#define UNTOLD      80 /* of a terminal that does not know its width */

size_t terminal_columns(int fd)
{
    struct winsize size = {0};
    if (!isatty(fd))
        return 0;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : UNTOLD;
}

static bool begins_letter(char c)
{
    return ((unsigned char)c & 0xC0) != 0x80;
}

size_t terminal_width(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += begins_letter(*text);
    return n;
}

/* Where letter n of a text begins. */
static const char *letter(const char *text, size_t n)
{
    for (; *text; text++)
        if (begins_letter(*text) && n-- == 0)
            break;
    return text;
}

void terminal_fit(const char *text, size_t columns, char *out)
{
    const size_t wide = terminal_width(text);
    if (wide <= columns || columns < 4) {
        strcpy(out, text);
        return;
    }
    const size_t front = (columns - 2) / 2, back = columns - 2 - front;
    const size_t head = (size_t)(letter(text, front) - text);
    memcpy(out, text, head);
    memcpy(out + head, "..", 2);
    strcpy(out + head + 2, letter(text, wide - back));
}

void terminal_print(const char *text, size_t left, size_t end)
{
    const size_t most = end >= left + LEAST_WORDS ? end - left : SIZE_MAX;
    while (terminal_width(text) > most) {
        size_t cut = 0;
        for (size_t i = 0; i <= most && text[i]; i++)
            if (text[i] == ' ')
                cut = i;
        const char *blank =
            cut ? text + cut : strchr(text + 1, ' '); /* a word that does not fit stays whole */
        if (!blank)
            break;
        cut = (size_t)(blank - text);
        printf("%.*s\n%*s", (int)cut, text, (int)left, "");
        text += cut + 1;
    }
    printf("%s\n", text);
}
