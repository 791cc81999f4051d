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

/* Does what is before `end`, but for blanks, end with that word? */
static bool ends_with(const char *begin, const char *end, const char *word)
{
    const size_t n = strlen(word);
    while (end > begin && end[-1] == ' ')
        end--;
    return (size_t)(end - begin) >= n && strncasecmp(end - n, word, n) == 0;
}

/* Is the name that ends at `end` the first on its line, as in files of settings? What follows is its value to the line's end. */
static bool is_first_on_line(const char *line, const char *end)
{
    while (*line == ' ' || *line == '\t' || *line == '-')
        line++;
    if (strncmp(line, "export ", 7) == 0)
        line += 7;
    while (line < end && (isalnum((unsigned char)*line) || strchr("_-.", *line)))
        line++;
    return line == end;
}

/* Up to the quote that ends what began with one, a backslash before it being part of the text. */
static size_t quoted_bytes(const char *p, char quote)
{
    size_t n = 0;
    for (; p[n] && p[n] != '\n' && p[n] != quote; n++)
        if (p[n] == '\\' && p[n + 1] && p[n + 1] != '\n')
            n++;
    return n;
}

static unsigned count_quotes(const char *p, const char *end)
{
    unsigned n = 0;
    for (; p < end; p++)
        n += *p == '"' || *p == '\'';
    return n;
}

/* How many bytes at p are secret: behind name=, name:, "name": or --name of a secret, Bearer, or Authorization: Basic. text: the
 * line's begin. */
static size_t value_bytes(const char *text, const char *p)
{
    const char *q = p, *end, *option;
    while (q > text && strchr(" \"'", q[-1]))
        q--;
    bool to_line_end = false;
    if (q > text && (q[-1] == '=' || q[-1] == ':')) {
        end = q - 1;
        while (end > text && strchr(" \"'", end[-1]))
            end--;
        if (!names_secret(text, end))
            return 0;
        to_line_end = is_first_on_line(text, end);
    } else {
        for (option = q; option > text && !isspace((unsigned char)option[-1]) && !strchr("\"'", option[-1]);)
            option--;
        const bool is_option = q < p && strncmp(option, "--", 2) == 0 && names_secret(option, q);
        const bool is_basic = ends_with(text, q, "basic") && ends_with(text, q - 5, "authorization:");
        if (!is_option && !(q < p && (ends_with(text, q, "bearer") || is_basic)))
            return 0;
    }
    if (count_quotes(q, p) >= 2) /* behind an empty value */
        return 0;
    if (p > text && strchr("\"'", p[-1]))
        return quoted_bytes(p, p[-1]);
    if (to_line_end && !strchr("\"'", *p))
        return strcspn(p, "\n");
    size_t n = 0;
    while (!ends_word(p[n]))
        n++;
    return n;
}

/* Of a private key in PEM that begins at p, as far as it goes; cut where it has no end. */
static size_t key_bytes(const char *p)
{
    static const char begin[] = "-----BEGIN ", kind[] = "PRIVATE KEY-----";
    if (strncmp(p, begin, sizeof(begin) - 1) != 0)
        return 0;
    const char *name = memmem(p, strcspn(p, "\n"), kind, sizeof(kind) - 1);
    if (!name)
        return 0;
    const char *end = strstr(name, "-----END "), *last = end ? strstr(end, "KEY-----") : NULL;
    return last ? (size_t)(last - p) + strlen("KEY-----") : strlen(p);
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

/* Of the query of a URL: p is behind a '?' of a word that has :// or begins with /v1/. */
static size_t query_bytes(const char *text, const char *p)
{
    const char *begin = p;
    if (p == text || p[-1] != '?')
        return 0;
    while (begin > text && !ends_word(begin[-1]))
        begin--;
    if (!memmem(begin, (size_t)(p - begin), "://", 3))
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
        if (!n)
            n = key_bytes(p);
        if (!n && p - text >= 3 && strncmp(p - 3, "://", 3) == 0)
            n = user_bytes(p);
        if (!n)
            n = query_bytes(line, p);
        if (!n && p > line && strchr("=: \"'", p[-1]))
            n = value_bytes(line, p);
        if (n) {
            fputs(REMOVED, f);
            for (const char *newline = memrchr(p, '\n', n); newline; newline = NULL)
                line = newline + 1;
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
