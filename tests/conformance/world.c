#include "tests/conformance/world.h"
#include "tests/fixtures/private_folder.h"
#include "tests/fixtures/unwatched.h"
#include "transports/dir/archive.h"
#include "transports/simd/copy.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define B WS_BLOCK_BYTES

const uint64_t world_sizes[WORLD_FILES] = {2 * B + 12345, 0, 1, B - 1, B, B + 1, 1000};

UNWATCHED static void write_folder(struct world *w, unsigned version, unsigned seed)
{
    char path[256], part[256];
    unsigned char *bytes = malloc(3 * B);
    static const char header[] = "{\"t\":{\"dtype\":\"U8\",\"shape\":[%lu],\"data_offsets\":[0,%lu]}}";
    char text[256];
    snprintf(path, sizeof(path), "%s/" WORLD_MODEL, w->dir);
    (void)mkdir(path, 0755);
    snprintf(part, sizeof(part), "%s/" WORLD_MODEL "/.part", w->dir);
    snprintf(path, sizeof(path), "%s/" WORLD_MODEL "/%u", w->dir, version);
    assert_int_equal(mkdir(part, 0755), 0);
    for (size_t i = 0; i < 3; i++) {
        static const unsigned long data[] = {2 * B + 77, 1, B};
        char file[512];
        snprintf(file, sizeof(file), "%s/f%zu.safetensors", part, i);
        uint64_t n = (uint64_t)snprintf(text, sizeof(text), header, data[i], data[i]);
        /* a tensor may be in one file only */
        text[2] = (char)('t' + i);
        for (unsigned long k = 0; k < data[i]; k++)
            bytes[k] = (unsigned char)(k * 31 + seed + i);
        FILE *f = fopen(file, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(&n, 1, 8, f), 8);
        assert_int_equal(fwrite(text, 1, n, f), n);
        assert_int_equal(fwrite(bytes, 1, data[i], f), data[i]);
        fclose(f);
    }
    free(bytes);
    assert_int_equal(rename(part, path), 0);
}

UNWATCHED static int archived_block(void *arg, size_t file, size_t block, unsigned char *dst,
                                    struct ws_error *err)
{
    const unsigned seed = *(const unsigned *)arg;
    const size_t at = block * B, n = world_sizes[file] - at < B ? world_sizes[file] - at : B;
    (void)err;
    for (size_t k = 0; k < n; k++)
        dst[k] = (unsigned char)((at + k) * 31 + seed + file);
    return 0;
}

static void write_archive(struct world *w, unsigned version, unsigned seed)
{
    struct ws_archive *a;
    struct ws_manifest *m;
    unsigned char *bytes = malloc(B);
    char *json;
    size_t n;
    assert_int_equal(ws_manifest_new(&m, WORLD_MODEL, version, "r1", NULL), 0);
    for (size_t i = 0; i < WORLD_FILES; i++) {
        struct ws_manifest_file *f;
        char name[32];
        snprintf(name, sizeof(name), "file%zu", i);
        assert_int_equal(ws_manifest_add(m, name, world_sizes[i], 0, &f, NULL), 0);
        for (size_t b = 0; b < f->n_blocks; b++) {
            assert_int_equal(archived_block(&seed, i, b, bytes, NULL), 0);
            f->hashes[b] = ws_hash(bytes, ws_manifest_block_bytes(f, b));
        }
    }
    free(bytes);
    ws_manifest_seal(m);
    assert_int_equal(ws_manifest_to_json(m, &json, &n, NULL), 0);
    assert_int_equal(ws_archive_open(&a, w->dir, NULL, NULL), 0);
    const struct ws_archive_hooks work = {.block = archived_block, .arg = &seed};
    assert_int_equal(ws_archive_add(a, &(struct ws_archive_version){m, json, n}, &work, NULL), 0);
    ws_archive_close(a);
    ws_manifest_free(m);
    free(json);
}

