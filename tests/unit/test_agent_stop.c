/* An agent ends while requests still arrive: a primary that does not answer, announcements of versions, and
 * requests that announce when its features have stopped. */
#include "backends/trainer/agent/agent.h"
#include "backends/trainer/agent/core/features.h"
#include "backends/trainer/agent/core/models.h"
#include "backends/trainer/wsync.h"
#include "tests/fixtures/private_folder.h"
#include "transports/base/clock.h"
#include "transports/transport.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define N       1000UL
#define LONG_MS 60000
#define CALL_NS (10 * WS_SECOND_NS) /* a call to the primary that gets no answer */

struct world {
    char dir[64], socket[128], url[140], http[64], archive[80];
    struct ws_agent *agent;
};

static void start(struct world *w, const char *primary, bool archives)
{
    struct ws_error err = {0};
    assert_true(private_folder(w->dir, sizeof(w->dir), "stop"));
    snprintf(w->socket, sizeof(w->socket), "%s/sock", w->dir);
    snprintf(w->url, sizeof(w->url), "unix:%s", w->socket);
    snprintf(w->archive, sizeof(w->archive), "%s/archive", w->dir);
    struct ws_agent_options o = {.tcp.listen = "127.0.0.1:0",
                                 .tcp.access.insecure = true,
                                 .socket = w->socket,
                                 .socket_gid = (gid_t)-1,
                                 .n_threads = 2,
                                 .delta_cache_bytes = WS_DELTA_CACHE_BY_SIZE,
                                 .archive = archives ? w->archive : NULL,
                                 .primary = primary};
    if (ws_agent_new(&w->agent, &o, &err))
        fail_msg("%s", err.text);
    snprintf(w->http, sizeof(w->http), "http://127.0.0.1:%u", ws_agent_port(w->agent));
}

static void end(struct world *w)
{
    char command[128];
    ws_agent_free(w->agent);
    snprintf(command, sizeof(command), "rm -rf '%s'", w->dir);
    assert_int_equal(system(command), 0);
}

static wsync_publisher *opened(const struct world *w)
{
    const wsync_config c = {.struct_size = sizeof(c),
                            .agent = w->url,
                            .model = "m",
                            .world_size = 1,
                            .n_threads = 1,
                            .timeout_ms = LONG_MS};
    wsync_publisher *p;
    if (wsync_publisher_open(&c, &p))
        fail_msg("%s", wsync_error());
    return p;
}

static uint16_t values[N];
static const wsync_param param = {
    .name = "w", .dtype = WSYNC_BF16, .n_dims = 1, .shape = {N}, .data = values};

static void publish(const struct world *w)
{
    wsync_publisher *p = opened(w);
    if (wsync_register(p, &param, 1) || wsync_offload(p, &param, 1, 1) || wsync_wait_published(p, 1, LONG_MS))
        fail_msg("%s", wsync_error());
    wsync_close(p);
}

/* --- a primary that does not answer --- */

static int listening(char url[64])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    const int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(sock >= 0);
    assert_int_equal(bind(sock, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(sock, 8), 0);
    assert_int_equal(getsockname(sock, (struct sockaddr *)&at, &len), 0);
    snprintf(url, 64, "http://127.0.0.1:%u", ntohs(at.sin_port));
    return sock;
}

static void *register_rank(void *p)
{
    assert_int_not_equal(wsync_register(p, &param, 1), 0);
    return NULL;
}

static void test_silent_primary(void **state)
{
    (void)state;
    struct world w = {0};
    char url[64];
    pthread_t thread;
    const int primary = listening(url);
    start(&w, url, false);
    wsync_publisher *p = opened(&w);
    assert_int_equal(pthread_create(&thread, NULL, register_rank, p), 0);
    struct pollfd asked = {.fd = primary, .events = POLLIN};
    assert_int_equal(poll(&asked, 1, LONG_MS), 1);
    const int call = accept(primary, NULL, NULL); /* begins now, and is not answered */
    const uint64_t since = ws_clock_ns();
    assert_true(call >= 0);
    end(&w);
    const uint64_t took = ws_clock_ns() - since;
    pthread_join(thread, NULL);
    wsync_close(p);
    close(call);
    close(primary);
    if (took >= CALL_NS - 2 * WS_SECOND_NS)
        fail_msg("the agent waited %.1f s for its primary", (double)took / 1e9);
}

