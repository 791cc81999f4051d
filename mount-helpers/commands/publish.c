/* wsync publish: publishes a checkpoint folder as a version, through the same calls as a trainer. */
#include "backends/engine/adapter_config.h"
#include "backends/trainer/api/agent_address.h"
#include "backends/trainer/wsync.h"
#include "fs/written/commit_request.h"
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/lost_file.h"
#include "mount-helpers/cli/progress.h"
#include "mount-helpers/commands/adapter_folder.h"
#include "transports/base/text.h"
#include "transports/format/folder_index.h"
#include "transports/format/manifest.h"
#include "transports/ipc/peer.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const struct cli_option options[] = {
    {"agent", 'a', "SOCKET",
     "the agent's unix socket; default $WSYNC_AGENT, or "
     "unix:" WS_AGENT_SOCKET},
    {"agent-user", 0, "NAME", "let this account serve the socket, too; default $WSYNC_AGENT_USER"},
    {"model", 'm', "NAME", "the model's name"},
    {"version", 'v', "N", "the version's number, higher than the newest of this lineage", 0, INT64_MAX},
    {"run", 0, "ID",
     "lineage id: up to 32 of letters, digits, '.', '_' and '-'; "
     "default: the model's present one"},
    {"new-run", 0, NULL,
     "open a new lineage: a trainer that resumes from an older step; its numbers "
     "supersede those of the abandoned one"},
    {"base", 'b', "DIR",
     "checkpoint that fills the tensors that CHECKPOINT_DIR lacks; "
     "the manifest names them frozen"},
    {"base-name", 0, "NAME",
     "of an adapter: write this base_model_name_or_path into its adapter_config.json; for vLLM's own "
     "resolver it "
     "is what the server was started with as --model"},
    {"rank", 0, "K",
     "of a checkpoint that several nodes have, each some of its files: this one is the K-th, from 0", 0,
     WS_MAX_RANKS - 1},
    {"world", 0, "N", "so many nodes have; the version is announced when all have published", 1,
     WS_MAX_RANKS},
    {"threads", 't', "N", "copying threads; default: all cores, at most 8", 0, CLI_MAX_THREADS},
    {"timeout", 0, "SECONDS", "longest wait for a free slot; default 60", 0, CLI_MAX_SECONDS},
    {"wait-loaded", 'w', "SECONDS", "then wait until every mount that follows or has engines serves it", 0,
     CLI_MAX_SECONDS},
    {"shared", 0, NULL,
     "CHECKPOINT_DIR is a version's folder where wsync share is mounted: have that publish it, and say what "
     "came of "
     "it; no other option goes with it"},
    {"quiet", 'q', NULL, "print nothing but errors"},
    {0},
};

struct mapped {
    struct ws_folder *folder;
    char *adapter_config; /* that goes along instead of the folder's; NULL: the folder's */
    void **maps;
    wsync_param *params;
    size_t n_params;
    struct ws_folder_index *index; /* of a part: it names the files that all have together */
    const char **expected;
    size_t n_expected;
};

