/* A patch of an engine's parameters, 1.2 GB of bf16 in 197 tensors as Qwen3-0.6B has them, on all cores: put, undo and check compared with
 * a copy of all parameters, which is the least that a whole load costs; the list of what changed, from a delta and from both files, compared
 * with that copy, too; and its translation to places. 0.1 %, 1.5 % and 5 % of the elements changed by one unit. Undo is compared with put. */
#include "tests/bench/common.h"
#include "transports/base/cpu_features.h"
#include "transports/delta/encode.h"
#include "transports/delta/stream.h"
#include "transports/memory/available.h"
#include "transports/patch/patch.h"
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LAYERS  28
#define REPEATS 5
#define THREADS 8

static struct {
    char root[64], base[96], target[96];
    struct ws_safetensors *st;
    unsigned char *old, *new, *params, *copy; /* the first two are files */
    struct ws_manifest *manifests[2];
    struct ws_changes *changes;
    struct ws_patch *patch;
    struct ws_workers *workers;
    unsigned threads;
} b;

static uint64_t any(void)
{
    static uint64_t seed = 88172645463325252ULL;
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

/* --- two versions --- */

static void lay_out(void **header)
{
    static const struct {
        const char *name;
        uint64_t rows, columns;
    } parts[] = {{"self_attn.q_proj", 2048, 1024}, {"self_attn.k_proj", 1024, 1024},
                 {"self_attn.v_proj", 1024, 1024}, {"self_attn.o_proj", 1024, 2048},
                 {"mlp.gate_proj", 3072, 1024},    {"mlp.up_proj", 3072, 1024},
                 {"mlp.down_proj", 1024, 3072}};
    struct ws_tensor specs[1 + 7 * LAYERS] = {
        {.name = "embed", .dtype = WS_BF16, .n_dims = 2, .shape = {151936, 1024}}};
    static char names[7 * LAYERS][64];
    for (size_t i = 0; i < 7 * LAYERS; i++) {
        snprintf(names[i], sizeof(names[i]), "layers.%zu.%s", i / 7, parts[i % 7].name);
        specs[i + 1] = (struct ws_tensor){.name = names[i],
                                          .dtype = WS_BF16,
                                          .n_dims = 2,
                                          .shape = {parts[i % 7].rows, parts[i % 7].columns}};
    }
    struct ws_error err;
    if (ws_safetensors_layout(specs, 1 + 7 * LAYERS, NULL, &b.st, header, &err) < 0)
        bench_fail("%s", err.text);
}

static unsigned char *make_file(const char *folder, size_t bytes)
{
    char path[128];
    (void)mkdir(folder, 0700);
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0)
        bench_fail("cannot make %s", path);
    unsigned char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        bench_fail("cannot map %s", path);
    return p;
}

static void write_meta(const char *folder, const char *name, const void *bytes, size_t n)
{
    char path[192];
    snprintf(path, sizeof(path), "%s/.wsync", folder);
    (void)mkdir(path, 0700);
    snprintf(path, sizeof(path), "%s/.wsync/%s", folder, name);
    FILE *f = fopen(path, "we");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        bench_fail("cannot write %s", path);
}

static void change(double share)
{
    uint16_t *p = (uint16_t *)(void *)(b.new + b.st->data_begin);
    const size_t n = (b.st->file_bytes - b.st->data_begin) / 2;
    memcpy(b.new, b.old, b.st->file_bytes);
    for (size_t i = 0;; i++) {
        i += (size_t)(log(((double)(any() >> 11) + 0.5) / 9007199254740992.0) / log1p(-share));
        if (i >= n)
            return;
        p[i] = (uint16_t)(any() & 1 ? p[i] + 1 : p[i] - 1);
    }
}

