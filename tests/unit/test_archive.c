/* The archive: written versions read back bit for bit; which versions are kept; what crashes leave; damage by
 * a disk; refusals. */
#include "tests/fixtures/private_folder.h"
#include "tests/fixtures/unwatched.h"
#include "transports/base/below.h"
#include "transports/delta/encode.h"
#include "transports/delta/patcher.h"
#include "transports/dir/archive.h"
#include "transports/dir/archive_listing.h"
#include "transports/simd/copy.h"
#include "transports/transport.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define N_FILES    3
#define BIG        (WS_BLOCK_BYTES + 70000)
#define N_VERSIONS 70

/* A version in memory: weights of two blocks, config.json, an empty file. */
struct version {
    struct ws_manifest *manifest;
    unsigned char *files[N_FILES];
    char *json;
    size_t json_bytes;
    size_t fail_at; /* number of block() calls until one fails; 0: none fails */
    int code;
};

static const size_t sizes[N_FILES] = {BIG, 700, 0};
static const char *const names[N_FILES] = {"a.bin", "config.json", "empty"};
static char dir[64];

UNWATCHED static void make_version(struct version *v, const struct version *before, uint64_t number,
                                   const char *run, size_t config_bytes)
{
    *v = (struct version){0};
    assert_int_equal(ws_manifest_new(&v->manifest, "actor", number, run, NULL), 0);
    for (size_t i = 0; i < N_FILES; i++) {
        struct ws_manifest_file *f;
        const size_t n = i == 1 && config_bytes ? config_bytes : sizes[i];
        v->files[i] = malloc(n + 8);
        for (size_t k = 0; k < n; k++)
            v->files[i][k] = before && k < before->manifest->files[i].size_bytes
                                 ? before->files[i][k]
                                 : (unsigned char)(k * 7 + k / 256);
        for (size_t k = number * 16; i == 0 && k < n; k += 4096)
            v->files[i][k]++;
        assert_int_equal(ws_manifest_add(v->manifest, names[i], n, 0, &f, NULL), 0);
        for (size_t b = 0; b < f->n_blocks; b++)
            f->hashes[b] = ws_hash(v->files[i] + b * WS_BLOCK_BYTES, ws_manifest_block_bytes(f, b));
    }
    v->manifest->created_ns = 1000 * number + (strcmp(run, "r1") ? 1000000 : 0);
    ws_manifest_seal(v->manifest);
    assert_int_equal(ws_manifest_to_json(v->manifest, &v->json, &v->json_bytes, NULL), 0);
}

static void free_version(struct version *v)
{
    for (size_t i = 0; i < N_FILES; i++)
        free(v->files[i]);
    ws_manifest_free(v->manifest);
    free(v->json);
}

static struct ws_delta *delta_of(const struct version *a, const struct version *b)
{
    struct ws_delta_link l = {.base = ws_version_id_make(a->manifest->version, a->manifest->lineage),
                              .target = ws_version_id_make(b->manifest->version, b->manifest->lineage)};
    const struct ws_delta_side from = {a->manifest, (const unsigned char *const *)a->files},
                               to = {b->manifest, (const unsigned char *const *)b->files};
    struct ws_workers *w = ws_workers_new(1, 0);
    struct ws_delta *d;
    memcpy(l.base_digest, a->manifest->digest, 33);
    memcpy(l.target_digest, b->manifest->digest, 33);
    assert_int_equal(ws_delta_new(&d, &l, b->manifest, NULL), 0);
    ws_delta_encode(d, &from, &to, 0, UINT64_MAX, w, NULL);
    ws_workers_free(w);
    assert_int_equal(ws_delta_state(d), WS_DELTA_WHOLE);
    return d;
}

static int on_block(void *arg, size_t file, size_t block, unsigned char *dst, struct ws_error *err)
{
    struct version *v = arg;
    if (v->fail_at && --v->fail_at == 0)
        return ws_error_set(err, v->code, "the source of the bytes failed");
    memcpy(dst, v->files[file] + block * WS_BLOCK_BYTES,
           ws_manifest_block_bytes(&v->manifest->files[file], block));
    return 0;
}

