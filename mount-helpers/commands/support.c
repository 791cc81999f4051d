/* wsync support: one archive for a bug report. What it has comes from commands of this program, each in a process of its
 * own that is ended after a time, since a mount may hang; and from small files. All of it goes through redact.h. */
#include "backends/trainer/api/agent_address.h"
#include "fs/written/written.h"
#include "mount-helpers/cli/agents.h"
#include "mount-helpers/cli/bundle.h"
#include "mount-helpers/cli/redact.h"
#include "transports/access/local_token.h"
#include "transports/base/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <mntent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COMMAND_S    20
#define DOCTOR_S     "60"
#define PART_BYTES   (4UL << 20) /* of one file of the archive */
#define LINES        1000
#define MAX_WORDS    12
#define MAX_MOUNTS   64
#define SELF         "/proc/self/exe"
#define CONTENT_NOTE "Secrets were removed as wsync-support(1) says. Read it before you send it.\n"

static const struct cli_option options[] = {
    AGENTS_OPTIONS,
    {"out", 'o', "FILE", "the archive; default wsync-support-TIME.tar.zst in this folder"},
    {"log", 0, "FILE", "the last lines of this log or settings file, too; may be given several times"},
    {"mount", 0, "DIR", "this mount and no other; may be given several times; default all, 64 at most"},
    {"settings", 0, "DIR", "the folder of this host's settings; default /etc/wsync"},
    {"lines", 'n', "N", "of each log and of each mount's events; default 1000", 1, 100000},
    {0},
};

struct support {
    const struct cli_args *args;
    struct redact *redact;
    struct bundle bundle;
    glob_t settings; /* paths that were found so far */
    char lines[16];
};

static void add(struct support *s, const char *name, const char *text)
{
    char *clean = redact_text(s->redact, text);
    const int rc = bundle_add(&s->bundle, name, clean);
    free(clean);
    if (rc < 0)
        exit(cli_fail("cannot add %s to the archive: %s; --lines N makes it smaller", name, strerror(-rc)));
}

/* What comes from a pipe or file up to its end, the bytes or the time; to be freed. */
static char *read_until(int fd, uint64_t end_ms, bool *late)
{
    char *text = malloc(PART_BYTES + 1);
    size_t n = 0;
    ssize_t got = 1;
    if (!text)
        exit(cli_fail("no memory for a part of the archive"));
    while (got > 0 && n < PART_BYTES) {
        const uint64_t now = ws_clock_ms();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (now >= end_ms || poll(&p, 1, (int)(end_ms - now)) <= 0) {
            *late = true;
            break;
        }
        got = read(fd, text + n, PART_BYTES - n);
        n += got > 0 ? (size_t)got : 0;
    }
    text[n] = 0;
    for (size_t i = 0; i < n; i++)
        text[i] = text[i] ? text[i] : '?';
    return text;
}

/* Adds what `wsync WORDS` prints, and returns it, to be freed; *late: it was ended for its time. */
static char *add_command(struct support *s, const char *name, const char *const words[], unsigned seconds,
                         bool *late)
{
    char *argv[MAX_WORDS] = {(char *)(uintptr_t) "wsync"};
    int pipes[2];
    *late = false;
    for (size_t i = 0; words[i] && i + 2 < MAX_WORDS; i++)
        argv[i + 1] = (char *)(uintptr_t)words[i];
    fflush(stdout);
    if (pipe2(pipes, O_CLOEXEC) != 0)
        exit(cli_fail("cannot run 'wsync %s': %s", words[0], strerror(errno)));
    const pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(pipes[1], STDOUT_FILENO);
        (void)dup2(pipes[1], STDERR_FILENO);
        execv(SELF, argv);
        _exit(127);
    }
    close(pipes[1]);
    char *text = pid < 0 ? strdup("it could not be started\n")
                         : read_until(pipes[0], ws_clock_ms() + seconds * 1000ULL, late);
    close(pipes[0]);
    if (pid > 0 && *late)
        (void)kill(pid, SIGKILL); /* one that the kernel keeps is left behind */
    if (pid > 0)
        (void)waitpid(pid, NULL, *late ? WNOHANG : 0);
    add(s, name, text);
    if (*late)
        fprintf(stderr, "wsync support: 'wsync %s' was ended after %u s; what it had said is in %s\n",
                words[0], seconds, name);
    return text;
}

