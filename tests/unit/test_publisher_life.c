/* State that survives a publisher at a running agent: slots with another base checkpoint's tensors, a lineage
 * whose first version was abandoned, ranks that died. */
#include "backends/trainer/agent/agent.h"
#include "backends/trainer/agent/core/leases.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/agent/core/sessions.h"
#include "backends/trainer/wsync.h"
#include "tests/fixtures/private_folder.h"
#include "tests/fixtures/served.h"
#include "transports/format/safetensors.h"
#include "transports/ipc/client.h"
#include "transports/protocol/api.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define N        1000UL
#define LONG_MS  60000
#define SHORT_MS 300 /* limit of a wait that cannot succeed */

struct world {
    char dir[64], socket[128], url[140], http[64];
    struct ws_agent *agent;
};

static void start(struct world *w)
{
    struct ws_error err = {0};
    assert_true(private_folder(w->dir, sizeof(w->dir), "life"));
    snprintf(w->socket, sizeof(w->socket), "%s/sock", w->dir);
    snprintf(w->url, sizeof(w->url), "unix:%s", w->socket);
    struct ws_agent_options o = {.tcp.listen = "127.0.0.1:0",
                                 .tcp.access.insecure = true,
                                 .socket = w->socket,
                                 .socket_gid = (gid_t)-1,
                                 .n_threads = 2};
    if (ws_agent_new(&w->agent, &o, &err))
        fail_msg("%s", err.text);
    snprintf(w->http, sizeof(w->http), "http://127.0.0.1:%u", ws_agent_port(w->agent));
}

static void end(struct world *w)
{
    ws_agent_free(w->agent);
    (void)rmdir(w->dir);
}

static wsync_config config_of(const struct world *w, unsigned rank, unsigned world_size)
{
    return (wsync_config){.struct_size = sizeof(wsync_config),
                          .agent = w->url,
                          .model = "m",
                          .rank = rank,
                          .world_size = world_size,
                          .n_threads = 2,
                          .timeout_ms = LONG_MS};
}

static wsync_publisher *opened(const wsync_config *c)
{
    wsync_publisher *p;
    if (wsync_publisher_open(c, &p))
        fail_msg("%s", wsync_error());
    return p;
}

static unsigned n_registered(const struct world *w)
{
    pthread_mutex_lock(&w->agent->lock);
    const struct ws_agent_model *m = ws_agent_model_find(w->agent, "m");
    const unsigned n = m ? m->n_registered : 0;
    pthread_mutex_unlock(&w->agent->lock);
    return n;
}

/* A closed connection is noticed a moment later: a rank that registers before that joins its old mates, which
 * then find that it has begun anew. */
static void wait_for_ranks(const struct world *w, unsigned n)
{
    for (unsigned ms = 0; n_registered(w) != n; ms++) {
        assert_true(ms < LONG_MS);
        usleep(1000);
    }
}

static void wait_until_gone(const struct world *w)
{
    wait_for_ranks(w, 0);
}

/* A rank of two; it holds one half. */
struct half {
    wsync_publisher *p;
    unsigned rank;
    uint64_t version;
    int rc;
    char why[512];
    uint16_t values[N];
    pthread_t thread;
};

static wsync_param half_param(struct half *h)
{
    for (size_t i = 0; i < N; i++)
        h->values[i] = (uint16_t)(h->version * 7 + i);
    return (wsync_param){.name = "trained",
                         .dtype = WSYNC_BF16,
                         .n_dims = 1,
                         .shape = {2 * N},
                         .data = h->values,
                         .piece = {.kind = WSYNC_RANGE, .start = h->rank * N, .count = N}};
}

static void *register_half(void *arg)
{
    struct half *h = arg;
    const wsync_param param = half_param(h);
    h->rc = wsync_register(h->p, &param, 1);
    snprintf(h->why, sizeof(h->why), "%s", h->rc ? wsync_error() : "");
    return NULL;
}

static void *offload_half(void *arg)
{
    struct half *h = arg;
    const wsync_param param = half_param(h);
    h->rc = wsync_offload(h->p, &param, 1, h->version);
    snprintf(h->why, sizeof(h->why), "%s", h->rc ? wsync_error() : "");
    return NULL;
}

