/* Versions in parts, and what comes at the wrong moment: requests for a part while the whole is being laid out, a drop.
 *
 * timeout: 300, takes: 20
 * beside others */
#include "fs/store/delta_cache.h"
#include "fs/store/model.h"
#include "fs/store/node_parts.h"
#include "fs/store/part_view.h"
#include "fs/store/version.h"
#include "fs/store/waiters.h"
#include "tests/fs/opened_store.h"
#include "transports/base/workers.h"
#include "transports/format/node_part.h"
#include <time.h>
#include <unistd.h>

#define PARTS      2
#define SIDE_FILES 250 /* small ones, which the first part has */
#define SIDE       "side"
#define WEIGHTS    "model.safetensors"
#define SECONDS    8 /* of drops at random */

/* ws_parts_new has no memory, once; the C library's calloc is interposed for that, which a sanitizer's does not allow. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HAVE_INTERPOSED 1
#define FUNCTION_BYTES  512
static atomic_bool refuses;
void *__libc_calloc(size_t n, size_t size);
__attribute__((visibility("default"))) void *calloc(size_t n, size_t size);

void *calloc(size_t n, size_t size)
{
    const uintptr_t caller = (uintptr_t)__builtin_return_address(0), begin = (uintptr_t)ws_parts_new;

    if (caller > begin && caller < begin + FUNCTION_BYTES && atomic_exchange(&refuses, false)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_calloc(n, size);
}
#else
#define HAVE_INTERPOSED 0
static atomic_bool refuses;
#endif

static void *header_of(const char *tensor, uint64_t bytes, uint64_t *n)
{
    struct ws_tensor spec = {.name = tensor, .dtype = WS_U8, .n_dims = 1, .shape = {bytes}};
    struct ws_safetensors *st = NULL;
    struct ws_error err = {0};
    void *header = NULL;

    assert_ok(ws_safetensors_layout(&spec, 1, NULL, &st, &header, &err), &err);
    *n = st->data_begin;
    ws_safetensors_free(st);
    return header;
}

/* What describes a part, with so many spaces before it. */
static char *description(const struct ws_node_part *p, uint64_t spaces, size_t *n)
{
    char *json = ws_node_part_to_json(p), *text;

    assert_non_null(json);
    *n = spaces + strlen(json);
    text = malloc(*n + 1);
    assert_non_null(text);
    memset(text, ' ', spaces);
    strcpy(text + spaces, json);
    free(json);
    return text;
}

/* Publishes parts of a version that has a tensor of bytes_of_data and small files; each part has one half of the tensor. */
static void publish_parts(uint64_t number, uint64_t bytes_of_data, uint64_t spaces)
{
    static char names[SIDE_FILES][8];
    struct ws_node_part_file whole[SIDE_FILES + 1];
    uint64_t n_header, n_piece;
    void *header = header_of("weight", bytes_of_data, &n_header),
         *piece = header_of("0000000", bytes_of_data / 2, &n_piece);
    char weight[] = "weight";

    for (size_t i = 0; i < SIDE_FILES; i++) {
        snprintf(names[i], sizeof(names[i]), "a%03zu", i);
        whole[i] = (struct ws_node_part_file){.name = names[i], .size_bytes = strlen(SIDE)};
    }
    for (unsigned k = 0; k < PARTS; k++) {
        struct ws_node_part_piece half = {
            .tensor = weight, .range = true, .start = k * (bytes_of_data / 2), .count = bytes_of_data / 2};
        char file[] = WEIGHTS, model[WS_MAX_NAME + 1];
        struct shelf_file files[SIDE_FILES + 3];
        size_t n = 0, n_text;
        whole[SIDE_FILES] = (struct ws_node_part_file){.name = file,
                                                       .size_bytes = n_header + bytes_of_data,
                                                       .header_bytes = n_header,
                                                       .n_pieces = 1,
                                                       .pieces = &half};
        struct ws_node_part part = {.index = k, .count = PARTS, .n_files = SIDE_FILES + 1, .files = whole};
        memset(part.placement, 'a', WS_NODE_PART_ID_CHARS);
        char *text = description(&part, spaces, &n_text);
        for (size_t i = 0; k == 0 && i < SIDE_FILES; i++)
            files[n++] = (struct shelf_file){names[i], SIDE, strlen(SIDE), strlen(SIDE)};
        files[n++] = (struct shelf_file){WEIGHTS, piece, n_piece, n_piece + bytes_of_data / 2};
        if (k == 0)
            files[n++] = (struct shelf_file){WEIGHTS WS_NODE_PART_HEADER, header, n_header, n_header};
        files[n++] = (struct shelf_file){WS_NODE_PART_FILE, text, n_text, n_text};
        assert_int_equal(ws_node_part_model(model, "actor", k, PARTS, NULL), 0);
        shelf_publish_files(shelf, model, number, "r1", files, n);
        free(text);
    }
    free(header);
    free(piece);
}