static int add_whole(struct ws_archive *a, struct version *v, struct ws_error *err)
{
    const struct ws_archive_hooks work = {.block = on_block, .arg = v};
    return ws_archive_add(a, &(struct ws_archive_version){v->manifest, v->json, v->json_bytes}, &work, err);
}

static int add_delta(struct ws_archive *a, const struct version *base, const struct version *v,
                     struct ws_error *err)
{
    struct ws_delta *d = delta_of(base, v);
    int rc = ws_archive_add_delta(a, &(struct ws_archive_version){v->manifest, v->json, v->json_bytes}, d,
                                  NULL, err);
    ws_delta_put(d);
    return rc;
}

static struct ws_archive *open_archive(void)
{
    struct ws_archive *a = NULL;
    struct ws_error err = {0};
    if (ws_archive_open(&a, dir, NULL, &err) < 0)
        fail_msg("%s", err.text);
    return a;
}

static bool is_there(const char *path)
{
    char whole[256];
    struct stat st;
    snprintf(whole, sizeof(whole), "%s/v1/%s", dir, path);
    return lstat(whole, &st) == 0;
}

static void shell(const char *format, const char *what)
{
    char command[512];
    snprintf(command, sizeof(command), format, dir, what);
    assert_int_equal(system(command), 0);
}

static int read_listing(const char *root, struct ws_archive_listing *out, struct ws_error *err)
{
    char path[WS_ARCHIVE_PATH_BYTES], *text;
    size_t n;
    ws_archive_path(path, root, NULL, UINT64_MAX, "models");
    int rc = ws_below_read(NULL, path, WS_MAX_REPLY_BYTES, &text, &n, err);
    if (rc < 0)
        return rc;
    rc = ws_archive_listing_parse(text, n, path, out, err);
    free(text);
    return rc;
}

/* The listing as "1 2+ 3+"; a plus: a delta of another version. */
static void assert_listed(const char *want)
{
    struct ws_archive_listing l;
    char got[1024] = "";
    assert_int_equal(read_listing(dir, &l, NULL), 0);
    const struct ws_archive_model *m = ws_archive_listing_find_model(&l, "actor");
    for (size_t i = 0; m && i < m->entries.len; i++)
        snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%" PRIu64 "%s", i ? " " : "",
                 m->entries.ptr[i].id.version, ws_archive_entry_is_anchor(&m->entries.ptr[i]) ? "" : "+");
    ws_archive_listing_free(&l);
    assert_string_equal(got, want);
}

static int begin(void **state)
{
    (void)state;
    return private_folder(dir, sizeof(dir), "archive") ? 0 : -1;
}

static int end(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command);
}

/* --- reading --- */

static struct ws_source *open_source(void)
{
    char url[80];
    struct ws_source *s = NULL;
    snprintf(url, sizeof(url), "dir:%s", dir);
    assert_int_equal(ws_source_open(url, NULL, &s, NULL), 0);
    assert_string_equal(ws_source_transport(s), "archive");
    return s;
}

static int on_arrival(void *arg, size_t block, uint64_t hash)
{
    (void)hash;
    ((unsigned *)arg)[0] |= 1U << block;
    return 0;
}

static int fetch(struct ws_source *s, const struct version *v, size_t file, unsigned char *dst,
                 struct ws_error *err)
{
    struct ws_lane *l;
    unsigned here = 0;
    struct ws_fetch f = {.manifest = v->manifest,
                         .file = file,
                         .n = v->manifest->files[file].n_blocks,
                         .dst = dst,
                         .block = on_arrival,
                         .arg = &here};
    assert_int_equal(ws_lane_open(s, &l, err), 0);
    int rc = ws_lane_fetch(l, &f, err);
    ws_lane_close(l);
    assert_true(rc < 0 || here == (1U << f.n) - 1);
    return rc;
}

