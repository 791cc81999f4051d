/* Config: the environment variable of a stand-in library: comma-separated words, KEY=VALUE, and rules about
 * its calls. A malformed text ends the process with a message. */
#ifndef WS_TESTS_FAKES_TOLD_H
#define WS_TESTS_FAKES_TOLD_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONFIG_RULES 16

enum config_action { CONFIG_FAIL, CONFIG_DIE, CONFIG_LOST, CONFIG_FAULT };

struct config_rule {
    const char *name;
    enum config_action action;
    unsigned first, count;
    int result;
    atomic_uint calls;
};

struct config {
    const char *library, *variable, *grammar; /* for the message */
    const char *const *names;                 /* of the calls that rules may be about */
    size_t n_names;
    int result; /* of a rule that names none */
    struct config_rule rules[CONFIG_RULES];
    size_t n_rules;
};

/* set: called with each word except rules (fail=, die=, lost= and fault=); false: malformed. */
void config_read(struct config *t, bool (*set)(const char *key, const char *value));
/* A number, optionally with K, M or G; *end points behind it. */
bool config_number(const char *s, const char **end, uint64_t *out);
/* The next rule, from *at on, that applies to this call of name; NULL: there is none. Every rule counts the
 * call. */
const struct config_rule *config_match(struct config *t, const char *name, size_t *at);

#endif