static void assert_is_whole(struct ws_version *v, uint64_t bytes_of_data)
{
    const struct ws_manifest *m = ws_version_manifest(v, NULL);
    const struct ws_manifest_file *f = ws_manifest_find(m, WEIGHTS);
    const unsigned char *at = ws_region_data(ws_version_region(v, (size_t)(f - m->files))) + f->header_bytes;

    for (unsigned k = 0; k < PARTS; k++) {
        char model[WS_MAX_NAME + 1];
        uint64_t size;
        assert_int_equal(ws_node_part_model(model, "actor", k, PARTS, NULL), 0);
        const unsigned char *want = shelf_bytes(shelf, model, m->version, "r1", WEIGHTS, &size);
        assert_memory_equal(at + k * (bytes_of_data / 2), want + size - bytes_of_data / 2, bytes_of_data / 2);
    }
    assert_memory_equal(ws_region_data(ws_version_region(v, 0)), SIDE, strlen(SIDE));
}

struct asking {
    pthread_t thread;
    atomic_bool over;
};

static void ignore(struct ws_waiter *w, int result)
{
    (void)result;
    *(atomic_bool *)(w + 1) = true;
}

/* Like many mounts behind this one, each with a question of its own. Between two it sleeps: on a busy machine it would leave the
   locks to nobody else. */
static void *ask_for_a_part(void *arg)
{
    struct asking *a = arg;
    struct {
        struct ws_waiter w;
        atomic_bool done;
    } one;

    for (; !atomic_load(&a->over); (void)usleep(10)) {
        struct ws_model *m = ws_node_parts_find(store, "actor@0.2");
        struct ws_version *v = m ? ws_version_find(m, "1", NULL) : NULL;
        if (m)
            ws_model_put(m);
        if (!v)
            continue;
        one.w = (struct ws_waiter){.done = ignore};
        atomic_init(&one.done, false);
        if (ws_version_await(v, 0, 0, 1, LONG_MS, &one.w) == 0 && !ws_waiter_cancel(&one.w))
            while (!atomic_load(&one.done))
                (void)usleep(10);
        ws_version_put(v);
    }
    return NULL;
}

static void a_part_is_asked_for_all_the_time(void **state)
{
    const uint64_t bytes = 8 * MIB;
    struct asking asking = {0};
    struct ws_error err = {0};

    (void)state;
    publish_parts(1, bytes, 50 * MIB);
    store = store_of(shelf_tcp_start(shelf));
    assert_int_equal(ws_thread_start(&asking.thread, ask_for_a_part, &asking), 0);
    for (int i = 0; i < 3; i++) {
        struct ws_version *v = pulled(store, "actor", "1");
        assert_is_whole(v, bytes);
        assert_ok(ws_version_drop(v, &err), &err);
        ws_version_put(v);
    }
    atomic_store(&asking.over, true);
    pthread_join(asking.thread, NULL);
}

static void a_version_is_dropped_while_its_memory_is_made(void **state)
{
    const uint64_t bytes = 2 * MIB;

    (void)state;
    publish_parts(1, bytes, 0);
    store = store_of(shelf_tcp_start(shelf));
    for (int i = 0; i < 10; i++) {
        struct ws_version *v = version(store, "actor", "1");
        struct ws_error err = {0};
        ws_version_start(v, WS_PRIORITY_SWITCH);
        for (unsigned looks = 0; stats_of(store).used_bytes == 0 && looks < 1000000; looks++)
            ;
        assert_ok(ws_version_drop(v, &err), &err);
        ws_version_put(v);
        v = pulled(store, "actor", "1");
        assert_is_whole(v, bytes);
        assert_ok(ws_version_drop(v, &err), &err);
        ws_version_put(v);
        wait_until(stats_of(store).used_bytes == 0);
    }
}