static int on_record(void *arg, struct ws_delta_record *r)
{
    return ws_delta_add(arg, r);
}

static int fetch_delta(struct ws_source *s, const struct ws_delta_entry *o, const struct version *v,
                       struct ws_delta **out, struct ws_error *err)
{
    struct ws_lane *l;
    assert_int_equal(ws_delta_new(out, &o->link, v->manifest, NULL), 0);
    struct ws_delta_fetch f = {.model = "actor",
                               .link = o->link,
                               .n_blocks = o->n_blocks,
                               .parts = 1,
                               .sink.record = on_record,
                               .sink.arg = *out};
    assert_int_equal(ws_lane_open(s, &l, err), 0);
    int rc = ws_lane_delta(l, &f, err);
    ws_lane_close(l);
    ws_delta_end(*out, rc == 0 ? WS_DELTA_WHOLE : WS_DELTA_GIVEN_UP);
    return rc;
}

static void written_versions_read_back(void **state)
{
    struct version v[3];
    struct ws_delta_entry *offers = calloc(WS_MAX_DELTA_ENTRIES, sizeof(*offers));
    struct ws_error err = {0};
    size_t n;
    (void)state;
    struct ws_archive *a = open_archive();
    for (unsigned i = 0; i < 3; i++)
        make_version(&v[i], i ? &v[i - 1] : NULL, i + 1, "r1", 0);
    assert_int_equal(add_whole(a, &v[0], &err), 0);
    assert_int_equal(add_delta(a, &v[0], &v[1], &err), 0);
    assert_int_equal(add_delta(a, &v[1], &v[2], &err), 0);
    assert_listed("1 2+ 3+");
    struct ws_source *s = open_source();
    for (unsigned i = 0; i < 3; i++) {
        char path[WS_ARCHIVE_PATH_BYTES], *text;
        size_t bytes;
        struct ws_manifest *m;
        ws_archive_path(path, dir, "actor", i + 1, "manifest");
        assert_int_equal(ws_below_read(NULL, path, 1 << 20, &text, &bytes, &err), 0);
        assert_int_equal(bytes, v[i].json_bytes);
        assert_memory_equal(text, v[i].json, bytes);
        free(text);
        assert_int_equal(ws_source_manifest(s, "actor", i + 1, "r1", NULL, &m, &err), 0);
        assert_string_equal(m->digest, v[i].manifest->digest);
        ws_manifest_free(m);
        assert_int_equal(
            ws_source_deltas(s, "actor", &(struct ws_version_id){i + 1, "r1"}, NULL, offers, &n, &err), 0);
        assert_int_equal(n, i);
    }
    unsigned char *bytes = malloc(BIG);
    for (size_t f = 0; f < 2; f++) {
        assert_int_equal(fetch(s, &v[0], f, bytes, &err), 0);
        assert_memory_equal(bytes, v[0].files[f], sizes[f]);
    }
    /* the chain, patched onto the anchor */
    assert_int_equal(fetch(s, &v[0], 0, bytes, &err), 0);
    struct ws_patcher *p = ws_patcher_new();
    for (size_t i = n; i-- > 0;) {
        const struct version *to = &v[n - i];
        struct ws_delta *d;
        assert_int_equal(offers[i].most_parts, 1);
        assert_int_equal(offers[i].link.target.version, to->manifest->version);
        assert_int_equal(fetch_delta(s, &offers[i], to, &d, &err), 0);
        for (size_t b = 0; b < 2; b++) {
            const struct ws_delta_record *r = ws_delta_at(d, 0, b);
            const size_t len = ws_manifest_block_bytes(&to->manifest->files[0], b);
            uint64_t hash;
            assert_non_null(r);
            assert_int_equal(ws_patcher_block(p, bytes + b * WS_BLOCK_BYTES, NULL, len, &r, 1, &hash, &err),
                             0);
            assert_int_equal(hash, to->manifest->files[0].hashes[b]);
        }
        ws_delta_put(d);
    }
    assert_memory_equal(bytes, v[2].files[0], BIG);
    ws_patcher_free(p);
    free(bytes);
    ws_source_close(s);
    ws_archive_close(a);
    free(offers);
    for (unsigned i = 0; i < 3; i++)
        free_version(&v[i]);
}

