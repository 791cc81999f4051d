/* A patch of memory that holds a version: regions of every kind give the target's values, by the truth of a plain copy of each element;
 * undo gives the base's, also after half a put; a bit that drifted is found and nothing written; regions that cannot be are refused. */
#include "backends/trainer/wsync.h"
#include "tests/fixtures/checkpoint.h"
#include "tests/fixtures/delta_stream.h"
#include "tests/fixtures/version_folders.h"
#include "transports/patch/slice.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define ROWS 240UL
#define COLS 96UL

static const enum ws_dtype dtypes[] = {WS_F8_E4M3, WS_BF16, WS_F32, WS_F64};
static const char *const names[] = {"w1", "w2", "w4", "w8"};

/* Two versions of four matrices, and a row of each. */
struct world {
    char *root, *base, *target;
    struct delta_version from, to;
    struct ws_safetensors *st;
    wsync_changes *changes;
};

static int make_world(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct ws_tensor specs[4];
    void *header;
    for (size_t i = 0; i < 4; i++)
        specs[i] =
            (struct ws_tensor){.name = names[i], .dtype = dtypes[i], .n_dims = 2, .shape = {ROWS, COLS}};
    assert_int_equal(ws_safetensors_layout(specs, 4, NULL, &w->st, &header, NULL), 0);
    const size_t n = w->st->file_bytes, head = w->st->data_begin;
    unsigned char *a = malloc(n), *b = malloc(n);
    memcpy(a, header, head);
    for (size_t i = head; i < n; i++)
        a[i] = (unsigned char)delta_any();
    memcpy(b, a, n);
    for (size_t i = head; i < n; i++)
        if (delta_any() % 40 == 0)
            b[i] = (unsigned char)delta_any();
    version_folder_version(&w->from, 1, a, n, head);
    version_folder_version(&w->to, 2, b, n, head);
    w->root = checkpoint_folder();
    w->base = version_folder_write(w->root, &w->from);
    w->target = version_folder_write(w->root, &w->to);
    assert_int_equal(wsync_changes_open(&w->changes, w->target, w->base), 0);
    assert_true(wsync_changes_count(w->changes, NULL) > 1000);
    free(header);
    *state = w;
    return 0;
}

static int free_world(void **state)
{
    struct world *w = *state;
    wsync_changes_free(w->changes);
    delta_free_version(&w->from);
    delta_free_version(&w->to);
    ws_safetensors_free(w->st);
    checkpoint_remove(w->root);
    free(w->base);
    free(w->target);
    free(w);
    return 0;
}

static const unsigned char *bytes_of(const struct world *w, const struct delta_version *v, const char *tensor)
{
    return v->files[0] + ws_safetensors_find(w->st, tensor)->begin;
}

/* Copies a region element by element: the truth. */
static void copy_region(const struct world *w, const struct delta_version *v, const wsync_patch_region *r,
                        unsigned char *memory)
{
    uint64_t n = 1, at[WSYNC_MAX_DIMS] = {0};
    for (unsigned k = 0; k < r->n_dims; k++)
        n *= r->shape[k];
    for (uint64_t i = 0; i < n; i++) {
        int64_t to = (int64_t)r->to, from = (int64_t)r->from;
        uint64_t rest = i;
        for (unsigned k = r->n_dims; k-- > 0; rest /= r->shape[k]) {
            at[k] = rest % r->shape[k];
            to += (int64_t)at[k] * r->to_strides[k];
            from += (int64_t)at[k] * r->from_strides[k];
        }
        memcpy(memory + (uint64_t)to * r->element_bytes,
               bytes_of(w, v, r->tensor) + (uint64_t)from * r->element_bytes, r->element_bytes);
    }
}

