/* Reading a checkpoint folder. Engines load whatever lies in a folder, complete or not; here it is
 * complete, or it is refused with the reason. The index is folder_index.c's. */
#include "transports/format/folder.h"
#include "transports/base/below.h"
#include "transports/base/log.h"
#include "transports/base/vector.h"
#include "transports/format/folder_index.h"
#include "transports/format/shards.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHOWN "%.160s"

static const char *const sidecar_suffixes[] = {".json", ".txt", ".model", ".tiktoken", ".jinja"};
static const char stable_marker[] = "STABLE"; /* of PRIME-RL: with it a folder is whole */
static const char *const pickle_suffixes[] = {".bin", ".pt", ".pth", ".ckpt"};

static bool ends_with(const char *name, const char *suffix)
{
    size_t n = strlen(name), k = strlen(suffix);

    return n > k && strcmp(name + n - k, suffix) == 0;
}

static bool ends_with_any(const char *name, const char *const *suffixes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ends_with(name, suffixes[i]))
            return true;
    }
    return false;
}
#define ENDS_WITH_ANY(name, list) ends_with_any(name, list, sizeof(list) / sizeof((list)[0]))

static int out_of_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "out of memory for a checkpoint folder");
}

static void free_file(struct ws_folder_file *file)
{
    free(file->name);
    free(file->path);
    ws_safetensors_free(file->st);
}

static int add_file(struct ws_folder *f, const char *name, const struct stat *stat, struct ws_error *err)
{
    const uint64_t size_bytes = (uint64_t)stat->st_size;
    struct ws_folder_file *files, file = {.size_bytes = size_bytes, .stamp = ws_stamp_from_stat(stat)};

    if (!ws_name_is_file(name))
        return ws_error_set(err, EINVAL,
                            "the file name \"" SHOWN
                            "\" has control characters, is not UTF-8, begins with a dot or "
                            "is \"tensors\": rename it",
                            name);
    if (f->n_files == WS_MAX_FILES)
        return ws_error_set(err, E2BIG, "the folder has more than %d files, the limit", WS_MAX_FILES);
    if (size_bytes > (ws_shard_is(name) ? WS_MAX_FILE_BYTES : WS_MAX_SIDECAR_BYTES))
        return ws_error_set(err, E2BIG, "%s has %lu bytes, more than the limit for such a file", name,
                            size_bytes);
    files = ws_vector_room(f->files, f->n_files, sizeof(*files));
    if (!files)
        return out_of_memory(err);
    f->files = files;
    file.name = strdup(name);
    if (!file.name || asprintf(&file.path, "%s/%s", f->path, name) < 0) {
        free(file.name);
        return out_of_memory(err);
    }
    f->files[f->n_files++] = file;
    return 0;
}

static bool is_called_sidecar(const char *name)
{
    return ENDS_WITH_ANY(name, sidecar_suffixes) || strcmp(name, stable_marker) == 0;
}

int ws_folder_is_sidecar(const char *name)
{
    return ws_name_is_file(name) && is_called_sidecar(name);
}

static void leave_out(struct ws_folder *f, const char *name)
{
    size_t n = strlen(f->left_out);
    if (n + strlen(name) + 3 < sizeof(f->left_out))
        snprintf(f->left_out + n, sizeof(f->left_out) - n, "%s%s", n ? ", " : "", name);
    f->n_left_out++;
}

static int open_entry(const struct ws_folder *f, const char *name, struct stat *stat, struct ws_error *err)
{
    char *path;
    int fd;

    if (!f->below)
        return ws_entry_open(f->fd, name, false, stat, err);
    if (asprintf(&path, "%s/%s", f->path, name) < 0)
        return out_of_memory(err);
    fd = ws_below_open(f->below, path, false, stat, err);
    free(path);
    return fd;
}

/* Looks at one entry; adds it when it is a file of the bundle. */
static int look_at(struct ws_folder *f, const char *name, bool *pickles, struct ws_error *err)
{
    struct stat stat;
    int rc = 0;

    if (name[0] == '.')
        return 0;
    if (ENDS_WITH_ANY(name, pickle_suffixes))
        *pickles = true;
    if (!ws_shard_is(name) && !is_called_sidecar(name)) {
        leave_out(f, name);
        return 0;
    }
    if (fstatat(f->fd, name, &stat, AT_SYMLINK_NOFOLLOW) < 0)
        rc = ws_error_set(err, errno, "cannot stat %s: %s", name, strerror(errno));
    else if (!S_ISREG(stat.st_mode) && !S_ISDIR(stat.st_mode) && (rc = open_entry(f, name, &stat, err)) >= 0)
        close(rc);
    if (rc == -ENOENT)
        return ws_error_set(err, ENOENT, "%s is a link that leads nowhere, or was removed just now", name);
    if (rc == -EISDIR || (rc >= 0 && S_ISDIR(stat.st_mode))) {
        leave_out(f, name);
        return 0;
    }
    return rc < 0 ? rc : add_file(f, name, &stat, err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct ws_folder_file *)a)->name, ((const struct ws_folder_file *)b)->name);
}