/* --- which versions stay --- */

static void the_newest_anchors_are_kept(void **state)
{
    struct version v[7];
    (void)state;
    struct ws_archive *a = open_archive();
    for (unsigned i = 0; i < 7; i++) {
        make_version(&v[i], i ? &v[i - 1] : NULL, i + 1, "r1", 0);
        assert_int_equal(i % 3 ? add_delta(a, &v[i - 1], &v[i], NULL) : add_whole(a, &v[i], NULL), 0);
    }
    assert_listed("1 2+ 3+ 4 5+ 6+ 7");
    assert_int_equal(ws_archive_prune(a, "actor", 3, NULL), 0);
    assert_listed("1 2+ 3+ 4 5+ 6+ 7");
    assert_int_equal(ws_archive_prune(a, "actor", 2, NULL), 0);
    assert_listed("4 5+ 6+ 7");
    assert_true(is_there("actor/4/files/a.bin") && !is_there("actor/3") && !is_there("actor/.gone-3"));
    assert_int_equal(ws_archive_prune(a, "actor", 1, NULL), 0);
    assert_int_equal(ws_archive_prune(a, "nobody", 1, NULL), 0);
    assert_listed("7");
    ws_archive_close(a);
    for (unsigned i = 0; i < 7; i++)
        free_version(&v[i]);
}

static void a_number_is_listed_once(void **state)
{
    struct version v[4], other, late;
    unsigned depth = 99;
    (void)state;
    struct ws_archive *a = open_archive();
    for (unsigned i = 0; i < 4; i++) {
        make_version(&v[i], i ? &v[i - 1] : NULL, i + 1, "r1", 0);
        assert_int_equal(i ? add_delta(a, &v[i - 1], &v[i], NULL) : add_whole(a, &v[i], NULL), 0);
    }
    assert_true(ws_archive_has(a, v[3].manifest, &depth));
    assert_int_equal(depth, 3);
    assert_int_equal(add_whole(a, &v[3], NULL), 0); /* it exists already: nothing happens */
    assert_listed("1 2+ 3+ 4+");
    make_version(&other, &v[0], 2, "r2", 0);
    assert_int_equal(add_delta(a, &v[0], &other, NULL), -EINVAL); /* another lineage */
    assert_int_equal(add_whole(a, &other, NULL), 0);
    assert_listed("1 2");
    assert_true(!is_there("actor/3") && is_there("actor/2/files") && !is_there("actor/2/delta"));
    assert_false(ws_archive_has(a, v[1].manifest, &depth));
    make_version(&late, NULL, 9, "r1", 0); /* older than r2's: listed at its old place */
    assert_int_equal(add_whole(a, &late, NULL), 0);
    assert_listed("1 9 2");
    ws_archive_close(a);
    free_version(&other);
    free_version(&late);
    for (unsigned i = 0; i < 4; i++)
        free_version(&v[i]);
}

/* --- crashes and refusals --- */

