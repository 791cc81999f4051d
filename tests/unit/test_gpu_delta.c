/* gpu_delta: whatever changed between two versions, and whatever happened in between, the file equals the one
 * made from the same parameters in host memory, the agent's delta equals the one that it would have made
 * itself, and only changed blocks left the GPU.
 *
 * timeout: 600, takes: 55 */
#include "backends/trainer/agent/agent.h"
#include "backends/trainer/wsync.h"
#include "tests/fixtures/gpu.h"
#include "tests/fixtures/private_folder.h"
#include "tests/fixtures/unwatched.h"
#include "transports/delta/patcher.h"
#include "transports/delta/stream.h"
#include "transports/transport.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_PARAMS 600
#define MAX_BLOCKS 64

struct param {
    wsync_param at_host, at_gpu;
    unsigned char *bytes; /* of the source, as on the GPU */
    size_t n, width;
    char name[24];
};
struct world {
    char dir[64], socket[128], url[140];
    struct ws_agent *agent;
    wsync_publisher *host, *gpu; /* of the models "h" and "g" */
    struct param params[MAX_PARAMS];
    size_t n;
    unsigned char *last; /* the file of the version before */
    uint64_t last_bytes;
};
static struct world w;
static uint64_t seed = 11;

UNWATCHED static uint64_t any(uint64_t below)
{
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (seed >> 24) % below;
}

#ifdef __SANITIZE_THREAD__
static void many_versions(void);
static void two_ranks(void);
#endif

/* The stand-in's default device is smaller than the kept and compared memory. */
static void run(void (*fn)(void), const char *told)
{
#ifdef __SANITIZE_THREAD__ /* fifteen times slower: only what runs on several threads is run */
    if (fn != many_versions && fn != two_ranks) {
        print_message("# too slow with the thread sanitizer; the other builds run it\n");
        skip();
    }
#endif
    const char *real = getenv("TEST_GPU");
    if (real && strcmp(real, "1") == 0)
        gpu_run(fn, told && strcmp(told, "memory=1G") != 0 ? told : NULL);
    else
        gpu_run(fn, told ? told : "memory=1G");
}

/* --- the world --- */

static const char *strategy; /* of the model on the GPU */

static wsync_publisher *open_model(const char *model, int gpu_delta)
{
    wsync_publisher *p;
    wsync_config c = {.struct_size = sizeof(c),
                      .agent = w.url,
                      .model = model,
                      .n_threads = 2,
                      .max_slots = 4,
                      .share = gpu_delta ? strategy : NULL,
                      .gpu_delta = gpu_delta};
    GPU_CHECK(wsync_publisher_open(&c, &p) == 0, "%s", wsync_error());
    return p;
}

static void start_agent(void)
{
    struct ws_error err = {0};
    struct ws_agent_options o = {.tcp.listen = "127.0.0.1:0",
                                 .tcp.access.insecure = true,
                                 .socket = w.socket,
                                 .socket_gid = (gid_t)-1,
                                 .n_threads = 2,
                                 .max_slots = 4,
                                 .delta_cache_bytes = 1UL << 30};
    GPU_CHECK(ws_agent_new(&w.agent, &o, &err) == 0, "%s", err.text);
}

UNWATCHED static void add(wsync_param p, size_t elements)
{
    static const size_t widths[] = {[WSYNC_F32] = 4, [WSYNC_U8] = 1, [WSYNC_BF16] = 2, [WSYNC_F16] = 2};
    struct param *q = &w.params[w.n];
    GPU_CHECK(w.n < MAX_PARAMS, "too many");
    q->width = widths[p.converts ? p.data_dtype : p.dtype];
    q->n = elements;
    q->bytes = malloc(elements * q->width + 1);
    GPU_CHECK(q->bytes, "no memory");
    for (size_t i = 0; i < elements * q->width; i++)
        q->bytes[i] = (unsigned char)any(251);
    snprintf(q->name, sizeof(q->name), "t.%05zu", w.n);
    p.name = q->name;
    p.data = q->bytes;
    q->at_host = q->at_gpu = p;
    q->at_gpu.data = gpu_put(0, q->bytes, elements * q->width);
    w.n++;
}

