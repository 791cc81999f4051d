#include "transports/format/need.h"
#include "transports/base/expression.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN         "%.160s"
#define PATTERN_CHARS WS_EXPRESSION_CHARS
#define EXPERTS       ".experts."

struct pattern {
    char *text; /* of the need's words */
    enum { GLOB, EXPRESSION, RANK } kind;
    bool is_compiled;
    regex_t expression;
    uint64_t rank, size;
};

struct ws_need {
    char *text, *words;
    size_t n;
    struct pattern patterns[WS_MAX_NEED_PATTERNS];
};

/* --- reading --- */

static int compile(struct pattern *p, struct ws_error *err)
{
    struct ws_error why;
    const int rc = ws_expression_compile(p->text + strlen("re:"), &p->expression, &why);

    p->is_compiled = rc == 0;
    return rc < 0 ? ws_error_set(err, -rc, "'" SHOWN "' %s", p->text, why.text) : 0;
}

static int read_rank(struct pattern *p, struct ws_error *err)
{
    const char *at = p->text + strlen("ep:");

    if (ws_text_digits(&at, &p->rank) == 0 && *at++ == '/' && ws_text_digits(&at, &p->size) == 0 && !*at &&
        p->rank < p->size)
        return 0;
    return ws_error_set(
        err, EINVAL, "'" SHOWN "' is no rank: write ep:RANK/SIZE, with ranks from 0 on, as ep:0/16", p->text);
}

static int read_pattern(struct pattern *p, struct ws_error *err)
{
    if (!*p->text || strcmp(p->text, "re:") == 0) /* which would match every name */
        return ws_error_set(err, EINVAL, "a pattern is empty");
    if (strlen(p->text) > PATTERN_CHARS)
        return ws_error_set(err, EINVAL, "'" SHOWN "...' has more than %d characters", p->text,
                            PATTERN_CHARS);
    if (strncmp(p->text, "re:", 3) == 0) {
        p->kind = EXPRESSION;
        return compile(p, err);
    }
    if (strncmp(p->text, "ep:", 3) == 0) {
        p->kind = RANK;
        return read_rank(p, err);
    }
    p->kind = GLOB;
    return 0;
}

int ws_need_parse(const char *text, struct ws_need **out, struct ws_error *err)
{
    struct ws_need *need = calloc(1, sizeof(*need));
    int rc = 0;

    *out = NULL;
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) {
            free(need);
            return ws_error_set(err, EINVAL, "patterns have no control characters");
        }
    if (need) {
        need->text = strdup(text);
        need->words = strdup(text);
    }
    if (!need || !need->text || !need->words)
        rc = ws_error_set(err, ENOMEM, "no memory for patterns");
    for (char *rest = rc == 0 ? need->words : NULL, *word; rc == 0 && (word = strsep(&rest, ";"));) {
        if (need->n == WS_MAX_NEED_PATTERNS) {
            rc = ws_error_set(err, E2BIG, "there may be %d patterns", WS_MAX_NEED_PATTERNS);
            break;
        }
        need->patterns[need->n].text = word;
        rc = read_pattern(&need->patterns[need->n++], err);
    }
    if (rc == 0)
        *out = need;
    else
        ws_need_free(need);
    return rc;
}

void ws_need_free(struct ws_need *n)
{
    if (!n)
        return;
    for (size_t i = 0; i < n->n; i++)
        if (n->patterns[i].is_compiled)
            regfree(&n->patterns[i].expression);
    free(n->words);
    free(n->text);
    free(n);
}

const char *ws_need_text(const struct ws_need *n)
{
    return n->text;
}

/* --- matching --- */

/* What the last * stands for grows until the rest fits, so each character is looked at once for each * at most. */
static bool glob_matches(const char *pattern, const char *name)
{
    const char *star = NULL, *from = NULL;

    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            from = name;
        } else if (*pattern && (*pattern == '?' || *pattern == *name)) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++from;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return !*pattern;
}

/* The number in the first ".experts.NUMBER." of a name. False: it is no expert's. */
static bool read_expert(const char *name, uint64_t *expert)
{
    for (const char *at = strstr(name, EXPERTS); at; at = strstr(at + 1, EXPERTS)) {
        const char *digits = at + strlen(EXPERTS);
        if (ws_text_digits(&digits, expert) == 0 && *digits == '.')
            return true;
    }
    return false;
}

/* What kinds of experts there are. */
struct experts {
    uint64_t n;        /* one more than the largest number */
    const char *fused; /* a tensor that has all experts of a layer */
};

static struct experts find_experts(const struct ws_tensor *const *tensors, size_t n)
{
    struct experts found = {0};
    uint64_t expert;

    for (size_t i = 0; i < n; i++) {
        if (read_expert(tensors[i]->name, &expert))
            found.n = expert >= found.n && expert < UINT64_MAX ? expert + 1 : found.n;
        else if (strstr(tensors[i]->name, EXPERTS))
            found.fused = tensors[i]->name;
    }
    return found;
}

static int check_experts(const struct pattern *p, const struct experts *e, struct ws_error *err)
{
    if (e->n == 0 && e->fused)
        return ws_error_set(err, EINVAL,
                            "'%s' divides experts by their tensors, and " SHOWN
                            " has all experts of a layer in one: leave need= out, or write names as patterns",
                            p->text, e->fused);
    if (e->n == 0)
        return ws_error_set(
            err, EINVAL,
            "'%s' is for models with experts, and no tensor is called like one of a family that is known "
            "(...experts.NUMBER...., as Qwen's and DeepSeek's model.layers.N.mlp.experts.E.* and Mixtral's "
            "model.layers.N.block_sparse_moe.experts.E.*): write names as patterns",
            p->text);
    if (p->size > e->n)
        return ws_error_set(err, EINVAL, "'%s' divides %" PRIu64 " experts among more ranks than that",
                            p->text, e->n);
    return 0;
}

static bool is_of_rank(const struct pattern *p, const struct experts *e, const char *name)
{
    const uint64_t each = e->n / p->size, more = e->n % p->size;
    const uint64_t first = p->rank * each + (p->rank < more ? p->rank : more);
    uint64_t expert;

    if (!read_expert(name, &expert))
        return true;
    return expert >= first && expert < first + each + (p->rank < more);
}

static bool matches(const struct pattern *p, const struct experts *e, const char *name)
{
    switch (p->kind) {
    case GLOB:
        return glob_matches(p->text, name);
    case EXPRESSION:
        return ws_expression_matches(&p->expression, name);
    default:
        return is_of_rank(p, e, name);
    }
}

int ws_need_select(const struct ws_need *need, const struct ws_tensor *const *tensors, size_t n, bool *chosen,
                   struct ws_error *err)
{
    const struct experts experts = find_experts(tensors, n);

    memset(chosen, 0, n * sizeof(*chosen));
    for (size_t k = 0; k < need->n; k++) {
        const struct pattern *p = &need->patterns[k];
        const int rc = p->kind == RANK ? check_experts(p, &experts, err) : 0;
        bool any = false;
        if (rc < 0)
            return rc;
        for (size_t i = 0; i < n; i++) {
            const bool is = matches(p, &experts, tensors[i]->name);
            chosen[i] = chosen[i] || is;
            any = any || is;
        }
        if (!any)
            return ws_error_set(err, EINVAL, "'" SHOWN "' matches none of its %zu tensors", p->text, n);
    }
    return 0;
}
