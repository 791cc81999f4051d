/* beside others */
/* Strategies: what each is and whether it can be used; sync infos and update requests, to JSON and back; what
 * SkyRL and vLLM write can be read; malformed texts are refused with a message that names the error. */
#include "backends/trainer/skyrl/strategy.h"
#include "backends/trainer/skyrl/update_request.h"
#include "tests/fixtures/checkpoint.h"
#include "transports/device/device.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

/* --- the table --- */

static void test_table(void **state)
{
    static const char *const names[] = {"tcp", "ipc", "dir", "broadcast", "cuda_ipc", "packed_cuda_ipc"};
    (void)state;
    for (size_t i = 0; i < 6; i++) {
        const wsync_strategy *s = wsync_strategy_at(i);
        assert_string_equal(s->name, names[i]);
        assert_int_equal(s->id, i);
        assert_ptr_equal(wsync_strategy_find(names[i]), s);
        assert_ptr_equal(ws_strategy_by_id(s->id)->way, ws_way_find(names[i]));
        assert_true(*s->needs && *s->request_type && *s->sync_info_type);
        int rc = wsync_strategy_available(s->id, NULL);
        const bool gpu = i == WSYNC_CUDA_IPC || i == WSYNC_PACKED_CUDA_IPC;
        assert_int_equal(rc, gpu ? ws_device_by_kind(WS_CUDA)->available(NULL) : i < 3 ? 0 : -ENOTSUP);
        if (rc < 0)
            assert_non_null(strstr(wsync_error(), "CUDA device"));
    }
    assert_null(wsync_strategy_at(6));
    assert_null(wsync_strategy_find("nccl"));
    assert_null(wsync_strategy_find(NULL));
    assert_int_equal(wsync_strategy_available((wsync_strategy_id)77, NULL), -EINVAL);
}

/* --- sync infos --- */

static char *sync_json(const wsync_sync_info *info)
{
    char *json;
    if (wsync_sync_info_encode(info, &json) < 0)
        fail_msg("%s", wsync_error());
    return json;
}

static wsync_sync_info *sync_of(const char *json, const char *strategy)
{
    wsync_sync_info *info;
    if (wsync_sync_info_decode(json, strlen(json), strategy, &info) < 0)
        fail_msg("%s: %s", json, wsync_error());
    return info;
}

/* Written, read and written again it is `json`. */
static void check_sync(const wsync_sync_info *info, const char *json)
{
    char *first = sync_json(info), *second;
    assert_string_equal(first, json);
    wsync_sync_info *back = sync_of(first, NULL);
    assert_int_equal(back->struct_size, sizeof(*back));
    second = sync_json(back);
    assert_string_equal(second, json);
    wsync_sync_info_free(back);
    free(first);
    free(second);
}

static void test_sync_info_round_trips(void **state)
{
    static const char *const urls[] = {"http://a:1", "https://b/x"},
                             *const path[] = {"/run/wsync/agent.sock"}, *const folder[] = {"dir:/data/run7"};
    (void)state;
    wsync_sync_info i = {.struct_size = sizeof(i), .strategy = WSYNC_TCP, .override_existing_receiver = 1};
    i.source =
        (wsync_source_info){.model = "actor \"1\"", .version = 42, .run = "r-1", .urls = urls, .n_urls = 2};
    check_sync(&i, "{\"strategy\":\"tcp\",\"override_existing_receiver\":true,\"model\":\"actor \\\"1\\\"\","
                   "\"version\":42,\"run\":\"r-1\",\"urls\":[\"http://a:1\",\"https://b/x\"]}");
    i = (wsync_sync_info){.struct_size = sizeof(i), .strategy = WSYNC_IPC};
    i.source = (wsync_source_info){.model = "actor", .urls = path, .n_urls = 1};
    check_sync(&i, "{\"strategy\":\"ipc\",\"override_existing_receiver\":false,\"model\":\"actor\","
                   "\"urls\":[\"/run/wsync/agent.sock\"]}");
    i.strategy = WSYNC_DIR;
    i.source.urls = folder;
    check_sync(&i, "{\"strategy\":\"dir\",\"override_existing_receiver\":false,\"model\":\"actor\","
                   "\"urls\":[\"dir:/data/run7\"]}");
    i = (wsync_sync_info){
        .struct_size = sizeof(i), .strategy = WSYNC_BROADCAST, .override_existing_receiver = 1};
    i.broadcast = (wsync_broadcast_info){"10.0.0.1", 29500, 1, 9, "skyrl", "nccl", "torch.bfloat16"};
    check_sync(
        &i, "{\"strategy\":\"broadcast\",\"override_existing_receiver\":true,\"master_addr\":\"10.0.0.1\","
            "\"master_port\":29500,\"rank_offset\":1,\"world_size\":9,\"group_name\":\"skyrl\",\"backend\":"
            "\"nccl\",\"model_dtype_str\":\"torch.bfloat16\"}");
    i.broadcast = (wsync_broadcast_info){"h", 65535, 65535, 65536, NULL, NULL, NULL};
    check_sync(&i, "{\"strategy\":\"broadcast\",\"override_existing_receiver\":true,\"master_addr\":\"h\","
                   "\"master_port\":65535,\"rank_offset\":65535,\"world_size\":65536}");
    for (int k = 0; k < 2; k++) {
        i = (wsync_sync_info){.struct_size = sizeof(i),
                              .strategy = k ? WSYNC_PACKED_CUDA_IPC : WSYNC_CUDA_IPC};
        i.cuda_ipc.model_dtype_str = "bfloat16";
        check_sync(&i,
                   k ? "{\"strategy\":\"packed_cuda_ipc\",\"override_existing_receiver\":false,"
                       "\"model_dtype_str\":\"bfloat16\"}"
                     : "{\"strategy\":\"cuda_ipc\",\"override_existing_receiver\":false,\"model_dtype_str\":"
                       "\"bfloat16\"}");
    }
}

