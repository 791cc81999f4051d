/* wsync engine: the reference engine as a command. */
#include "backends/engine/reference/reference.h"
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/systemd.h"
#include "transports/base/log.h"
#include "transports/base/secret.h"
#include <stdlib.h>
#include <string.h>

static const struct cli_option options[] = {
    {"listen", 'l', "HOST:PORT", "default 127.0.0.1:30000"},
    {"model-path", 'p', "DIR", "the checkpoint folder that it loads at start"},
    {"api", 0, "NAME", "whose routes it speaks: sglang (default) or vllm"},
    {"api-key-file", 0, "FILE", "ask for the bearer token in the file's first line"},
    {"refuse", 0, "N", "answer 400 to a load of this version, as an engine does that cannot load it"},
    {"lie", 0, NULL, "with --refuse: say that the version was loaded, and go on as before"},
    {"slow", 0, "MS", "add this many milliseconds to each load", 0, 3600000},
    {"busy", 0, "N", "refuse the first N flushes of the cache, as if requests were in the way", 0, 1000000},
    {"die-at", 0, "STEP", "exit at a step: pause, open, load, reply, wake, continue, adapter or draft"},
    {"max-lora-rank", 0, "R", "the largest rank of adapters that it takes (default 64); 0: it takes none", 0,
     65536},
    {"refuse-adapter", 0, "NAME",
     "refuse to load an adapter under this name; with --lie: say that it was loaded"},
    {"draft-model-path", 0, "DIR", "the checkpoint folder of a draft model, loaded at start"},
    {"weight-transfer", 0, NULL,
     "with what loads a draft model alone: vLLM with wsync's back end for transfer sessions, SGLang with "
     "wsync's plug-in"},
    {"patch", 0, "N",
     "play N workers that have wsync's package, and write what changed into the weights that they hold", 0,
     16},
    {"patch-fault", 0, "WORD",
     "what goes wrong in a patch: prepare, refuse-put, half-put, lose-put, die-put, half-undo, die-undo or "
     "drift"},
    {"api-servers", 0, "N",
     "vLLM's: processes that answer; with more than one nothing says when it was started", 1, 64},
    {"realistic", 0, NULL,
     "fail as the real servers do: a bad file ends SGLang's, and costs vLLM's its weights"},
    {"lifelike", 0, NULL, "the former name of --realistic"},
    {0},
};

static int run(const struct cli_args *args)
{
    const char *listen = cli_get(args, "listen"), *key_file = cli_get(args, "api-key-file");
    char *key = key_file ? cli_read_token(key_file) : NULL;
    struct ws_reference_options o = {
        .listen = listen ? listen : "127.0.0.1:30000",
        .model_path = cli_get(args, "model-path"),
        .api = cli_get(args, "api"),
        .api_key = key,
        .refuse = cli_get(args, "refuse"),
        .lie = cli_has(args, "lie"),
        .slow_ms = (unsigned)cli_u64(args, "slow", 0),
        .busy = (unsigned)cli_u64(args, "busy", 0),
        .die_at = cli_get(args, "die-at"),
        .realistic = cli_has(args, "realistic") || cli_has(args, "lifelike"),
        .max_lora_rank = (unsigned)cli_u64(args, "max-lora-rank", 64),
        .refuse_adapter = cli_get(args, "refuse-adapter"),
        .draft_path = cli_get(args, "draft-model-path"),
        .transfers = cli_has(args, "weight-transfer"),
        .patch_workers = (unsigned)cli_u64(args, "patch", 0),
        .patch_fault = cli_get(args, "patch-fault"),
        .api_servers = (unsigned)cli_u64(args, "api-servers", 1),
    };
    struct ws_error err = {0};
    struct ws_reference *engine;

    if (!o.model_path)
        return cli_usage("--model-path is needed");
    cli_block_signals();
    if (ws_reference_new(&engine, &o, &err))
        return cli_fail("%s", err.text);
    ws_log(WS_LOG_INFO, "engine", "serving path=%s port=%u", o.model_path, ws_reference_port(engine));
    notify_ready();
    cli_wait_signal();
    ws_reference_free(engine);
    ws_secret_free(key);
    return CLI_OK;
}

const struct cli_command cmd_engine = {
    .name = "engine",
    .summary = "a reference engine: SGLang's or vLLM's routes, really loads, needs no GPU",
    .synopsis = "--model-path DIR [OPTIONS]",
    .description =
        "A small server that loads safetensors folders as SGLang and vLLM do (each file opened twice "
        "at once, mapped privately, tensors read in name order), keeps its own copy of the weights, and "
        "answers /weights_checker with the checksum of what it holds, a draft model and adapters included. "
        "For trying out a deployment and for tests: --refuse, --lie, --slow, --busy, --die-at, "
        "--patch-fault and --refuse-adapter make it fail on purpose. It generates no text worth reading.",
    .examples = "wsync engine --listen 127.0.0.1:30000 --model-path /wsync/actor/1\n"
                "curl -s http://127.0.0.1:30000/model_info",
    .options = options,
    .run = run,
};
