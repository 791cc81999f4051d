#include "mount-helpers/cli/redact.h"
#include "mount-helpers/cli/cli.h"
#include "transports/base/vector.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define REMOVED    "[removed]"
#define LINE_BYTES 4096

extern char **environ;

WS_VECTOR(known, char *);

struct redact {
    struct known secrets;
};

static void *must(void *memory)
{
    if (!memory)
        exit(cli_fail("no memory to take secrets out of a text"));
    return memory;
}

struct redact *redact_new(void)
{
    return must(calloc(1, sizeof(struct redact)));
}

void redact_know(struct redact *r, const char *secret)
{
    if (strlen(secret) < REDACT_LEAST_CHARS)
        return;
    if (known_append(&r->secrets, must(strdup(secret))) < 0)
        must(NULL);
}

void redact_know_file(struct redact *r, const char *path)
{
    char line[LINE_BYTES];
    FILE *f = fopen(path, "re");
    if (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\r\n")] = 0;
        redact_know(r, line);
    }
    explicit_bzero(line, sizeof(line));
    if (f)
        fclose(f);
}

/* Does a name that ends at `end` name a secret? */
static bool names_secret(const char *begin, const char *end)
{
    static const char *const ends[] = {"token",      "secret",      "password", "passwd",
                                       "credential", "credentials", "key"};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        const size_t n = strlen(ends[i]);
        if ((size_t)(end - begin) >= n && strncasecmp(end - n, ends[i], n) == 0)
            return true;
    }
    return false;
}

void redact_know_environment(struct redact *r)
{
    for (char **e = environ; *e; e++) {
        const char *equals = strchr(*e, '=');
        if (equals && names_secret(*e, equals))
            redact_know(r, equals + 1);
    }
}

static bool ends_word(char c)
{
    return !c || isspace((unsigned char)c) || strchr("\"'<>,;", c);
}

/* Of the value at p, which has blanks in it where it is quoted. */
static size_t word_bytes(const char *p)
{
    const char quote = p[-1] == '"' || p[-1] == '\'' ? p[-1] : 0;
    size_t n = 0;
    while (quote ? p[n] && p[n] != quote && p[n] != '\n' : !ends_word(p[n]))
        n += quote && p[n] == '\\' && p[n + 1] && p[n + 1] != '\n' ? 2 : 1;
    return n;
}

/* How many bytes at p are secret: behind name=, name: or "name": of a secret, or Bearer. text: its begin, before p. */
static size_t value_bytes(const char *text, const char *p)
{
    const char *q = p, *end;
    while (q > text && strchr(" \"'", q[-1]))
        q--;
    if (q > text && (q[-1] == '=' || q[-1] == ':')) {
        end = q - 1;
        while (end > text && strchr(" \"'", end[-1]))
            end--;
        if (!names_secret(text, end))
            return 0;
    } else if (!(q < p && q - text >= 6 && strncasecmp(q - 6, "bearer", 6) == 0)) {
        return 0;
    }
    return word_bytes(p);
}

/* Of a URL whose :// ends at p: user info. */
static size_t user_bytes(const char *p)
{
    size_t n = 0, at = 0;
    for (; !ends_word(p[n]) && !strchr("/?#", p[n]); n++)
        if (p[n] == '@')
            at = n;
    return at;
}

static size_t known_bytes(const struct redact *r, const char *p)
{
    size_t longest = 0;
    for (size_t i = 0; i < r->secrets.len; i++) {
        const size_t n = strlen(r->secrets.ptr[i]);
        if (n > longest && strncmp(p, r->secrets.ptr[i], n) == 0)
            longest = n;
    }
    return longest;
}

/* Of the query of a URL: p is behind a '?' of a word that has ://. */
static size_t query_bytes(const char *text, const char *p)
{
    const char *begin = p;
    if (p == text || p[-1] != '?')
        return 0;
    while (begin > text && !ends_word(begin[-1]))
        begin--;
    const char *scheme = strstr(begin, "://");
    if (!(scheme && scheme < p))
        return 0;
    size_t n = 0;
    while (!ends_word(p[n]))
        n++;
    return n;
}

char *redact_text(const struct redact *r, const char *text)
{
    char *out = NULL;
    size_t size = 0;
    FILE *f = must(open_memstream(&out, &size));
    const char *line = text; /* a value is on the line of its name */
    for (const char *p = text; *p;) {
        size_t n = known_bytes(r, p);
        if (!n && p - text >= 3 && strncmp(p - 3, "://", 3) == 0)
            n = user_bytes(p);
        if (!n)
            n = query_bytes(line, p);
        if (!n && p > line && strchr("=: \"'", p[-1]))
            n = value_bytes(line, p);
        if (n) {
            fputs(REMOVED, f);
            p += n;
            continue;
        }
        if (*p == '\n')
            line = p + 1;
        fputc(*p++, f);
    }
    if (fclose(f) != 0)
        must(NULL);
    return must(out);
}

void redact_free(struct redact *r)
{
    for (size_t i = 0; i < r->secrets.len; i++) {
        explicit_bzero(r->secrets.ptr[i], strlen(r->secrets.ptr[i]));
        free(r->secrets.ptr[i]);
    }
    known_reset(&r->secrets);
    free(r);
}
