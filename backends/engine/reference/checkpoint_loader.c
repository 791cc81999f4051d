/* Reading a checkpoint folder as SGLang and vLLM do, seen with strace on both: list the folder, keep
 * what the index names, resolve every path, open every file twice at once (a shared read-only mapping
 * for the header, a private writable one of the whole file for the data), say that it will be read in
 * order, close both descriptors, and only then read, tensor by tensor in name order, through mappings
 * that have outlived their descriptors. Nothing is read with read(). */
#include "backends/engine/reference/checkpoint_loader.h"
#include "backends/engine/reference/sigbus_guard.h"
#include "transports/base/vector.h"
#include "transports/simd/copy.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define INDEX_NAME "model.safetensors.index.json"
#define ALIGN      64UL
#define HUGE_PAGE  (2UL << 20)

struct shard {
    char *name, *path; /* path: resolved */
    bool indexed;
    uint64_t size_bytes;
    unsigned char *header_map, *data_map; /* NULL or mapped, size_bytes each */
    struct ws_safetensors *st;
};
struct checkpoint {
    const char *path;
    size_t n_shards;
    struct shard *shards;
};

/* --- which files --- */

static int add_shard(struct checkpoint *c, const char *name)
{
    struct shard *shards = ws_vector_room(c->shards, c->n_shards, sizeof(*shards));
    if (!shards)
        return -ENOMEM;
    c->shards = shards;
    shards[c->n_shards] = (struct shard){.name = strdup(name)};
    return shards[c->n_shards++].name ? 0 : -ENOMEM;
}

static int by_shard_name(const void *a, const void *b)
{
    return strcmp(((const struct shard *)a)->name, ((const struct shard *)b)->name);
}

static int list_folder(struct checkpoint *c, struct ws_error *err)
{
    DIR *dir = opendir(c->path);
    int rc = 0;

    if (!dir)
        return ws_error_set(err, errno, "cannot list %s: %s", c->path, strerror(errno));
    for (struct dirent *d; !rc && (d = readdir(dir));) {
        if (fnmatch("*.safetensors", d->d_name, FNM_PERIOD))
            continue;
        rc = c->n_shards < WS_MAX_FILES ? add_shard(c, d->d_name) : -E2BIG;
    }
    closedir(dir);
    if (rc)
        return ws_error_set(err, -rc, "cannot list %s: %s", c->path, strerror(-rc));
    if (c->n_shards)
        qsort(c->shards, c->n_shards, sizeof(c->shards[0]), by_shard_name);
    return 0;
}

static void mark_indexed(struct checkpoint *c, const json_t *weight_map)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)weight_map, key, value)
    {
        struct shard wanted = {.name = (char *)json_string_value(value)};
        struct shard *found = NULL;
        if (wanted.name && c->n_shards)
            found = bsearch(&wanted, c->shards, c->n_shards, sizeof(wanted), by_shard_name);
        if (found)
            found->indexed = true;
    }
}

static void keep_indexed(struct checkpoint *c)
{
    size_t kept = 0;

    for (size_t i = 0; i < c->n_shards; i++) {
        if (c->shards[i].indexed)
            c->shards[kept++] = c->shards[i];
        else
            free(c->shards[i].name);
    }
    c->n_shards = kept;
}

/* Where there is an index, files that it does not name (Mistral's consolidated.safetensors holds every
 * weight again) are not read. */
static int filter_by_index(struct checkpoint *c, struct ws_error *err)
{
    char path[PATH_MAX];
    struct stat st;
    json_error_t why = {0};
    json_t *index, *weight_map;
    int rc = 0;

    if (snprintf(path, sizeof(path), "%s/%s", c->path, INDEX_NAME) >= (int)sizeof(path))
        return ws_error_set(err, ENAMETOOLONG, "the path %s is too long", c->path);
    if (stat(path, &st))
        return 0;
    if ((uint64_t)st.st_size > WS_MAX_MANIFEST_BYTES)
        return ws_error_set(err, EBADMSG, "%s has %lld bytes", path, (long long)st.st_size);
    index = json_load_file(path, 0, &why);
    weight_map = json_object_get(index, "weight_map");
    if (json_is_object(weight_map)) {
        mark_indexed(c, weight_map);
        keep_indexed(c);
    } else {
        rc = ws_error_set(err, EBADMSG, "%s is no index: %s", path, index ? "no weight_map" : why.text);
    }
    json_decref(index);
    return rc;
}

