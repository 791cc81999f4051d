/* Publishers of one and of several ranks against a real agent in this process: bytes come out exactly, wrong
 * calls are refused with a sentence, a dying rank loses nothing, slots are given and refused as they should
 * be. */
#include "backends/trainer/agent/agent.h"
#include "backends/trainer/wsync.h"
#include "tests/fixtures/private_folder.h"
#include "tests/fixtures/served.h"
#include "transports/ipc/ipc.h"
#include "transports/memory/region_file.h"
#include "transports/protocol/api.h"
#include "transports/transport.h"
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ROWS 64UL
#define COLS 48UL
#define FLAT 100001UL

struct world {
    char dir[64], socket[128], url[140], http[64];
    struct ws_agent *agent;
};

static void start(struct world *w, uint64_t memory)
{
    struct ws_error err = {0};
    assert_true(private_folder(w->dir, sizeof(w->dir), "pub"));
    snprintf(w->socket, sizeof(w->socket), "%s/sock", w->dir);
    snprintf(w->url, sizeof(w->url), "unix:%s", w->socket);
    struct ws_agent_options o = {
        .tcp.listen = "127.0.0.1:0", .socket = w->socket, .socket_gid = (gid_t)-1, .memory_bytes = memory};
    if (ws_agent_new(&w->agent, &o, &err))
        fail_msg("%s", err.text);
    snprintf(w->http, sizeof(w->http), "http://127.0.0.1:%u", ws_agent_port(w->agent));
}

static void end(struct world *w)
{
    ws_agent_free(w->agent);
    (void)rmdir(w->dir);
}

static wsync_config config_of(const char *url, unsigned rank, unsigned world_size)
{
    return (wsync_config){.struct_size = sizeof(wsync_config),
                          .agent = url,
                          .model = "m",
                          .rank = rank,
                          .world_size = world_size,
                          .n_threads = 2,
                          .timeout_ms = 5000};
}

/* What element i of the two tensors is in a version. */
static uint16_t value(uint64_t version, uint64_t i)
{
    return (uint16_t)(i * 31 + version * 7 + (i >> 9));
}

struct model {
    uint16_t matrix[ROWS * COLS], flat[FLAT];
};

static void fill(struct model *m, uint64_t version)
{
    for (size_t i = 0; i < ROWS * COLS; i++)
        m->matrix[i] = value(version, i);
    for (size_t i = 0; i < FLAT; i++)
        m->flat[i] = value(version, i + 5);
}

static wsync_param matrix_param(const void *data)
{
    return (wsync_param){
        .name = "matrix", .dtype = WSYNC_BF16, .n_dims = 2, .shape = {ROWS, COLS}, .data = data};
}

static wsync_param flat_param(const void *data)
{
    return (wsync_param){.name = "flat", .dtype = WSYNC_F16, .n_dims = 1, .shape = {FLAT}, .data = data};
}

/* Pulls a version by a transport and compares both tensors. */
static void expect(const struct world *w, const char *url, uint64_t version)
{
    struct ws_safetensors *st;
    (void)w;
    unsigned char *bytes = served_tensors(url, "m", version, &st);
    struct model *want = malloc(sizeof(*want));
    fill(want, version);
    assert_memory_equal(bytes + ws_safetensors_find(st, "matrix")->begin, want->matrix, sizeof(want->matrix));
    assert_memory_equal(bytes + ws_safetensors_find(st, "flat")->begin, want->flat, sizeof(want->flat));
    free(want);
    free(bytes);
    ws_safetensors_free(st);
}

static wsync_publisher *opened(const wsync_config *c)
{
    wsync_publisher *p;
    if (wsync_open(c, &p))
        fail_msg("%s", wsync_error());
    return p;
}

static void offload(wsync_publisher *p, uint64_t version)
{
    struct model *m = malloc(sizeof(*m));
    fill(m, version);
    const wsync_param params[] = {matrix_param(m->matrix), flat_param(m->flat)};
    if (wsync_offload(p, params, 2, version))
        fail_msg("%s", wsync_error());
    memset(m, 0xEE, sizeof(*m)); /* the sources may be written again */
    if (wsync_wait_published(p, version, 10000))
        fail_msg("%s", wsync_error());
    free(m);
}

