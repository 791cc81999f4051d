#include "fs/fuse/version_cache.h"
#include "fs/fuse/backing.h"
#include "fs/fuse/broker.h"
#include "fs/fuse/invalidate.h"
#include "fs/fuse/life.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- what the kernel passes through --- */

static int open_backing(struct ws_fs *fs, int fd)
{
    const int id = fs->broker ? ws_broker_backing_open(fs->broker, fd) : ws_backing_open(fs->session, fd);
    if (id > 0)
        ws_life_passes(fs->life, id);
    return id;
}

static void close_backing(struct ws_fs *fs, int id)
{
    if (fs->broker)
        ws_broker_backing_close(fs->broker, id);
    else
        ws_backing_close(fs->session, id);
}

int ws_version_cache_probe(struct ws_fs *fs)
{
    struct ws_region *r;
    struct ws_error err = {0};
    int fd, rc = ws_region_new(&r, WS_PAGE_BYTES, &err);
    if (rc < 0)
        return rc;
    rc = ws_region_open(r, WS_REGION_READ, &fd, &err);
    if (rc == 0) {
        rc = open_backing(fs, fd);
        close(fd);
        if (rc > 0) {
            close_backing(fs, rc);
            rc = 0;
        }
    }
    ws_region_free(r);
    return rc;
}

void ws_version_cache_close_former(struct ws_fs *fs, int highest)
{
    for (int id = 1; id <= highest; id++)
        close_backing(fs, id);
}

/* --- the caches --- */

static struct ws_version_cache *find(struct ws_fs *fs, uint64_t id)
{
    struct ws_version_cache *vc = fs->version_caches;
    while (vc && vc->id != id)
        vc = vc->next;
    return vc;
}

/* The version's cache, made at need (its manifest must be here); NULL: no memory. Lives until release. */
static struct ws_version_cache *get(struct ws_fs *fs, struct ws_version *v)
{
    const struct ws_manifest *m = ws_version_files(v);
    if (!m)
        return NULL;
    pthread_mutex_lock(&fs->lock);
    struct ws_version_cache *vc = find(fs, ws_version_serial(v));
    if (!vc && (vc = calloc(1, sizeof(*vc)))) {
        vc->id = ws_version_serial(v);
        vc->n_files = m->n_files;
        vc->backing = calloc(m->n_files + 1, sizeof(*vc->backing));
        vc->linked = calloc(m->n_files + 1, sizeof(*vc->linked));
        pthread_mutex_init(&vc->lock, NULL);
        if (vc->backing && vc->linked) {
            vc->next = fs->version_caches;
            fs->version_caches = vc;
        } else {
            free(vc->backing);
            free(vc->linked);
            free(vc);
            vc = NULL;
        }
    }
    pthread_mutex_unlock(&fs->lock);
    return vc;
}

static void link_name(char out[64], uint64_t id, size_t file)
{
    snprintf(out, 64, "%llu-%zu", (unsigned long long)id, file);
}

static void free_cache(struct ws_fs *fs, struct ws_version_cache *vc)
{
    for (size_t i = 0; i < vc->n_files; i++) {
        char name[64];
        if (vc->backing[i] > 0)
            close_backing(fs, vc->backing[i]);
        link_name(name, vc->id, i);
        if (vc->linked[i])
            (void)unlinkat(ws_region_tmpfs(), name, 0);
    }
    pthread_mutex_destroy(&vc->lock);
    free(vc->backing);
    free(vc->linked);
    free(vc->tensors);
    free(vc);
}

void ws_version_cache_close(struct ws_fs *fs, struct ws_version *v)
{
    pthread_mutex_lock(&fs->lock);
    struct ws_version_cache *vc = find(fs, ws_version_serial(v));
    for (size_t i = 0; vc && i < vc->n_files; i++) {
        if (vc->backing[i] > 0)
            close_backing(fs, vc->backing[i]);
        vc->backing[i] = 0;
    }
    pthread_mutex_unlock(&fs->lock);
}

void ws_version_cache_release(void *arg, struct ws_version *v)
{
    struct ws_fs *fs = arg;
    struct ws_version_cache **at, *vc = NULL;
    char name[WS_MAX_NAME + 1];
    ws_version_name(v, name);
    ws_invalidate_name(fs, ws_ino(ws_model_id(ws_version_model(v)), WS_KIND_MODEL, 0), name);
    if (fs->names.is_written)
        ws_side_prune(&fs->side, ws_version_model(v));
    if (ws_names_of(&fs->names, v, name))
        ws_invalidate_name(fs, FUSE_ROOT_ID, name);
    pthread_mutex_lock(&fs->lock);
    for (at = &fs->version_caches; *at && (*at)->id != ws_version_serial(v); at = &(*at)->next)
        ;
    if (*at) {
        vc = *at;
        *at = vc->next;
    }
    pthread_mutex_unlock(&fs->lock);
    if (vc)
        free_cache(fs, vc);
}

void ws_version_cache_free_all(struct ws_fs *fs)
{
    while (fs->version_caches) {
        struct ws_version_cache *vc = fs->version_caches;
        fs->version_caches = vc->next;
        free_cache(fs, vc);
    }
}

/* --- passthrough and links --- */