/* --- opening --- */

static int resolve(struct checkpoint *c, struct shard *s, struct ws_error *err)
{
    char joined[PATH_MAX];

    if (snprintf(joined, sizeof(joined), "%s/%s", c->path, s->name) >= (int)sizeof(joined))
        return ws_error_set(err, ENAMETOOLONG, "the path %s/%s is too long", c->path, s->name);
    s->path = realpath(joined, NULL);
    if (!s->path)
        return ws_error_set(err, errno, "cannot resolve %s: %s", joined, strerror(errno));
    return 0;
}

static unsigned char *map_file(int fd, size_t size, int protection, int flags)
{
    void *p = mmap(NULL, size, protection, flags, fd, 0);

    return p == MAP_FAILED ? NULL : p;
}

static int map_twice(struct shard *s, int first, int second, struct ws_error *err)
{
    struct stat st;

    if (fstat(first, &st))
        return ws_error_set(err, errno, "cannot stat %s: %s", s->path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size < 8)
        return ws_error_set(err, EBADMSG, "%s is no safetensors file: %lld bytes", s->path,
                            (long long)st.st_size);
    s->size_bytes = (uint64_t)st.st_size;
    s->header_map = map_file(first, s->size_bytes, PROT_READ, MAP_SHARED);
    if (s->header_map)
        s->data_map = map_file(second, s->size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    if (!s->data_map)
        return ws_error_set(err, errno, "cannot map %s: %s", s->path, strerror(errno));
    posix_fadvise(second, 0, 0, POSIX_FADV_SEQUENTIAL);
    return 0;
}

static int open_twice(struct shard *s, struct ws_error *err)
{
    int first = open(s->path, O_RDONLY | O_CLOEXEC);
    int second = first < 0 ? -1 : open(s->path, O_RDONLY | O_CLOEXEC);
    int rc;

    if (second < 0)
        rc = ws_error_set(err, errno, "cannot open %s: %s", s->path, strerror(errno));
    else
        rc = map_twice(s, first, second, err);
    if (first >= 0)
        close(first);
    if (second >= 0)
        close(second);
    return rc;
}

static int lost(const struct shard *s, struct ws_error *err)
{
    return ws_error_set(err, EIO, "%s was cut short or went away while it was read", s->path);
}

static int parse_header(struct shard *s, struct ws_error *err)
{
    uint64_t length;
    char first[8];
    char *header;
    int rc;

    if (ws_sigbus_guard_copy(first, s->header_map, sizeof(first)))
        return lost(s, err);
    rc = ws_safetensors_header_bytes(first, s->size_bytes, &length, err);
    if (rc) {
        ws_error_prefix(err, "%s", s->path);
        return rc;
    }
    header = malloc(length);
    if (!header)
        return ws_error_set(err, ENOMEM, "no memory for the header of %s", s->path);
    rc = ws_sigbus_guard_copy(header, s->header_map, length) ? lost(s, err) : 0;
    if (!rc) {
        rc = ws_safetensors_parse(header, length, s->size_bytes, &s->st, err);
        if (rc)
            ws_error_prefix(err, "%s", s->path);
    }
    free(header);
    return rc;
}

static int open_shards(struct checkpoint *c, struct ws_error *err)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < c->n_shards; i++) {
        rc = resolve(c, &c->shards[i], err);
        if (!rc)
            rc = open_twice(&c->shards[i], err);
        if (!rc)
            rc = parse_header(&c->shards[i], err);
    }
    return rc;
}

static void close_checkpoint(struct checkpoint *c)
{
    for (size_t i = 0; i < c->n_shards; i++) {
        struct shard *s = &c->shards[i];
        if (s->header_map)
            munmap(s->header_map, s->size_bytes);
        if (s->data_map)
            munmap(s->data_map, s->size_bytes);
        ws_safetensors_free(s->st);
        free(s->path);
        free(s->name);
    }
    free(c->shards);
}

/* --- what the model holds --- */

static int by_weight_name(const void *a, const void *b)
{
    return strcmp(((const struct ws_checkpoint_tensor *)a)->name,
                  ((const struct ws_checkpoint_tensor *)b)->name);
}