static void crash_leftovers_are_removed(void **state)
{
    struct version v;
    struct ws_archive *second = NULL;
    struct ws_error err = {0};
    (void)state;
    struct ws_archive *a = open_archive();
    make_version(&v, NULL, 1, "r1", 0);
    assert_int_equal(add_whole(a, &v, NULL), 0);
    assert_int_equal(ws_archive_open(&second, dir, NULL, &err), -EBUSY);
    assert_non_null(strstr(err.text, dir));
    ws_archive_close(a);
    shell("cd %s/v1/actor && mkdir -p .new-2/files 3/files .gone-4 && touch .new-2/files/x 3/files/x "
          ".gone-4/delta %s",
          "");
    shell("cd %s/v1 && touch .models.new && rm events && mkdir other && touch other/kept %s", "");
    struct ws_source *s = open_source(); /* a reader ignores them */
    struct ws_manifest *m;
    assert_int_equal(ws_source_manifest(s, "actor", 1, "r1", NULL, &m, &err), 0);
    ws_manifest_free(m);
    assert_int_equal(ws_source_manifest(s, "actor", 3, "r1", NULL, &m, &err), -ENOENT);
    ws_source_close(s);
    a = open_archive();
    assert_listed("1");
    assert_true(is_there("actor/1/files/a.bin") && is_there("events") && is_there("other/kept"));
    assert_false(is_there("actor/.new-2") || is_there("actor/3") || is_there("actor/.gone-4"));
    ws_archive_close(a);
    shell("cd %s/v1 && echo nonsense > models %s", "");
    assert_int_equal(ws_archive_open(&a, dir, NULL, &err), -EBADMSG);
    assert_true(is_there("actor/1/files/a.bin"));
    free_version(&v);
}

static void a_lost_listing_costs_no_version(void **state)
{
    struct version v;
    struct ws_error err = {0};
    (void)state;
    struct ws_archive *a = open_archive();
    make_version(&v, NULL, 1, "r1", 0);
    assert_int_equal(add_whole(a, &v, NULL), 0);
    ws_archive_close(a);
    shell("rm %s/v1/models %s", "");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ws_archive_open(&a, dir, NULL, &err), -EBADMSG);
        assert_non_null(strstr(err.text, "v1/events"));
        assert_true(is_there("actor/1/files/a.bin") && !is_there("models"));
    }
    shell("cp %s/v1/events %s/v1/models", dir);
    ws_archive_close(open_archive());
    assert_listed("1");
    free_version(&v);
}

static void failed_writes_leave_nothing(void **state)
{
    struct version v, next, resized;
    struct ws_error err = {0};
    atomic_bool stop = true;
    (void)state;
    struct ws_archive *a = open_archive();
    make_version(&v, NULL, 1, "r1", 0);
    make_version(&next, &v, 2, "r1", 0);
    make_version(&resized, &v, 3, "r1", 900);
    for (size_t i = 1; i <= 3; i++) {
        v.fail_at = i;
        v.code = ENOSPC;
        assert_int_equal(add_whole(a, &v, &err), -ENOSPC);
        assert_listed("");
        assert_false(is_there("actor/1") || is_there("actor/.new-1"));
    }
    const struct ws_archive_hooks stopped = {.block = on_block, .arg = &v, .stop = &stop};
    assert_int_equal(
        ws_archive_add(a, &(struct ws_archive_version){v.manifest, v.json, v.json_bytes}, &stopped, &err),
        -ECANCELED);
    v.files[0][WS_BLOCK_BYTES + 5] ^= 1; /* memory that changed after it was hashed */
    assert_int_equal(add_whole(a, &v, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "block 1"));
    v.files[0][WS_BLOCK_BYTES + 5] ^= 1;
    assert_int_equal(add_delta(a, &v, &next, &err), -ENOENT);
    assert_false(is_there("actor/.new-1") || is_there("actor/.new-2"));
    assert_int_equal(add_whole(a, &v, &err), 0);
    assert_int_equal(add_delta(a, &v, &resized, &err), -EINVAL);
    assert_listed("1");
    ws_archive_close(a);
    free_version(&v);
    free_version(&next);
    free_version(&resized);
}

/* A version with the same number and lineage but other bytes, as from a trainer restored to an older state,
 * is not the base that the delta was made from. */