/* Regions of one memory: put, cut off, undone, drifted. */
static void expect(struct world *w, const wsync_patch_region *regions, size_t n)
{
    const size_t bytes = regions[0].memory_elements * regions[0].element_bytes;
    unsigned char *memory = aligned_alloc(64, (bytes + 63) / 64 * 64), *old = malloc(bytes),
                  *new = malloc(bytes);
    wsync_patch *p;
    const uint64_t *places;
    const void *before, *after;
    uint64_t count, size;
    memset(memory, 0xa5, bytes);
    memset(new, 0xa5, bytes);
    assert_int_equal(wsync_patch_new(&p), 0);
    for (size_t i = 0; i < n; i++) {
        wsync_patch_region r = regions[i];
        r.memory = memory;
        copy_region(w, &w->from, &r, memory);
        copy_region(w, &w->to, &r, new);
        assert_int_equal(wsync_patch_add(p, &r), 0);
    }
    memcpy(old, memory, bytes);
    assert_int_equal(wsync_patch_put(p), -EINVAL); /* not prepared */
    for (unsigned threads = 1; threads < 4; threads += 2) {
        const int rc = wsync_patch_prepare(p, w->changes, threads);
        if (rc)
            print_message("%s\n", wsync_error());
        assert_int_equal(rc, 0);
        assert_int_equal(wsync_patch_check(p), 0);
        assert_int_equal(wsync_patch_put(p), 0);
        assert_memory_equal(memory, new, bytes);
        assert_int_equal(wsync_patch_put(p), 0);
        assert_memory_equal(memory, new, bytes);
        memcpy(memory, old, bytes / 2); /* as if the put had been cut off */
        assert_int_equal(wsync_patch_undo(p), 0);
        assert_memory_equal(memory, old, bytes);
        assert_int_equal(wsync_patch_undo(p), 0);
        assert_memory_equal(memory, old, bytes);
        assert_int_equal(wsync_patch_list(p, 1, &places, &before, &after, &count), -ERANGE);
        assert_int_equal(wsync_patch_list(p, 0, &places, &before, &after, &count), 0);
        assert_int_equal(wsync_patch_count(p, &size), count);
        assert_true(size >= count * (8 + 2 * regions[0].element_bytes));
        for (uint64_t i = 0; i < count; i++) {
            const unsigned b = regions[0].element_bytes;
            assert_true(i == 0 || places[i - 1] < places[i]);
            assert_memory_equal((const unsigned char *)before + i * b, old + places[i] * b, b);
            assert_memory_equal((const unsigned char *)after + i * b, new + places[i] * b, b);
            assert_memory_not_equal(old + places[i] * b, new + places[i] * b, b);
        }
        if (count == 0)
            continue;
        const uint64_t byte =
            places[delta_any() % count] * regions[0].element_bytes + delta_any() % regions[0].element_bytes;
        memory[byte] ^= (unsigned char)(1 << delta_any() % 8);
        assert_int_equal(wsync_patch_check(p), -ESTALE);
        assert_non_null(strstr(wsync_error(), regions[0].tensor));
        memory[byte] = old[byte];
        assert_memory_equal(memory, old, bytes);
    }
    wsync_patch_free(p);
    free(memory);
    free(old);
    free(new);
}

#define REGION(i, ...) ((wsync_patch_region){.tensor = names[i], .element_bytes = 1U << (i), __VA_ARGS__})
#define DIMS(...)                                                                                            \
    (const uint64_t[])                                                                                       \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }
#define STEPS(...)                                                                                           \
    (const int64_t[])                                                                                        \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }

static void test_whole(void **state)
{
    for (unsigned i = 0; i < 4; i++) {
        const wsync_patch_region r =
            REGION(i, .memory_elements = ROWS * COLS, .n_dims = 2, .shape = DIMS(ROWS, COLS),
                   .to_strides = STEPS(COLS, 1), .from_strides = STEPS(COLS, 1));
        expect(*state, &r, 1);
    }
}

static void test_transposed(void **state)
{
    for (unsigned i = 0; i < 4; i++) {
        const wsync_patch_region r =
            REGION(i, .memory_elements = ROWS * COLS + 7, .to = 7, .n_dims = 2, .shape = DIMS(ROWS, COLS),
                   .to_strides = STEPS(1, ROWS), .from_strides = STEPS(COLS, 1));
        expect(*state, &r, 1);
    }
}

