/* The vectors of tests/fixtures/delta_vectors: deltas made from their bases and targets equal the stored ones
 * byte for byte, so that neither the format nor the writer changes unnoticed. zstd's frames differ between
 * its releases; of those the contents are compared. `test_delta_vectors write` writes the files `delta`
 * again. */
#include "tests/fixtures/delta_stream.h"
#include "transports/base/file.h"
#include "transports/delta/encode.h"
#include "transports/delta/patcher.h"
#include "transports/delta/stream.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <cmocka.h>

#define FOLDER    "tests/fixtures/delta_vectors"
#define MAX_FILES 8
#define MOST      (64UL << 10)

static const struct vector {
    const char *name;
    int level;
} vectors[] = {{"width1", 0}, {"width2", 0}, {"width4", 0}, {"mixed", 0},
               {"whole", 0},  {"empty", 0},  {"zstd", 1}};

static unsigned char *read_file(const char *path, size_t *n)
{
    unsigned char *p = calloc(1, MOST);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || !p)
        fail_msg("%s: %s", path, strerror(errno));
    ssize_t got = read(fd, p, MOST);
    assert_true(got >= 0 && (size_t)got < MOST);
    close(fd);
    *n = (size_t)got;
    return p;
}

/* One side of a vector: the files of a folder, as a manifest has them. */
struct side {
    struct ws_manifest *manifest;
    unsigned char *files[MAX_FILES];
    struct ws_delta_side side;
};

static int is_file(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static void open_side(struct side *s, const char *vector, const char *which, uint64_t version)
{
    char path[512], folder[256];
    struct dirent **names;
    snprintf(folder, sizeof(folder), FOLDER "/%s/%s", vector, which);
    int n = scandir(folder, &names, is_file, alphasort); /* the locale is C */
    assert_true(n > 0 && n <= MAX_FILES);
    assert_int_equal(
        ws_manifest_new(&s->manifest, "vectors", version, version == 1 ? "first" : "second", NULL), 0);
    for (int i = 0; i < n; i++) {
        struct ws_manifest_file *f;
        size_t bytes;
        uint64_t header = 0;
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]->d_name);
        s->files[i] = read_file(path, &bytes);
        if (strstr(path, ".safetensors")) {
            memcpy(&header, s->files[i], sizeof(header));
            header += sizeof(header);
        }
        assert_int_equal(ws_manifest_add(s->manifest, names[i]->d_name, bytes, header, &f, NULL), 0);
        for (size_t b = 0; b < f->n_blocks; b++)
            f->hashes[b] = ws_hash(s->files[i], bytes);
        free(names[i]);
    }
    free(names);
    ws_manifest_seal(s->manifest);
    s->side = (struct ws_delta_side){s->manifest, (const unsigned char *const *)s->files};
}

static void close_side(struct side *s)
{
    for (size_t i = 0; i < MAX_FILES; i++)
        free(s->files[i]);
    ws_manifest_free(s->manifest);
}

struct pair {
    struct side base, target;
    struct ws_delta_link link;
    char path[256]; /* of the delta */
};

static void open_pair(struct pair *p, const char *vector)
{
    *p = (struct pair){0};
    open_side(&p->base, vector, "base", 1);
    open_side(&p->target, vector, "target", 2);
    p->link.base = ws_version_id_make(1, p->base.manifest->lineage);
    p->link.target = ws_version_id_make(2, p->target.manifest->lineage);
    memcpy(p->link.base_digest, p->base.manifest->digest, sizeof(p->link.base_digest));
    memcpy(p->link.target_digest, p->target.manifest->digest, sizeof(p->link.target_digest));
    snprintf(p->path, sizeof(p->path), FOLDER "/%s/delta", vector);
}

static void close_pair(struct pair *p)
{
    close_side(&p->base);
    close_side(&p->target);
}

static struct ws_delta *made(const struct pair *p, int level)
{
    struct ws_delta *d;
    struct ws_workers *w = ws_workers_new(1, 0);
    assert_int_equal(ws_delta_new(&d, &p->link, p->target.manifest, NULL), 0);
    ws_delta_encode(d, &p->base.side, &p->target.side, level, UINT64_MAX, w, NULL);
    assert_int_equal(ws_delta_state(d), WS_DELTA_WHOLE);
    ws_workers_free(w);
    return d;
}

static int take(void *arg, struct ws_delta_record *r)
{
    return ws_delta_add(arg, r);
}

