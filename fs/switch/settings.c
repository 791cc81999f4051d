#include "fs/switch/settings.h"
#include "fs/engines/added.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/state_file.h"
#include "transports/base/text.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define HEAD        "wsync-settings 1\n"
#define WORST_BYTES 256   /* by which what is set for a model by words may become longer */
#define OWN_WAIT_MS 45000 /* for a predecessor: longer than its control takes to end */
#define OWN_LOOK_US 50000

char *ws_settings_path(const char *dir, const char *mountpoint)
{
    char own[2048], file[WS_MAX_NAME + 1], *path = NULL;
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (dir && strcmp(dir, "none") == 0)
        return NULL;
    if (!dir && geteuid() == 0)
        dir = "/var/lib/wsync";
    if (!dir && state && *state)
        snprintf(own, sizeof(own), "%s/wsync", state);
    else if (!dir && home && *home)
        snprintf(own, sizeof(own), "%s/.local/state/wsync", home);
    else if (!dir)
        return NULL;
    ws_name_to_file(mountpoint[1] ? mountpoint + 1 : mountpoint, file);
    if (asprintf(&path, "%s/%.240s", dir ? dir : own, file) < 0)
        return NULL;
    return path;
}

/* --- whose they are --- */

static int open_lock(const char *path, int *code)
{
    char beside[4096];
    snprintf(beside, sizeof(beside), "%s.lock", path);
    int rc = ws_state_file_make_folder(path);
    int fd = rc == 0 ? open(beside, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    *code = fd >= 0 ? 0 : rc < 0 ? -rc : errno;
    return fd >= 0 ? fd : open(path, O_RDONLY | O_CLOEXEC);
}

static int lock_in_time(int fd, const char *path, struct ws_error *err)
{
    const uint64_t until = ws_clock_ns() + OWN_WAIT_MS * WS_MS_NS;
    char pid[32] = "";
    for (bool told = false; flock(fd, LOCK_EX | LOCK_NB) != 0; told = true) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return ws_error_set(err, errno,
                                "cannot lock the settings in %s: %s; put them on a local file system with "
                                "state=DIR",
                                path, strerror(errno));
        ssize_t n = pread(fd, pid, sizeof(pid) - 1, 0);
        pid[n > 0 ? strspn(pid, "0123456789") : 0] = 0;
        if (ws_clock_ns() > until)
            return ws_error_set(err, EBUSY,
                                "another daemon (process %s) owns the settings in %s: end it, or mount with "
                                "another state=DIR",
                                pid[0] ? pid : "unknown", path);
        if (!told)
            ws_log(WS_LOG_INFO, "mount", "waiting for the daemon that owns the settings file=%s process=%s",
                   path, pid[0] ? pid : "unknown");
        usleep(OWN_LOOK_US);
    }
    return 0;
}

int ws_settings_lock(const char *dir, const char *mountpoint, int *out, struct ws_error *err)
{
    char *path = ws_settings_path(dir, mountpoint), pid[32];
    int code = 0, rc = 0, fd = path ? open_lock(path, &code) : -1;
    *out = -1;
    if (fd >= 0)
        rc = lock_in_time(fd, path, err);
    else if (path && dir && code != ENOSPC && code != EDQUOT) /* room may come */
        rc = ws_error_set(err, code,
                          "the settings cannot be kept in %s: %s; name another folder with state=DIR, or "
                          "state=none",
                          path, strerror(code));
    else if (path)
        ws_log(WS_LOG_WARN, "mount", "the settings cannot be kept in %s: %s", path, strerror(code));
    if (fd >= 0 && rc == 0 && code == 0) {
        int n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
        if (ftruncate(fd, 0) != 0 || pwrite(fd, pid, (size_t)n, 0) != n)
            ws_log(WS_LOG_DEBUG, "mount", "the lock of %s does not say whose it is", path);
    }
    if (fd >= 0 && rc < 0)
        close(fd);
    else
        *out = fd;
    free(path);
    return rc;
}

void ws_settings_unlock(int lock)
{
    if (lock >= 0)
        close(lock);
}

/* --- writing --- */

static void print_pin(void *arg, struct ws_version *v)
{
    struct ws_version_info i;
    ws_version_info(v, &i);
    if (i.pinned)
        fprintf(arg, "pin %" PRIu64 " %s\n", i.number, i.lineage);
}

