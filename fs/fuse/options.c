#include "fs/fuse/options.h"
#include "fs/engines/source_spec.h"
#include "fs/engines/token.h"
#include "transports/base/log.h"
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

typedef int setter(struct ws_mount_options *o, const char *value);

static int number(const char *value, unsigned long max, unsigned long *out)
{
    return ws_text_u64(value, out) < 0 || *out > max ? -EINVAL : 0;
}

/* Keeps a copy of a string for as long as the options live. */
static const char *keep(struct ws_mount_options *o, const char *value)
{
    if (o->n_strings == sizeof(o->strings) / sizeof(o->strings[0]))
        return NULL;
    char *copy = strdup(value);
    if (copy)
        o->strings[o->n_strings++] = copy;
    return copy;
}

static int set_open(struct ws_mount_options *o, const char *value)
{
    o->open = strcmp(value, "stream") == 0 ? WS_OPEN_STREAM : WS_OPEN_WAIT;
    return o->open == WS_OPEN_STREAM || strcmp(value, "wait") == 0 ? 0 : -EINVAL;
}

static const char *const reads_names[] = {"auto", "passthrough", "link", "cached"};

const char *ws_reads_name(enum ws_reads r)
{
    return reads_names[r];
}

static int set_reads(struct ws_mount_options *o, const char *value)
{
    for (size_t i = 0; i < sizeof(reads_names) / sizeof(reads_names[0]); i++) {
        if (strcmp(value, reads_names[i]) == 0) {
            o->reads = (enum ws_reads)i;
            return 0;
        }
    }
    return -EINVAL;
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
SET_NUMBER(set_uid, uid, UINT_MAX - 1)
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

/* A name or a number. */
static int find_group(const char *value, gid_t *out)
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
    return find_group(value, &o->ctl_gid);
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

/* The token is read when the options are parsed: before the daemon goes anywhere else. */
static int read_token(struct ws_mount_options *o, const char *value, const char **out)
{
    char *token;
    int rc = ws_token_read(value, NULL, &token, &o->why);
    if (rc < 0)
        return rc == -EINVAL ? -ENODATA : rc; /* -EINVAL would be said of the option's form */
    if (o->n_tokens == sizeof(o->tokens) / sizeof(o->tokens[0])) {
        ws_secret_free(token);
        return -E2BIG;
    }
    *out = o->tokens[o->n_tokens++] = token;
    return 0;
}

static int set_token_file(struct ws_mount_options *o, const char *value)
{
    return read_token(o, value, &o->store.source.token);
}

static int set_serve_token_file(struct ws_mount_options *o, const char *value)
{
    return read_token(o, value, &o->serve.access.token);
}

#define SET_STRING(name, field)                                                                              \
    static int name(struct ws_mount_options *o, const char *value)                                           \
    {                                                                                                        \
        char *copy = (char *)(uintptr_t)keep(o, value);                                                      \
        o->field = copy;                                                                                     \
        return copy ? 0 : -ENOMEM;                                                                           \
    }
SET_STRING(keep_group, group)
SET_STRING(set_ca_file, store.source.ca_file)
SET_STRING(keep_files, files)
SET_STRING(set_cert_file, store.source.cert_file)
SET_STRING(set_key_file, store.source.key_file)
SET_STRING(set_log, log_file)
SET_STRING(keep_fsname, fsname)
SET_STRING(set_state, state)
SET_STRING(set_host, host)
SET_STRING(set_listen, listen)
SET_STRING(set_listen_tokens, listen_tokens)
SET_STRING(set_serve, serve.listen)
SET_STRING(set_serve_tokens, serve.access.tokens_file)
SET_STRING(set_serve_cert, serve.tls_cert_file)
SET_STRING(set_serve_key, serve.tls_key_file)
SET_STRING(set_serve_client_ca, serve.tls_client_ca_file)

static int set_fsname(struct ws_mount_options *o, const char *value)
{
    return value[0] ? keep_fsname(o, value) : -EINVAL;
}

static int set_group(struct ws_mount_options *o, const char *value)
{
    gid_t gid;
    const int rc = find_group(value, &gid);
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
    return rc == -EINVAL ? -ENODATA : rc; /* -EINVAL would be said of the option's form */
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
SET_FLAG(set_debug, debug)
SET_FLAG(set_insecure, store.source.insecure)
SET_FLAG(set_serve_insecure, serve.access.insecure)

static int ignore(struct ws_mount_options *o, const char *value)
{
    (void)o;
    (void)value;
    return 0;
}

static const struct {
    const char *name, *value; /* value NULL: a flag */
    setter *set;
    const char *meaning; /* NULL: accepted in silence, as mount(8) passes it */
} table[] = {
    {"open", "wait|stream", set_open,
     "opening a file waits until its version is complete and verified (the "
     "default), or answers at once and reads wait for their blocks"},
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
     "memory for the deltas of each model, by which versions are made of those that are held; default 1G; "
     "0: every version is pulled whole"},
    {"keep", "N", set_keep,
     "newest complete versions that are kept for going back; default 2. Of a unix: source's own memory the "
     "mount keeps the current version, or else one, besides the newest"},
    {"prefetch", NULL, set_prefetch, "fetch each new version ahead (policy pull)"},
    {"streams", "N", set_streams, "connections of one pull; default 4"},
    {"strategy", "auto|NAME:NAME:...", set_strategy,
     "by which ways weights may come, the best first, with colons between: packed_cuda_ipc, cuda_ipc, ipc, "
     "broadcast, dir, tcp, which is what auto (the default) stands for; ctl sets it for one model"},
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
    {"insecure", NULL, set_insecure, "send the token to http:// on another host, too, in clear text"},
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
    {"state", "DIR|none", set_state,
     "where engines, added sources, policies and pins are kept over a restart; default /var/lib/wsync, or "
     "$XDG_STATE_HOME/wsync"},
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

bool ws_mount_option_help(size_t i, const char **name, const char **meaning)
{
    static _Thread_local char text[96];
    size_t seen = 0;
    for (size_t k = 0; k < sizeof(table) / sizeof(table[0]); k++) {
        if (!table[k].meaning || seen++ != i)
            continue;
        snprintf(text, sizeof(text), "%s%s%s", table[k].name, table[k].value ? "=" : "",
                 table[k].value ? table[k].value : "");
        *name = text;
        *meaning = table[k].meaning;
        return true;
    }
    return false;
}

void ws_mount_options_init(struct ws_mount_options *o)
{
    *o = (struct ws_mount_options){
        .uid = geteuid(),
        .gid = getegid(),
        .ctl_gid = (gid_t)-1,
        .mode = 0444,
        .allow_other = geteuid() == 0,
        .deadline_ms = WS_READ_DEADLINE_MS,
        .store.delta_cache_bytes = 1UL << 30,
    };
}

static int parse_one(struct ws_mount_options *o, const char *word, struct ws_error *err)
{
    size_t n = strcspn(word, "=");
    const char *value = word[n] ? word + n + 1 : NULL;
    if (strncmp(word, "x-", 2) == 0 || strncmp(word, "comment=", 8) == 0)
        return 0; /* systemd's and people's own, in fstab */
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strlen(table[i].name) != n || strncmp(word, table[i].name, n) != 0)
            continue;
        if (!value != !table[i].value)
            return ws_error_set(err, EINVAL, "the mount option %s %s", table[i].name,
                                table[i].value ? "needs a value" : "takes no value");
        o->why.code = 0;
        int rc = table[i].set(o, value);
        if (rc == -EINVAL)
            return ws_error_set(err, EINVAL, "the mount option %s takes %s, not '%.100s'", table[i].name,
                                table[i].value, value);
        if (rc < 0)
            return ws_error_set(err, -rc, "the mount option %s=%.200s: %s", table[i].name, value,
                                o->why.code ? o->why.text : strerror(-rc));
        return 0;
    }
    return ws_error_set(err, EINVAL,
                        "'%.*s' is no mount option of wsync; 'wsync mount --list-options' lists them", (int)n,
                        word);
}

