/* Commands of control files. A write is bytes from a person, a script or a hostile container: every
 * step here is bounded by WS_MAX_COMMAND and WS_MAX_WORDS, and nothing is taken that is not in the
 * table. Fuzzed by tests/fuzz/fuzz_grammar.c. */
#include "fs/engines/grammar.h"
#include "transports/base/text.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SECONDS 86400

/* --- words --- */

static int check_text(const char *text, size_t len, struct ws_error *err)
{
    size_t step;

    if (len > WS_MAX_COMMAND)
        return ws_error_set(err, EINVAL, "the command has %zu bytes, the limit is %d", len, WS_MAX_COMMAND);
    for (size_t i = 0; i < len; i += step) {
        unsigned char c = (unsigned char)text[i];
        step = ws_utf8_length(text + i, len - i);
        if (step == 0)
            return ws_error_set(err, EINVAL, "byte %zu of the command is no UTF-8", i + 1);
        if (c == '\n')
            return ws_error_set(err, EINVAL, "one command a write: there is a second line");
        if ((c < ' ' && c != '\t') || c == 0x7F)
            return ws_error_set(err, EINVAL, "byte %zu of the command is a control character", i + 1);
    }
    return 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

/* Reads one word from *in, unquoted to *out; false when a quote stays open. */
static bool parse_word(const char **in, const char *end, char **out)
{
    bool quoted = false, opens = true; /* opens: a word or a value begins here */
    size_t n_equals = 0;

    while (*in < end && (quoted || !is_blank(**in))) {
        char c = *(*in)++;
        if (c == '"' && (quoted || opens)) {
            quoted = !quoted;
            opens = false;
            continue;
        }
        opens = !quoted && c == '=' && n_equals++ == 0;
        if (quoted && c == '\\' && *in < end && (**in == '"' || **in == '\\'))
            c = *(*in)++;
        *(*out)++ = c;
    }
    *(*out)++ = '\0';
    return !quoted;
}

int ws_words_parse(const char *text, size_t len, struct ws_words *out, struct ws_error *err)
{
    const char *in = text, *end;
    char *to = out->bytes;
    int rc;

    out->n = 0;
    if (len > 0 && text[len - 1] == '\n')
        len--;
    rc = check_text(text, len, err);
    if (rc)
        return rc;
    for (end = text + len;;) {
        while (in < end && is_blank(*in))
            in++;
        if (in == end)
            break;
        if (out->n == WS_MAX_WORDS)
            return ws_error_set(err, EINVAL, "the command has more than %d words", WS_MAX_WORDS);
        out->word[out->n++] = to;
        if (!parse_word(&in, end, &to))
            return ws_error_set(err, EINVAL, "a quote is not closed");
    }
    /* Each word's NUL takes the place of the blank behind it, the last one's the byte beyond. */
    assert(to <= out->bytes + sizeof(out->bytes));
    if (out->n == 0)
        return ws_error_set(err, EINVAL, "the command is empty; reading the file ctl shows what there is");
    return 0;
}

void ws_words_quote(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', f);
        fputc(*text, f);
    }
    fputc('"', f);
}

static bool needs_quotes(const char *word)
{
    const char *equals = strchr(word, '=');
    return !*word || *word == '"' || strpbrk(word, " \t") || (equals && equals[1] == '"');
}

int ws_words_join(const struct ws_words *w, char out[WS_MAX_COMMAND + 1], struct ws_error *err)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);

    for (size_t i = 0; f && i < w->n; i++) {
        if (i > 0)
            fputc(' ', f);
        if (needs_quotes(w->word[i]))
            ws_words_quote(f, w->word[i]);
        else
            fputs(w->word[i], f);
    }
    if (!f || fclose(f) != 0) {
        free(text);
        return ws_error_set(err, ENOMEM, "no memory for the words of a command");
    }
    if (len <= WS_MAX_COMMAND)
        memcpy(out, text, len + 1);
    free(text);
    return len <= WS_MAX_COMMAND
               ? 0
               : ws_error_set(err, E2BIG, "the command is longer than %d bytes", WS_MAX_COMMAND);
}

