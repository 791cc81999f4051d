#include "transports/base/expression.h"
#include "transports/base/text.h"
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MOST WS_EXPRESSION_CHARS

/* --- what it stands for --- */

/* A group that is open, up to here. Its size is in characters, groups and alternatives, with repeats written out. */
struct group {
    uint64_t size, last;    /* last: of what a repeat would be of */
    bool last_may_be_empty; /* may that stand for nothing? */
    bool any_may_be_empty;  /* may one of the alternatives that are complete? */
    uint64_t needed;        /* parts of this alternative that stand for something */
};

struct outline {
    bool is_too_large, repeats_empty;
    size_t depth;
    struct group groups[MOST + 1]; /* the outermost first */
};

static bool is_refused(const struct outline *o)
{
    return o->is_too_large || o->repeats_empty;
}

static void add(struct outline *o, uint64_t size, bool may_be_empty)
{
    struct group *g = &o->groups[o->depth];
    o->is_too_large = o->is_too_large || size > MOST - g->size;
    if (is_refused(o))
        return;
    g->size += size;
    g->last = size;
    g->last_may_be_empty = may_be_empty;
    g->needed += !may_be_empty;
}

static void repeat(struct outline *o, uint64_t least, uint64_t copies)
{
    struct group *g = &o->groups[o->depth];
    const uint64_t size = g->last;
    if (size == 0)
        return; /* of nothing: the C library refuses it */
    o->repeats_empty = o->repeats_empty || g->last_may_be_empty;
    if (is_refused(o))
        return;
    g->size -= size;
    g->needed--;
    add(o, copies > MOST ? MOST + 1 : size * (copies ? copies : 1), least == 0);
}

static void add_alternative(struct outline *o)
{
    struct group *g = &o->groups[o->depth];
    add(o, 1, true);
    g->any_may_be_empty = g->any_may_be_empty || g->needed == 0;
    g->needed = 0;
    g->last = 0;
}

static void open_group(struct outline *o)
{
    o->is_too_large = o->is_too_large || o->depth == MOST;
    if (!is_refused(o))
        o->groups[++o->depth] = (struct group){0};
}

/* A bracket that closes nothing stands for itself. */
static void close_group(struct outline *o)
{
    if (o->depth == 0) {
        add(o, 1, false);
        return;
    }
    const struct group *g = &o->groups[o->depth--];
    add(o, g->size + 1, g->any_may_be_empty || g->needed == 0);
}

/* Behind the bracket that ends a set of characters, whose first is at p. */
static const char *skip_set(const char *p)
{
    p += *p == '^';
    p += *p == ']';
    while (*p && *p != ']') {
        const char *end = NULL;
        if (*p == '[' && p[1] && strchr(":.=", p[1])) {
            const char close[] = {p[1], ']', '\0'};
            end = strstr(p + 2, close);
        }
        p = end ? end + 2 : p + 1;
    }
    return p + (*p == ']');
}

/* {n}, {n,}, {,m} or {n,m}. NULL: the brace stands for itself. */
static const char *read_repeats(const char *p, uint64_t *least, uint64_t *copies)
{
    uint64_t most;
    bool any = ws_text_digits(&p, least) == 0;
    if (!any)
        *least = 0;
    most = *least;
    if (*p == ',') {
        p++;
        if (ws_text_digits(&p, &most) == 0)
            any = true;
        else
            most = *least + 1; /* as often as that, and a star */
    }
    *copies = most > *least ? most : *least;
    return any && *p == '}' ? p + 1 : NULL;
}

/* A character, or one that is meant by its backslash; places between characters stand for nothing. Returns what is behind it. */
static const char *read_character(const char *p, struct outline *o)
{
    const bool is_escaped = *p == '\\' && p[1];
    add(o, 1, strchr(is_escaped ? "<>bB`'" : "^$", p[is_escaped]) != NULL);
    return p + 1 + is_escaped;
}

/* Returns what is behind it. */
static const char *read_part(const char *p, struct outline *o)
{
    uint64_t least, copies;
    const char *end;
    switch (*p) {
    case '(':
        open_group(o);
        break;
    case ')':
        close_group(o);
        break;
    case '|':
        add_alternative(o);
        break;
    case '*':
    case '?':
        repeat(o, 0, 1);
        break;
    case '+':
        repeat(o, 1, 2);
        break;
    case '[':
        add(o, 1, false);
        return skip_set(p + 1);
    case '{':
        end = read_repeats(p + 1, &least, &copies);
        if (!end)
            return read_character(p, o);
        repeat(o, least, copies);
        return end;
    default:
        return read_character(p, o);
    }
    return p + 1;
}

/* -EINVAL: it cannot be taken. What else is wrong with it the C library says. */
static int check_outline(const char *text, struct ws_error *err)
{
    struct outline o = {0};
    for (const char *p = text; *p && !is_refused(&o); p = read_part(p, &o))
        if (*p == '\\' && p[1] >= '1' && p[1] <= '9')
            return ws_error_set(err, EINVAL,
                                "refers to a group (\\%c), which may take for ever to match: write it twice",
                                p[1]);
    if (o.repeats_empty)
        return ws_error_set(err, EINVAL,
                            "repeats what may be empty already, which may take for ever to match: write (a)* "
                            "for (a*)*, (a*)+ and (a?)*");
    return o.is_too_large
               ? ws_error_set(err, EINVAL,
                              "is too large: with its repeats written out, as in aa* for a+, it has "
                              "more than %d characters",
                              MOST)
               : 0;
}

/* --- its use --- */

int ws_expression_compile(const char *text, regex_t *out, struct ws_error *err)
{
    char whole[MOST + 8], why[160];
    if (strlen(text) > MOST)
        return ws_error_set(err, EINVAL, "has more than %d characters", MOST);
    if (check_outline(text, err) < 0)
        return -err->code;
    snprintf(whole, sizeof(whole), "^(%s)", text);
    const int rc = regcomp(out, whole, REG_EXTENDED | REG_NOSUB);
    if (rc == 0)
        return 0;
    regerror(rc, out, why, sizeof(why));
    return ws_error_set(err, EINVAL, "is no regular expression (POSIX extended): %s", why);
}

bool ws_expression_matches(const regex_t *e, const char *name)
{
    return regexec(e, name, 0, NULL, 0) == 0;
}