struct ws_checkpoint_tensor *ws_checkpoint_find(const struct ws_checkpoint *w, const char *name)
{
    const struct ws_checkpoint_tensor wanted = {.name = name};

    if (!w->n_tensors)
        return NULL;
    return bsearch(&wanted, w->tensors, w->n_tensors, sizeof(wanted), by_weight_name);
}

/* Room for n tensors whose names take name_bytes. */
static int make_table(struct ws_checkpoint *w, size_t n, size_t name_bytes)
{
    free(w->tensors);
    free(w->names);
    w->n_tensors = 0;
    w->tensors = calloc(n + 1, sizeof(*w->tensors));
    w->names = malloc(name_bytes + 1);
    return w->tensors && w->names ? 0 : -ENOMEM;
}

static void add_weight(struct ws_checkpoint *w, char **names, const struct ws_checkpoint_tensor *like)
{
    struct ws_checkpoint_tensor *to = &w->tensors[w->n_tensors++];
    size_t n = strlen(like->name) + 1;

    *to = *like;
    to->name = memcpy(*names, like->name, n);
    *names += n;
}

/* The first load: the model is what the files hold. */
static int plan_first(struct ws_checkpoint *w, const struct checkpoint *c, struct ws_error *err)
{
    size_t n = 0, name_bytes = 0;
    char *names;

    for (size_t i = 0; i < c->n_shards; i++) {
        const struct ws_safetensors *st = c->shards[i].st;
        n += st->n_tensors;
        for (size_t k = 0; k < st->n_tensors; k++)
            name_bytes += strlen(st->tensors[k].name) + 1;
    }
    if (make_table(w, n, name_bytes))
        return ws_error_set(err, ENOMEM, "no memory for %zu tensors", n);
    names = w->names;
    for (size_t i = 0; i < c->n_shards; i++) {
        const struct ws_safetensors *st = c->shards[i].st;
        for (size_t k = 0; k < st->n_tensors; k++) {
            struct ws_checkpoint_tensor one = {.name = st->tensors[k].name, .n_dims = st->tensors[k].n_dims};
            memcpy(one.shape, st->tensors[k].shape, sizeof(one.shape));
            add_weight(w, &names, &one);
        }
    }
    qsort(w->tensors, w->n_tensors, sizeof(w->tensors[0]), by_weight_name);
    return 0;
}

/* Later loads: the model is what it was. */
static int plan_again(struct ws_checkpoint *w, const struct ws_checkpoint *model, struct ws_error *err)
{
    size_t name_bytes = 0;
    char *names;

    for (size_t i = 0; i < model->n_tensors; i++)
        name_bytes += strlen(model->tensors[i].name) + 1;
    if (make_table(w, model->n_tensors, name_bytes))
        return ws_error_set(err, ENOMEM, "no memory for %zu tensors", model->n_tensors);
    names = w->names;
    for (size_t i = 0; i < model->n_tensors; i++)
        add_weight(w, &names, &model->tensors[i]);
    for (size_t i = 0; i < w->n_tensors; i++)
        w->tensors[i].filled = false;
    return 0;
}

static int match(struct ws_checkpoint_tensor *to, const struct ws_tensor *t, const struct shard *s,
                 struct ws_error *err)
{
    if (to->filled)
        return ws_error_set(err, EBADMSG, "%s: the tensor %s is in another file too", s->path, t->name);
    if (to->n_dims != t->n_dims || memcmp(to->shape, t->shape, t->n_dims * sizeof(t->shape[0])))
        return ws_error_set(err, EBADMSG, "%s: size mismatch for %s: the model has another shape", s->path,
                            t->name);
    to->filled = true;
    to->dtype = t->dtype; /* taken as it comes; the real engines cast */
    to->bytes = t->end - t->begin;
    return 0;
}

static int match_all(struct ws_checkpoint *w, const struct checkpoint *c, struct ws_error *err)
{
    for (size_t i = 0; i < c->n_shards; i++) {
        const struct ws_safetensors *st = c->shards[i].st;
        for (size_t k = 0; k < st->n_tensors; k++) {
            struct ws_checkpoint_tensor *to = ws_checkpoint_find(w, st->tensors[k].name);
            int rc = to ? match(to, &st->tensors[k], &c->shards[i], err) : 0;
            if (rc)
                return rc;
        }
    }
    return 0;
}

