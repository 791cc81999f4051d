/* Adapters on the mounts of this host: does an engine of the mount serve the base that each names? vLLM's own resolver
 * loads an adapter from a folder only where its base_model_name_or_path is what the server was started with as --model,
 * letter by letter, and else says nothing but that there is no such model. Only versions that are complete are read, so
 * that nothing is fetched. */
#include "backends/engine/adapter_config.h"
#include "mount-helpers/doctor/doctor.h"
#include "transports/base/file.h"
#include "transports/base/limits.h"
#include "transports/base/text.h"
#include "transports/http/client.h"
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MS 2000
#define MAX_BASES 64
#define MAX_TEXT  (64UL << 10) /* of a mount's engines or status */

/* What the vLLM engines of a mount were started with. */
struct bases {
    size_t n;
    char *names[MAX_BASES];
    bool lacking; /* an engine did not answer: there may be more */
};

/* A small file below the mount, NUL-terminated; NULL: it is not there, or is larger. */
static char *read_small(const char *folder, const char *name, size_t most)
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", folder, name) >= sizeof(path))
        return NULL;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    char *text = fd < 0 ? NULL : malloc(most + 2);
    const ssize_t n = text ? ws_file_read(fd, text, most + 1, 0) : -1;
    if (fd >= 0)
        close(fd);
    if (n < 0 || (size_t)n > most) {
        free(text);
        return NULL;
    }
    text[n] = '\0';
    return text;
}

static void add_base(struct bases *b, const char *name)
{
    for (size_t i = 0; i < b->n; i++)
        if (strcmp(b->names[i], name) == 0)
            return;
    if (b->n < MAX_BASES && (b->names[b->n] = strdup(name)))
        b->n++;
    else
        b->lacking = true;
}

/* An adapter that is loaded has a parent; what the server was started with has none. */
static void ask_engine(struct ws_http_client *http, const char *url, struct bases *b)
{
    const struct ws_http_request request = {
        .what = "an engine", .url = url, .path = "/v1/models", .timeout_ms = ANSWER_MS};
    struct ws_http_reply reply = {0};
    struct ws_error ignored = {0};
    bool said = false;
    const json_t *card;
    size_t i;
    if (ws_http_call(http, &request, &reply, &ignored) == 0 && reply.status == 200) {
        json_array_foreach(json_object_get(reply.json, "data"), i, card)
        {
            const char *root = json_string_value(json_object_get(card, "root"));
            if (!root || json_is_string(json_object_get(card, "parent")))
                continue;
            add_base(b, root);
            said = true;
        }
    }
    b->lacking |= !said;
    ws_http_reply_release(&reply);
}

/* Lines of NAME STATE VERSION KIND URL ... */
static void ask_engines(struct ws_http_client *http, const char *model_folder, struct bases *b)
{
    char *text = read_small(model_folder, "engines", MAX_TEXT), *rest = text;
    for (const char *line; text && (line = strsep(&rest, "\n"));) {
        char kind[16], url[WS_MAX_URL + 1];
        if (sscanf(line, "%*s %*s %*s %15s %1024s", kind, url) == 2 && strcmp(kind, "vllm") == 0)
            ask_engine(http, url, b);
    }
    free(text);
}

/* Is the line of a version that is complete, "version.NUMBER STATE ..."? */
static bool is_complete(const char *line, uint64_t *version)
{
    static const char *const states[] = {"ready", "active"};
    const char *at = line + strlen("version.");
    if (strncmp(line, "version.", strlen("version.")) != 0 || ws_text_digits(&at, version) || *at++ != ' ')
        return false;
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
        const size_t n = strlen(states[i]);
        if (strncmp(at, states[i], n) == 0 && (at[n] == ' ' || !at[n]))
            return true;
    }
    return false;
}

/* The highest of a model's versions that is complete. */
static bool newest_complete(const char *model_folder, uint64_t *version)
{
    char *text = read_small(model_folder, "status", MAX_TEXT), *rest = text;
    bool found = false;
    *version = 0;
    for (const char *line; text && (line = strsep(&rest, "\n"));) {
        uint64_t n = 0;
        if (!is_complete(line, &n))
            continue;
        *version = n > *version ? n : *version;
        found = true;
    }
    free(text);
    return found;
}

static void judge(struct doctor *d, const char *folder, const char *base, const struct bases *b)
{
    for (size_t i = 0; i < b->n; i++) {
        if (strcmp(b->names[i], base) == 0) {
            doctor_say(d, DOCTOR_OK, "adapter", "%s: its base %s is what an engine was started with", folder,
                       base);
            return;
        }
    }
    if (b->lacking)
        doctor_say(d, DOCTOR_NOTE, "adapter",
                   "%s: its base is %s; not all engines say what they were started with, so that it is not "
                   "known whether one has it",
                   folder, base);
    else
        doctor_say(d, DOCTOR_NOTE, "adapter",
                   "%s: its base is %s, and no engine was started with that (%s%s): vLLM's own resolver does "
                   "not load it; publish it with --base-name",
                   folder, base[0] ? base : "not named", b->names[0], b->n > 1 ? ", ..." : "");
}

static void look_at_model(struct doctor *d, const char *model_folder, const struct bases *b)
{
    const struct ws_adapter_server any = {.kind = "vllm"};
    struct ws_adapter_config config;
    struct ws_error err = {0};
    char folder[4096];
    uint64_t version;
    if (!newest_complete(model_folder, &version) ||
        (size_t)snprintf(folder, sizeof(folder), "%s/%" PRIu64, model_folder, version) >= sizeof(folder))
        return;
    char *text = read_small(folder, WS_ADAPTER_CONFIG_NAME, WS_MAX_ADAPTER_CONFIG_BYTES);
    if (text && ws_adapter_check(text, strlen(text), &any, &config, &err) < 0)
        doctor_say(d, DOCTOR_NOTE, "adapter", "%s: no engine loads it: %s", folder, err.text);
    else if (text)
        judge(d, folder, config.base, b);
    free(text);
}

/* Calls one of the two for each model of a mount. */
static void each_model(const char *mount, struct ws_http_client *http, struct bases *b, struct doctor *d)
{
    DIR *dir = opendir(mount);
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        char folder[4096];
        if (e->d_name[0] == '.' ||
            (size_t)snprintf(folder, sizeof(folder), "%s/%s", mount, e->d_name) >= sizeof(folder))
            continue;
        if (http)
            ask_engines(http, folder, b);
        else
            look_at_model(d, folder, b);
    }
    if (dir)
        closedir(dir);
}

void doctor_adapters(struct doctor *d, const char *mount)
{
    struct ws_http_client *http;
    struct ws_error ignored = {0};
    struct bases b = {0};
    if (ws_http_client_new(&http, &ignored) < 0)
        return;
    each_model(mount, http, &b, NULL);
    ws_http_client_free(http);
    if (b.n > 0)
        each_model(mount, NULL, &b, d);
    for (size_t i = 0; i < b.n; i++)
        free(b.names[i]);
}