static void both(struct half h[2], void *(*what)(void *), uint64_t version)
{
    for (unsigned r = 0; r < 2; r++) {
        h[r].version = version;
        assert_int_equal(pthread_create(&h[r].thread, NULL, what, &h[r]), 0);
    }
    for (unsigned r = 0; r < 2; r++)
        pthread_join(h[r].thread, NULL);
    for (unsigned r = 0; r < 2; r++)
        if (h[r].rc)
            fail_msg("rank %u: %s", r, h[r].why);
}

/* --- another base --- */

static void write_base(const char *path, unsigned char value)
{
    struct ws_tensor spec = {.name = "frozen", .dtype = WS_U8, .n_dims = 2, .shape = {2, N / 2}};
    struct ws_safetensors *st;
    void *header;
    unsigned char bytes[N];
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(ws_safetensors_layout(&spec, 1, NULL, &st, &header, NULL), 0);
    memset(bytes, value, sizeof(bytes));
    assert_int_equal(fwrite(header, st->data_begin, 1, f), 1);
    assert_int_equal(fwrite(bytes, sizeof(bytes), 1, f), 1);
    assert_int_equal(fclose(f), 0);
    free(header);
    ws_safetensors_free(st);
}

static void expect_frozen(const struct world *w, uint64_t version, unsigned char value)
{
    struct ws_safetensors *st;
    unsigned char *bytes = served_tensors(w->http, "m", version, &st);
    const struct ws_tensor *t = ws_safetensors_find(st, "frozen");
    assert_non_null(t);
    for (uint64_t i = t->begin; i < t->end; i++)
        assert_int_equal(bytes[i], value);
    free(bytes);
    ws_safetensors_free(st);
}

/* A trainer restarts four times beside the same agent: each slot meets each base. */
static void another_base(void **state)
{
    struct world w;
    char base[160];
    uint16_t values[N] = {0};
    const wsync_param param = {
        .name = "trained", .dtype = WSYNC_BF16, .n_dims = 1, .shape = {N}, .data = values};
    (void)state;
    start(&w);
    snprintf(base, sizeof(base), "%s/model.safetensors", w.dir);
    uint64_t version = 1;
    for (unsigned char life = 1; life <= 4; life++) {
        wsync_config c = config_of(&w, 0, 1);
        (void)unlink(base);
        write_base(base, life);
        c.base = w.dir;
        c.new_run = life == 3; /* in a new lineage as in the old one */
        version = c.new_run ? 1 : version;
        wsync_publisher *p = opened(&c);
        for (int i = 0; i < 3; i++, version++) {
            values[0]++;
            if (wsync_offload(p, &param, 1, version) || wsync_wait_published(p, version, LONG_MS))
                fail_msg("%s", wsync_error());
            expect_frozen(&w, version, life);
        }
        wsync_close(p);
    }
    (void)unlink(base);
    end(&w);
}

/* --- a lineage whose first version no reader got --- */

static void abandoned_first_version(void **state)
{
    struct world w;
    static struct half h[2];
    (void)state;
    start(&w);
    for (unsigned r = 0; r < 2; r++) {
        wsync_config c = config_of(&w, r, 2);
        c.run = "one";
        h[r] = (struct half){.p = opened(&c), .rank = r};
    }
    both(h, offload_half, 1);
    assert_int_equal(wsync_wait_published(h[0].p, 1, LONG_MS), 0);
    for (unsigned r = 0; r < 2; r++)
        wsync_close(h[r].p);
    wait_until_gone(&w);
    for (unsigned r = 0; r < 2; r++) {
        wsync_config c = config_of(&w, r, 2);
        c.run = "two";
        c.new_run = 1;
        h[r].p = opened(&c);
    }
    both(h, register_half, 1);
    const wsync_param param = half_param(&h[0]);
    assert_int_equal(wsync_begin(h[1].p, 1), 0); /* and abandons it, after rank 0 has committed */
    assert_int_equal(wsync_offload(h[0].p, &param, 1, 1), 0);
    assert_int_equal(wsync_abandon(h[1].p), 0);
    assert_int_equal(wsync_wait_published(h[0].p, 1, LONG_MS), -ECANCELED);
    both(h, register_half, 1); /* rank 0 believes that the lineage is open, rank 1 does not */
    both(h, offload_half, 1);
    if (wsync_wait_published(h[0].p, 1, LONG_MS))
        fail_msg("%s", wsync_error());
    assert_string_equal(wsync_run(h[0].p), "two");
    both(h, register_half, 2); /* both do */
    both(h, offload_half, 2);
    for (unsigned r = 0; r < 2; r++)
        wsync_close(h[r].p);
    end(&w);
}