static void one_rank(void **state)
{
    struct world w;
    (void)state;
    start(&w, 0);
    wsync_config c = config_of(w.url, 0, 1);
    wsync_publisher *p = opened(&c);
    for (uint64_t v = 1; v <= 5; v++) {
        offload(p, v);
        expect(&w, w.http, v);
        expect(&w, w.url, v);
        if (v > 1)
            expect(&w, w.http, v - 1);
    }
    wsync_close(p);
    end(&w);
}

/* --- several ranks --- */

/* A rank is a process of its own, as a trainer's is: this program with arguments, since a mere fork of a
 * process with threads may find a lock of the allocator held for ever. */
static pid_t spawned(const char *const argv[])
{
    pid_t pid = -1;
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, (char *const *)argv, environ), 0);
    return pid;
}

static pid_t spawn_rank(const struct world *w, unsigned rank, uint64_t first, uint64_t last, uint64_t hang_at)
{
    char text[4][24];
    snprintf(text[0], sizeof(text[0]), "%u", rank);
    snprintf(text[1], sizeof(text[1]), "%" PRIu64, first);
    snprintf(text[2], sizeof(text[2]), "%" PRIu64, last);
    snprintf(text[3], sizeof(text[3]), "%" PRIu64, hang_at);
    return spawned(
        (const char *[]){"test_publisher", "rank", w->url, text[0], text[1], text[2], text[3], NULL});
}

/* Rank r of 4: rows of the matrix (uneven, the last one empty), a strided column box, a range of the flat
 * tensor. */
static int be_rank(const char *url, unsigned rank, uint64_t first, uint64_t last, uint64_t hang_at)
{
    static struct model m;
    static uint16_t columns[ROWS * 24];
    wsync_config c = config_of(url, rank, 4);
    wsync_publisher *p;
    /* ranks 0 and 1 hold the upper half, split by columns, as rows of a wider array; ranks 1.. hold rows
     * below */
    static const uint64_t begin[] = {0, 16, 40, 64}, rows[] = {16, 24, 24, 0};
    if (wsync_open(&c, &p))
        return 1;
    for (uint64_t v = first; v <= last; v++) {
        fill(&m, v);
        wsync_param params[4];
        size_t n = 0;
        params[n] = matrix_param(m.matrix + begin[rank] * COLS);
        params[n].piece =
            (wsync_piece){.kind = WSYNC_BOX, .offset = {begin[rank], 0}, .size = {rows[rank], COLS}};
        if (rank == 1) { /* the same rows as two column boxes, the first out of a wider array */
            for (size_t i = 0; i < 24; i++)
                memcpy(columns + i * 24, m.matrix + (begin[1] + i) * COLS, 20 * 2);
            params[n].data = columns;
            params[n].piece =
                (wsync_piece){.kind = WSYNC_BOX, .offset = {16, 0}, .size = {24, 20}, .strides = {24, 1}};
            n++;
            params[n] = matrix_param(m.matrix + 16 * COLS + 20);
            params[n].piece =
                (wsync_piece){.kind = WSYNC_BOX, .offset = {16, 20}, .size = {24, 28}, .strides = {COLS, 1}};
        }
        n++;
        uint64_t per = FLAT / 4 + 1, from = rank * per, to = from + per < FLAT ? from + per : FLAT;
        params[n] = flat_param(m.flat + from);
        params[n].piece = (wsync_piece){.kind = WSYNC_RANGE, .start = from, .count = to - from};
        n++;
        if (v == hang_at) {
            if (wsync_register(p, params, n) == 0 && wsync_begin(p, v) == 0)
                (void)wsync_put(p, &params[0]);
            pause();
        }
        if (wsync_offload(p, params, n, v) || wsync_wait_published(p, v, 20000)) {
            print_message("# rank %u version %d: %s\n", rank, (int)v, wsync_error());
            wsync_close(p);
            return 2;
        }
    }
    wsync_close(p);
    return 0;
}

static void four_ranks(void **state)
{
    struct world w;
    pid_t pids[4];
    (void)state;
    start(&w, 0);
    for (unsigned r = 0; r < 4; r++)
        pids[r] = spawn_rank(&w, r, 1, 3, 0);
    for (unsigned r = 0; r < 4; r++) {
        int status;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        assert_int_equal(status, 0);
    }
    expect(&w, w.http, 3);
    expect(&w, w.http, 2);
    end(&w);
}