/* asdict() of release 0.3.1's and 0.3.0's infos has no strategy, since the class implies it; and other
 * names. */
static void test_seeds_sync_infos(void **state)
{
    wsync_sync_info *i;
    (void)state;
    i = sync_of(
        "{\"override_existing_receiver\": true, \"master_addr\": \"127.0.0.1\", \"master_port\": 29500, "
        "\"rank_offset\": 1, \"world_size\": 2, \"group_name\": \"test_group\", \"backend\": \"nccl\", "
        "\"model_dtype_str\": \"torch.bfloat16\"}",
        "broadcast");
    assert_int_equal(i->strategy, WSYNC_BROADCAST);
    assert_string_equal(i->broadcast.master_addr, "127.0.0.1");
    assert_int_equal(i->broadcast.master_port, 29500);
    assert_int_equal(i->broadcast.rank_offset, 1);
    assert_int_equal(i->broadcast.world_size, 2);
    assert_string_equal(i->broadcast.group_name, "test_group");
    assert_string_equal(i->broadcast.backend, "nccl");
    assert_string_equal(i->broadcast.model_dtype_str, "torch.bfloat16");
    wsync_sync_info_free(i);
    i = sync_of(
        "{\"master_address\":\"h\",\"master_port\":1,\"rank_offset\":3,\"world_size\":5,\"group_name\":null,"
        "\"override_existing_receiver\":false,\"new\":{\"x\":[1]},\"model\":3}",
        "broadcast");
    assert_string_equal(i->broadcast.master_addr, "h");
    assert_null(i->broadcast.group_name);
    assert_false(i->override_existing_receiver);
    wsync_sync_info_free(i);
    i = sync_of("{\"override_existing_receiver\":true,\"model_dtype_str\":\"bfloat16\"}", "cuda_ipc");
    assert_int_equal(i->strategy, WSYNC_CUDA_IPC);
    assert_string_equal(i->cuda_ipc.model_dtype_str, "bfloat16");
    wsync_sync_info_free(i);
    i = sync_of("{\"url\":\"unix:/s\",\"model\":\"m\",\"version\":null,\"strategy\":\"ipc\"}", "ipc");
    assert_int_equal(i->source.n_urls, 1);
    assert_string_equal(i->source.urls[0], "unix:/s");
    assert_int_equal(i->source.version, 0);
    wsync_sync_info_free(i);
}

#define BROADCAST_BUT(what) "{\"strategy\":\"broadcast\",\"override_existing_receiver\":true" what "}"
#define ADDR                ",\"master_addr\":\"h\""
#define PORT                ",\"master_port\":1"
#define OFFSET              ",\"rank_offset\":1"
#define WORLD               ",\"world_size\":2"
#define TCP(what)           "{\"strategy\":\"tcp\",\"model\":\"m\",\"urls\":[\"http://h\"]" what "}"

