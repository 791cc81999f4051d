/* wsync agent: holds a trainer node's slots and serves them. */
#include "backends/trainer/agent/agent.h"
#include "backends/trainer/api/agent_address.h"
#include "fs/switch/settings_lock.h"
#include "mount-helpers/cli/capabilities.h"
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/systemd.h"
#include "mount-helpers/commands/agent_start.h"
#include "transports/base/audit_log.h"
#include "transports/base/descriptor_keeper.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/respawn.h"
#include "transports/base/secret.h"
#include "transports/memory/region.h"
#include "transports/s3/place.h"
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_ASTRAFLOW 64
#define MAX_VIEWS     16
#define MAX_IGNORED   256

/* What --derive and --derive-ignore say. */
struct views {
    struct ws_agent_view views[MAX_VIEWS];
    size_t n;
    const char *ignored[MAX_VIEWS][MAX_IGNORED];
};

static const struct cli_option options[] = {
    {"listen", 'l', "HOST:PORT", "serve HTTP here; default: no TCP, mounts on this host come by --socket"},
    {"socket", 's', "PATH",
     "unix socket for publishers and for mounts on this host; default " WS_AGENT_SOCKET ", 'none' for none"},
    {"group", 'g', "NAME", "let this group use the socket (it may then publish and read)"},
    {"tokens", 0, "FILE",
     "the identities of HTTP clients and their roles, as wsync token add writes them; read again when it "
     "changes"},
    {"token-file", 0, "FILE",
     "ask HTTP clients for the bearer token in the file's first line: one for all, it may read, report and "
     "release"},
    {"insecure", 0, NULL, "ask HTTP clients for no token: who reaches the port may read, report and release"},
    {"nodes", 0, NULL,
     "let agents of the trainer's other nodes report here with the one token of --token-file, or with "
     "--insecure; "
     "with --tokens their line has the role node instead"},
    {"print-routes", 0, NULL, "print which role each route asks for, and exit"},
    {"tls-cert", 0, "FILE", "serve TLS 1.3 with this PEM certificate"},
    {"tls-key", 0, "FILE", "its private key"},
    {"tls-client-ca", 0, "FILE", "serve only clients with a certificate signed by this CA"},
    {"primary", 0, "URL",
     "a trainer that spans nodes has an agent on each: on all but one (the node of rank 0) this names that "
     "one's "
     "agent, http://HOST:PORT"},
    {"primary-token-file", 0, "FILE", "with --primary: its bearer token; default: that of --token-file"},
    {"primary-insecure", 0, NULL,
     "with --primary: send the token to http:// on another host, too, in clear text"},
    {"primary-ca", 0, "FILE", "with --primary: trust this CA's certificates (PEM) for https"},
    {"primary-cert", 0, "FILE", "with --primary: show this client certificate"},
    {"primary-key", 0, "FILE", "with --primary: its private key"},
    {"sign-key", 0, "FILE",
     "sign each version with this secret key (wsync key new), for mounts with verify-key="},
    {"memory", 'm', "SIZE", "budget of all slots; default: what the machine and its cgroups allow"},
    {"slots", 0, "N",
     "most slots of one model; default 4: two, and those that readers on this host keep. These get the "
     "memory "
     "of N - 2 versions, as far as --memory has room for all of them, and copies of others",
     2, WS_MAX_SLOTS},
    {"astraflow", 0, "[MODEL=]HOST:PORT",
     "serve AstraFlow's own receivers here, too (one model a listener; without MODEL the only one that there "
     "is); their protocol knows no token: who reaches this port can have the weights"},
    {"astraflow-stall", 0, "SECONDS", "give a receiver up that takes no bytes for so long; default 30", 1,
     CLI_MAX_SECONDS},
    {"state", 0, "FILE",
     "keep in this file what was released last, the newest numbers and which mounts there are, for the agent "
     "that is "
     "started next; registrations of AstraFlow's receivers are kept beside it. A folder, as before 0.2: only "
     "the latter, "
     "in it; default for these /var/lib/wsync, or below the home of one who is not root; 'none': nothing is "
     "kept"},
    {"supervised", 0, NULL,
     "an agent that dies is replaced, and the next one serves the same versions: see AN AGENT THAT DIES in "
     "wsync-fleet(7)"},
    {"delta-cache", 0, "SIZE",
     "memory for deltas between versions, of all models; default a tenth of the models, which is room for "
     "three "
     "steps that change 5 %, and 1G at least; 0: none are made"},
    {"derive", 0, "MODEL@RECIPE",
     "keep a quantised view of MODEL beside it: a model of this name, with the same numbers, that mounts and "
     "engines use "
     "as any other; repeatable. Recipes: wsync-quant(7)"},
    {"derive-ignore", 0, "MODEL@RECIPE=MODULE",
     "with --derive: leave this module as it is, by its full name, or re: and a regular expression; "
     "repeatable"},
    {"archive", 0, "DIR|s3://BUCKET/PREFIX",
     "write versions to this folder, readable as dir:DIR and by http: behind any web server; or to this "
     "object "
     "store, with the keys and at the place that AWS's variables and files name (wsync-archive(7))"},
    {"archive-insecure", 0, NULL,
     "with --archive s3://: the store may be spoken to by http:// beyond loopback, too, in clear text"},
    {"archive-every", 0, "N", "with --archive: every N-th version whole, deltas between; 1 to 64, default 10",
     1, 64},
    {"archive-keep", 0, "K",
     "with --archive: keep the newest K whole versions and the deltas on them; default 3; while the next one "
     "is written there are K + 1",
     1, 10000},
    {"broadcast", 0, "DEVICE|auto|off",
     "send versions by NCCL to all mounts at once that ask for it within a short time, from this GPU; auto: "
     "the "
     "first one that is visible, and none where that does not work; default off"},
    {"broadcast-window", 0, "MS", "with --broadcast: how long others are waited for; 1 to 2000, default 100",
     1, 2000},
    {"ucx", 0, NULL,
     "mounts with -o ucx may fetch versions by UCX: InfiniBand, RoCE, shared memory, as UCX's own variables "
     "say, "
     "and its TCP where UCX_TLS asks for it. Only in a network whose machines are trusted: "
     "wsync-security(7)"},
    {"audit-log", 0, "FILE", "append who published, released and was refused what: a line of JSON each"},
    {"threads", 't', "N", "threads for hashing after a commit, and as many for deltas; default: all cores", 0,
     CLI_MAX_THREADS},
    {"nice", 0, "N", "nice value of the background threads", 0, 19},
    {0},
};