static void a_rank_dies(void **state)
{
    struct world w;
    pid_t pids[4];
    (void)state;
    start(&w, 0);
    wsync_config c = config_of(w.url, 0, 1);
    wsync_publisher *p = opened(&c);
    offload(p, 1);
    wsync_close(p);
    for (unsigned r = 0; r < 4; r++) /* rank 2 begins version 2, writes a piece and stays */
        pids[r] = spawn_rank(&w, r, 2, 2, r == 2 ? 2 : 0);
    usleep(700000);
    kill(pids[2], SIGKILL);
    for (unsigned r = 0; r < 4; r++) { /* the others are told that the version was abandoned */
        int status;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        assert_true(r == 2 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 2);
    }
    expect(&w, w.http, 1);
    p = opened(&c);
    offload(p, 9);
    expect(&w, w.http, 9);
    wsync_close(p);
    end(&w);
}

/* Begins version 100, puts one of two tensors and is killed. */
static int be_torn(const char *url, int which)
{
    static struct model m;
    wsync_config c = config_of(url, 0, 1);
    wsync_publisher *p;
    if (wsync_open(&c, &p))
        return 1;
    const wsync_param params[] = {matrix_param(m.matrix), flat_param(m.flat)};
    memset(&m, 0x55, sizeof(m)); /* never to be seen */
    if (wsync_register(p, params, 2) || wsync_begin(p, 100) || wsync_put(p, &params[which]))
        return 2;
    raise(SIGKILL);
    return 3;
}

static void a_rank_dies_in_the_middle(void **state)
{
    struct world w;
    (void)state;
    start(&w, 0);
    wsync_config c = config_of(w.url, 0, 1);
    wsync_publisher *p = opened(&c);
    offload(p, 1);
    for (int round = 0; round < 10; round++) {
        wsync_close(p);
        pid_t pid = spawned((const char *[]){"test_publisher", "torn", w.url, round % 2 ? "1" : "0", NULL});
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        expect(&w, w.http, (uint64_t)round + 1);
        p = opened(&c); /* at once: the dead one is waited for, whether the agent knows of its end or not */
        offload(p, (uint64_t)round + 2);
        expect(&w, w.http, (uint64_t)round + 2);
    }
    wsync_close(p);
    end(&w);
}

/* --- what is refused --- */

static void wrong_calls(void **state)
{
    struct world w;
    static struct model m;
    wsync_publisher *p, *q;
    (void)state;
    start(&w, 0);
    wsync_config c = config_of(w.url, 0, 1);
    p = opened(&c);
    fill(&m, 1);
    const wsync_param good[] = {matrix_param(m.matrix), flat_param(m.flat)};
    wsync_param bad[2] = {good[0], good[1]};
    bad[0].piece = (wsync_piece){.kind = WSYNC_BOX, .offset = {1, 0}, .size = {ROWS, COLS}};
    assert_int_equal(wsync_register(p, bad, 2), -EINVAL); /* out of range */
    assert_non_null(strstr(wsync_error(), "matrix"));
    bad[0].piece = (wsync_piece){.kind = WSYNC_BOX, .offset = {1, 0}, .size = {ROWS - 1, COLS}};
    assert_int_equal(wsync_register(p, bad, 2), -ENODATA); /* a row that nobody holds */
    wsync_param overlap[3] = {good[0], good[0], good[1]};
    overlap[0].piece = (wsync_piece){.kind = WSYNC_BOX, .offset = {0, 0}, .size = {33, COLS}};
    overlap[1].piece = (wsync_piece){.kind = WSYNC_BOX, .offset = {32, 0}, .size = {32, COLS}};
    assert_int_equal(wsync_register(p, overlap, 3), -EINVAL);
    assert_non_null(strstr(wsync_error(), "overlap"));
    bad[0] = good[0];
    bad[0].dtype = (wsync_dtype)99;
    assert_int_equal(wsync_register(p, bad, 2), -EINVAL);
    assert_true(wsync_begin(p, 1) < 0); /* nothing is registered */
    assert_int_equal(wsync_register(p, good, 2), 0);
    assert_true(wsync_put(p, &good[0]) < 0);
    assert_int_equal(wsync_begin(p, 1), 0);
    bad[0] = good[0];
    bad[0].dtype = WSYNC_F16;
    assert_int_equal(wsync_put(p, &bad[0]), -EINVAL);
    bad[0] = good[0];
    bad[0].name = "other";
    assert_int_equal(wsync_put(p, &bad[0]), -EINVAL);
    assert_int_equal(wsync_put(p, &good[0]), 0);
    assert_int_equal(wsync_put(p, &good[0]), -EEXIST);
    assert_int_equal(wsync_commit(p), -ENODATA);
    assert_non_null(strstr(wsync_error(), "flat"));
    assert_int_equal(wsync_put(p, &good[1]), 0);
    assert_int_equal(wsync_commit(p), 0);
    assert_int_equal(wsync_wait_published(p, 1, 10000), 0);
    expect(&w, w.http, 1);
    assert_int_equal(wsync_offload(p, good, 2, 1), -EEXIST); /* not higher */
    assert_non_null(strstr(wsync_error(), "new-run"));
    assert_int_equal(wsync_wait_loaded(p, 1, NULL, 50), -ETIMEDOUT);
    char run[64], pid[32];
    snprintf(run, sizeof(run), "%s", wsync_run(p));
    snprintf(pid, sizeof(pid), "process %d", (int)getpid());
    c.new_run = 1;
    c.timeout_ms = 300;
    q = opened(&c);
    assert_int_equal(wsync_offload(q, good, 2, 1), -EBUSY); /* nobody displaces a publisher that is there */
    assert_non_null(strstr(wsync_error(), pid));
    wsync_close(p);
    assert_int_equal(wsync_offload(q, good, 2, 1), 0); /* a new lineage */
    assert_int_equal(wsync_wait_published(q, 1, 10000), 0);
    assert_string_not_equal(run, wsync_run(q));
    assert_int_equal(wsync_wait_published(q, 99, 10000), -ECANCELED); /* nobody is about to publish it */
    wsync_close(q);
    p = NULL;
    c.model = "no/slash";
    assert_int_equal(wsync_open(&c, &q), -EINVAL);
    c = config_of(w.url, 0, 1);
    c.agent = "unix:/nowhere.sock";
    assert_true(wsync_open(&c, &q) < 0);
    wsync_close(p);
    end(&w);
}

