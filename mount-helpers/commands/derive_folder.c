/* The source is read once: what names it in the new files, a hash of its pieces' hashes, is known at the end, and the
 * headers are written then. */
#include "mount-helpers/commands/derive_folder.h"
#include "transports/base/file.h"
#include "transports/base/vector.h"
#include "transports/base/workers.h"
#include "transports/format/folder.h"
#include "transports/format/folder_index.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG      "config.json"
#define NO_DIGEST   "0000000000000000" /* until it is known */
#define PIECE_BYTES (8UL << 20)
#define PIECE_ROWS                                                                                           \
    128          /* a multiple of what any recipe takes at once, so that pieces are the source's alone */
#define BATCH 64 /* pieces between two looks at what failed */

struct piece {
    size_t job;
    uint64_t row, n_rows, hash;
};
WS_VECTOR(pieces, struct piece);

struct buffer {
    unsigned char *ptr;
    size_t cap;
};

struct work {
    const struct derive_folder *d;
    struct progress *progress;
    struct ws_folder *folder;
    struct ws_derive_source_file *sources; /* the safetensors files, and their places in the folder */
    size_t *places, n_sources;
    struct ws_derive *derive;
    char temporary[PATH_MAX];
    int *in, *out; /* descriptors of sources and new files */
    struct pieces pieces;
    struct ws_workers *workers;
    struct buffer *buffers; /* of each worker */
    pthread_mutex_t lock;
    struct ws_error *err; /* guarded by lock: of the first piece that failed */
    int failed;           /* guarded by lock */
    size_t first;         /* of the batch */
};

static int out_of_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "out of memory for a checkpoint to derive");
}

static int check_stop(const struct work *w, struct ws_error *err)
{
    return atomic_load(w->d->stop)
               ? ws_error_set(err, ECANCELED, "ended by a signal: nothing is left of %s", w->d->to)
               : 0;
}

/* --- texts and sidecars --- */

static int read_file(const struct ws_folder *folder, const struct ws_folder_file *file, char **text,
                     struct ws_error *err)
{
    const int fd = ws_folder_file_open(folder, file, err);
    if (fd < 0)
        return fd;
    *text = malloc(file->size_bytes + 1);
    const ssize_t n = *text ? ws_file_read(fd, *text, file->size_bytes, 0) : -ENOMEM;
    close(fd);
    if (n == (ssize_t)file->size_bytes)
        return 0;
    return ws_error_set(err, n < 0 ? (int)-n : EIO, "cannot read %s: %s", file->path,
                        n < 0 ? strerror((int)-n) : "it ends too early");
}

