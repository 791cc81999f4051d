/* What an agent leaves to the next one: descriptors that a supervisor keeps, messages of a process that has died, a store that is gone, and
 * the record of a slot, of which no byte can change without being noticed. */
#include "backends/trainer/agent/core/slot.h"
#include "backends/trainer/agent/core/slot_record.h"
#include "transports/base/descriptor_keeper.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define BYTES (WS_BLOCK_BYTES + 1000)

/* A daemon of the keeper's; its asserts are in its exit status. */
static void run(struct ws_descriptor_keeper *k, int (*daemon)(void))
{
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0) {
        ws_descriptor_keeper_serve_this(k);
        _exit(daemon());
    }
    for (pid_t got = 0; got == 0; got = waitpid(pid, &status, WNOHANG)) {
        struct pollfd more = {.fd = k->ends[0], .events = POLLIN};
        (void)poll(&more, 1, 10);
        ws_descriptor_keeper_receive(k);
    }
    ws_descriptor_keeper_receive(k);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* In a daemon. */
#define CHECK(what)                                                                                          \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                                       \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (0)

static int file_of(const char *text)
{
    const int fd = memfd_create("test", MFD_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? fd : -1;
}

static int put_some(void)
{
    char far[WS_DESCRIPTOR_NAME_CHARS + 2];
    CHECK(ws_descriptor_store_is_on() && !ws_descriptor_store_next(""));
    CHECK(ws_descriptor_store_put("slot-1", file_of("one")) == 0);
    CHECK(ws_descriptor_store_put("slot-2", file_of("two")) == 0);
    CHECK(ws_descriptor_store_put("file-3", file_of("three")) == 0);
    ws_descriptor_store_remove("slot-2");
    ws_descriptor_store_remove("slot-4");
    memset(far, 'x', sizeof(far) - 1);
    far[sizeof(far) - 1] = 0;
    CHECK(ws_descriptor_store_put(far, file_of("")) == 0);
    return 0; /* what it sent last may not have been received yet */
}

static int take_one(void)
{
    char text[8] = "";
    const char *name = ws_descriptor_store_next("slot-");
    CHECK(name && strcmp(name, "slot-1") == 0);
    CHECK(ws_descriptor_store_take("slot-2") < 0);
    CHECK(pread(ws_descriptor_store_take("slot-1"), text, sizeof(text) - 1, 0) == 3);
    CHECK(strcmp(text, "one") == 0 && !ws_descriptor_store_next("slot-"));
    CHECK(ws_descriptor_store_next("file-"));
    ws_descriptor_store_drop_rest();
    return !!ws_descriptor_store_next("");
}

static int find_one(void)
{
    CHECK(strcmp(ws_descriptor_store_next(""), "slot-1") == 0);
    return 0;
}

static void test_kept(void **state)
{
    struct ws_descriptor_keeper k;
    struct ws_error err;
    (void)state;
    assert_int_equal(ws_descriptor_keeper_init(&k, &err), 0);
    run(&k, put_some);
    assert_int_equal(k.n, 2);
    run(&k, take_one);
    assert_int_equal(k.n, 1);
    run(&k, find_one);
    ws_descriptor_keeper_release(&k);
}

static int put_into_nothing(void)
{
    CHECK(ws_descriptor_store_put("slot-1", file_of("one")) < 0 && !ws_descriptor_store_is_on());
    CHECK(ws_descriptor_store_put("slot-1", file_of("one")) < 0);
    ws_descriptor_store_remove("slot-1");
    return 0;
}

/* The supervisor was killed. */
static void test_gone(void **state)
{
    struct ws_descriptor_keeper k;
    struct ws_error err;
    int status, killed[2];
    char none;
    (void)state;
    assert_int_equal(ws_descriptor_keeper_init(&k, &err), 0);
    assert_int_equal(pipe(killed), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        close(killed[1]);
        ws_descriptor_keeper_serve_this(&k);
        _exit(read(killed[0], &none, 1) == 0 ? put_into_nothing() : 2);
    }
    close(killed[0]);
    ws_descriptor_keeper_release(&k);
    close(killed[1]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* --- records --- */

static struct ws_placement_file files[] = {
    {.name = (char *)(uintptr_t) "config.json"},
    {.name = (char *)(uintptr_t) "model.safetensors", .size_bytes = BYTES}};
static const struct ws_placement placement = {.id = "0123456789abcdef0123456789abcdef",
                                              .base_id = "b",
                                              .total_bytes = BYTES,
                                              .n_files = 2,
                                              .files = files};

static int make(struct ws_slot *s)
{
    struct ws_error err;
    struct ws_workers *w = ws_workers_new(1, 0);
    s->id = 7;
    s->begun_ns = 5;
    s->state = WS_SLOT_WRITING;
    CHECK(ws_slot_lay_out(s, &placement, 1, &err) == 0 && s->record);
    CHECK(ws_slot_begin(s, &placement, "actor", 3, "one", &err) == 0);
    s->state = WS_SLOT_HASHING;
    CHECK(ws_slot_seal(s, w, NULL, &err) == 0);
    ws_workers_free(w);
    CHECK(!ws_slot_record_is_served(s));
    ws_slot_serve(s, "[\"n0\",\"n1\"]");
    CHECK(ws_slot_record_is_served(s));
    return 0;
}

static int read_back(struct ws_slot *s, struct ws_kept_slot *out)
{
    struct ws_error err;
    return ws_slot_record_read(s->record, out, &err);
}

static int check_same(struct ws_slot *s)
{
    struct ws_kept_slot got;
    CHECK(read_back(s, &got) == 0);
    CHECK(got.slot->id == 7 && got.slot->begun_ns == 5 && strcmp(got.slot->placement_id, placement.id) == 0);
    CHECK(strcmp(got.slot->base_id, "b") == 0 &&
          strcmp(got.slot->manifest->digest, s->manifest->digest) == 0);
    CHECK(got.n_files == 2 && !got.files[0] && strcmp(got.files[1], ws_region_stored_as(s->regions[1])) == 0);
    CHECK(strcmp(got.nodes, "[\"n0\",\"n1\"]") == 0);
    got.slot->record = NULL;
    ws_kept_slot_release(&got);
    return 0;
}

static int read_damaged(void)
{
    struct ws_slot s = {0};
    struct ws_kept_slot got;
    CHECK(make(&s) == 0 && check_same(&s) == 0);
    unsigned char *at = ws_region_data(s.record);
    const uint64_t used = 64 + strlen("{") + s.json_bytes; /* some of it at least */
    for (uint64_t i = 0; i < used; i++) {
        at[i] ^= 0x40;
        const int rc = read_back(&s, &got);
        CHECK(rc == -EBADMSG || rc == -EPROTO);
        at[i] ^= 0x40;
    }
    CHECK(check_same(&s) == 0 && !ws_slot_record_is_deleted(&s));
    ws_slot_record_delete(&s);
    CHECK(check_same(&s) == 0 && ws_slot_record_is_deleted(&s));
    ws_slot_retire(&s);
    ws_slot_record_delete(&s);
    CHECK(read_back(&s, &got) == -EAGAIN && !ws_slot_record_is_deleted(&s));
    ws_slot_clear(&s);
    ws_slot_empty(&s);
    return 0;
}

static void test_record(void **state)
{
    struct ws_descriptor_keeper k;
    struct ws_error err;
    (void)state;
    assert_int_equal(ws_descriptor_keeper_init(&k, &err), 0);
    run(&k, read_damaged);
    assert_int_equal(k.n, 0);
    ws_descriptor_keeper_release(&k);
}

static int make_and_die(void)
{
    static struct ws_slot s;
    return make(&s);
}

static int take_over(void)
{
    struct ws_region *record = NULL, *file = NULL;
    struct ws_kept_slot k;
    struct ws_error err;
    char name[WS_DESCRIPTOR_NAME_CHARS + 1];
    CHECK(ws_region_take_over(&record, "slot-none", &err) == -ENOENT);
    snprintf(name, sizeof(name), "%s", ws_descriptor_store_next(WS_SLOT_RECORD_PREFIX));
    CHECK(ws_region_take_over(&record, name, &err) == 0);
    CHECK(ws_slot_record_read(record, &k, &err) == 0);
    CHECK(ws_region_take_over(&file, k.files[1], &err) == 0);
    CHECK(ws_region_size(file) == BYTES && ws_region_was_shown(file) && ws_region_idle(file) < 0);
    CHECK(ws_hash(ws_region_data(file), WS_BLOCK_BYTES) == k.slot->manifest->files[1].hashes[0]);
    ws_region_free(file);
    ws_kept_slot_release(&k);
    return 0;
}

/* The bytes are there when the process has died; they are freed when the next one frees them. */
static void test_taken_over(void **state)
{
    struct ws_descriptor_keeper k;
    struct ws_error err;
    (void)state;
    assert_int_equal(ws_descriptor_keeper_init(&k, &err), 0);
    run(&k, make_and_die);
    assert_int_equal(k.n, 2);
    run(&k, take_over);
    assert_int_equal(k.n, 0);
    ws_descriptor_keeper_release(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_gone),
        cmocka_unit_test(test_record),
        cmocka_unit_test(test_taken_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
