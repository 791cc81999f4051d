#include "fs/token.h"
#include "transports/below.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int ws_token_read(const char *path, const char *below, char **out, struct ws_error *err)
{
    char line[4096] = "";
    struct stat st;
    int fd = ws_below_open(below, path, false, &st, err);
    if (fd < 0)
        return below ? fd : ws_error_prefix(err, "cannot read the token file");
    FILE *f = fdopen(fd, "r");
    if (!f) {
        close(fd);
        return ws_error_set(err, ENOMEM, "no memory for a token");
    }
    if (!fgets(line, sizeof(line), f))
        line[0] = 0;
    const int next = strchr(line, '\n') ? EOF : fgetc(f);
    const bool is_cut = next != EOF && next != '\n' && next != '\r';
    int code = ferror(f) ? errno : 0;
    fclose(f);
    if (is_cut) {
        explicit_bzero(line, sizeof(line));
        return ws_error_set(err, E2BIG, "the first line of the token file %s is longer than %zu bytes", path,
                            sizeof(line) - 1);
    }
    if (code)
        return ws_error_set(err, code, "cannot read the token file %s: %s", path, strerror(code));
    line[strcspn(line, "\r\n")] = 0;
    *out = line[0] ? strdup(line) : NULL;
    explicit_bzero(line, sizeof(line));
    return *out ? 0 : ws_error_set(err, EINVAL, "the token file %s is empty", path);
}
