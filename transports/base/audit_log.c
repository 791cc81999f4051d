#include "transports/base/audit_log.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include "transports/base/workers.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST_QUEUED 4096
#define TEXT_BYTES  512  /* of a field, before it is quoted */
#define LINE_BYTES  8192 /* seven fields, each byte quoted, and what is between them */

struct line {
    STAILQ_ENTRY(line) next;
    size_t n;
    char text[];
};
STAILQ_HEAD(lines, line);

static struct {
    atomic_bool is_open;
    char *path, *by;
    pthread_t thread;
    _Atomic uint64_t lost;
    pthread_mutex_t lock;
    pthread_cond_t came;
    /* guarded by lock */
    struct lines queue;
    unsigned n_queued;
    bool stop;
    bool has_thread; /* of who opens, starts and closes it */
    /* the thread's own */
    int fd;
    bool is_torn;           /* the file ends in a part of a line */
    bool is_failing;        /* the last line was lost */
    uint64_t reported_lost; /* lines that the file says were lost */
} the = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

/* --- lines --- */

static char *put(char *at, const char *text)
{
    return stpcpy(at, text);
}

/* A text in JSON's quotes: one line of UTF-8 by ws_text_clean, so that two characters are left to escape. */
static char *put_text(char *at, const char *key, const char *text)
{
    char clean[TEXT_BYTES];
    snprintf(clean, sizeof(clean), "%s", text ? text : "");
    ws_text_clean(clean);
    at = put(put(put(at, ",\""), key), "\":\"");
    for (const char *c = clean; *c; c++) {
        if (*c == '"' || *c == '\\')
            *at++ = '\\';
        *at++ = *c;
    }
    return put(at, "\"");
}

static char *put_time(char *at)
{
    const uint64_t ns = ws_clock_day_ns();
    const time_t seconds = (time_t)(ns / WS_SECOND_NS);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    at += strftime(at, 64, "{\"time\":\"%Y-%m-%dT%H:%M:%S", &utc);
    return at + sprintf(at, ".%03uZ\"", (unsigned)(ns / WS_MS_NS % 1000));
}

static const char *outcome_name(enum ws_audit_outcome o)
{
    static const char *const names[] = {"done", "failed", "refused"};
    return names[o];
}

static size_t print(const struct ws_audit_entry *e, char out[LINE_BYTES])
{
    char *at = put_text(put_time(out), "by", the.by);
    at += sprintf(at, ",\"pid\":%d", (int)getpid());
    at = put_text(at, "what", e->what);
    at = put_text(at, "who", e->who);
    at = put_text(at, "from", e->from);
    at = put_text(at, "to", e->to);
    at = put_text(at, "outcome", outcome_name(e->outcome));
    at = put_text(at, "error", e->error);
    return (size_t)(put(at, "}\n") - out);
}

/* --- the file; by the thread alone --- */

static int open_file(const char *path)
{
    struct stat st;
    /* a fifo would keep the thread for ever, and a link could lead to any file */
    const int fd =
        open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        return fd;
    close(fd);
    return -EINVAL;
}

static const char *why(int code)
{
    return code == -EINVAL  ? "it is no plain file"
           : code == -ELOOP ? "it is a symbolic link, and links are not followed: name the file itself"
                            : strerror(-code);
}

/* Once it is renamed or removed, the path leads to another file, or to none. */
static int follow_path(void)
{
    struct stat at, now;
    if (the.fd >= 0 && stat(the.path, &at) == 0 && fstat(the.fd, &now) == 0 && at.st_ino == now.st_ino &&
        at.st_dev == now.st_dev)
        return 0;
    const int fd = open_file(the.path);
    if (fd < 0)
        return fd;
    if (the.fd >= 0)
        close(the.fd);
    the.fd = fd;
    the.is_torn = false;
    return 0;
}

/* All of the line, or none of it: the room is taken first, where the file system can do that. */
static int append(const char *text, size_t n)
{
    struct stat st;
    int rc = follow_path();
    if (rc < 0)
        return rc;
    if (fstat(the.fd, &st) == 0 && fallocate(the.fd, FALLOC_FL_KEEP_SIZE, st.st_size, (off_t)n + 1) != 0 &&
        (errno == ENOSPC || errno == EDQUOT))
        return -errno;
    if (the.is_torn && write(the.fd, "\n", 1) == 1)
        the.is_torn = false;
    if (the.is_torn)
        return -ENOSPC;
    const ssize_t done = write(the.fd, text, n);
    the.is_torn = done > 0 && (size_t)done < n;
    return done == (ssize_t)n ? 0 : done < 0 ? -errno : -ENOSPC;
}

static void lose(int code)
{
    atomic_fetch_add(&the.lost, 1);
    if (!the.is_failing)
        ws_log(WS_LOG_ERROR, "audit", "entries are lost, until %s can be written again: %s", the.path,
               why(code));
    the.is_failing = true;
}

