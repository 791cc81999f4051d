#include "tests/fakes/told.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool told_number(const char *s, const char **end, uint64_t *out)
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

/* NAME and up to three numbers, a colon before each. */
static bool take_rule(struct told *t, enum told_deed deed, const char *s)
{
    size_t len = strcspn(s, ":"), n = 0;
    uint64_t v[3];
    struct told_rule *r = &t->rules[t->n_rules];

    for (size_t i = 0; i < t->n_names; i++)
        if (strlen(t->names[i]) == len && !memcmp(t->names[i], s, len))
            r->name = t->names[i];
    for (s += len; n < 3 && *s == ':'; n++)
        if (!told_number(s + 1, &s, &v[n]))
            return false;
    if (!r->name || *s || n < 1 || v[0] < 1 || t->n_rules == TOLD_RULES - 1 || (deed == TOLD_FAIL && n < 2))
        return false;
    r->deed = deed;
    r->first = (unsigned)v[0];
    r->result = n > 1 ? (int)v[1] : t->result;
    r->count = n > 2 ? (unsigned)v[2] : deed == TOLD_FAIL ? UINT32_MAX : 1;
    t->n_rules++;
    return true;
}

static bool take_word(struct told *t, char *word, bool (*take)(const char *key, const char *value))
{
    static const char *const deeds[] = {"fail", "die", "lost", "fault"};
    char *value = strchr(word, '=');
    if (!value)
        return false;
    *value++ = '\0';
    for (size_t i = 0; i < sizeof(deeds) / sizeof(deeds[0]); i++)
        if (!strcmp(word, deeds[i]))
            return take_rule(t, (enum told_deed)i, value);
    return take(word, value);
}

void told_read(struct told *t, bool (*take)(const char *key, const char *value))
{
    const char *text = getenv(t->variable);
    char *words = strdup(text ? text : ""), *rest = words, *word;

    while (words && (word = strsep(&rest, ",")))
        if (*word && !take_word(t, word, take)) {
            fprintf(stderr, "%s (stand-in): %s='%s' is not understood at '%s'; %s has the grammar\n",
                    t->library, t->variable, text, word, t->grammar);
            _exit(2);
        }
    free(words);
}

const struct told_rule *told_hit(struct told *t, const char *name, size_t *at)
{
    while (*at < t->n_rules) {
        struct told_rule *r = &t->rules[(*at)++];
        if (strcmp(r->name, name))
            continue;
        unsigned call = atomic_fetch_add(&r->calls, 1) + 1;
        if (call >= r->first && call - r->first < r->count)
            return r;
    }
    return NULL;
}