/* --- the table --- */

enum { FORCE_LAYOUT = 1, ASYNC = 2, WAIT = 4 };

static const char *const option_names[WS_OPTION_COUNT] = {
    [WS_OPTION_PREFIX] = "prefix",     [WS_OPTION_PAUSE] = "pause",
    [WS_OPTION_TIMEOUT] = "timeout",   [WS_OPTION_TOKEN_FILE] = "token-file",
    [WS_OPTION_POLICY] = "policy",     [WS_OPTION_CACHE] = "cache",
    [WS_OPTION_LOAD] = "load",         [WS_OPTION_FLUSH] = "flush",
    [WS_OPTION_RESUME] = "resume",     [WS_OPTION_SERVING] = "serving",
    [WS_OPTION_GROUP] = "group",       [WS_OPTION_DEADLINE] = "deadline",
    [WS_OPTION_EVERY] = "every",       [WS_OPTION_MIN_INTERVAL] = "min-interval",
    [WS_OPTION_MOUNTS] = "mounts",     [WS_OPTION_ADMIN_TOKEN_FILE] = "admin-token-file",
    [WS_OPTION_CA_FILE] = "ca-file",   [WS_OPTION_PAUSE_TIMEOUT] = "pause-timeout",
    [WS_OPTION_ENGINE] = "engine",     [WS_OPTION_LOAD_FORMAT] = "load-format",
    [WS_OPTION_FILES] = "files",       [WS_OPTION_UNTIL] = "until",
    [WS_OPTION_ADAPTERS] = "adapters", [WS_OPTION_DRAFT] = "draft",
    [WS_OPTION_UPDATE] = "update",     [WS_OPTION_VERIFY] = "verify",
    [WS_OPTION_PATCH] = "patch",       [WS_OPTION_SLEEP] = "sleep",
};
#define OPTION(name) (1U << WS_OPTION_##name)