/* --- a rank that restarts while others write --- */

static void offloaded(struct half *h, uint64_t version)
{
    h->version = version;
    offload_half(h);
    if (h->rc)
        fail_msg("rank %u: %s", h->rank, h->why);
}

static void come_back(const struct world *w, struct half *h, const wsync_config *c)
{
    wsync_close(h->p);
    for (unsigned ms = 0; n_registered(w) > 1; ms++) {
        assert_true(ms < LONG_MS);
        usleep(1000);
    }
    h->p = opened(c);
}

/* What it had committed does not become half of the version that it begins: that waits for the other rank. */
static void a_rank_that_has_committed_comes_back(void **state)
{
    struct world w;
    static struct half h[2];
    wsync_config c[2];
    (void)state;
    start(&w);
    for (unsigned r = 0; r < 2; r++) {
        c[r] = config_of(&w, r, 2);
        h[r] = (struct half){.p = opened(&c[r]), .rank = r};
    }
    both(h, offload_half, 1);
    offloaded(&h[0], 2);
    come_back(&w, &h[0], &c[0]);
    offloaded(&h[0], 2);
    assert_int_equal(wsync_wait_published(h[0].p, 2, SHORT_MS), -ETIMEDOUT);
    offloaded(&h[1], 2);
    if (wsync_wait_published(h[0].p, 2, LONG_MS))
        fail_msg("%s", wsync_error());
    for (unsigned r = 0; r < 2; r++)
        wsync_close(h[r].p);
    end(&w);
}

/* The slot that the others have begun to fill has the frozen tensors of the previous base, and the rank that
 * would write them finds it used. */
static void a_rank_comes_back_with_another_base(void **state)
{
    struct world w;
    static struct half h[2];
    wsync_config c[2];
    char base[160];
    (void)state;
    start(&w);
    snprintf(base, sizeof(base), "%s/model.safetensors", w.dir);
    write_base(base, 1);
    for (unsigned r = 0; r < 2; r++) {
        c[r] = config_of(&w, r, 2);
        c[r].base = w.dir;
        h[r] = (struct half){.p = opened(&c[r]), .rank = r};
    }
    uint64_t version = 1;
    for (; version <= 3; version++) { /* no slot is fresh any more */
        both(h, offload_half, version);
        if (wsync_wait_published(h[0].p, version, LONG_MS))
            fail_msg("%s", wsync_error());
    }
    offloaded(&h[1], version);
    assert_int_equal(unlink(base), 0);
    write_base(base, 2);
    come_back(&w, &h[0], &c[0]);
    offloaded(&h[0], version);
    assert_int_equal(wsync_wait_published(h[0].p, version, SHORT_MS), -ETIMEDOUT);
    offloaded(&h[1], version);
    if (wsync_wait_published(h[0].p, version, LONG_MS))
        fail_msg("%s", wsync_error());
    expect_frozen(&w, version, 2);
    for (unsigned r = 0; r < 2; r++)
        wsync_close(h[r].p);
    (void)unlink(base);
    end(&w);
}

/* --- a rank that dies before it begins, while its child lives and keeps the connection open --- */

static int be_dying_rank(const char *url)
{
    static struct half h = {.rank = 1, .version = 1};
    wsync_config c = {.struct_size = sizeof(c), .agent = url, .model = "m", .rank = 1, .world_size = 2};
    char byte;
    if (wsync_publisher_open(&c, &h.p))
        return 1;
    (void)register_half(&h);
    if (h.rc)
        return 2;
    pid_t child = fork();
    if (child == 0) {
        while (read(STDIN_FILENO, &byte, 1) > 0)
            ;
        _exit(0); /* the test has ended */
    }
    (void)pause();
    return 3;
}