static void memory_is_refused(void **state)
{
    struct world w;
    static struct model m;
    (void)state;
    start(&w, 1000);
    wsync_config c = config_of(w.url, 0, 1);
    wsync_publisher *p = opened(&c);
    const wsync_param params[] = {matrix_param(m.matrix), flat_param(m.flat)};
    assert_int_equal(wsync_offload(p, params, 2, 1), -ENOMEM);
    assert_non_null(strstr(wsync_error(), "1000"));
    wsync_close(p);
    end(&w);
}

/* The refusal names whose memory it is. */
static void memory_has_names(void **state)
{
    struct world w;
    struct ws_error err = {0};
    int reader, fds[4]; /* of 0.1.0, which cannot do with copies */
    size_t n = 0;
    static struct model m;
    char pid[64];
    (void)state;
    start(&w, 3 * sizeof(m) / 2);
    wsync_config c = config_of(w.url, 0, 1);
    wsync_publisher *p = opened(&c), *other;
    c.model = "n";
    other = opened(&c);
    offload(p, 7);
    assert_int_equal(ws_ipc_connect(w.url, &reader, &err), 0);
    if (ws_ipc_call(reader, "GET", "/v1/m/7/map", NULL, NULL, 0, 60000, NULL, fds, 4, &n, &err) < 0)
        fail_msg("%s", err.text);
    const wsync_param params[] = {matrix_param(m.matrix), flat_param(m.flat)};
    assert_int_equal(wsync_offload(other, params, 2, 1), -ENOMEM);
    assert_non_null(strstr(wsync_error(), "; m has 1 of "));
    snprintf(pid, sizeof(pid), ", version 7 held by ipc pid %d of wsync 0.1.0)", (int)getpid());
    assert_non_null(strstr(wsync_error(), pid));
    while (n > 0)
        close(fds[--n]);
    close(reader);
    wsync_close(other);
    wsync_close(p);
    end(&w);
}

/* A rank's request as it is on the wire; what it answers is not looked at. */
static int raw(int sock, const char *verb, json_t *body, struct ws_error *err)
{
    char path[64];
    int fds[4];
    size_t n = 0;
    json_t *reply = NULL;
    snprintf(path, sizeof(path), "/v1/local/%s", verb);
    int rc = ws_ipc_call(sock, "POST", path, body, NULL, 0, 60000, &reply, fds, 4, &n, err);
    while (n > 0)
        close(fds[--n]);
    json_decref(reply);
    json_decref(body);
    return rc;
}