static void a_delta_needs_its_exact_base(void **state)
{
    struct version v, other, next;
    struct ws_error err = {0};
    (void)state;
    struct ws_archive *a = open_archive();
    make_version(&v, NULL, 1, "r1", 0);
    make_version(&other, &v, 1, "r1", 0);
    make_version(&next, &other, 2, "r1", 0);
    assert_string_not_equal(v.manifest->digest, other.manifest->digest);
    assert_int_equal(add_whole(a, &v, &err), 0);
    unsigned depth;
    assert_true(ws_archive_has(a, v.manifest, &depth));
    assert_false(ws_archive_has(a, other.manifest, &depth));
    assert_int_equal(add_delta(a, &v, &other, &err), -EINVAL); /* it would be its own base */
    assert_int_equal(add_delta(a, &other, &next, &err), -ENOENT);
    assert_listed("1");
    assert_false(is_there("actor/2") || is_there("actor/.new-2"));
    assert_int_equal(add_delta(a, &v, &next, &err), 0);
    assert_listed("1 2+");
    ws_archive_close(a);
    free_version(&v);
    free_version(&other);
    free_version(&next);
}

static void chains_end(void **state)
{
    struct version v[N_VERSIONS];
    struct ws_error err = {0};
    int rc = 0;
    unsigned n = 1;
    (void)state;
    struct ws_archive *a = open_archive();
    make_version(&v[0], NULL, 1, "r1", 0);
    assert_int_equal(add_whole(a, &v[0], NULL), 0);
    for (; rc == 0 && n < N_VERSIONS; n++) {
        make_version(&v[n], &v[n - 1], n + 1, "r1", 0);
        rc = add_delta(a, &v[n - 1], &v[n], &err);
    }
    assert_int_equal(rc, -E2BIG);
    assert_int_equal(n, WS_MAX_DELTA_ENTRIES + 2); /* the anchor, the deltas, the one too many */
    assert_int_equal(add_whole(a, &v[n - 1], &err), 0);
    ws_archive_close(a);
    for (unsigned i = 0; i < n; i++)
        free_version(&v[i]);
}

/* --- damage --- */