static void add_plain(wsync_dtype t, uint64_t rows, uint64_t cols)
{
    add((wsync_param){.dtype = t, .n_dims = 2, .shape = {rows, cols}}, rows * cols);
}

static void add_box(wsync_dtype t, int converts, wsync_dtype from, uint64_t rows, uint64_t cols, int64_t row,
                    int64_t col)
{
    add((wsync_param){.dtype = t,
                      .n_dims = 2,
                      .shape = {rows, cols},
                      .piece = {.kind = WSYNC_BOX, .size = {rows, cols}, .strides = {row, col}, .strided = 1},
                      .converts = converts,
                      .data_dtype = from},
        (size_t)((int64_t)(rows - 1) * row + (int64_t)(cols - 1) * col + 1));
}

static void add_all(unsigned n_short)
{
    add_plain(WSYNC_BF16, 2200, 2048);     /* a long one, */
    for (unsigned i = 0; i < n_short; i++) /* short ones of two widths, */
        add_plain(i % 9 ? WSYNC_BF16 : WSYNC_F32, 1 + any(9), 8 * (1 + any(200)));
    add_box(WSYNC_BF16, 1, WSYNC_F32, 800, 2000, 2000, 1);  /* converted, */
    add_box(WSYNC_F16, 1, WSYNC_F32, 700, 333, 400, 1);     /* so that some overflow, */
    add_box(WSYNC_BF16, 0, WSYNC_BF16, 900, 1200, 1, 900);  /* transposed, */
    add_box(WSYNC_BF16, 0, WSYNC_BF16, 300, 4096, 5000, 1); /* long rows apart, */
    add_plain(WSYNC_F32, 500, 1003);
    add_plain(WSYNC_U8, 1, 1777777); /* and unaligned ones */
    add_plain(WSYNC_BF16, 700, 1001);
}

static void start_with(unsigned n_short)
{
    GPU_CHECK(private_folder(w.dir, sizeof(w.dir), "gpu"), "no folder");
    snprintf(w.socket, sizeof(w.socket), "%s/sock", w.dir);
    snprintf(w.url, sizeof(w.url), "unix:%s", w.socket);
    start_agent();
    w.host = open_model("h", 0);
    w.gpu = open_model("g", 1);
    add_all(n_short);
}

static void start(void)
{
    start_with(300);
}

static void end(void)
{
    wsync_close(w.host);
    wsync_close(w.gpu);
    ws_agent_free(w.agent);
    (void)rmdir(w.dir);
    for (size_t i = 0; i < w.n; i++) {
        free(w.params[i].bytes);
        ws_cuda_device.release(0, (void *)(uintptr_t)w.params[i].at_gpu.data);
    }
    free(w.last);
    w.last = NULL;
    w.n = 0;
}

/* Tries again where the stand-in was configured to fail. */
static void bring(void *to, const void *from, size_t bytes)
{
    struct ws_error err = {0};
    static struct ws_device_queue *q;
    int rc = q ? 0 : ws_cuda_device.queue_new(0, &q, &err);
    for (unsigned tries = 0; rc == 0 && bytes > 0 && tries < 100; tries++)
        if (ws_cuda_device.copy(q, to, from, bytes, &err) == 0)
            break;
    if (rc == 0)
        rc = ws_cuda_device.finish(q, &err);
    GPU_CHECK(rc == 0, "%s", err.text);
}

/* Changes about one element of `each`, at random; 0: none. */
UNWATCHED static void change(double each)
{
    for (size_t i = 0; i < w.n && each > 0; i++) {
        struct param *p = &w.params[i];
        const size_t byte = p->width == 4 && p->at_host.converts ? 2 : 0; /* that the file has, too */
        for (size_t k = (size_t)any((uint64_t)(2 * each)); k < p->n;
             k += 1 + (size_t)(each > 1 ? any((uint64_t)(2 * each - 1)) : 0))
            p->bytes[k * p->width + byte] ^= (unsigned char)(1 + any(7));
        bring((void *)(uintptr_t)p->at_gpu.data, p->bytes, p->n * p->width);
    }
}

/* --- checks --- */

static int note_block(void *arg, size_t block, uint64_t hash)
{
    const struct ws_manifest_file *f = arg;
    GPU_CHECK(hash == f->hashes[block], "block %zu is not what the manifest says", block);
    return 0;
}

