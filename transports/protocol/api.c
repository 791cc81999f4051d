/* The HTTP API's paths, shared by the carriers tcp and ipc. */
#include "transports/protocol/api.h"
#include "transports/base/name.h"
#include "transports/base/text.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_POLL_MS 30000
#define LONGEST_POLL_MS 120000

/* Copies one path component, percent-decoded. Advances *at past it and its slash. */
static int parse_component(const char **at, char *out, size_t cap)
{
    size_t n = 0;
    const char *p = *at;
    while (*p && *p != '/') {
        unsigned c = (unsigned char)*p++;
        if (c == '%') {
            if (!isxdigit((unsigned char)p[0]) || !isxdigit((unsigned char)p[1]))
                return -EINVAL;
            c = (unsigned)strtoul((const char[]){p[0], p[1], 0}, NULL, 16);
            p += 2;
        }
        if (c == 0 || n + 1 >= cap)
            return -EINVAL;
        out[n++] = (char)c;
    }
    out[n] = 0;
    *at = *p == '/' ? p + 1 : p;
    return n ? 0 : -EINVAL;
}

/* Value of a key in a query "a=1&b=2", and its length; NULL: there is none. */
static const char *find_value(const char *query, const char *key, size_t *chars)
{
    size_t k = strlen(key);
    for (const char *p = query; p && *p;) {
        size_t n = strcspn(p, "&");
        if (n > k && strncmp(p, key, k) == 0 && p[k] == '=') {
            *chars = n - k - 1;
            return p + k + 1;
        }
        p += n + (p[n] == '&');
    }
    return NULL;
}

/* Copies it: 0 when found, -ENOENT, -EINVAL when it does not fit. */
static int query_value(const char *query, const char *key, char *out, size_t cap)
{
    size_t n;
    const char *value = find_value(query, key, &n);
    if (!value)
        return -ENOENT;
    if (n >= cap)
        return -EINVAL;
    memcpy(out, value, n);
    out[n] = 0;
    return 0;
}

/* A percent-encoded name in the query; empty where it is missing. */
static int parse_name(const char *query, const char *key, char *out, size_t cap)
{
    char name[3 * WS_MOUNT_ID_CHARS + 1];
    const char *at = name;
    int rc = query_value(query, key, name, sizeof(name));
    return rc == -EINVAL || (rc == 0 && (parse_component(&at, out, cap) || *at)) ? -EINVAL : 0;
}

static int parse_mount_id(const char *query, struct ws_api_request *out)
{
    return parse_name(query, "who", out->mount_id, sizeof(out->mount_id));
}

static int parse_poll(const char *query, struct ws_api_request *out)
{
    char text[32];
    uint64_t timeout = DEFAULT_POLL_MS;
    out->kind = WS_API_EVENTS;
    int rc = query_value(query, "since", text, sizeof(text));
    if (rc == -EINVAL || (rc == 0 && ws_text_u64(text, &out->since)))
        return -EINVAL;
    rc = query_value(query, "timeout_ms", text, sizeof(text));
    if (rc == -EINVAL || (rc == 0 && ws_text_u64(text, &timeout)))
        return -EINVAL;
    out->timeout_ms = timeout > LONGEST_POLL_MS ? LONGEST_POLL_MS : (unsigned)timeout;
    return parse_mount_id(query, out);
}

/* A small number in the query; as it was where it is missing. */
static int parse_number(const char *query, const char *key, uint64_t most, uint64_t *out)
{
    char text[32];
    int rc = query_value(query, key, text, sizeof(text));
    if (rc == -ENOENT)
        return 0;
    return rc < 0 || ws_text_u64(text, out) || *out > most ? -EINVAL : 0;
}

static int parse_delta(const char *query, struct ws_api_request *out)
{
    uint64_t base = UINT64_MAX, part = 0, parts = 1, level = 0;
    if (parse_number(query, "base", INT64_MAX, &base) || base == UINT64_MAX ||
        parse_number(query, "part", WS_MAX_STREAMS, &part) ||
        parse_number(query, "parts", WS_MAX_STREAMS, &parts) || parse_number(query, "level", 3, &level) ||
        part >= parts ||
        query_value(query, "base_run", out->base.lineage, sizeof(out->base.lineage)) == -EINVAL)
        return -EINVAL;
    out->only = find_value(query, "only", &out->only_chars);
    out->base.version = base;
    out->part = (unsigned)part;
    out->parts = (unsigned)parts;
    out->level = (unsigned)level;
    return 0;
}

static const struct {
    enum ws_api_kind kind;
    const char *verb;
} verbs[] = {{WS_API_MANIFEST, "manifest"}, {WS_API_DELTAS, "deltas"}, {WS_API_DELTA, "delta"},
             {WS_API_FILE, "files"},        {WS_API_MAP, "map"},       {WS_API_UNMAP, "unmap"}};