/* The slices of a rank: rows of it, columns of it, and heads that are dealt out. */
static void test_slices(void **state)
{
    for (unsigned i = 0; i < 4; i++)
        for (uint64_t rank = 0; rank < 3; rank++) {
            const wsync_patch_region rows = REGION(
                i, .memory_elements = ROWS / 3 * COLS, .from = rank * ROWS / 3 * COLS, .n_dims = 2,
                .shape = DIMS(ROWS / 3, COLS), .to_strides = STEPS(COLS, 1), .from_strides = STEPS(COLS, 1));
            const wsync_patch_region columns =
                REGION(i, .memory_elements = ROWS * COLS / 3, .from = rank * COLS / 3, .n_dims = 2,
                       .shape = DIMS(ROWS, COLS / 3), .to_strides = STEPS(COLS / 3, 1),
                       .from_strides = STEPS(COLS, 1));
            const wsync_patch_region heads = REGION(
                i, .memory_elements = ROWS * COLS, .to = rank, .from = rank * 4 * COLS, .n_dims = 4,
                .shape = DIMS(ROWS / 12, 1, 4, COLS), .to_strides = STEPS(4 * COLS * 3, 99, COLS * 3, 3),
                .from_strides = STEPS(12 * COLS, 5, COLS, 1));
            expect(*state, &rows, 1);
            expect(*state, &columns, 1);
            expect(*state, &heads, 1);
        }
}

static void test_backwards(void **state)
{
    const wsync_patch_region r = REGION(
        1, .memory_elements = ROWS * COLS, .to = (ROWS - 1) * COLS, .from = COLS - 1, .n_dims = 2,
        .shape = DIMS(ROWS, COLS), .to_strides = STEPS(-(int64_t)COLS, 1), .from_strides = STEPS(COLS, -1));
    const wsync_patch_region one = REGION(2, .memory_elements = 3, .to = 2, .from = 77, .n_dims = 0);
    const wsync_patch_region none =
        REGION(2, .memory_elements = 3, .to = 99, .n_dims = 2, .shape = DIMS(0, 5), .to_strides = STEPS(1, 1),
               .from_strides = STEPS(1, 1));
    expect(*state, &r, 1);
    expect(*state, &one, 1);
    expect(*state, &none, 1);
}

/* A fused storage of parts of one tensor; and the same part named twice, as tied parameters are. */
static void test_several(void **state)
{
    static const uint64_t third[] = {80, COLS}, piece[] = {1000};
    static const int64_t steps[] = {COLS, 1}, step[] = {1};
    wsync_patch_region r[4];
    for (uint64_t k = 0; k < 3; k++)
        r[k] = REGION(1, .memory_elements = ROWS * COLS, .to = (2 - k) * 80 * COLS, .from = k * 80 * COLS,
                      .n_dims = 2, .shape = third, .to_strides = steps, .from_strides = steps);
    expect(*state, r, 3);
    r[3] = r[1];
    expect(*state, r, 4);
    r[3].n_dims = 1; /* a part of it, in another form */
    r[3].shape = piece;
    r[3].to_strides = r[3].from_strides = step;
    expect(*state, r, 4);
}

/* Random boxes of random strides, of which those that are boxes hold. */
static void test_random(void **state)
{
    unsigned good = 0;
    for (unsigned round = 0; round < 400; round++) {
        uint64_t shape[4] = {0}, left = ROWS * COLS;
        int64_t to[4] = {0}, from[4] = {0};
        const unsigned i = (unsigned)(delta_any() % 4), n = 1 + (unsigned)(delta_any() % 4);
        unsigned order[4] = {0, 1, 2, 3};
        for (unsigned k = 0; k < n; k++) {
            shape[k] = 1 + delta_any() % 7;
            const unsigned other = (unsigned)(delta_any() % (k + 1)), was = order[k];
            order[k] = order[other];
            order[other] = was;
        }
        int64_t stride = 1 + (int64_t)(delta_any() % 3);
        for (unsigned k = n; k-- > 0; stride *= (int64_t)(shape[k] + delta_any() % 2))
            from[k] = stride;
        stride = 1 + (int64_t)(delta_any() % 2);
        for (unsigned k = n; k-- > 0; stride *= (int64_t)(shape[order[k]] + delta_any() % 2))
            to[order[k]] = stride; /* order: of the dimensions, mixed */
        uint64_t low = 0, high = 0, reach = 0;
        for (unsigned k = 0; k < n; k++) {
            reach += (shape[k] - 1) * (uint64_t)from[k];
            if (delta_any() % 4 == 0) {
                low += (shape[k] - 1) * (uint64_t)to[k];
                to[k] = -to[k];
            } else {
                high += (shape[k] - 1) * (uint64_t)to[k];
            }
        }
        if (reach >= left)
            continue;
        const wsync_patch_region r = REGION(i, .memory_elements = low + high + 1 + delta_any() % 3, .to = low,
                                            .from = delta_any() % (left - reach), .n_dims = n, .shape = shape,
                                            .to_strides = to, .from_strides = from);
        expect(*state, &r, 1);
        good++;
    }
    assert_true(good > 300);
}

