#include "backends/trainer/publisher/base_checkpoint.h"
#include "backends/engine/adapter_config.h"
#include "backends/trainer/tensor/registration.h"
#include "transports/base/entry.h"
#include "transports/base/file.h"
#include "transports/base/text.h"
#include "transports/base/vector.h"
#include "transports/simd/copy.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_SUFFIX ".index.json"

struct sidecar {
    char *name;
    void *data;
    uint64_t bytes;
};

struct tensor_ref {
    size_t file;
    const struct ws_tensor *tensor;
};

struct ws_base_checkpoint {
    struct ws_folder *folder; /* NULL: no checkpoint */
    void **maps;              /* one a file of the folder */
    struct tensor_ref *tensors;
    size_t n_tensors;
    struct sidecar *sidecars;
    size_t n_sidecars;
    char id[WS_BASE_ID_CHARS + 1];
};

static int map_file(const struct ws_folder *folder, const struct ws_folder_file *f, void **out,
                    struct ws_error *err)
{
    int fd = ws_folder_file_open(folder, f, err);
    if (fd < 0)
        return fd;
    *out = mmap(NULL, f->size_bytes, PROT_READ, MAP_SHARED, fd, 0);
    int code = errno;
    close(fd);
    if (*out == MAP_FAILED) {
        *out = NULL;
        return ws_error_set(err, code, "cannot map %s: %s", f->path, strerror(code));
    }
    return 0;
}

static int open_checkpoint(struct ws_base_checkpoint *b, const char *path, struct ws_error *err)
{
    size_t n = 0;
    int rc = ws_folder_open(path, &b->folder, err);
    if (rc < 0)
        return ws_error_prefix(err, "base checkpoint");
    for (size_t i = 0; i < b->folder->n_files; i++)
        n += b->folder->files[i].st ? b->folder->files[i].st->n_tensors : 0;
    b->maps = calloc(b->folder->n_files + 1, sizeof(*b->maps));
    b->tensors = calloc(n + 1, sizeof(*b->tensors));
    if (!b->maps || !b->tensors)
        return ws_error_set(err, ENOMEM, "no memory for a base checkpoint");
    for (size_t i = 0; rc == 0 && i < b->folder->n_files; i++) {
        const struct ws_folder_file *f = &b->folder->files[i];
        if (!f->st)
            continue;
        rc = map_file(b->folder, f, &b->maps[i], err);
        for (size_t t = 0; rc == 0 && t < f->st->n_tensors; t++)
            b->tensors[b->n_tensors++] = (struct tensor_ref){i, &f->st->tensors[t]};
    }
    return rc;
}

/* Reads an open file, which is closed. */
static int read_whole(int fd, const char *path, uint64_t bytes, void **out, struct ws_error *err)
{
    int rc = 0;
    *out = malloc(bytes ? bytes : 1);
    if (!*out)
        rc = ws_error_set(err, ENOMEM, "no memory for %s", path);
    const ssize_t n = *out ? ws_file_read(fd, *out, bytes, 0) : 0;
    if (*out && n < (ssize_t)bytes)
        rc = ws_error_set(err, n < 0 ? (int)-n : EBADMSG, "cannot read %s: %s", path,
                          n < 0 ? strerror((int)-n) : "it became shorter");
    close(fd);
    return rc;
}

static int is_sidecar_name(const char *name)
{
    size_t n = strlen(name), k = strlen(INDEX_SUFFIX);
    if (n > k && strcmp(name + n - k, INDEX_SUFFIX) == 0)
        return 0; /* made anew for the files of the version */
    return ws_folder_is_sidecar(name);
}

static int is_sidecar(const struct dirent *e)
{
    return is_sidecar_name(e->d_name);
}

static bool has_sidecar(const struct ws_base_checkpoint *b, const char *name)
{
    for (size_t i = 0; i < b->n_sidecars; i++)
        if (strcmp(b->sidecars[i].name, name) == 0)
            return true;
    return false;
}

/* Adds one, to be filled; its name is copied. */
static struct sidecar *add_sidecar(struct ws_base_checkpoint *b, const char *name)
{
    struct sidecar *all = ws_vector_room(b->sidecars, b->n_sidecars, sizeof(*all));
    char *copy = strdup(name);
    if (all)
        b->sidecars = all;
    if (!all || !copy) {
        free(copy);
        return NULL;
    }
    all[b->n_sidecars] = (struct sidecar){.name = copy};
    return &all[b->n_sidecars++];
}

static int copy_sidecar(struct ws_base_checkpoint *b, const wsync_sidecar *given, struct ws_error *err)
{
    const char *name = given->name ? given->name : "";
    if (!is_sidecar_name(name) || has_sidecar(b, name))
        return ws_error_set(err, EINVAL, "wsync_config.files: '%.200s' %s", name,
                            has_sidecar(b, name) ? "is there twice" : "is no name of a sidecar file");
    if (given->bytes > WS_MAX_SIDECAR_BYTES || (given->bytes && !given->data))
        return ws_error_set(err, EINVAL, "wsync_config.files: %s has %zu bytes%s", name, given->bytes,
                            given->data ? ", more than the limit" : " and no data");
    if (strcmp(name, WS_ADAPTER_CONFIG_NAME) == 0) {
        const struct ws_adapter_server any = {.kind = "vllm"}; /* whose rules refuse what no engine serves */
        int rc = ws_adapter_check(given->data ? given->data : "", given->bytes, &any, NULL, err);
        if (rc < 0)
            return rc;
    }
    struct sidecar *s = add_sidecar(b, name);
    if (!s || !(s->data = malloc(given->bytes ? given->bytes : 1)))
        return ws_error_set(err, ENOMEM, "no memory for sidecar files");
    s->bytes = given->bytes;
    if (given->bytes)
        memcpy(s->data, given->data, given->bytes);
    return 0;
}

