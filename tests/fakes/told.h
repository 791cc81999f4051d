/* What a stand-in library is told by its environment variable: words with commas between them, KEY=VALUE, and
 * rules about its calls. A text that is not understood ends the process with a sentence. */
#ifndef WS_TESTS_FAKES_TOLD_H
#define WS_TESTS_FAKES_TOLD_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOLD_RULES 16

enum told_deed { TOLD_FAIL, TOLD_DIE, TOLD_LOST, TOLD_FAULT };

struct told_rule {
    const char *name;
    enum told_deed deed;
    unsigned first, count;
    int result;
    atomic_uint calls;
};

struct told {
    const char *library, *variable, *grammar; /* for the sentence */
    const char *const *names;                 /* of the calls that rules may be about */
    size_t n_names;
    int result; /* of a rule that names none */
    struct told_rule rules[TOLD_RULES];
    size_t n_rules;
};

/* take: one word; false: not understood. fail=, die=, lost= and fault= are taken before. */
void told_read(struct told *t, bool (*take)(const char *key, const char *value));
/* A number, with K, M or G behind it; what follows it in *end. */
bool told_number(const char *s, const char **end, uint64_t *out);
/* The next rule, from *at on, that this call of name is hit by; NULL: there is none. All rules count it. */
const struct told_rule *told_hit(struct told *t, const char *name, size_t *at);

#endif