static void test_hostile_sync_infos(void **state)
{
    static const struct {
        const char *json, *strategy, *says;
        int code;
    } bad[] = {
        {"", NULL, "an object", EBADMSG},
        {"[]", NULL, "an object", EBADMSG},
        {"{}", NULL, "\"strategy\"", EBADMSG},
        {"{}", "nccl", "no strategy 'nccl'", EINVAL},
        {"{\"strategy\":\"nccl\"}", NULL, "no strategy \"nccl\"", EBADMSG},
        {"{\"strategy\":\"nccl\"}", "tcp", "not for tcp", EBADMSG},
        {"{\"strategy\":3}", NULL, "a string", EBADMSG},
        {"{\"strategy\":\"tcp\",\"strategy\":\"ipc\"}", NULL, "twice", EBADMSG},
        {TCP("") "x", NULL, "its end", EBADMSG},
        {TCP(",\"model\":\"n\""), NULL, "twice", EBADMSG},
        {TCP(",\"url\":\"http://b\""), NULL, "twice", EBADMSG},
        {TCP(",\"version\":-1"), NULL, "version", EBADMSG},
        {TCP(",\"version\":1.5"), NULL, "version", EBADMSG},
        {TCP(",\"version\":9223372036854775808"), NULL, "too big", EBADMSG},
        {TCP(",\"version\":\"1\""), NULL, "version", EBADMSG},
        {TCP(",\"run\":\"a/b\""), NULL, "run", EBADMSG},
        {TCP(",\"run\":\"0123456789abcdef0123456789abcdefx\""), NULL, "run", EBADMSG},
        {TCP(",\"override_existing_receiver\":1"), NULL, "override_existing_receiver", EBADMSG},
        {"{\"strategy\":\"tcp\",\"urls\":[\"http://h\"]}", NULL, "\"model\"", EBADMSG},
        {"{\"strategy\":\"tcp\",\"model\":\"m\"}", NULL, "\"urls\"", EBADMSG},
        {"{\"strategy\":\"tcp\",\"model\":\"m\",\"urls\":null}", NULL, "\"urls\"", EBADMSG},
        {"{\"strategy\":\"tcp\",\"model\":\"m\",\"urls\":[]}", NULL, "urls", EBADMSG},
        {"{\"strategy\":\"tcp\",\"model\":\"m\",\"urls\":[1]}", NULL, "urls", EBADMSG},
        {"{\"strategy\":\"tcp\",\"model\":\"m\",\"urls\":7}", NULL, "urls", EBADMSG},
        {"{\"strategy\":\"tcp\",\"model\":\"m\",\"urls\":[\"unix:/s\"]}", NULL, "no url for tcp", EBADMSG},
        {"{\"strategy\":\"tcp\",\"model\":\"m\",\"urls\":[\"http://\"]}", NULL, "no url for tcp", EBADMSG},
        {"{\"strategy\":\"tcp\",\"model\":\"m\",\"urls\":[\"http://a\\nb\"]}", NULL, "control", EBADMSG},
        {"{\"strategy\":\"tcp\",\"model\":\"m\",\"urls\":[\"http://a\\u0000b\"]}", NULL, "u0000", EBADMSG},
        {"{\"strategy\":\"ipc\",\"model\":\"m\",\"urls\":[\"http://a\"]}", NULL, "no url for ipc", EBADMSG},
        {"{\"strategy\":\"dir\",\"model\":\"m\",\"urls\":[\"data\"]}", NULL, "no url for dir", EBADMSG},
        {"{\"strategy\":\"dir\",\"model\":\"../m\",\"urls\":[\"/d\"]}", NULL, "model", EBADMSG},
        {BROADCAST_BUT(PORT OFFSET WORLD), NULL, "master_addr", EBADMSG},
        {BROADCAST_BUT(ADDR OFFSET WORLD), NULL, "master_port", EBADMSG},
        {BROADCAST_BUT(ADDR PORT WORLD), NULL, "rank_offset", EBADMSG},
        {BROADCAST_BUT(ADDR PORT OFFSET), NULL, "world_size", EBADMSG},
        {BROADCAST_BUT(ADDR ",\"master_port\":0" OFFSET WORLD), NULL, "master_port", EBADMSG},
        {BROADCAST_BUT(ADDR ",\"master_port\":65536" OFFSET WORLD), NULL, "master_port", EBADMSG},
        {BROADCAST_BUT(ADDR ",\"master_port\":4294967297" OFFSET WORLD), NULL, "master_port", EBADMSG},
        {BROADCAST_BUT(ADDR PORT ",\"rank_offset\":0" WORLD), NULL, "rank_offset", EBADMSG},
        {BROADCAST_BUT(ADDR PORT ",\"rank_offset\":2" WORLD), NULL, "not below", EBADMSG},
        {BROADCAST_BUT(ADDR PORT OFFSET ",\"world_size\":1"), NULL, "world_size", EBADMSG},
        {BROADCAST_BUT(ADDR PORT OFFSET ",\"world_size\":65537"), NULL, "world_size", EBADMSG},
        {BROADCAST_BUT(",\"master_addr\":\"\"" PORT OFFSET WORLD), NULL, "master_addr", EBADMSG},
        {BROADCAST_BUT(ADDR PORT OFFSET WORLD ",\"backend\":\"a\\tb\""), NULL, "backend", EBADMSG},
        {BROADCAST_BUT(ADDR PORT OFFSET WORLD ",\"model_dtype_str\":\"BF16\""), NULL, "model_dtype_str",
         EBADMSG},
        {"{\"strategy\":\"broadcast\"" ADDR PORT OFFSET WORLD "}", NULL, "override_existing_receiver",
         EBADMSG},
        {"{\"strategy\":\"cuda_ipc\",\"override_existing_receiver\":true}", NULL, "model_dtype_str", EBADMSG},
        {"{\"strategy\":\"cuda_ipc\",\"model_dtype_str\":\"int8\"}", NULL, "override_existing_receiver",
         EBADMSG},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        wsync_sync_info *info = (wsync_sync_info *)1;
        int rc = wsync_sync_info_decode(bad[i].json, strlen(bad[i].json), bad[i].strategy, &info);
        if (rc != -bad[i].code || info || !strstr(wsync_error(), bad[i].says))
            fail_msg("%s gave %d, \"%s\"; not \"%s\"", bad[i].json, rc, rc ? wsync_error() : "", bad[i].says);
    }
    wsync_sync_info i = {.struct_size = sizeof(i), .strategy = (wsync_strategy_id)9};
    char *json = (char *)1;
    assert_int_equal(wsync_sync_info_encode(&i, &json), -EINVAL);
    assert_null(json);
    i = (wsync_sync_info){.struct_size = sizeof(i), .strategy = WSYNC_CUDA_IPC};
    assert_int_equal(wsync_sync_info_encode(&i, &json), -EINVAL);
    assert_non_null(strstr(wsync_error(), "model_dtype_str"));
    i.struct_size = 0;
    assert_int_equal(wsync_sync_info_encode(&i, &json), -EINVAL);
    assert_non_null(strstr(wsync_error(), "struct_size"));
}

