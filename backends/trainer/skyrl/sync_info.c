/* Sync infos: what a receiver must know before the first update, as JSON both ways. A flat object whose keys
 * are the members' names; one table says which strategy has which, and what each may be. */
#include "backends/trainer/api/arena.h"
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/api/struct_abi.h"
#include "backends/trainer/skyrl/strategy.h"
#include "transports/base/json_cursor.h"
#include "transports/base/text.h"
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define KEY_CHARS 64

enum type { TEXT, NUMBER, NUMBER_64, FLAG, URLS };
enum { SOURCE = 1 << WS_INFO_SOURCE, BROADCAST = 1 << WS_INFO_BROADCAST, CUDA_IPC = 1 << WS_INFO_CUDA_IPC };

struct field {
    const char *key, *other; /* other: another name that is read too, or NULL */
    enum type type;
    unsigned has, needs; /* of which infos it is, and of which it must be there */
    size_t offset;
    uint64_t least, most; /* of numbers; of texts: most bytes */
    bool (*fits)(const char *text);
    const char *rule; /* for people */
};

/* Is it fit for a log line and an environment variable: not empty, no control characters? */
static bool is_plain(const char *text)
{
    char clean[WS_MAX_URL + 1];
    snprintf(clean, sizeof(clean), "%s", text);
    ws_text_clean(clean);
    return *text && strcmp(clean, text) == 0;
}

static bool is_dtype(const char *text)
{
    enum ws_dtype dtype;
    return ws_dtype_parse_torch(text, &dtype) == 0;
}

#define AT(member)  offsetof(wsync_sync_info, member)
#define PLAIN(most) (most), is_plain, "text without control characters"
#define DTYPE       WS_MAX_NAME, is_dtype, "a torch dtype, such as bfloat16"

static const struct field fields[] = {
    {"override_existing_receiver", NULL, FLAG, SOURCE | BROADCAST | CUDA_IPC, BROADCAST | CUDA_IPC,
     AT(override_existing_receiver), 0, 1, NULL, NULL},
    {"model", NULL, TEXT, SOURCE, SOURCE, AT(source.model), 0, WS_MAX_NAME, ws_name_is_model,
     WS_MODEL_NAME_RULE},
    {"version", NULL, NUMBER_64, SOURCE, 0, AT(source.version), 0, INT64_MAX, NULL, NULL},
    {"run", NULL, TEXT, SOURCE, 0, AT(source.run), 0, WS_LINEAGE_CHARS, ws_lineage_is_safe,
     "1 to 32 of letters, digits, '.', '_' and '-'"},
    {"urls", "url", URLS, SOURCE, SOURCE, AT(source.urls), 0, WS_MAX_URL, NULL, NULL},
    {"master_addr", "master_address", TEXT, BROADCAST, BROADCAST, AT(broadcast.master_addr), 0,
     PLAIN(WS_MAX_NAME)},
    {"master_port", NULL, NUMBER, BROADCAST, BROADCAST, AT(broadcast.master_port), 1, 65535, NULL, NULL},
    {"rank_offset", NULL, NUMBER, BROADCAST, BROADCAST, AT(broadcast.rank_offset), 1, WS_MAX_RANKS - 1, NULL,
     NULL},
    {"world_size", NULL, NUMBER, BROADCAST, BROADCAST, AT(broadcast.world_size), 2, WS_MAX_RANKS, NULL, NULL},
    {"group_name", NULL, TEXT, BROADCAST, 0, AT(broadcast.group_name), 0, PLAIN(WS_MAX_NAME)},
    {"backend", NULL, TEXT, BROADCAST, 0, AT(broadcast.backend), 0, PLAIN(WS_MAX_NAME)},
    {"model_dtype_str", NULL, TEXT, BROADCAST, 0, AT(broadcast.model_dtype_str), 0, DTYPE},
    {"model_dtype_str", NULL, TEXT, CUDA_IPC, CUDA_IPC, AT(cuda_ipc.model_dtype_str), 0, DTYPE},
};
#define N_FIELDS (sizeof(fields) / sizeof(fields[0]))

static void *member(const wsync_sync_info *info, const struct field *f)
{
    return (unsigned char *)(uintptr_t)info + f->offset;
}