static int list(struct ws_folder *f, struct ws_error *err)
{
    int fd = openat(f->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    bool pickles = false, weights = false;
    int rc = 0;

    if (!dir) {
        rc = ws_error_set(err, errno, "cannot open the folder: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return rc;
    }
    while (rc == 0 && (errno = 0, entry = readdir(dir)))
        rc = look_at(f, entry->d_name, &pickles, err);
    if (rc == 0 && errno != 0)
        rc = ws_error_set(err, errno, "cannot read the folder: %s", strerror(errno));
    closedir(dir);
    if (rc < 0)
        return rc;
    if (f->n_files > 0)
        qsort(f->files, f->n_files, sizeof(*f->files), by_name);
    for (size_t i = 0; i < f->n_files; i++)
        weights |= ws_shard_is(f->files[i].name);
    if (!weights)
        return ws_error_set(err, ENOENT, "there is no *.safetensors file in it%s",
                            pickles ? "; its pickled weights (*.bin, *.pt) are not read: save it "
                                      "with safetensors"
                                    : "");
    return 0;
}

/* Leaves out the weights that the index does not name. */
static void keep_wanted(struct ws_folder *f, const bool *wanted)
{
    size_t kept = 0;

    for (size_t i = 0; i < f->n_files; i++) {
        struct ws_folder_file file = f->files[i];
        if (!wanted[i] && ws_shard_is(file.name))
            continue;
        f->files[i] = f->files[kept]; /* the unwanted ones end up behind */
        f->files[kept++] = file;
    }
    for (size_t i = kept; i < f->n_files; i++) {
        ws_log(WS_LOG_INFO, "folder", "left out, because the index does not name it path=%s",
               f->files[i].path);
        free_file(&f->files[i]);
    }
    f->n_files = kept;
}

static int read_headers(struct ws_folder *f, struct ws_error *err)
{
    size_t n_tensors = 0;

    for (size_t i = 0; i < f->n_files; i++) {
        struct ws_folder_file *file = &f->files[i];
        int fd, rc;

        if (!ws_shard_is(file->name))
            continue;
        fd = ws_folder_file_open(f, file, err);
        if (fd < 0)
            return fd;
        rc = ws_safetensors_read_fd(fd, &file->st, err);
        close(fd);
        if (rc < 0)
            return ws_error_prefix(err, "%s", file->path);
        file->size_bytes = file->st->file_bytes;
        n_tensors += file->st->n_tensors;
        if (n_tensors > WS_MAX_TENSORS)
            return ws_error_set(err, E2BIG, "the folder has more than %d tensors, the limit", WS_MAX_TENSORS);
    }
    return 0;
}

struct located {
    const char *tensor, *file;
};

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const struct located *)a)->tensor, ((const struct located *)b)->tensor);
}

/* A name in two files would mean whichever an engine happens to read last. */
static int check_unique(const struct ws_folder *f, struct ws_error *err)
{
    struct located *all;
    size_t n = 0, total = 0;
    int rc = 0;

    for (size_t i = 0; i < f->n_files; i++)
        total += f->files[i].st ? f->files[i].st->n_tensors : 0;
    all = malloc((total + 1) * sizeof(*all));
    if (!all)
        return out_of_memory(err);
    for (size_t i = 0; i < f->n_files; i++) {
        const struct ws_safetensors *st = f->files[i].st;
        for (size_t k = 0; st && k < st->n_tensors; k++)
            all[n++] = (struct located){st->tensors[k].name, f->files[i].name};
    }
    qsort(all, n, sizeof(*all), by_tensor);
    for (size_t i = 1; rc == 0 && i < n; i++) {
        if (strcmp(all[i - 1].tensor, all[i].tensor) == 0)
            rc = ws_error_set(err, EBADMSG, "tensor \"" SHOWN "\" is in both %s and %s", all[i].tensor,
                              all[i - 1].file, all[i].file);
    }
    free(all);
    return rc;
}