static int parse_version_path(const char *at, const char *query, struct ws_api_request *out)
{
    char what[32], number[32];
    if (parse_component(&at, number, sizeof(number)))
        return 0; /* not ours: OTHER */
    out->has_version = ws_text_u64(number, &out->version) == 0;
    if (!out->has_version && *at == 0)
        memcpy(out->verb, number, sizeof(out->verb));
    else if (!out->has_version && strcmp(number, "mounts") == 0 && strcmp(at, "remove") == 0)
        (void)stpcpy(out->verb, "mounts/remove");
    if (!out->has_version || parse_component(&at, what, sizeof(what)))
        return 0;
    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
        if (strcmp(what, verbs[i].verb) == 0 && (verbs[i].kind == WS_API_FILE || *at == 0))
            out->kind = verbs[i].kind;
    if (out->kind == WS_API_OTHER && *at == 0)
        memcpy(out->verb, what, sizeof(out->verb));
    if (out->kind == WS_API_FILE &&
        (parse_component(&at, out->file, sizeof(out->file)) || *at || !ws_name_is_file(out->file)))
        return -EINVAL;
    if (query_value(query, "run", out->lineage, sizeof(out->lineage)) == -EINVAL)
        return -EINVAL;
    uint64_t copy = 0, copies = 0;
    if (out->kind == WS_API_MAP &&
        (parse_number(query, "copy", 1, &copy) || parse_number(query, "copies", 1, &copies)))
        return -EINVAL;
    out->copy = copy;
    out->copies = copies;
    if (out->kind == WS_API_DELTA && parse_delta(query, out))
        return -EINVAL;
    return parse_mount_id(query, out);
}

int ws_api_parse(const char *path, const char *query, struct ws_api_request *out, struct ws_error *err)
{
    const char *at = path;
    *out = (struct ws_api_request){.kind = WS_API_OTHER};
    int rc = parse_name(query, "as", out->on_behalf, sizeof(out->on_behalf));
    if (rc)
        return ws_error_set(err, EINVAL, "the query of the request '%.200s' is malformed", path);
    if (strcmp(path, "/v1/models") == 0) {
        out->kind = WS_API_MODELS;
    } else if (strcmp(path, "/v1/events") == 0) {
        rc = parse_poll(query, out);
    } else if (strncmp(at, "/v1/", 4) == 0) {
        at += 4;
        if (parse_component(&at, out->model, sizeof(out->model)) == 0 && ws_name_is_offered(out->model))
            rc = strcmp(at, "events") == 0 ? parse_poll(query, out) : parse_version_path(at, query, out);
    }
    if (rc)
        return ws_error_set(err, EINVAL, "the path or query of the request '%.200s' is malformed", path);
    return 0;
}

/* Appends a name, percent-encoded where RFC 3986 does not call a character unreserved. */
static char *put_name(char *at, const char *name)
{
    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        at += isalnum(*p) || strchr("-._~", *p) ? sprintf(at, "%c", *p) : sprintf(at, "%%%02X", *p);
    return at;
}

int ws_api_add_argument(char *out, size_t cap, const char *key, const char *name)
{
    const size_t n = strlen(out);
    if (n + strlen(key) + 3 * strlen(name) + 3 > cap)
        return -ENAMETOOLONG;
    char *at = stpcpy(out + n, strchr(out, '?') ? "&" : "?");
    at = put_name(stpcpy(stpcpy(at, key), "="), name);
    *at = 0;
    return 0;
}

void ws_api_models_path(char out[WS_API_PATH_BYTES], const char *model, uint64_t since, unsigned timeout_ms,
                        const char *mount_id)
{
    char *at = stpcpy(out, "/v1/");
    if (model)
        at = stpcpy(put_name(at, model), "/");
    if (since == 0 && !model)
        (void)stpcpy(at, "models");
    else
        at += sprintf(at, "events?since=%" PRIu64 "&timeout_ms=%u", since, since ? timeout_ms : 0);
    if (since && mount_id)
        put_name(stpcpy(at, "&who="), mount_id);
}

void ws_api_model_path(char out[WS_API_PATH_BYTES], const char *verb, const char *model)
{
    sprintf(put_name(stpcpy(out, "/v1/"), model), "/%s", verb);
}

void ws_api_loaded_path(char out[WS_API_PATH_BYTES], const char *model, uint64_t version,
                        const char *mount_id)
{
    ws_api_version_path(out, "loaded", model, version, NULL, NULL);
    put_name(stpcpy(out + strlen(out), "?who="), mount_id);
}

void ws_api_version_path(char out[WS_API_PATH_BYTES], const char *verb, const char *model, uint64_t version,
                         const char *file, const char *lineage)
{
    char *at = put_name(stpcpy(out, "/v1/"), model);
    at += sprintf(at, "/%" PRIu64 "/%s", version, verb);
    if (file)
        at = put_name(stpcpy(at, "/"), file);
    if (lineage && *lineage)
        (void)stpcpy(stpcpy(at, "?run="), lineage);
}

void ws_api_map_path(char out[WS_API_PATH_BYTES], const char *model, uint64_t version, const char *lineage,
                     bool copy)
{
    ws_api_version_path(out, "map", model, version, NULL, lineage);
    const char mark = strchr(out, '?') ? '&' : '?';
    sprintf(out + strlen(out), "%c%s=1", mark, copy ? "copy" : "copies");
}

void ws_api_delta_path(char out[WS_API_PATH_BYTES], const char *model, const struct ws_version_id *target,
                       const struct ws_version_id *base, unsigned part, unsigned parts, unsigned level)
{
    ws_api_version_path(out, "delta", model, target->version, NULL, target->lineage);
    sprintf(out + strlen(out), "%cbase=%" PRIu64 "&base_run=%s&part=%u&parts=%u&level=%u",
            target->lineage[0] ? '&' : '?', base->version, base->lineage, part, parts, level);
}