static const struct syntax {
    enum ws_verb verb;
    unsigned scopes;
    const char *first, *second; /* the command's own words; NULL: none */
    size_t min, max;            /* arguments behind them */
    unsigned options, flags;
    const char *usage, *meaning;
} table[] = {
    {WS_VERB_LOAD, WS_SCOPE_MODEL, "load", NULL, 1, 1, OPTION(DEADLINE), FORCE_LAYOUT | WAIT | ASYNC,
     "load N|latest|previous [force-layout] [deadline=S] [wait] [async]",
     "switch the engines to a version, all or none (see commit); wait: for a switch that runs"},
    {WS_VERB_CANCEL, WS_SCOPE_MODEL, "cancel", NULL, 0, 0, 0, 0, "cancel",
     "end the switch that runs; its engines go back"},
    {WS_VERB_STAGE, WS_SCOPE_MODEL, "stage", NULL, 1, 1, OPTION(DEADLINE), FORCE_LAYOUT | ASYNC,
     "stage N|latest [force-layout] [deadline=S] [async]",
     "fetch, verify and gate a version, for a framework that drives its engines itself"},
    {WS_VERB_CHECK, WS_SCOPE_MODEL, "check", NULL, 1, 1, 0, 0, "check N|latest",
     "may a version that is here be switched to: the gate alone"},
    {WS_VERB_COMMIT, WS_SCOPE_MODEL, "commit", NULL, 1, 1, 0, 0, "commit all|quorum=N|rolling=N",
     "when an engine fails: all go back; go on while N are left; N at a time, out of service ones counted"},
    {WS_VERB_POLICY, WS_SCOPE_MODEL, "policy", NULL, 1, 1,
     OPTION(EVERY) | OPTION(MIN_INTERVAL) | OPTION(UNTIL), 0,
     "policy manual|pull|follow-released|follow-published [until=release] [every=N] [min-interval=S]",
     "what happens when a version appears: nothing; fetch it; fetch it and switch when it is released, or "
     "when it is "
     "published; until: what is published until something is released, from then on that (the old word "
     "follow); every, min-interval: only once it is N versions ahead, S seconds after the last"},
    {WS_VERB_STRATEGY, WS_SCOPE_MODEL, "strategy", NULL, 1, 1, 0, 0, "strategy auto|LIST",
     "by which ways weights may come, the best first, with commas between: packed_cuda_ipc, cuda_ipc, ipc, "
     "broadcast, "
     "dir, tcp, which is what auto stands for; what is not in the list is not used"},
    {WS_VERB_LEARN, WS_SCOPE_MODEL, "learn", NULL, 1, 1, 0, 0, "learn end|again",
     "of a mount with need=learn: only what was read comes of later versions; forget it, and learn anew"},
    {WS_VERB_LOADED, WS_SCOPE_MODEL, "loaded", NULL, 1, 1, OPTION(ENGINE), 0, "loaded N [engine=NAME]",
     "what a framework says when its engines of kind external serve a version; all of them without engine="},
    {WS_VERB_PULL, WS_SCOPE_MODEL, "pull", NULL, 1, 1, 0, ASYNC, "pull N|latest [async]",
     "fetch and verify a version; engines are not told"},
    {WS_VERB_DROP, WS_SCOPE_MODEL, "drop", NULL, 1, 1, 0, 0, "drop N",
     "give up a version's memory once no process reads it"},
    {WS_VERB_PIN, WS_SCOPE_MODEL, "pin", NULL, 1, 1, 0, 0, "pin N", "never evict a version"},
    {WS_VERB_UNPIN, WS_SCOPE_MODEL, "unpin", NULL, 1, 1, 0, 0, "unpin N", "let a version be evicted again"},
    {WS_VERB_VERIFY, WS_SCOPE_MODEL, "verify", NULL, 1, 1, 0, ASYNC, "verify N [async]",
     "hash what is here against the manifest"},
    {WS_VERB_ENGINE_ADD, WS_SCOPE_MODEL, "engine", "add", 2, 3,
     OPTION(PREFIX) | OPTION(PAUSE) | OPTION(TIMEOUT) | OPTION(TOKEN_FILE) | OPTION(CACHE) | OPTION(GROUP) |
         OPTION(LOAD) | OPTION(FLUSH) | OPTION(RESUME) | OPTION(SERVING) | OPTION(MOUNTS) |
         OPTION(ADMIN_TOKEN_FILE) | OPTION(CA_FILE) | OPTION(PAUSE_TIMEOUT) | OPTION(LOAD_FORMAT) |
         OPTION(FILES) | OPTION(ADAPTERS) | OPTION(DRAFT) | OPTION(UPDATE) | OPTION(VERIFY) | OPTION(PATCH) |
         OPTION(SLEEP),
     0,
     "engine add NAME sglang|vllm|remote URL [prefix=PATH] [pause=MODE] [timeout=S] [pause-timeout=S] "
     "[token-file=F] "
     "[admin-token-file=F] [files=DIR] [ca-file=F] [cache=local|external|keep] [group=G] "
     "[mounts=HOST,HOST:MOUNT...] "
     "[load-format=F] "
     "[adapters=MODEL[:K],MODEL[:K]...] [draft=MODEL] [update=auto|patch|whole] [verify=S] [sleep=1|2|kv] "
     "[load=T flush=T resume=T serving=T patch=T]; engine add NAME external",
     "register an inference server; prefix: where it sees this mount; timeout: of a load (300), of the rest "
     "a tenth or "
     "pause-timeout; admin-token-file: for the routes that change it; ca-file: whom to trust for https; "
     "files: below which "
     "all these have to be, which is so for users other than root; cache: what is emptied after a load; "
     "load-format: SGLang's word for how it reads the files (as it was started, auto where that is dummy); "
     "adapters: models whose versions it loads beside its own, K of each kept (2), each by its name "
     "MODEL@VERSION; "
     "draft: the model of its draft model, which is switched with its own; mounts: other "
     "mounts that it reads, which must have a version before it is paused; update: how a version comes into "
     "it, "
     "patch: what changed is written into its weights, and a load of the whole version is reported, auto "
     "(default): the same where it can, whole: always the whole version; verify: seconds after which its "
     "patched weights are compared with the files, again and again; sleep: how deep another program puts it "
     "to sleep (1: "
     "its weights come back, 2: they are lost, kv: its keys and values alone); for remote, pause, load, "
     "flush, "
     "resume and serving "
     "are templates METHOD:/PATH[:BODY] with {path}, {version} (42@RUN) and {number}, and patch with "
     "{stage}, "
     "{plan}, {base} too; external: driven by "
     "its own framework, "
     "which says "
     "`loaded`"},
    {WS_VERB_ENGINE_REMOVE, WS_SCOPE_MODEL, "engine", "remove", 1, 1, 0, 0, "engine remove NAME",
     "forget an inference server; it goes on as it is"},
    {WS_VERB_ENGINE_SYNC, WS_SCOPE_MODEL, "engine", "sync", 1, 1, 0, ASYNC, "engine sync NAME [async]",
     "bring one engine to the current version"},
    {WS_VERB_ADD, WS_SCOPE_ROOT, "add", NULL, 2, 2, OPTION(POLICY), 0,
     "add MODEL SOURCE [policy=manual|pull|follow-released|follow-published]",
     "take a model from a source, also after a restart; for users other than root: no unix:, dir: only below "
     "the "
     "mount's "
     "files=, and http: only where the mount has no token"},
    {WS_VERB_REMOVE, WS_SCOPE_ROOT, "remove", NULL, 1, 1, 0, 0, "remove MODEL",
     "forget a model and its sources; readers go on"},
    {WS_VERB_LOAD_ALL, WS_SCOPE_ROOT, "load", NULL, 1, WS_MAX_MODELS, OPTION(DEADLINE),
     FORCE_LAYOUT | WAIT | ASYNC,
     "load MODEL=N|latest|previous ... [force-layout] [deadline=S] [wait] [async]",
     "switch several models together, all engines or none: also the target of engines, their draft and their "
     "adapters, in "
     "one pause"},
    {WS_VERB_LOAD, WS_SCOPE_VERSION, NULL, NULL, 1, 1, OPTION(DEADLINE), FORCE_LAYOUT | WAIT | ASYNC,
     "N|latest|previous [force-layout] [deadline=S] [wait] [async]",
     "switch the engines to a version, all or none"},
    {WS_VERB_POLICY, WS_SCOPE_POLICY, NULL, NULL, 1, 1, OPTION(EVERY) | OPTION(MIN_INTERVAL) | OPTION(UNTIL),
     0, "manual|pull|follow-released|follow-published [until=release] [every=N] [min-interval=S]",
     "what happens when a version appears: nothing, fetch it, fetch it and switch when it is released or "
     "published"},
};
#define COMMANDS (sizeof(table) / sizeof(table[0]))