/* The version is abandoned, with the reason, and the same connection writes the next one. */
static void a_refused_commit_ends_its_version(void **state)
{
    struct world w;
    struct ws_error err = {0};
    int sock;
    (void)state;
    start(&w, 0);
    assert_int_equal(ws_ipc_connect(w.url, &sock, &err), 0);
    json_t *params = json_pack("[{s:s,s:s,s:[i]}]", "name", "a", "dtype", "U8", "shape", 64);
    assert_int_equal(
        raw(sock, "register",
            json_pack("{s:i,s:s,s:s,s:o}", "api", WS_LOCAL_API, "model", "m", "run", "r", "params", params),
            &err),
        0);
    for (int version = 1; version <= 2; version++) {
        assert_int_equal(raw(sock, "begin", json_pack("{s:i,s:s}", "version", version, "run", "r"), &err), 0);
        assert_int_equal(raw(sock, "commit",
                             json_pack("{s:[[i,i,s]]}", "hashes", 0, version == 1 ? 0 : 99,
                                       version == 1 ? "no" : "0123456789abcdef"),
                             &err),
                         -EINVAL);
        assert_non_null(strstr(err.text, "was abandoned: the commit of rank 0 was refused: a block's hash"));
    }
    assert_int_equal(raw(sock, "commit", json_pack("{s:[]}", "hashes"), &err), -EINVAL);
    assert_non_null(strstr(err.text, "nothing is begun"));
    if (raw(sock, "begin", json_pack("{s:i,s:s}", "version", 3, "run", "r"), &err) < 0 ||
        raw(sock, "commit", json_pack("{s:[]}", "hashes"), &err) < 0 ||
        raw(sock, "wait", json_pack("{s:i,s:s,s:s}", "version", 3, "run", "r", "what", "published"), &err) <
            0)
        fail_msg("%s", err.text);
    close(sock);
    end(&w);
}

/* A rank of 0.1.0 keeps the memory of its slots, and cannot be told to let go: readers that can copy do so,
 * so that it is used again, and those of 0.1.0 get descriptors still. */