static const char *text_of(const wsync_sync_info *info, const struct field *f)
{
    return *(const char *const *)member(info, f);
}

static uint64_t number_of(const wsync_sync_info *info, const struct field *f)
{
    switch (f->type) {
    case NUMBER:
        return *(const unsigned *)member(info, f);
    case NUMBER_64:
        return *(const uint64_t *)member(info, f);
    default:
        return *(const int *)member(info, f) != 0;
    }
}

/* --- checking --- */

static int check_urls(const wsync_sync_info *info, struct ws_error *err)
{
    char source[WS_MAX_URL + 1];
    const wsync_source_info *s = &info->source;
    if (s->n_urls == 0 || s->n_urls > WS_MAX_SOURCES || !s->urls)
        return ws_error_set(err, EINVAL, "it has %zu urls, and not 1 to %d", s->n_urls, WS_MAX_SOURCES);
    for (size_t i = 0; i < s->n_urls; i++) {
        if (!s->urls[i] || strlen(s->urls[i]) > WS_MAX_URL || !is_plain(s->urls[i]))
            return ws_error_set(err, EINVAL, "url %zu is no text of 1 to %d bytes without control characters",
                                i, WS_MAX_URL);
        int rc = ws_sync_info_source(info, i, source, sizeof(source), err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int check_field(const wsync_sync_info *info, const struct field *f, bool needed, struct ws_error *err)
{
    if (f->type == URLS)
        return check_urls(info, err);
    if (f->type == TEXT) {
        const char *text = text_of(info, f);
        if (!text && needed)
            return ws_error_set(err, EINVAL, "it has no \"%s\"", f->key);
        if (text && (strlen(text) > f->most || !f->fits(text)))
            return ws_error_set(err, EINVAL, "its \"%s\" cannot be \"%.100s\": %s", f->key, text, f->rule);
        return 0;
    }
    uint64_t n = number_of(info, f);
    if (n < f->least || n > f->most)
        return ws_error_set(err, EINVAL, "its \"%s\" is %lu, and not %lu to %lu", f->key, n, f->least,
                            f->most);
    return 0;
}

int ws_sync_info_check(const wsync_sync_info *info, struct ws_error *err)
{
    const struct ws_strategy *s = ws_strategy_by_id(info->strategy);
    if (!s)
        return ws_error_set(err, EINVAL, "there is no strategy %d", (int)info->strategy);
    for (size_t i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        int rc = f->has & 1U << s->info ? check_field(info, f, f->needs & 1U << s->info, err) : 0;
        if (rc < 0)
            return rc;
    }
    if (s->info == WS_INFO_BROADCAST && info->broadcast.rank_offset >= info->broadcast.world_size)
        return ws_error_set(err, EINVAL, "its \"rank_offset\" %u is not below its \"world_size\" %u",
                            info->broadcast.rank_offset, info->broadcast.world_size);
    return 0;
}

int ws_sync_info_copy(wsync_sync_info *out, const wsync_sync_info *given, struct ws_error *err)
{
    int rc = ws_struct_abi_copy(out, sizeof(*out), given, "wsync_sync_info", err);
    if (rc == 0 && (rc = ws_sync_info_check(out, err)) < 0)
        ws_error_prefix(err, "the sync info cannot be used");
    return rc;
}

/* --- writing --- */

static json_t *value_of(const wsync_sync_info *info, const struct field *f)
{
    if (f->type == URLS) {
        json_t *urls = json_array();
        for (size_t i = 0; urls && i < info->source.n_urls; i++)
            if (json_array_append_new(urls, json_string(info->source.urls[i])) < 0) {
                json_decref(urls);
                urls = NULL;
            }
        return urls;
    }
    if (f->type == TEXT)
        return json_string(text_of(info, f));
    return f->type == FLAG ? json_boolean(number_of(info, f)) : json_integer((json_int_t)number_of(info, f));
}

/* What is optional and zero is left out. */
static bool is_set(const wsync_sync_info *info, const struct field *f)
{
    if (f->type == TEXT)
        return text_of(info, f) != NULL;
    return f->type != NUMBER_64 || number_of(info, f) != 0;
}

int ws_sync_info_encode(const wsync_sync_info *given, char **json, struct ws_error *err)
{
    wsync_sync_info info;
    *json = NULL;
    int rc = ws_sync_info_copy(&info, given, err);
    if (rc < 0)
        return rc;
    const struct ws_strategy *s = ws_strategy_by_id(info.strategy);
    json_t *o = json_object();
    rc = json_object_set_new(o, "strategy", json_string(s->way->name));
    for (size_t i = 0; rc == 0 && i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        if (f->has & 1U << s->info && is_set(&info, f))
            rc = json_object_set_new(o, f->key, value_of(&info, f));
    }
    /* When an allocation fails, jansson may leave a key out and go on: only malloc's errno shows it. */
    errno = 0;
    *json = rc == 0 ? json_dumps(o, JSON_COMPACT) : NULL;
    if (errno == ENOMEM) {
        free(*json);
        *json = NULL;
    }
    json_decref(o);
    return *json ? 0 : ws_error_set(err, ENOMEM, "no memory for a sync info");
}

/* --- reading --- */

struct owned { /* the caller gets its first member */
    wsync_sync_info info;
    struct ws_arena arena;
};

struct reading {
    struct ws_json j;
    struct owned *o;
    const struct ws_strategy *strategy;
    unsigned seen; /* fields, by index */
};
_Static_assert(N_FIELDS <= 32, "a bit for each field");

static int no_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "no memory for a sync info");
}

static int read_text(struct reading *r, size_t most, const char **out, struct ws_error *err)
{
    char text[WS_MAX_URL + 1];
    assert(most < sizeof(text));
    int rc = ws_json_string(&r->j, text, most + 1, err);
    if (rc == 0 && !(*out = ws_arena_text(&r->o->arena, text, strlen(text))))
        rc = no_memory(err);
    return rc;
}

/* One string, or a list of them. */
static int read_urls(struct reading *r, wsync_source_info *s, struct ws_error *err)
{
    const char **urls = ws_arena_alloc(&r->o->arena, WS_MAX_SOURCES * sizeof(*urls));
    struct ws_json ahead = r->j;
    if (!urls)
        return no_memory(err);
    s->urls = urls;
    s->n_urls = 0;
    if (ws_json_enter(&ahead, '[', NULL) < 0)
        return read_text(r, WS_MAX_URL, &urls[s->n_urls++], err);
    int rc = ws_json_enter(&r->j, '[', err);
    while (rc == 0 && (rc = ws_json_element(&r->j, err)) == 1)
        rc = s->n_urls == WS_MAX_SOURCES
                 ? ws_error_set(err, EBADMSG, "there are more than %d urls", WS_MAX_SOURCES)
                 : read_text(r, WS_MAX_URL, &urls[s->n_urls++], err);
    return rc;
}

static int read_flag(struct reading *r, int *out, struct ws_error *err)
{
    bool set = false;
    int rc = ws_json_flag(&r->j, &set, err);
    *out = set;
    return rc;
}

static int read_value(struct reading *r, const struct field *f, struct ws_error *err)
{
    wsync_sync_info *info = &r->o->info;
    uint64_t n = 0;
    if (f->type == URLS)
        return read_urls(r, &info->source, err);
    if (f->type == TEXT)
        return read_text(r, f->most, member(info, f), err);
    if (f->type == FLAG)
        return read_flag(r, member(info, f), err);
    int rc = ws_json_uint(&r->j, &n, err);
    if (rc == 0 && f->type == NUMBER && n > UINT_MAX)
        rc = ws_error_set(err, EBADMSG, "%lu is too large", n);
    else if (f->type == NUMBER)
        *(unsigned *)member(info, f) = (unsigned)n;
    else
        *(uint64_t *)member(info, f) = n;
    return rc;
}

/* Skips the next value if it is null: a member that is null counts as missing. */
static bool skip_null(struct reading *r)
{
    struct ws_json ahead = r->j;
    json_t *value;
    if (ws_json_value(&ahead, KEY_CHARS, &value, NULL) < 0)
        return false;
    bool is_null = json_is_null(value);
    json_decref(value);
    if (is_null)
        r->j = ahead;
    return is_null;
}

static int read_member(struct reading *r, const char *key, struct ws_error *err)
{
    size_t i = 0;
    while (i < N_FIELDS &&
           !(fields[i].has & 1U << r->strategy->info &&
             (strcmp(fields[i].key, key) == 0 || (fields[i].other && strcmp(fields[i].other, key) == 0))))
        i++;
    if (i == N_FIELDS)
        return ws_json_skip(&r->j, err);
    if (r->seen & 1U << i)
        return ws_error_set(err, EBADMSG, "\"%s\" is there twice", fields[i].key);
    if (skip_null(r))
        return 0;
    r->seen |= 1U << i;
    int rc = read_value(r, &fields[i], err);
    if (rc < 0)
        ws_error_prefix(err, "\"%s\"", key);
    return rc;
}

/* The first walk finds the strategy. */
static int read_strategy(const char *json, size_t len, const char *expected, const struct ws_strategy **out,
                         struct ws_error *err)
{
    struct ws_json j;
    char key[KEY_CHARS], said[KEY_CHARS] = "";
    bool twice = false;
    ws_json_start(&j, json, len);
    int rc = ws_json_enter(&j, '{', err);
    while (rc == 0 && (rc = ws_json_member(&j, key, sizeof(key), err)) == 1) {
        if (strcmp(key, "strategy") != 0) {
            rc = ws_json_skip(&j, err);
            continue;
        }
        rc = twice ? ws_error_set(err, EBADMSG, "\"strategy\" is there twice")
                   : ws_json_string(&j, said, sizeof(said), err);
        twice = true;
    }
    if (rc == 0)
        rc = ws_json_finish(&j, err);
    return rc == 0 ? ws_strategy_resolve(said, expected, out, err) : rc;
}

static int read_all(struct reading *r, const char *json, size_t len, struct ws_error *err)
{
    char key[KEY_CHARS];
    ws_json_start(&r->j, json, len);
    int rc = ws_json_enter(&r->j, '{', err);
    while (rc == 0 && (rc = ws_json_member(&r->j, key, sizeof(key), err)) == 1)
        rc = read_member(r, key, err);
    for (size_t i = 0; rc == 0 && i < N_FIELDS; i++)
        if (fields[i].needs & 1U << r->strategy->info && !(r->seen & 1U << i))
            rc = ws_error_set(err, EBADMSG, "it has no \"%s\"", fields[i].key);
    return rc == 0 ? ws_sync_info_check(&r->o->info, err) : rc;
}

int ws_sync_info_decode(const char *json, size_t len, const char *strategy, wsync_sync_info **out,
                        struct ws_error *err)
{
    struct reading r = {.o = calloc(1, sizeof(*r.o))};
    *out = NULL;
    if (!r.o)
        return no_memory(err);
    int rc = ws_strategy_expect(strategy, len, err);
    if (rc == 0)
        rc = read_strategy(json, len, strategy, &r.strategy, err);
    if (rc == 0) {
        r.o->info.struct_size = sizeof(r.o->info);
        r.o->info.strategy = (wsync_strategy_id)r.strategy->way->id;
        rc = read_all(&r, json, len, err);
        if (rc == -EINVAL) { /* the caller's text is wrong, not an argument */
            rc = -EBADMSG;
            if (err)
                err->code = EBADMSG;
        }
    }
    if (rc == 0) {
        *out = &r.o->info;
        return 0;
    }
    wsync_sync_info_free(&r.o->info);
    ws_error_prefix(err, "the sync info cannot be used");
    return rc;
}

/* --- public --- */

int wsync_sync_info_encode(const wsync_sync_info *info, char **json)
{
    return ws_sync_info_encode(info, json, ws_last_error());
}

int wsync_sync_info_decode(const char *json, size_t len, const char *strategy, wsync_sync_info **out)
{
    return ws_sync_info_decode(json, len, strategy, out, ws_last_error());
}

void wsync_sync_info_free(wsync_sync_info *info)
{
    struct owned *o = (struct owned *)info;
    if (!o)
        return;
    ws_arena_free(&o->arena);
    free(o);
}
