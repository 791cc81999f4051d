#include "transports/access/token_file.h"
#include "transports/base/clock.h"
#include "transports/base/file.h"
#include "transports/base/state_file.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOCK_NS      (10 * WS_SECOND_NS)
#define LOCK_STEP_NS 20000000L

/* A file while it is changed. */
struct change {
    char path[PATH_MAX]; /* without links in it: a link to the file stays one */
    int fd;              /* the file itself, locked */
    struct stat st;
    char *text;
    size_t n;
    struct ws_token_table table; /* what it holds */
};

static int cannot(const char *what, const char *path, int code, struct ws_error *err)
{
    return ws_error_set(err, code, "cannot %s the tokens file %.200s: %s", what, path, strerror(code));
}

/* The file that the path leads to now, locked, and made where there is none. Between open and lock it may have been
 * replaced: the lock is of the old one then. 1: so it was; 0, or -errno. */
static int try_lock(struct change *c)
{
    struct stat now;
    c->fd = open(c->path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
    if (c->fd < 0)
        return -errno;
    if (flock(c->fd, LOCK_EX | LOCK_NB) == 0 && fstat(c->fd, &c->st) == 0 && stat(c->path, &now) == 0 &&
        now.st_dev == c->st.st_dev && now.st_ino == c->st.st_ino)
        return S_ISREG(c->st.st_mode) ? 0 : -EINVAL;
    close(c->fd);
    c->fd = -1;
    return 1;
}

static int lock(struct change *c, const char *path, struct ws_error *err)
{
    const uint64_t end = ws_clock_ns() + LOCK_NS;
    int rc;
    if (!realpath(path, c->path) && (errno != ENOENT || strlen(path) >= sizeof(c->path)))
        return cannot("find", path, errno, err);
    if (access(path, F_OK) != 0)
        (void)stpcpy(c->path, path);
    rc = ws_state_file_make_folder(c->path);
    while (rc == 0 && (rc = try_lock(c)) == 1 && ws_clock_ns() < end) {
        nanosleep(&(struct timespec){.tv_nsec = LOCK_STEP_NS}, NULL);
        rc = 0;
    }
    if (rc == 1)
        return ws_error_set(err, EBUSY, "another process has the tokens file %.200s locked", path);
    return rc < 0 ? cannot("open", path, -rc, err) : 0;
}

/* The lock is given up last. */
static void end(struct change *c)
{
    free(c->text);
    ws_token_table_clear(&c->table);
    if (c->fd >= 0)
        close(c->fd);
}

static int begin(struct change *c, const char *path, struct ws_error *err)
{
    *c = (struct change){.fd = -1};
    int rc = lock(c, path, err);
    if (rc == 0 && c->st.st_mode & S_IWOTH) /* as servers refuse it */
        rc = ws_error_set(err, EPERM, "every account may write the tokens file %.200s: chmod o-w it", path);
    if (rc == 0)
        rc = ws_state_file_read(c->path, &c->text, &c->n, err);
    if (rc == 0 && !c->text)
        rc = cannot("read", path, ENOENT, err);
    if (rc == 0)
        rc = ws_token_table_parse(&c->table, path, c->text, c->n, err);
    return rc;
}

static int write_beside(const struct change *c, const char *beside, const char *text, size_t n)
{
    (void)unlink(beside); /* of a change that was cut off: the lock is ours */
    const int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int rc = ws_file_write(fd, text, n);
    if (rc == 0 && (fchown(fd, c->st.st_uid, c->st.st_gid) != 0 && errno != EPERM))
        rc = -errno;
    if (rc == 0 && (fchmod(fd, c->st.st_mode & 0777) != 0 || fsync(fd) != 0))
        rc = -errno;
    if (close(fd) != 0 && rc == 0)
        rc = -errno;
    return rc;
}

/* Puts the new text in the place of the file, if it can be read again. */
static int replace(const struct change *c, const char *path, const char *text, size_t n, struct ws_error *err)
{
    struct ws_token_table after;
    char beside[PATH_MAX + 8];
    int rc = ws_token_table_parse(&after, path, text, n, err);
    ws_token_table_clear(&after);
    if (rc < 0)
        return rc;
    if (n > WS_MAX_STATE_FILE_BYTES)
        return cannot("write", path, EFBIG, err);
    snprintf(beside, sizeof(beside), "%s.new", c->path);
    rc = write_beside(c, beside, text, n);
    if (rc == 0 && rename(beside, c->path) != 0)
        rc = -errno;
    if (rc < 0)
        (void)unlink(beside);
    return rc < 0 ? cannot("write", path, -rc, err) : 0;
}

/* --- a line more --- */

static void print_line(const struct ws_token_new *t, const struct ws_token_line *before, char *out,
                       size_t cap)
{
    char roles[WS_ROLES_TEXT], hash[WS_TOKEN_HASH_CHARS + 1] = "-";
    const bool inherits = before && !t->roles;
    const char *models = inherits ? before->identity.models : t->models ? t->models : "";
    ws_roles_print(inherits ? before->identity.roles : t->roles, roles);
    if (t->hash)
        ws_token_hash_print(t->hash, hash);
    snprintf(out, cap, "%s %s%s%s %s\n", t->name, roles, *models ? " " : "", models, hash);
}

static int check_new(const struct change *c, const char *path, const struct ws_token_new *t,
                     struct ws_error *err)
{
    const struct ws_token_line *before = ws_token_table_by_name(&c->table, t->name);
    if (!ws_identity_is_name(t->name, strlen(t->name)))
        return ws_error_set(err, EINVAL, "'%.140s' is no name of an identity: " WS_IDENTITY_RULE, t->name);
    if (t->models && !ws_identity_are_models(t->models, strlen(t->models)))
        return ws_error_set(err, EINVAL, "'%.200s' are no patterns of models, such as actor*,critic",
                            t->models);
    if (before && !t->rotates)
        return ws_error_set(
            err, EEXIST,
            "%s is in %.200s already, line %u: --rotate adds a second token of that name, which works "
            "beside the first until that is removed",
            t->name, path, before->number);
    if (!before && t->rotates)
        return ws_error_set(err, ENOENT, "there is no %s in %.200s whose token could be exchanged", t->name,
                            path);
    for (size_t i = 0; !t->hash && i < c->table.lines.len; i++)
        if (!c->table.lines.ptr[i].has_hash && strcmp(c->table.lines.ptr[i].identity.name, t->name) == 0)
            return ws_error_set(err, EEXIST, "%s is known by its certificate already, by line %u of %.200s",
                                t->name, c->table.lines.ptr[i].number, path);
    return 0;
}

int ws_token_file_add(const char *path, const struct ws_token_new *t, struct ws_error *err)
{
    char line[WS_IDENTITY_CHARS + WS_ROLES_TEXT + WS_MODELS_CHARS + WS_TOKEN_HASH_CHARS + 8];
    struct change c;
    char *text = NULL;
    int rc = begin(&c, path, err);
    if (rc == 0)
        rc = check_new(&c, path, t, err);
    if (rc == 0) {
        print_line(t, ws_token_table_by_name(&c.table, t->name), line, sizeof(line));
        text = malloc(c.n + sizeof(line) + 1);
        rc = text ? 0 : ws_error_set(err, ENOMEM, "no memory for the tokens file");
    }
    if (rc == 0) {
        const bool is_cut = c.n > 0 && c.text[c.n - 1] != '\n';
        memcpy(text, c.text, c.n);
        const int more = snprintf(text + c.n, sizeof(line) + 1, "%s%s", is_cut ? "\n" : "", line);
        rc = replace(&c, path, text, c.n + (size_t)more, err);
    }
    free(text);
    end(&c);
    return rc;
}

/* --- lines less --- */

/* The numbers of the name's lines: how many, the first and the last. */
static unsigned find_lines(const struct ws_token_table *t, const char *name, unsigned *first, unsigned *last)
{
    unsigned n = 0;
    *first = UINT_MAX;
    *last = 0;
    for (size_t i = 0; i < t->lines.len; i++) {
        const struct ws_token_line *l = &t->lines.ptr[i];
        if (strcmp(l->identity.name, name) != 0)
            continue;
        n++;
        *first = l->number < *first ? l->number : *first;
        *last = l->number > *last ? l->number : *last;
    }
    return n;
}

static bool is_of(const struct ws_token_table *t, const char *name, unsigned number)
{
    for (size_t i = 0; i < t->lines.len; i++)
        if (t->lines.ptr[i].number == number)
            return strcmp(t->lines.ptr[i].identity.name, name) == 0;
    return false;
}

/* Takes lines of the name out of the text; only: the number of the one that goes, 0: all go. */
static void cut(struct change *c, const char *name, unsigned only)
{
    size_t kept = 0;
    unsigned number = 0;
    for (size_t at = 0, next; at < c->n; at = next) {
        const char *end_ = memchr(c->text + at, '\n', c->n - at);
        next = end_ ? (size_t)(end_ - c->text) + 1 : c->n;
        number++;
        if (only ? number == only : is_of(&c->table, name, number))
            continue;
        memmove(c->text + kept, c->text + at, next - at);
        kept += next - at;
    }
    c->n = kept;
}

int ws_token_file_remove(const char *path, const char *name, enum ws_token_lines_of which,
                         struct ws_error *err)
{
    struct change c;
    unsigned first = 0, last = 0, n = 0;
    if (access(path, F_OK) != 0)
        return cannot("read", path, errno, err);
    int rc = begin(&c, path, err);
    if (rc == 0)
        n = find_lines(&c.table, name, &first, &last);
    if (rc == 0 && n == 0)
        rc = ws_error_set(err, ENOENT, "there is no %.140s in %.200s; wsync token list shows who is", name,
                          path);
    else if (rc == 0 && n == 1 && which == WS_TOKEN_OLDEST)
        rc = ws_error_set(err, EINVAL, "%.140s has one line only in %.200s; without --oldest it is removed",
                          name, path);
    if (rc == 0) {
        cut(&c, name, which == WS_TOKEN_OLDEST ? first : which == WS_TOKEN_NEWEST ? last : 0);
        rc = replace(&c, path, c.text, c.n, err);
    }
    end(&c);
    return rc;
}