static struct ws_delta *kept(const struct pair *p)
{
    struct ws_delta *d;
    struct ws_error err = {0};
    size_t n;
    bool whole;
    unsigned char *bytes = read_file(p->path, &n);
    assert_int_equal(ws_delta_new(&d, &p->link, p->target.manifest, NULL), 0);
    struct ws_delta_stream_reader *r = ws_delta_stream_reader_new(
        &p->link, ws_delta_blocks(d), &(struct ws_delta_stream_sink){.record = take, .arg = d});
    if (ws_delta_stream_read(r, bytes, n, &err) < 0)
        fail_msg("%s: %s", p->path, err.text);
    assert_true(ws_delta_stream_reader_ended(r, &whole) && whole);
    ws_delta_end(d, WS_DELTA_WHOLE);
    ws_delta_stream_reader_free(r);
    free(bytes);
    return d;
}

static unsigned char *written(struct ws_delta *d, size_t *n)
{
    struct ws_delta_stream_writer w;
    unsigned char *p = malloc(MOST);
    assert_int_equal(ws_delta_stream_writer_init(&w, d, 0, 1), 0);
    ssize_t got = ws_delta_stream_write(&w, p, MOST);
    assert_true(got > 0 && (size_t)got < MOST);
    ws_delta_stream_writer_free(&w);
    *n = (size_t)got;
    return p;
}

static void test_made_as_kept(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        struct pair p;
        size_t n, n_want;
        open_pair(&p, vectors[i].name);
        struct ws_delta *d = made(&p, vectors[i].level);
        unsigned char *got = written(d, &n), *want = read_file(p.path, &n_want);
        if (!vectors[i].level) {
            assert_int_equal(n, n_want);
            assert_memory_equal(got, want, n);
        }
        free(got);
        free(want);
        ws_delta_put(d);
        close_pair(&p);
    }
}

static void assert_same_record(const struct ws_delta_record *a, const struct ws_delta_record *b)
{
    unsigned char *x = malloc(MOST), *y = malloc(MOST);
    assert_true(!a == !b);
    if (a && b) {
        assert_true(a->kind == b->kind && a->packed == b->packed && a->n_changed == b->n_changed);
        assert_int_equal(a->raw_bytes, b->raw_bytes);
        assert_memory_equal(ws_delta_record_raw(a, x), ws_delta_record_raw(b, y), a->raw_bytes);
    }
    free(x);
    free(y);
}

/* Vectors with frames too: applying them to the base gives the target. */
static void test_kept_applied(void **state)
{
    struct ws_patcher *patcher = ws_patcher_new();
    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        struct pair p;
        open_pair(&p, vectors[i].name);
        struct ws_delta *now = made(&p, vectors[i].level), *d = kept(&p);
        for (size_t f = 0; f < p.target.manifest->n_files; f++) {
            const struct ws_manifest_file *file = &p.target.manifest->files[f];
            const struct ws_manifest_file *old = ws_manifest_find(p.base.manifest, file->name);
            const unsigned char *from = old ? p.base.files[old - p.base.manifest->files] : p.target.files[f];
            const struct ws_delta_record *r = ws_delta_at(d, f, 0);
            unsigned char *to = calloc(1, MOST);
            uint64_t hash;
            assert_same_record(r, ws_delta_at(now, f, 0));
            assert_true(r || (old && old->size_bytes == file->size_bytes) || file->size_bytes == 0);
            assert_int_equal(ws_patcher_block(patcher, to, from, file->size_bytes, &r, 1, &hash, NULL), 0);
            assert_memory_equal(to, p.target.files[f], file->size_bytes);
            free(to);
        }
        ws_delta_put(now);
        ws_delta_put(d);
        close_pair(&p);
    }
    ws_patcher_free(patcher);
}

static void write_all(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        struct pair p;
        open_pair(&p, vectors[i].name);
        struct ws_delta *d = made(&p, vectors[i].level);
        int fd = open(p.path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        assert_true(fd >= 0);
        size_t n;
        unsigned char *bytes = delta_stream(d, &n);
        assert_int_equal(ws_file_write(fd, bytes, n), 0);
        free(bytes);
        close(fd);
        ws_delta_put(d);
        close_pair(&p);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made_as_kept),
        cmocka_unit_test(test_kept_applied),
    };
    const struct CMUnitTest writes[] = {cmocka_unit_test(write_all)};
    if (argc > 1 && strcmp(argv[1], "write") == 0)
        return cmocka_run_group_tests(writes, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