struct fetched {
    struct ws_manifest *manifest;
    const struct ws_manifest_file *file;
    unsigned char *bytes;
    struct ws_delta_record *records[MAX_BLOCKS]; /* of the delta from the version before */
    bool has_delta;
};

static int note_record(void *arg, struct ws_delta_record *r)
{
    struct fetched *f = arg;
    if (r->file != (size_t)(f->file - f->manifest->files)) {
        free(r);
        return 0;
    }
    GPU_CHECK(r->block < MAX_BLOCKS && !f->records[r->block], "a record of another block");
    f->records[r->block] = r;
    return 0;
}

static void fetch_delta(struct ws_source *s, struct ws_lane *lane, struct fetched *f, const char *model,
                        uint64_t base)
{
    struct ws_error err = {0};
    struct ws_delta_entry *offers = calloc(WS_MAX_DELTA_ENTRIES, sizeof(*offers));
    const struct ws_version_id id = ws_version_id_make(f->manifest->version, f->manifest->lineage);
    size_t n = 0;
    GPU_CHECK(ws_source_deltas(s, model, &id, NULL, offers, &n, &err) == 0, "%s", err.text);
    if (n > 0 && offers[0].link.base.version == base) {
        struct ws_delta_fetch q = {.model = model,
                                   .link = offers[0].link,
                                   .n_blocks = offers[0].n_blocks,
                                   .parts = 1,
                                   .sink.record = note_record,
                                   .sink.arg = f};
        int rc = ws_lane_delta(lane, &q, &err);
        GPU_CHECK(rc == 0 || rc == -ENODATA, "%s", err.text);
        f->has_delta = rc == 0;
    }
    free(offers);
}

/* The file as the agent serves it, with every block hashed again, and the delta that leads to it. */
static struct fetched fetch(const char *model, uint64_t version, uint64_t base)
{
    struct ws_error err = {0};
    struct fetched f = {0};
    struct ws_source *s;
    struct ws_lane *lane;
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", ws_agent_port(w.agent));
    GPU_CHECK(ws_source_open(url, NULL, &s, &err) == 0, "%s", err.text);
    GPU_CHECK(ws_source_manifest(s, model, version, NULL, NULL, &f.manifest, &err) == 0, "%s", err.text);
    f.file = ws_manifest_find(f.manifest, "model.safetensors");
    GPU_CHECK(f.file && f.file->n_blocks <= MAX_BLOCKS, "no such file");
    f.bytes = malloc(f.file->size_bytes + WS_DELTA_PAD_BYTES);
    struct ws_fetch q = {.manifest = f.manifest,
                         .file = (size_t)(f.file - f.manifest->files),
                         .n = f.file->n_blocks,
                         .dst = f.bytes,
                         .block = note_block,
                         .arg = (void *)(uintptr_t)f.file};
    GPU_CHECK(ws_lane_open(s, &lane, &err) == 0, "%s", err.text);
    GPU_CHECK(ws_lane_fetch(lane, &q, &err) == 0, "%s", err.text);
    if (base)
        fetch_delta(s, lane, &f, model, base);
    ws_lane_close(lane);
    ws_source_close(s);
    return f;
}

static void drop(struct fetched *f)
{
    for (size_t i = 0; i < MAX_BLOCKS; i++)
        free(f->records[i]);
    ws_manifest_free(f->manifest);
    free(f->bytes);
}

UNWATCHED static uint64_t word_at(const unsigned char *p)
{
    uint64_t word;
    memcpy(&word, p, sizeof(word));
    return word;
}

UNWATCHED static void check_equal(const unsigned char *a, const unsigned char *b, uint64_t n,
                                  const char *what)
{
    uint64_t i = 0;
    while (i + sizeof(uint64_t) <= n && word_at(a + i) == word_at(b + i)) /* the most of it, fast */
        i += sizeof(uint64_t);
    for (; i < n; i++)
        GPU_CHECK(a[i] == b[i], "%s: byte %llu of %llu differs", what, (unsigned long long)i,
                  (unsigned long long)n);
}