static void a_rank_dies_before_it_begins(void **state)
{
    struct world w;
    static struct half h;
    int ends[2], status;
    posix_spawn_file_actions_t actions;
    pid_t pid = -1;
    (void)state;
    start(&w);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO), 0);
    char *argv[] = {"test_publisher_life", "die", w.url, NULL};
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    wsync_config c = config_of(&w, 0, 2);
    h = (struct half){.p = opened(&c), .version = 1};
    const wsync_param param = half_param(&h);
    if (wsync_offload(h.p, &param, 1, 1)) /* commits; rank 1 does not begin */
        fail_msg("%s", wsync_error());
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(wsync_wait_loaded(h.p, 1, NULL, LONG_MS), -ECANCELED);
    assert_non_null(strstr(wsync_error(), "rank 1 (process"));
    assert_int_equal(wsync_wait_published(h.p, 1, LONG_MS), -ECANCELED);
    wsync_close(h.p);
    close(ends[0]);
    close(ends[1]);
    end(&w);
}

/* --- a rank whose connection closes while its call waits for the other rank --- */

static void ask(int sock, const char *verb, json_t *body)
{
    struct ws_error err = {0};
    char path[64];
    snprintf(path, sizeof(path), "/v1/local/%s", verb);
    if (ws_ipc_request_send(sock, "POST", path, body, NULL, 0, &err))
        fail_msg("%s", err.text);
    json_decref(body);
}

static json_t *registration(void)
{
    return json_pack("{s:i,s:s,s:i,s:i,s:i,s:[{s:s,s:s,s:[i],s:s,s:i,s:i}]}", "api", WS_LOCAL_API, "model",
                     "m", "rank", 0, "world_size", 2, "timeout_ms", 10 * LONG_MS, "params", "name", "trained",
                     "dtype", "BF16", "shape", (int)(2 * N), "kind", "range", "start", 0, "count", (int)N);
}

static int connected(const struct world *w)
{
    struct ws_error err = {0};
    int sock;
    if (ws_ipc_connect(w->socket, &sock, &err))
        fail_msg("%s", err.text);
    return sock;
}

static void a_rank_ends_while_it_waits(void **state)
{
    struct world w;
    struct ws_error err = {0};
    static struct half h[2];
    wsync_config c[2];
    json_t *reply;
    (void)state;
    start(&w);
    int sock = connected(&w); /* during its registration; it is not replaced */
    ask(sock, "register", registration());
    wait_for_ranks(&w, 1);
    close(sock);
    wait_until_gone(&w);
    sock = connected(&w); /* the same, and it is replaced at once */
    ask(sock, "register", registration());
    wait_for_ranks(&w, 1);
    close(sock);
    for (unsigned r = 0; r < 2; r++) {
        c[r] = config_of(&w, r, 2);
        h[r] = (struct half){.p = opened(&c[r]), .rank = r};
    }
    both(h, register_half, 0);
    wsync_close(h[0].p);
    wait_for_ranks(&w, 1);
    sock = connected(&w); /* during its first version, which the other rank no longer begins */
    ask(sock, "register", registration());
    if (ws_ipc_reply_recv(sock, LONG_MS, &reply, NULL, 0, NULL, &err))
        fail_msg("%s", err.text);
    wsync_close(h[1].p);
    wait_for_ranks(&w, 1);
    ask(sock, "begin",
        json_pack("{s:i,s:O,s:i}", "version", 1, "run", json_object_get(reply, "run"), "timeout_ms",
                  10 * LONG_MS));
    json_decref(reply);
    close(sock);
    wait_until_gone(&w);
    end(&w);
}

/* With a single rank. */
static void *offload_whole(void *arg)
{
    struct half *h = arg;
    wsync_param param = half_param(h);
    param.shape[0] = N;
    param.piece = (wsync_piece){.kind = WSYNC_WHOLE};
    h->rc = wsync_offload(h->p, &param, 1, h->version);
    snprintf(h->why, sizeof(h->why), "%s", h->rc ? wsync_error() : "");
    return NULL;
}

static void offload_all(struct half *h, uint64_t version)
{
    h->version = version;
    (void)offload_whole(h);
    if (h->rc)
        fail_msg("version %u: %s", (unsigned)version, h->why);
}