/* What group= stands for, once no option contradicts it. */
static int use_group(struct ws_mount_options *o, struct ws_error *err)
{
    const char *other = o->has_mode         ? "mode"
                        : o->has_gid        ? "gid"
                        : o->no_allow_other ? "no_allow_other"
                                            : NULL;
    if (!o->group)
        return 0;
    if (other)
        return ws_error_set(
            err, EINVAL,
            "the mount options group and %s exclude each other: group=%.100s stands for that group's gid, "
            "mode=0440 and allow_other",
            other, o->group);
    o->mode = 0440;
    o->allow_other = true;
    return find_group(o->group, &o->gid) < 0
               ? ws_error_set(err, EINVAL, "there is no group '%.100s'", o->group)
               : 0;
}

int ws_mount_options_parse(struct ws_mount_options *o, const char *text, struct ws_error *err)
{
    char *copy = strdup(text);
    int rc = copy ? 0 : ws_error_set(err, ENOMEM, "no memory for options");
    char *save = NULL;
    for (char *word = copy ? strtok_r(copy, ",", &save) : NULL; word && rc == 0;
         word = strtok_r(NULL, ",", &save))
        rc = parse_one(o, word, err);
    free(copy);
    if (rc == 0)
        rc = use_group(o, err);
    if (o->no_allow_other)
        o->allow_other = false;
    return rc;
}

