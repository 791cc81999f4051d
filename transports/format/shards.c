#include "transports/format/shards.h"
#include "transports/base/limits.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

bool ws_shard_is(const char *name)
{
    size_t n = strlen(name), k = strlen(WS_SHARD_SUFFIX);

    return n > k && strcmp(name + n - k, WS_SHARD_SUFFIX) == 0;
}

/* NAME-00002-of-00005.safetensors: its parts. */
struct shard_name {
    size_t stem_bytes; /* "NAME-" */
    int digits;        /* 5 */
    unsigned long number, count;
};

static bool parse_shard_name(const char *name, struct shard_name *out)
{
    static const char decimal[] = "0123456789";
    const char *of = NULL, *start, *count;
    size_t digits;

    for (const char *p = strstr(name, "-of-"); p; p = strstr(p + 1, "-of-"))
        of = p;
    if (!of || !ws_shard_is(name))
        return false;
    count = of + strlen("-of-");
    digits = strspn(count, decimal);
    if (digits == 0 || digits > 9 || strcmp(count + digits, WS_SHARD_SUFFIX) != 0)
        return false;
    for (start = of; start > name && strchr(decimal, start[-1]); start--)
        ;
    if (start == of || start == name || start[-1] != '-' || of - start > 9)
        return false;
    out->stem_bytes = (size_t)(start - name);
    out->digits = (int)(of - start);
    out->number = strtoul(start, NULL, 10);
    out->count = strtoul(count, NULL, 10);
    return true;
}

static bool is_wanted(const char *name, const char *const *names, size_t n, const bool *wanted)
{
    const char *const *found = bsearch(&name, names, n, sizeof(*names), by_name);

    return found && wanted[found - names];
}

static int check_counts(const char *const *names, size_t n, const bool *wanted, struct ws_error *err)
{
    struct shard_name before = {0}, s;
    const char *set = NULL; /* a name of the set that was checked last */

    for (size_t i = 0; i < n; i++) {
        char name[WS_MAX_NAME + 1];
        const char *tail;
        unsigned long first;

        if (!wanted[i] || !parse_shard_name(names[i], &s))
            continue;
        if (set && s.stem_bytes == before.stem_bytes && s.count == before.count &&
            s.digits == before.digits && strncmp(set, names[i], s.stem_bytes) == 0)
            continue;
        set = names[i];
        before = s;
        tail = set + s.stem_bytes + s.digits;
        first = s.number == 0 ? 0 : 1;
        for (unsigned long k = first; k < first + s.count; k++) {
            int length =
                snprintf(name, sizeof(name), "%.*s%0*lu%s", (int)s.stem_bytes, set, s.digits, k, tail);
            if (length < 0 || (size_t)length >= sizeof(name) || !is_wanted(name, names, n, wanted))
                return ws_error_set(err, ENOENT, "%s is missing: by their names there are %lu such files",
                                    name, s.count);
        }
    }
    return 0;
}

int ws_shards_select(const char *const *names, size_t n, const struct ws_folder_index *index, bool *wanted,
                     struct ws_error *err)
{
    bool found = index;
    int rc = index ? ws_folder_index_select(index, names, n, wanted, err) : 0;

    if (rc < 0)
        return rc;
    for (size_t i = 0; !index && i < n; i++) {
        wanted[i] = names[i][0] != '.' && ws_shard_is(names[i]);
        found |= wanted[i];
    }
    if (!found)
        return ws_error_set(err, ENOENT, "there is no *%s file in it", WS_SHARD_SUFFIX);
    return check_counts(names, n, wanted, err);
}

int ws_shards_select_part(const char *const *names, size_t n, const struct ws_folder_index *index,
                          bool *wanted, struct ws_error *err)
{
    struct shard_name s;
    bool found = false;

    for (size_t i = 0; i < n; i++) {
        if (names[i][0] == '.' || !ws_shard_is(names[i]) || (index && !ws_folder_index_has(index, names[i])))
            continue;
        if (!parse_shard_name(names[i], &s))
            return ws_error_set(err, ENOENT,
                                "%s is not called NAME-00001-of-0000N" WS_SHARD_SUFFIX
                                ", as each file of a checkpoint that several nodes write is",
                                names[i]);
        found = wanted[i] = true;
    }
    return found ? 0 : ws_error_set(err, ENOENT, "there is no *%s file in it", WS_SHARD_SUFFIX);
}