/* Both deltas are equal, and make the new file from the old one. */
static void compare_deltas(const struct fetched *h, const struct fetched *g, uint64_t version)
{
    struct ws_patcher *patcher = ws_patcher_new();
    GPU_CHECK(h->has_delta == g->has_delta, "version %llu: %d and %d", (unsigned long long)version,
              h->has_delta, g->has_delta);
    for (size_t i = 0; g->has_delta && i < g->file->n_blocks; i++) {
        const struct ws_delta_record *a = h->records[i], *b = g->records[i];
        const size_t len = ws_manifest_block_bytes(g->file, i);
        unsigned char *block = malloc(len + WS_DELTA_PAD_BYTES);
        uint64_t hash;
        GPU_CHECK(!a == !b, "version %llu: block %zu: %d and %d", (unsigned long long)version, i, !a, !b);
        if (a) {
            GPU_CHECK(a->kind == b->kind && a->bytes == b->bytes && a->n_changed == b->n_changed &&
                          a->hash == b->hash,
                      "version %llu: block %zu has another record", (unsigned long long)version, i);
            check_equal(a->data, b->data, a->bytes, "a record");
        }
        memcpy(block, w.last + i * WS_BLOCK_BYTES, len);
        GPU_CHECK(ws_patcher_block(patcher, block, NULL, len, &b, 1, &hash, NULL) == 0, "block %zu", i);
        GPU_CHECK(hash == g->file->hashes[i], "block %zu is another when it is patched", i);
        free(block);
    }
    ws_patcher_free(patcher);
}

/* The MB transferred, from the report. */
struct travelled {
    double changes, instead, whole;
};

static bool travelled(struct travelled *t)
{
    static const char *const words[] = {"gpu_delta: ", " MB of changes instead of ", " MB, "};
    double *const numbers[] = {&t->changes, &t->instead, &t->whole};
    const char *at = wsync_gpu_report(w.gpu);
    *t = (struct travelled){0};
    for (size_t i = 0; i < 3; i++) {
        at = strstr(at, words[i]);
        if (!at)
            return false;
        char *behind;
        at += strlen(words[i]);
        *numbers[i] = strtod(at, &behind);
        if (behind == at)
            return false;
        at = behind;
    }
    return true;
}

static int offload(wsync_publisher *p, bool at_gpu, uint64_t version)
{
    wsync_param *params = malloc((w.n + 1) * sizeof(*params));
    for (size_t i = 0; i < w.n; i++)
        params[i] = at_gpu ? w.params[i].at_gpu : w.params[i].at_host;
    int rc = wsync_offload(p, params, w.n, version);
    free(params);
    return rc;
}

static void publish(wsync_publisher *p, bool at_gpu, uint64_t version)
{
    int rc = offload(p, at_gpu, version);
    GPU_CHECK(rc == 0, "%s", wsync_error());
    GPU_CHECK(wsync_wait_published(p, version, 60000) == 0, "%s", wsync_error());
    rc = wsync_wait_delta(p, version, 60000);
    GPU_CHECK(rc == 0 || rc == -ENODATA, "%s", wsync_error());
}

/* Both models get the version, and are compared; base: the previous version, 0: there is none. */
static void both(uint64_t version, uint64_t base)
{
    publish(w.host, false, version);
    publish(w.gpu, true, version);
    GPU_CHECK(wsync_overflows(w.host, NULL) == wsync_overflows(w.gpu, NULL), "%llu and %llu overflows",
              (unsigned long long)wsync_overflows(w.host, NULL),
              (unsigned long long)wsync_overflows(w.gpu, NULL));
    struct fetched h = fetch("h", version, base), g = fetch("g", version, base);
    GPU_CHECK(h.file->size_bytes == g.file->size_bytes, "another size");
    check_equal(h.bytes, g.bytes, h.file->size_bytes, "the file");
    compare_deltas(&h, &g, version);
    free(w.last);
    w.last = g.bytes;
    g.bytes = NULL;
    drop(&h);
    drop(&g);
}

static const double shares[] = {0, 66, 66, 2.5, 66, 1, 66, 66, 66}; /* 0, 1.5, 40, 100 % */
#define N_VERSIONS 10