static int make_parent(const char *path)
{
    char dir[4096];
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return 0;
    snprintf(dir, sizeof dir, "%.*s", (int)(slash - path), path);
    return mkdir(dir, 0755) && errno != EEXIST ? -errno : 0;
}

/* The file of --state; NULL: it is a folder, none, or not given. */
static const char *state_file(const struct cli_args *args)
{
    const char *path = cli_get(args, "state");
    struct stat st;
    if (!path || strcmp(path, "none") == 0 || !*path || path[strlen(path) - 1] == '/')
        return NULL;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? NULL : path;
}

/* Where registrations are kept: NULL: where that is by default. */
static const char *astraflow_folder(const struct cli_args *args, char *out, size_t cap)
{
    const char *file = state_file(args), *slash = file ? strrchr(file, '/') : NULL;
    if (!file)
        return cli_get(args, "state");
    snprintf(out, cap, "%.*s", slash ? (int)(slash - file) : 1, slash ? file : ".");
    return out[0] ? out : "/";
}

/* "[MODEL=]HOST:PORT" to a listener. */
static int take_astraflow(const struct cli_args *args, const char *text, struct ws_astraflow_options *out)
{
    const char *equals = strchr(text, '=');
    char file[300], folder[4096];
    *out = (struct ws_astraflow_options){
        .listen = equals ? equals + 1 : text,
        .model = equals ? strndup(text, (size_t)(equals - text)) : NULL,
        .stall_ms = 1000 * (unsigned)cli_u64(args, "astraflow-stall", 0),
    };
    if (out->model && !ws_name_is_model(out->model))
        return cli_usage("--astraflow: '%s' is no model; %s", out->model, WS_MODEL_NAME_RULE);
    snprintf(file, sizeof file, "/astraflow-%s.json", out->listen);
    out->state = ws_settings_path(astraflow_folder(args, folder, sizeof folder), file);
    return CLI_OK;
}

