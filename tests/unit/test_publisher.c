/* Publishers of one and of several ranks with a real agent in this process: bytes arrive exactly, wrong calls
 * are refused with a message, and the death of a rank loses nothing. */
#include "backends/trainer/wsync.h"
#include "tests/fixtures/publishing.h"
#include "transports/protocol/api.h"
#include "transports/transport.h"
#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void one_rank(void **state)
{
    struct publishing w;
    (void)state;
    publishing_start(&w, 0);
    wsync_config c = publishing_config(w.url, 0, 1);
    wsync_publisher *p = publishing_open(&c);
    for (uint64_t v = 1; v <= 5; v++) {
        publishing_offload(p, v);
        publishing_expect(w.http, v);
        publishing_expect(w.url, v);
        if (v > 1)
            publishing_expect(w.http, v - 1);
    }
    wsync_close(p);
    publishing_end(&w);
}

/* wsync_open, the name of 0.1, opens the same publisher. */
static void the_old_name_works(void **state)
{
    struct publishing w;
    wsync_publisher *p;
    (void)state;
    publishing_start(&w, 0);
    wsync_config c = publishing_config(w.url, 0, 1);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    assert_int_equal(wsync_open(&c, &p), 0);
#pragma GCC diagnostic pop
    publishing_offload(p, 1);
    publishing_expect(w.http, 1);
    wsync_close(p);
    publishing_end(&w);
}

/* --- several ranks --- */

/* A rank is a separate process, as a trainer's is: this program with arguments, since a mere fork of a
 * process with threads may find a lock of the allocator held forever. */
static pid_t spawned(const char *const argv[])
{
    pid_t pid = -1;
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, (char *const *)argv, environ), 0);
    return pid;
}

static pid_t spawn_rank(const struct publishing *w, unsigned rank, uint64_t first, uint64_t last,
                        uint64_t hang_at)
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
    static struct publishing_model m;
    static uint16_t columns[PUBLISHING_ROWS * 24];
    wsync_config c = publishing_config(url, rank, 4);
    wsync_publisher *p;
    /* ranks 0 and 1 hold the upper half, split by columns, as rows of a wider array; ranks 1.. hold rows
     * below */
    static const uint64_t begin[] = {0, 16, 40, 64}, rows[] = {16, 24, 24, 0};
    if (wsync_publisher_open(&c, &p))
        return 1;
    for (uint64_t v = first; v <= last; v++) {
        publishing_fill(&m, v);
        wsync_param params[4];
        size_t n = 0;
        params[n] = publishing_matrix(m.matrix + begin[rank] * PUBLISHING_COLS);
        params[n].piece = (wsync_piece){
            .kind = WSYNC_BOX, .offset = {begin[rank], 0}, .size = {rows[rank], PUBLISHING_COLS}};
        if (rank == 1) { /* the same rows as two column boxes, the first out of a wider array */
            for (size_t i = 0; i < 24; i++)
                memcpy(columns + i * 24, m.matrix + (begin[1] + i) * PUBLISHING_COLS, 20 * 2);
            params[n].data = columns;
            params[n].piece =
                (wsync_piece){.kind = WSYNC_BOX, .offset = {16, 0}, .size = {24, 20}, .strides = {24, 1}};
            n++;
            params[n] = publishing_matrix(m.matrix + 16 * PUBLISHING_COLS + 20);
            params[n].piece = (wsync_piece){
                .kind = WSYNC_BOX, .offset = {16, 20}, .size = {24, 28}, .strides = {PUBLISHING_COLS, 1}};
        }
        n++;
        uint64_t per = PUBLISHING_FLAT / 4 + 1, from = rank * per,
                 to = from + per < PUBLISHING_FLAT ? from + per : PUBLISHING_FLAT;
        params[n] = publishing_flat(m.flat + from);
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
    struct publishing w;
    pid_t pids[4];
    (void)state;
    publishing_start(&w, 0);
    for (unsigned r = 0; r < 4; r++)
        pids[r] = spawn_rank(&w, r, 1, 3, 0);
    for (unsigned r = 0; r < 4; r++) {
        int status;
        assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
        assert_int_equal(status, 0);
    }
    publishing_expect(w.http, 3);
    publishing_expect(w.http, 2);
    publishing_end(&w);
}

static void a_rank_dies(void **state)
{
    struct publishing w;
    pid_t pids[4];
    (void)state;
    publishing_start(&w, 0);
    wsync_config c = publishing_config(w.url, 0, 1);
    wsync_publisher *p = publishing_open(&c);
    publishing_offload(p, 1);
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
    publishing_expect(w.http, 1);
    p = publishing_open(&c);
    publishing_offload(p, 9);
    publishing_expect(w.http, 9);
    wsync_close(p);
    publishing_end(&w);
}

/* Begins version 100, puts one of two tensors and is killed. */
static int be_torn(const char *url, int which)
{
    static struct publishing_model m;
    wsync_config c = publishing_config(url, 0, 1);
    wsync_publisher *p;
    if (wsync_publisher_open(&c, &p))
        return 1;
    const wsync_param params[] = {publishing_matrix(m.matrix), publishing_flat(m.flat)};
    memset(&m, 0x55, sizeof(m)); /* never to be visible */
    if (wsync_register(p, params, 2) || wsync_begin(p, 100) || wsync_put(p, &params[which]))
        return 2;
    raise(SIGKILL);
    return 3;
}

