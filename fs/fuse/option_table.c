#include "fs/fuse/option_table.h"
#include "fs/store/derived.h"
#include "fs/store/needs.h"
#include "transports/access/bearer.h"
#include "transports/base/number.h"
#include "transports/base/secret.h"
#include "transports/base/text.h"
#include "transports/ipc/peer.h"
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIN_HUNG_S 6
#define MAX_HUNG_S 86400

static int number(const char *value, unsigned long max, unsigned long *out)
{
    return ws_text_u64(value, out) < 0 || *out > max ? -EINVAL : 0;
}

/* Of an option whose `why` says what is wrong: -EINVAL would be said of its form. */
static int explained(int rc)
{
    return rc == -EINVAL ? -ENODATA : rc;
}

const char *ws_mount_option_keep(struct ws_mount_options *o, const char *value)
{
    if (o->n_strings == sizeof(o->strings) / sizeof(o->strings[0]))
        return NULL;
    char *copy = strdup(value);
    if (copy)
        o->strings[o->n_strings++] = copy;
    return copy;
}

/* Keeps the path of a file that is opened again later: a daemon in the background is in no folder of its caller's. */
static int keep_path(struct ws_mount_options *o, const char *value, const char **out)
{
    char cwd[PATH_MAX], path[2 * PATH_MAX];
    if (!*value)
        return -EINVAL;
    if (*value != '/' && !getcwd(cwd, sizeof(cwd)))
        return -errno;
    snprintf(path, sizeof(path), "%s%s%s", *value == '/' ? "" : cwd, *value == '/' ? "" : "/", value);
    *out = ws_mount_option_keep(o, path);
    return *out ? 0 : -ENOMEM;
}

/* Which of the words it is; -EINVAL: none. */
static int word_of(const char *value, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(value, words[i]) == 0)
            return (int)i;
    return -EINVAL;
}

#define SET_WORD(name, field, words)                                                                         \
    static int name(struct ws_mount_options *o, const char *value)                                           \
    {                                                                                                        \
        const int i = word_of(value, words, sizeof(words) / sizeof((words)[0]));                             \
        if (i >= 0)                                                                                          \
            o->field = (unsigned)i;                                                                          \
        return i < 0 ? i : 0;                                                                                \
    }

static const char *const reads_names[] = {[WS_READS_AUTO] = "auto",
                                          [WS_READS_PASSTHROUGH] = "passthrough",
                                          [WS_READS_LINK] = "link",
                                          [WS_READS_CACHED] = "cached"};
static const char *const open_names[] = {
    [WS_OPEN_WAIT] = "wait", [WS_OPEN_STREAM] = "stream", [WS_OPEN_LAZY] = "lazy"};
static const char *const provisional_names[] = {
    [WS_PROVISIONAL_AUTO] = "auto", [WS_PROVISIONAL_ON] = "on", [WS_PROVISIONAL_OFF] = "off"};
SET_WORD(set_open, open, open_names)
SET_WORD(set_reads, reads, reads_names)
SET_WORD(set_provisional, store.provisional, provisional_names)

const char *ws_reads_name(enum ws_reads r)
{
    return reads_names[r];
}

static int set_cache(struct ws_mount_options *o, const char *value)
{
    return ws_number_size(value, &o->store.cache_bytes);
}

static int set_delta_cache(struct ws_mount_options *o, const char *value)
{
    int rc = ws_number_size(value, &o->store.delta_cache_bytes);
    return rc < 0 && strcmp(value, "0") == 0 ? 0 : rc;
}

static int set_copies(struct ws_mount_options *o, const char *value)
{
    for (enum ws_copies c = WS_COPIES_TWO; c <= WS_COPIES_AUTO; c++) {
        if (strcmp(value, ws_copies_name(c)) == 0) {
            o->store.copies = c;
            return 0;
        }
    }
    return -EINVAL;
}

