#include "fs/fuse/side.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct side_file {
    LIST_ENTRY(side_file) link;
    uint64_t id;
    char *name; /* NULL: it was removed, and is held */
    char *bytes;
    uint64_t size, room;
    struct timespec mtime;
    unsigned held;
};

struct side_name {
    LIST_ENTRY(side_name) link;
    char *name;
};

/* Of a version, by its number and run: one that has to come again is the same. */
struct ws_side_folder {
    LIST_ENTRY(ws_side_folder) link;
    struct ws_version_id of;
    LIST_HEAD(side_files, side_file) files;
    LIST_HEAD(side_names, side_name) removed; /* of the version's own */
    bool is_removed, is_over;                 /* over: the version is gone, and files of it are held */
};

/* --- with the lock --- */

static int claim(struct ws_side *s, uint64_t more)
{
    if (more > WS_MAX_SIDE_BYTES - s->used_bytes)
        return -ENOSPC;
    s->used_bytes += more;
    return 0;
}

static struct ws_side_folder *folder_of(struct ws_side *s, struct ws_version *v, bool make)
{
    const struct ws_version_id id = ws_version_id(v);
    struct ws_side_folder *f;

    for (f = LIST_FIRST(&s->folders); f; f = LIST_NEXT(f, link))
        if (!f->is_over && f->of.version == id.version && strcmp(f->of.lineage, id.lineage) == 0)
            return f;
    f = make ? calloc(1, sizeof(*f)) : NULL;
    if (!f)
        return NULL;
    f->of = id;
    LIST_INSERT_HEAD(&s->folders, f, link);
    return f;
}

static struct side_file *file_called(struct ws_side_folder *f, const char *name)
{
    struct side_file *file = f ? LIST_FIRST(&f->files) : NULL;

    while (file && (!file->name || strcmp(file->name, name) != 0))
        file = LIST_NEXT(file, link);
    return file;
}

static struct side_file *file_of(struct ws_side *s, uint64_t id)
{
    struct ws_side_folder *f;
    struct side_file *file;

    for (f = LIST_FIRST(&s->folders); f; f = LIST_NEXT(f, link))
        for (file = LIST_FIRST(&f->files); file; file = LIST_NEXT(file, link))
            if (file->id == id)
                return file;
    return NULL;
}

static void free_file(struct ws_side *s, struct side_file *file)
{
    LIST_REMOVE(file, link);
    s->used_bytes -= file->room + WS_SIDE_FILE_BYTES;
    free(file->name);
    free(file->bytes);
    free(file);
}

static void remove_name(struct ws_side *s, struct side_file *file)
{
    free(file->name);
    file->name = NULL;
    if (!file->held)
        free_file(s, file);
}

static void free_names(struct ws_side_folder *f)
{
    for (struct side_name *n; (n = LIST_FIRST(&f->removed));) {
        LIST_REMOVE(n, link);
        free(n->name);
        free(n);
    }
}

static void free_folder(struct ws_side_folder *f)
{
    free_names(f);
    LIST_REMOVE(f, link);
    free(f);
}

/* The folder goes when nothing of it is held any more. */
static void end_folder(struct ws_side *s, struct ws_side_folder *f)
{
    struct side_file *next;

    f->is_over = true;
    for (struct side_file *file = LIST_FIRST(&f->files); file; file = next) {
        next = LIST_NEXT(file, link);
        if (file->name)
            remove_name(s, file);
    }
    if (LIST_EMPTY(&f->files))
        free_folder(f);
}

static int make_room(struct ws_side *s, struct side_file *file, uint64_t size)
{
    uint64_t room = file->room ? file->room : WS_SIDE_FILE_BYTES;
    char *bytes;

    if (size <= file->room)
        return 0;
    if (size > WS_MAX_SIDE_BYTES)
        return -ENOSPC;
    while (room < size)
        room *= 2;
    const uint64_t more = room - file->room;
    if (claim(s, more) < 0)
        return -ENOSPC;
    bytes = realloc(file->bytes, room);
    if (!bytes) {
        s->used_bytes -= more;
        return -ENOMEM;
    }
    memset(bytes + file->room, 0, more);
    file->bytes = bytes;
    file->room = room;
    return 0;
}

/* --- life --- */

void ws_side_init(struct ws_side *s)
{
    *s = (struct ws_side){.next_id = 1};
    pthread_mutex_init(&s->lock, NULL);
    LIST_INIT(&s->folders);
}