static int create(const struct work *w, const char *name, struct ws_error *err)
{
    char path[PATH_MAX + WS_MAX_NAME + 2];
    snprintf(path, sizeof(path), "%s/%s", w->temporary, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return fd < 0 ? ws_error_set(err, errno, "cannot create %s: %m", path) : fd;
}

/* Closes it; what it holds is on the disk before the folder has its name. */
static int finish(int fd, int rc, const char *name, struct ws_error *err)
{
    if (rc == 0 && fsync(fd) < 0)
        rc = -errno;
    close(fd);
    return rc < 0 ? ws_error_set(err, -rc, "cannot write %s: %s", name, strerror(-rc)) : 0;
}

static int write_file(const struct work *w, const char *name, const void *bytes, size_t n,
                      struct ws_error *err)
{
    const int fd = create(w, name, err);
    return fd < 0 ? fd : finish(fd, ws_file_write(fd, bytes, n), name, err);
}

static const struct ws_folder_file *file_of(const struct ws_folder *folder, const char *name)
{
    for (size_t i = 0; i < folder->n_files; i++)
        if (strcmp(folder->files[i].name, name) == 0)
            return &folder->files[i];
    return NULL;
}

static int write_sidecars(const struct work *w, struct ws_error *err)
{
    int rc = write_file(w, CONFIG, w->derive->config, w->derive->config_bytes, err);

    if (rc == 0 && w->derive->index)
        rc = write_file(w, WS_FOLDER_INDEX_NAME, w->derive->index, w->derive->index_bytes, err);
    for (size_t i = 0; rc == 0 && i < w->folder->n_files; i++) {
        const struct ws_folder_file *f = &w->folder->files[i];
        char *text = NULL;
        if (f->st || strcmp(f->name, CONFIG) == 0 || strcmp(f->name, WS_FOLDER_INDEX_NAME) == 0)
            continue;
        rc = check_stop(w, err);
        if (rc == 0)
            rc = read_file(w->folder, f, &text, err);
        if (rc == 0)
            rc = write_file(w, f->name, text, f->size_bytes, err);
        free(text);
    }
    return rc;
}

/* --- what is to be made --- */

static int open_source(struct work *w, struct ws_error *err)
{
    const struct derive_folder *d = w->d;
    char *config = NULL;
    int rc = ws_folder_open(d->from, &w->folder, err);

    if (rc < 0)
        return rc;
    const struct ws_folder_file *file = file_of(w->folder, CONFIG);
    w->sources = calloc(w->folder->n_files, sizeof(*w->sources));
    w->places = calloc(w->folder->n_files, sizeof(*w->places));
    if (!w->sources || !w->places)
        return out_of_memory(err);
    for (size_t i = 0; i < w->folder->n_files; i++) {
        if (!w->folder->files[i].st)
            continue;
        w->places[w->n_sources] = i;
        w->sources[w->n_sources++] =
            (struct ws_derive_source_file){w->folder->files[i].name, w->folder->files[i].st};
    }
    rc = file ? read_file(w->folder, file, &config, err) : 0;
    if (rc == 0) {
        const struct ws_derive_source source = {w->sources, w->n_sources, config, file ? file->size_bytes : 0,
                                                file_of(w->folder, WS_FOLDER_INDEX_NAME) != NULL};
        rc = ws_derive_new(&source, d->recipe, &d->options, NO_DIGEST, &w->derive, err);
        if (rc < 0)
            ws_error_prefix(err, "%s", d->from);
    }
    free(config);
    return rc;
}

static int cut_pieces(struct work *w, struct ws_error *err)
{
    for (size_t j = 0; j < w->derive->n_jobs; j++) {
        const struct ws_derive_job *job = &w->derive->jobs[j];
        assert(PIECE_ROWS % job->step_rows == 0);
        const uint64_t steps = job->rows ? PIECE_BYTES / job->row_bytes / PIECE_ROWS : 0;
        const uint64_t rows = (steps ? steps : 1) * PIECE_ROWS;
        for (uint64_t row = 0; row < job->rows; row += rows) {
            const struct piece p = {j, row, job->rows - row < rows ? job->rows - row : rows, 0};
            if (pieces_append(&w->pieces, p) < 0)
                return out_of_memory(err);
        }
    }
    return 0;
}

static int open_files(struct work *w, struct ws_error *err)
{
    const size_t n = w->n_sources;
    int rc = 0;

    w->in = calloc(n, sizeof(*w->in));
    w->out = calloc(n, sizeof(*w->out));
    if (!w->in || !w->out)
        return out_of_memory(err);
    for (size_t i = 0; i < n; i++)
        w->in[i] = w->out[i] = -1;
    for (size_t i = 0; rc >= 0 && i < n; i++) {
        rc = w->in[i] = ws_folder_file_open(w->folder, &w->folder->files[w->places[i]], err);
        if (rc >= 0)
            rc = w->out[i] = create(w, w->sources[i].name, err);
    }
    return rc < 0 ? rc : 0;
}

/* --- the work --- */

static int write_at(int fd, const unsigned char *bytes, size_t n, uint64_t at)
{
    while (n > 0) {
        const ssize_t done = pwrite(fd, bytes, n, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -errno;
        bytes += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return 0;
}

static unsigned char *room(struct buffer *b, size_t n)
{
    if (n > b->cap) {
        free(b->ptr);
        b->ptr = malloc(n);
        b->cap = b->ptr ? n : 0;
    }
    return b->ptr;
}

struct range {
    uint64_t begin, end;
};

static int write_targets(const struct work *w, const struct ws_derive_job *job, const struct range *to,
                         void *const *dst, struct ws_error *err)
{
    for (unsigned k = 0; k < job->n_targets; k++) {
        const int rc = write_at(w->out[job->file], dst[k], to[k].end - to[k].begin, to[k].begin);
        if (rc < 0)
            return ws_error_set(err, -rc, "cannot write %s: %s", w->sources[job->file].name, strerror(-rc));
    }
    return 0;
}

static int do_piece(const struct work *w, struct piece *p, struct buffer *buffer, struct ws_error *err)
{
    const struct ws_derive_job *job = &w->derive->jobs[p->job];
    struct range from, to[WS_RECIPE_MAX_TARGETS];
    void *dst[WS_RECIPE_MAX_TARGETS] = {0};
    size_t bytes;

    ws_derive_source_range(job, p->row, p->n_rows, &from.begin, &from.end);
    const size_t source_bytes = bytes = from.end - from.begin;
    for (unsigned k = 0; k < job->n_targets; k++) {
        ws_derive_target_range(w->derive, job, k, p->row, p->n_rows, &to[k].begin, &to[k].end);
        bytes += to[k].end - to[k].begin;
    }
    unsigned char *at = room(buffer, bytes);
    if (!at)
        return out_of_memory(err);
    const ssize_t got = ws_file_read(w->in[job->file], at, source_bytes, from.begin);
    if (got != (ssize_t)source_bytes)
        return ws_error_set(err, got < 0 ? (int)-got : EIO, "cannot read %s: %s", w->sources[job->file].name,
                            got < 0 ? strerror((int)-got) : "it ends too early");
    p->hash = ws_hash(at, source_bytes);
    bytes = source_bytes;
    for (unsigned k = 0; k < job->n_targets; bytes += to[k].end - to[k].begin, k++)
        dst[k] = at + bytes;
    const int rc = ws_derive_run(w->derive, job, p->row, p->n_rows, at, dst, err);
    return rc < 0 ? rc : write_targets(w, job, to, dst, err);
}

static void run_piece(void *arg, size_t i, unsigned worker)
{
    struct work *w = arg;
    struct ws_error err = {0};
    int rc = check_stop(w, &err);

    if (rc == 0)
        rc = do_piece(w, &w->pieces.ptr[w->first + i], &w->buffers[worker], &err);
    if (rc == 0)
        return;
    pthread_mutex_lock(&w->lock);
    if (w->failed == 0) {
        w->failed = rc;
        *w->err = err;
    }
    pthread_mutex_unlock(&w->lock);
}

static int run_pieces(struct work *w, struct ws_error *err)
{
    uint64_t done = 0;

    w->workers = ws_workers_new(w->d->n_threads, 0);
    w->buffers = w->workers ? calloc(ws_workers_count(w->workers), sizeof(*w->buffers)) : NULL;
    if (!w->buffers)
        return out_of_memory(err);
    w->err = err;
    for (size_t n; w->failed == 0 && w->first < w->pieces.len; w->first += n) {
        n = w->pieces.len - w->first < BATCH ? w->pieces.len - w->first : BATCH;
        ws_workers_run_indexed(w->workers, run_piece, w, n);
        for (size_t i = 0; i < n; i++) {
            const struct piece *p = &w->pieces.ptr[w->first + i];
            done += p->n_rows * w->derive->jobs[p->job].row_bytes;
        }
        progress_update(w->progress, done, w->derive->source_bytes);
    }
    return w->failed;
}

/* --- the end --- */

/* Of the source's tensors, as they are called, and all their bytes. */
static int name_source(struct work *w, struct ws_error *err)
{
    char *text = NULL, digest[17];
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);

    if (!f)
        return out_of_memory(err);
    for (size_t j = 0; j < w->derive->n_jobs; j++) {
        const struct ws_tensor *t = w->derive->jobs[j].source;
        fprintf(f, "%s %s", t->name, ws_dtype_name(t->dtype));
        for (unsigned i = 0; i < t->n_dims; i++)
            fprintf(f, " %" PRIu64, t->shape[i]);
        fputc('\n', f);
    }
    for (size_t i = 0; i < w->pieces.len; i++)
        fprintf(f, "%016" PRIx64 "\n", w->pieces.ptr[i].hash);
    const int rc = fclose(f) == 0 ? 0 : out_of_memory(err);
    snprintf(digest, sizeof(digest), "%016" PRIx64, ws_hash(text, n));
    free(text);
    return rc < 0 ? rc : ws_derive_set_source(w->derive, digest, err);
}

static int write_headers(struct work *w, struct ws_error *err)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < w->n_sources; i++) {
        const struct ws_derive_file *f = &w->derive->files[i];
        const int fd = w->out[i],
                  again = ws_folder_file_open(w->folder, &w->folder->files[w->places[i]], err);
        if (again < 0) /* it was written to while it was read */
            return again;
        close(again);
        w->out[i] = -1;
        rc = write_at(fd, f->header, f->st->data_begin, 0);
        rc = finish(fd, rc, f->name, err);
        if (rc == 0)
            rc = check_stop(w, err);
    }
    return rc;
}