#define SET_NUMBER(name, field, max)                                                                         \
    static int name(struct ws_mount_options *o, const char *value)                                           \
    {                                                                                                        \
        unsigned long n;                                                                                     \
        int rc = number(value, max, &n);                                                                     \
        if (rc == 0)                                                                                         \
            o->field = (unsigned)n;                                                                          \
        return rc;                                                                                           \
    }
SET_NUMBER(set_keep, store.keep, 1000)
SET_NUMBER(set_streams, store.streams, WS_MAX_STREAMS)
SET_NUMBER(set_threads, store.threads, 1024)
SET_NUMBER(set_device, store.device, 255)
SET_NUMBER(keep_uid, uid, UINT_MAX - 1)
SET_NUMBER(set_fuse_fd, given, INT_MAX)
SET_NUMBER(keep_gid, gid, UINT_MAX - 1)

static int set_strategy(struct ws_mount_options *o, const char *value)
{
    struct ws_error err;
    return ws_transport_prefs_parse(value, &o->store.transport_prefs, &err);
}

/* LINK:PATCH:COPY, or as measured. */
static int set_speeds(struct ws_mount_options *o, const char *value)
{
    struct ws_speeds *s = &o->store.speeds;
    _Atomic(double) *const speeds[] = {&s->link, &s->patch, &s->copy};
    s->given = strcmp(value, "measured") != 0;
    for (size_t i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++) {
        char word[32];
        uint64_t bytes = 0;
        const size_t n = strcspn(value, ":");
        snprintf(word, sizeof(word), "%.*s", n < sizeof(word) ? (int)n : 0, value);
        if (s->given && (ws_number_size(word, &bytes) < 0 || bytes == 0 || (value[n] == ':') != (i < 2)))
            return -EINVAL;
        atomic_store(speeds[i], (double)bytes);
        value += s->given ? n + 1 : 0;
    }
    return 0;
}

static int set_nice(struct ws_mount_options *o, const char *value)
{
    unsigned long n;
    int rc = number(value, 19, &n);
    if (rc == 0)
        o->store.nice = (int)n;
    return rc;
}

static int set_deadline(struct ws_mount_options *o, const char *value)
{
    unsigned long n;
    int rc = number(value, 86400, &n);
    if (rc < 0 || n == 0)
        return -EINVAL;
    o->deadline_ms = (unsigned)n * 1000;
    o->store.deadline_ms = o->deadline_ms;
    return 0;
}

static int set_uid(struct ws_mount_options *o, const char *value)
{
    o->has_uid = true;
    return keep_uid(o, value);
}

static int set_hung(struct ws_mount_options *o, const char *value)
{
    unsigned long n = 0;
    if (number(value, MAX_HUNG_S, &n) < 0 || (n > 0 && n < MIN_HUNG_S))
        return -EINVAL;
    o->hung_s = (unsigned)n;
    return 0;
}

static int set_run_as(struct ws_mount_options *o, const char *value)
{
    const char *name = ws_mount_option_keep(o, value);
    return name ? ws_run_as_find(&o->run_as, name, &o->why) : -ENOMEM;
}

static int set_gid(struct ws_mount_options *o, const char *value)
{
    o->has_gid = true;
    return keep_gid(o, value);
}

static int set_mode(struct ws_mount_options *o, const char *value)
{
    char *end;
    unsigned long n = strtoul(value, &end, 8);
    if (end == value || *end || n > 0777 || (n & 0222))
        return -EINVAL;
    o->mode = (mode_t)n;
    o->has_mode = true;
    return 0;
}

int ws_mount_option_group(const char *value, gid_t *out)
{
    unsigned long n;
    const struct group *g = getgrnam(value);
    if (g)
        *out = g->gr_gid;
    else if (number(value, UINT_MAX - 1, &n) == 0)
        *out = (gid_t)n;
    else
        return -EINVAL;
    return 0;
}