/* worst: as long as it may become without a command. */
static void print_engine(const struct ws_engine *e, bool worst, FILE *f)
{
    fprintf(f, "%s\n", e->line);
    if (ws_condition_is_broken(&e->condition) || worst)
        fprintf(f, "broken %s\n", e->name);
    if (ws_condition_is_uncertain(&e->condition) || worst)
        fprintf(f, "doubted %s\n", e->name);
}

static void print_released(uint64_t by, const struct ws_version_id *id, FILE *f)
{
    fprintf(f, "released %" PRIu64 " %" PRIu64 " %s\n", by, id->version, id->lineage);
}

/* Is anything set for the model that differs from what one has that comes for the first time? */
static bool is_set(struct ws_control *c, const struct ws_controller *ctl)
{
    const enum ws_policy policy = c->options.prefetch ? WS_POLICY_PULL : WS_POLICY_MANUAL;
    struct ws_transport_prefs strategies;
    pthread_mutex_lock(&c->lock);
    const bool it_is = ctl->policy != policy || ctl->commit != WS_COMMIT_ALL || ctl->added || ctl->engines ||
                       ctl->target.lineage[0] || ctl->inherited_release || ctl->pins.len || ctl->signed_ns;
    pthread_mutex_unlock(&c->lock);
    return it_is || ws_transport_prefs_get(c->store, ctl->name, &strategies);
}

static void print_controller(struct ws_control *c, struct ws_controller *ctl, bool worst, FILE *f)
{
    char commit[32], policy[64], list[WS_TRANSPORT_PREFS_CHARS];
    struct ws_transport_prefs strategies;
    struct ws_desired desired = {0};
    struct ws_model *m = ws_store_find(c->store, ctl->name);
    struct ws_version *current = m ? ws_model_current(m) : NULL;
    if (!m && !is_set(c, ctl))
        return; /* it was removed */
    if (m)
        ws_model_desired(m, &desired);
    fputs("model ", f);
    ws_words_quote(f, ctl->name);
    fputc('\n', f);
    if (ws_transport_prefs_get(c->store, ctl->name, &strategies)) {
        ws_transport_prefs_text(&strategies, list);
        fprintf(f, "strategy %s\n", list);
    }
    pthread_mutex_lock(&c->lock);
    ws_controller_commit_text(ctl, commit);
    ws_controller_policy_text(ctl, policy);
    fprintf(f, "policy %s\ncommit %s\n", policy, commit);
    ws_added_print(ctl, f);
    for (const struct ws_engine *e = ctl->engines; e; e = e->next)
        print_engine(e, worst, f);
    if (current)
        fprintf(f, "current %" PRIu64 " %s\n", ws_version_number(current), ws_version_lineage(current));
    else if (ctl->target.lineage[0])
        fprintf(f, "current %" PRIu64 " %s\n", ctl->target.version, ctl->target.lineage);
    if (ctl->policy == WS_POLICY_FOLLOW && desired.released_by)
        print_released(desired.released_by, &desired.released, f);
    else if (ctl->inherited_release)
        print_released(ctl->inherited_release, &ctl->inherited, f);
    if (ctl->signed_ns)
        fprintf(f, "signed %" PRIu64 "\n", ctl->signed_ns);
    if (worst)
        fprintf(f, "%*s\n", WORST_BYTES, "");
    for (size_t i = 0; i < ctl->pins.len; i++)
        fprintf(f, "pin %" PRIu64 " %s\n", ctl->pins.ptr[i].version, ctl->pins.ptr[i].lineage);
    pthread_mutex_unlock(&c->lock);
    if (m) {
        ws_model_each(m, print_pin, f);
        ws_model_put(m);
    }
    if (current)
        ws_version_put(current);
}

static char *print_all(struct ws_control *c, bool worst, size_t *n)
{
    char *text = NULL, *whole = NULL;
    FILE *f = open_memstream(&text, n);
    if (!f)
        return NULL;
    fputs(HEAD, f);
    pthread_mutex_lock(&c->lock);
    struct ws_controller *ctl = c->controllers; /* only ever added to, at this end */
    pthread_mutex_unlock(&c->lock);
    for (; ctl; ctl = ctl->next)
        print_controller(c, ctl, worst, f);
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    int k = asprintf(&whole, "%send %016" PRIx64 "\n", text, ws_hash(text, *n));
    free(text);
    *n = k < 0 ? 0 : (size_t)k;
    return k < 0 ? NULL : whole;
}