/* Its slot is being prepared when the last rank's successor finds that it has ended. */
static void the_last_writer_has_ended(void **state)
{
    struct world w;
    struct ws_error err = {0};
    struct ws_lease *holds[16];
    unsigned n_slots;
    static struct half h;
    bool is_preparing = false;
    (void)state;
    start(&w);
    const wsync_config c = config_of(&w, 0, 1);
    h = (struct half){.p = opened(&c)};
    n_slots = w.agent->options.max_slots;
    assert_in_range(n_slots, 2, 16);
    for (uint64_t version = 1; version <= n_slots; version++) {
        offload_all(&h, version);
        if (wsync_wait_published(h.p, version, LONG_MS))
            fail_msg("%s", wsync_error());
        if (version < n_slots && ws_agent_lease_acquire(w.agent, "m", version, NULL, "a reader", NULL, NULL,
                                                        &holds[version - 1], &err))
            fail_msg("%s", err.text);
    }
    h.version = n_slots + 5; /* all slots have readers */
    assert_int_equal(pthread_create(&h.thread, NULL, offload_whole, &h), 0);
    for (unsigned ms = 0; !is_preparing; ms++) {
        assert_true(ms < LONG_MS);
        usleep(1000);
        pthread_mutex_lock(&w.agent->lock);
        struct ws_agent_model *m = ws_agent_model_find(w.agent, "m");
        is_preparing = m->preparing;
        if (is_preparing)
            ws_session_end(w.agent, m->ranks[0], "ended");
        pthread_mutex_unlock(&w.agent->lock);
    }
    for (unsigned i = 0; i + 1 < n_slots; i++)
        ws_agent_lease_release(w.agent, holds[i]);
    pthread_join(h.thread, NULL);
    assert_true(h.rc < 0);
    wsync_close(h.p);
    h.p = opened(&c); /* from an older step */
    offload_all(&h, n_slots + 1);
    wsync_close(h.p);
    end(&w);
}

/* --- a registration with values of other types --- */

static void other_kinds_are_refused(void **state)
{
    static const struct {
        const char *key, *value, *wanted;
    } tops[] =
        {
            {"api", "\"1\"", "a whole number from 0"},
            {"release", "7", "a string"},
            {"model", "7", "a string"},
            {"run", "7", "a string"},
            {"new_run", "1", "true or false"},
            {"rank", "\"0\"", "a whole number from 0"},
            {"rank", "-1", "a whole number from 0"},
            {"rank", "0.5", "a whole number from 0"},
            {"world_size", "\"2\"", "a whole number from"},
            {"world_size", "2.0", "a whole number from"},
            {"shard_bytes", "1e9", "a whole number from 0"},
            {"max_slots", "\"3\"", "a whole number from 0"},
            {"timeout_ms", "-1", "a whole number from 0"},
            {"timeout_ms", "true", "a whole number from 0"},
            {"audit", "\"1\"", "a whole number from -1"},
            {"audit", "0.5", "a whole number from -1"},
            {"audit_warns", "\"yes\"", "true or false"},
            {"params", "{}", "an array"},
            {"base", "\"x\"", "an array"},
            {"base_id", "7", "a string of 32 hex digits"},
            {"sidecars", "1", "an array"},
            {"sidecars", "[{\"name\":\"a\",\"bytes\":\"1\"}]", "a whole number from 0"},
            {"sidecars", "[{\"name\":\"a\",\"bytes\":1,\"hash\":\"ff\"}]", "a whole number"},
            {"sidecars", "[{\"name\":1,\"bytes\":1}]", "a string"},
        },
      params[] = {
          {"name", "7", "a string"},
          {"dtype", "7", "a string"},
          {"dtype", "\"BF17\"", "dtypes"},
          {"shape", "2000", "an array"},
          {"shape", "[\"2000\"]", "an array of 1 whole numbers"},
          {"shape", "[-2000]", "an array of 1 whole numbers"},
          {"file", "7", "a string"},
          {"kind", "7", "a string"},
          {"kind", "\"part\"", "\"whole\""},
          {"start", "-1", "a whole number from 0"},
          {"count", "\"1\"", "a whole number from 0"},
      };
    enum { TOPS = sizeof(tops) / sizeof(tops[0]), PARAMS = sizeof(params) / sizeof(params[0]) };
    struct world w;
    (void)state;
    start(&w);
    const int sock = connected(&w);
    for (size_t i = 0; i < TOPS + PARAMS; i++) {
        const char *key = i < TOPS ? tops[i].key : params[i - TOPS].key,
                   *value = i < TOPS ? tops[i].value : params[i - TOPS].value,
                   *wanted = i < TOPS ? tops[i].wanted : params[i - TOPS].wanted;
        struct ws_error err = {0};
        json_t *body = registration();
        json_object_set_new(body, "timeout_ms", json_integer(SHORT_MS)); /* rank 1 does not come */
        json_object_set_new(i < TOPS ? body : json_array_get(json_object_get(body, "params"), 0), key,
                            json_loads(value, JSON_DECODE_ANY, NULL));
        ask(sock, "register", body);
        const int rc = ws_ipc_reply_recv(sock, LONG_MS, NULL, NULL, 0, NULL, &err);
        if (rc != -EINVAL || !strstr(err.text, wanted))
            fail_msg("%s %s: %d %s", key, value, rc, err.text);
        if (value[0] != '[' || value[1] != '{') /* the key and the value are named */
            assert_true(strstr(err.text, key) && (strchr(value, 'e') || strstr(err.text, value)));
    }
    close(sock);
    wait_until_gone(&w);
    end(&w);
}