static int take_listeners(const struct cli_args *args, struct ws_astraflow_options *out, size_t *n)
{
    int rc = CLI_OK;
    for (const char *one; rc == CLI_OK && (one = cli_nth(args, "astraflow", *n));) {
        if (*n == MAX_ASTRAFLOW)
            return cli_usage("--astraflow more than %d times", MAX_ASTRAFLOW);
        rc = take_astraflow(args, one, &out[(*n)++]);
    }
    return rc;
}

static void drop_listeners(struct ws_astraflow_options *all, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(all[i].model);
        free(all[i].state);
    }
}

static int take_view(struct views *v, const char *name)
{
    struct ws_agent_view *view = &v->views[v->n];
    const char *recipe = NULL;
    struct ws_error err;
    if (v->n == MAX_VIEWS)
        return cli_usage("--derive more than %d times", MAX_VIEWS);
    if (!ws_name_is_view(name, NULL, &recipe))
        return cli_usage("--derive: '%s' is no view: give MODEL@RECIPE, as actor@fp8-block128", name);
    for (size_t i = 0; i < v->n; i++)
        if (strcmp(v->views[i].name, name) == 0)
            return cli_usage("--derive %s is given twice", name);
    *view = (struct ws_agent_view){.name = name, .select.ignore = v->ignored[v->n]};
    if (ws_recipe_find(recipe, &view->recipe, &err) < 0)
        return cli_usage("--derive %s: %s", name, err.text);
    v->n++;
    return CLI_OK;
}

static int take_ignored(struct views *v, const char *text)
{
    const char *equals = strchr(text, '=');
    struct ws_error err;
    for (size_t i = 0; equals && i < v->n; i++) {
        struct ws_agent_view *view = &v->views[i];
        if (strlen(view->name) != (size_t)(equals - text) ||
            strncmp(view->name, text, strlen(view->name)) != 0)
            continue;
        if (view->select.n_ignore == MAX_IGNORED)
            return cli_usage("--derive-ignore more than %d times for %s", MAX_IGNORED, view->name);
        if (ws_select_check_pattern(equals + 1, &err) < 0)
            return cli_usage("--derive-ignore %s: %s", text, err.text);
        v->ignored[i][view->select.n_ignore++] = equals + 1;
        return CLI_OK;
    }
    return cli_usage("--derive-ignore: '%s' is not MODEL@RECIPE=MODULE of a view that --derive names", text);
}

static int take_views(const struct cli_args *args, struct views *v)
{
    const char *one;
    int rc = CLI_OK;
    for (size_t i = 0; rc == CLI_OK && (one = cli_nth(args, "derive", i)); i++)
        rc = take_view(v, one);
    for (size_t i = 0; rc == CLI_OK && (one = cli_nth(args, "derive-ignore", i)); i++)
        rc = take_ignored(v, one);
    return rc;
}

/* What root's agent needs once it serves. The huge-page tmpfs for versions, and a socket for another group, want more,
 * so both are prepared here. A GPU's library may lock memory. */
static void drop_capabilities(const struct ws_agent_options *o, const char *audit_log)
{
    const char *const read[] = {o->tcp.access.tokens_file, o->tcp.tls_cert_file,
                                o->tcp.tls_key_file,       o->tcp.tls_client_ca_file,
                                o->primary_access.ca_file, o->primary_access.cert_file,
                                o->primary_access.key_file};
    uint64_t keep = o->broadcast || o->ucx ? CAPABILITY(CAP_IPC_LOCK) : 0;
    keep |= capabilities_for_listening(o->tcp.listen) |
            (o->archive && ws_s3_is_url(o->archive) ? 0 : capabilities_for_folder(o->archive, "v1"));
    keep |= capabilities_for_path(o->state, W_OK) | capabilities_for_path(o->socket, W_OK) |
            capabilities_for_path(audit_log, W_OK);
    for (size_t i = 0; i < sizeof(read) / sizeof(read[0]); i++)
        keep |= capabilities_for_path(read[i], R_OK);
    for (size_t i = 0; i < o->n_astraflow; i++)
        keep |= capabilities_for_listening(o->astraflow[i].listen) |
                capabilities_for_path(o->astraflow[i].state, W_OK);
    (void)ws_region_tmpfs();
    if (o->socket_gid != (gid_t)-1)
        capabilities_join(o->socket_gid);
    capabilities_drop(keep);
}