int ws_version_cache_backing(struct ws_fs *fs, struct ws_version *v, size_t file)
{
    struct ws_version_cache *vc = get(fs, v);
    struct ws_region *region = ws_version_region(v, file);
    struct ws_error err = {0};
    int id, fd = -1;
    if (!vc || !region)
        return -EIO;
    pthread_mutex_lock(&fs->lock); /* the ioctl does not sleep: a second id for one inode would be an error */
    id = vc->backing[file];
    if (id == 0) {
        bool ours = ws_region_kind(region) != WS_REGION_IMPORTED;
        int rc = ours ? ws_region_open(region, WS_REGION_READ, &fd, &err) : 0;
        id = rc < 0 ? rc : open_backing(fs, ours ? fd : ws_region_fd(region));
        if (id > 0)
            vc->backing[file] = id;
    }
    pthread_mutex_unlock(&fs->lock);
    if (fd >= 0)
        close(fd); /* the kernel has its own reference */
    if (id == -EPIPE)
        ws_log(WS_LOG_WARN, "fs",
               "the broker is gone: files that nobody has read yet are read by the daemon, which is slower; "
               "mount anew");
    else if (id < 0)
        ws_log(WS_LOG_ERROR, "fs", "a file cannot be passed through: %s", strerror(-id));
    return id;
}

int ws_version_cache_link(struct ws_fs *fs, struct ws_version *v, size_t file, char out[64])
{
    struct ws_version_cache *vc = get(fs, v);
    struct ws_region *region = ws_version_region(v, file);
    if (!vc || !region || ws_region_tmpfs() < 0 || ws_region_kind(region) != WS_REGION_TMPFS_HUGE)
        return -EXDEV;
    link_name(out, vc->id, file);
    pthread_mutex_lock(&fs->lock);
    int rc = vc->linked[file] ? 0 : ws_region_link(region, ws_region_tmpfs(), out);
    if (rc == 0)
        vc->linked[file] = true;
    pthread_mutex_unlock(&fs->lock);
    return rc;
}

/* --- tensors --- */

static const struct ws_tensor *tensor_at(struct ws_version *v, const struct ws_tensor_ref *r)
{
    return &ws_version_header(v, r->file, NULL)->tensors[r->index];
}

/* Of a tensor by the name of its file, which is nearly always the tensor's own. */
struct named {
    struct ws_tensor_ref ref;
    const char *file; /* owned where it is not the tensor's own */
};

static int by_file(const void *x, const void *y)
{
    return strcmp(((const struct named *)x)->file, ((const struct named *)y)->file);
}

/* Sorts by the names of files. 0 or -ENOMEM. */
static int sort(struct ws_version *v, struct ws_tensor_ref *table, size_t n)
{
    struct named *all = calloc(n + 1, sizeof(*all));
    char room[WS_MAX_NAME + 1];
    bool sorted =
        true; /* as the header's tensors are by their names: of one file with no odd name, all is done */
    size_t k = 0;
    int rc = all ? 0 : -ENOMEM;
    for (; rc == 0 && k < n; k++) {
        const char *name = tensor_at(v, &table[k])->name, *file = ws_name_as_file(name, room);
        all[k] = (struct named){table[k], file == name ? name : strdup(file)};
        rc = all[k].file ? 0 : -ENOMEM;
        sorted = sorted && (rc < 0 || k == 0 || by_file(&all[k - 1], &all[k]) <= 0);
    }
    if (rc == 0 && !sorted)
        qsort(all, n, sizeof(all[0]), by_file);
    for (size_t i = 0; i < k; i++) {
        if (all[i].file != tensor_at(v, &all[i].ref)->name)
            free((char *)(uintptr_t)all[i].file);
        table[i] = all[i].ref;
    }
    free(all);
    return rc;
}

static int make_table(struct ws_version *v, struct ws_version_cache *vc)
{
    const struct ws_manifest *m = ws_version_files(v);
    struct ws_error err;
    size_t total = 0, k = 0;
    for (size_t i = 0; i < m->n_files; i++) {
        const struct ws_safetensors *st = m->files[i].header_bytes ? ws_version_header(v, i, &err) : NULL;
        if (m->files[i].header_bytes && !st)
            return err.code == EAGAIN ? -EAGAIN : -(err.code ? err.code : EBADMSG);
        total += st ? st->n_tensors : 0;
    }
    struct ws_tensor_ref *table = calloc(total + 1, sizeof(*table));
    if (!table)
        return -ENOMEM;
    for (size_t i = 0; i < m->n_files; i++) {
        const struct ws_safetensors *st = m->files[i].header_bytes ? ws_version_header(v, i, NULL) : NULL;
        for (size_t t = 0; st && t < st->n_tensors; t++)
            table[k++] = (struct ws_tensor_ref){(uint32_t)i, (uint32_t)t};
    }
    const int rc = sort(v, table, total);
    if (rc < 0) {
        free(table);
        return rc;
    }
    vc->n_tensors = total;
    __atomic_store_n(&vc->tensors, table, __ATOMIC_RELEASE);
    return 0;
}

int ws_version_cache_tensors(struct ws_fs *fs, struct ws_version *v, struct ws_version_cache **out)
{
    struct ws_version_cache *vc = get(fs, v);
    if (!vc)
        return -ENOMEM;
    *out = vc;
    if (__atomic_load_n(&vc->tensors, __ATOMIC_ACQUIRE))
        return 0;
    pthread_mutex_lock(&vc->lock);
    int rc = vc->tensors ? 0 : make_table(v, vc);
    pthread_mutex_unlock(&vc->lock);
    return rc;
}

const struct ws_tensor *ws_version_cache_tensor(struct ws_version *v, const struct ws_version_cache *vc,
                                                size_t i, size_t *file)
{
    *file = vc->tensors[i].file;
    return tensor_at(v, &vc->tensors[i]);
}

long ws_version_cache_find(struct ws_version *v, const struct ws_version_cache *vc, const char *name)
{
    size_t low = 0, high = vc->n_tensors;
    char file[WS_MAX_NAME + 1];
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = strcmp(ws_name_as_file(tensor_at(v, &vc->tensors[mid])->name, file), name);
        if (c == 0)
            return (long)mid;
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return -1;
}