/* It is one file, as with 0; the call then waits for the other rank. */
static void huge_shards_of_0_1_0_are_taken(void **state)
{
    struct ws_error err = {0};
    struct world w;
    (void)state;
    start(&w);
    const int sock = connected(&w);
    json_t *body = registration();
    json_object_set_new(body, "timeout_ms", json_integer(SHORT_MS));
    json_object_set_new(body, "shard_bytes", json_integer(-1)); /* UINT64_MAX */
    ask(sock, "register", body);
    if (ws_ipc_reply_recv(sock, LONG_MS, NULL, NULL, 0, NULL, &err) != -ETIMEDOUT)
        fail_msg("%s", err.text);
    close(sock);
    wait_until_gone(&w);
    end(&w);
}

/* --- a malformed message --- */

static void a_bad_message_is_answered(void **state)
{
    static const struct {
        const char *body, *why;
    } bad[] = {
        {"{\"method\":\"POST\",\"path\":\"/v1/local/register\",\"body\":{\"model\":\"a\\u0000b\"}}", "u0000"},
        {"{\"method\":\"GET\"", "no JSON"},
        {"{\"method\":\"GET\",\"method\":\"GET\",\"path\":\"/v1/models\"}", "duplicate"},
    };
    struct world w;
    (void)state;
    start(&w);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ws_error err = {0};
        const uint32_t head[3] = {0x31465357U, (uint32_t)strlen(bad[i].body), 0};
        const int sock = connected(&w);
        char byte;
        assert_int_equal(write(sock, head, sizeof(head)), sizeof(head));
        assert_int_equal(write(sock, bad[i].body, head[1]), head[1]);
        assert_int_equal(ws_ipc_reply_recv(sock, LONG_MS, NULL, NULL, 0, NULL, &err), -EBADMSG);
        if (!strstr(err.text, bad[i].why))
            fail_msg("%s", err.text);
        assert_int_equal(read(sock, &byte, 1), 0); /* and the connection is closed */
        close(sock);
    }
    end(&w);
}

/* --- more files than one message has descriptors for --- */

static void many_files(void **state)
{
    enum { FILES = 200 };
    struct world w;
    struct ws_error err = {0};
    static char names[FILES][32], files[FILES][48];
    static wsync_param params[FILES];
    uint16_t values[4] = {1, 2, 3, 4};
    uint64_t n;
    (void)state;
    start(&w);
    for (unsigned i = 0; i < FILES; i++) {
        snprintf(names[i], sizeof(names[i]), "tensor%u", i);
        snprintf(files[i], sizeof(files[i]), i ? "shard-%05u.safetensors" : "model.safetensors", i);
        params[i] = (wsync_param){.name = names[i],
                                  .dtype = WSYNC_BF16,
                                  .n_dims = 1,
                                  .shape = {4},
                                  .data = values,
                                  .file = files[i]};
    }
    wsync_config c = config_of(&w, 0, 1);
    wsync_publisher *p = opened(&c);
    for (uint64_t v = 1; v <= 4; v++) {
        if (wsync_offload(p, params, FILES, v) || wsync_wait_published(p, v, LONG_MS))
            fail_msg("%s", wsync_error());
        unsigned char *bytes = served_file(w.url, "m", v, &n, &err); /* with all descriptors */
        if (!bytes)
            fail_msg("%s", err.text);
        free(bytes);
    }
    wsync_close(p);
    end(&w);
}

