#include "tests/fakes/config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool config_number(const char *s, const char **end, uint64_t *out)
{
    static const char units[] = "KMG";
    char *stop;
    if (*s < '0' || *s > '9')
        return false;
    *out = strtoull(s, &stop, 0);
    const char *unit = *stop ? strchr(units, *stop) : NULL;
    if (unit) {
        *out <<= 10 * (unit - units + 1);
        stop++;
    }
    *end = stop;
    return true;
}

/* NAME and up to three numbers, each after a colon. */
static bool add_rule(struct config *t, enum config_action action, const char *s)
{
    size_t len = strcspn(s, ":"), n = 0;
    uint64_t v[3];
    struct config_rule *r = &t->rules[t->n_rules];

    for (size_t i = 0; i < t->n_names; i++)
        if (strlen(t->names[i]) == len && !memcmp(t->names[i], s, len))
            r->name = t->names[i];
    for (s += len; n < 3 && *s == ':'; n++)
        if (!config_number(s + 1, &s, &v[n]))
            return false;
    if (!r->name || *s || n < 1 || v[0] < 1 || t->n_rules == CONFIG_RULES - 1 ||
        (action == CONFIG_FAIL && n < 2))
        return false;
    r->action = action;
    r->first = (unsigned)v[0];
    r->result = n > 1 ? (int)v[1] : t->result;
    r->count = n > 2 ? (unsigned)v[2] : action == CONFIG_FAIL ? UINT32_MAX : 1;
    t->n_rules++;
    return true;
}

static bool parse_word(struct config *t, char *word, bool (*set)(const char *key, const char *value))
{
    static const char *const actions[] = {"fail", "die", "lost", "fault"};
    char *value = strchr(word, '=');
    if (!value)
        return false;
    *value++ = '\0';
    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
        if (!strcmp(word, actions[i]))
            return add_rule(t, (enum config_action)i, value);
    return set(word, value);
}

void config_read(struct config *t, bool (*set)(const char *key, const char *value))
{
    const char *text = getenv(t->variable);
    char *words = strdup(text ? text : ""), *rest = words, *word;

    while (words && (word = strsep(&rest, ",")))
        if (*word && !parse_word(t, word, set)) {
            fprintf(stderr, "%s (stand-in): %s='%s' is not understood at '%s'; %s has the grammar\n",
                    t->library, t->variable, text, word, t->grammar);
            _exit(2);
        }
    free(words);
}

const struct config_rule *config_match(struct config *t, const char *name, size_t *at)
{
    while (*at < t->n_rules) {
        struct config_rule *r = &t->rules[(*at)++];
        if (strcmp(r->name, name))
            continue;
        unsigned call = atomic_fetch_add(&r->calls, 1) + 1;
        if (call >= r->first && call - r->first < r->count)
            return r;
    }
    return NULL;
}