static int serve(const struct ws_agent_options *o, const char *audit_log)
{
    struct ws_error err = {0};
    struct ws_agent_options with_start = *o;
    struct ws_agent *agent = NULL;
    struct agent_start start;
    cli_allow_descriptors(); /* a version on GPUs may be of thousands */
    if (o->socket && make_parent(o->socket))
        return cli_fail("cannot make the folder of %s: %s; choose another --socket", o->socket,
                        strerror(errno));
    cli_block_signals();
    if (audit_log && ws_audit_log_open(audit_log, "agent", &err) < 0)
        return cli_fail("%s", err.text);
    drop_capabilities(o, audit_log);
    with_start.start = &start.shared;
    int rc = ws_audit_log_start(&err), sig = 0;
    if (rc == 0)
        rc = agent_start_begin(&start, &err);
    if (rc == 0) {
        rc = ws_agent_new(&agent, &with_start, &err);
        sig = agent_start_end(&start);
    }
    if (rc < 0) {
        ws_audit_log_close();
        if (rc == -ECANCELED && sig)
            return CLI_OK;
        return cli_fail("%s", err.text);
    }
    ws_log(WS_LOG_INFO, "agent", "serving http=%s port=%u socket=%s", o->tcp.listen ? o->tcp.listen : "none",
           o->tcp.listen ? ws_agent_port(agent) : 0, o->socket ? o->socket : "none");
    notify_ready();
    if (!sig)
        sig = cli_wait_signal();
    notify_stopping();
    ws_log(WS_LOG_INFO, "agent", "stopping signal=%s", strsignal(sig));
    ws_agent_free(agent);
    ws_audit_log_close();
    return CLI_OK;
}