static int give_name(struct work *w, struct ws_error *err)
{
    const mode_t mask = umask(0);

    umask(mask);
    if (chmod(w->temporary, 0777 & ~mask) == 0 && rename(w->temporary, w->d->to) == 0) {
        w->temporary[0] = '\0';
        return 0;
    }
    return ws_error_set(err, errno, "cannot call %s %s: %m", w->temporary, w->d->to);
}

static void remove_temporary(const struct work *w)
{
    char path[PATH_MAX + WS_MAX_NAME + 2];

    if (!w->temporary[0])
        return;
    for (size_t i = 0; w->folder && i < w->folder->n_files; i++) {
        snprintf(path, sizeof(path), "%s/%s", w->temporary, w->folder->files[i].name);
        (void)unlink(path);
    }
    (void)rmdir(w->temporary);
}

/* Without slashes at its end. */
static size_t name_chars(const char *to)
{
    size_t n = strlen(to);
    while (n > 1 && to[n - 1] == '/')
        n--;
    return n;
}

/* The new folder will take its place: what would refuse that does so before the work. A link, a mount point and "." have
 * no place of their own. */
static int check_place(const char *to, struct ws_error *err)
{
    char path[PATH_MAX], parent[PATH_MAX + 4];
    struct stat st, above;
    const size_t n = name_chars(to);

    if (n == 0 || n >= sizeof(path))
        return ws_error_set(err, n ? ENAMETOOLONG : EINVAL, "the name %.160s of the new folder is %s", to,
                            n ? "too long" : "empty");
    snprintf(path, sizeof(path), "%.*s", (int)n, to);
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : ws_error_set(err, errno, "cannot look at %s: %m", to);
    if (S_ISLNK(st.st_mode))
        return ws_error_set(err, EEXIST, "%s is a link: name the folder itself", to);
    const char *last = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    if (strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
        return ws_error_set(err, EINVAL, "%s cannot be replaced: name the folder itself", to);
    snprintf(parent, sizeof(parent), "%s/..", path);
    if (S_ISDIR(st.st_mode) && (stat(parent, &above) < 0 || above.st_dev != st.st_dev))
        return ws_error_set(err, EBUSY, "%s is a mount point: name a folder in it", to);
    return 0;
}

static int check_target(const char *to, struct ws_error *err)
{
    const int rc = check_place(to, err);
    DIR *dir = rc < 0 ? NULL : opendir(to);
    struct dirent *e = NULL;

    if (rc < 0)
        return rc;
    if (!dir)
        return errno == ENOENT ? 0 : ws_error_set(err, errno, "cannot look into %s: %m", to);
    do
        e = readdir(dir);
    while (e && (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0));
    closedir(dir);
    return e ? ws_error_set(err, EEXIST, "%s is there already and not empty: name another folder", to) : 0;
}

static int make_temporary(struct work *w, struct ws_error *err)
{
    const char *to = w->d->to;
    const size_t n = name_chars(to);
    size_t name = n;

    while (name > 0 && to[name - 1] != '/')
        name--;
    if (n + 16 > sizeof(w->temporary))
        return ws_error_set(err, ENAMETOOLONG, "the name %.160s... is too long", to);
    snprintf(w->temporary, sizeof(w->temporary), "%.*s.%.*s.XXXXXX", (int)name, to, (int)(n - name),
             to + name);
    if (mkdtemp(w->temporary))
        return 0;
    w->temporary[0] = '\0';
    return ws_error_set(err, errno, "cannot make a folder beside %s: %m", to);
}

static void release(struct work *w)
{
    const unsigned n_workers = w->workers ? ws_workers_count(w->workers) : 0;

    remove_temporary(w);
    for (size_t i = 0; i < w->n_sources; i++) {
        if (w->in && w->out && w->in[i] >= 0)
            close(w->in[i]);
        if (w->in && w->out && w->out[i] >= 0)
            close(w->out[i]);
    }
    ws_workers_free(w->workers);
    for (unsigned i = 0; w->buffers && i < n_workers; i++)
        free(w->buffers[i].ptr);
    free(w->buffers);
    pieces_reset(&w->pieces);
    free(w->in);
    free(w->out);
    ws_derive_free(w->derive);
    free(w->sources);
    free(w->places);
    ws_folder_free(w->folder);
    pthread_mutex_destroy(&w->lock);
}

int derive_folder(struct derive_folder *d, struct progress *progress, struct ws_error *err)
{
    struct work w = {.d = d, .progress = progress, .lock = PTHREAD_MUTEX_INITIALIZER};
    int rc = check_target(d->to, err);

    if (rc == 0)
        rc = open_source(&w, err);
    if (rc == 0)
        rc = cut_pieces(&w, err);
    if (rc == 0)
        rc = make_temporary(&w, err);
    if (rc == 0)
        rc = write_sidecars(&w, err);
    if (rc == 0)
        rc = open_files(&w, err);
    if (rc == 0)
        rc = run_pieces(&w, err);
    if (rc == 0)
        rc = name_source(&w, err);
    if (rc == 0)
        rc = write_headers(&w, err);
    if (rc == 0)
        rc = give_name(&w, err);
    if (rc == 0) {
        d->n_quantised = w.derive->n_quantised;
        d->n_tensors = w.derive->n_jobs;
        d->source_bytes = w.derive->source_bytes;
        d->bytes = w.derive->bytes;
    }
    release(&w);
    return rc;
}