bool ws_command_usage(enum ws_scope scope, size_t i, const char **usage, const char **meaning)
{
    for (size_t k = 0; k < COMMANDS; k++) {
        if (!(table[k].scopes & scope) || i-- > 0)
            continue;
        *usage = table[k].usage;
        *meaning = table[k].meaning;
        return true;
    }
    return false;
}

static const struct syntax *find_syntax(enum ws_scope scope, const struct ws_words *w, size_t *used)
{
    for (size_t i = 0; i < COMMANDS; i++) {
        const struct syntax *s = &table[i];
        if (!(s->scopes & scope))
            continue;
        if (s->first && strcmp(s->first, w->word[0]) != 0)
            continue;
        if (s->second && (w->n < 2 || strcmp(s->second, w->word[1]) != 0))
            continue;
        *used = (s->first != NULL) + (s->second != NULL);
        return s;
    }
    return NULL;
}

/* Parses a flag or key=value word; false when it is none of this command's. */
static bool parse_option(const struct syntax *s, struct ws_command *c, const char *word, bool last,
                         struct ws_error *err, int *rc)
{
    const char *equals = strchr(word, '=');

    *rc = 0;
    if ((s->flags & FORCE_LAYOUT) && !strcmp(word, "force-layout")) {
        c->force_layout = true;
        return true;
    }
    if ((s->flags & WAIT) && !strcmp(word, "wait")) {
        c->wait = true;
        return true;
    }
    if ((s->flags & ASYNC) && !strcmp(word, "async")) {
        c->async = true;
        if (!last)
            *rc = ws_error_set(err, EINVAL, "async must be the last word");
        return true;
    }
    for (size_t i = 0; equals && i < WS_OPTION_COUNT; i++) {
        size_t n = strlen(option_names[i]);
        if (!(s->options & (1U << i)) || (size_t)(equals - word) != n || strncmp(word, option_names[i], n))
            continue;
        if (c->options[i])
            *rc = ws_error_set(err, EINVAL, "%s= is given twice", option_names[i]);
        c->options[i] = equals + 1;
        return true;
    }
    return false;
}