static int run_agent(const struct cli_args *args)
{
    struct ws_astraflow_options astraflow[MAX_ASTRAFLOW];
    static struct views views; /* its options point into it */
    const char *listen = cli_get(args, "listen"), *socket = cli_get(args, "socket");
    const char *group = cli_get(args, "group"), *token_file = cli_get(args, "token-file");
    struct ws_agent_options o = {
        .tcp.listen = listen,
        .tcp.access = {.tokens_file = cli_get(args, "tokens"),
                       .insecure = cli_has(args, "insecure"),
                       .nodes = cli_has(args, "nodes"),
                       .makes_local_token = true},
        .tcp.tls_cert_file = cli_get(args, "tls-cert"),
        .tcp.tls_key_file = cli_get(args, "tls-key"),
        .tcp.tls_client_ca_file = cli_get(args, "tls-client-ca"),
        .socket = socket ? socket : WS_AGENT_SOCKET,
        .socket_gid = (gid_t)-1,
        .memory_bytes = cli_bytes(args, "memory", 0),
        .delta_cache_bytes = cli_bytes(args, "delta-cache", WS_DELTA_CACHE_BY_SIZE),
        .state = state_file(args),
        .archive = cli_get(args, "archive"),
        .archive_insecure = cli_has(args, "archive-insecure"),
        .archive_every = (unsigned)cli_u64(args, "archive-every", 10),
        .archive_keep = (unsigned)cli_u64(args, "archive-keep", 3),
        .max_slots = (unsigned)cli_u64(args, "slots", 0),
        .broadcast = cli_get(args, "broadcast"),
        .ucx = cli_has(args, "ucx"),
        .gather_ms = (unsigned)cli_u64(args, "broadcast-window", 0),
        .n_threads = (unsigned)cli_u64(args, "threads", 0),
        .nice = (int)cli_u64(args, "nice", 0),
    };
    const char *primary_token_file = cli_get(args, "primary-token-file");
    char *primary_token = primary_token_file ? cli_read_token(primary_token_file) : NULL;
    if (cli_has(args, "print-routes")) {
        ws_agent_print_routes(stdout);
        return CLI_OK;
    }
    if (o.tcp.access.tokens_file && token_file)
        return cli_usage("--tokens has the tokens of all clients: give it or --token-file");
    char *token = token_file ? cli_read_token(token_file) : NULL;

    struct ws_secret_key *sign_key = NULL;
    struct ws_error err = {0};
    if (cli_get(args, "sign-key") && ws_secret_key_read(cli_get(args, "sign-key"), &sign_key, &err) < 0)
        return cli_fail("%s", err.text);
    o.sign_key = sign_key;
    o.tcp.access.token = token;
    o.tcp.access.token_file = token_file;
    o.primary = cli_get(args, "primary");
    o.primary_access = (struct ws_source_options){
        .token = primary_token_file ? primary_token : token,
        .token_file = primary_token_file ? primary_token_file : token_file,
        .insecure = cli_has(args, "primary-insecure"),
        .ca_file = cli_get(args, "primary-ca"),
        .cert_file = cli_get(args, "primary-cert"),
        .key_file = cli_get(args, "primary-key"),
    };
    if (!o.primary && (primary_token_file || o.primary_access.ca_file || o.primary_access.cert_file))
        return cli_usage("--primary-token-file, --primary-ca and --primary-cert need --primary URL");
    if (o.tcp.listen && !strcmp(o.tcp.listen, "none"))
        o.tcp.listen = NULL;
    if (!strcmp(o.socket, "none"))
        o.socket = NULL;
    if (!o.tcp.listen && !o.socket)
        return cli_usage("no rank and no mount could reach the agent: give --listen or --socket");
    if (!o.archive && (cli_has(args, "archive-every") || cli_has(args, "archive-keep") || o.archive_insecure))
        return cli_usage("--archive-every, --archive-keep and --archive-insecure need --archive");
    if (o.broadcast && !strcmp(o.broadcast, "off"))
        o.broadcast = NULL;
    if (cli_has(args, "broadcast-window") && !o.broadcast)
        return cli_usage("--broadcast-window needs --broadcast");
    if (group) {
        const struct group *g = getgrnam(group);
        if (!g)
            return cli_usage("there is no group '%s'", group);
        o.socket_gid = g->gr_gid;
    }
    o.astraflow = astraflow;
    int rc = take_listeners(args, astraflow, &o.n_astraflow);
    if (rc == CLI_OK)
        rc = take_views(args, &views);
    o.views = views.views;
    o.n_views = views.n;
    if (rc == CLI_OK)
        rc = serve(&o, cli_get(args, "audit-log"));
    drop_listeners(astraflow, o.n_astraflow);
    ws_secret_free(token);
    ws_secret_free(primary_token);
    ws_secret_key_free(sign_key);
    return rc;
}

static void receive(void *keeper)
{
    ws_descriptor_keeper_receive(keeper);
}

/* Forks, and goes on in each daemon; in the supervisor when all is over. The tmpfs of slots is the supervisor's, too, so that a daemon can
 * tell what others still hold of it. */
static int supervise(bool *is_daemon, struct ws_error *err)
{
    struct ws_descriptor_keeper keeper;
    cli_allow_descriptors();
    cli_block_signals();
    int rc = ws_descriptor_keeper_init(&keeper, err);
    if (rc < 0)
        return rc;
    (void)ws_region_tmpfs();
    const struct ws_respawn what = {.name = "the agent",
                                    .component = "agent",
                                    .at_end = "its versions are gone",
                                    .arg = &keeper,
                                    .messages = keeper.ends[0],
                                    .receive = receive};
    rc = ws_respawn_run(&what, is_daemon, err);
    if (*is_daemon)
        ws_descriptor_keeper_serve_this(&keeper);
    else
        ws_descriptor_keeper_release(&keeper);
    return rc;
}

/* Before anything secret is read: each daemon reads it. */
static int run(const struct cli_args *args)
{
    struct ws_error err = {0};
    bool is_daemon = true;
    if (cli_has(args, "supervised") && supervise(&is_daemon, &err) < 0)
        return cli_fail("%s", err.text);
    if (!is_daemon)
        return CLI_OK;
    ws_descriptor_store_use_manager();
    return run_agent(args);
}