/* Offsets, and memory that holds them. */
static int place(struct ws_checkpoint *w, struct ws_error *err)
{
    uint64_t end = 0;
    size_t room;
    void *p;

    for (size_t i = 0; i < w->n_tensors; i++) {
        w->tensors[i].offset = end;
        end += (w->tensors[i].bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    w->used_bytes = end;
    if (end <= w->room_bytes)
        return 0;
    if (w->memory)
        munmap(w->memory, w->room_bytes);
    w->memory = NULL;
    w->room_bytes = 0;
    room = (end + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return ws_error_set(err, errno, "no memory for %lu bytes of weights", end);
    madvise(p, room, MADV_HUGEPAGE);
    w->memory = p;
    w->room_bytes = room;
    return 0;
}

/* --- reading --- */

static int read_shard(struct ws_checkpoint *w, const struct shard *s, size_t *done, size_t half,
                      const struct ws_checkpoint_hooks *steps, struct ws_error *err)
{
    for (size_t k = 0; k < s->st->n_tensors; k++) {
        const struct ws_tensor *t = &s->st->tensors[k];
        const struct ws_checkpoint_tensor *to = ws_checkpoint_find(w, t->name);
        if (!to)
            continue;
        if (ws_sigbus_guard_copy(w->memory + to->offset, s->data_map + t->begin, to->bytes))
            return lost(s, err);
        if (++*done == half && steps)
            steps->reached(steps->arg, "load");
    }
    return 0;
}

static int read_all(struct ws_checkpoint *w, const struct ws_checkpoint *model, const struct checkpoint *c,
                    const struct ws_checkpoint_hooks *steps, size_t *n_missing, struct ws_error *err)
{
    size_t done = 0, half = (w->n_tensors + 1) / 2;
    int rc = 0;

    for (size_t i = 0; !rc && i < c->n_shards; i++)
        rc = read_shard(w, &c->shards[i], &done, half, steps, err);
    *n_missing = 0;
    for (size_t i = 0; !rc && i < w->n_tensors; i++) {
        struct ws_checkpoint_tensor *to = &w->tensors[i];
        if (to->filled)
            continue;
        ws_copy(w->memory + to->offset, model->memory + model->tensors[i].offset, to->bytes);
        ++*n_missing;
    }
    return rc;
}

static int load_opened(struct ws_checkpoint *into, const struct ws_checkpoint *model,
                       const struct checkpoint *c, const struct ws_checkpoint_hooks *steps, size_t *n_missing,
                       struct ws_error *err)
{
    int rc = model ? plan_again(into, model, err) : plan_first(into, c, err);

    if (!rc)
        rc = match_all(into, c, err);
    if (!rc)
        rc = place(into, err);
    return rc ? rc : read_all(into, model, c, steps, n_missing, err);
}

int ws_checkpoint_load(struct ws_checkpoint *into, const struct ws_checkpoint *model, const char *path,
                       const struct ws_checkpoint_hooks *steps, size_t *n_missing, struct ws_error *err)
{
    struct checkpoint c = {.path = path};
    int rc;

    ws_sigbus_guard_install();
    rc = list_folder(&c, err);
    if (!rc)
        rc = filter_by_index(&c, err);
    if (!rc && c.n_shards == 0)
        rc = ws_error_set(err, ENOENT, "cannot find any model weights in %s", path);
    if (!rc)
        rc = open_shards(&c, err);
    if (!rc && steps)
        steps->reached(steps->arg, "open");
    if (!rc)
        rc = load_opened(into, model, &c, steps, n_missing, err);
    close_checkpoint(&c);
    if (rc)
        into->n_tensors = into->used_bytes = 0;
    return rc;
}

uint64_t ws_checkpoint_tensor_hash(const struct ws_checkpoint *w, size_t tensor)
{
    return ws_hash(w->memory + w->tensors[tensor].offset, w->tensors[tensor].bytes);
}

void ws_checkpoint_release(struct ws_checkpoint *w)
{
    if (w->memory)
        munmap(w->memory, w->room_bytes);
    free(w->tensors);
    free(w->names);
    *w = (struct ws_checkpoint){0};
}
