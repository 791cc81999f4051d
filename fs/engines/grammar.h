/* Grammar: one command of a control file, from bytes to a checked struct. Pure: knows no store and no
 * engine, allocates nothing, calls nothing. What a person may write and what `cat ctl` shows come from
 * the same table.
 *
 *     command  = word { blank word } [ newline ]
 *     word     = [ key '=' ] ( { character } | '"' { character | '\"' | '\\' } '"' )     blanks only inside
 *                quotes, which stand around a whole word or value: JSON in a value needs none
 *     options  = key=value words after the arguments, and flags; async only as the last word */
#ifndef WS_FS_ENGINES_GRAMMAR_H
#define WS_FS_ENGINES_GRAMMAR_H
#include "transports/base/error.h"
#include "transports/base/limits.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define WS_MAX_WORDS (WS_MAX_MODELS + 8) /* load A=N B=M ... of every model, and flags */

struct ws_words {
    size_t n;
    char *word[WS_MAX_WORDS]; /* unquoted, in bytes */
    char bytes[WS_MAX_COMMAND + 1];
};
/* -EINVAL: empty, too long, more than one line, a control character, no UTF-8, a quote that is open at
 * the end. */
WS_MUST_USE int ws_words_parse(const char *text, size_t len, struct ws_words *out, struct ws_error *err);
/* Text as one word, between quotes: what parse makes it of again. */
void ws_words_quote(FILE *f, const char *text);

/* The line that parses to these words and no others. -E2BIG: it would be longer than a command. */
WS_MUST_USE int ws_words_join(const struct ws_words *w, char out[WS_MAX_COMMAND + 1], struct ws_error *err);

enum ws_scope {
    WS_SCOPE_ROOT = 1,    /* /ctl */
    WS_SCOPE_MODEL = 2,   /* MODEL/ctl */
    WS_SCOPE_VERSION = 4, /* MODEL/version: what may follow `load` */
    WS_SCOPE_POLICY = 8,  /* MODEL/policy: one word */
};
enum ws_verb {
    WS_VERB_LOAD,
    WS_VERB_PULL,
    WS_VERB_DROP,
    WS_VERB_PIN,
    WS_VERB_UNPIN,
    WS_VERB_VERIFY,
    WS_VERB_ENGINE_ADD,
    WS_VERB_ENGINE_REMOVE,
    WS_VERB_ADD,
    WS_VERB_REMOVE,
    WS_VERB_LOAD_ALL, /* load A=N B=M */
    WS_VERB_POLICY,
    WS_VERB_COMMIT,
    WS_VERB_CANCEL,
    WS_VERB_STAGE,
    WS_VERB_CHECK,
    WS_VERB_ENGINE_SYNC,
    WS_VERB_LOADED,
    WS_VERB_STRATEGY,
    WS_VERB_LEARN,
    WS_VERB_COUNT
};
enum ws_option {
    WS_OPTION_PREFIX,
    WS_OPTION_PAUSE,
    WS_OPTION_TIMEOUT,
    WS_OPTION_TOKEN_FILE,
    WS_OPTION_FILES, /* below which those of tokens are */
    WS_OPTION_POLICY,
    WS_OPTION_CACHE,
    WS_OPTION_GROUP,
    WS_OPTION_DEADLINE,
    WS_OPTION_LOAD, /* templates of kind remote */
    WS_OPTION_FLUSH,
    WS_OPTION_RESUME,
    WS_OPTION_SERVING,
    WS_OPTION_EVERY, /* of the policy follow-published */
    WS_OPTION_MIN_INTERVAL,
    WS_OPTION_UNTIL,
    WS_OPTION_MOUNTS,
    WS_OPTION_ADMIN_TOKEN_FILE,
    WS_OPTION_CA_FILE,
    WS_OPTION_PAUSE_TIMEOUT,
    WS_OPTION_ENGINE,
    WS_OPTION_LOAD_FORMAT,
    WS_OPTION_ADAPTERS,
    WS_OPTION_DRAFT,
    WS_OPTION_UPDATE,
    WS_OPTION_VERIFY,
    WS_OPTION_SLEEP,
    WS_OPTION_PATCH, /* a template of kind remote */
    WS_OPTION_COUNT
};
struct ws_command {
    enum ws_verb verb;
    size_t n_args;
    char *args[WS_MAX_WORDS];
    const char *options[WS_OPTION_COUNT]; /* NULL: not given */
    bool force_layout, wait, async;
    struct ws_words words; /* what args and options point into: do not copy the struct */
};
/* -EINVAL with a sentence that shows the usage. */
WS_MUST_USE int ws_command_parse(enum ws_scope scope, const char *text, size_t len, struct ws_command *out,
                                 struct ws_error *err);
/* A time option in seconds, 1 to 86400, or fallback where it is not given. -EINVAL. */
WS_MUST_USE int ws_command_seconds(const struct ws_command *c, enum ws_option option, unsigned fallback,
                                   unsigned *out, struct ws_error *err);
/* Usage and meaning of command i of a scope, in the order of the table; false at the end. */
bool ws_command_usage(enum ws_scope scope, size_t i, const char **usage, const char **meaning);

/* "A=13" -> "A", "13": cuts the word at its last '=', since names may hold one and versions not. */
WS_MUST_USE int ws_word_split(char *word, char **value, struct ws_error *err);
/* Decimal digits only, no sign; -EINVAL, -ERANGE. */
WS_MUST_USE int ws_word_number(const char *word, uint64_t max, uint64_t *out);
/* The command as it may be shown, which is another than it was: one printable line, credentials in URLs
 * blanked out. */
void ws_command_show(const char *text, size_t len, char out[WS_MAX_COMMAND + 1]);

#endif
