/* Weights: a checkpoint folder is read as the engines read it, with everything that they ignore, and a file
 * that is truncated during the read is an error, not the end of the process. */
#include "backends/engine/reference/checkpoint_loader.h"
#include "backends/engine/reference/sigbus_guard.h"
#include "tests/fixtures/checkpoint.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
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

static struct ws_error err;
static size_t missing;

static const struct ws_checkpoint_tensor *find(const struct ws_checkpoint *w, const char *name)
{
    for (size_t i = 0; i < w->n_tensors; i++) {
        if (!strcmp(w->tensors[i].name, name))
            return &w->tensors[i];
    }
    return NULL;
}

static void assert_tensor(const struct ws_checkpoint *w, const char *name, unsigned seed)
{
    const struct ws_checkpoint_tensor *t = find(w, name);

    assert_non_null(t);
    for (uint64_t i = 0; i < t->bytes; i++)
        assert_int_equal(w->memory[t->offset + i], checkpoint_byte(name, seed, i));
}

static const struct ws_tensor a[] = {{.name = "a", .dtype = WS_F32, .n_dims = 2, .shape = {30, 7}}};
static const struct ws_tensor b[] = {{.name = "b", .dtype = WS_BF16, .n_dims = 1, .shape = {9}}};
static const struct ws_tensor ab[] = {{.name = "a", .dtype = WS_F32, .n_dims = 2, .shape = {30, 7}},
                                      {.name = "b", .dtype = WS_BF16, .n_dims = 1, .shape = {9}}};

static void test_shards_and_index(void **state)
{
    char *dir = checkpoint_folder();
    struct ws_checkpoint w = {0};

    (void)state;
    checkpoint_write(dir, "model-00001-of-00002.safetensors", a, 1, 5);
    checkpoint_write(dir, "model-00002-of-00002.safetensors", b, 1, 5);
    checkpoint_write(dir, "consolidated.safetensors", ab, 2, 6);
    checkpoint_write_text(dir, "config.json", "{}");
    checkpoint_write_text(
        dir, "model.safetensors.index.json",
        "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
        "\"b\":\"model-00002-of-00002.safetensors\",\"c\":\"not-there.safetensors\",\"d\":7}}");
    assert_int_equal(ws_checkpoint_load(&w, NULL, dir, NULL, &missing, &err), 0);
    assert_int_equal(w.n_tensors, 2);
    assert_int_equal(missing, 0);
    assert_tensor(&w, "a", 5);
    assert_tensor(&w, "b", 5);
    assert_int_equal(ws_checkpoint_tensor_hash(&w, 0), ws_hash(w.memory, 30 * 7 * 4));
    ws_checkpoint_release(&w);

    checkpoint_write_text(dir, "model.safetensors.index.json", "{\"weights\":1}");
    assert_int_equal(ws_checkpoint_load(&w, NULL, dir, NULL, &missing, &err), -EBADMSG);
    checkpoint_write_text(dir, "model.safetensors.index.json", "{\"weight_map\":");
    assert_int_equal(ws_checkpoint_load(&w, NULL, dir, NULL, &missing, &err), -EBADMSG);
    ws_checkpoint_release(&w);
    checkpoint_remove(dir);
}

static void test_without_index_a_name_twice_is_refused(void **state)
{
    char *dir = checkpoint_folder();
    struct ws_checkpoint w = {0};

    (void)state;
    checkpoint_write(dir, "1.safetensors", a, 1, 5);
    checkpoint_write(dir, "2.safetensors", ab, 2, 5);
    assert_int_equal(ws_checkpoint_load(&w, NULL, dir, NULL, &missing, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "the tensor a is in another file too"));
    ws_checkpoint_release(&w);
    checkpoint_remove(dir);
}

static void test_nothing_there(void **state)
{
    char *dir = checkpoint_folder();
    struct ws_checkpoint w = {0};

    (void)state;
    assert_int_equal(ws_checkpoint_load(&w, NULL, "/nonexistent/wsync", NULL, &missing, &err), -ENOENT);
    assert_int_equal(ws_checkpoint_load(&w, NULL, dir, NULL, &missing, &err), -ENOENT);
    checkpoint_write_text(dir, ".hidden.safetensors", "x");
    checkpoint_write_text(dir, "model.bin", "x");
    assert_int_equal(ws_checkpoint_load(&w, NULL, dir, NULL, &missing, &err), -ENOENT);
    checkpoint_write_text(dir, "model.safetensors", "x");
    assert_int_equal(ws_checkpoint_load(&w, NULL, dir, NULL, &missing, &err), -EBADMSG);
    ws_checkpoint_release(&w);
    checkpoint_remove(dir);
}

/* As real engines do: a missing tensor keeps its old bytes silently, an extra one is not read, another dtype
 * is accepted, another shape is refused. */