/* Of what cannot be looked up, as a folder that is yet to be made: all but the last component resolved. */
static int resolve_parent(const char *path, char out[PATH_MAX], struct ws_error *err)
{
    char absolute[PATH_MAX], cwd[PATH_MAX];
    if (path[0] == '/')
        snprintf(absolute, sizeof(absolute), "%s", path);
    else if (getcwd(cwd, sizeof(cwd)))
        snprintf(absolute, sizeof(absolute), "%s/%s", cwd, path);
    else
        return ws_error_set(err, errno, "cannot find the working directory: %s", strerror(errno));
    char *slash = strrchr(absolute, '/');
    char parent[PATH_MAX];
    snprintf(parent, sizeof(parent), "%.*s", slash == absolute ? 1 : (int)(slash - absolute), absolute);
    char *real = realpath(parent, NULL);
    if (real)
        snprintf(out, PATH_MAX, "%s/%s", strcmp(real, "/") == 0 ? "" : real, slash + 1);
    else
        snprintf(out, PATH_MAX, "%s", absolute);
    free(real);
    return 0;
}

/* The tokens of the sources that have their own, read before the daemon goes anywhere else. */
static int read_source_tokens(struct ws_mount_options *o, const char *source, struct ws_error *err)
{
    char *copy = strdup(source), *save = NULL;
    size_t i = 0;
    int rc = copy ? 0 : ws_error_set(err, ENOMEM, "no memory for the sources");
    for (char *text = copy ? strtok_r(copy, ",", &save) : NULL; text && rc == 0 && i < WS_MAX_SOURCES;
         text = strtok_r(NULL, ",", &save), i++) {
        struct ws_source_spec spec;
        rc = ws_source_spec_parse(text, &spec, err);
        if (rc == 0)
            rc = ws_source_spec_token(&spec, NULL, &o->source_tokens[i], err);
    }
    free(copy);
    return rc;
}

int ws_mount_options_place(struct ws_mount_options *o, const char *source, const char *mountpoint,
                           struct ws_error *err)
{
    char given[PATH_MAX], parent[PATH_MAX];
    size_t n = strlen(mountpoint);
    if (!source[0])
        return ws_error_set(
            err, EINVAL,
            "'' is no source; write http://HOST:PORT, https://HOST:PORT, unix:/PATH or dir:/PATH");
    /* With "/" or "/." at its end realpath would look into what is there, which may be a dead mount. */
    while (n > 1 && (mountpoint[n - 1] == '/' || (mountpoint[n - 1] == '.' && mountpoint[n - 2] == '/')))
        n--;
    snprintf(given, sizeof(given), "%.*s", (int)n, mountpoint);
    char *real = realpath(given, NULL);
    int rc = real ? 0 : resolve_parent(given, parent, err);
    if (rc == 0) {
        o->source = (char *)(uintptr_t)keep(o, source);
        o->mountpoint = (char *)(uintptr_t)keep(o, real ? real : parent);
    }
    free(real);
    if (rc == 0)
        rc = read_source_tokens(o, source, err);
    if (rc < 0)
        return rc;
    return o->source && o->mountpoint ? 0 : ws_error_set(err, ENOMEM, "no memory for options");
}

/* Which sources the general token goes to: an operator who names several is to see it. */
static void log_token_of(const struct ws_mount_options *o, const struct ws_source_spec *s, const char *own)
{
    const bool http = strncmp(s->url, "http", 4) == 0;
    if (http && (own || o->store.source.token))
        ws_log(WS_LOG_INFO, "mount", "sends a token to=%s token=%s", s->url,
               own ? "its own" : "of token-file=");
}

int ws_mount_options_add_sources(const struct ws_mount_options *o, struct ws_store *store,
                                 struct ws_error *err)
{
    char *copy = strdup(o->source), *save = NULL;
    size_t i = 0;
    int rc = copy ? 0 : ws_error_set(err, ENOMEM, "no memory for the sources");
    for (char *text = copy ? strtok_r(copy, ",", &save) : NULL; text && rc == 0;
         text = strtok_r(NULL, ",", &save), i++) {
        struct ws_source_spec spec;
        const char *own = i < WS_MAX_SOURCES ? o->source_tokens[i] : NULL;
        rc = ws_source_spec_parse(text, &spec, err);
        if (rc == 0)
            rc = ws_store_add_with(store, spec.url, NULL, NULL, own, err);
        if (rc == 0)
            log_token_of(o, &spec, own);
    }
    free(copy);
    return rc;
}

void ws_mount_options_release(struct ws_mount_options *o)
{
    for (size_t i = 0; i < o->n_strings; i++)
        free(o->strings[i]);
    for (size_t i = 0; i < o->n_tokens; i++)
        ws_secret_free(o->tokens[i]);
    for (size_t i = 0; i < WS_MAX_SOURCES; i++) {
        ws_secret_free(o->source_tokens[i]);
        o->source_tokens[i] = NULL;
    }
    o->n_strings = o->n_tokens = 0;
    ws_trust_reset(&o->trust);
}
