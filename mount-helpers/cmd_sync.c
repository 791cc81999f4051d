/* wsync sync: engines load a path, without a mount. */
#include "backends/trainer/wsync.h"
#include "mount-helpers/cli.h"
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
    {"timeout", 0, "S", "seconds for a load; default 300"},
    {"quiet", 'q', NULL, "print nothing but errors"},
    {0},
};

static int parse_engines(const struct cli_args *args, wsync_engine *out, size_t *n)
{
    for (*n = 0; cli_nth(args, "engine", *n); ++*n) {
        char *text = strdup(cli_nth(args, "engine", *n)), *equals = text ? strchr(text, '=') : NULL;
        if (*n == MAX_ENGINES)
            return cli_usage("more than %d engines", MAX_ENGINES);
        if (!equals)
            return cli_usage("--engine %s: write KIND=URL, as in sglang=http://127.0.0.1:30000",
                             text ? text : "");
        *equals = 0;
        out[*n] = (wsync_engine){.kind = text, .url = equals + 1}; /* lives as long as the process */
    }
    return *n ? CLI_OK : cli_usage("no engine is named: --engine KIND=URL");
}

static int run(const struct cli_args *args)
{
    static wsync_engine engines[MAX_ENGINES];
    static wsync_engine_result results[MAX_ENGINES];
    const char *version = cli_get(args, "version"), *token_file = cli_get(args, "token-file");
    static char path[PATH_MAX];
    char *token = token_file ? cli_read_secret(token_file) : NULL;
    size_t n;
    int code = parse_engines(args, engines, &n);
    if (code)
        return code;
    if (!realpath(cli_word(args, 0), path))
        snprintf(path, sizeof(path), "%s", cli_word(args, 0)); /* where the engines run it may be there */
    if (!version)
        version = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    for (size_t i = 0; i < n; i++) {
        engines[i].version = version;
        engines[i].pause_mode = cli_get(args, "pause");
        engines[i].token = token;
        engines[i].timeout_ms = (unsigned)cli_u64(args, "timeout", 300) * 1000;
    }
    int failed = wsync_sync_weights_to_engines(engines, n, path, results);
    for (size_t i = 0; i < n; i++) {
        if (results[i].rc < 0)
            (void)cli_fail("%s %s: %s", engines[i].kind, engines[i].url, results[i].error);
        else if (!cli_has(args, "quiet"))
            printf("%s %s serves %s, paused for %.3f s\n", engines[i].kind, engines[i].url, version,
                   results[i].pause_seconds);
    }
    free(token);
    if (failed < 0)
        return cli_fail("%s", wsync_error());
    return failed ? CLI_FAILED : CLI_OK;
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