static void refuse_region(struct world *w, const wsync_patch_region *regions, size_t n, int code,
                          const char *words)
{
    unsigned char *memory = aligned_alloc(64, 16 * ROWS * COLS);
    wsync_patch *p;
    int rc = 0;
    memset(memory, 0, 16 * ROWS * COLS);
    assert_int_equal(wsync_patch_new(&p), 0);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        wsync_patch_region r = regions[i];
        r.memory = memory + (size_t)r.memory;
        rc = wsync_patch_add(p, &r);
    }
    if (rc == 0)
        rc = wsync_patch_prepare(p, w->changes, 2);
    if (rc != -code || !strstr(wsync_error(), words))
        print_message("%d %s\n", rc, wsync_error());
    assert_int_equal(rc, -code);
    assert_non_null(strstr(wsync_error(), words));
    assert_int_equal(wsync_patch_check(p), -EINVAL);
    assert_int_equal(wsync_patch_put(p), -EINVAL);
    assert_int_equal(wsync_patch_undo(p), -EINVAL);
    wsync_patch_free(p);
    free(memory);
}

static void test_refused(void **state)
{
    const wsync_patch_region good =
        REGION(1, .memory_elements = ROWS * COLS, .n_dims = 2, .shape = DIMS(ROWS, COLS),
               .to_strides = STEPS(COLS, 1), .from_strides = STEPS(COLS, 1));
    wsync_patch_region r[2] = {good, good};
    r[0].tensor = "nothing";
    refuse_region(*state, r, 1, ENOENT, "nothing");
    r[0] = good;
    r[0].element_bytes = 4;
    refuse_region(*state, r, 1, EINVAL, "elements of 2 bytes");
    r[0].element_bytes = 3;
    refuse_region(*state, r, 1, EINVAL, "elements of 3 bytes");
    r[0] = good;
    r[0].to = 1;
    refuse_region(*state, r, 1, EINVAL, "out of the memory's");
    r[0] = good;
    r[0].from = 1;
    refuse_region(*state, r, 1, EINVAL, "out of the tensor's");
    r[0] = good;
    r[0].from_strides = STEPS(-(int64_t)COLS, 1);
    refuse_region(*state, r, 1, EINVAL, "out of the tensor's");
    r[0] = good;
    r[0].shape = DIMS(UINT64_MAX / 2, 4);
    refuse_region(*state, r, 1, EINVAL, "2^64");
    r[0].shape = DIMS(1UL << 62, 2);
    refuse_region(*state, r, 1, EINVAL, "out of");
    r[0] = good;
    r[0].to_strides = STEPS(INT64_MIN, 1);
    refuse_region(*state, r, 1, EINVAL, "out of");
    r[0] = good;
    r[0].from_strides = STEPS(0, 1);
    refuse_region(*state, r, 1, EOPNOTSUPP, "share a place");
    r[0] = good;
    r[0].to_strides = STEPS(1, 1);
    refuse_region(*state, r, 1, EOPNOTSUPP, "share a place");
    r[0] = good;
    r[0].n_dims = 9;
    refuse_region(*state, r, 1, EINVAL, "dimensions");
    r[0] = good;
    r[0].memory = (void *)1;
    refuse_region(*state, r, 1, EINVAL, "aligned");
    r[0].memory = (void *)64; /* overlaps the other, and is not it */
    refuse_region(*state, (wsync_patch_region[]){good, r[0]}, 2, EINVAL, "overlaps");
    refuse_region(*state, (wsync_patch_region[]){r[0], good}, 2, EINVAL, "overlaps");
    r[0] = good;
    r[0].memory_elements++;
    refuse_region(*state, (wsync_patch_region[]){good, r[0]}, 2, EINVAL, "another size");
    r[0] = good;
    r[0].memory_elements = UINT64_MAX;
    refuse_region(*state, r, 1, EINVAL, "than there is");
}