int ws_command_parse(enum ws_scope scope, const char *text, size_t len, struct ws_command *c,
                     struct ws_error *err)
{
    const struct syntax *s;
    size_t i = 0;
    int rc = ws_words_parse(text, len, &c->words, err);

    if (rc)
        return rc;
    s = find_syntax(scope, &c->words, &i);
    if (!s)
        return ws_error_set(err, EINVAL,
                            "there is no command '%s%s%s' here; reading the file ctl shows "
                            "what there is",
                            c->words.word[0], c->words.n > 1 ? " " : "",
                            c->words.n > 1 ? c->words.word[1] : "");
    c->verb = s->verb;
    c->n_args = 0;
    c->force_layout = c->wait = c->async = false;
    memset(c->options, 0, sizeof(c->options));
    for (; i < c->words.n; i++) {
        char *word = c->words.word[i];
        if (c->n_args >= s->min && parse_option(s, c, word, i + 1 == c->words.n, err, &rc)) {
            if (rc)
                return rc;
        } else if (c->n_args < s->max) {
            c->args[c->n_args++] = word;
        } else {
            return ws_error_set(err, EINVAL, "'%.*s' is one word too many; the command is: %s",
                                (int)strcspn(word, "="), word, s->usage); /* its value may be a key */
        }
    }
    if (c->n_args < s->min)
        return ws_error_set(err, EINVAL, "something is missing; the command is: %s", s->usage);
    return 0;
}

int ws_command_seconds(const struct ws_command *c, enum ws_option option, unsigned fallback, unsigned *out,
                       struct ws_error *err)
{
    const char *word = c->options[option];
    uint64_t seconds = fallback;

    if (word && (ws_word_number(word, MAX_SECONDS, &seconds) || seconds == 0))
        return ws_error_set(err, EINVAL, "%s=%.100s is no number of seconds from 1 to %d",
                            option_names[option], word, MAX_SECONDS);
    *out = (unsigned)seconds;
    return 0;
}

/* --- parts of words --- */

int ws_word_split(char *word, char **value, struct ws_error *err)
{
    char *equals = strrchr(word, '=');

    if (!equals || equals == word || !equals[1])
        return ws_error_set(err, EINVAL, "'%s' is not MODEL=VERSION", word);
    *equals = '\0';
    *value = equals + 1;
    return 0;
}

