/* A controller and its model with concurrent threads: what one does atomically no other interrupts. The tests
 * hold such a moment open by the lock that the thread needs next. */
#include "fs/engines/control.h"
#include "fs/engines/controller.h"
#include "fs/store/model.h"
#include "fs/store/version.h"
#include "fs/switch/catch_up.h"
#include "fs/switch/follow.h"
#include "fs/switch/switch.h"
#include "tests/fs/opened_store.h"
#include "transports/base/clock.h"
#include <sys/syscall.h>
#include <unistd.h>

static struct shelf *shelf;
static struct ws_store *store;
static struct ws_control *control;
static struct ws_controller *controller;
static struct ws_model *model;

/* Without a reconciler, which would look at the controller at times of its own. */
static int setup(void **state)
{
    (void)state;
    shelf = shelf_new();
    shelf_publish(shelf, "actor", 1, "r", MIB);
    store = store_of(shelf_tcp_start(shelf));
    control = calloc(1, sizeof(*control));
    assert_non_null(control);
    control->store = store;
    pthread_mutex_init(&control->lock, NULL);
    pthread_mutex_init(&control->saving, NULL);
    pthread_mutex_init(&control->adding, NULL);
    ws_cond_init(&control->idle);
    control->root.events = ws_event_log_new();
    assert_non_null(control->root.events);
    controller = ws_controller_get(control, "actor");
    model = ws_store_find(store, "actor");
    assert_true(controller && model);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ws_model_put(model);
    ws_store_free(store);
    ws_control_free(control);
    shelf_free(shelf);
    return 0;
}

struct other {
    pthread_t thread;
    atomic_int id;
    int rc;
    struct ws_error err;
};

/* Waits until the thread waits for the lock. */
static void wait_for_wait(struct other *o, const pthread_mutex_t *lock)
{
    for (unsigned naps = 0;; nap(), naps++) {
        char path[64];
        long number = 0;
        unsigned long address = 0;
        snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", atomic_load(&o->id));
        FILE *f = atomic_load(&o->id) ? fopen(path, "r") : NULL;
        const int n = f ? fscanf(f, "%ld %lx", &number, &address) : 0;
        if (f)
            fclose(f);
        if (n == 2 && number == SYS_futex && address == (unsigned long)lock)
            return;
        if (naps > LONG_MS / 5)
            fail_msg("the other thread never waited for the lock");
    }
}

static void *forget(void *arg)
{
    struct other *o = arg;
    atomic_store(&o->id, (int)gettid());
    ws_follow_forget(control, controller, model);
    return NULL;
}

/* Else a forget could come in between, and the engine would be back permanently. */
static void settings_are_handed_over_atomically(void **state)
{
    struct other o = {0};
    struct ws_desired desired;
    (void)state;
    controller->inherited_release = 7;
    controller->inherited = ws_version_id_make(1, "r");
    pthread_mutex_lock(&store->lock);
    assert_int_equal(pthread_create(&o.thread, NULL, forget, &o), 0);
    wait_for_wait(&o, &store->lock);
    const int rc = pthread_mutex_trylock(&control->lock);
    if (rc == 0)
        pthread_mutex_unlock(&control->lock);
    pthread_mutex_unlock(&store->lock);
    pthread_join(o.thread, NULL);
    assert_int_equal(rc, EBUSY);
    assert_int_equal(controller->inherited_release, 0);
    ws_model_desired(model, &desired);
    assert_false(desired.inherited || desired.released_by);
}

static void *catch_up(void *arg)
{
    static const char *const names[] = {"e"};
    struct other *o = arg;
    atomic_store(&o->id, (int)gettid());
    o->rc = ws_switch_catch_up(control, controller, model, names, 1, true, NULL, &o->err);
    return NULL;
}

/* A switch that ends before the claim has changed the engine. */
static void current_is_read_after_the_claim(void **state)
{
    struct other o = {0};
    struct ws_version *v = pulled(store, "actor", "1");
    (void)state;
    pthread_mutex_lock(&control->lock);
    assert_int_equal(pthread_create(&o.thread, NULL, catch_up, &o), 0);
    wait_for_wait(&o, &control->lock);
    ws_model_set_current(model, v);
    pthread_mutex_unlock(&control->lock);
    pthread_join(o.thread, NULL);
    assert_int_equal(o.rc, -ENOENT);
    assert_non_null(strstr(o.err.text, "no engine 'e'")); /* and not "no current version" */
    ws_version_put(v);
}

/* It was gone at the check, and has come back. */
static void a_model_that_is_listed_is_not_forgotten(void **state)
{
    (void)state;
    ws_model_forget(model);
    struct ws_model *m = ws_store_find(store, "actor");
    assert_ptr_equal(m, model);
    ws_model_put(m);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(settings_are_handed_over_atomically),
        TEST(current_is_read_after_the_claim),
        TEST(a_model_that_is_listed_is_not_forgotten),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