void ws_side_free(struct ws_side *s)
{
    for (struct ws_side_folder *f; (f = LIST_FIRST(&s->folders));) {
        for (struct side_file *file; (file = LIST_FIRST(&f->files));)
            free_file(s, file);
        free_folder(f);
    }
    assert(s->used_bytes == 0);
    pthread_mutex_destroy(&s->lock);
}

void ws_side_prune(struct ws_side *s, struct ws_model *m)
{
    struct ws_side_folder *f, *next;

    pthread_mutex_lock(&s->lock);
    for (f = LIST_FIRST(&s->folders); f; f = next) {
        next = LIST_NEXT(f, link);
        struct ws_version *v = f->is_over ? NULL : ws_version_at(m, f->of.version, f->of.lineage);
        if (v)
            ws_version_put(v);
        else if (!f->is_over)
            end_folder(s, f);
    }
    pthread_mutex_unlock(&s->lock);
}

/* --- files --- */

uint64_t ws_side_find(struct ws_side *s, struct ws_version *v, const char *name)
{
    pthread_mutex_lock(&s->lock);
    const struct side_file *file = file_called(folder_of(s, v, false), name);
    const uint64_t id = file ? file->id : 0;
    pthread_mutex_unlock(&s->lock);
    return id;
}

static int create(struct ws_side *s, struct ws_version *v, const char *name, uint64_t *id)
{
    struct ws_side_folder *f = folder_of(s, v, true);
    struct side_file *file;

    if (!f)
        return -ENOMEM;
    if (f->is_removed)
        return -ENOENT;
    if (file_called(f, name))
        return -EEXIST;
    if (claim(s, WS_SIDE_FILE_BYTES) < 0)
        return -ENOSPC;
    file = calloc(1, sizeof(*file));
    if (!file || !(file->name = strdup(name))) {
        free(file);
        s->used_bytes -= WS_SIDE_FILE_BYTES;
        return -ENOMEM;
    }
    *id = file->id = s->next_id++;
    clock_gettime(CLOCK_REALTIME, &file->mtime);
    LIST_INSERT_HEAD(&f->files, file, link);
    return 0;
}

