#include "fs/written/folder.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/number.h"
#include "transports/format/commit_rule.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RETRY_NS        (WS_SECOND_NS / 2)
#define RETRY_DOUBLINGS 7 /* to a minute */

struct ws_written_folder *ws_written_folder_get(struct ws_written *w, const char *name)
{
    struct ws_written_folder *f;

    for (f = w->folders; f; f = f->next)
        if (strcmp(f->name, name) == 0)
            break;
    if (!f && strlen(name) <= WS_MAX_NAME && (f = calloc(1, sizeof(*f)))) {
        snprintf(f->name, sizeof(f->name), "%s", name);
        f->next = w->folders;
        w->folders = f;
    }
    if (f)
        f->is_there = true;
    return f;
}

/* FNV-1a; other weights have another inode, length or time. */
static uint64_t mix(uint64_t hash, uint64_t value)
{
    for (int i = 0; i < 8; i++, value >>= 8)
        hash = (hash ^ (value & 0xff)) * 0x100000001b3;
    return hash;
}

static uint64_t weights_of(const struct ws_folder *f)
{
    uint64_t hash = 0xcbf29ce484222325;

    for (size_t i = 0; i < f->n_files; i++)
        if (f->files[i].st) {
            const struct ws_stamp *s = &f->files[i].stamp;
            hash = mix(mix(mix(mix(hash, s->dev), s->ino), s->size_bytes), s->mtime_ns);
        }
    return hash ? hash : 1;
}

/* Is it a version by its name, and is nobody at it? */
static bool is_quiet(struct ws_written *w, struct ws_written_folder *f, char name[WS_MAX_NAME + 1],
                     uint64_t *number)
{
    pthread_mutex_lock(&w->lock);
    const bool is = f->is_there && f->writers == 0 && ws_pattern_match(w->lower.pattern, f->name, number);
    memcpy(name, f->name, sizeof(f->name));
    pthread_mutex_unlock(&w->lock);
    return is;
}

/* With publishing. */
static void publish(struct ws_written *w, struct ws_written_folder *f, const char *name, uint64_t number,
                    const char *path, uint64_t weights)
{
    struct ws_error err = {0};

    if (w->publish(w->arg, name, number, path, &err) == 0) {
        f->weights = weights;
        f->failed = 0;
        f->n_failures = 0;
        return;
    }
    f->failed = weights;
    f->next_ns = ws_clock_ns() + (RETRY_NS << f->n_failures);
    f->n_failures += f->n_failures < RETRY_DOUBLINGS;
    ws_log(WS_LOG_WARN, "share", "%s is whole and cannot be published; it is tried again: %s", name,
           err.text);
}

/* With publishing. */
static void settle(struct ws_written *w, struct ws_written_folder *f, bool again)
{
    char name[WS_MAX_NAME + 1], path[PATH_MAX];
    struct ws_folder *folder = NULL;
    struct ws_error err = {0};
    uint64_t number = 0;

    if (!is_quiet(w, f, name, &number))
        return;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d/%s", (int)getpid(), w->lower.memory, name);
    if (ws_commit_rule_read(path, w->marker, &folder, &err) < 0) {
        ws_log(WS_LOG_DEBUG, "share", "%s is not whole: %s", name, err.text);
        return;
    }
    const uint64_t weights = weights_of(folder);
    ws_folder_free(folder);
    if (weights != f->weights && (again || weights != f->failed))
        publish(w, f, name, number, path, weights);
}

void ws_written_folder_settle(struct ws_written *w, struct ws_written_folder *f)
{
    pthread_mutex_lock(&w->publishing);
    settle(w, f, false);
    pthread_mutex_unlock(&w->publishing);
}

void ws_written_folder_retry(struct ws_written *w)
{
    pthread_mutex_lock(&w->lock);
    struct ws_written_folder *f = w->folders; /* folders are never taken out, and new ones go in front */
    pthread_mutex_unlock(&w->lock);
    for (; f; f = f->next) {
        pthread_mutex_lock(&w->publishing);
        if (f->failed && ws_clock_ns() >= f->next_ns)
            settle(w, f, true);
        pthread_mutex_unlock(&w->publishing);
    }
}

void ws_written_folder_free_all(struct ws_written *w)
{
    while (w->folders) {
        struct ws_written_folder *f = w->folders;
        w->folders = f->next;
        free(f);
    }
}
