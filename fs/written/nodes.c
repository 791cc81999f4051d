#include "fs/written/nodes.h"
#include "transports/base/clock.h"
#include "transports/format/adapter_files.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GIVE_WAY_NS 50000000 /* what publishes may just be beginning: it is asked again */

static struct written_node **bucket(struct written *w, dev_t dev, ino_t ino)
{
    return &w->buckets[(ino * 31 + dev) % WRITTEN_BUCKETS];
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* A name of a version, or one that it has before: ".NAME.tmp", "tmp-NAME". */
static bool will_be_version(const struct written *w, const char *name)
{
    char text[256];
    uint64_t number;

    if (ws_pattern_match(w->options->pattern, name, &number))
        return true;
    name += name[0] == '.';
    if (strncmp(name, "tmp", 3) == 0)
        name += 3 + (name[3] == '-' || name[3] == '_' || name[3] == '.');
    snprintf(text, sizeof(text), "%s", name);
    if (ends_with(text, ".tmp"))
        text[strlen(text) - 4] = '\0';
    return ws_pattern_match(w->options->pattern, text, &number);
}

int written_folder_of(const struct written *w, const struct written_node *parent, const char *name,
                      bool is_new_folder)
{
    struct stat st;

    if (parent != &w->root)
        return parent->fd;
    if (w->memory < 0)
        return w->lower;
    if (fstatat(w->memory, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return w->memory;
    if (is_new_folder && will_be_version(w, name) && fstatat(w->lower, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return w->memory;
    return w->lower;
}

bool written_is_version(const struct written *w, const struct written_top *top, uint64_t *number)
{
    return top && !top->is_gone && top->fd >= 0 && ws_pattern_match(w->options->pattern, top->name, number);
}

void written_show(const struct written *w, const struct written_node *n, struct stat *st)
{
    uint64_t number;

    if (written_is_version(w, n->top, &number) && n->top->is_made_here &&
        (S_ISREG(st->st_mode) || S_ISDIR(st->st_mode)))
        st->st_mode = (st->st_mode & S_IFMT) | (S_ISDIR(st->st_mode) ? 0755 : 0644);
    if (st->st_dev == w->memory_dev && w->memory >= 0)
        st->st_ino ^= WRITTEN_OF_MEMORY;
}

static struct written_top *top_of(struct written *w, int fd, const char *name)
{
    struct stat mine, its;
    struct written_top *t;

    if (fstat(fd, &mine) < 0)
        return NULL;
    for (t = w->tops; t; t = t->next)
        if (!t->is_gone && fstat(t->fd, &its) == 0 && its.st_dev == mine.st_dev && its.st_ino == mine.st_ino)
            return t;
    t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->fd = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* -1: not ours to read, nor to publish */
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->refs = 1;
    t->next = w->tops;
    w->tops = t;
    return t;
}

void written_top_drop(struct written *w, struct written_top *top)
{
    struct written_top **at = &w->tops;

    if (!top || --top->refs)
        return;
    while (*at != top)
        at = &(*at)->next;
    *at = top->next;
    if (top->fd >= 0)
        close(top->fd);
    free(top);
}

static struct written_node *new_node(struct written *w, struct written_node *parent, const char *name, int fd,
                                     const struct stat *st)
{
    struct written_node *n = calloc(1, sizeof(*n));

    if (!n)
        return NULL;
    n->dev = st->st_dev;
    n->ino = st->st_ino;
    n->fd = fd;
    n->top = parent != &w->root ? parent->top : S_ISDIR(st->st_mode) ? top_of(w, fd, name) : NULL;
    if (parent == &w->root && S_ISDIR(st->st_mode) && !n->top) {
        free(n);
        return NULL;
    }
    if (n->top)
        n->top->refs++;
    struct written_node **b = bucket(w, n->dev, n->ino);
    n->next = *b;
    *b = n;
    return n;
}

static int open_child(const struct written *w, const struct written_node *parent, const char *name,
                      struct stat *st)
{
    const int fd = openat(written_folder_of(w, parent, name, false), name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    if (fstat(fd, st) == 0)
        return fd;
    const int rc = -errno;
    close(fd);
    return rc;
}

/* With the lock. The descriptor goes over. */
static int find_node(struct written *w, struct written_node *parent, const char *name, int fd,
                     struct written_node **out, struct stat *st)
{
    struct written_node *n = *bucket(w, st->st_dev, st->st_ino);

    while (n && (n->dev != st->st_dev || n->ino != st->st_ino))
        n = n->next;
    if (n)
        close(fd);
    else if (!(n = new_node(w, parent, name, fd, st))) {
        close(fd);
        return -ENOMEM;
    }
    n->refs++;
    snprintf(n->name, sizeof(n->name), "%s", name);
    written_show(w, n, st);
    *out = n;
    return 0;
}

int written_find_locked(struct written *w, struct written_node *parent, const char *name,
                        struct written_node **out, struct stat *st)
{
    const int fd = open_child(w, parent, name, st);

    return fd < 0 ? fd : find_node(w, parent, name, fd, out, st);
}

int written_find(struct written *w, struct written_node *parent, const char *name, struct written_node **out,
                 struct stat *st)
{
    const int fd = open_child(w, parent, name, st);

    if (fd < 0)
        return fd;
    pthread_mutex_lock(&w->lock);
    const int rc = find_node(w, parent, name, fd, out, st);
    pthread_mutex_unlock(&w->lock);
    return rc;
}

void written_forget(struct written *w, struct written_node *n, uint64_t count)
{
    if (n == &w->root)
        return;
    pthread_mutex_lock(&w->lock);
    n->refs -= count;
    if (n->refs == 0) {
        struct written_node **at = bucket(w, n->dev, n->ino);
        while (*at != n)
            at = &(*at)->next;
        *at = n->next;
        close(n->fd);
        written_top_drop(w, n->top);
        free(n);
    }
    pthread_mutex_unlock(&w->lock);
}

void written_wait(struct written *w, struct written_top *top)
{
    if (!top)
        return;
    top->refs++;            /* who waits beside us may remove it first */
    while (top->is_taken) { /* at the end, too: until what is published is given up */
        if (w->publishing == top && w->options->part != WS_COMMIT_WHOLE)
            w->options->give_way(w->options->arg);
        (void)ws_cond_wait_until(&w->changed, &w->lock, ws_clock_ns() + GIVE_WAY_NS);
    }
    written_top_drop(w, top);
}

void written_note(struct written *w, struct written_top *top, const char *name)
{
    if (!top)
        return;
    const bool config = strcmp(name, WS_ADAPTER_CONFIG_NAME) == 0;
    const bool marker = w->options->marker && strcmp(name, w->options->marker) == 0;
    const bool weights = ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json");
    top->new_config |= config;
    top->new_marker |= marker;
    top->new_weights |= weights;
    top->is_due = true;
    top->failures = 0;
    top->not_before = 0;
    pthread_cond_broadcast(&w->changed);
}

bool written_has_writer(const struct written *w, const struct written_top *top)
{
    for (size_t i = 0; i < WRITTEN_BUCKETS; i++)
        for (const struct written_node *n = w->buckets[i]; n; n = n->next)
            if (n->top == top && n->writers)
                return true;
    return false;
}

void written_free(struct written *w)
{
    while (!LIST_EMPTY(&w->files)) {
        struct written_file *f = LIST_FIRST(&w->files);
        LIST_REMOVE(f, entry);
        close(f->fd);
        free(f);
    }
    while (!LIST_EMPTY(&w->listings)) {
        struct written_listing *l = LIST_FIRST(&w->listings);
        LIST_REMOVE(l, entry);
        free(l->bytes);
        free(l);
    }
    for (size_t i = 0; i < WRITTEN_BUCKETS; i++)
        for (struct written_node *n = w->buckets[i], *next; n; n = next) {
            next = n->next;
            close(n->fd);
            free(n);
        }
    for (struct written_top *t = w->tops, *next; t; t = next) {
        next = t->next;
        if (t->fd >= 0)
            close(t->fd);
        free(t);
    }
    if (w->lower >= 0)
        close(w->lower);
    if (w->memory >= 0)
        close(w->memory);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}