static void test_second_load(void **state)
{
    static const struct ws_tensor other_shape[] = {
        {.name = "a", .dtype = WS_F32, .n_dims = 2, .shape = {7, 30}}};
    static const struct ws_tensor extra[] = {{.name = "a", .dtype = WS_F16, .n_dims = 2, .shape = {30, 7}},
                                             {.name = "z", .dtype = WS_F32, .n_dims = 1, .shape = {3}}};
    char *dir = checkpoint_folder();
    struct ws_checkpoint first = {0}, second = {0};

    (void)state;
    checkpoint_write(dir, "model.safetensors", ab, 2, 1);
    assert_int_equal(ws_checkpoint_load(&first, NULL, dir, NULL, &missing, &err), 0);
    checkpoint_write(dir, "model.safetensors", a, 1, 2);
    assert_int_equal(ws_checkpoint_load(&second, &first, dir, NULL, &missing, &err), 0);
    assert_int_equal(missing, 1);
    assert_tensor(&second, "a", 2);
    assert_tensor(&second, "b", 1);

    checkpoint_write(dir, "model.safetensors", extra, 2, 3);
    assert_int_equal(ws_checkpoint_load(&first, &second, dir, NULL, &missing, &err), 0);
    assert_int_equal(first.n_tensors, 2);
    assert_int_equal(find(&first, "a")->dtype, WS_F16);
    assert_tensor(&first, "a", 3);
    assert_tensor(&first, "b", 1);

    checkpoint_write(dir, "model.safetensors", other_shape, 1, 4);
    assert_int_equal(ws_checkpoint_load(&second, &first, dir, NULL, &missing, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "size mismatch for a"));
    assert_int_equal(second.n_tensors, 0);
    assert_tensor(&first, "a", 3);
    ws_checkpoint_release(&first);
    ws_checkpoint_release(&second);
    checkpoint_remove(dir);
}

static void test_memory_is_used_again(void **state)
{
    char *dir = checkpoint_folder();
    struct ws_checkpoint first = {0}, second = {0};
    const unsigned char *memory;

    (void)state;
    checkpoint_write_model(dir, 1);
    assert_int_equal(ws_checkpoint_load(&first, NULL, dir, NULL, &missing, &err), 0);
    assert_int_equal(ws_checkpoint_load(&second, &first, dir, NULL, &missing, &err), 0);
    memory = second.memory;
    assert_int_equal(ws_checkpoint_load(&second, &first, dir, NULL, &missing, &err), 0);
    assert_ptr_equal(second.memory, memory);
    ws_checkpoint_release(&first);
    ws_checkpoint_release(&second);
    checkpoint_remove(dir);
}

/* --- files that are truncated --- */

static char cut_path[PATH_MAX];

static void cut(void *step, const char *reached)
{
    if (!strcmp(step, reached))
        assert_int_equal(truncate(cut_path, 4096), 0);
}

static void test_cut_while_it_is_read(void **state)
{
    static const struct ws_tensor big[] = {{.name = "a", .dtype = WS_U8, .n_dims = 1, .shape = {65536}},
                                           {.name = "b", .dtype = WS_U8, .n_dims = 1, .shape = {65536}}};
    static char open_step[] = "open", load_step[] = "load";
    char *const at[] = {open_step, load_step};
    struct ws_checkpoint w = {0};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char *dir = checkpoint_folder();
        struct ws_checkpoint_hooks steps = {cut, at[i]};
        checkpoint_write(dir, "model.safetensors", big, 2, 1);
        snprintf(cut_path, sizeof(cut_path), "%s/model.safetensors", dir);
        assert_int_equal(ws_checkpoint_load(&w, NULL, dir, &steps, &missing, &err), -EIO);
        assert_non_null(strstr(err.text, cut_path));
        assert_int_equal(w.n_tensors, 0);
        checkpoint_remove(dir);
    }
    ws_checkpoint_release(&w);
}

static void test_other_bus_errors_still_kill(void **state)
{
    int status;
    pid_t pid = fork();

    (void)state;
    assert_true(pid >= 0);
    if (pid == 0) {
        int fd = memfd_create("cut", 0);
        volatile char *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        signal(SIGBUS, SIG_DFL); /* not the sanitizer's handler */
        ws_sigbus_guard_install();
        _exit(p[0]);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGBUS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_bus_errors_still_kill), /* first: the guard is installed once */
        cmocka_unit_test(test_shards_and_index),
        cmocka_unit_test(test_without_index_a_name_twice_is_refused),
        cmocka_unit_test(test_nothing_there),
        cmocka_unit_test(test_second_load),
        cmocka_unit_test(test_memory_is_used_again),
        cmocka_unit_test(test_cut_while_it_is_read),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("weights", tests, NULL, NULL);
}