const struct cli_command cmd_agent = {
    .name = "agent",
    .summary = "hold and serve the versions that trainers on this node publish",
    .synopsis = "[OPTIONS]",
    .description =
        "Runs in the foreground, one a node, on its own so that neither the trainer's interpreter nor "
        "its crash stops a transfer. Trainers attach by the unix socket and write into its slots; "
        "mounts pull by HTTP, or on the same host by file descriptors.\n\n"
        "There is no TCP listener without --listen. A listener asks for a token: on loopback one that the "
        "agent "
        "makes, in /run/wsync/PORT.token, where clients of its account and of root find it. Beyond loopback "
        "it wants --tokens, --token-file or --tls-client-ca, unless told --insecure. "
        "Versions live in memory: they are gone when the agent ends, but for what --archive wrote; the next "
        "agent reads the newest of each model from there. Where it dies, --supervised keeps them for the "
        "next one, as "
        "systemd does by the unit. With --state it also knows what was released, "
        "which "
        "numbers are taken and which mounts to wait for: a release is written before any mount acts on it. A "
        "state file that is damaged, another program's or of a newer release ends the start, and so does a "
        "second agent with the same one. The "
        "trainer "
        "never waits for that disk: a version whose slot is wanted before it is written is given up, and the "
        "next one is written whole.\n\n"
        "A trainer that spans nodes has an agent on each. Its ranks attach to the agent of their own node; "
        "--primary names the agent of the node with rank 0 on all others. Each agent holds and serves what "
        "its "
        "ranks wrote, a version is announced when all have theirs, and mounts name all agents: "
        "wsync mount http://NODE0:18861,http://NODE1:18861 /wsync.\n\n"
        "With --derive it makes a quantised view of each version once that is published, on threads that "
        "yield to "
        "others, into slots of the view's own, which count in --memory and give way to models that ranks "
        "publish. The trainer does not wait for it: "
        "where it "
        "takes the slot back first, that version has no view, and the next one has. A version that the "
        "recipe "
        "refuses has none either, and the log and /v1/status say why. wsync(7) has more.\n\n"
        "With --broadcast the agent sends out of its slot's memory through one GPU, whose memory it takes "
        "two "
        "buckets of 16 MiB of; mounts need NCCL of the very same release and a GPU of their own. A member "
        "that "
        "dies or stands still ends the round after 5 seconds, and the others make a new one; whoever is left "
        "out pulls by TCP. libnccl.so.2 and the driver are opened at run time; CUDA_VISIBLE_DEVICES and "
        "NCCL's "
        "own variables (NCCL_SOCKET_IFNAME ...) hold.\n\n"
        "With --astraflow it also serves AstraFlow's own receivers, unmodified, from the same memory: point "
        "them at that port (sender_endpoint, or WEIGHT_TRANSFER_HTTP_PORT). Those ports know no "
        "authentication, --token-file and TLS do not hold there: each is a listener of its own, off unless "
        "it is asked for, and belongs into a network in which everybody may have the weights.",
    .examples =
        "wsync agent --listen 127.0.0.1:18861 --socket /run/wsync/agent.sock\n"
        "wsync agent --listen 0.0.0.0:18861 --token-file /etc/wsync/token\n"
        "wsync agent --listen 0.0.0.0:18861 --token-file /etc/wsync/token --derive actor@fp8-block128\n"
        "wsync agent --archive /data/run7 --archive-every 20 --archive-keep 5\n"
        "wsync agent --listen 0.0.0.0:18861 --tokens /etc/wsync/tokens --state /var/lib/wsync/agent.state\n"
        "AWS_PROFILE=train wsync agent --archive s3://weights/run7\n"
        "wsync agent --listen 0.0.0.0:18861 --token-file /etc/wsync/token --primary https://NODE0:18861\n"
        "curl -sH \"Authorization: Bearer $(cat /run/wsync/18861.token)\" http://127.0.0.1:18861/v1/models\n"
        "wsync agent --astraflow actor=10.0.0.1:18871 --astraflow critic=10.0.0.1:18872",
    .options = options,
    .run = run,
};