/* --- sidecars from memory --- */

static void files_from_memory(void **state)
{
    static const struct {
        wsync_sidecar files[2];
        size_t n;
        const char *words;
    } bad[] = {
        {{{"model.bin", "x", 1}}, 1, "'model.bin' is no name of a sidecar file"},
        {{{"../x.json", "x", 1}}, 1, "'../x.json' is no name"},
        {{{"model.safetensors.index.json", "x", 1}}, 1, "is no name"},
        {{{NULL, "x", 1}}, 1, "'' is no name"},
        {{{"a.json", "x", 1}, {"a.json", "y", 1}}, 2, "'a.json' is there twice"},
        {{{"a.json", NULL, 1}}, 1, "a.json has 1 bytes and no data"},
        {{{"a.json", "x", WS_MAX_SIDECAR_BYTES + 1}}, 1, "more than the limit"},
        {{{"adapter_config.json", "{}", 2}}, 1, "peft_type"},
    };
    wsync_sidecar good[] = {{"a.json", "from memory", 11}, {"empty.txt", NULL, 0}};
    static char text[] = "ab";
    uint16_t values[4] = {1, 2, 3, 4};
    const wsync_param param = {.name = "w", .dtype = WSYNC_BF16, .n_dims = 1, .shape = {4}, .data = values};
    char folder[96], path[128];
    wsync_publisher *p;
    struct world w;
    (void)state;
    start(&w);
    wsync_config c = config_of(&w, 0, 1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        c.files = bad[i].files;
        c.n_files = bad[i].n;
        assert_true(wsync_publisher_open(&c, &p) < 0);
        if (!strstr(wsync_error(), bad[i].words))
            fail_msg("%s, and not: %s", wsync_error(), bad[i].words);
    }
    c.files = NULL;
    assert_int_equal(wsync_publisher_open(&c, &p), -EINVAL);
    snprintf(folder, sizeof(folder), "%s/sidecars", w.dir);
    assert_int_equal(mkdir(folder, 0700), 0);
    for (const char *name = text; *name; name++) { /* a.json, whose place is taken, and b.json */
        snprintf(path, sizeof(path), "%s/%c.json", folder, *name);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "%c of the folder", *name);
        fclose(f);
    }
    c.files = good;
    c.n_files = 2;
    c.sidecars = folder;
    p = opened(&c);
    memset(good, 0, sizeof(good)); /* they were copied */
    if (wsync_offload(p, &param, 1, 1) || wsync_wait_published(p, 1, LONG_MS))
        fail_msg("%s", wsync_error());
    static const char *const want[][2] = {{"a.json", "from memory"},
                                          {"b.json", "b of the folder"},
                                          {"empty.txt", ""},
                                          {"model.safetensors", NULL}};
    wsync_version_files *v;
    assert_int_equal(wsync_open_version(w.url, "m", 1, &v), 0);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        char read[32] = "";
        uint64_t bytes;
        int fd;
        const char *name = wsync_version_file(v, i, &fd, &bytes);
        assert_non_null(name);
        assert_string_equal(name, want[i][0]);
        if (want[i][1] && bytes > 0)
            assert_int_equal(pread(fd, read, sizeof(read), 0), bytes);
        if (want[i][1])
            assert_string_equal(read, want[i][1]);
    }
    wsync_close_version(v);
    wsync_close(p);
    for (const char *name = text; *name; name++) {
        snprintf(path, sizeof(path), "%s/%c.json", folder, *name);
        (void)unlink(path);
    }
    (void)rmdir(folder);
    end(&w);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "die") == 0)
        return be_dying_rank(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_base),
        cmocka_unit_test(abandoned_first_version),
        cmocka_unit_test(many_files),
        cmocka_unit_test(files_from_memory),
        cmocka_unit_test(a_rank_that_has_committed_comes_back),
        cmocka_unit_test(a_rank_comes_back_with_another_base),
        cmocka_unit_test(a_rank_dies_before_it_begins),
        cmocka_unit_test(a_rank_ends_while_it_waits),
        cmocka_unit_test(the_last_writer_has_ended),
        cmocka_unit_test(other_kinds_are_refused),
        cmocka_unit_test(huge_shards_of_0_1_0_are_taken),
        cmocka_unit_test(a_bad_message_is_answered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