/* Every truncated text of a valid info is refused. */
static void test_cut(void **state)
{
    static const char json[] = TCP(",\"version\":3,\"x\":[{\"y\":null}]");
    wsync_sync_info *info;
    (void)state;
    for (size_t n = 0; n < sizeof(json) - 1; n++) {
        char *copy = malloc(n + 1); /* so that a read beyond it is detected */
        assert_non_null(copy);
        memcpy(copy, json, n);
        char *exact = realloc(copy, n ? n : 1);
        assert_int_equal(wsync_sync_info_decode(exact, n, NULL, &info), -EBADMSG);
        free(exact);
    }
    wsync_sync_info_free(sync_of(json, NULL));
}

/* --- a receiver of tcp, ipc and dir --- */

static void source_of(wsync_strategy_id id, const char *url, const char *want)
{
    char out[WS_MAX_URL + 1];
    wsync_sync_info i = {.struct_size = sizeof(i), .strategy = id};
    i.source = (wsync_source_info){.model = "m", .urls = &url, .n_urls = 1};
    int rc = wsync_sync_info_source(&i, 0, out, sizeof(out));
    if (rc < 0)
        fail_msg("%s", wsync_error());
    assert_string_equal(out, want);
    assert_int_equal(wsync_sync_info_source(&i, 0, out, strlen(want)), -ENOSPC);
    assert_int_equal(wsync_sync_info_source(&i, 1, out, sizeof(out)), -ERANGE);
}

static void test_sources(void **state)
{
    char out[32];
    (void)state;
    source_of(WSYNC_TCP, "http://h:18861", "http://h:18861");
    source_of(WSYNC_TCP, "https://h", "https://h");
    source_of(WSYNC_IPC, "unix:/run/s", "unix:/run/s");
    source_of(WSYNC_IPC, "/run/s", "unix:/run/s");
    source_of(WSYNC_DIR, "/data", "dir:/data");
    source_of(WSYNC_DIR, "dir:/data", "dir:/data");
    wsync_sync_info i = {.struct_size = sizeof(i), .strategy = WSYNC_CUDA_IPC};
    i.cuda_ipc.model_dtype_str = "int8";
    assert_int_equal(wsync_sync_info_source(&i, 0, out, sizeof(out)), -ENOTSUP);
}

static int open_one(wsync_strategy_id id, const char *const *urls, size_t n, struct ws_source **out,
                    struct ws_error *err)
{
    wsync_sync_info i = {.struct_size = sizeof(i), .strategy = id};
    i.source = (wsync_source_info){.model = "m", .urls = urls, .n_urls = n};
    return ws_sync_info_open(&i, NULL, out, err);
}