static void old_ranks_keep_slots(void **state)
{
    struct world w;
    struct ws_error err = {0};
    struct ws_source *s;
    struct ws_region *regions[4];
    struct ws_manifest *m;
    struct stat memory[6];
    int sock, old, fds[4];
    size_t n;
    (void)state;
    start(&w, 0);
    assert_int_equal(ws_ipc_connect(w.url, &sock, &err), 0);
    json_t *params = json_pack("[{s:s,s:s,s:[i]}]", "name", "a", "dtype", "U8", "shape", 64);
    assert_int_equal(
        raw(sock, "register",
            json_pack("{s:i,s:s,s:s,s:o}", "api", WS_LOCAL_API, "model", "m", "run", "r", "params", params),
            &err),
        0);
    assert_int_equal(ws_source_open(w.url, NULL, &s, &err), 0);
    for (int v = 1; v <= 5; v++) {
        json_t *begin = json_pack("{s:i,s:s,s:b}", "version", v, "run", "r", "keep", 1), *reply;
        n = 0;
        if (ws_ipc_call(sock, "POST", "/v1/local/begin", begin, NULL, 0, 60000, &reply, fds, 4, &n, &err))
            fail_msg("%s", err.text);
        json_decref(begin);
        json_decref(reply);
        assert_int_equal(n, 1);
        assert_int_equal(fstat(fds[0], &memory[v]), 0);
        close(fds[0]);
        if (raw(sock, "commit", json_pack("{s:[]}", "hashes"), &err) < 0 ||
            raw(sock, "wait", json_pack("{s:i,s:s,s:s}", "version", v, "run", "r", "what", "published"),
                &err) < 0 ||
            ws_source_manifest(s, "m", (uint64_t)v, NULL, NULL, &m, &err) < 0)
            fail_msg("%s", err.text);
        assert_int_equal(ws_source_map(s, m, regions, &err), -EOPNOTSUPP);
        ws_manifest_free(m);
    }
    for (int v = 3; v <= 5; v++)
        assert_int_equal(memory[v].st_ino, memory[v - 2].st_ino);
    assert_int_equal(ws_ipc_connect(w.url, &old, &err), 0);
    n = 0;
    if (ws_ipc_call(old, "GET", "/v1/m/5/map?run=r", NULL, NULL, 0, 60000, NULL, fds, 4, &n, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(n, 1);
    close(fds[0]);
    close(old);
    ws_source_close(s);
    close(sock);
    end(&w);
}

/* What it keeps of slots that are laid out anew does not stop it, as it did not with an agent of 0.1.0, nor
 * another model. */
static void old_ranks_change_layouts(void **state)
{
    enum { SLOT = 4 << 20 };
    struct world w;
    struct ws_error err = {0};
    struct ws_region *kept[7] = {0};
    int sock, fds[4];
    (void)state;
    start(&w, 5 * SLOT / 2);
    assert_int_equal(ws_ipc_connect(w.url, &sock, &err), 0);
    for (int v = 1; v <= 6; v++) {
        json_t *params =
            json_pack("[{s:s,s:s,s:[i]}]", "name", v < 4 ? "a" : "b", "dtype", "U8", "shape", SLOT - 65536);
        json_t *begin = json_pack("{s:i,s:s,s:b}", "version", v, "run", "r", "keep", 1), *reply;
        struct stat st;
        size_t n = 0;
        if (raw(sock, "register",
                json_pack("{s:i,s:s,s:s,s:o}", "api", WS_LOCAL_API, "model", "m", "run", "r", "params",
                          params),
                &err) ||
            ws_ipc_call(sock, "POST", "/v1/local/begin", begin, NULL, 0, 60000, &reply, fds, 4, &n, &err))
            fail_msg("version %d: %s", v, err.text);
        json_decref(begin);
        json_decref(reply);
        assert_int_equal(n, 1);
        assert_int_equal(fstat(fds[0], &st), 0);
        if (ws_region_import(&kept[v], fds[0], (uint64_t)st.st_size, true, &err) ||
            raw(sock, "commit", json_pack("{s:[]}", "hashes"), &err) ||
            raw(sock, "wait", json_pack("{s:i,s:s,s:s}", "version", v, "run", "r", "what", "published"),
                &err))
            fail_msg("version %d: %s", v, err.text);
    }
    wsync_config c = config_of(w.url, 0, 1);
    c.model = "n";
    wsync_publisher *other = opened(&c);
    offload(other, 1);
    wsync_close(other);
    for (int v = 1; v <= 6; v++)
        ws_region_free(kept[v]);
    close(sock);
    end(&w);
}

struct onlooker {
    const char *url;
    atomic_bool stop;
};

static void *look(void *arg)
{
    struct onlooker *o = arg;
    struct ws_error err = {0};
    int sock = -1;
    if (ws_ipc_connect(o->url, &sock, &err) < 0)
        return NULL;
    while (!atomic_load(&o->stop))
        if (ws_ipc_call(sock, "GET", "/v1/status", NULL, NULL, 0, 60000, NULL, NULL, 0, NULL, &err) < 0)
            break;
    close(sock);
    return NULL;
}

/* It is looked at the slots while one after the other is laid out anew. */
static void slots_are_looked_at(void **state)
{
    struct world w;
    struct ws_error err = {0};
    struct onlooker o = {0};
    pthread_t thread;
    int sock;
    (void)state;
    start(&w, 0);
    o.url = w.url;
    assert_int_equal(pthread_create(&thread, NULL, look, &o), 0);
    assert_int_equal(ws_ipc_connect(w.url, &sock, &err), 0);
    for (int v = 1; v <= 8; v++) {
        json_t *params = json_pack("[{s:s,s:s,s:[i]}]", "name", v % 3 ? "a" : "b", "dtype", "U8", "shape",
                                   (v % 3 + 1) << 20);
        if (raw(sock, "register",
                json_pack("{s:i,s:s,s:s,s:o}", "api", WS_LOCAL_API, "model", "m", "run", "r", "params",
                          params),
                &err) ||
            raw(sock, "begin", json_pack("{s:i,s:s}", "version", v, "run", "r"), &err) ||
            raw(sock, "commit", json_pack("{s:[]}", "hashes"), &err) ||
            raw(sock, "wait", json_pack("{s:i,s:s,s:s}", "version", v, "run", "r", "what", "published"),
                &err))
            fail_msg("version %d: %s", v, err.text);
    }
    atomic_store(&o.stop, true);
    pthread_join(thread, NULL);
    close(sock);
    end(&w);
}

/* What a rank that keeps nothing mapped never had is nobody's to wait for, and no reason that is told. */
static void ranks_that_keep_nothing(void **state)
{
    enum { SLOT = 4 << 20 };
    struct world w;
    struct ws_error err = {0};
    struct ws_region *kept = NULL;
    int sock[2], fds[4], rc = 0;
    (void)state;
    start(&w, 5 * SLOT / 2);
    for (int r = 1; r >= 0; r--) { /* the other one's registration is answered once this one is there, too */
        json_t *params = json_pack("[{s:s,s:s,s:[i]}]", "name", r ? "b" : "a", "dtype", "U8", "shape",
                                   r ? 64 : SLOT - 65536);
        json_t *body = json_pack("{s:i,s:s,s:s,s:i,s:i,s:o}", "api", WS_LOCAL_API, "model", "m", "run", "r",
                                 "rank", r, "world_size", 2, "params", params);
        if (ws_ipc_connect(w.url, &sock[r], &err) ||
            ws_ipc_ask(sock[r], "POST", "/v1/local/register", body, NULL, 0, &err))
            fail_msg("%s", err.text);
        json_decref(body);
    }
    for (int r = 0; r < 2; r++)
        if (ws_ipc_answer(sock[r], 60000, NULL, NULL, 0, NULL, &err))
            fail_msg("%s", err.text);
    for (int v = 1; v <= 3; v++) {
        json_t *begin = json_pack("{s:i,s:s,s:b,s:[],s:i}", "version", v, "run", "r", "keep", 1, "kept",
                                  "timeout_ms", v == 3 ? 500 : 60000);
        struct stat st;
        size_t n = 0;
        rc = ws_ipc_call(sock[0], "POST", "/v1/local/begin", begin, NULL, 0, 60000, NULL, fds, 4, &n, &err);
        json_decref(begin);
        if (v == 3)
            break;
        if (rc < 0 ||
            raw(sock[1], "begin", json_pack("{s:i,s:s,s:[]}", "version", v, "run", "r", "kept"), &err))
            fail_msg("version %d: %s", v, err.text);
        assert_int_equal(n, 1);
        assert_int_equal(fstat(fds[0], &st), 0);
        if (v == 1)
            assert_int_equal(ws_region_import(&kept, fds[0], (uint64_t)st.st_size, true, &err), 0);
        else
            close(fds[0]);
        for (int r = 0; r < 2; r++)
            if (raw(sock[r], "commit", json_pack("{s:[]}", "hashes"), &err))
                fail_msg("version %d: %s", v, err.text);
        if (raw(sock[0], "wait", json_pack("{s:i,s:s,s:s}", "version", v, "run", "r", "what", "published"),
                &err))
            fail_msg("version %d: %s", v, err.text);
        if (v == 2) { /* somebody reads the first one: its slot will be another one */
            size_t got = 0;
            int reader;
            if (ws_ipc_connect(w.url, &reader, &err) || ws_ipc_call(reader, "GET", "/v1/m/1/map?run=r", NULL,
                                                                    NULL, 0, 60000, NULL, fds, 4, &got, &err))
                fail_msg("%s", err.text);
            assert_int_equal(got, 1);
            close(fds[0]);
            close(reader);
        }
    }
    if (ws_region_file_used() > 0) { /* else it is not seen that rank 0 still has version 1's memory */
        assert_int_equal(rc, -ENOMEM);
        assert_non_null(strstr(err.text, "still held by readers"));
        assert_null(strstr(err.text, "or by rank"));
    }
    ws_region_free(kept);
    for (int r = 0; r < 2; r++)
        close(sock[r]);
    end(&w);
}

static void expect_bytes(const unsigned char *file, uint64_t bytes, uint64_t version)
{
    struct ws_error err = {0};
    struct ws_safetensors *st;
    struct model *want = malloc(sizeof(*want));
    fill(want, version);
    assert_int_equal(ws_safetensors_parse(file, bytes, bytes, &st, &err), 0);
    assert_memory_equal(file + ws_safetensors_find(st, "flat")->begin, want->flat, sizeof(want->flat));
    ws_safetensors_free(st);
    free(want);
}

/* Readers that keep what they got cannot be cut. Two versions are lent to those who can copy, and the trainer
 * goes on; one of 0.1.0 gets what it asks for, and is named where it stops the trainer. */
static void readers_hold_slots(void **state)
{
    struct world w;
    struct ws_error err = {0};
    struct ws_source *s;
    struct ws_region *regions[6][4] = {{0}};
    struct ws_manifest *m[6];
    static struct model content;
    char name[64];
    int old, fds[4];
    size_t n = 0;
    (void)state;
    start(&w, 0);
    wsync_config c = config_of(w.url, 0, 1);
    c.timeout_ms = 300;
    wsync_publisher *p = opened(&c);
    assert_int_equal(ws_source_open(w.url, NULL, &s, &err), 0);
    for (uint64_t v = 1; v < 6; v++) {
        offload(p, v);
        assert_int_equal(ws_source_manifest(s, "m", v, NULL, NULL, &m[v], &err), 0);
        assert_int_equal(ws_source_map(s, m[v], regions[v], &err), v <= 2 ? 0 : -EOPNOTSUPP);
        if (v > 2)
            assert_non_null(strstr(err.text, "of 4 slots (agent --slots) readers may keep 2"));
    }
    wsync_version_files *copy; /* by who does not care */
    int fd;
    uint64_t bytes;
    if (wsync_open_version(w.url, "m", 5, &copy) || !wsync_version_file(copy, 0, &fd, &bytes))
        fail_msg("%s", wsync_error());
    void *data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(data != MAP_FAILED);
    assert_int_equal(ws_ipc_connect(w.url, &old, &err), 0);
    if (ws_ipc_call(old, "GET", "/v1/m/5/map", NULL, NULL, 0, 60000, NULL, fds, 4, &n, &err) < 0)
        fail_msg("%s", err.text);
    offload(p, 6);
    const wsync_param params[] = {matrix_param(content.matrix), flat_param(content.flat)};
    assert_int_equal(wsync_offload(p, params, 2, 7), -EBUSY);
    snprintf(name, sizeof(name), "version 5 (served) is held by ipc pid %d of wsync 0.1.0", (int)getpid());
    assert_non_null(strstr(wsync_error(), name));
    assert_non_null(strstr(wsync_error(), "'drop N'"));
    while (n > 0)
        close(fds[--n]);
    close(old);
    offload(p, 7);
    expect(&w, w.http, 7);
    expect_bytes(data, bytes, 5);
    assert_int_equal(munmap(data, bytes), 0);
    wsync_close_version(copy);
    for (uint64_t v = 1; v < 6; v++) { /* and what is held is what it was */
        if (v <= 2)
            expect_bytes(ws_region_data(regions[v][0]), m[v]->files[0].size_bytes, v);
        ws_region_free(regions[v][0]);
        ws_manifest_free(m[v]);
    }
    ws_source_close(s);
    wsync_close(p);
    end(&w);
}

static void loaded_is_waited_for(void **state)
{
    struct world w;
    struct ws_error err = {0};
    struct ws_source *s;
    char path[WS_API_PATH_BYTES];
    json_t *reply,
        *body = json_pack("{s:s,s:s,s:i,s:b}", "host", "h", "mount", "/wsync", "engines", 1, "ok", 1);
    (void)state;
    start(&w, 0);
    wsync_config c = config_of(w.url, 0, 1);
    wsync_publisher *p = opened(&c);
    offload(p, 1);
    assert_int_equal(ws_source_open(w.http, NULL, &s, &err), 0);
    ws_api_version_path(path, "loaded", "m", 1, NULL, wsync_run(p));
    assert_int_equal(ws_source_call(s, "POST", path, body, &reply, &err), 0);
    assert_int_equal(wsync_wait_loaded(p, 1, NULL, 5000), 0);
    json_decref(reply);
    json_decref(body);
    ws_source_close(s);
    wsync_close(p);
    end(&w);
}

int main(int argc, char **argv)
{
    if (argc == 7 && strcmp(argv[1], "rank") == 0)
        return be_rank(argv[2], (unsigned)strtoul(argv[3], NULL, 10), strtoull(argv[4], NULL, 10),
                       strtoull(argv[5], NULL, 10), strtoull(argv[6], NULL, 10));
    if (argc == 4 && strcmp(argv[1], "torn") == 0)
        return be_torn(argv[2], (int)strtol(argv[3], NULL, 10));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(four_ranks),
        cmocka_unit_test(a_rank_dies),
        cmocka_unit_test(a_rank_dies_in_the_middle),
        cmocka_unit_test(wrong_calls),
        cmocka_unit_test(memory_is_refused),
        cmocka_unit_test(memory_has_names),
        cmocka_unit_test(readers_hold_slots),
        cmocka_unit_test(loaded_is_waited_for),
        cmocka_unit_test(a_refused_commit_ends_its_version),
        cmocka_unit_test(old_ranks_keep_slots),
        cmocka_unit_test(old_ranks_change_layouts),
        cmocka_unit_test(slots_are_looked_at),
        cmocka_unit_test(ranks_that_keep_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