static int set_ctl_group(struct ws_mount_options *o, const char *value)
{
    return ws_mount_option_group(value, &o->ctl_gid);
}

static int set_agent_user(struct ws_mount_options *o, const char *value)
{
    struct ws_ipc_account account;
    if (ws_ipc_account_parse(value, &account, &o->why) < 0)
        return -EINVAL;
    o->store.source.has_agent_uid = true;
    o->store.source.agent_uid = account.uid;
    return 0;
}

/* The token is read when the options are parsed, so that what is wrong with its file is said at once, and again when
 * the file changes. */
static int read_token(struct ws_mount_options *o, const char *value, const char **out, const char **file)
{
    char *token;
    int rc = ws_token_read(value, NULL, &token, &o->why);
    if (rc < 0)
        return explained(rc);
    if (o->n_tokens == sizeof(o->tokens) / sizeof(o->tokens[0])) {
        ws_secret_free(token);
        return -E2BIG;
    }
    *out = o->tokens[o->n_tokens++] = token;
    return keep_path(o, value, file);
}

static int set_token_file(struct ws_mount_options *o, const char *value)
{
    return read_token(o, value, &o->store.source.token, &o->store.source.token_file);
}

static int set_peer_token_file(struct ws_mount_options *o, const char *value)
{
    return read_token(o, value, &o->peer_token, &o->peer_token_file);
}

static int set_topology(struct ws_mount_options *o, const char *value)
{
    o->asks_parents = strcmp(value, "auto") == 0;
    return o->asks_parents || strcmp(value, "none") == 0 ? 0 : -EINVAL;
}

static int set_serve_token_file(struct ws_mount_options *o, const char *value)
{
    return read_token(o, value, &o->serve.access.token, &o->serve.access.token_file);
}

#define SET_STRING(name, field)                                                                              \
    static int name(struct ws_mount_options *o, const char *value)                                           \
    {                                                                                                        \
        char *copy = (char *)(uintptr_t)ws_mount_option_keep(o, value);                                      \
        o->field = copy;                                                                                     \
        return copy ? 0 : -ENOMEM;                                                                           \
    }
SET_STRING(keep_group, group)
SET_STRING(keep_files, files)
SET_STRING(keep_fsname, fsname)
SET_STRING(set_host, host)
SET_STRING(set_listen, listen)
SET_STRING(set_serve, serve.listen)
SET_STRING(set_rack, rack)
SET_STRING(set_root, root)
SET_STRING(set_names, names)
SET_STRING(keep_no_state, state)

#define SET_PATH(name, field)                                                                                \
    static int name(struct ws_mount_options *o, const char *value)                                           \
    {                                                                                                        \
        const char *path = NULL;                                                                             \
        const int rc = keep_path(o, value, &path);                                                           \
        o->field = (char *)(uintptr_t)path;                                                                  \
        return rc;                                                                                           \
    }
SET_PATH(set_audit_log, audit_log)
SET_PATH(set_log, log_file)
SET_PATH(set_fuse_socket, given_socket)
SET_PATH(keep_state, state)

/* none: it keeps no settings. */
static int set_state(struct ws_mount_options *o, const char *value)
{
    return strcmp(value, "none") == 0 ? keep_no_state(o, value) : keep_state(o, value);
}

SET_PATH(set_config, config)
SET_PATH(set_ca_file, store.source.ca_file)
SET_PATH(set_cert_file, store.source.cert_file)
SET_PATH(set_key_file, store.source.key_file)
SET_PATH(set_listen_tokens, listen_tokens)
SET_PATH(set_serve_tokens, serve.access.tokens_file)
SET_PATH(set_serve_cert, serve.tls_cert_file)
SET_PATH(set_serve_key, serve.tls_key_file)
SET_PATH(set_serve_client_ca, serve.tls_client_ca_file)

static int set_fsname(struct ws_mount_options *o, const char *value)
{
    return value[0] ? keep_fsname(o, value) : -EINVAL;
}

