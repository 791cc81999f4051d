#include "backends/trainer/agent/core/rank_deltas.h"
#include "transports/base/log.h"
#include "transports/base/number.h"
#include "transports/base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

struct entry {
    uint32_t file, block, bytes;
    uint64_t offset, base_hash;
};

struct ws_rank_deltas {
    struct ws_rank_deltas *next;
    const unsigned char *bytes; /* mapped */
    uint64_t n_bytes;
    size_t n;
    struct entry entries[];
};

void ws_rank_deltas_free(struct ws_rank_deltas *r)
{
    for (struct ws_rank_deltas *next; r; r = next) {
        next = r->next;
        if (r->bytes)
            munmap((void *)(uintptr_t)r->bytes, r->n_bytes);
        free(r);
    }
}

struct ws_rank_deltas *ws_rank_deltas_join(struct ws_rank_deltas *r, struct ws_rank_deltas *others)
{
    struct ws_rank_deltas *last = r;
    while (last && last->next)
        last = last->next;
    if (!last)
        return others;
    last->next = others;
    return r;
}

/* --- reading --- */

static int map(struct ws_rank_deltas *r, int fd, struct ws_error *err)
{
    struct stat st;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS)
        return ws_error_set(err, EINVAL, "the file with a rank's changes is not sealed");
    if (fstat(fd, &st) != 0 || st.st_size < WS_DELTA_PAD_BYTES)
        return ws_error_set(err, EINVAL, "the file with a rank's changes is too short");
    /* Private, since kernels before 6.7 map nothing shared that is sealed. */
    void *bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
        return ws_error_set(err, errno, "cannot map %lld bytes of a rank's changes: %s",
                            (long long)st.st_size, strerror(errno));
    r->bytes = bytes;
    r->n_bytes = (uint64_t)st.st_size;
    return 0;
}

static bool number(const json_t *list, size_t i, uint64_t most, uint64_t *out)
{
    return ws_number_read(json_array_get(list, i), out) == 0 && *out <= most;
}

static bool read_entry(const json_t *one, uint64_t size, struct entry *e)
{
    uint64_t file, block, bytes;
    if (!number(one, 0, UINT32_MAX, &file) || !number(one, 1, UINT32_MAX, &block) ||
        !number(one, 3, WS_BLOCK_BYTES, &bytes) || bytes == 0 || bytes + WS_DELTA_PAD_BYTES > size ||
        !number(one, 2, size - WS_DELTA_PAD_BYTES - bytes, &e->offset) ||
        ws_text_hash(json_string_value(json_array_get(one, 4)), &e->base_hash) < 0)
        return false;
    e->file = (uint32_t)file;
    e->block = (uint32_t)block;
    e->bytes = (uint32_t)bytes;
    return true;
}

int ws_rank_deltas_read(struct ws_rank_deltas **out, const json_t *list, int fd, struct ws_error *err)
{
    const size_t n = json_array_size(list);
    struct ws_rank_deltas *r = calloc(1, sizeof(*r) + n * sizeof(r->entries[0]));
    if (!r)
        return ws_error_set(err, ENOMEM, "no memory for a rank's changes");
    int rc = json_is_array(list) ? map(r, fd, err)
                                 : ws_error_set(err, EINVAL, "the list of a rank's changes is no list");
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (!read_entry(json_array_get(list, i), r->n_bytes, &r->entries[r->n++]))
            rc = ws_error_set(err, EINVAL, "entry %zu of a rank's changes in commit is malformed", i);
    if (rc < 0)
        ws_rank_deltas_free(r);
    else
        *out = r;
    return rc;
}

int ws_rank_deltas_check(const struct ws_rank_deltas *r, const struct ws_manifest *m,
                         unsigned char *const *hashed, struct ws_error *err)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct entry *e = &r->entries[i];
        const struct ws_manifest_file *f = e->file < m->n_files ? &m->files[e->file] : NULL;
        if (!f || e->block >= f->n_blocks || !hashed[e->file][e->block] ||
            e->bytes >= ws_manifest_block_bytes(f, e->block))
            return ws_error_set(err, EINVAL, "a rank's changes are of block %u of file %u, which is not its",
                                e->block, e->file);
    }
    return 0;
}

/* --- using --- */

struct adding {
    const struct ws_rank_deltas *r;
    struct ws_delta *delta;
    const struct ws_manifest *base, *target;
    int level;
    uint64_t most_bytes;
    atomic_size_t n, refused;
};

static bool is_of_base(const struct adding *a, const struct entry *e)
{
    const struct ws_manifest_file *f = &a->target->files[e->file], *old = ws_manifest_find(a->base, f->name);
    return old && old->size_bytes == f->size_bytes && old->hashes[e->block] == e->base_hash &&
           f->hashes[e->block] != e->base_hash;
}

static struct ws_delta_record *make(const struct adding *a, const struct entry *e)
{
    const unsigned char *raw = a->r->bytes + e->offset;
    struct ws_delta_edit *edit = ws_delta_edit_new();
    struct ws_delta_record *out = NULL;
    if (edit && ws_delta_edit_read(edit, raw, e->bytes,
                                   ws_manifest_block_bytes(&a->target->files[e->file], e->block), NULL) == 0)
        out = ws_delta_record_make(e->file, e->block, WS_DELTA_EDIT, ws_delta_edit_changed(edit), raw,
                                   e->bytes, a->level);
    ws_delta_edit_free(edit);
    return out;
}

static void add(void *arg, size_t i)
{
    struct adding *a = arg;
    const struct entry *e = &a->r->entries[i];
    struct ws_delta_stats f;
    ws_delta_stats(a->delta, &f);
    if (f.bytes > a->most_bytes || !is_of_base(a, e))
        return;
    struct ws_delta_record *record = make(a, e);
    if (record && ws_delta_add(a->delta, record) == 0)
        atomic_fetch_add(&a->n, 1);
    else
        atomic_fetch_add(&a->refused, 1);
}

size_t ws_rank_deltas_add(const struct ws_rank_deltas *r, struct ws_delta *d, const struct ws_manifest *base,
                          const struct ws_manifest *target, int level, uint64_t most_bytes,
                          struct ws_workers *workers)
{
    struct adding a = {.delta = d, .base = base, .target = target, .level = level, .most_bytes = most_bytes};
    for (; r; r = r->next) {
        a.r = r;
        if (workers)
            ws_workers_run(workers, add, &a, r->n);
        for (size_t i = 0; !workers && i < r->n; i++)
            add(&a, i);
    }
    if (a.refused > 0)
        ws_log(WS_LOG_WARN, "agent",
               "%zu of the records that ranks gave cannot be used: those blocks are compared",
               (size_t)a.refused);
    return a.n;
}