/* --- announcements after the features have stopped --- */

static void test_published_late(void **state)
{
    (void)state;
    struct world w = {0};
    start(&w, NULL, true);
    publish(&w);
    struct ws_agent *a = w.agent;
    atomic_store(&a->stop, true); /* as when it ends; a group's thread may publish until then */
    ws_feature_delta.stop(a);
    ws_feature_archive.stop(a);
    pthread_mutex_lock(&a->lock);
    struct ws_agent_model *m = ws_agent_model_find(a, "m");
    assert_non_null(m);
    assert_int_equal(m->n_slots, 1);
    struct ws_slot *s = m->slots[0];
    ws_feature_delta.published(a, m, s);                 /* has a base: the slot itself */
    snprintf(s->lineage, sizeof(s->lineage), "another"); /* whose first version is archived whole */
    ws_feature_archive.published(a, m, s);
    const bool waits = s->n_leases > 0;
    pthread_mutex_unlock(&a->lock);
    atomic_store(&a->stop, false);
    end(&w);
    assert_false(waits); /* no thread would finish it, and its callers would wait */
}

/* A feature with one route, which answers after the agent's socket was removed, and announces then. */
static struct {
    const char *socket;
    atomic_bool asked;
    bool still_woken;
} late;

static int answer_late(struct ws_agent *a, const struct ws_agent_request *r, json_t **reply,
                       struct ws_error *err)
{
    (void)err;
    if (strcmp(r->q->verb, "late") != 0)
        return WS_ROUTE_OTHER;
    atomic_store(&late.asked, true);
    while (access(late.socket, F_OK) == 0)
        usleep(1000);
    late.still_woken = atomic_load(&a->ipc);
    if (!late.still_woken)
        ws_agent_announce(a);
    *reply = json_object();
    return 0;
}

static const struct ws_api_route late_routes[] = {WS_API_ROUTE("POST", "/v1/{model}/late", READ), {0}};
static const struct ws_agent_feature late_feature = {.routes = late_routes, .route = answer_late};
#define FEATURE(name) &ws_feature_##name,
static const struct ws_agent_feature *const and_late[] = {&late_feature, WS_AGENT_FEATURES(FEATURE) NULL};
#undef FEATURE

static void *ask_late(void *url)
{
    struct ws_source *s;
    struct ws_error err;
    json_t *reply = NULL;
    assert_int_equal(ws_source_open(url, NULL, &s, &err), 0);
    const int rc = ws_source_call(s, "POST", "/v1/m/late", NULL, &reply, &err);
    assert_true(rc == 0 || ws_source_is_away(rc)); /* the agent may close the connection first */
    json_decref(reply);
    ws_source_close(s);
    return NULL;
}

static void test_announced_late(void **state)
{
    (void)state;
    struct world w = {0};
    pthread_t thread;
    start(&w, NULL, false);
    w.agent->features = and_late; /* there was no request for it yet */
    size_t n = 0;
    while (w.agent->routes[n])
        n++;
    w.agent->routes[n] = late_routes; /* not all features have routes: there is room */
    late.socket = w.socket;
    assert_int_equal(pthread_create(&thread, NULL, ask_late, w.http), 0);
    while (!atomic_load(&late.asked))
        usleep(1000);
    end(&w);
    pthread_join(thread, NULL);
    assert_false(late.still_woken); /* the socket's server is freed by then */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_silent_primary),
        cmocka_unit_test(test_published_late),
        cmocka_unit_test(test_announced_late),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
