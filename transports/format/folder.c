/* Reading a checkpoint folder. Engines load whatever lies in a folder, complete or not; here it is
 * complete, or it is refused with the reason. The index is folder_index.c's. */
#include "transports/format/folder.h"
#include "transports/base/below.h"
#include "transports/base/log.h"
#include "transports/format/folder_index.h"
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

static const char weights_suffix[] = ".safetensors";
static const char *const sidecar_suffixes[] = {".json", ".txt", ".model", ".tiktoken", ".jinja"};
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
    struct ws_folder_file *files, file = {.size_bytes = size_bytes, .stamp = ws_stamp_of(stat)};

    if (!ws_name_is_file(name))
        return ws_error_set(err, EINVAL,
                            "the file name \"" SHOWN
                            "\" has control characters, is not UTF-8, begins with a dot or "
                            "is \"tensors\": rename it",
                            name);
    if (f->n_files == WS_MAX_FILES)
        return ws_error_set(err, E2BIG, "the folder has more than %d files, the limit", WS_MAX_FILES);
    if (size_bytes > (ends_with(name, weights_suffix) ? WS_MAX_FILE_BYTES : WS_MAX_SIDECAR_BYTES))
        return ws_error_set(err, E2BIG, "%s has %lu bytes, more than the limit for such a file", name,
                            size_bytes);
    files = reallocarray(f->files, f->n_files + 1, sizeof(*files));
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

int ws_folder_is_sidecar(const char *name)
{
    return ws_name_is_file(name) && ENDS_WITH_ANY(name, sidecar_suffixes);
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
    if (!ends_with(name, weights_suffix) && !ENDS_WITH_ANY(name, sidecar_suffixes)) {
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
        weights |= ends_with(f->files[i].name, weights_suffix);
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
        if (!wanted[i] && ends_with(file.name, weights_suffix))
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

/* NAME-00002-of-00005.safetensors: its parts. */
struct shard_name {
    size_t stem_bytes; /* "NAME-" */
    int digits;        /* 5 */
    unsigned long number, count;
};

static bool parse_shard_name(const char *name, struct shard_name *out)
{
    static const char decimal[] = "0123456789";
    const char *of = NULL, *start, *count;
    size_t digits;

    for (const char *p = strstr(name, "-of-"); p; p = strstr(p + 1, "-of-"))
        of = p;
    if (!of || !ends_with(name, weights_suffix))
        return false;
    count = of + strlen("-of-");
    digits = strspn(count, decimal);
    if (digits == 0 || digits > 9 || strcmp(count + digits, weights_suffix) != 0)
        return false;
    for (start = of; start > name && strchr(decimal, start[-1]); start--)
        ;
    if (start == of || start == name || start[-1] != '-' || of - start > 9)
        return false;
    out->stem_bytes = (size_t)(start - name);
    out->digits = (int)(of - start);
    out->number = strtoul(start, NULL, 10);
    out->count = strtoul(count, NULL, 10);
    return true;
}

/* Are all shards of a set there whose name says how many they are? They are counted from 1, by a few
 * writers from 0. Needs the list sorted. */
static int check_shards(const struct ws_folder *f, struct ws_error *err)
{
    struct shard_name before = {0}, s;
    const char *set = NULL; /* a name of the set that was checked last */

    for (size_t i = 0; i < f->n_files; i++) {
        char name[WS_MAX_NAME + 1];
        const char *tail;
        unsigned long first;

        if (!parse_shard_name(f->files[i].name, &s))
            continue;
        if (set && s.stem_bytes == before.stem_bytes && s.count == before.count &&
            s.digits == before.digits && strncmp(set, f->files[i].name, s.stem_bytes) == 0)
            continue;
        set = f->files[i].name;
        before = s;
        tail = set + s.stem_bytes + s.digits;
        first = s.number == 0 ? 0 : 1;
        for (unsigned long k = first; k < first + s.count; k++) {
            struct ws_folder_file wanted = {.name = name};
            int n = snprintf(name, sizeof(name), "%.*s%0*lu%s", (int)s.stem_bytes, set, s.digits, k, tail);
            if (n < 0 || (size_t)n >= sizeof(name) ||
                !bsearch(&wanted, f->files, f->n_files, sizeof(*f->files), by_name))
                return ws_error_set(err, ENOENT, "%s is missing: by their names there are %lu such files",
                                    name, s.count);
        }
    }
    return 0;
}

static int read_headers(struct ws_folder *f, struct ws_error *err)
{
    size_t n_tensors = 0;

    for (size_t i = 0; i < f->n_files; i++) {
        struct ws_folder_file *file = &f->files[i];
        int fd, rc;

        if (!ends_with(file->name, weights_suffix))
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

static int load(struct ws_folder *f, struct ws_error *err)
{
    struct ws_folder_index *index = NULL;
    bool *wanted = NULL;
    int rc = list(f, err);

    if (rc < 0)
        return rc;
    rc = ws_folder_index_read(f, &index, err);
    if (rc < 0)
        return rc;
    if (index) {
        wanted = calloc(f->n_files, sizeof(*wanted));
        rc = wanted ? ws_folder_index_select(index, f, wanted, err) : out_of_memory(err);
        if (rc < 0)
            goto out;
        keep_wanted(f, wanted);
    }
    rc = check_shards(f, err);
    if (rc == 0)
        rc = read_headers(f, err);
    if (rc == 0 && index)
        rc = ws_folder_index_check(index, f, err);
    if (rc == 0)
        rc = check_unique(f, err);
out:
    free(wanted);
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
    now = ws_stamp_of(&stat);
    if (!ws_stamp_is(&now, &file->stamp)) {
        close(fd);
        return ws_error_set(err, ESTALE, "%s was changed while its folder was read: let its writer finish",
                            file->path);
    }
    return fd;
}

int ws_folder_open(const char *path, struct ws_folder **out, struct ws_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* the path is its caller's word */

    if (fd < 0) {
        int code = errno;
        return ws_error_set(err, code, "checkpoint %s: cannot open the folder: %s", path, strerror(code));
    }
    return ws_folder_read(fd, path, NULL, out, err);
}

int ws_folder_read(int fd, const char *path, const char *below, struct ws_folder **out, struct ws_error *err)
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