static void many_versions(void)
{
    struct travelled t;
    start();
    for (uint64_t v = 1; v <= N_VERSIONS; v++) {
        const double share = v > 1 ? shares[v - 2] : 1;
        if (v > 1)
            change(share);
        both(v, v - 1);
        fprintf(stderr, "# %llu: %s\n", (unsigned long long)v, wsync_gpu_report(w.gpu));
        GPU_CHECK(travelled(&t), "%s", wsync_gpu_report(w.gpu));
        const double all = t.instead + t.whole;
        GPU_CHECK(all > 15 && all < 60, "%s", wsync_gpu_report(w.gpu));
        if (v <= 2 || v == 5 || v == 7) /* filled, or more than a third changed */
            GPU_CHECK(t.whole > 0.8 * all, "%s", wsync_gpu_report(w.gpu));
        if (v == 4 || v >= 9) { /* the records reach the slot's version */
            GPU_CHECK(t.whole == 0, "%s", wsync_gpu_report(w.gpu));
            GPU_CHECK(t.changes < 0.1 * all, "%s", wsync_gpu_report(w.gpu));
        }
    }
    end();
}

static void test_many_versions(void **state)
{
    (void)state;
    run(many_versions, NULL);
}

/* Without kernels, memory or pinned memory everything is transferred, and the report says why. */
static void without(void)
{
    struct travelled t;
    start();
    for (uint64_t v = 1; v <= 3; v++) {
        both(v, v - 1);
        change(66);
        GPU_CHECK(strstr(wsync_gpu_report(w.gpu), "no gpu_delta: ") && !travelled(&t), "%s",
                  wsync_gpu_report(w.gpu));
    }
    fprintf(stderr, "# %s\n", wsync_gpu_report(w.gpu));
    end();
}

static void test_without_kernels(void **state)
{
    (void)state;
    run(without, "kernels=0");
}

static void test_without_room(void **state)
{
    (void)state;
    run(without, "memory=200M");
}

static void test_unpinned(void **state)
{
    (void)state;
    run(without, "register=0,memory=1G");
}

/* Slots with readers are skipped, so a slot may hold a version of any age. */
static void held(void)
{
    wsync_version_files *files[2] = {NULL};
    start();
    for (uint64_t v = 1; v <= 14; v++) {
        both(v, v - 1);
        change(66);
        wsync_close_version(files[v % 2]);
        files[v % 2] = NULL;
        if (any(2))
            GPU_CHECK(wsync_open_version(w.url, "g", v, &files[v % 2]) == 0, "%s", wsync_error());
    }
    wsync_close_version(files[0]);
    wsync_close_version(files[1]);
    end();
}

static void test_held_slots(void **state)
{
    (void)state;
    run(held, NULL);
}

/* Versions that were begun, written in part or completely, and abandoned. */
static void abandoned(void)
{
    uint64_t v = 1, base = 0;
    start();
    for (unsigned turn = 0; turn < 12; turn++) {
        if (turn % 3 == 2) {
            GPU_CHECK(wsync_begin(w.gpu, v) == 0, "%s", wsync_error());
            for (size_t i = 0; i < w.n && (turn % 2 || i < 5); i++)
                GPU_CHECK(wsync_put(w.gpu, &w.params[i].at_gpu) == 0, "%s", wsync_error());
            GPU_CHECK(wsync_abandon(w.gpu) == 0, "%s", wsync_error());
            v += turn % 2;
            change(66);
        }
        if (turn == 7) { /* one by one, and committed */
            GPU_CHECK(wsync_begin(w.gpu, v) == 0, "%s", wsync_error());
            for (size_t i = 0; i < w.n; i++)
                GPU_CHECK(wsync_put(w.gpu, &w.params[i].at_gpu) == 0, "%s", wsync_error());
            GPU_CHECK(wsync_commit(w.gpu) == 0, "%s", wsync_error());
            GPU_CHECK(strstr(wsync_gpu_report(w.gpu), "no gpu_delta: "), "%s", wsync_gpu_report(w.gpu));
            publish(w.host, false, v);
            base = v++;
            struct fetched g = fetch("g", base, 0);
            free(w.last);
            w.last = g.bytes;
            g.bytes = NULL;
            drop(&g);
            change(66);
        }
        both(v, base);
        base = v++;
        change(66);
    }
    end();
}

