#include "transports/access/token_table.h"
#include "transports/base/state_file.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOST_WORDS 4

struct word {
    const char *text;
    size_t n;
};

static size_t split(const char *line, size_t n, struct word out[MOST_WORDS + 1])
{
    size_t words = 0;
    for (size_t i = 0; i < n && words <= MOST_WORDS;) {
        while (i < n && (line[i] == ' ' || line[i] == '\t' || line[i] == '\r'))
            i++;
        if (i == n || line[i] == '#')
            break;
        const size_t begin = i;
        while (i < n && line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            i++;
        out[words++] = (struct word){line + begin, i - begin};
    }
    return words;
}

static int parse_line(const struct word *w, size_t n, struct ws_token_line *out, struct ws_error *err)
{
    const struct word hash = w[n - 1];
    *out = (struct ws_token_line){0};
    if (n < 3 || n > MOST_WORDS)
        return ws_error_set(err, EINVAL, "a line is NAME ROLES [MODELS] HASH");
    if (!ws_identity_is_name(w[0].text, w[0].n))
        return ws_error_set(err, EINVAL, "the name is not " WS_IDENTITY_RULE);
    if (n == MOST_WORDS && !ws_identity_are_models(w[2].text, w[2].n))
        return ws_error_set(err, EINVAL, "the models of %.*s are not patterns such as actor*,critic",
                            (int)w[0].n, w[0].text);
    out->has_hash = hash.n != 1 || hash.text[0] != '-';
    if (out->has_hash && !ws_token_hash_parse(hash.text, hash.n, &out->hash))
        return ws_error_set(err, EINVAL, "%.*s ends in no hash (blake2b: and 64 hex digits, or -)",
                            (int)w[0].n, w[0].text);
    memcpy(out->identity.name, w[0].text, w[0].n);
    if (n == MOST_WORDS)
        memcpy(out->identity.models, w[2].text, w[2].n);
    return ws_roles_parse(w[1].text, w[1].n, &out->identity.roles, err);
}

static int order(const void *a, const void *b)
{
    const struct ws_token_line *x = a, *y = b;
    if (x->has_hash != y->has_hash)
        return x->has_hash ? -1 : 1;
    return memcmp(x->hash.bytes, y->hash.bytes, sizeof(x->hash.bytes));
}

/* One hash is one identity. */
static int check_hashes(const struct ws_token_table *t, const char *path, struct ws_error *err)
{
    for (size_t i = 1; i < t->lines.len; i++) {
        const struct ws_token_line *a = &t->lines.ptr[i - 1], *b = &t->lines.ptr[i];
        if (a->has_hash && b->has_hash && ws_token_hash_equal(&a->hash, &b->hash))
            return ws_error_set(err, EINVAL,
                                "the tokens file %.200s, lines %u and %u: %s and %s have the same hash", path,
                                a->number, b->number, a->identity.name, b->identity.name);
    }
    return 0;
}

/* By name, and then as they stand in the file. */
static int order_by_name(const void *a, const void *b)
{
    const struct ws_token_line *x = *(const struct ws_token_line *const *)a,
                               *y = *(const struct ws_token_line *const *)b;
    const int by_name = strcmp(x->identity.name, y->identity.name);
    return by_name ? by_name : (x->number > y->number) - (x->number < y->number);
}

/* A certificate's name is of all lines of that name: they must not differ in what it may do. */
static int check_names(const struct ws_token_table *t, const char *path, struct ws_error *err)
{
    const struct ws_token_line **by_name = calloc(t->lines.len + 1, sizeof(const struct ws_token_line *));
    int rc = 0;
    if (!by_name)
        return ws_error_set(err, ENOMEM, "no memory for the tokens file %.200s", path);
    for (size_t i = 0; i < t->lines.len; i++)
        by_name[i] = &t->lines.ptr[i];
    qsort(by_name, t->lines.len, sizeof(*by_name), order_by_name);
    for (size_t i = 1; i < t->lines.len && rc == 0; i++) {
        const struct ws_token_line *a = by_name[i - 1], *b = by_name[i];
        if (strcmp(a->identity.name, b->identity.name) == 0 &&
            (a->identity.roles != b->identity.roles || strcmp(a->identity.models, b->identity.models) != 0))
            rc = ws_error_set(
                err, EINVAL,
                "the tokens file %.200s, lines %u and %u: both are of %s, and differ in roles or models; "
                "a name has the same in all its lines",
                path, a->number, b->number, a->identity.name);
    }
    free(by_name);
    return rc;
}

int ws_token_table_parse(struct ws_token_table *out, const char *path, const char *text, size_t n,
                         struct ws_error *err)
{
    unsigned number = 0;
    int rc = 0;
    *out = (struct ws_token_table){0};
    for (size_t at = 0; rc == 0 && at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t length = end ? (size_t)(end - text) - at : n - at;
        struct word words[MOST_WORDS + 1];
        const size_t n_words = split(text + at, length, words);
        at += length + 1;
        number++;
        if (n_words == 0)
            continue;
        struct ws_token_line line;
        rc = parse_line(words, n_words, &line, err);
        line.number = number;
        if (rc == 0 && (rc = ws_token_lines_append_most(&out->lines, line, WS_MAX_TOKENS)) < 0)
            (void)ws_error_set(err, -rc, rc == -E2BIG ? "it has more than %d tokens" : "no memory",
                               WS_MAX_TOKENS);
        if (rc < 0)
            ws_error_prefix(err, "the tokens file %.200s, line %u", path, number);
    }
    if (rc == 0 && out->lines.len)
        qsort(out->lines.ptr, out->lines.len, sizeof(*out->lines.ptr), order);
    if (rc == 0)
        rc = check_hashes(out, path, err);
    if (rc == 0)
        rc = check_names(out, path, err);
    if (rc < 0)
        ws_token_table_clear(out);
    return rc;
}

int ws_token_table_read(struct ws_token_table *out, const char *path, struct ws_error *err)
{
    struct stat st;
    char *text = NULL;
    size_t n = 0;
    *out = (struct ws_token_table){0};
    if (stat(path, &st) != 0)
        return ws_error_set(err, errno, "cannot read the tokens file %s: %s", path, strerror(errno));
    if (st.st_mode & S_IWOTH)
        return ws_error_set(err, EPERM, "every account may write the tokens file %s: chmod o-w it", path);
    int rc = ws_state_file_read(path, &text, &n, err);
    if (rc == 0 && !text)
        rc = ws_error_set(err, ENOENT, "cannot read the tokens file %s: %s", path, strerror(ENOENT));
    if (rc == 0)
        rc = ws_token_table_parse(out, path, text, n, err);
    free(text);
    return rc;
}

void ws_token_table_clear(struct ws_token_table *t)
{
    ws_token_lines_reset(&t->lines);
}

const struct ws_token_line *ws_token_table_by_hash(const struct ws_token_table *t,
                                                   const struct ws_token_hash *hash)
{
    const struct ws_token_line key = {.has_hash = true, .hash = *hash};
    if (t->lines.len == 0) /* of a hash the time tells something, but nothing that leads to the secret */
        return NULL;
    return bsearch(&key, t->lines.ptr, t->lines.len, sizeof(*t->lines.ptr), order);
}

const struct ws_token_line *ws_token_table_by_name(const struct ws_token_table *t, const char *name)
{
    for (size_t i = 0; i < t->lines.len; i++)
        if (strcmp(t->lines.ptr[i].identity.name, name) == 0)
            return &t->lines.ptr[i];
    return NULL;
}