/* Two parts of a tensor in one place: which of them counts is not known. Also where only one of them changed. */
static void test_conflict(void **state)
{
    const wsync_patch_region a = REGION(1, .memory_elements = ROWS * COLS, .n_dims = 1, .shape = DIMS(5000),
                                        .to_strides = STEPS(1), .from_strides = STEPS(1));
    wsync_patch_region b = a;
    b.from = 6000;
    refuse_region(*state, (wsync_patch_region[]){a, b}, 2, EEXIST, "which of them counts");
    b.to = 4000;
    refuse_region(*state, (wsync_patch_region[]){b, a}, 2, EEXIST, "which of them counts");

    const struct world *w = *state; /* one place, of an element that changed and of one that did not */
    const unsigned char *old = bytes_of(w, &w->from, "w2"), *new = bytes_of(w, &w->to, "w2");
    uint64_t at = 0;
    while (memcmp(old + 2 * at, new + 2 * at, 2) == 0 || memcmp(old + 2 * at + 2, new + 2 * at + 2, 2) != 0)
        at++;
    wsync_patch_region one[2] = {REGION(1, .memory_elements = 1, .from = at),
                                 REGION(1, .memory_elements = 1, .from = at + 1)};
    for (unsigned i = 0; i < 2; i++) {
        refuse_region(*state, one, 2, EEXIST, "which of them counts");
        one[0].from = at + 1;
        one[1].from = at;
    }
}

static void test_elsewhere(void **state)
{
    struct world *w = *state;
    wsync_patch *p;
    const uint64_t *places;
    const void *before, *after;
    uint64_t n, sum = 0;
    const wsync_patch_region r =
        REGION(1, .memory_elements = ROWS * COLS + 5, .to = 5, .n_dims = 1, .shape = DIMS(ROWS * COLS),
               .to_strides = STEPS(1), .from_strides = STEPS(1));
    assert_int_equal(wsync_patch_new(&p), 0);
    assert_int_equal(wsync_patch_add(p, &r), 0);
    assert_int_equal(wsync_patch_add(p, &r), 0);
    assert_int_equal(wsync_patch_prepare(p, w->changes, 0), 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(wsync_patch_list(p, i, &places, &before, &after, &n), 0);
        assert_int_equal(n, wsync_changes_count(w->changes, "w2"));
        assert_true(places[0] >= 5);
        sum += n;
    }
    assert_int_equal(wsync_patch_count(p, NULL), sum);
    assert_int_equal(wsync_patch_check(p), 0);
    assert_int_equal(wsync_patch_put(p), 0);
    assert_int_equal(wsync_patch_undo(p), 0);
    wsync_patch_free(p);
}

/* --- more elements than 2^32, of which a few are there --- */

#define MANY ((1UL << 32) + 100000)

static void write_at(int fd, uint64_t at, const void *bytes, size_t n)
{
    assert_int_equal(pwrite(fd, bytes, n, (off_t)at), n);
}

static void make_sparse(const char *folder, const char *header, size_t head, const uint64_t *at, size_t n,
                        unsigned char value)
{
    char path[PATH_MAX];
    assert_int_equal(mkdir(folder, 0755), 0);
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)(head + MANY)), 0);
    write_at(fd, 0, header, head);
    for (size_t i = 0; i < n; i++)
        write_at(fd, head + at[i], &value, 1);
    close(fd);
}