static void test_abandoned_versions(void **state)
{
    (void)state;
    run(abandoned, NULL);
}

/* Offloads that fail anywhere: the kept blocks are not trusted, and the next version is right. */
static void failing(void)
{
    unsigned failed = 0;
    uint64_t base = 0;
    start_with(0); /* so that most copies are an offload's */
    for (uint64_t v = 1; v <= 12; v++) {
        while (offload(w.gpu, true, v) < 0) {
            GPU_CHECK(++failed < 50, "%s", wsync_error());
            change(66);
        }
        GPU_CHECK(wsync_wait_published(w.gpu, v, 60000) == 0, "%s", wsync_error());
        (void)wsync_wait_delta(w.gpu, v, 60000);
        publish(w.host, false, v);
        struct fetched h = fetch("h", v, base), g = fetch("g", v, base);
        check_equal(h.bytes, g.bytes, h.file->size_bytes, "the file");
        compare_deltas(&h, &g, v);
        free(w.last);
        w.last = g.bytes;
        g.bytes = NULL;
        drop(&h);
        drop(&g);
        base = v;
        change(66);
    }
    fprintf(stderr, "# %u offloads failed\n", failed);
    GPU_CHECK(failed > 0, "none failed");
    end();
}

static void test_failing_copies(void **state)
{
    (void)state;
    run(failing, "memory=1G,fail=cuMemcpyAsync:70:1:1,fail=cuMemcpyAsync:103:1:1,fail=cuMemcpyAsync:151:1:1,"
                 "fail=cuMemcpyAsync:210:1:1,fail=cuMemcpyAsync:240:1:1,fail=cuMemcpyAsync:277:1:1");
}

static void test_failing_launches(void **state)
{
    (void)state;
    run(failing,
        "memory=1G,fail=cuLaunchKernel:23:1:1,fail=cuLaunchKernel:37:1:3,fail=cuLaunchKernel:52:1:1");
}

static void test_failing_events(void **state)
{
    (void)state;
    run(failing, "memory=1G,fail=cuEventRecord:60:1:1,fail=cuEventSynchronize:25:1:1");
}

/* A slot whose bytes are not the recorded ones: the hash shows it, and the block is transferred whole. */
static void damaged(void)
{
    struct travelled t;
    char path[64];
    uint64_t bytes = 0;
    unsigned n = 0;
    start();
    for (uint64_t v = 1; v <= 4; v++) {
        publish(w.gpu, true, v);
        change(66);
    }
    struct fetched before = fetch("g", 4, 0);
    bytes = before.file->size_bytes;
    drop(&before);
    for (int fd = 0; fd < 1024; fd++) { /* of this process, which include the agent's */
        struct stat st;
        if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != bytes)
            continue;
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        int own = open(path, O_RDWR | O_CLOEXEC);
        GPU_CHECK(own >= 0 && pwrite(own, "damaged", 7, 3 * WS_BLOCK_BYTES + 1000) == 7, "%s: %s", path,
                  strerror(errno));
        close(own);
        n++;
    }
    GPU_CHECK(n >= 2, "%u slots", n);
    publish(w.gpu, true, 5);
    GPU_CHECK(travelled(&t) && t.whole > 4 && t.whole < 5 && t.instead > 15, "%s", wsync_gpu_report(w.gpu));
    publish(w.host, false, 5);
    struct fetched h = fetch("h", 5, 0), g = fetch("g", 5, 0);
    check_equal(h.bytes, g.bytes, bytes, "the file");
    drop(&h);
    drop(&g);
    end();
}

static void test_a_damaged_slot(void **state)
{
    (void)state;
    run(damaged, NULL);
}

/* Two ranks. One commits a version that the other abandons, and it is made again from other bytes: the first
 * rank then keeps blocks of a version that was never published. */
struct rank {
    pthread_t thread;
    wsync_publisher *p;
    unsigned number;
    uint64_t version;
    bool gives_up;
    atomic_bool is_through, *other_is_through;
    int rc;
    char why[256];
};