/* There is room again: how many are missing before the next line. */
static int report_lost(void)
{
    const uint64_t lost = atomic_load(&the.lost);
    char text[80], line[LINE_BYTES];
    if (lost == the.reported_lost)
        return 0;
    snprintf(text, sizeof(text), "%" PRIu64 " entries before this one are missing", lost - the.reported_lost);
    const int rc =
        append(line, print(
                         &(struct ws_audit_entry){
                             .what = "lost", .to = the.path, .outcome = WS_AUDIT_FAILED, .error = text},
                         line));
    if (rc < 0)
        return rc;
    the.reported_lost = lost;
    if (the.is_failing)
        ws_log(WS_LOG_WARN, "audit", "%s is written again, lost=%" PRIu64, the.path, lost);
    the.is_failing = false;
    return 0;
}

static void write_line(const struct line *l)
{
    int rc = report_lost();
    if (rc == 0)
        rc = append(l->text, l->n);
    if (rc < 0)
        lose(rc);
}

static void *write_lines(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&the.lock);
    for (;;) {
        struct line *l = STAILQ_FIRST(&the.queue);
        if (!l && the.stop)
            break;
        if (!l) {
            pthread_cond_wait(&the.came, &the.lock);
            continue;
        }
        STAILQ_REMOVE_HEAD(&the.queue, next);
        the.n_queued--;
        pthread_mutex_unlock(&the.lock);
        write_line(l);
        free(l);
        pthread_mutex_lock(&the.lock);
    }
    pthread_mutex_unlock(&the.lock);
    return NULL;
}

/* --- life --- */

int ws_audit_log_open(const char *path, const char *by, struct ws_error *err)
{
    if (atomic_load(&the.is_open))
        return ws_error_set(err, EINVAL, "the audit log %s is open already", the.path);
    const int fd = open_file(path);
    if (fd < 0)
        return ws_error_set(err, -fd, "cannot open the audit log %.200s: %s", path, why(fd));
    the.fd = fd;
    the.path = strdup(path);
    the.by = strdup(by);
    the.stop = the.is_torn = the.is_failing = false;
    the.reported_lost = atomic_load(&the.lost);
    STAILQ_INIT(&the.queue);
    ws_cond_init(&the.came);
    the.has_thread = false;
    if (the.path && the.by) {
        atomic_store(&the.is_open, true);
        return 0;
    }
    close(fd);
    free(the.path);
    free(the.by);
    pthread_cond_destroy(&the.came);
    return ws_error_set(err, ENOMEM, "no memory for the audit log");
}

int ws_audit_log_start(struct ws_error *err)
{
    if (!atomic_load(&the.is_open) || the.has_thread)
        return 0;
    the.has_thread = ws_thread_start(&the.thread, write_lines, NULL) == 0;
    return the.has_thread ? 0 : ws_error_set(err, EAGAIN, "cannot start the thread of the audit log");
}

void ws_audit_log_close(void)
{
    if (!atomic_exchange(&the.is_open, false))
        return;
    pthread_mutex_lock(&the.lock);
    the.stop = true;
    pthread_cond_signal(&the.came);
    pthread_mutex_unlock(&the.lock);
    if (the.has_thread)
        pthread_join(the.thread, NULL);
    close(the.fd);
    the.fd = -1;
    free(the.path);
    free(the.by);
    pthread_cond_destroy(&the.came);
}

uint64_t ws_audit_log_lost(void)
{
    return atomic_load(&the.lost);
}

static void queue(const struct ws_audit_entry *e)
{
    char text[LINE_BYTES];
    const size_t n = print(e, text);
    struct line *l = malloc(sizeof(*l) + n);
    if (l) {
        l->n = n;
        memcpy(l->text, text, n);
    }
    pthread_mutex_lock(&the.lock);
    const bool has_room = l && the.n_queued < MOST_QUEUED;
    if (has_room) {
        STAILQ_INSERT_TAIL(&the.queue, l, next);
        the.n_queued++;
        pthread_cond_signal(&the.came);
    }
    pthread_mutex_unlock(&the.lock);
    if (has_room)
        return;
    atomic_fetch_add(&the.lost, 1); /* the thread reports it with the next line */
    free(l);
}

static const char *or_nobody(const char *text)
{
    return text && *text ? text : "-";
}

void ws_audit_log_write(const struct ws_audit_entry *e)
{
    if (!e->is_logged)
        ws_log(WS_LOG_INFO, "audit", "%s who=%s from=\"%s\" to=\"%s\" outcome=%s%s%s%s", e->what,
               or_nobody(e->who), or_nobody(e->from), or_nobody(e->to), outcome_name(e->outcome),
               e->error ? " error=\"" : "", e->error ? e->error : "", e->error ? "\"" : "");
    if (atomic_load(&the.is_open))
        queue(e);
}