int ws_settings_fit(struct ws_control *c, size_t more, struct ws_error *err)
{
    size_t n = 0;
    if (!c->settings_path)
        return 0;
    char *text = print_all(c, true, &n);
    int rc = text ? 0 : ws_error_set(err, ENOMEM, "no memory for the settings");
    free(text);
    if (rc == 0 && n + more > WS_MAX_STATE_FILE_BYTES)
        rc =
            ws_error_set(err, E2BIG,
                         "the settings of this mount, in %s, may have %lu bytes, and would have more: remove "
                         "engines or pins that are of no use",
                         c->settings_path, WS_MAX_STATE_FILE_BYTES);
    return rc;
}

int ws_settings_write(struct ws_control *c, struct ws_error *err)
{
    size_t n = 0;
    if (!c->settings_path || atomic_load(&c->restoring))
        return 0;
    pthread_mutex_lock(&c->saving);
    char *text = c->is_closed ? NULL : print_all(c, false, &n);
    int rc = c->is_closed ? 0 : text ? ws_state_file_write(c->settings_path, text, n) : -ENOMEM;
    pthread_mutex_unlock(&c->saving);
    free(text);
    return rc < 0 ? ws_error_set(err, -rc,
                                 "it holds, but the settings cannot be kept in %s, and are gone when this "
                                 "mount ends: %s; %s",
                                 c->settings_path, strerror(-rc),
                                 rc == -EFBIG ? "remove engines or pins that are of no use"
                                              : "make room there, or mount with state=DIR")
                  : 0;
}

void ws_settings_close(struct ws_control *c)
{
    pthread_mutex_lock(&c->saving);
    c->is_closed = true;
    pthread_mutex_unlock(&c->saving);
}

void ws_settings_save(struct ws_control *c)
{
    struct ws_error err;
    if (ws_settings_write(c, &err) < 0)
        (void)ws_controller_fail(c, &c->root, "keep the settings", &err);
}

/* --- reading --- */

/* A damaged file is not written over: it may be the only record of the engines. */
static int damaged(const char *path, const char *why, struct ws_error *err)
{
    char aside[4096];
    snprintf(aside, sizeof(aside), "%s.damaged", path);
    bool moved = rename(path, aside) == 0;
    return ws_error_set(
        err, EBADMSG,
        "the settings in %s are damaged (%.400s) and were left out: engines, policies and pins have to be "
        "set again; the file %s %s",
        path, why, moved ? "is now" : "stays", moved ? aside : "where it is");
}

/* A line of a newer release, for example. The other lines hold, and a copy keeps that line when the settings are
 * written anew. */
static int unknown(const char *path, const char *line, struct ws_error *err)
{
    char aside[4096], shown[WS_MAX_COMMAND + 1];
    snprintf(aside, sizeof(aside), "%s.damaged", path);
    ws_command_show(line, strlen(line), shown);
    (void)unlink(aside);
    bool kept = link(path, aside) == 0;
    return ws_error_set(
        err, EBADMSG,
        "the settings in %s have a line that cannot be followed here and was left out, '%.200s'; all "
        "others hold%s%s",
        path, shown, kept ? "; a copy is in " : "", kept ? aside : "");
}

/* Head, end and hash are right, and there is no NUL in it. */
static const char *check(char *text, size_t n)
{
    char hex[17];
    char *end = n > 21 ? text + n - 21 : NULL; /* "end ", 16 digits, newline */
    if (!end || strlen(text) != n || strncmp(text, HEAD, strlen(HEAD)) != 0)
        return "it does not begin as it should";
    if (strncmp(end, "end ", 4) != 0 || text[n - 1] != '\n' || end[-1] != '\n')
        return "it is cut off";
    snprintf(hex, sizeof(hex), "%016" PRIx64, ws_hash(text, n - 21));
    if (memcmp(hex, end + 4, 16) != 0)
        return "its hash is wrong";
    *end = 0;
    return NULL;
}

/* "NUMBER RUN" */
static bool parse_version_id(const char *text, struct ws_version_id *out)
{
    if (ws_text_digits(&text, &out->version) || *text++ != ' ' || strlen(text) > WS_LINEAGE_CHARS || !*text)
        return false;
    snprintf(out->lineage, sizeof(out->lineage), "%s", text);
    return true;
}