static int map_file(const struct ws_folder *folder, const struct ws_folder_file *f, void **map)
{
    struct ws_error err = {0};
    int fd = ws_folder_file_open(folder, f, &err);
    if (fd < 0)
        return cli_fail("%s", err.text);
    *map = mmap(NULL, f->size_bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (*map == MAP_FAILED) {
        *map = NULL;
        return cli_fail("cannot map %s: %s", f->path, strerror(errno));
    }
    (void)madvise(*map, f->size_bytes, MADV_SEQUENTIAL);
    return CLI_OK;
}

static void add_tensor(struct mapped *m, const struct ws_folder_file *f, const void *map,
                       const struct ws_tensor *t)
{
    wsync_param *p = &m->params[m->n_params++];
    *p = (wsync_param){.name = t->name,
                       .dtype = (wsync_dtype)t->dtype,
                       .n_dims = t->n_dims,
                       .data = (const char *)map + t->begin,
                       .piece.kind = WSYNC_WHOLE,
                       .file = f->name};
    memcpy(p->shape, t->shape, sizeof t->shape);
}

/* Checks an adapter's folder, and what was asked of one. */
static int check_adapter(const struct cli_args *args, struct mapped *m)
{
    const char *base_name = cli_get(args, "base-name");
    struct ws_error err = {0};
    json_t *config;
    int code = CLI_OK;
    if (adapter_folder_read(m->folder, &config, &err) < 0)
        return cli_fail("%s", err.text);
    if (!config)
        return base_name
                   ? cli_fail("--base-name is of an adapter, and %s holds none: no " WS_ADAPTER_CONFIG_NAME,
                              m->folder->path)
                   : CLI_OK;
    if (cli_get(args, "base"))
        code = cli_fail("an adapter has no --base: a version of it holds its own tensors only");
    else if (base_name && !(m->adapter_config = adapter_folder_rename_base(config, base_name)))
        code = cli_fail("no memory, or --base-name is not UTF-8");
    json_decref(config);
    return code;
}

/* The index of the first part: the version has all that it names. */
static int read_expected(struct mapped *m)
{
    struct ws_error err = {0};

    for (size_t i = 0; i < m->folder->n_files; i++) {
        if (strcmp(m->folder->files[i].name, WS_FOLDER_INDEX_NAME) != 0)
            continue;
        const int fd = ws_folder_file_open(m->folder, &m->folder->files[i], &err);
        const int rc = fd < 0 ? fd : ws_folder_index_read(fd, &m->index, &err);
        if (fd >= 0)
            close(fd);
        if (rc < 0)
            return cli_fail("%s", err.text);
    }
    if (!m->index)
        return CLI_OK;
    m->expected = calloc(m->index->n + 1, sizeof(*m->expected));
    if (!m->expected)
        return cli_fail("no memory for the index");
    for (size_t i = 0; i < m->index->n; i++)
        if (i == 0 || strcmp(m->index->by_file[i - 1].file, m->index->by_file[i].file) != 0)
            m->expected[m->n_expected++] = m->index->by_file[i].file;
    return CLI_OK;
}

static int map_folder(const struct cli_args *args, struct mapped *m)
{
    const char *path = cli_word(args, 0);
    struct ws_error err = {0};
    size_t n = 0;
    if ((cli_u64(args, "world", 1) > 1 ? ws_folder_open_part : ws_folder_open)(path, &m->folder, &err))
        return cli_fail("%s", err.text);
    if (check_adapter(args, m))
        return CLI_FAILED;
    if (cli_u64(args, "world", 1) > 1 && cli_u64(args, "rank", 0) == 0 && read_expected(m))
        return CLI_FAILED;
    if (m->folder->n_left_out && !cli_has(args, "quiet")) {
        ws_text_clean(m->folder->left_out);
        printf("left out, as no part of a version: %s%s\n", m->folder->left_out,
               m->folder->n_left_out > 8 ? ", ..." : "");
    }
    for (size_t i = 0; i < m->folder->n_files; i++)
        n += m->folder->files[i].st ? m->folder->files[i].st->n_tensors : 0;
    if (n == 0)
        return cli_fail("%s holds no tensors: there is no *.safetensors file in it, or they are empty", path);
    m->maps = calloc(m->folder->n_files, sizeof *m->maps);
    m->params = calloc(n, sizeof *m->params);
    if (!m->maps || !m->params)
        return cli_fail("no memory for %zu tensors", n);
    for (size_t i = 0; i < m->folder->n_files; i++) {
        const struct ws_folder_file *f = &m->folder->files[i];
        if (!f->st)
            continue;
        if (map_file(m->folder, f, &m->maps[i]))
            return CLI_FAILED;
        for (size_t t = 0; t < f->st->n_tensors; t++)
            add_tensor(m, f, m->maps[i], &f->st->tensors[t]);
    }
    return CLI_OK;
}

static void unmap_folder(struct mapped *m)
{
    for (size_t i = 0; m->folder && m->maps && i < m->folder->n_files; i++)
        if (m->maps[i])
            munmap(m->maps[i], m->folder->files[i].size_bytes);
    free(m->maps);
    free(m->params);
    free(m->adapter_config);
    free(m->expected);
    ws_folder_index_free(m->index);
    ws_folder_free(m->folder);
}

static void show_progress(void *arg, uint64_t done, uint64_t total)
{
    progress_update(arg, done, total);
}

static uint64_t bytes_of(const struct mapped *m)
{
    uint64_t n = 0;
    for (size_t i = 0; i < m->folder->n_files; i++)
        n += m->folder->files[i].size_bytes;
    return n;
}

static int publish(const struct cli_args *args, const struct mapped *m, wsync_config *config,
                   uint64_t version)
{
    const int wait_ms = (int)cli_u64(args, "wait-loaded", 0) * 1000;
    wsync_publisher *pub = NULL;
    int code = CLI_FAILED;
    double start = cli_now();

    int rc = wsync_publisher_open(config, &pub);
    if (rc == 0)
        rc = wsync_offload(pub, m->params, m->n_params, version);
    if (rc == 0)
        rc = wsync_wait_published(pub, version, -1);
    if (rc < 0) {
        cli_fail("%s", wsync_error());
        code = rc == -EEXIST ? CLI_NOT_HIGHER : CLI_FAILED;
        goto out;
    }
    double seconds = cli_now() - start;
    if (!cli_has(args, "quiet"))
        printf("published %s/%" PRIu64 ": %zu tensors, %s in %s, %s, run %s\n", config->model, version,
               m->n_params, cli_size(bytes_of(m)), cli_time(seconds), cli_rate(bytes_of(m), seconds),
               wsync_run(pub));
    if (cli_has(args, "wait-loaded") && wsync_wait_loaded(pub, version, NULL, wait_ms) < 0) {
        cli_fail("%s", wsync_error());
        goto out;
    }
    code = CLI_OK;
out:
    wsync_close(pub);
    return code;
}

static int publish_shared(const struct cli_args *args)
{
    const char *path = cli_word(args, 0);
    struct ws_commit_reply reply;
    struct ws_error err = {0};

    for (size_t i = 0; options[i].name; i++)
        if (strcmp(options[i].name, "shared") != 0 && strcmp(options[i].name, "quiet") != 0 &&
            (options[i].arg ? cli_get(args, options[i].name) != NULL : cli_has(args, options[i].name)))
            return cli_usage("--%s does not go with --shared: wsync share has its own", options[i].name);
    if (ws_commit_request(path, &reply, &err) < 0)
        return cli_fail("%s", err.text);
    switch (reply.state) {
    case WS_COMMIT_DONE:
        if (!cli_has(args, "quiet"))
            printf("published %s as version %" PRIu64 "\n", path, reply.number);
        return CLI_OK;
    case WS_COMMIT_DONE_PART:
        if (!cli_has(args, "quiet"))
            printf("%s is whole, and is published with the other nodes' parts\n", path);
        return CLI_OK;
    case WS_COMMIT_BEFORE:
        cli_fail("%s was published before, as version %" PRIu64 ", and nothing of it is new", path,
                 reply.number);
        return CLI_NOT_HIGHER;
    default:
        return cli_fail("%s is not published: %s", path, reply.text);
    }
}

static int run(const struct cli_args *args)
{
    if (cli_has(args, "shared"))
        return publish_shared(args);
    const char *model = cli_get(args, "model"), *version = cli_get(args, "version");
    char what[WS_MAX_NAME + 64];
    struct progress progress;
    struct mapped m = {0};

    if (!model || !version)
        return cli_usage("--model and --version are needed");
    if (cli_u64(args, "rank", 0) >= cli_u64(args, "world", 1))
        return cli_usage("--rank is lower than --world, from 0");
    if (cli_has(args, "agent-user")) /* libwsync takes it from there */
        setenv(WS_AGENT_USER_VARIABLE, cli_get(args, "agent-user"), 1);
    uint64_t number = cli_u64(args, "version", 0);
    snprintf(what, sizeof what, "publishing %s/%s", model, version);
    progress_start(&progress, cli_has(args, "quiet") ? NULL : what);
    wsync_config config = {
        .struct_size = sizeof config,
        .agent = cli_get(args, "agent"),
        .model = model,
        .run = cli_get(args, "run"),
        .new_run = cli_has(args, "new-run"),
        .rank = (unsigned)cli_u64(args, "rank", 0),
        .world_size = (unsigned)cli_u64(args, "world", 1),
        .base = cli_get(args, "base"),
        .sidecars = cli_word(args, 0),
        .n_threads = (unsigned)cli_u64(args, "threads", 0),
        .timeout_ms = (unsigned)cli_u64(args, "timeout", 60) * 1000,
        .progress = show_progress,
        .progress_arg = &progress,
    };
    cli_lost_file_says("a checkpoint file shrank or failed while it was read; nothing was published");
    signal(SIGPIPE, SIG_IGN);
    int code = map_folder(args, &m);
    const wsync_sidecar renamed = {.name = WS_ADAPTER_CONFIG_NAME,
                                   .data = m.adapter_config,
                                   .bytes = m.adapter_config ? strlen(m.adapter_config) : 0};
    config.files = &renamed;
    config.n_files = m.adapter_config != NULL;
    config.expected = m.expected;
    config.n_expected = m.n_expected;
    if (code == CLI_OK)
        code = publish(args, &m, &config, number);
    progress_end(&progress);
    unmap_folder(&m);
    return code;
}

const struct cli_command cmd_publish = {
    .name = "publish",
    .summary = "publish a checkpoint folder as a version of a model",
    .synopsis = "--model NAME --version N [OPTIONS] CHECKPOINT_DIR",
    .description =
        "Checks the folder (every safetensors header, the index against the files), copies its "
        "tensors into a free slot of the agent, with tensors in name order and their data aligned, and "
        "announces the version when every block is hashed. Sidecars (config.json, tokenizer files) go "
        "along; one that is a link that leads nowhere, or a link that its owner could not read through, or "
        "no "
        "regular file (a FIFO), is an error. What is announced never changes.\n\n"
        "A version that is not higher than the newest one is refused; --new-run opens a new lineage.\n\n"
        "Where several nodes have a checkpoint, each some of its files (model-00001-of-00004.safetensors "
        "...), each "
        "publishes its folder to its own agent with the same version, --rank and --world, and waits for the "
        "others (see "
        "A TRAINER THAT SPANS NODES in wsync-trainer(7)). Sidecars are those of rank 0. A tensor that two "
        "have must be "
        "the same on both, or the version is refused and the error names both.\n\n"
        "--shared is for a script that writes into a folder of wsync share, which publishes by itself what "
        "is whole: it "
        "waits for that, and says what is missing where it is not.\n\n"
        "A folder with adapter_config.json and adapter_model.safetensors is a LoRA adapter, as PEFT's "
        "save_pretrained writes it, and is published as a model of its own under these names, see "
        "wsync-adapter(7). One of the two without the other, or what no engine loads, is refused.",
    .examples = "wsync publish --agent unix:/run/wsync/agent.sock --model actor --version 1 ./checkpoint\n"
                "wsync publish -m actor -v 41 --new-run --wait-loaded 120 ./step-41\n"
                "wsync publish --shared /run/job/broadcasts/step_7\n"
                "wsync publish -m actor-lora -v 7 --base-name /wsync/actor/41 ./adapter-7",
    .statuses = "3: the version does not follow the newest one: its number is not higher, or it is of "
                "another lineage; with --shared: it was published before.",
    .options = options,
    .min_words = 1,
    .max_words = 1,
    .run = run,
};