static void a_rank_dies_in_the_middle(void **state)
{
    struct publishing w;
    (void)state;
    publishing_start(&w, 0);
    wsync_config c = publishing_config(w.url, 0, 1);
    wsync_publisher *p = publishing_open(&c);
    publishing_offload(p, 1);
    for (int round = 0; round < 10; round++) {
        wsync_close(p);
        pid_t pid = spawned((const char *[]){"test_publisher", "torn", w.url, round % 2 ? "1" : "0", NULL});
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        publishing_expect(w.http, (uint64_t)round + 1);
        p = publishing_open(
            &c); /* at once: the dead rank is not waited for, whether or not the agent knows of its end */
        publishing_offload(p, (uint64_t)round + 2);
        publishing_expect(w.http, (uint64_t)round + 2);
    }
    wsync_close(p);
    publishing_end(&w);
}

/* --- what is refused --- */

static void wrong_calls(void **state)
{
    struct publishing w;
    static struct publishing_model m;
    wsync_publisher *p, *q;
    (void)state;
    publishing_start(&w, 0);
    wsync_config c = publishing_config(w.url, 0, 1);
    p = publishing_open(&c);
    publishing_fill(&m, 1);
    const wsync_param good[] = {publishing_matrix(m.matrix), publishing_flat(m.flat)};
    wsync_param bad[2] = {good[0], good[1]};
    bad[0].piece =
        (wsync_piece){.kind = WSYNC_BOX, .offset = {1, 0}, .size = {PUBLISHING_ROWS, PUBLISHING_COLS}};
    assert_int_equal(wsync_register(p, bad, 2), -EINVAL); /* out of range */
    assert_non_null(strstr(wsync_error(), "matrix"));
    bad[0].piece =
        (wsync_piece){.kind = WSYNC_BOX, .offset = {1, 0}, .size = {PUBLISHING_ROWS - 1, PUBLISHING_COLS}};
    assert_int_equal(wsync_register(p, bad, 2), -ENODATA); /* no rank holds one row */
    wsync_param overlap[3] = {good[0], good[0], good[1]};
    overlap[0].piece = (wsync_piece){.kind = WSYNC_BOX, .offset = {0, 0}, .size = {33, PUBLISHING_COLS}};
    overlap[1].piece = (wsync_piece){.kind = WSYNC_BOX, .offset = {32, 0}, .size = {32, PUBLISHING_COLS}};
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
    publishing_expect(w.http, 1);
    assert_int_equal(wsync_offload(p, good, 2, 1), -EEXIST); /* not higher */
    assert_non_null(strstr(wsync_error(), "new-run"));
    assert_int_equal(wsync_wait_loaded(p, 1, NULL, 50), -ETIMEDOUT);
    char run[64], pid[32];
    snprintf(run, sizeof(run), "%s", wsync_run(p));
    snprintf(pid, sizeof(pid), "process %d", (int)getpid());
    c.new_run = 1;
    c.timeout_ms = 300;
    q = publishing_open(&c);
    assert_int_equal(wsync_offload(q, good, 2, 1), -EBUSY); /* a live publisher keeps its place */
    assert_non_null(strstr(wsync_error(), pid));
    wsync_close(p);
    assert_int_equal(wsync_offload(q, good, 2, 1), 0); /* a new lineage */
    assert_int_equal(wsync_wait_published(q, 1, 10000), 0);
    assert_string_not_equal(run, wsync_run(q));
    assert_int_equal(wsync_wait_published(q, 99, 10000), -ECANCELED); /* no rank is about to publish it */
    wsync_close(q);
    p = NULL;
    c.model = "no/slash";
    assert_int_equal(wsync_publisher_open(&c, &q), -EINVAL);
    c = publishing_config(w.url, 0, 1);
    c.agent = "unix:/nowhere.sock";
    assert_true(wsync_publisher_open(&c, &q) < 0);
    wsync_close(p);
    publishing_end(&w);
}

static void loaded_is_waited_for(void **state)
{
    struct publishing w;
    struct ws_error err = {0};
    struct ws_source *s;
    char path[WS_API_PATH_BYTES];
    json_t *reply,
        *body = json_pack("{s:s,s:s,s:i,s:b}", "host", "h", "mount", "/wsync", "engines", 1, "ok", 1);
    (void)state;
    publishing_start(&w, 0);
    wsync_config c = publishing_config(w.url, 0, 1);
    wsync_publisher *p = publishing_open(&c);
    publishing_offload(p, 1);
    assert_int_equal(ws_source_open(w.http, NULL, &s, &err), 0);
    ws_api_version_path(path, "loaded", "m", 1, NULL, wsync_run(p));
    assert_int_equal(ws_source_call(s, "POST", path, body, &reply, &err), 0);
    assert_int_equal(wsync_wait_loaded(p, 1, NULL, 5000), 0);
    json_decref(reply);
    json_decref(body);
    ws_source_close(s);
    wsync_close(p);
    publishing_end(&w);
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
        cmocka_unit_test(the_old_name_works),
        cmocka_unit_test(four_ranks),
        cmocka_unit_test(a_rank_dies),
        cmocka_unit_test(a_rank_dies_in_the_middle),
        cmocka_unit_test(wrong_calls),
        cmocka_unit_test(loaded_is_waited_for),
    };
    return cmocka_run_group_tests_name("publisher", tests, NULL, NULL);
}
