/* The control grammar under libFuzzer. The first byte selects the file that is written to, the rest is the
 * written text. What is accepted must keep the parser's promises; what is shown must fit a log line and
 * contain no credentials. */
#include "fs/engines/grammar.h"
#include "transports/base/text.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

/* Whether p is one of the command's own words. */
static void require_inside(const struct ws_words *w, const char *p)
{
    require(p >= w->bytes && p < w->bytes + sizeof(w->bytes));
    require(memchr(p, 0, (size_t)(w->bytes + sizeof(w->bytes) - p)) != NULL);
}

/* The stored words are these, and no others. */
static void check_joined(const struct ws_words *w)
{
    static struct ws_words again;
    static char line[WS_MAX_COMMAND + 1];
    struct ws_error err;

    if (ws_words_join(w, line, &err) != 0)
        return;
    require(ws_words_parse(line, strlen(line), &again, &err) == 0 && again.n == w->n);
    for (size_t i = 0; i < w->n; i++)
        require(!strcmp(again.word[i], w->word[i]));
}

static void check_command(struct ws_command *c)
{
    struct ws_error err;
    char *value;
    uint64_t n;

    check_joined(&c->words);

    require(c->verb < WS_VERB_COUNT);
    require(c->n_args >= 1 && c->n_args <= c->words.n && c->words.n <= WS_MAX_WORDS);
    for (size_t i = 0; i < WS_OPTION_COUNT; i++) {
        if (c->options[i])
            require_inside(&c->words, c->options[i]);
    }
    for (size_t i = 0; i < c->n_args; i++) {
        require_inside(&c->words, c->args[i]);
        require(ws_word_number(c->args[i], 1000, &n) != 0 || n <= 1000);
        if (!ws_word_split(c->args[i], &value, &err))
            require(c->args[i][0] && value[0] && !strchr(value, '='));
    }
}

static void check_shown(const char *text, size_t size)
{
    char shown[WS_MAX_COMMAND + 1], clean[WS_MAX_COMMAND + 1];

    ws_command_show(text, size, shown);
    require(strlen(shown) <= size);
    strcpy(clean, shown);
    ws_text_clean(clean);
    require(!strcmp(clean, shown));
    for (char *p = shown; (p = strstr(p, "://"));) {
        p += 3;
        char *at = memrchr(p, '@', strcspn(p, "/?# \t\""));
        require(!at || strspn(p, "*") == (size_t)(at - p));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum ws_scope scopes[] = {WS_SCOPE_ROOT, WS_SCOPE_MODEL, WS_SCOPE_VERSION, WS_SCOPE_POLICY};
    static struct ws_command c;
    struct ws_error err = {0};
    char *text;

    if (size == 0)
        return 0;
    /* A block of exactly the text's size, so that a read beyond it is seen. */
    text = malloc(size - 1);
    require(text != NULL || size == 1);
    if (size > 1)
        memcpy(text, data + 1, size - 1);
    check_shown(text, size - 1);
    if (!ws_command_parse(scopes[data[0] % 4], text, size - 1, &c, &err))
        check_command(&c);
    else
        require(err.code != 0 && err.text[0]);
    free(text);
    return 0;
}