static int open_sidecar(struct ws_base_checkpoint *b, int folder, const char *name, struct ws_error *err)
{
    struct stat st;
    int fd = ws_entry_open(folder, name, false, &st, err);
    if (fd < 0)
        return fd == -EISDIR ? 0 : fd;
    if ((uint64_t)st.st_size > WS_MAX_SIDECAR_BYTES) {
        close(fd);
        return 0;
    }
    struct sidecar *s = add_sidecar(b, name);
    if (!s) {
        close(fd);
        return ws_error_set(err, ENOMEM, "no memory for sidecar files");
    }
    s->bytes = (uint64_t)st.st_size;
    return read_whole(fd, name, s->bytes, &s->data, err);
}

static int open_sidecars(struct ws_base_checkpoint *b, const char *path, struct ws_error *err)
{
    struct dirent **names = NULL;
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    int n = folder < 0 ? -1 : scandirat(folder, ".", &names, is_sidecar, alphasort);
    if (n < 0) {
        rc = ws_error_set(err, errno, "cannot list the sidecar files of %s: %s", path, strerror(errno));
        if (folder >= 0)
            close(folder);
        return rc;
    }
    for (int i = 0; i < n; i++) {
        if (rc == 0 && !has_sidecar(b, names[i]->d_name) &&
            (rc = open_sidecar(b, folder, names[i]->d_name, err)) < 0)
            (void)ws_error_prefix(err, "sidecar files of %s", path);
        free(names[i]);
    }
    free(names);
    close(folder);
    return rc;
}

int ws_base_checkpoint_open(struct ws_base_checkpoint **out, const char *checkpoint, const char *sidecars,
                            const wsync_sidecar *files, size_t n_files, struct ws_error *err)
{
    struct ws_base_checkpoint *b = calloc(1, sizeof(*b));
    int rc = b ? 0 : ws_error_set(err, ENOMEM, "no memory for a publisher");
    if (rc == 0)
        rc = ws_text_random(b->id, WS_BASE_ID_CHARS / 2)
                 ? ws_error_set(err, EIO, "the system gives no random numbers")
                 : 0;
    if (rc == 0 && checkpoint)
        rc = open_checkpoint(b, checkpoint, err);
    for (size_t i = 0; rc == 0 && i < n_files; i++)
        rc = copy_sidecar(b, &files[i], err);
    if (rc == 0 && sidecars)
        rc = open_sidecars(b, sidecars, err);
    if (rc < 0) {
        ws_base_checkpoint_free(b);
        return rc;
    }
    *out = b;
    return 0;
}

json_t *ws_base_checkpoint_tensors_json(const struct ws_base_checkpoint *b)
{
    json_t *all = json_array();
    for (size_t i = 0; i < b->n_tensors; i++) {
        const struct ws_tensor *t = b->tensors[i].tensor;
        json_t *shape = json_array();
        for (unsigned d = 0; d < t->n_dims; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_array_append_new(all, json_pack("{s:s,s:s,s:o}", "name", t->name, "dtype",
                                             ws_dtype_name(t->dtype), "shape", shape));
    }
    return all;
}

json_t *ws_base_checkpoint_sidecars_json(const struct ws_base_checkpoint *b)
{
    json_t *all = json_array();
    for (size_t i = 0; i < b->n_sidecars; i++)
        json_array_append_new(all, json_pack("{s:s,s:I,s:I}", "name", b->sidecars[i].name, "bytes",
                                             (json_int_t)b->sidecars[i].bytes, "hash",
                                             (json_int_t)ws_hash(b->sidecars[i].data, b->sidecars[i].bytes)));
    return all;
}

const char *ws_base_checkpoint_id(const struct ws_base_checkpoint *b)
{
    return b->id;
}

size_t ws_base_checkpoint_n_tensors(const struct ws_base_checkpoint *b)
{
    return b->n_tensors;
}

const char *ws_base_checkpoint_tensor_name(const struct ws_base_checkpoint *b, size_t i)
{
    return b->tensors[i].tensor->name;
}

const void *ws_base_checkpoint_tensor_data(const struct ws_base_checkpoint *b, size_t i, uint64_t *bytes)
{
    const struct tensor_ref *r = &b->tensors[i];
    *bytes = r->tensor->end - r->tensor->begin;
    return (const char *)b->maps[r->file] + r->tensor->begin;
}

size_t ws_base_checkpoint_n_sidecars(const struct ws_base_checkpoint *b)
{
    return b->n_sidecars;
}

const void *ws_base_checkpoint_sidecar_data(const struct ws_base_checkpoint *b, size_t i, uint64_t *bytes)
{
    *bytes = b->sidecars[i].bytes;
    return b->sidecars[i].data;
}

void ws_base_checkpoint_free(struct ws_base_checkpoint *b)
{
    if (!b)
        return;
    for (size_t i = 0; b->folder && b->maps && i < b->folder->n_files; i++)
        if (b->maps[i])
            munmap(b->maps[i], b->folder->files[i].size_bytes);
    for (size_t i = 0; i < b->n_sidecars; i++) {
        free(b->sidecars[i].name);
        free(b->sidecars[i].data);
    }
    free(b->sidecars);
    free(b->tensors);
    free(b->maps);
    ws_folder_free(b->folder);
    free(b);
}