static int set_group(struct ws_mount_options *o, const char *value)
{
    gid_t gid;
    const int rc = ws_mount_option_group(value, &gid);
    return rc < 0 ? rc : keep_group(o, value);
}

/* It becomes a word of the lines in which engines are kept. */
static int set_files(struct ws_mount_options *o, const char *value)
{
    return value[0] == '/' && !value[strcspn(value, " \t\n\"\\")] ? keep_files(o, value) : -EINVAL;
}

static int set_verify(struct ws_mount_options *o, const char *value)
{
    o->store.verify_imported = strcmp(value, "imported") == 0;
    return o->store.verify_imported ? 0 : -EINVAL;
}

/* Keys are read when the options are parsed, as tokens are. */
static int add_verify_key(struct ws_mount_options *o, const char *value)
{
    int rc = ws_trust_add(&o->trust, value, &o->why);
    return explained(rc);
}

/* A list with ';' between; given again it adds to it. */
static int add_words(struct ws_mount_options *o, const char *value, const char **list, size_t *n, size_t max,
                     int (*check)(const char *word, struct ws_error *err))
{
    const char *kept = ws_mount_option_keep(o, value);
    char *save = NULL;
    int rc = kept ? 0 : -ENOMEM;

    for (char *word = kept ? strtok_r((char *)(uintptr_t)kept, ";", &save) : NULL; word && rc == 0;
         word = strtok_r(NULL, ";", &save)) {
        if (*n == max)
            rc = ws_error_set(&o->why, E2BIG, "there may be %zu", max);
        else if (!check || (rc = check(word, &o->why)) == 0)
            list[(*n)++] = word;
    }
    return explained(rc);
}

static int add_derive(struct ws_mount_options *o, const char *value)
{
    return add_words(o, value, o->derive, &o->n_derive, WS_MAX_DERIVED, ws_derived_check);
}

static int add_derive_ignore(struct ws_mount_options *o, const char *value)
{
    return add_words(o, value, o->derive_ignore, &o->n_derive_ignore, WS_MAX_DERIVE_PATTERNS, NULL);
}

/* Each is of one model, or of all: its patterns have ';' between. */
static int add_need(struct ws_mount_options *o, const char *value)
{
    const char *kept = ws_mount_option_keep(o, value);
    int rc = kept ? ws_needs_check(value, &o->why) : -ENOMEM;

    if (rc == 0 && o->n_needs == WS_MAX_NEEDS)
        rc = ws_error_set(&o->why, E2BIG, "it may be given %d times", WS_MAX_NEEDS);
    if (rc == 0)
        o->needs[o->n_needs++] = kept;
    return explained(rc);
}

static int set_derive_family(struct ws_mount_options *o, const char *value)
{
    o->derive_any_family = strcmp(value, "any") == 0;
    return o->derive_any_family || strcmp(value, "known") == 0 ? 0 : -EINVAL;
}

#define SET_FLAG(name, field)                                                                                \
    static int name(struct ws_mount_options *o, const char *value)                                           \
    {                                                                                                        \
        (void)value;                                                                                         \
        o->field = true;                                                                                     \
        return 0;                                                                                            \
    }
SET_FLAG(set_allow_other, allow_other)
SET_FLAG(set_no_allow_other, no_allow_other)
SET_FLAG(set_prefetch, prefetch)
SET_FLAG(set_ucx, store.ucx)
SET_FLAG(set_debug, debug)
SET_FLAG(set_supervised, supervised)
SET_FLAG(set_insecure, store.source.insecure)
SET_FLAG(set_serve_insecure, serve.access.insecure)

static int ignore(struct ws_mount_options *o, const char *value)
{
    (void)o;
    (void)value;
    return 0;
}