/* The runs of a block have its bytes, and none has any where some of it is only the part's own, as its header is. */
static void a_block_of_a_part_is_found_where_it_lies(void **state)
{
    struct ws_part_runs *runs = malloc(sizeof(*runs));
    unsigned char *block = malloc(WS_BLOCK_BYTES);
    struct ws_error err = {0};

    (void)state;
    assert_true(runs && block);
    publish_parts(1, 20 * MIB, 0);
    store = store_of(shelf_tcp_start(shelf));
    struct ws_version *v = pulled(store, "actor", "1");
    for (unsigned k = 0; k < PARTS; k++) {
        char name[WS_MAX_NAME + 1];
        assert_int_equal(ws_node_part_model(name, "actor", k, PARTS, NULL), 0);
        struct ws_model *m = ws_node_parts_find(store, name);
        struct ws_version *part = ws_version_find(m, "1", NULL);
        const struct ws_manifest *manifest = ws_version_manifest(part, NULL);
        const size_t file = (size_t)(ws_manifest_find(manifest, WEIGHTS) - manifest->files);
        assert_false(ws_part_view_runs(part, file, 0, runs));
        for (size_t b = 1, at; b < manifest->files[file].n_blocks; b++) {
            const size_t n = ws_manifest_block_bytes(&manifest->files[file], b);
            assert_true(ws_part_view_runs(part, file, b, runs));
            assert_int_equal(runs->n, 1); /* half of the tensor lies side by side */
            ws_part_view_read(part, file, b * WS_BLOCK_BYTES, n, block);
            at = 0;
            for (size_t i = 0; i < runs->n; at += runs->runs[i++].n)
                assert_memory_equal(runs->runs[i].place, block + at, runs->runs[i].n);
            assert_int_equal(at, n);
            assert_ptr_equal(runs->runs[0].place,
                             (unsigned char *)ws_region_data(ws_version_region(v, runs->in[0].file)) +
                                 runs->in[0].to);
        }
        ws_version_put(part);
        ws_model_put(m);
    }
    assert_ok(ws_version_drop(v, &err), &err);
    ws_version_put(v);
    wait_until(stats_of(store).used_bytes == 0);
    free(block);
    free(runs);
}

static unsigned n_pulls(void)
{
    pthread_mutex_lock(&store->lock);
    const unsigned n = store->n_pulls;
    pthread_mutex_unlock(&store->lock);
    return n;
}

static void a_drop_ends_the_pulls_of_all_parts(void **state)
{
    const uint64_t bytes = 128 * MIB;
    struct ws_store_options options = {
        .cache_bytes = 1UL << 30, .streams = 1, .deadline_ms = LONG_MS, .threads = 2};
    struct ws_error err = {0};
    char url[256];

    (void)state;
    publish_parts(1, bytes, 0);
    snprintf(url, sizeof(url), "fault:delay=300:%s", shelf_tcp_start(shelf)); /* for each 16 MiB */
    store = store_with(&options);
    add_source(store, url, NULL);
    struct ws_version *v = version(store, "actor", "1");
    ws_version_start(v, WS_PRIORITY_SWITCH);
    wait_until(stats_of(store).moved_bytes > 4 * MIB && n_pulls() > PARTS);
    assert_ok(ws_version_drop(v, &err), &err);
    wait_until(n_pulls() == 0);
    assert_true(stats_of(store).moved_bytes < bytes);
    ws_version_put(v);
    wait_until(stats_of(store).used_bytes == 0);
}

static void parts_for_which_there_is_no_memory_come_later(void **state)
{
    const uint64_t bytes = 2 * MIB;
    struct ws_error err = {0};

    (void)state;
    if (!HAVE_INTERPOSED) {
        print_message("the sanitizer has a malloc of its own\n");
        skip();
    }
    publish_parts(1, bytes, 0);
    store = store_of(shelf_tcp_start(shelf));
    struct ws_version *v = version(store, "actor", "1");
    atomic_store(&refuses, true);
    pull_fails(v, WS_PRIORITY_SWITCH, -ENOMEM, "out of memory for the parts of actor/1");
    assert_false(atomic_load(&refuses));
    wait_until(stats_of(store).used_bytes == 0); /* a part's pull may have begun, and ends first */
    pull(v);                                     /* the same one */
    assert_is_whole(v, bytes);
    assert_ok(ws_version_drop(v, &err), &err);
    ws_version_put(v);
    wait_until(stats_of(store).used_bytes == 0);
}

