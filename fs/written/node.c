#include "fs/written/node.h"
#include "fs/fuse/backing.h"
#include "fs/written/folder.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUCKETS    4096
#define KNOWN_S    1.0         /* nobody else changes them; what the kernel writes by itself it knows */
#define OF_MEMORY  (1UL << 62) /* in inode numbers: two file systems are shown as one */
#define SHOWN_FILE (S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH)

struct ws_written_node *ws_written_node_of(fuse_ino_t ino)
{
    return ino == FUSE_ROOT_ID ? NULL : (struct ws_written_node *)(uintptr_t)ino;
}

int ws_written_node_folder(struct ws_written *w, fuse_ino_t parent, const char *name)
{
    const struct ws_written_node *n = ws_written_node_of(parent);

    return n ? n->fd : ws_lower_of(&w->lower, name);
}

/* Engines run under other accounts than trainers, and some writers leave 0600. */
static void show(const struct ws_written_node *n, struct stat *st)
{
    if (!n || !n->folder)
        return;
    st->st_ino |= OF_MEMORY;
    if (S_ISREG(st->st_mode))
        st->st_mode |= SHOWN_FILE;
    else if (S_ISDIR(st->st_mode))
        st->st_mode |= SHOWN_FILE | S_IXUSR | S_IXGRP | S_IXOTH;
}

int ws_written_node_stat(struct ws_written *w, fuse_ino_t ino, struct stat *out)
{
    const struct ws_written_node *n = ws_written_node_of(ino);

    if (fstatat(n ? n->fd : w->lower.below, "", out, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0)
        return -errno;
    show(n, out);
    return 0;
}

void ws_written_node_path(struct ws_written *w, fuse_ino_t ino, char out[32])
{
    const struct ws_written_node *n = ws_written_node_of(ino);

    snprintf(out, 32, "/proc/self/fd/%d", n ? n->fd : w->lower.below);
}

static struct ws_written_node **bucket_of(struct ws_written *w, dev_t dev, ino_t ino)
{
    return &w->nodes[(ino * 0x9e3779b97f4a7c15UL + dev) % w->n_nodes];
}

/* With lock. */
static struct ws_written_node *find(struct ws_written *w, const struct stat *st)
{
    struct ws_written_node *n = *bucket_of(w, st->st_dev, st->st_ino);

    while (n && (n->dev != st->st_dev || n->ino != st->st_ino))
        n = n->next;
    return n;
}

/* With lock. */
static struct ws_written_node *add(struct ws_written *w, int fd, const struct stat *st)
{
    struct ws_written_node *n = calloc(1, sizeof(*n)), **bucket = bucket_of(w, st->st_dev, st->st_ino);

    if (n) {
        *n = (struct ws_written_node){.next = *bucket, .dev = st->st_dev, .ino = st->st_ino, .fd = fd};
        *bucket = n;
    }
    return n;
}

int ws_written_node_look(struct ws_written *w, fuse_ino_t parent, const char *name,
                         struct fuse_entry_param *out)
{
    const int folder = ws_written_node_folder(w, parent, name);
    const struct ws_written_node *p = ws_written_node_of(parent);
    const int fd = openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);

    *out = (struct fuse_entry_param){.attr_timeout = KNOWN_S, .entry_timeout = KNOWN_S};
    if (fd < 0)
        return -errno;
    if (fstatat(fd, "", &out->attr, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0) {
        const int code = errno;
        close(fd);
        return -code;
    }
    pthread_mutex_lock(&w->lock);
    struct ws_written_node *n = find(w, &out->attr);
    const bool is_new = !n;
    if (!n)
        n = add(w, fd, &out->attr);
    if (n) {
        n->n_lookups++;
        n->folder = p ? p->folder : folder == w->lower.memory ? ws_written_folder_get(w, name) : NULL;
        show(n, &out->attr);
        out->ino = (fuse_ino_t)(uintptr_t)n;
    }
    pthread_mutex_unlock(&w->lock);
    if (!n || !is_new)
        close(fd);
    return n ? 0 : -ENOMEM;
}

/* With lock, which it leaves. */
static void drop_if_over(struct ws_written *w, struct ws_written_node *n)
{
    const bool is_over = n->n_lookups == 0 && n->n_opens == 0;

    if (is_over) {
        struct ws_written_node **at = bucket_of(w, n->dev, n->ino);
        while (*at != n)
            at = &(*at)->next;
        *at = n->next;
    }
    pthread_mutex_unlock(&w->lock);
    if (is_over) {
        close(n->fd);
        free(n);
    }
}

void ws_written_node_forget(struct ws_written *w, fuse_ino_t ino, uint64_t n_lookups)
{
    struct ws_written_node *n = ws_written_node_of(ino);

    if (!n)
        return;
    pthread_mutex_lock(&w->lock);
    n->n_lookups -= n_lookups < n->n_lookups ? n_lookups : n->n_lookups;
    drop_if_over(w, n);
}

int ws_written_node_opened(struct ws_written *w, fuse_ino_t ino, const struct ws_written_open *o)
{
    struct ws_written_node *n = ws_written_node_of(ino);

    pthread_mutex_lock(&w->lock);
    if (n->n_opens++ == 0 && w->passes) {
        n->backing = ws_backing_open(w->session, o->fd);
        if (n->backing == -EPERM || n->backing == -ENOTTY || n->backing == -EINVAL)
            w->passes = false; /* it never will */
        if (n->backing < 0)
            n->backing = 0;
    }
    if (o->writes && n->folder)
        n->folder->writers++;
    const int backing = n->backing;
    pthread_mutex_unlock(&w->lock);
    return backing;
}

void ws_written_node_flushed(struct ws_written *w, fuse_ino_t ino, struct ws_written_open *o)
{
    const struct ws_written_node *n = ws_written_node_of(ino);

    pthread_mutex_lock(&w->lock);
    if (o->writes && !o->flushed && n->folder)
        n->folder->writers--;
    o->flushed = true;
    pthread_mutex_unlock(&w->lock);
}

void ws_written_node_closed(struct ws_written *w, fuse_ino_t ino, const struct ws_written_open *o)
{
    struct ws_written_node *n = ws_written_node_of(ino);

    pthread_mutex_lock(&w->lock);
    if (o->writes && !o->flushed && n->folder)
        n->folder->writers--;
    if (--n->n_opens == 0 && n->backing) {
        ws_backing_close(w->session, n->backing);
        n->backing = 0;
    }
    drop_if_over(w, n);
}

void ws_written_node_free_all(struct ws_written *w)
{
    for (size_t i = 0; i < w->n_nodes; i++)
        while (w->nodes[i]) {
            struct ws_written_node *n = w->nodes[i];
            w->nodes[i] = n->next;
            close(n->fd);
            free(n);
        }
    free(w->nodes);
    w->nodes = NULL;
    w->n_nodes = 0;
}

int ws_written_init(struct ws_written *w, const char *dir, const struct ws_pattern *pattern,
                    struct ws_error *err)
{
    *w = (struct ws_written){.n_nodes = BUCKETS};
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->publishing, NULL);
    w->nodes = calloc(BUCKETS, sizeof(struct ws_written_node *));
    return w->nodes ? ws_lower_open(&w->lower, dir, pattern, err)
                    : ws_error_set(err, ENOMEM, "out of memory");
}

void ws_written_free(struct ws_written *w)
{
    ws_written_node_free_all(w);
    ws_written_folder_free_all(w);
    ws_lower_close(&w->lower);
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->publishing);
}