void world_publish(struct world *w, unsigned version, unsigned seed)
{
    if (strcmp(w->transport, "archive") == 0) {
        write_archive(w, version, seed);
        return;
    }
    if (!w->catalog) {
        write_folder(w, version, seed);
        return;
    }
    memory_catalog_publish(w->catalog, WORLD_MODEL, version, world_sizes, WORLD_FILES, seed);
    if (w->tcp)
        ws_tcp_server_wake(w->tcp);
    if (w->ipc)
        ws_ipc_server_wake(w->ipc);
}

void world_open(struct world *w, const char *token)
{
    struct ws_error err = {0};
    char inner[200] = "";
    assert_true(private_folder(w->dir, sizeof(w->dir), "conf"));
    if (strcmp(w->transport, "tcp") == 0 || strcmp(w->transport, "ipc") == 0 ||
        strcmp(w->transport, "ucx") == 0)
        w->catalog = memory_catalog_new();
    if (strcmp(w->transport, "tcp") == 0) {
        struct ws_catalog c =
            w->arriving ? memory_catalog_arriving(w->catalog) : memory_catalog_ops(w->catalog);
        struct ws_tcp_server_options o = {.listen = "127.0.0.1:0",
                                          .access = {.token = token, .insecure = !token}};
        assert_int_equal(ws_tcp_server_new(&w->tcp, &c, &o, &err), 0);
        snprintf(inner, sizeof(inner), "http://127.0.0.1:%u", ws_tcp_server_port(w->tcp));
    } else if (strcmp(w->transport, "ucx") == 0) {
        struct ws_catalog c = memory_catalog_ops(w->catalog);
        struct ws_tcp_server_options o = {.listen = "127.0.0.1:0",
                                          .access = {.token = token, .insecure = !token}};
        assert_int_equal(ws_ucx_server_new(&w->ucx, &c, &err), 0);
        memory_catalog_offer_ucx(w->catalog, w->ucx);
        assert_int_equal(ws_tcp_server_new(&w->tcp, &c, &o, &err), 0);
        snprintf(inner, sizeof(inner), "ucx+http://127.0.0.1:%u", ws_tcp_server_port(w->tcp));
    } else if (strcmp(w->transport, "ipc") == 0) {
        struct ws_catalog c = memory_catalog_ops(w->catalog);
        char path[128];
        snprintf(path, sizeof(path), "%s/sock", w->dir);
        assert_int_equal(ws_ipc_server_new(&w->ipc, path, (gid_t)-1, &c, NULL, NULL, &err), 0);
        snprintf(inner, sizeof(inner), "unix:%s", path);
    } else {
        char path[128];
        struct ws_archive *a = NULL;
        snprintf(path, sizeof(path), "%s/" WORLD_MODEL, w->dir);
        if (strcmp(w->transport, "archive") == 0)
            assert_int_equal(ws_archive_open(&a, w->dir, NULL, &err), 0);
        else
            (void)mkdir(path, 0755);
        ws_archive_close(a);
        snprintf(inner, sizeof(inner), "dir:%s", w->dir);
    }
    if (w->faults)
        snprintf(w->url, sizeof(w->url), "fault:%s:%s", w->faults, inner);
    else
        snprintf(w->url, sizeof(w->url), "%s", inner);
    struct ws_source_options o = {.token = token};
    assert_int_equal(ws_source_open(w->url, &o, &w->source, &err), 0);
}

void world_close_servers(struct world *w)
{
    if (w->ucx)
        ws_ucx_server_stop(w->ucx);
    ws_tcp_server_free(w->tcp);
    ws_ucx_server_free(w->ucx);
    w->ucx = NULL;
    ws_ipc_server_free(w->ipc);
    w->tcp = NULL;
    w->ipc = NULL;
}

void world_close(struct world *w)
{
    char command[128];
    ws_source_close(w->source);
    world_close_servers(w);
    if (w->catalog)
        memory_catalog_free(w->catalog);
    snprintf(command, sizeof(command), "rm -rf %s", w->dir);
    assert_int_equal(system(command), 0);
}