static void flip(const char *path, long at)
{
    char whole[256];
    struct stat st;
    unsigned char c;
    snprintf(whole, sizeof(whole), "%s/v1/%s", dir, path);
    int fd = open(whole, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_int_equal(pread(fd, &c, 1, at < 0 ? st.st_size + at : at), 1);
    c ^= 1;
    assert_int_equal(pwrite(fd, &c, 1, at < 0 ? st.st_size + at : at), 1);
    close(fd);
}

static void damage_is_named(void **state)
{
    struct version v[2];
    struct ws_delta_entry *offers = calloc(WS_MAX_DELTA_ENTRIES, sizeof(*offers));
    unsigned char *bytes = malloc(BIG);
    struct ws_error err = {0};
    struct ws_manifest *m;
    struct ws_delta *d;
    size_t n;
    (void)state;
    struct ws_archive *a = open_archive();
    make_version(&v[0], NULL, 1, "r1", 0);
    make_version(&v[1], &v[0], 2, "r1", 0);
    assert_int_equal(add_whole(a, &v[0], NULL), 0);
    assert_int_equal(add_delta(a, &v[0], &v[1], NULL), 0);
    ws_archive_close(a);
    struct ws_source *s = open_source();
    assert_int_equal(ws_source_deltas(s, "actor", &(struct ws_version_id){2, "r1"}, NULL, offers, &n, &err),
                     0);
    for (long at = 0; at < 600; at += 7) {
        flip("actor/2/delta", at);
        assert_int_equal(fetch_delta(s, offers, &v[1], &d, &err), -EBADMSG);
        assert_non_null(strstr(err.text, "/v1/actor/2/delta"));
        ws_delta_put(d);
        flip("actor/2/delta", at);
    }
    shell("truncate -s -1 %s/v1/actor/2/%s", "delta");
    assert_int_equal(fetch_delta(s, offers, &v[1], &d, &err), -EBADMSG);
    ws_delta_put(d);
    flip("actor/1/files/a.bin", -3);
    assert_int_equal(fetch(s, &v[0], 0, bytes, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "block 1 of"));
    assert_non_null(strstr(err.text, "/v1/actor/1/files/a.bin"));
    shell("rm %s/v1/actor/1/files/%s", "config.json");
    assert_int_equal(fetch(s, &v[0], 1, bytes, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "/v1/actor/1/files/config.json"));
    flip("actor/1/manifest", 40);
    assert_int_equal(ws_source_manifest(s, "actor", 1, "r1", NULL, &m, &err), -EBADMSG);
    assert_non_null(strstr(err.text, "/v1/actor/1/manifest"));
    shell("cp %s/v1/actor/2/manifest %s/v1/actor/1/manifest", dir); /* that of another version */
    assert_int_equal(ws_source_manifest(s, "actor", 1, "r1", NULL, &m, &err), -EBADMSG);
    shell("echo '{' > %s/v1/actor/2/%s", "deltas");
    assert_int_equal(ws_source_deltas(s, "actor", &(struct ws_version_id){2, "r1"}, NULL, offers, &n, &err),
                     -EBADMSG);
    shell("rm %s/v1/actor/2/%s", "deltas");
    assert_int_equal(ws_source_deltas(s, "actor", &(struct ws_version_id){2, "r1"}, NULL, offers, &n, &err),
                     -EBADMSG);
    ws_source_close(s);
    free(bytes);
    free(offers);
    free_version(&v[0]);
    free_version(&v[1]);
}

static void hostile_listings_are_refused(void **state)
{
    static const char *const bad[] = {
        "[]",
        "{\"seq\":1}",
        "{\"seq\":-1,\"models\":[]}",
        "{\"seq\":1,\"models\":[{\"name\":\"../../etc\",\"versions\":[]}]}",
        "{\"seq\":1,\"models\":[{\"name\":\"a/b\",\"versions\":[]}]}",
        "{\"seq\":1,\"models\":[{\"name\":\"a\",\"versions\":[{\"version\":1}]}]}",
        "{\"seq\":1,\"models\":[{\"name\":\"a\",\"versions\":[{\"version\":-1,\"run\":\"r\",\"digest\":"
        "\"00000000000000000000000000000000\",\"bytes\":1,\"created_ns\":1}]}]}",
        "{\"seq\":1,\"models\":[{\"name\":\"a\",\"versions\":[{\"version\":1,\"run\":\"../"
        "r\",\"digest\":\"00000000000000000000000000000000\",\"bytes\":1,\"created_ns\":1}]}]}",
        "{\"seq\":1,\"models\":[{\"name\":\"a\",\"versions\":[{\"version\":1,\"run\":\"r\",\"digest\":"
        "\"short\",\"bytes\":1,\"created_ns\":1}]}]}",
        "{\"seq\":1,\"models\":[{\"name\":\"a\",\"versions\":[{\"version\":1,\"run\":\"r\",\"digest\":"
        "\"00000000000000000000000000000000\",\"bytes\":1,\"created_ns\":1,\"anchor\":false}]}]}",
    };
    struct ws_archive_listing l;
    struct ws_error err = {0};
    char path[WS_ARCHIVE_PATH_BYTES];
    (void)state;
    shell("mkdir %s/v1 %s", "");
    ws_archive_path(path, dir, NULL, UINT64_MAX, "models");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(bad[i], f);
        fclose(f);
        assert_int_equal(read_listing(dir, &l, &err), -EBADMSG);
        assert_non_null(strstr(err.text, path));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(written_versions_read_back, begin, end),
        cmocka_unit_test_setup_teardown(the_newest_anchors_are_kept, begin, end),
        cmocka_unit_test_setup_teardown(a_number_is_listed_once, begin, end),
        cmocka_unit_test_setup_teardown(crash_leftovers_are_removed, begin, end),
        cmocka_unit_test_setup_teardown(a_lost_listing_costs_no_version, begin, end),
        cmocka_unit_test_setup_teardown(failed_writes_leave_nothing, begin, end),
        cmocka_unit_test_setup_teardown(a_delta_needs_its_exact_base, begin, end),
        cmocka_unit_test_setup_teardown(chains_end, begin, end),
        cmocka_unit_test_setup_teardown(damage_is_named, begin, end),
        cmocka_unit_test_setup_teardown(hostile_listings_are_refused, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
