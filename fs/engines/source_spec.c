#include "fs/engines/source_spec.h"
#include "transports/access/bearer.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define TOKEN_FILE ";token-file="

/* The length of the URL in it; paths of folders and sockets may hold any character. */
static size_t url_length(const char *text)
{
    const bool http = strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0;
    return http ? strcspn(text, ";") : strlen(text);
}

int ws_source_spec_parse(const char *text, struct ws_source_spec *out, struct ws_error *err)
{
    const size_t n = url_length(text);
    const char *rest = text + n;
    if (n > WS_MAX_URL)
        return ws_error_set(err, EINVAL, "a source is longer than %d bytes", WS_MAX_URL);
    if (*rest && (strncmp(rest, TOKEN_FILE, strlen(TOKEN_FILE)) != 0 || rest[strlen(TOKEN_FILE)] != '/' ||
                  strchr(rest + 1, ';')))
        return ws_error_set(
            err, EINVAL, "behind a source only ;token-file=/PATH may stand, an absolute path, not '%.100s'",
            rest);
    snprintf(out->url, sizeof(out->url), "%.*s", (int)n, text);
    out->token_file = *rest ? rest + strlen(TOKEN_FILE) : NULL;
    return 0;
}

int ws_source_spec_token(const struct ws_source_spec *s, const char *below, char **out, struct ws_error *err)
{
    *out = NULL;
    const int rc = s->token_file ? ws_token_read(s->token_file, below, out, err) : 0;
    return rc < 0 ? ws_error_prefix(err, "%.300s", s->url) : 0;
}

bool ws_source_spec_is_same(const char *text, const char *other)
{
    const size_t n = url_length(text);
    return n == url_length(other) && memcmp(text, other, n) == 0;
}
