#include "backends/trainer/offload/history.h"
#include "transports/base/file.h"
#include "transports/base/number.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

struct change {
    struct ws_delta_record *record;
    uint64_t base_hash;
    bool known, exported;
};

struct set {
    struct ws_version_id base, target; /* target without a run: begun */
    struct change *blocks;
};

struct ws_history {
    size_t n_blocks, n;
    struct set sets[WS_MAX_DELTA_CHAIN]; /* oldest first */
};

struct ws_history *ws_history_new(size_t n_blocks)
{
    struct ws_history *r = calloc(1, sizeof(*r));
    if (r)
        r->n_blocks = n_blocks;
    return r;
}

static void drop(struct ws_history *r, size_t s)
{
    for (size_t i = 0; i < r->n_blocks; i++)
        free(r->sets[s].blocks[i].record);
    free(r->sets[s].blocks);
    r->n--;
    memmove(&r->sets[s], &r->sets[s + 1], (r->n - s) * sizeof(r->sets[0]));
}

void ws_history_free(struct ws_history *r)
{
    while (r && r->n > 0)
        drop(r, r->n - 1);
    free(r);
}

/* The set of the begun version, or NULL. */
static struct set *begun(const struct ws_history *r)
{
    const struct set *last = r->n ? &r->sets[r->n - 1] : NULL;
    return last && !last->target.lineage[0] ? (struct set *)(uintptr_t)last : NULL;
}

int ws_history_begin(struct ws_history *r, const struct ws_version_id *base, struct ws_error *err)
{
    if (begun(r))
        drop(r, r->n - 1);
    while (r->n > 0 && !ws_version_id_equal(&r->sets[r->n - 1].target, base))
        drop(r, r->n - 1);
    if (!base->lineage[0])
        return 0;
    if (r->n == WS_MAX_DELTA_CHAIN)
        drop(r, 0);
    struct set s = {.base = *base, .blocks = calloc(r->n_blocks + 1, sizeof(*s.blocks))};
    if (!s.blocks)
        return ws_error_set(err, ENOMEM, "no memory for what changed in %zu blocks", r->n_blocks);
    r->sets[r->n++] = s;
    return 0;
}

void ws_history_record(struct ws_history *r, size_t i, struct ws_delta_record *record, uint64_t base_hash)
{
    struct set *s = begun(r);
    assert(i < r->n_blocks && (!s || !s->blocks[i].known));
    if (s)
        s->blocks[i] = (struct change){record, base_hash, true, false};
    else
        free(record);
}

size_t ws_history_length_from(const struct ws_history *r, const struct ws_version_id *version)
{
    for (size_t n = 1; begun(r) && n <= r->n; n++) /* the youngest of that name */
        if (ws_version_id_equal(&r->sets[r->n - n].base, version))
            return n;
    return 0;
}

bool ws_history_is_complete(const struct ws_history *r, size_t i, size_t n)
{
    assert(n <= r->n && i < r->n_blocks);
    for (size_t k = 0; k + 1 < n; k++)
        if (!r->sets[r->n - n + k].blocks[i].known)
            return false;
    return true;
}

bool ws_history_chain(const struct ws_history *r, size_t i, size_t n,
                      const struct ws_delta_record *chain[WS_MAX_DELTA_CHAIN])
{
    assert(n <= r->n && i < r->n_blocks);
    for (size_t k = 0; k < n; k++) {
        const struct change *b = &r->sets[r->n - n + k].blocks[i];
        if (!b->known)
            return false;
        chain[k] = b->record;
    }
    return true;
}

static uint64_t bytes_of(const struct ws_history *r)
{
    uint64_t bytes = 0;
    for (size_t s = 0; s < r->n; s++)
        for (size_t i = 0; i < r->n_blocks; i++)
            if (r->sets[s].blocks[i].record)
                bytes += r->sets[s].blocks[i].record->bytes;
    return bytes;
}

void ws_history_commit(struct ws_history *r, const struct ws_version_id *version, size_t most_sets,
                       uint64_t most_bytes)
{
    struct set *s = begun(r);
    if (s)
        s->target = *version;
    while (r->n > most_sets || (r->n > 0 && bytes_of(r) > most_bytes))
        drop(r, 0);
}

/* --- for the agent --- */

static int new_file(void)
{
    int fd = memfd_create("wsync-changes", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create("wsync-changes", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd < 0 ? -errno : fd;
}

static int export_one(const struct change *b, int fd, uint64_t *offset, json_t *list)
{
    const struct ws_delta_record *d = b->record;
    int rc = ws_file_write(fd, d->data, d->bytes);
    if (rc == 0 &&
        json_array_append_new(list, json_pack("[I,I,I,I,o]", (json_int_t)d->file, (json_int_t)d->block,
                                              (json_int_t)*offset, (json_int_t)d->bytes,
                                              ws_number_hash(b->base_hash))) != 0)
        rc = -ENOMEM;
    *offset += d->bytes;
    return rc;
}

bool ws_history_is_new(const struct ws_history *r, size_t i)
{
    const struct set *s = begun(r);
    return s && s->blocks[i].known && !s->blocks[i].exported;
}

static void end_export(const struct ws_history *r)
{
    struct set *s = begun(r);
    for (size_t i = 0; s && i < r->n_blocks; i++)
        s->blocks[i].exported = s->blocks[i].known;
}

int ws_history_export(struct ws_history *r, json_t **list, int *fd, struct ws_error *err)
{
    static const char zeros[WS_DELTA_PAD_BYTES];
    const struct set *s = begun(r);
    uint64_t offset = 0;
    *fd = -1;
    *list = NULL;
    for (size_t i = 0; s && i < r->n_blocks; i++)
        offset += s->blocks[i].record && !s->blocks[i].exported;
    if (offset == 0) {
        end_export(r);
        return 0;
    }
    *list = json_array();
    *fd = new_file();
    int rc = *fd < 0 ? *fd : *list ? 0 : -ENOMEM;
    offset = 0;
    for (size_t i = 0; rc == 0 && i < r->n_blocks; i++)
        if (s->blocks[i].record && !s->blocks[i].exported)
            rc = export_one(&s->blocks[i], *fd, &offset, *list);
    if (rc == 0)
        rc = ws_file_write(*fd, zeros, sizeof(zeros));
    if (rc == 0 && fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
        rc = -errno;
    if (rc == 0) {
        end_export(r);
        return 0;
    }
    json_decref(*list);
    *list = NULL;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return ws_error_set(err, -rc, "cannot write %llu bytes of changes into a file in memory: %s",
                        (unsigned long long)offset, strerror(-rc));
}