static bool parse_policy(struct ws_control *c, struct ws_controller *ctl, const char *line)
{
    struct ws_error err;
    struct ws_command *q = calloc(1, sizeof(*q));
    bool good = q && ws_command_parse(WS_SCOPE_MODEL, line, strlen(line), q, &err) == 0 &&
                ws_controller_set_policy(c, ctl, q->args[0], q->options[WS_OPTION_EVERY],
                                         q->options[WS_OPTION_MIN_INTERVAL], &err) == 0;
    free(q);
    return good;
}

/* name NULL: all that were read before. */
static void each_engine(struct ws_controller *ctl, const char *name, void (*read)(struct ws_condition *c))
{
    for (struct ws_engine *e = ctl->engines; e; e = e->next)
        if (!name || strcmp(e->name, name) == 0)
            read(&e->condition);
}

static bool parse_line(struct ws_control *c, struct ws_controller *ctl, const char *line,
                       bool (*add)(void *arg, struct ws_controller *ctl, const char *line), void *arg)
{
    struct ws_error err;
    struct ws_transport_prefs strategies;
    struct ws_version_id pin;
    if (strncmp(line, "policy ", 7) == 0) {
        return parse_policy(c, ctl, line);
    } else if (strncmp(line, "commit ", 7) == 0) {
        return ws_controller_set_commit(c, ctl, line + 7, &err) == 0;
    } else if (strncmp(line, "strategy ", 9) == 0) {
        return ws_transport_prefs_parse(line + 9, &strategies, &err) == 0 &&
               ws_transport_prefs_set(c->store, ctl->name, &strategies, &err) == 0;
    } else if (strncmp(line, "source ", 7) == 0) {
        return ws_added_read(ctl, line);
    } else if (strncmp(line, "engine add ", 11) == 0) {
        return add(arg, ctl, line);
    } else if (strncmp(line, "broken ", 7) == 0) {
        each_engine(ctl, line + 7, ws_condition_restore_broken);
    } else if (strncmp(line, "doubted ", 8) == 0) {
        each_engine(ctl, line + 8, ws_condition_restore_uncertain);
    } else if (strncmp(line, "current ", 8) == 0) {
        return parse_version_id(line + 8, &ctl->target);
    } else if (strncmp(line, "released ", 9) == 0) {
        line += 9;
        return ws_text_digits(&line, &ctl->inherited_release) == 0 && *line++ == ' ' &&
               parse_version_id(line, &ctl->inherited);
    } else if (strncmp(line, "pin ", 4) == 0) {
        return parse_version_id(line + 4, &pin) && ws_pins_append(&ctl->pins, pin) == 0;
    } else if (strncmp(line, "signed ", 7) == 0) {
        return ws_text_u64(line + 7, &ctl->signed_ns) == 0;
    } else if (strcmp(line, "switching") == 0) {
        each_engine(ctl, NULL, ws_condition_restore_uncertain);
    } else {
        return false;
    }
    return true;
}

int ws_settings_load(struct ws_control *c,
                     bool (*add)(void *arg, struct ws_controller *ctl, const char *line), void *arg,
                     struct ws_error *err)
{
    char *text, *save = NULL;
    size_t n = 0;
    if (!c->settings_path)
        return 0;
    struct ws_error unread;
    int rc = ws_state_file_read(c->settings_path, &text, &n, &unread);
    if (rc < 0)
        return damaged(c->settings_path, unread.text, err);
    if (!text)
        return 0;
    const char *why = check(text, n);
    struct ws_controller *ctl = NULL;
    for (char *line = why ? NULL : strtok_r(text + strlen(HEAD), "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        struct ws_words words = {0};
        if (strncmp(line, "model ", 6) == 0) {
            bool good = ws_words_parse(line, strlen(line), &words, err) == 0 && words.n == 2 &&
                        ws_name_is_model(words.word[1]);
            ctl = good ? ws_controller_get(c, words.word[1]) : NULL;
        }
        if (!ctl || (strncmp(line, "model ", 6) != 0 && !parse_line(c, ctl, line, add, arg)))
            rc = unknown(c->settings_path, line, err);
    }
    free(text);
    return why ? damaged(c->settings_path, why, err) : rc;
}