static void test_many(void **state)
{
    static const uint64_t at[] = {0, 5, 3UL << 30, (1UL << 32) - 1, 1UL << 32, (1UL << 32) + 77, MANY - 1};
    const size_t n = sizeof(at) / sizeof(at[0]);
    char *root = checkpoint_folder(), header[4096 + 1], base[PATH_MAX], target[PATH_MAX];
    (void)state;
    memset(header, ' ', sizeof(header));
    const int len =
        snprintf(header + 8, 4088, "{\"t\":{\"dtype\":\"F8_E4M3\",\"shape\":[%lu],\"data_offsets\":[0,%lu]}}",
                 MANY, MANY);
    header[8 + len] = ' ';
    memcpy(header, &(uint64_t){4088}, 8);
    snprintf(base, sizeof(base), "%s/1", root);
    snprintf(target, sizeof(target), "%s/2", root);
    make_sparse(base, header, 4096, at, n, 0x11);
    make_sparse(target, header, 4096, at, n, 0x21);
    struct ws_manifest *m[2];
    struct ws_manifest_file *f;
    for (unsigned i = 0; i < 2; i++) { /* hashes are not looked at here */
        assert_int_equal(ws_manifest_new(&m[i], "actor", i + 1, "run1", NULL), 0);
        assert_int_equal(ws_manifest_add(m[i], "model.safetensors", 4096 + MANY, 4096, &f, NULL), 0);
        ws_manifest_seal(m[i]);
        version_folder_mark(i ? target : base, m[i]);
    }
    struct ws_delta_link l = {.base = ws_version_id_make(1, "run1"), .target = ws_version_id_make(2, "run1")};
    memcpy(l.base_digest, m[0]->digest, 33);
    memcpy(l.target_digest, m[1]->digest, 33);
    struct ws_delta *d;
    assert_int_equal(ws_delta_new(&d, &l, m[1], NULL), 0);
    struct ws_delta_block_encoder *e = ws_delta_block_encoder_new();
    unsigned char *a = calloc(3, WS_BLOCK_BYTES), *b = a + WS_BLOCK_BYTES, *out = b + WS_BLOCK_BYTES;
    for (size_t block = 0; block < f->n_blocks; block++) {
        const uint64_t begin = block * WS_BLOCK_BYTES;
        const size_t bytes = ws_manifest_block_bytes(f, block);
        struct ws_element_widths *w = ws_element_widths_new(NULL);
        size_t made;
        uint32_t changed;
        bool touched = false;
        memset(a, 0, 2 * WS_BLOCK_BYTES);
        for (size_t i = 0; i < n; i++)
            if (4096 + at[i] >= begin && 4096 + at[i] < begin + bytes) {
                a[4096 + at[i] - begin] = 0x11;
                b[4096 + at[i] - begin] = 0x21;
                touched = true;
            }
        if (touched) {
            assert_int_equal(ws_delta_block_encode(e, a, b, bytes, w, begin, out, &made, &changed), 0);
            assert_int_equal(ws_delta_add(d, ws_delta_record_make(0, (uint32_t)block, WS_DELTA_EDIT, changed,
                                                                  out, (uint32_t)made, 0)),
                             0);
        }
        free(w);
    }
    ws_delta_end(d, WS_DELTA_WHOLE);
    size_t bytes;
    unsigned char *stream = delta_stream(d, &bytes);
    version_folder_delta(target, m[0], stream, bytes);

    wsync_changes *c;
    assert_int_equal(wsync_changes_open(&c, target, base), 0);
    assert_int_equal(wsync_changes_recorded(c), 1);
    assert_int_equal(wsync_changes_count(c, "t"), n);
    unsigned char *memory =
        mmap(NULL, MANY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    for (size_t i = 0; i < n; i++)
        memory[MANY - 1 - at[i]] = 0x11; /* it lies backwards */
    wsync_patch *p;
    const wsync_patch_region r = {.tensor = "t",
                                  .memory = memory,
                                  .memory_elements = MANY,
                                  .element_bytes = 1,
                                  .to = MANY - 1,
                                  .n_dims = 1,
                                  .shape = DIMS(MANY),
                                  .to_strides = STEPS(-1),
                                  .from_strides = STEPS(1)};
    assert_int_equal(wsync_patch_new(&p), 0);
    assert_int_equal(wsync_patch_add(p, &r), 0);
    assert_int_equal(wsync_patch_prepare(p, c, 2), 0);
    assert_int_equal(wsync_patch_check(p), 0);
    assert_int_equal(wsync_patch_put(p), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(memory[MANY - 1 - at[i]], 0x21);
    assert_int_equal(wsync_patch_undo(p), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(memory[MANY - 1 - at[i]], 0x11);
    wsync_patch_free(p);
    wsync_changes_free(c);
    munmap(memory, MANY);
    free(stream);
    free(a);
    ws_delta_block_encoder_free(e);
    ws_delta_put(d);
    ws_manifest_free(m[0]);
    ws_manifest_free(m[1]);
    checkpoint_remove(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),     cmocka_unit_test(test_transposed), cmocka_unit_test(test_slices),
        cmocka_unit_test(test_backwards), cmocka_unit_test(test_several),    cmocka_unit_test(test_random),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_conflict),   cmocka_unit_test(test_elsewhere),
        cmocka_unit_test(test_many),
    };
    return cmocka_run_group_tests(tests, make_world, free_world);
}