static void *offload_half(void *arg)
{
    struct rank *r = arg;
    wsync_param *params = malloc((w.n + 1) * sizeof(*params));
    size_t n = 0;
    for (size_t i = r->number; i < w.n; i += 2) {
        params[n] = w.params[i].at_gpu;
        params[n++].file = r->number ? "b.safetensors" : "model.safetensors";
    }
    if (r->gives_up) {
        r->rc = wsync_begin(r->p, r->version);
        for (unsigned i = 0; i < 6000 && !atomic_load(r->other_is_through); i++)
            usleep(10000);
        if (r->rc == 0)
            r->rc = wsync_abandon(r->p);
    } else {
        r->rc = wsync_offload(r->p, params, n, r->version);
    }
    snprintf(r->why, sizeof(r->why), "%s", wsync_error());
    free(params);
    atomic_store(&r->is_through, true);
    return NULL;
}

static void offload_by_two(struct rank *r, uint64_t version, bool gives_up)
{
    for (unsigned i = 0; i < 2; i++) {
        r[i].version = version;
        r[i].gives_up = gives_up && i == 1;
        r[i].other_is_through = &r[1 - i].is_through;
        atomic_store(&r[i].is_through, false);
    }
    for (unsigned i = 0; i < 2; i++)
        GPU_CHECK(pthread_create(&r[i].thread, NULL, offload_half, &r[i]) == 0, "no thread");
    for (unsigned i = 0; i < 2; i++)
        pthread_join(r[i].thread, NULL);
    GPU_CHECK(r[0].rc == 0, "%s", r[0].why);
    GPU_CHECK(r[1].rc == 0, "%s", r[1].why);
}

static void two_ranks(void)
{
    struct rank r[2] = {{.number = 0}, {.number = 1}};
    start();
    for (unsigned i = 0; i < 2; i++) {
        wsync_config c = {.struct_size = sizeof(c),
                          .agent = w.url,
                          .model = "two",
                          .n_threads = 1,
                          .rank = i,
                          .world_size = 2,
                          .gpu_delta = 1};
        GPU_CHECK(wsync_publisher_open(&c, &r[i].p) == 0, "%s", wsync_error());
    }
    for (uint64_t v = 1; v <= 8; v++) {
        if (v == 4 || v == 6)
            offload_by_two(r, v, true);
        change(66);
        offload_by_two(r, v, false);
        GPU_CHECK(wsync_wait_published(r[0].p, v, 60000) == 0, "%s", wsync_error());
        int rc = wsync_wait_delta(r[0].p, v, 60000);
        GPU_CHECK(rc == 0 || rc == -ENODATA, "%s", wsync_error());
        /* The same with a rank that keeps nothing. */
        wsync_param *params = malloc((w.n + 1) * sizeof(*params));
        for (size_t i = 0; i < w.n; i++) {
            params[i] = w.params[i].at_host;
            params[i].file = i % 2 ? "b.safetensors" : "model.safetensors";
        }
        GPU_CHECK(wsync_offload(w.host, params, w.n, v) == 0, "%s", wsync_error());
        GPU_CHECK(wsync_wait_published(w.host, v, 60000) == 0, "%s", wsync_error());
        rc = wsync_wait_delta(w.host, v, 60000);
        GPU_CHECK(rc == 0 || rc == -ENODATA, "%s", wsync_error());
        free(params);
        struct fetched h = fetch("h", v, v - 1), g = fetch("two", v, v - 1);
        check_equal(h.bytes, g.bytes, h.file->size_bytes, "the file");
        compare_deltas(&h, &g, v);
        free(w.last);
        w.last = g.bytes;
        g.bytes = NULL;
        drop(&h);
        drop(&g);
    }
    wsync_close(r[0].p);
    wsync_close(r[1].p);
    end();
}

static void test_two_ranks(void **state)
{
    (void)state;
    run(two_ranks, NULL);
}

/* The agent restarts with new slots. The trainer restarts and has kept nothing. */
static void restarted(void)
{
    start();
    for (uint64_t v = 1; v <= 12; v++) {
        if (v == 5) {
            ws_agent_free(w.agent);
            start_agent();
        }
        if (v == 9) {
            wsync_close(w.gpu);
            w.gpu = open_model("g", 1);
        }
        both(v, v == 5 ? 0 : v - 1);
        change(66);
    }
    end();
}

static void test_restarts(void **state)
{
    (void)state;
    run(restarted, NULL);
}