static const struct ws_mount_option table[] = {
    {"open", "wait|stream|lazy", set_open,
     "opening a file waits until its version is complete and verified (the "
     "default), or answers at once and reads wait for their blocks, which all come, or alone (lazy)"},
    {"reads", "auto|passthrough|link|cached", set_reads,
     "how complete files are read: by FUSE passthrough (Linux 6.9, libfuse 3.17, CAP_SYS_ADMIN), by links "
     "into a "
     "huge-page tmpfs, or through the daemon; auto takes the first that works"},
    {"cache", "SIZE", set_cache,
     "memory for versions; default: 0.8 of what the machine and its cgroups allow, and at least 64 MiB less "
     "than that (half of it where it is under 128 MiB); with room for three, "
     "memory for "
     "the next one is taken ahead"},
    {"delta-cache", "SIZE", set_delta_cache,
     "memory for the deltas of each model, by which versions are made of those that are held; default: room "
     "for "
     "three at 5 % changed, an eighth of the model, and at least 1G; "
     "0: every version is pulled whole"},
    {"provisional", "auto|on|off", set_provisional,
     "patch a copy of a version while the trainer still writes the next one, as its ranks give what they "
     "changed; "
     "auto (the default): where the trainer is another machine; off: fetch nothing before a version is "
     "announced"},
    {"copies", "1|2|auto", set_copies,
     "2 (the default): a new version comes beside the one before; 1: memory holds one version of a model, "
     "which is "
     "patched to the next one while nobody reads it, and what changed is kept for going back; auto: 1 where "
     "two of all models do not fit into cache="},
    {"derive", "MODEL@RECIPE;...", add_derive,
     "make quantised views of models, as actor@fp8-block128, which are models beside them (wsync(7), VIEWS); "
     "given again it "
     "adds views. Default: none"},
    {"derive-ignore", "[MODEL@RECIPE=]PATTERN;...", add_derive_ignore,
     "linear layers that those views, or the one that is named, leave as they are: a layer's full name, or "
     "re: "
     "and a regular expression"},
    {"derive-family", "known|any", set_derive_family,
     "any: views of models whose family (model_type in config.json) is not known are not refused: all 2-D "
     "weights are quantised "
     "but embeddings, norms, routers and lm_head; default: known"},
    {"need", "[MODEL=]PATTERN;...|learn", add_need,
     "have only tensors whose names match one of the patterns (with * and ?, or re: and a POSIX extended "
     "regular "
     "expression, or ep:RANK/SIZE for what one rank of an expert-parallel engine reads), as whole "
     "checkpoints of these "
     "alone, or, with the word learn, only what readers have read of versions before: of MODEL, or of all "
     "models that are not views; given again for other models (wsync(7), "
     "SUBSETS). Default: all"},
    {"root", "MODEL", set_root,
     "the mount's own folder is that of this model, whose versions are all that it lists; MODEL, ctl, status "
     "and "
     "their like are there by name (wsync(7), FRAMEWORKS' NAMES). Default: all models are listed"},
    {"names", "PATTERN", set_names,
     "how versions are called there, as a framework does: step_{N}, weight_v{N:06d}, {name}-v{N}, or a name "
     "without "
     "{N}, which is the newest version; files get 0644. Needs root=; default: {N}"},
    {"keep", "N", set_keep,
     "newest complete versions that are kept for going back; default 2. Of a unix: source's own memory the "
     "mount keeps the current version, or else one, besides the newest"},
    {"prefetch", NULL, set_prefetch, "fetch each new version ahead (policy pull)"},
    {"streams", "N", set_streams, "connections of one pull; default 4"},
    {"strategy", "auto|NAME:NAME:...", set_strategy,
     "by which ways weights may come, the best first, with colons between: packed_cuda_ipc, cuda_ipc, ipc, "
     "broadcast, dir, ucx, tcp, which is what auto (the default) stands for; ctl sets it for one model"},
    {"ucx", NULL, set_ucx,
     "the bytes of whole versions come by UCX (InfiniBand, RoCE, ...) from agents that were started with "
     "--ucx, where both have UCX of one release; else by tcp, as all other requests do"},
    {"speeds", "measured|LINK:PATCH:COPY", set_speeds,
     "which way is quicker, a whole pull or deltas, is worked out from speeds in bytes a second (40M:5G:2G): "
     "of the link, of one thread that patches, and of one that copies and patches; as measured (the "
     "default), or these and no others"},
    {"device", "N", set_device, "the GPU of this mount, for the strategy broadcast; default 0"},
    {"threads", "N", set_threads, "background threads for hashing and pre-faulting; default: all cores"},
    {"nice", "N", set_nice, "nice value (0 to 19) of all background work"},
    {"deadline", "SECONDS", set_deadline,
     "longest wait of a read or open without progress; default 120. Of n sources that have a version each "
     "may say nothing for one of n+1 equal shares of it, then the next is asked; below 3 a second one may "
     "not be reached"},
    {"token-file", "FILE", set_token_file,
     "bearer token for the sources, the file's first line; http://A:1;token-file=/F is one for that source "
     "alone"},
    {"agent-user", "NAME", set_agent_user,
     "unix: sources may be served by this account, too, and not only by root, the mount's own and the one "
     "that owns "
     "/run/wsync; default $WSYNC_AGENT_USER"},
    {"insecure", NULL, set_insecure,
     "send the token to http:// on another host, too, in clear text; likewise for an object store"},
    {"ca-file", "FILE", set_ca_file, "certificates that https sources are checked against"},
    {"cert-file", "FILE", set_cert_file, "client certificate for https sources"},
    {"key-file", "FILE", set_key_file, "its private key"},
    {"verify", "imported", set_verify, "rehash also what a unix: source hands over by descriptor"},
    {"verify-key", "[MODEL=]FILE:...", add_verify_key,
     "take only versions that were signed with one of these public keys (wsync key new), from whatever "
     "source: for "
     "all models, or for MODEL alone; given again it adds keys. Default: signatures are not looked at"},
    {"allow_other", NULL, set_allow_other, "let other users read (the default for root)"},
    {"no_allow_other", NULL, set_no_allow_other, "only this user"},
    {"group", "GROUP", set_group,
     "let this group read and nobody else: files 0440, folders 0550, as gid= and mode= would say, with "
     "allow_other"},
    {"fuse-fd", "N", set_fuse_fd,
     "somebody else has opened /dev/fuse and mounted it, and this process has inherited it as descriptor N, "
     "as with /dev/fd/N "
     "for the folder (wsync-fleet(7), WITHOUT PRIVILEGES)"},
    {"fuse-socket", "PATH", set_fuse_socket,
     "the same, and the process that listens at the unix socket sends it (SCM_RIGHTS)"},
    {"supervised", NULL, set_supervised,
     "a process keeps the mount while a daemon that dies is replaced: nobody finds it dead, and what is open "
     "or mapped goes on "
     "(wsync-fleet(7), A DAEMON THAT DIES)"},
    {"hung", "SECONDS", set_hung,
     "with supervised: a daemon that gives no answer for so long is replaced, too; default 30, 0 never, else "
     "6 to 86400"},
    {"run-as", "USER", set_run_as,
     "once it is mounted the daemon is this user, without any capability; a process beside it keeps "
     "CAP_SYS_ADMIN for reads at memory "
     "speed and for the unmount. That user reads the tokens' files and owns the folder of state= "
     "(wsync-fleet(7), WITHOUT "
     "PRIVILEGES)"},
    {"uid", "N", set_uid, "owner of all files"},
    {"gid", "N", set_gid, "group of all files"},
    {"mode", "OCTAL", set_mode, "mode of files; default 0444"},
    {"ctl-group", "GROUP", set_ctl_group, "let this group write control files (0660 instead of 0600)"},
    {"files", "DIR", set_files,
     "users other than root may name files (token-file=, admin-token-file= and ca-file= of an engine) and "
     "folders "
     "(add MODEL dir:PATH) below this folder, an absolute path, and no others: ctl-group can read by the "
     "mount whatever is there; default: none"},
    {"log", "FILE", set_log, "where a daemon in the background logs"},
    {"audit-log", "FILE", set_audit_log,
     "append who wrote which command, and how switches ended: a line of JSON each"},
    {"state", "DIR|none", set_state,
     "where engines, added sources, policies and pins are kept over a restart; default /var/lib/wsync, or "
     "$XDG_STATE_HOME/wsync"},
    {"config", "FILE|DIR", set_config,
     "what is to be set, as commands of ctl: engines, policies, commit, strategies, pins and sources of "
     "models "
     "(wsync-control(7)); of a folder all *.conf; read at the start and at SIGHUP, which then does not end "
     "the "
     "mount; a folder with / at its end may be missing"},
    {"host", "NAME", set_host, "this machine's name to agents and other mounts; default: its host name"},
    {"listen", "HOST:PORT", set_listen,
     "answer probes by HTTP: /healthz, /metrics, /ready/MODEL[/ENGINE][?behind=N] (200 when the engine "
     "serves the current "
     "version); default: no"},
    {"listen-tokens", "FILE", set_listen_tokens,
     "/metrics of listen= asks for a token with the role read, as wsync token add writes them; default: "
     "none"},
    {"serve", "HOST:PORT", set_serve,
     "be a source for other mounts: serve what is here, and what the sources have as it arrives; default: "
     "no"},
    {"serve-token-file", "FILE", set_serve_token_file,
     "ask those mounts for the bearer token in the file's first line; default: the sources' token"},
    {"serve-tokens", "FILE", set_serve_tokens,
     "the identities of those mounts and their roles, as wsync token add writes them; read again when it "
     "changes"},
    {"serve-insecure", NULL, set_serve_insecure,
     "ask those mounts for no token: who reaches the port may read"},
    {"serve-cert", "FILE", set_serve_cert, "serve TLS 1.3 with this PEM certificate"},
    {"serve-key", "FILE", set_serve_key, "its private key"},
    {"serve-client-ca", "FILE", set_serve_client_ca, "serve only those with a certificate signed by this CA"},
    {"topology", "auto|none", set_topology,
     "auto: the agent says which serving mounts are asked first, so that it sends each version about once; "
     "with serve= "
     "this mount is one of them (wsync-fleet(7)); default none: the sources in the order in which they are "
     "named"},
    {"rack", "NAME", set_rack,
     "mounts of one rack feed each other before they cross to another; default: told by address and round "
     "trip"},
    {"peer-token-file", "FILE", set_peer_token_file,
     "bearer token for mounts that an agent names (topology=auto), the file's first line; token-file= is "
     "never sent to "
     "those"},
    {"fsname", "NAME", set_fsname, "name in the mount table; default: the source"},
    {"debug", NULL, set_debug, "print every FUSE request"},
    {"ro", NULL, ignore, NULL},
    {"rw", NULL, ignore, NULL},
    {"nosuid", NULL, ignore, NULL},
    {"nodev", NULL, ignore, NULL},
    {"noexec", NULL, ignore, NULL},
    {"noatime", NULL, ignore, NULL},
    {"relatime", NULL, ignore, NULL},
    {"auto", NULL, ignore, NULL},
    {"noauto", NULL, ignore, NULL},
    {"user", NULL, ignore, NULL},
    {"nofail", NULL, ignore, NULL},
    {"_netdev", NULL, ignore, NULL},
    {"defaults", NULL, ignore, NULL},
    {"default_permissions", NULL, ignore, NULL},
};

const struct ws_mount_option *ws_mount_option_at(size_t i)
{
    return i < sizeof(table) / sizeof(table[0]) ? &table[i] : NULL;
}
