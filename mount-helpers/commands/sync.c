/* wsync sync: engines load a path, without a mount. */
#include "backends/trainer/wsync.h"
#include "mount-helpers/cli/cli.h"
#include "transports/base/secret.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENGINES 256

static const struct cli_option options[] = {
    {"engine", 'e', "KIND=URL",
     "sglang=http://HOST:PORT or vllm=http://HOST:PORT; as often as there are engines"},
    {"version", 0, "N", "what the engines are told that they serve; default: the path's last part"},
    {"pause", 0, "MODE", "the kind's own word; default sglang retract, vllm keep"},
    {"token-file", 0, "FILE", "bearer token of all of them, in the file's first line"},
    {"admin-token-file", 0, "FILE", "the same for what changes them, where that wants another one"},
    {"ca-file", 0, "FILE", "authorities to trust for https; default the system's"},
    {"cache", 0, "WHAT",
     "emptied after the load: local (default), external (its stores, too), keep (nothing)"},
    {"timeout", 0, "S", "seconds for a load; default 300", 1, CLI_MAX_SECONDS},
    {"quiet", 'q', NULL, "print nothing but errors"},
    {0},
};

struct named {
    size_t n;
    wsync_engine engines[MAX_ENGINES];
    wsync_engine_result results[MAX_ENGINES];
    char *texts[MAX_ENGINES]; /* what the engines' strings point into */
};

static int parse_engines(const struct cli_args *args, struct named *out)
{
    for (const char *text; (text = cli_nth(args, "engine", out->n)); out->n++) {
        if (out->n == MAX_ENGINES)
            return cli_usage("more than %d engines", MAX_ENGINES);
        char *copy = out->texts[out->n] = strdup(text), *equals = copy ? strchr(copy, '=') : NULL;
        if (!equals) {
            free(copy);
            return cli_usage("--engine %s: write KIND=URL, as in sglang=http://127.0.0.1:30000", text);
        }
        *equals = 0;
        out->engines[out->n] = (wsync_engine){.kind = copy, .url = equals + 1};
    }
    return out->n ? CLI_OK : cli_usage("no engine is named: --engine KIND=URL");
}

static int sync_all(const struct cli_args *args, struct named *all, const char *token,
                    const char *admin_token)
{
    const char *version = cli_get(args, "version");
    char path[PATH_MAX];
    if (!realpath(cli_word(args, 0), path))
        snprintf(path, sizeof(path), "%s", cli_word(args, 0)); /* where the engines run it may be there */
    if (!version)
        version = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    for (size_t i = 0; i < all->n; i++) {
        wsync_engine *e = &all->engines[i];
        e->version = version;
        e->pause_mode = cli_get(args, "pause");
        e->token = token;
        e->admin_token = admin_token;
        e->ca_file = cli_get(args, "ca-file");
        e->cache = cli_get(args, "cache");
        e->timeout_ms = (unsigned)cli_u64(args, "timeout", 300) * 1000;
    }
    int failed = wsync_sync_weights_to_engines(all->engines, all->n, path, all->results);
    for (size_t i = 0; i < all->n && failed >= 0; i++) {
        const wsync_engine *e = &all->engines[i];
        if (all->results[i].rc < 0)
            (void)cli_fail("%s %s: %s", e->kind, e->url, all->results[i].error);
        else if (!cli_has(args, "quiet"))
            printf("%s %s serves %s, paused for %s\n", e->kind, e->url, version,
                   cli_time(all->results[i].pause_seconds));
    }
    return failed < 0 ? cli_fail("%s", wsync_error()) : failed ? CLI_FAILED : CLI_OK;
}

static int run(const struct cli_args *args)
{
    const char *token_file = cli_get(args, "token-file"), *admin_file = cli_get(args, "admin-token-file");
    struct named *all = calloc(1, sizeof(*all));
    if (!all)
        return cli_fail("no memory");
    int code = parse_engines(args, all);
    char *token = code == CLI_OK && token_file ? cli_read_token(token_file) : NULL;
    char *admin_token = code == CLI_OK && admin_file ? cli_read_token(admin_file) : NULL;
    if (code == CLI_OK)
        code = sync_all(args, all, token, admin_token);
    for (size_t i = 0; i < all->n; i++)
        free(all->texts[i]);
    ws_secret_free(token);
    ws_secret_free(admin_token);
    free(all);
    return code;
}

const struct cli_command cmd_sync = {
    .name = "sync",
    .summary = "let engines load a folder, without a mount",
    .synopsis = "PATH --engine KIND=URL [--engine ...] [OPTIONS]",
    .description = "Each engine is paused, loads PATH (as it sees it), is asked what it serves, and resumed; "
                   "all of them at once. One "
                   "that fails loads back what it served before. They are not bound to each other: to switch "
                   "all or none, register "
                   "them with a mount (engine add) and use load. Nothing is kept: the version is yours.",
    .examples = "wsync sync /models/actor-42 --engine sglang=http://10.0.0.5:30000 --engine "
                "vllm=http://10.0.0.4:8000",
    .options = options,
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