/* Parameters change their layout, address and number. */
static void changing(void)
{
    start();
    for (uint64_t v = 1; v <= 3; v++) {
        both(v, v - 1);
        change(66);
    }
    for (uint64_t v = 4; v <= 5; v++) { /* one is on the host now, another one then */
        struct param *p = &w.params[v == 4 ? 0 : 250];
        const void *at_gpu = p->at_gpu.data;
        p->at_gpu.data = p->bytes;
        both(v, v - 1);
        p->at_gpu.data = at_gpu;
        change(66);
    }
    both(6, 5);
    const size_t n = w.n;
    w.n = 302; /* other parameters: another placement */
    both(7, 0);
    change(66);
    both(8, 7);
    w.n = n;
    end();
}

static void test_changing_parameters(void **state)
{
    (void)state;
    run(changing, NULL);
}

/* Parameters on two devices: each keeps its own blocks. */
static void two_devices(void)
{
    struct travelled t;
    start();
    for (size_t i = 303; i < w.n; i++) {
        struct param *p = &w.params[i];
        ws_cuda_device.release(0, (void *)(uintptr_t)p->at_gpu.data);
        p->at_gpu.data = gpu_put(1, p->bytes, p->n * p->width);
    }
    for (uint64_t v = 1; v <= 6; v++) {
        both(v, v - 1);
        for (size_t i = 0; i < w.n; i++) {
            struct param *p = &w.params[i];
            for (size_t k = (size_t)any(100); k < p->n; k += 1 + (size_t)any(130))
                p->bytes[k * p->width + (p->width == 4 && p->at_host.converts ? 2 : 0)] ^= 1;
            gpu_write(i < 303 ? 0 : 1, (void *)(uintptr_t)p->at_gpu.data, p->bytes, p->n * p->width);
        }
    }
    GPU_CHECK(travelled(&t) && t.whole == 0 && t.instead > 15 && t.changes < 4, "%s",
              wsync_gpu_report(w.gpu));
    fprintf(stderr, "# %s\n", wsync_gpu_report(w.gpu));
    for (size_t i = 303; i < w.n; i++) {
        ws_cuda_device.release(1, (void *)(uintptr_t)w.params[i].at_gpu.data);
        w.params[i].at_gpu.data = NULL;
    }
    end();
}

static void test_two_devices(void **state)
{
    (void)state;
    run(two_devices, "devices=2,memory=1G");
}

/* Sharing comes first: its second buffer takes the memory that gpu_delta used. */
static void makes_room(void)
{
    strategy = "packed_cuda_ipc";
    start();
    for (uint64_t v = 1; v <= 5; v++) {
        both(v, v - 1);
        GPU_CHECK((strstr(wsync_gpu_report(w.gpu), "no gpu_delta: ") != NULL) == (v > 2), "version %llu: %s",
                  (unsigned long long)v, wsync_gpu_report(w.gpu));
        change(66);
    }
    fprintf(stderr, "# %s\n", wsync_gpu_report(w.gpu));
    end();
}

static void stays(void)
{
    struct travelled t;
    strategy = "packed_cuda_ipc";
    start();
    for (uint64_t v = 1; v <= 5; v++) {
        both(v, v - 1);
        change(66);
    }
    GPU_CHECK(travelled(&t) && t.whole == 0, "%s", wsync_gpu_report(w.gpu));
    end();
}

static void test_shared(void **state)
{
    (void)state;
    run(stays, NULL);
    run(makes_room, "memory=296M");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_versions),
        cmocka_unit_test(test_without_kernels),
        cmocka_unit_test(test_without_room),
        cmocka_unit_test(test_unpinned),
        cmocka_unit_test(test_held_slots),
        cmocka_unit_test(test_abandoned_versions),
        cmocka_unit_test(test_failing_copies),
        cmocka_unit_test(test_failing_launches),
        cmocka_unit_test(test_failing_events),
        cmocka_unit_test(test_restarts),
        cmocka_unit_test(test_a_damaged_slot),
        cmocka_unit_test(test_two_ranks),
        cmocka_unit_test(test_changing_parameters),
        cmocka_unit_test(test_two_devices),
        cmocka_unit_test(test_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