int ws_side_create(struct ws_side *s, struct ws_version *v, const char *name, uint64_t *id)
{
    pthread_mutex_lock(&s->lock);
    const int rc = create(s, v, name, id);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int ws_side_hold(struct ws_side *s, uint64_t id)
{
    pthread_mutex_lock(&s->lock);
    struct side_file *file = file_of(s, id);
    if (file)
        file->held++;
    pthread_mutex_unlock(&s->lock);
    return file ? 0 : -ENOENT;
}

void ws_side_let_go(struct ws_side *s, uint64_t id)
{
    struct ws_side_folder *f, *next;

    pthread_mutex_lock(&s->lock);
    struct side_file *file = file_of(s, id);
    if (file && --file->held == 0 && !file->name)
        free_file(s, file);
    for (f = LIST_FIRST(&s->folders); f; f = next) {
        next = LIST_NEXT(f, link);
        if (f->is_over && LIST_EMPTY(&f->files))
            free_folder(f);
    }
    pthread_mutex_unlock(&s->lock);
}

int ws_side_attr(struct ws_side *s, uint64_t id, struct stat *st)
{
    pthread_mutex_lock(&s->lock);
    const struct side_file *file = file_of(s, id);
    if (file) {
        st->st_size = (off_t)file->size;
        st->st_mtim = file->mtime;
        st->st_nlink = file->name ? 1 : 0;
    }
    pthread_mutex_unlock(&s->lock);
    return file ? 0 : -ENOENT;
}

int ws_side_set_mtime(struct ws_side *s, uint64_t id, struct timespec mtime)
{
    pthread_mutex_lock(&s->lock);
    struct side_file *file = file_of(s, id);
    if (file)
        file->mtime = mtime;
    pthread_mutex_unlock(&s->lock);
    return file ? 0 : -ENOENT;
}

/* Bytes beyond the end of a file are zeros, as a file that grows again has to show them. */
int ws_side_resize(struct ws_side *s, uint64_t id, uint64_t size)
{
    pthread_mutex_lock(&s->lock);
    struct side_file *file = file_of(s, id);
    const int rc = file ? make_room(s, file, size) : -ENOENT;
    if (rc == 0) {
        if (size < file->size)
            memset(file->bytes + size, 0, file->size - size);
        file->size = size;
        clock_gettime(CLOCK_REALTIME, &file->mtime);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int ws_side_read(struct ws_side *s, uint64_t id, uint64_t at, size_t size, char **out, size_t *n)
{
    int rc = 0;

    pthread_mutex_lock(&s->lock);
    const struct side_file *file = file_of(s, id);
    *n = !file || at >= file->size ? 0 : file->size - at < size ? file->size - at : size;
    *out = malloc(*n + 1);
    if (!file || !*out)
        rc = file ? -ENOMEM : -ENOENT;
    else if (*n > 0)
        memcpy(*out, file->bytes + at, *n);
    pthread_mutex_unlock(&s->lock);
    if (rc < 0)
        free(*out);
    return rc;
}

int ws_side_write(struct ws_side *s, uint64_t id, uint64_t at, const char *bytes, size_t n)
{
    int rc = at > WS_MAX_SIDE_BYTES || n > WS_MAX_SIDE_BYTES ? -ENOSPC : 0;

    pthread_mutex_lock(&s->lock);
    struct side_file *file = file_of(s, id);
    if (rc == 0)
        rc = file ? make_room(s, file, at + n) : -ENOENT;
    if (rc == 0 && n > 0) {
        memcpy(file->bytes + at, bytes, n);
        if (at + n > file->size)
            file->size = at + n;
        clock_gettime(CLOCK_REALTIME, &file->mtime);
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* --- names --- */

int ws_side_unlink(struct ws_side *s, struct ws_version *v, const char *name)
{
    pthread_mutex_lock(&s->lock);
    struct side_file *file = file_called(folder_of(s, v, false), name);
    const int rc = file ? 0 : -ENOENT;
    if (file)
        remove_name(s, file);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static int rename_file(struct ws_side *s, struct ws_side_folder *f, const char *from, const char *to,
                       bool is_new)
{
    struct side_file *file = file_called(f, from), *other = file_called(f, to);
    char *name;

    if (!file)
        return -ENOENT;
    if (other && is_new)
        return -EEXIST;
    if (other == file)
        return 0;
    name = strdup(to);
    if (!name)
        return -ENOMEM;
    if (other)
        remove_name(s, other);
    free(file->name);
    file->name = name;
    return 0;
}

int ws_side_rename(struct ws_side *s, struct ws_version *v, const char *from, const char *to, bool is_new)
{
    pthread_mutex_lock(&s->lock);
    const int rc = rename_file(s, folder_of(s, v, false), from, to, is_new);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static bool is_removed(const struct ws_side_folder *f, const char *name)
{
    const struct side_name *n;

    for (n = LIST_FIRST(&f->removed); n; n = LIST_NEXT(n, link))
        if (strcmp(n->name, name) == 0)
            return true;
    return false;
}

static int hide(struct ws_side_folder *f, const char *name)
{
    struct side_name *n;
    struct side_file *file;

    if (!f)
        return -ENOMEM;
    if (!name) {
        for (file = LIST_FIRST(&f->files); file; file = LIST_NEXT(file, link))
            if (file->name)
                return -ENOTEMPTY;
        f->is_removed = true; /* with all that is in it */
        free_names(f);
        return 0;
    }
    if (is_removed(f, name))
        return -ENOENT;
    n = calloc(1, sizeof(*n));
    if (!n || !(n->name = strdup(name))) {
        free(n);
        return -ENOMEM;
    }
    LIST_INSERT_HEAD(&f->removed, n, link);
    return 0;
}

int ws_side_hide(struct ws_side *s, struct ws_version *v, const char *name)
{
    pthread_mutex_lock(&s->lock);
    const int rc = hide(folder_of(s, v, true), name);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

bool ws_side_hides(struct ws_side *s, struct ws_version *v, const char *name)
{
    pthread_mutex_lock(&s->lock);
    const struct ws_side_folder *f = folder_of(s, v, false);
    const bool hides = f && (f->is_removed || (name && is_removed(f, name)));
    pthread_mutex_unlock(&s->lock);
    return hides;
}

void ws_side_each(struct ws_side *s, struct ws_version *v,
                  void (*visit)(void *arg, const char *name, uint64_t id), void *arg)
{
    pthread_mutex_lock(&s->lock);
    const struct ws_side_folder *f = folder_of(s, v, false);
    const struct side_file *file = f ? LIST_FIRST(&f->files) : NULL;
    for (; file; file = LIST_NEXT(file, link))
        if (file->name)
            visit(arg, file->name, file->id);
    pthread_mutex_unlock(&s->lock);
}