static void add_file(struct support *s, const char *name, const char *path)
{
    bool late = false;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    char *text = fd < 0 ? NULL : read_until(fd, ws_clock_ms() + COMMAND_S * 1000ULL, &late);
    char why[256];
    snprintf(why, sizeof(why), "cannot be read: %s\n", strerror(errno));
    add(s, name, text ? text : why);
    free(text);
    if (fd >= 0)
        close(fd);
}

/* The last lines of a log, whatever its size. */
static void add_log(struct support *s, unsigned i, const char *path)
{
    char name[32];
    bool late = false;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        exit(cli_fail("cannot read %s: %s", path, strerror(errno)));
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        exit(cli_fail("cannot read %s: it is no regular file", path));
    const off_t size = lseek(fd, 0, SEEK_END);
    const bool is_cut = size > (off_t)PART_BYTES;
    (void)lseek(fd, is_cut ? size - (off_t)PART_BYTES : 0, SEEK_SET);
    char *text = read_until(fd, ws_clock_ms() + COMMAND_S * 1000ULL, &late), *at = text + strlen(text);
    const char *begin = text + (is_cut ? strcspn(text, "\n") : 0); /* half a secret is not known for one */
    for (uint64_t left = cli_u64(s->args, "lines", LINES) + 1; at > begin; at--)
        if (at[-1] == '\n' && at[0] && --left == 1)
            break;
    snprintf(name, sizeof(name), "logs/%u.txt", i);
    add(s, name, at);
    free(text);
    close(fd);
}

/* Files and folders that a pattern matches; without matches, as before. */
static void find_settings(struct support *s, const char *pattern)
{
    (void)glob(pattern, s->settings.gl_pathc ? GLOB_APPEND : 0, NULL, &s->settings);
}

/* The file or folder that a mount says it is configured by, and the file that keeps what was set by commands. */
static void find_settings_of(struct support *s, const char *status)
{
    json_t *root = json_loads(status, 0, NULL);
    const char *config = json_string_value(json_object_get(root, "config"));
    const char *kept = json_string_value(json_object_get(root, "settings"));
    char inside[PATH_MAX];
    if (kept)
        find_settings(s, kept);
    if (config) {
        find_settings(s, config);
        snprintf(inside, sizeof(inside), "%s/*", config);
        find_settings(s, inside);
    }
    json_decref(root);
}

static bool is_plain_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static bool is_among(char *const *paths, size_t n, const char *path)
{
    while (n > 0)
        if (strcmp(paths[--n], path) == 0)
            return true;
    return false;
}

/* Each by its path, once. A name that does not fit is cut at its begin. */
static void add_settings(struct support *s)
{
    char name[BUNDLE_NAME_CHARS + 1];
    for (size_t i = 0; i < s->settings.gl_pathc; i++) {
        const char *path = s->settings.gl_pathv[i];
        const size_t n = strlen(path), most = sizeof(name) - sizeof("settings/");
        if (!is_plain_file(path) || is_among(s->settings.gl_pathv, i, path))
            continue;
        snprintf(name, sizeof(name), "settings/%s", n > most ? path + n - most : path + 1);
        add_file(s, name, path);
    }
    if (s->settings.gl_pathc)
        globfree(&s->settings);
}