int ws_word_number(const char *word, uint64_t max, uint64_t *out)
{
    uint64_t n = 0;

    if (!*word)
        return -EINVAL;
    for (const char *p = word; *p; p++) {
        if (*p < '0' || *p > '9')
            return -EINVAL;
        if (n > (UINT64_MAX - (uint64_t)(*p - '0')) / 10)
            return -ERANGE;
        n = n * 10 + (uint64_t)(*p - '0');
    }
    if (n > max)
        return -ERANGE;
    *out = n;
    return 0;
}

/* Puts three stars (fewer, where there was less) in the place of n bytes; returns what comes behind them. */
static char *blank(char *at, size_t n)
{
    const size_t stars = n < 3 ? n : 3;
    memset(at, '*', stars);
    memmove(at + stars, at + n, strlen(at + n) + 1);
    return at + stars;
}

/* What stands between :// and @, everywhere. */
static void blank_users(char *text)
{
    for (char *p = text; (p = strstr(p, "://"));) {
        p += 3;
        char *at = memrchr(p, '@', strcspn(p, "/?# \t\""));
        if (at)
            p = blank(p, (size_t)(at - p));
    }
}

/* host:1?... and no part of an option's value. */
static bool is_plain_address(const char *word, const char *colon, const char *query)
{
    const size_t n = (size_t)(query - word);
    return colon && colon < query && !memchr(word, '=', n) && !memchr(word, '"', n);
}

/* Words that are meant to be addresses may hold keys in other places, too: user:KEY@host,
 * http://host/?key=KEY, host:1#KEY. Options are left as they are: templates of requests have such parts. */
static void blank_addresses(char *text)
{
    for (char *word = text; *(word += strspn(word, " \t"));) {
        char *const scheme = strstr(word, "://"), *const end = word + strcspn(word, " \t");
        const bool has_scheme = scheme && scheme < end;
        char *const host = has_scheme ? scheme + 3 : word;
        char *at = memrchr(host, '@', (size_t)(end - host)), *query = host + strcspn(host, "?# \t");
        char *const colon = memchr(host, ':', (size_t)(end - host));
        if (memchr(word, '=', (size_t)(host - word)) ||
            (!has_scheme && memchr(word, '{', (size_t)(end - word))))
            word = end;
        else if (!has_scheme && at && colon && colon < at && !memchr(word, '=', (size_t)(at - word)))
            word = blank(word, (size_t)(at - word));
        else if (query < end && (has_scheme || is_plain_address(word, colon, query)))
            word = blank(query + 1, (size_t)(end - query - 1));
        else
            word = end;
    }
}

/* token=KEY: there is no such option, but a user who writes token-file= may think so. */
static void blank_values(char *text)
{
    static const char *const names[] = {"token", "key", "secret", "password"};
    for (char *word = text; *(word += strspn(word, " \t"));) {
        char *const equals = word + strcspn(word, "=\" \t"), *const end = word + strcspn(word, " \t");
        bool hides = false;
        for (size_t i = 0; *equals == '=' && i < sizeof(names) / sizeof(names[0]); i++) {
            const size_t n = strlen(names[i]);
            hides = hides || ((size_t)(equals - word) >= n && strncmp(equals - n, names[i], n) == 0);
        }
        word = hides ? blank(equals + 1, (size_t)(end - equals - 1)) : end;
    }
}

void ws_command_show(const char *text, size_t len, char out[WS_MAX_COMMAND + 1])
{
    if (len > 0 && text[len - 1] == '\n')
        len--;
    if (len > WS_MAX_COMMAND)
        len = WS_MAX_COMMAND;
    memcpy(out, text, len);
    out[len] = '\0';
    for (size_t i = 0; i < len; i++) {
        if (out[i] == '\0')
            out[i] = '?';
    }
    ws_text_clean(out);
    blank_users(out);
    blank_addresses(out);
    blank_values(out);
}