static uint64_t room_of(const char *part)
{
    struct ws_model *m = ws_node_parts_find(store, part);
    uint64_t room;

    assert_non_null(m);
    pthread_mutex_lock(&store->lock);
    room = ws_model_delta_room(m);
    pthread_mutex_unlock(&store->lock);
    ws_model_put(m);
    return room;
}

static void parts_share_the_room_for_deltas_of_a_model(void **state)
{
    struct ws_store_options options = {.cache_bytes = 1UL << 30, .delta_cache_bytes = 64 * MIB, .threads = 2};

    (void)state;
    publish_parts(1, 2 * MIB, 0);
    for (int grows = 0; grows < 2; grows++) {
        options.delta_cache_bytes = grows ? WS_DELTA_CACHE_GROWS : 64 * MIB;
        store = store_with(&options);
        add_source(store, shelf_tcp_start(shelf), NULL);
        ws_version_put(version(store, "actor", "1"));
        const uint64_t room = room_of("actor@0.2") + room_of("actor@1.2");
        assert_int_equal(room, grows ? WS_DELTA_CACHE_LEAST : 64 * MIB);
        if (!grows)
            ws_store_free(store);
    }
}

static void a_part_that_has_no_version_goes(void **state)
{
    struct ws_store_options options = {.cache_bytes = 64 * MIB, .deadline_ms = LONG_MS, .threads = 1};
    struct ws_store_events events;

    (void)state;
    store = store_with(&options);
    ws_store_events_init(&events);
    pthread_mutex_lock(&store->lock);
    const struct ws_model *m = ws_model_add(store, "actor", &events);
    struct ws_model *part = m ? ws_model_add(store, "actor@0.2", &events) : NULL;
    const unsigned refs = atomic_load(&store->refs);
    if (part)
        ws_model_unlist(part, &events);
    const unsigned left = atomic_load(&store->refs);
    pthread_mutex_unlock(&store->lock);
    ws_store_events_notify(&events, store);
    assert_non_null(part);
    assert_int_equal(left, refs - 1);
}

static void *drop_at_random(void *arg)
{
    struct asking *a = arg;
    unsigned seed = 7;

    while (!atomic_load(&a->over)) {
        struct ws_version *v = version(store, "actor", "1");
        struct ws_error err;
        (void)usleep((useconds_t)rand_r(&seed) % 30000);
        while (ws_version_drop(v, &err) < 0 && err.code != ENOENT) /* that was another drop's */
            (void)usleep(1000);
        ws_version_put(v);
    }
    return NULL;
}

static void drops_at_random(void **state)
{
    const uint64_t bytes = 8 * MIB;
    struct asking asking = {0}, dropping[2] = {0};
    const time_t until = time(NULL) + SECONDS;
    unsigned wrong = 0;

    (void)state;
    publish_parts(1, bytes, 3 * MIB);
    store = store_of(shelf_tcp_start(shelf));
    assert_int_equal(ws_thread_start(&asking.thread, ask_for_a_part, &asking), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ws_thread_start(&dropping[i].thread, drop_at_random, &dropping[i]), 0);
    while (time(NULL) < until) {
        struct ws_version *v = version(store, "actor", "1");
        struct ws_error err = {0};
        if (ws_version_pull(v, WS_PRIORITY_SWITCH, LONG_MS, NULL, &err) == 0)
            assert_is_whole(v, bytes);
        else
            wrong += err.code != ESTALE && err.code != ECANCELED;
        ws_version_put(v);
    }
    atomic_store(&asking.over, true);
    pthread_join(asking.thread, NULL);
    for (int i = 0; i < 2; i++) {
        atomic_store(&dropping[i].over, true);
        pthread_join(dropping[i].thread, NULL);
    }
    assert_int_equal(wrong, 0);
    wait_until(stats_of(store).used_bytes == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORE_TEST(parts_share_the_room_for_deltas_of_a_model),
        STORE_TEST(a_block_of_a_part_is_found_where_it_lies),
        STORE_TEST(a_version_is_dropped_while_its_memory_is_made),
        STORE_TEST(a_drop_ends_the_pulls_of_all_parts),
        STORE_TEST(parts_for_which_there_is_no_memory_come_later),
        STORE_TEST(a_part_is_asked_for_all_the_time),
        STORE_TEST(a_part_that_has_no_version_goes),
        STORE_TEST(drops_at_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