static bool is_wanted(const struct support *s, const struct mntent *m)
{
    const char *named = cli_nth(s->args, "mount", 0);
    for (unsigned i = 0; named && strcmp(named, m->mnt_dir) != 0;)
        named = cli_nth(s->args, "mount", ++i);
    return strcmp(m->mnt_type, "fuse.wsync") == 0 && strcmp(m->mnt_fsname, WS_WRITTEN_FSNAME) != 0 &&
           (named || !cli_has(s->args, "mount"));
}

static void add_mounts(struct support *s)
{
    char name[64];
    unsigned n = 0, more = 0;
    bool hangs;
    FILE *f = setmntent("/proc/self/mounts", "re");
    for (struct mntent *m; f && (m = getmntent(f));) {
        if (!is_wanted(s, m))
            continue;
        if (n == MAX_MOUNTS) {
            more++;
            continue;
        }
        const char *const status[] = {"status", "--json", "--mount", m->mnt_dir, NULL};
        const char *const events[] = {"events", "--raw", "-n", s->lines, "--mount", m->mnt_dir, NULL};
        snprintf(name, sizeof(name), "mounts/%u/status.json", n);
        char *text = add_command(s, name, status, COMMAND_S, &hangs);
        find_settings_of(s, text);
        free(text);
        snprintf(name, sizeof(name), "mounts/%u/events.txt", n++);
        if (!hangs)
            free(add_command(s, name, events, COMMAND_S, &hangs));
    }
    if (f)
        endmntent(f);
    if (more)
        fprintf(stderr, "wsync support: %u more mounts are left out: name those that matter with --mount\n",
                more);
}

static void add_agent(struct support *s)
{
    struct ws_source *agent = agents_open(s->args, COMMAND_S);
    struct ws_error err = {0};
    json_t *reply = NULL;
    const int rc = agents_call(agent, "GET", "/v1/status", NULL, &reply, &err);
    char *text = rc == 0 ? json_dumps(reply, JSON_INDENT(1)) : NULL;
    add(s, "agent/status.json", text ? text : err.text);
    free(text);
    json_decref(reply);
    ws_source_close(agent);
}

/* Names alone: values may be secrets under any name. */
static void add_environment(struct support *s)
{
    extern char **environ;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    for (char **e = environ; f && *e; e++)
        if (strncmp(*e, "WSYNC_", 6) == 0 || strncmp(*e, "UCX_", 4) == 0 || strncmp(*e, "NCCL_", 5) == 0)
            fprintf(f, "%.*s is set\n", (int)strcspn(*e, "="), *e);
    if (!f || fclose(f) != 0)
        exit(cli_fail("no memory for a part of the archive"));
    add(s, "environment.txt", text);
    free(text);
}

static const char *settings_folder(const struct support *s)
{
    return cli_get(s->args, "settings") ? cli_get(s->args, "settings") : "/etc/wsync";
}

static void find_own_settings(struct support *s)
{
    static const char *const below[] = {"*.env", "*.conf", "*/*.env", "*/*.conf"};
    char pattern[PATH_MAX];
    for (size_t i = 0; i < sizeof(below) / sizeof(below[0]); i++) {
        snprintf(pattern, sizeof(pattern), "%s/%s", settings_folder(s), below[i]);
        find_settings(s, pattern);
    }
    find_settings(s, "/etc/systemd/system/wsync-*.service.d/*.conf");
}

/* The first lines of files that are tokens: of this host's servers, and beside the settings. */
static void know_tokens(struct support *s, const char *pattern)
{
    struct stat st;
    glob_t tokens;
    if (glob(pattern, 0, NULL, &tokens) != 0)
        return;
    for (size_t i = 0; i < tokens.gl_pathc; i++)
        if (stat(tokens.gl_pathv[i], &st) == 0 && S_ISREG(st.st_mode))
            redact_know_file(s->redact, tokens.gl_pathv[i]);
    globfree(&tokens);
}

