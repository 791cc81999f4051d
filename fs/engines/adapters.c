#include "fs/engines/adapters.h"
#include "transports/base/text.h"
#include "transports/format/manifest.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_within(const struct ws_adapter_run *r, uint64_t number)
{
    return number >= r->low && number <= r->high;
}

static struct ws_adapter_run *find_run(struct ws_adapters *a, const char *lineage)
{
    for (size_t i = 0; i < a->n_runs; i++)
        if (strcmp(a->runs[i].lineage, lineage) == 0)
            return &a->runs[i];
    return NULL;
}

static bool is_stray(const struct ws_adapters *a, uint64_t number)
{
    for (size_t i = 0; i < a->n_strays; i++)
        if (number >= a->strays[i].low && number <= a->strays[i].high)
            return true;
    return false;
}

void ws_adapters_name(const struct ws_adapters *a, const char *model, const struct ws_version_id *id,
                      ws_adapter_name out)
{
    const struct ws_adapter_run *r = find_run((struct ws_adapters *)(uintptr_t)a, id->lineage);
    const bool plain = r && is_within(r, id->version) && !is_stray(a, id->version);
    snprintf(out, sizeof(ws_adapter_name), "%.*s@%" PRIu64 "%s%s", WS_ADAPTER_MODEL_BYTES, model, id->version,
             plain ? "" : "@", plain ? "" : id->lineage);
}

/* Does another run own a number of these? */
static bool is_others(const struct ws_adapters *a, const struct ws_adapter_run *own, uint64_t low,
                      uint64_t high)
{
    for (size_t i = 0; i < a->n_runs; i++)
        if (&a->runs[i] != own && a->runs[i].low <= high && low <= a->runs[i].high)
            return true;
    return false;
}

bool ws_adapters_own(struct ws_adapters *a, const struct ws_version_id *id)
{
    struct ws_adapter_run *r = find_run(a, id->lineage);
    const uint64_t low = r && r->low < id->version ? r->low : id->version;
    const uint64_t high = r && r->high > id->version ? r->high : id->version;
    if ((r && is_within(r, id->version)) || (!r && a->n_runs == WS_ADAPTER_RUNS) ||
        is_others(a, r, low, high))
        return false;
    if (!r) {
        r = &a->runs[a->n_runs++];
        snprintf(r->lineage, sizeof(r->lineage), "%s", id->lineage);
    }
    r->low = low;
    r->high = high;
    return true;
}

static uint64_t distance(const struct ws_adapter_stray *s, uint64_t number)
{
    return number < s->low ? s->low - number : number - s->high;
}

static void add_stray(struct ws_adapters *a, uint64_t number)
{
    struct ws_adapter_stray *nearest = &a->strays[0];
    if (a->n_strays < WS_ADAPTER_STRAYS) {
        a->strays[a->n_strays++] = (struct ws_adapter_stray){number, number};
        return;
    }
    for (size_t i = 1; i < a->n_strays; i++)
        if (distance(&a->strays[i], number) < distance(nearest, number))
            nearest = &a->strays[i];
    nearest->low = number < nearest->low ? number : nearest->low;
    nearest->high = number > nearest->high ? number : nearest->high;
}

bool ws_adapters_path_is_own(const char *path, const char *mountpoint, const char *model,
                             struct ws_version_id *id)
{
    const char *const words[] = {mountpoint, "/", model, "/"};
    char text[WS_VERSION_ID_TEXT];
    uint64_t number;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        const size_t n = strlen(words[i]);
        if (strncmp(path, words[i], n) != 0)
            return false;
        path += n;
    }
    const char *at = path;
    if (ws_text_digits(&at, &number) || *at != '@' || !at[1] || strlen(at + 1) > WS_LINEAGE_CHARS ||
        strchr(at, '/'))
        return false;
    *id = ws_version_id_make(number, at + 1);
    ws_version_id_text(id, text);
    return strcmp(text, path) == 0;
}

bool ws_adapters_saw(struct ws_adapters *a, const char *model, const char *name,
                     const struct ws_version_id *from)
{
    uint64_t number;
    bool ours = false;
    if (!ws_adapters_is_name_of(name, model))
        return false;
    name += strlen(model) + 1;
    if (ws_text_digits(&name, &number) || *name || is_stray(a, number))
        return false; /* the longer names say whose they are */
    if (from && from->lineage[0] && from->version == number)
        (void)ws_adapters_own(a, from); /* its settings may be lost */
    for (size_t i = 0; from && i < a->n_runs; i++)
        ours = ours || (is_within(&a->runs[i], number) &&
                        (!from->lineage[0] ||
                         (from->version == number && strcmp(from->lineage, a->runs[i].lineage) == 0)));
    if (!ours)
        add_stray(a, number);
    return !ours;
}

bool ws_adapters_read_stray(struct ws_adapters *a, const char *text)
{
    struct ws_adapter_stray s;
    if (a->n_strays == WS_ADAPTER_STRAYS || ws_text_digits(&text, &s.low) || *text++ != ' ' ||
        ws_text_digits(&text, &s.high) || *text || s.low > s.high)
        return false;
    a->strays[a->n_strays++] = s;
    return true;
}

bool ws_adapters_read_run(struct ws_adapters *a, const char *text)
{
    struct ws_adapter_run r;
    const size_t n = strcspn(text, " ");
    if (n == 0 || n > WS_LINEAGE_CHARS || text[n] != ' ' || a->n_runs == WS_ADAPTER_RUNS)
        return false;
    snprintf(r.lineage, sizeof(r.lineage), "%.*s", (int)n, text);
    text += n + 1;
    if (ws_text_digits(&text, &r.low) || *text++ != ' ' || ws_text_digits(&text, &r.high) || *text ||
        r.low > r.high || find_run(a, r.lineage) || is_others(a, NULL, r.low, r.high))
        return false;
    a->runs[a->n_runs++] = r;
    return true;
}

bool ws_adapters_is_name_of(const char *name, const char *model)
{
    const size_t n = strlen(model);
    uint64_t number;
    if (strncmp(name, model, n) != 0 || name[n] != '@')
        return false;
    name += n + 1;
    return ws_text_digits(&name, &number) == 0 && (!*name || (*name == '@' && ws_lineage_is_safe(name + 1)));
}

/* Where the name stands in the list; NULL: nowhere. */
static const char *find_name(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, n) == 0 && (!at[n] || at[n] == ','))
            return at;
    return NULL;
}

bool ws_adapter_list_has(const char *list, const char *name)
{
    return find_name(list, name) != NULL;
}

unsigned ws_adapter_list_count(const char *list, const char *model)
{
    ws_adapter_name name;
    unsigned n = 0;
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',') {
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(at, ","), at);
        n += ws_adapters_is_name_of(name, model);
    }
    return n;
}

int ws_adapter_list_add(char **list, const char *name)
{
    char *longer;
    if (find_name(*list, name))
        return 0;
    if (asprintf(&longer, "%s%s%s", *list ? *list : "", *list && **list ? "," : "", name) < 0)
        return -ENOMEM;
    free(*list);
    *list = longer;
    return 0;
}

void ws_adapter_list_remove(char *list, const char *name)
{
    char *at = (char *)(uintptr_t)find_name(list, name);
    if (!at)
        return;
    char *end = at + strlen(name);
    if (*end == ',')
        end++;
    else if (at > list)
        at--; /* the comma before the last one */
    memmove(at, end, strlen(end) + 1);
}