static int read_index(const struct ws_folder *f, struct ws_folder_index **out, struct ws_error *err)
{
    const struct ws_folder_file wanted = {.name = WS_FOLDER_INDEX_NAME};
    const struct ws_folder_file *file = bsearch(&wanted, f->files, f->n_files, sizeof(*f->files), by_name);
    int fd, rc;

    *out = NULL;
    if (!file)
        return 0;
    fd = ws_folder_file_open(f, file, err);
    if (fd < 0)
        return fd;
    rc = ws_folder_index_read(fd, out, err);
    close(fd);
    return rc;
}

/* Leaves out the weights that are not wanted. */
static int select_weights(struct ws_folder *f, const struct ws_folder_index *index, struct ws_error *err)
{
    const char **names = calloc(f->n_files, sizeof(*names));
    bool *wanted = calloc(f->n_files, sizeof(*wanted));
    int rc = names && wanted ? 0 : out_of_memory(err);

    for (size_t i = 0; rc == 0 && i < f->n_files; i++)
        names[i] = f->files[i].name;
    if (rc == 0)
        rc = (f->is_part ? ws_shards_select_part : ws_shards_select)(names, f->n_files, index, wanted, err);
    if (rc == 0)
        keep_wanted(f, wanted);
    free(names);
    free(wanted);
    return rc;
}

static int check_index(const struct ws_folder *f, const struct ws_folder_index *index, struct ws_error *err)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < f->n_files; i++)
        if (f->files[i].st)
            rc = ws_folder_index_check(index, f->files[i].name, f->files[i].st, err);
    return rc;
}

static int load(struct ws_folder *f, struct ws_error *err)
{
    struct ws_folder_index *index = NULL;
    int rc = list(f, err);

    if (rc == 0)
        rc = read_index(f, &index, err);
    if (rc == 0)
        rc = select_weights(f, index, err);
    if (rc == 0)
        rc = read_headers(f, err);
    if (rc == 0 && index)
        rc = check_index(f, index, err);
    if (rc == 0)
        rc = check_unique(f, err);
    ws_folder_index_free(index);
    return rc;
}

int ws_folder_file_open(const struct ws_folder *f, const struct ws_folder_file *file, struct ws_error *err)
{
    struct stat stat;
    int fd = open_entry(f, file->name, &stat, err);
    struct ws_stamp now;

    if (fd < 0)
        return fd;
    now = ws_stamp_from_stat(&stat);
    if (!ws_stamp_equal(&now, &file->stamp)) {
        close(fd);
        return ws_error_set(err, ESTALE, "%s was changed while its folder was read: let its writer finish",
                            file->path);
    }
    return fd;
}

static int read_folder(int fd, const char *path, const char *below, bool is_part, struct ws_folder **out,
                       struct ws_error *err)
{
    struct ws_folder *f = calloc(1, sizeof(*f));
    size_t length = strlen(path);
    int rc;

    while (length > 1 && path[length - 1] == '/')
        length--;
    if (!f) {
        close(fd);
        return out_of_memory(err);
    }
    f->fd = fd;
    f->is_part = is_part;
    f->path = strndup(path, length);
    f->below = below ? strdup(below) : NULL;
    if (!f->path || !f->below != !below) {
        ws_folder_free(f);
        return out_of_memory(err);
    }
    rc = load(f, err);
    if (rc < 0) {
        ws_error_prefix(err, "checkpoint %s", f->path);
        ws_folder_free(f);
        return rc;
    }
    *out = f;
    return 0;
}

static int open_folder(const char *path, bool is_part, struct ws_folder **out, struct ws_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* the path is its caller's word */

    if (fd < 0) {
        int code = errno;
        return ws_error_set(err, code, "checkpoint %s: cannot open the folder: %s", path, strerror(code));
    }
    return read_folder(fd, path, NULL, is_part, out, err);
}

int ws_folder_open(const char *path, struct ws_folder **out, struct ws_error *err)
{
    return open_folder(path, false, out, err);
}

int ws_folder_open_part(const char *path, struct ws_folder **out, struct ws_error *err)
{
    return open_folder(path, true, out, err);
}

int ws_folder_read(int fd, const char *path, const char *below, struct ws_folder **out, struct ws_error *err)
{
    return read_folder(fd, path, below, false, out, err);
}

int ws_folder_read_part(int fd, const char *path, struct ws_folder **out, struct ws_error *err)
{
    return read_folder(fd, path, NULL, true, out, err);
}

void ws_folder_free(struct ws_folder *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < f->n_files; i++)
        free_file(&f->files[i]);
    free(f->files);
    close(f->fd);
    free(f->path);
    free(f->below);
    free(f);
}
