/* Ways back whose model is taken away while they are made: nothing of them is kept, nor counted. */
#include "fs/pull/undo.h"
#include "fs/store/version.h"
#include "fs/store/way_back.h"
#include "tests/fs/opened_store.h"

/* A version whose pull has taken the memory of the one before. */
struct patched {
    struct ws_version *v;
    struct ws_source_select selection;
    struct ws_manifest *before;
};

static void open_patched(struct patched *p)
{
    shelf_publish(shelf, "actor", 1, "r", 3 * MIB);
    shelf_publish(shelf, "actor", 2, "r", 3 * MIB);
    store = store_of(shelf_tcp_start(shelf));
    struct ws_version *before = pulled(store, "actor", "1");
    p->v = pulled(store, "actor", "2");
    assert_int_equal(ws_manifest_copy(ws_version_manifest(before, NULL), &p->before), 0);
    ws_version_put(before);
    pthread_mutex_lock(&store->lock);
    ws_source_select_init(&p->selection, p->v);
    pthread_mutex_unlock(&store->lock);
}

static void close_patched(struct patched *p)
{
    ws_source_select_release(&p->selection);
    ws_manifest_free(p->before);
    ws_version_put(p->v);
}

static void remove_model(void)
{
    struct ws_error err = {0};
    assert_ok(ws_store_remove(store, "actor", &err), &err);
}

static void assert_kept(const struct patched *p, size_t n, bool any_bytes)
{
    pthread_mutex_lock(&store->lock);
    const size_t ways = p->v->model->way_back.n;
    const uint64_t bytes = p->v->model->way_back_bytes;
    pthread_mutex_unlock(&store->lock);
    assert_int_equal(ways, n);
    assert_int_equal(bytes > 0, any_bytes);
}

/* Changes some bytes of the first block. */
static void overwrite(struct patched *p, struct ws_undo *u)
{
    const struct ws_manifest *m = ws_version_manifest(p->v, NULL);
    const struct ws_manifest_file *f = ws_manifest_find(m, "model.safetensors");
    struct ws_error err = {0};
    assert_non_null(f);
    const size_t file = (size_t)(f - m->files), len = ws_manifest_block_bytes(f, 0);
    unsigned char *bytes = malloc(len);
    assert_non_null(bytes);
    memcpy(bytes, ws_region_data(ws_version_region(p->v, file)), len);
    for (size_t i = len / 2; i < len / 2 + 1000; i++)
        bytes[i] ^= 1;
    assert_ok(ws_undo_write(u, p->v, 0, file, 0, bytes, NULL, &err), &err);
    free(bytes);
}

static void grows_while_its_model_goes(void **state)
{
    struct patched p;
    (void)state;
    open_patched(&p);
    ws_undo_begin(&p.selection, p.before);
    struct ws_undo *u = ws_undo_open(&p.selection, 1);
    assert_non_null(u);
    overwrite(&p, u);
    assert_kept(&p, 1, true);
    remove_model();
    assert_kept(&p, 0, false);
    overwrite(&p, u);
    ws_undo_close(u);
    ws_undo_end(p.v);
    assert_kept(&p, 0, false);
    close_patched(&p);
    wait_until(stats_of(store).used_bytes == 0);
}

static void begins_after_its_model_went(void **state)
{
    struct patched p;
    (void)state;
    open_patched(&p);
    remove_model();
    ws_undo_begin(&p.selection, p.before);
    assert_kept(&p, 0, false);
    assert_null(ws_undo_open(&p.selection, 1));
    overwrite(&p, NULL);
    close_patched(&p);
    wait_until(stats_of(store).used_bytes == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STORE_TEST(grows_while_its_model_goes),
        STORE_TEST(begins_after_its_model_went),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