/* The first url is a folder that does not exist; the second one's checkpoint is listed. */
static void test_open_dir(void **state)
{
    char *folder = checkpoint_folder(), model[256], missing[256];
    struct ws_source *s;
    struct ws_error err = {0};
    json_t *models = NULL;
    (void)state;
    snprintf(missing, sizeof(missing), "%.200s/none", folder);
    snprintf(model, sizeof(model), "%.200s/m", folder);
    assert_int_equal(mkdir(model, 0755), 0);
    snprintf(model, sizeof(model), "%.200s/m/3", folder);
    checkpoint_write_model(model, 1);
    const char *const urls[] = {missing, folder};
    if (open_one(WSYNC_DIR, urls, 2, &s, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal(ws_source_transport(s), "dir");
    assert_int_equal(ws_source_models(s, NULL, 0, 0, NULL, &models, &err), 0);
    char *text = json_dumps(models, 0);
    assert_non_null(strstr(text, "\"m\""));
    free(text);
    json_decref(models);
    struct ws_manifest *m;
    assert_int_equal(ws_source_manifest(s, "m", 3, NULL, NULL, &m, &err), 0);
    assert_int_equal(m->version, 3);
    ws_manifest_free(m);
    ws_source_close(s);
    assert_int_equal(open_one(WSYNC_DIR, urls, 1, &s, &err), -ENOENT);
    assert_non_null(strstr(err.text, missing));
    assert_null(s);
    checkpoint_remove(folder);
}

static void test_open_tcp_and_ipc(void **state)
{
    static const char *const http[] = {"http://127.0.0.1:1"}, *const user[] = {"http://u:p@h"};
    char *folder = checkpoint_folder();
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct ws_source *s;
    struct ws_error err = {0};
    (void)state;
    assert_int_equal(open_one(WSYNC_TCP, http, 1, &s, &err), 0);
    assert_string_equal(ws_source_transport(s), "tcp");
    ws_source_close(s);
    assert_int_equal(open_one(WSYNC_TCP, user, 1, &s, &err), -EINVAL); /* no credentials in a url */
    snprintf(at.sun_path, sizeof(at.sun_path), "%s/s", folder);
    const char *const path[] = {at.sun_path}, *const other[] = {folder};
    assert_int_equal(open_one(WSYNC_IPC, path, 1, &s, &err), -ENOENT);
    assert_non_null(strstr(err.text, "same host"));
    assert_int_equal(open_one(WSYNC_IPC, other, 1, &s, &err), -ENOTSOCK);
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(sock, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(open_one(WSYNC_IPC, path, 1, &s, &err), 0);
    assert_string_equal(ws_source_transport(s), "ipc");
    ws_source_close(s);
    close(sock);
    checkpoint_remove(folder);
    wsync_sync_info i = {.struct_size = sizeof(i), .strategy = WSYNC_BROADCAST};
    i.broadcast = (wsync_broadcast_info){"h", 1, 1, 2, NULL, NULL, NULL};
    assert_int_equal(ws_sync_info_open(&i, NULL, &s, &err), -ENOTSUP);
    assert_non_null(strstr(err.text, "NCCL"));
    assert_int_equal(wsync_strategy_available(WSYNC_TCP, &i), -EINVAL); /* it is for another one */
    assert_int_equal(wsync_strategy_available(WSYNC_BROADCAST, &i), -ENOTSUP);
}

/* --- update requests --- */

static wsync_update_request *request_of(const char *json, const char *strategy)
{
    wsync_update_request *r;
    if (wsync_update_request_decode(json, strlen(json), strategy, &r) < 0)
        fail_msg("%s: %s", json, wsync_error());
    return r;
}

static void check_request(const wsync_update_request *r, const char *json)
{
    char *first, *second;
    if (wsync_update_request_encode(r, &first) < 0)
        fail_msg("%s", wsync_error());
    assert_string_equal(first, json);
    wsync_update_request *back = request_of(first, NULL);
    assert_int_equal(back->struct_size, sizeof(*back));
    assert_int_equal(wsync_update_request_encode(back, &second), 0);
    assert_string_equal(second, json);
    wsync_update_request_free(back);
    free(first);
    free(second);
}

static const wsync_ipc_handle buffer[] = {{"GPU-1", "AAAA"}, {"GPU-2", "AAA="}};

static void test_request_round_trips(void **state)
{
    wsync_update_tensor t[2] = {
        {.name = "a.\"w\"", .dtype = WSYNC_BF16, .n_dims = 2, .shape = {2, 3}},
        {.name = "b.scale", .dtype = WSYNC_F32, .n_dims = 0},
    };
    wsync_update_request r = {.struct_size = sizeof(r), .strategy = WSYNC_TCP, .version = 7, .run = "x"};
    (void)state;
    check_request(
        &r, "{\"strategy\":\"tcp\",\"version\":7,\"run\":\"x\",\"names\":[],\"dtypes\":[],\"shapes\":[]}");
    r.n = 2;
    r.tensors = t;
#define LISTS                                                                                                \
    "\"names\":[\"a.\\\"w\\\"\",\"b.scale\"],\"dtypes\":[\"bfloat16\",\"float32\"],\"shapes\":[[2,3],[]]"
    check_request(&r, "{\"strategy\":\"tcp\",\"version\":7,\"run\":\"x\"," LISTS "}");
    r.strategy = WSYNC_BROADCAST;
    r.run = NULL;
    r.version = 0;
    check_request(&r, "{\"strategy\":\"broadcast\"," LISTS ",\"packed\":false,\"sizes\":null}");
    r.packed = 1;
    check_request(&r, "{\"strategy\":\"broadcast\"," LISTS ",\"packed\":true,\"sizes\":[6,1]}");
    r.strategy = WSYNC_PACKED_CUDA_IPC;
    r.alignment = 256;
    r.handles = buffer;
    r.n_handles = 2;
    check_request(&r, "{\"strategy\":\"packed_cuda_ipc\"," LISTS ",\"sizes\":[6,1],\"alignment\":256,"
                      "\"ipc_handles\":{\"GPU-1\":\"AAAA\",\"GPU-2\":\"AAA=\"}}");
    r.strategy = WSYNC_CUDA_IPC; /* release 0.3's */
    check_request(&r, "{\"strategy\":\"cuda_ipc\"," LISTS ",\"sizes\":[6,1],\"alignment\":256,"
                      "\"ipc_handles\":{\"GPU-1\":\"AAAA\",\"GPU-2\":\"AAA=\"}}");
    r.packed = 0;
    r.alignment = r.n_handles = 0;
    t[0].handles = buffer;
    t[0].n_handles = 1;
    t[1].handles = buffer;
    t[1].n_handles = 2;
    check_request(&r, "{\"strategy\":\"cuda_ipc\"," LISTS ",\"sizes\":[6,1],"
                      "\"ipc_handles\":[{\"GPU-1\":\"AAAA\"},{\"GPU-1\":\"AAAA\",\"GPU-2\":\"AAA=\"}]}");
}

/* The releases' JSON: asdict() of the requests of 0.3.0 and 0.3.1, and vLLM's update_info. */
static void test_seeds_requests(void **state)
{
    wsync_update_request *r;
    (void)state;
    r = request_of("{\"names\": [\"model.layer.0.weight\"], \"dtypes\": [\"torch.bfloat16\"], "
                   "\"shapes\": [[4096, 4096]], \"sizes\": null}",
                   "broadcast");
    assert_int_equal(r->n, 1);
    assert_int_equal(r->tensors[0].dtype, WSYNC_BF16);
    assert_int_equal(r->tensors[0].shape[1], 4096);
    assert_false(r->packed);
    wsync_update_request_free(r);
    r = request_of(
        "{\"names\":[\"a\",\"b\"],\"dtypes\":[\"bfloat16\",\"bfloat16\"],\"shapes\":[[4,4],[1024]],"
        "\"sizes\":[16,1024],\"ipc_handles\":{\"3c1f\":\"Z2FTVg==\"}}",
        "cuda_ipc");
    assert_true(r->packed);
    assert_int_equal(r->alignment, 0);
    assert_int_equal(r->n_handles, 1);
    assert_string_equal(r->handles[0].gpu_uuid, "3c1f");
    assert_string_equal(r->handles[0].handle, "Z2FTVg==");
    wsync_update_request_free(r);
    r = request_of("{\"names\":[\"a\",\"b\"],\"dtype_names\":[\"bfloat16\",\"float32\"],\"shapes\":[[1],[2]],"
                   "\"packed\":true,\"is_checkpoint_format\":true}",
                   "broadcast");
    assert_true(r->packed);
    wsync_update_request_free(r);
    wsync_update_request_free(NULL);
}

#define ONE       "\"names\":[\"a\"],\"dtypes\":[\"int8\"],\"shapes\":[[4]]"
#define TWO       "\"names\":[\"a\",\"b\"],\"dtypes\":[\"int8\",\"int8\"],\"shapes\":[[4],[2]]"
#define R(s, ...) "{\"strategy\":\"" s "\"," __VA_ARGS__ "}"
#define H         ",\"ipc_handles\":"

static void test_hostile_requests(void **state)
{
    static const struct {
        const char *json, *strategy, *says;
        int code;
    } bad[] = {
        {"[]", "tcp", "an object", EBADMSG},
        {"{}", NULL, "\"strategy\"", EBADMSG},
        {"{}", "tcp", "\"names\"", EBADMSG},
        {"{}", "x", "'x'", EINVAL},
        {R("tcp", ONE), "dir", "not for dir", EBADMSG},
        {R("tcp", "\"names\":[],\"dtypes\":[]"), NULL, "\"shapes\"", EBADMSG},
        {R("tcp", "\"names\":null,\"dtypes\":[],\"shapes\":[]"), NULL, "\"names\"", EBADMSG},
        {R("tcp", ONE ",\"names\":[\"b\"]"), NULL, "twice", EBADMSG},
        {R("tcp", ONE ",\"dtype_names\":[\"int8\"]"), NULL, "twice", EBADMSG},
        {R("tcp", "\"names\":[\"a\",\"b\"],\"dtypes\":[\"int8\"],\"shapes\":[[4],[2]]"), NULL,
         "differ in length", EBADMSG},
        {R("tcp", "\"names\":[\"a\"],\"dtypes\":[\"int8\"],\"shapes\":[[4],[2]]"), NULL, "differ in length",
         EBADMSG},
        {R("tcp", "\"names\":[\"a\",\"a\"],\"dtypes\":[\"int8\",\"int8\"],\"shapes\":[[4],[2]]"), NULL,
         "a twice", EBADMSG},
        {R("tcp", "\"names\":[\"\"],\"dtypes\":[\"int8\"],\"shapes\":[[4]]"), NULL, "name", EBADMSG},
        {R("tcp", "\"names\":[1],\"dtypes\":[\"int8\"],\"shapes\":[[4]]"), NULL, "names", EBADMSG},
        {R("tcp", "\"names\":\"a\",\"dtypes\":[\"int8\"],\"shapes\":[[4]]"), NULL, "an array", EBADMSG},
        {R("tcp", "\"names\":[\"a\"],\"dtypes\":[\"F4\"],\"shapes\":[[4]]"), NULL, "dtype of torch", EBADMSG},
        {R("tcp", "\"names\":[\"a\"],\"dtypes\":[\"int8\"],\"shapes\":[4]"), NULL, "an array", EBADMSG},
        {R("tcp", "\"names\":[\"a\"],\"dtypes\":[\"int8\"],\"shapes\":[[-4]]"), NULL, "shapes", EBADMSG},
        {R("tcp", "\"names\":[\"a\"],\"dtypes\":[\"int8\"],\"shapes\":[[1.0]]"), NULL, "shapes", EBADMSG},
        {R("tcp", "\"names\":[\"a\"],\"dtypes\":[\"int8\"],\"shapes\":[[1,1,1,1,1,1,1,1,1]]"), NULL,
         "8 dimensions", EBADMSG},
        {R("tcp", "\"names\":[\"a\"],\"dtypes\":[\"int8\"],\"shapes\":[[4294967296,4294967296]]"), NULL,
         "too large", EBADMSG},
        {R("tcp", ONE ",\"packed\":true"), NULL, "not packed", EBADMSG},
        {R("tcp", ONE ",\"packed\":1"), NULL, "neither", EBADMSG},
        {R("tcp", ONE ",\"run\":\"../x\""), NULL, "no version", EBADMSG},
        {R("tcp", ONE ",\"version\":-2"), NULL, "version", EBADMSG},
        {R("tcp", ONE H "{\"a\":\"AAAA\"}"), NULL, "handle", EBADMSG},
        {R("tcp", ONE H "[{\"a\":\"AAAA\"}]"), NULL, "handle", EBADMSG},
        {R("broadcast", "\"names\":[],\"dtypes\":[],\"shapes\":[]"), NULL, "1 to", EBADMSG},
        {R("broadcast", ONE ",\"sizes\":[5]"), NULL, "says 5 of a", EBADMSG},
        {R("broadcast", ONE ",\"sizes\":[4,4]"), NULL, "differ in length", EBADMSG},
        {R("broadcast", ONE ",\"sizes\":[4],\"packed\":false"), NULL, "otherwise", EBADMSG},
        {R("broadcast", ONE ",\"alignment\":256"), NULL, "alignment", EBADMSG},
        {R("broadcast", ONE ",\"sizes\":[4],\"alignment\":3"), NULL, "alignment", EBADMSG},
        {R("cuda_ipc", ONE ",\"sizes\":[4]"), NULL, "\"ipc_handles\"", EBADMSG},
        {R("cuda_ipc", ONE ",\"sizes\":[4]" H "\"gASVAAAA\""), NULL, "pickle", EBADMSG},
        {R("cuda_ipc", ONE H "{\"a\":\"AAAA\"}"), NULL, "\"sizes\"", EBADMSG},
        {R("cuda_ipc", ONE ",\"sizes\":[4]" H "{}"), NULL, "0 handles", EBADMSG},
        {R("cuda_ipc", ONE ",\"sizes\":[4]" H "{\"a\":\"AAAA\",\"a\":\"AAAB\"}"), NULL, "a twice", EBADMSG},
        {R("cuda_ipc", ONE ",\"sizes\":[4]" H "{\"\":\"AAAA\"}"), NULL, "no uuid", EBADMSG},
        {R("cuda_ipc", ONE ",\"sizes\":[4]" H "{\"a b\":\"AAAA\"}"), NULL, "no uuid", EBADMSG},
        {R("cuda_ipc", ONE ",\"sizes\":[4]" H "{\"a\":\"AAA\"}"), NULL, "base64", EBADMSG},
        {R("cuda_ipc", ONE ",\"sizes\":[4]" H "{\"a\":\"\"}"), NULL, "base64", EBADMSG},
        {R("cuda_ipc", ONE ",\"sizes\":[4]" H "{\"a\":\"A===\"}"), NULL, "base64", EBADMSG},
        {R("cuda_ipc", ONE ",\"sizes\":[4]" H "{\"a\":\"A\\\"AA\"}"), NULL, "base64", EBADMSG},
        {R("cuda_ipc", ONE ",\"sizes\":[4]" H "{\"a\":[]}"), NULL, "a string", EBADMSG},
        {R("cuda_ipc", ONE H "[]"), NULL, "0 entries for 1", EBADMSG},
        {R("cuda_ipc", ONE H "[{}]"), NULL, "0 handles of a", EBADMSG},
        {R("cuda_ipc", ONE H "[{\"g\":\"AAAA\"}],\"packed\":true"), NULL, "otherwise", EBADMSG},
        {R("cuda_ipc", ONE H "3"), NULL, "an array", EBADMSG},
        {R("packed_cuda_ipc", ONE ",\"sizes\":[4]" H "[{\"a\":\"AAAA\"}]"), NULL, "is packed", EBADMSG},
        {R("packed_cuda_ipc", "\"names\":[\"a\",\"b\"],\"dtypes\":[\"int8\",\"int16\"],\"shapes\":[[4],[2]],"
                              "\"sizes\":[4,2]" H "{\"a\":\"AAAA\"}"),
         NULL, "differ in dtype", EBADMSG},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        wsync_update_request *r = (wsync_update_request *)1;
        int rc = wsync_update_request_decode(bad[i].json, strlen(bad[i].json), bad[i].strategy, &r);
        if (rc != -bad[i].code || r || !strstr(wsync_error(), bad[i].says))
            fail_msg("%s gave %d, \"%s\"; not \"%s\"", bad[i].json, rc, rc ? wsync_error() : "", bad[i].says);
    }
    wsync_update_request_free(request_of(R("cuda_ipc", TWO H "[{\"g\":\"AAAA\"},{\"g\":\"AA==\"}]"), NULL));
}

/* Values over a limit: a name, a handle, the whole text. */
static void test_limits(void **state)
{
    static char json[2 * WS_MAX_HANDLE_CHARS], text[WS_MAX_HANDLE_CHARS + 5];
    wsync_update_request *r;
    (void)state;
    for (int over = 0; over < 2; over++) {
        memset(text, 'a', sizeof(text));
        text[WS_MAX_TENSOR_NAME + over] = 0;
        snprintf(json, sizeof(json), "{\"names\":[\"%s\"],\"dtypes\":[\"int8\"],\"shapes\":[[]]}", text);
        assert_int_equal(wsync_update_request_decode(json, strlen(json), "tcp", &r), over ? -EBADMSG : 0);
        wsync_update_request_free(r);
        memset(text, 'a', sizeof(text));
        text[WS_MAX_HANDLE_CHARS + 4 * over] = 0;
        snprintf(json, sizeof(json), R("cuda_ipc", ONE ",\"sizes\":[4]" H "{\"g\":\"%s\"}"), text);
        assert_int_equal(wsync_update_request_decode(json, strlen(json), NULL, &r), over ? -EBADMSG : 0);
        wsync_update_request_free(r);
    }
    assert_int_equal(wsync_update_request_decode(json, WS_MAX_REQUEST_BYTES + 1, NULL, &r), -EBADMSG);
    assert_non_null(strstr(wsync_error(), "bytes; at most"));
}

/* A whole model of 50,000 tensors in one request, as release 0.3.0 sends its metadata. */
static void test_large_request(void **state)
{
    enum { N = 50000 };
    wsync_update_tensor *t = calloc(N, sizeof(*t));
    char(*names)[48] = calloc(N, sizeof(*names)), *json;
    (void)state;
    assert_true(t && names);
    for (size_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "model.layers.%zu.mlp.up_proj.weight", i);
        t[i] = (wsync_update_tensor){.name = names[i], .dtype = WSYNC_BF16, .n_dims = 2, .shape = {i, 7}};
    }
    wsync_update_request r = {
        .struct_size = sizeof(r), .strategy = WSYNC_BROADCAST, .packed = 1, .n = N, .tensors = t};
    assert_int_equal(wsync_update_request_encode(&r, &json), 0);
    wsync_update_request *back = request_of(json, "broadcast");
    assert_int_equal(back->n, N);
    for (size_t i = 0; i < N; i++) {
        assert_string_equal(back->tensors[i].name, names[i]);
        assert_int_equal(back->tensors[i].shape[0], i);
    }
    wsync_update_request_free(back);
    free(json);
    free(t);
    free(names);
}

static void test_encode_refusals(void **state)
{
    wsync_update_tensor t = {.name = "a", .dtype = WSYNC_I8, .n_dims = 1, .shape = {4}};
    wsync_update_request r = {
        .struct_size = sizeof(r), .strategy = WSYNC_PACKED_CUDA_IPC, .n = 1, .tensors = &t};
    char *json;
    (void)state;
    assert_int_equal(wsync_update_request_encode(&r, &json), -EINVAL); /* not packed */
    assert_non_null(strstr(wsync_error(), "packed"));
    r.packed = 1;
    assert_int_equal(wsync_update_request_encode(&r, &json), -EINVAL);
    assert_non_null(strstr(wsync_error(), "ipc_handles"));
    r.strategy = WSYNC_BROADCAST;
    t.dtype = WSYNC_F4;
    assert_int_equal(wsync_update_request_encode(&r, &json), -EINVAL);
    assert_non_null(strstr(wsync_error(), "torch"));
    t.dtype = WSYNC_I8;
    t.name = "a\xff";
    assert_int_equal(wsync_update_request_encode(&r, &json), -EINVAL);
    assert_non_null(strstr(wsync_error(), "UTF-8"));
    assert_null(json);
    r.struct_size = 3;
    assert_int_equal(wsync_update_request_encode(&r, &json), -EINVAL);
}

/* --- a chunk's request --- */

static void test_request_of_chunk(void **state)
{
    wsync_param p[2] = {{.name = "m.a.w", .dtype = WSYNC_BF16, .n_dims = 2, .shape = {2, 3}},
                        {.name = "m.b.w", .dtype = WSYNC_BF16, .n_dims = 1, .shape = {5}}};
    wsync_chunk_options o = {.struct_size = sizeof(o), .alignment = 256};
    wsync_chunks *c;
    wsync_update_request *r;
    (void)state;
    p[1].piece = (wsync_piece){.kind = WSYNC_BOX, .size = {5}}; /* a box of the whole tensor */
    assert_int_equal(wsync_chunks_open(p, 2, &o, &c), 0);
    const wsync_chunk *chunk = wsync_chunks_get(c, 0);
    assert_int_equal(wsync_update_request_of(chunk, WSYNC_PACKED_CUDA_IPC, &r), 0);
    r->handles = buffer;
    r->n_handles = 2;
    check_request(
        r, "{\"strategy\":\"packed_cuda_ipc\",\"names\":[\"m.a.w\",\"m.b.w\"],\"dtypes\":[\"bfloat16\","
           "\"bfloat16\"],\"shapes\":[[2,3],[5]],\"sizes\":[6,5],\"alignment\":256,"
           "\"ipc_handles\":{\"GPU-1\":\"AAAA\",\"GPU-2\":\"AAA=\"}}");
    wsync_update_request_free(r);
    assert_int_equal(wsync_update_request_of(chunk, WSYNC_BROADCAST, &r), 0);
    check_request(r, "{\"strategy\":\"broadcast\",\"names\":[\"m.a.w\",\"m.b.w\"],\"dtypes\":[\"bfloat16\","
                     "\"bfloat16\"],\"shapes\":[[2,3],[5]],\"packed\":false,\"sizes\":null}");
    wsync_update_request_free(r);
    assert_int_equal(wsync_update_request_of(chunk, (wsync_strategy_id)9, &r), -EINVAL);
    wsync_chunks_close(c);
    p[1].dtype = WSYNC_F32;
    assert_int_equal(wsync_chunks_open(p, 2, NULL, &c), 0);
    assert_int_equal(wsync_update_request_of(wsync_chunks_get(c, 0), WSYNC_PACKED_CUDA_IPC, &r), -EINVAL);
    assert_non_null(strstr(wsync_error(), "differ in dtype"));
    wsync_chunks_close(c);
    p[1].piece.size[0] = 4;
    assert_int_equal(wsync_chunks_open(p, 2, NULL, &c), 0);
    assert_int_equal(wsync_update_request_of(wsync_chunks_get(c, 0), WSYNC_BROADCAST, &r), -EINVAL);
    assert_non_null(strstr(wsync_error(), "m.b.w is a piece"));
    assert_null(r);
    wsync_chunks_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_sync_info_round_trips),
        cmocka_unit_test(test_seeds_sync_infos),
        cmocka_unit_test(test_hostile_sync_infos),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_open_dir),
        cmocka_unit_test(test_open_tcp_and_ipc),
        cmocka_unit_test(test_request_round_trips),
        cmocka_unit_test(test_seeds_requests),
        cmocka_unit_test(test_hostile_requests),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_large_request),
        cmocka_unit_test(test_encode_refusals),
        cmocka_unit_test(test_request_of_chunk),
    };
    setenv("WSYNC_LIBCUDA", "/nowhere/libcuda.so.1", 1); /* the same on a machine with a GPU */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