static void make_manifest(unsigned i, const unsigned char *bytes, const char *folder)
{
    struct ws_manifest_file *f;
    char *json;
    size_t n;
    ws_manifest_free(b.manifests[i]);
    if (ws_manifest_new(&b.manifests[i], "actor", i + 1, "bench", NULL) < 0 ||
        ws_manifest_add(b.manifests[i], "model.safetensors", b.st->file_bytes, b.st->data_begin, &f, NULL) <
            0)
        bench_fail("no manifest");
    for (size_t k = 0; k < f->n_blocks; k++)
        f->hashes[k] = ws_hash(bytes + k * WS_BLOCK_BYTES, ws_manifest_block_bytes(f, k));
    ws_manifest_seal(b.manifests[i]);
    if (ws_manifest_to_json(b.manifests[i], &json, &n, NULL) < 0)
        bench_fail("no manifest");
    write_meta(folder, "manifest.json", json, n);
    free(json);
}

static void make_delta(void)
{
    struct ws_delta_link l = {.base = ws_version_id_make(1, "bench"),
                              .target = ws_version_id_make(2, "bench")};
    const unsigned char *const old[] = {b.old}, *const new[] = {b.new};
    const struct ws_delta_side from = {b.manifests[0], old}, to = {b.manifests[1], new};
    struct ws_delta_stream_writer w;
    struct ws_delta *d;
    memcpy(l.base_digest, b.manifests[0]->digest, sizeof(l.base_digest));
    memcpy(l.target_digest, b.manifests[1]->digest, sizeof(l.target_digest));
    if (ws_delta_new(&d, &l, b.manifests[1], NULL) < 0)
        bench_fail("no delta");
    ws_delta_encode(d, &from, &to, 0, UINT64_MAX, b.workers, NULL);
    const size_t n = ws_delta_stream_bytes(d, 0, 1);
    unsigned char *bytes = malloc(n);
    if (!bytes || ws_delta_stream_writer_init(&w, d, 0, 1) < 0 ||
        ws_delta_stream_write(&w, bytes, n) != (ssize_t)n)
        bench_fail("no delta");
    write_meta(b.target, "changes-from-1@bench", bytes, n);
    ws_delta_stream_writer_free(&w);
    ws_delta_put(d);
    free(bytes);
}

/* --- what is measured --- */

static void copy_one(void *arg, size_t i)
{
    const size_t all = b.st->file_bytes, at = i * WS_BLOCK_BYTES,
                 n = all - at < WS_BLOCK_BYTES ? all - at : WS_BLOCK_BYTES;
    (void)arg;
    memcpy(b.copy + at, b.new + at, n);
}