static void know_secrets(struct support *s)
{
    char folder[WS_LOCAL_TOKEN_PATH], pattern[PATH_MAX];
    redact_know_environment(s->redact);
    if (cli_has(s->args, "token-file"))
        redact_know_file(s->redact, cli_get(s->args, "token-file"));
    for (unsigned i = 0; ws_local_token_folder(i, folder); i++) {
        snprintf(pattern, sizeof(pattern), "%s/*.token", folder);
        know_tokens(s, pattern);
    }
    snprintf(pattern, sizeof(pattern), "%s/*token", settings_folder(s));
    know_tokens(s, pattern);
}

static int run(const struct cli_args *args)
{
    struct support s = {.args = args, .redact = redact_new()};
    struct ws_error err;
    char usual[64];
    bool late;
    const time_t now = time(NULL);
    struct tm tm;
    (void)gmtime_r(&now, &tm);
    strftime(usual, sizeof(usual), "wsync-support-%Y%m%dT%H%M%SZ.tar.zst", &tm);
    const char *out = cli_get(args, "out") ? cli_get(args, "out") : usual;
    snprintf(s.lines, sizeof(s.lines), "%u", (unsigned)cli_u64(args, "lines", LINES));
    if (bundle_check(out, &err) < 0) /* before all that takes long */
        return cli_fail("%s", err.text);
    know_secrets(&s);
    add(&s, "README.txt", CONTENT_NOTE);
    free(add_command(&s, "version.txt", (const char *const[]){"version", NULL}, COMMAND_S, &late));
    free(add_command(&s, "doctor.json",
                     (const char *const[]){"doctor", "--json", "--timeout", DOCTOR_S, NULL}, COMMAND_S + 60,
                     &late));
    add_file(&s, "kernel.txt", "/proc/version");
    add_file(&s, "memory.txt", "/proc/meminfo");
    add_file(&s, "mounts.txt", "/proc/self/mounts");
    add_environment(&s);
    find_own_settings(&s);
    add_mounts(&s);
    add_settings(&s);
    add_agent(&s);
    for (unsigned i = 0; cli_nth(args, "log", i); i++)
        add_log(&s, i, cli_nth(args, "log", i));
    const int rc = bundle_write(&s.bundle, out, &err);
    bundle_reset(&s.bundle);
    redact_free(s.redact);
    if (rc < 0)
        return cli_fail("%s", err.text);
    printf("%s\n", out);
    return CLI_OK;
}

const struct cli_command cmd_support = {
    .name = "support",
    .summary = "make one archive for a bug report, without secrets and without weights",
    .synopsis = "[OPTIONS]",
    .description =
        "Writes a .tar.zst of mode 0600: the versions of wsync and of what it is built with, "
        "`wsync doctor`, kernel, memory and mounts of this machine; status, the last events and the kept "
        "settings "
        "of each of its wsync mounts; files of settings (*.env and *.conf of --settings and of its folders, "
        "what "
        "mounts say they are configured by and keep, drop-ins of wsync's units); the agent's status; and the "
        "last "
        "lines of "
        "each --log. A mount or agent that hangs has 20 s, and a line says that it was left out. No file of "
        "a "
        "version is read.\n\n"
        "Removed are: tokens that this host's servers made, those in *token of --settings, that of "
        "--token-file, "
        "values of the environment whose names end in TOKEN, SECRET, PASSWORD, CREDENTIALS or KEY, and what "
        "is "
        "written behind such a name, all of the line where the name begins it; private keys in PEM; what "
        "follows "
        "Bearer; user info and queries of URLs. Files of keys and of tokens are not read but for that. Of "
        "the "
        "environment there are names only. What looks like nothing of this, in a log say, stays: read it "
        "before "
        "you send it. The archive appears under its name when it is complete, and replaces a file that was "
        "there.",
    .examples = "wsync support\nwsync support --out report.tar.zst --log /var/log/wsync.log",
    .options = options,
    .max_words = 0,
    .run = run,
};