static void copy(void *arg)
{
    (void)arg;
    ws_workers_run(b.workers, copy_one, NULL, (b.st->file_bytes + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES);
}

static void put(void *arg)
{
    (void)arg;
    ws_patch_put(b.patch);
}

static void undo(void *arg)
{
    (void)arg;
    ws_patch_undo(b.patch);
}

static void check(void *arg)
{
    struct ws_error err;
    (void)arg;
    if (ws_patch_check(b.patch, &err) < 0)
        bench_fail("%s", err.text);
}

static void list(void *arg)
{
    struct ws_error err;
    const char *target = arg;
    ws_changes_free(b.changes);
    if (ws_changes_open(&b.changes, target, b.base, b.threads, &err) < 0)
        bench_fail("%s", err.text);
}

static void prepare(void *arg)
{
    struct ws_error err;
    (void)arg;
    if (ws_patch_prepare(b.patch, b.changes, b.threads, &err) < 0)
        bench_fail("%s", err.text);
}

static void add_regions(void)
{
    static const int64_t one[] = {1};
    struct ws_error err;
    if (!(b.patch = ws_patch_new()))
        bench_fail("no memory");
    for (size_t i = 0; i < b.st->n_tensors; i++) {
        const struct ws_tensor *t = &b.st->tensors[i];
        const uint64_t n[] = {(t->end - t->begin) / 2};
        const struct ws_patch_region r = {.tensor = t->name,
                                          .memory = b.params + t->begin,
                                          .memory_elements = n[0],
                                          .element_bytes = 2,
                                          .n_dims = 1,
                                          .shape = n,
                                          .to_strides = one,
                                          .from_strides = one};
        if (ws_patch_add(b.patch, &r, &err) < 0)
            bench_fail("%s", err.text);
    }
}

static void row(const char *name, double value, double baseline, enum bench_goal goal, double target)
{
    bench_row(&(struct bench_row){name, value, "s", baseline, goal, target});
}

static void measure(double share, const char *percent, double most)
{
    char name[64], plain[128], from[160], to[160];
    change(share);
    make_manifest(1, b.new, b.target);
    make_delta();
    snprintf(plain, sizeof(plain), "%s/plain", b.root); /* the same files without a delta */
    (void)mkdir(plain, 0700);
    snprintf(from, sizeof(from), "%s/model.safetensors", b.target);
    snprintf(to, sizeof(to), "%s/model.safetensors", plain);
    (void)link(from, to);
    struct bench_subject lists[] = {{list, plain, 0}, {list, b.target, 0}, {copy, NULL, 0}};
    bench_in_turns(lists, 3, REPEATS);
    list(b.target);
    if (!ws_changes_are_recorded(b.changes))
        bench_fail("the delta was not read");
    memcpy(b.params, b.old, b.st->file_bytes);
    struct bench_subject subjects[] = {
        {copy, NULL, 0}, {prepare, NULL, 0}, {check, NULL, 0}, {put, NULL, 0}, {undo, NULL, 0}};
    bench_in_turns(subjects, 5, 2 * REPEATS);
    put(NULL);
    if (memcmp(b.params + b.st->data_begin, b.new + b.st->data_begin, b.st->file_bytes - b.st->data_begin) !=
        0)
        bench_fail("a patch gives other bytes");
    uint64_t bytes;
    const uint64_t n = ws_patch_count(b.patch, &bytes);
    printf("%s %% of %zu bytes: %lu elements, plan of %lu bytes\n", percent, (size_t)b.st->file_bytes,
           (unsigned long)n, (unsigned long)bytes);
    const double whole = subjects[0].seconds;
    snprintf(name, sizeof(name), "patch-put-%s%%", percent);
    row(name, subjects[3].seconds, whole, BENCH_AT_MOST, most);
    snprintf(name, sizeof(name), "patch-undo-%s%%", percent);
    row(name, subjects[4].seconds, subjects[3].seconds, BENCH_AT_MOST, 1.2);
    snprintf(name, sizeof(name), "patch-check-%s%%", percent);
    row(name, subjects[2].seconds, whole, BENCH_AT_MOST, most);
    snprintf(name, sizeof(name), "patch-translate-%s%%", percent);
    row(name, subjects[1].seconds, whole, BENCH_NO_GOAL, 0);
    snprintf(name, sizeof(name), "patch-list-%s%%", percent);
    row(name, lists[1].seconds, lists[2].seconds, BENCH_NO_GOAL, 0);
    snprintf(name, sizeof(name), "patch-compare-%s%%", percent);
    row(name, lists[0].seconds, lists[2].seconds, BENCH_NO_GOAL, 0);
}

int main(void)
{
    void *header;
    lay_out(&header);
    const size_t bytes = b.st->file_bytes;
    if (ws_memory_available(NULL) < 5 * bytes)
        bench_skip("it needs %zu bytes of memory", 5 * bytes);
    snprintf(b.root, sizeof(b.root), "/dev/shm/wsync-bench-patch.XXXXXX");
    if (!mkdtemp(b.root))
        bench_skip("/dev/shm cannot be written");
    snprintf(b.base, sizeof(b.base), "%s/1", b.root);
    snprintf(b.target, sizeof(b.target), "%s/2", b.root);
    b.threads = ws_cpu_cores(THREADS);
    b.workers = ws_workers_new(b.threads, 0);
    b.old = make_file(b.base, bytes);
    b.new = make_file(b.target, bytes);
    b.params = malloc(bytes);
    b.copy = malloc(bytes);
    if (!b.workers || !b.params || !b.copy)
        bench_fail("no memory");
    memcpy(b.old, header, b.st->data_begin);
    for (size_t i = b.st->data_begin; i < bytes; i += 8)
        memcpy(b.old + i, &(uint64_t){any()}, 8);
    make_manifest(0, b.old, b.base);
    add_regions();
    measure(0.001, "0.1", 0.15);
    measure(0.015, "1.5", 0.8);
    measure(0.05, "5", 1.2);
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", b.root);
    return system(command) == 0 ? 0 : 1;
}
