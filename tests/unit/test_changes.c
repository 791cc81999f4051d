/* What changed between two versions: the same list from a mount's delta and from comparing both folders, for elements of every width,
 * at odd addresses and across blocks; a delta that is damaged, of other versions or of another layout is refused or compared instead. */
#include "tests/fixtures/checkpoint.h"
#include "tests/fixtures/delta_stream.h"
#include "tests/fixtures/version_folders.h"
#include "transports/patch/changes.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <cmocka.h>

struct pair {
    char *root, *target, *base;
    struct delta_version from, to;
};

static void write_pair(struct pair *p)
{
    p->root = checkpoint_folder();
    p->base = version_folder_write(p->root, &p->from);
    p->target = version_folder_write(p->root, &p->to);
}

static void mark_pair(const struct pair *p)
{
    version_folder_mark(p->base, p->from.manifest);
    version_folder_mark(p->target, p->to.manifest);
}

static void put_delta(const struct pair *p, int level)
{
    size_t n;
    struct ws_delta *d = delta_of(&p->from, &p->to, level);
    unsigned char *bytes = delta_stream(d, &n);
    version_folder_delta(p->target, p->from.manifest, bytes, n);
    free(bytes);
    ws_delta_put(d);
}

static void free_pair(struct pair *p)
{
    delta_free_version(&p->from);
    delta_free_version(&p->to);
    checkpoint_remove(p->root);
    free(p->base);
    free(p->target);
}

/* The truth, from both files' bytes. */
static void assert_truth(const struct ws_changes *c, const struct delta_version *from,
                         const struct delta_version *to)
{
    struct ws_safetensors *st;
    uint64_t total = 0;
    const struct ws_manifest_file *f = &to->manifest->files[0];
    assert_int_equal(ws_safetensors_parse(to->files[0], f->header_bytes, f->size_bytes, &st, NULL), 0);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct ws_tensor *t = &st->tensors[i];
        const struct ws_tensor_changes *k = ws_changes_find(c, t->name);
        uint64_t n = 0;
        assert_non_null(k);
        const unsigned w = k->element_bytes;
        assert_int_equal(k->elements, (t->end - t->begin) / w);
        for (uint64_t e = 0; e < k->elements; e++) {
            const unsigned char *a = from->files[0] + t->begin + e * w, *b = to->files[0] + t->begin + e * w;
            if (memcmp(a, b, w) == 0)
                continue;
            assert_true(n < k->n);
            assert_int_equal(ws_tensor_changes_index(k, n), e);
            assert_memory_equal(k->before + n * w, a, w);
            assert_memory_equal(k->after + n * w, b, w);
            n++;
        }
        assert_int_equal(k->n, n);
        total += n;
    }
    assert_int_equal(ws_changes_count(c), total);
    ws_safetensors_free(st);
}

static void expect(const struct pair *p, bool recorded)
{
    struct ws_changes *c = NULL;
    struct ws_error err = {0};
    const int rc = ws_changes_open(&c, p->target, p->base, 2, &err);
    if (rc)
        print_message("%s\n", err.text);
    assert_int_equal(rc, 0);
    assert_int_equal(ws_changes_are_recorded(c), recorded);
    assert_truth(c, &p->from, &p->to);
    ws_changes_free(c);
}

static void refuse(const struct pair *p, int code, const char *words)
{
    struct ws_changes *c = NULL;
    struct ws_error err = {0};
    assert_int_equal(ws_changes_open(&c, p->target, p->base, 2, &err), -code);
    assert_null(c);
    if (!strstr(err.text, words))
        print_message("%s\n", err.text);
    assert_non_null(strstr(err.text, words));
}

static void make_pair(struct pair *p, unsigned every)
{
    delta_first_version(&p->from);
    delta_next_version(&p->to, &p->from, every, 1);
    write_pair(p);
}

static void test_compared(void **state)
{
    struct pair p;
    (void)state;
    make_pair(&p, 60);
    expect(&p, false);
    free_pair(&p);
}

static void test_recorded(void **state)
{
    for (int level = 0; level < 2; level++) {
        struct pair p;
        (void)state;
        make_pair(&p, 60);
        mark_pair(&p);
        expect(&p, false); /* the mount has none */
        put_delta(&p, level);
        expect(&p, true);
        free_pair(&p);
    }
}

/* Most blocks come whole; the first part of the file is not touched. */
static void test_whole_blocks(void **state)
{
    struct pair p = {0};
    (void)state;
    delta_first_version(&p.from);
    delta_next_version(&p.to, &p.from, 60, 1);
    unsigned char *f = p.to.files[0];
    for (size_t i = 0; i < WS_BLOCK_BYTES / 2; i += 4)
        f[WS_BLOCK_BYTES + i] ^= (unsigned char)(1 + delta_any() % 255),
            f[WS_BLOCK_BYTES + i + 1] ^= (unsigned char)delta_any();
    struct ws_manifest_file *m = &p.to.manifest->files[0];
    for (size_t b = 0; b < m->n_blocks; b++)
        m->hashes[b] = ws_hash(f + b * WS_BLOCK_BYTES, ws_manifest_block_bytes(m, b));
    ws_manifest_seal(p.to.manifest);
    write_pair(&p);
    mark_pair(&p);
    struct ws_delta *d = delta_of(&p.from, &p.to, 0);
    size_t n;
    struct ws_delta *whole;
    const struct ws_delta_link l = delta_link_of(&p.from, &p.to);
    assert_int_equal(ws_delta_new(&whole, &l, p.to.manifest, NULL), 0);
    for (size_t b = 0; b < m->n_blocks; b++) { /* every second one as it is */
        const struct ws_delta_record *r = ws_delta_at(d, 0, b);
        if (!r)
            continue;
        struct ws_delta_record *own =
            b % 2 ? ws_delta_record_make(0, (uint32_t)b, WS_DELTA_BLOCK, 0, f + b * WS_BLOCK_BYTES,
                                         (uint32_t)ws_manifest_block_bytes(m, b), 1)
                  : ws_delta_record_new(r->bytes);
        if (b % 2 == 0)
            memcpy(own, r, sizeof(*r) + r->bytes);
        assert_int_equal(ws_delta_add(whole, own), 0);
    }
    ws_delta_end(whole, WS_DELTA_WHOLE);
    unsigned char *bytes = delta_stream(whole, &n);
    version_folder_delta(p.target, p.from.manifest, bytes, n);
    free(bytes);
    expect(&p, true);
    char gone[PATH_MAX];
    snprintf(gone, sizeof(gone), "%s.gone", p.base);
    assert_int_equal(rename(p.base, gone), 0);
    refuse(&p, ENOENT, "the base's bytes are needed");
    ws_delta_put(d);
    ws_delta_put(whole);
    free_pair(&p);
}

/* The base's files are gone: what is left of it is its manifest, by whose digest the delta is known, whatever its name is. */
static void test_without_base(void **state)
{
    struct pair p;
    char path[PATH_MAX + 64];
    struct ws_manifest *m;
    (void)state;
    make_pair(&p, 60);
    mark_pair(&p);
    put_delta(&p, 1);
    snprintf(path, sizeof(path), "%s.gone", p.base);
    assert_int_equal(rename(p.base, path), 0);
    assert_int_equal(mkdir(p.base, 0700), 0);
    version_folder_mark(p.base, p.from.manifest);
    expect(&p, true);
    assert_int_equal(ws_manifest_copy(p.from.manifest, &m), 0);
    m->files[0].hashes[0] ^= 1;
    ws_manifest_seal(m);
    version_folder_mark(p.base, m);
    refuse(&p, EBADMSG, "another's");
    ws_manifest_free(m);
    snprintf(path, sizeof(path), "%s/.wsync/manifest.json", p.base);
    assert_int_equal(unlink(path), 0);
    refuse(&p, ENOENT, p.base);
    free_pair(&p);
}

/* A file of one tensor of a type, which begins at an odd byte: its elements lie in two blocks. */
static void straddle(enum ws_dtype dtype, unsigned bits)
{
    struct pair p = {0};
    char header[128];
    const uint64_t n = (9UL << 20) * 8 / bits;
    const size_t data = (size_t)(n * bits / 8);
    const int len = snprintf(header + 8, sizeof(header) - 8,
                             "{\"t\":{\"dtype\":\"%s\",\"shape\":[%lu],\"data_offsets\":[0,%zu]}}",
                             ws_dtype_name(dtype), (unsigned long)n, data);
    size_t head = 8 + (size_t)len;
    while (head % 8 != 3) /* what the format allows, and its writers avoid */
        header[head++] = ' ';
    memcpy(header, &(uint64_t){head - 8}, 8);
    unsigned char *a = malloc(head + data), *b = malloc(head + data);
    memcpy(a, header, head);
    for (size_t i = head; i < head + data; i++)
        a[i] = (unsigned char)delta_any();
    memcpy(b, a, head + data);
    for (size_t i = head; i < head + data; i++)
        if (delta_any() % 300 == 0)
            b[i] ^= 1;
    for (size_t k = 1; k * WS_BLOCK_BYTES < head + data; k++)
        b[k * WS_BLOCK_BYTES - k % 2] ^= 3; /* on either side of a border */
    version_folder_version(&p.from, 1, a, head + data, head);
    version_folder_version(&p.to, 2, b, head + data, head);
    write_pair(&p);
    mark_pair(&p);
    expect(&p, false);
    put_delta(&p, 0);
    expect(&p, true);
    free_pair(&p);
}

static void test_straddling(void **state)
{
    (void)state;
    straddle(WS_F8_E4M3, 8);
    straddle(WS_BF16, 16);
    straddle(WS_F32, 32);
    straddle(WS_F64, 64);
    straddle(WS_F4, 4);
}

/* Each byte of the delta in turn is changed: it is refused, or says the same. */
static void test_damaged(void **state)
{
    struct pair p;
    size_t n;
    (void)state;
    make_pair(&p, 20000);
    mark_pair(&p);
    struct ws_delta *d = delta_of(&p.from, &p.to, 0);
    unsigned char *bytes = delta_stream(d, &n);
    for (size_t i = 0; i < n; i += 1 + n / 200) {
        bytes[i] ^= 0x10;
        version_folder_delta(p.target, p.from.manifest, bytes, n);
        refuse(&p, EBADMSG, "changes-from");
        bytes[i] ^= 0x10;
    }
    for (size_t cut = 0; cut < n; cut += 1 + n / 20) {
        version_folder_delta(p.target, p.from.manifest, bytes, cut);
        refuse(&p, EBADMSG, "changes-from");
    }
    free(bytes);
    ws_delta_put(d);
    free_pair(&p);
}

/* A delta that ends well, but has nothing of a block that is another in the base. */
static void test_left_out(void **state)
{
    struct pair p;
    size_t n;
    struct ws_delta *d;
    bool is_out = false;
    (void)state;
    make_pair(&p, 60);
    mark_pair(&p);
    const struct ws_delta_link l = delta_link_of(&p.from, &p.to);
    struct ws_delta *good = delta_of(&p.from, &p.to, 0);
    assert_int_equal(ws_delta_new(&d, &l, p.to.manifest, NULL), 0);
    for (size_t b = 0; b < p.to.manifest->files[0].n_blocks; b++) {
        const struct ws_delta_record *r = ws_delta_at(good, 0, b);
        if (r && is_out)
            assert_int_equal(ws_delta_add(d, ws_delta_record_make(0, (uint32_t)b, WS_DELTA_EDIT, r->n_changed,
                                                                  r->data, r->bytes, 0)),
                             0);
        is_out = is_out || r;
    }
    ws_delta_end(d, WS_DELTA_WHOLE);
    unsigned char *bytes = delta_stream(d, &n);
    version_folder_delta(p.target, p.from.manifest, bytes, n);
    refuse(&p, EBADMSG, "another in the base");
    free(bytes);
    ws_delta_put(d);
    ws_delta_put(good);
    free_pair(&p);
}

/* Records with good hashes and any content: refused, or a list of true differences to some base. */
static void test_hostile(void **state)
{
    struct pair p;
    size_t n;
    unsigned refused = 0;
    (void)state;
    make_pair(&p, 20000);
    mark_pair(&p);
    const struct ws_delta_link l = delta_link_of(&p.from, &p.to);
    struct ws_delta *good = delta_of(&p.from, &p.to, 0);
    for (unsigned round = 0; round < 200; round++) {
        struct ws_delta *d;
        struct ws_changes *c = NULL;
        struct ws_error err = {0};
        assert_int_equal(ws_delta_new(&d, &l, p.to.manifest, NULL), 0);
        for (size_t b = 0; b < p.to.manifest->files[0].n_blocks; b++) {
            const struct ws_delta_record *r = ws_delta_at(good, 0, b);
            if (!r)
                continue;
            unsigned char *raw = malloc(r->bytes);
            memcpy(raw, r->data, r->bytes);
            for (unsigned k = 0; k < 1 + round % 3; k++)
                raw[delta_any() % (round % 2 ? 20 : r->bytes)] = (unsigned char)delta_any();
            assert_int_equal(ws_delta_add(d, ws_delta_record_make(0, (uint32_t)b, WS_DELTA_EDIT, r->n_changed,
                                                                  raw, r->bytes, 0)),
                             0);
            free(raw);
        }
        ws_delta_end(d, WS_DELTA_WHOLE);
        unsigned char *bytes = delta_stream(d, &n);
        version_folder_delta(p.target, p.from.manifest, bytes, n);
        if (ws_changes_open(&c, p.target, p.base, 1, &err) < 0)
            refused++;
        ws_changes_free(c);
        free(bytes);
        ws_delta_put(d);
    }
    ws_delta_put(good);
    assert_true(refused > 20);
    free_pair(&p);
}

/* A header of tensors of all widths, many next to others of their width, that begins the data at an odd byte. Returns its bytes. */
static size_t any_layout(char *header, size_t room, size_t *data)
{
    static const enum ws_dtype dtypes[] = {WS_F8_E4M3, WS_BF16, WS_BF16, WS_F32, WS_F64};
    size_t head = 8, at = 0;
    enum ws_dtype dtype = WS_BF16;
    for (unsigned i = 0; i < 90; i++) {
        dtype = delta_any() % 3 ? dtype : dtypes[delta_any() % 5];
        const size_t n = 1 + delta_any() % (1UL << (delta_any() % 17)),
                     to = at + n * ws_dtype_bits(dtype) / 8;
        head += (size_t)snprintf(header + head, room - head,
                                 "%c\"t%u\":{\"dtype\":\"%s\",\"shape\":[%zu],\"data_offsets\":[%zu,%zu]}",
                                 i ? ',' : '{', i, ws_dtype_name(dtype), n, at, to);
        at = to;
    }
    head += (size_t)snprintf(header + head, room - head,
                             ",\"z\":{\"dtype\":\"BF16\",\"shape\":[%zu],\"data_offsets\":[%zu,%zu]}}",
                             (size_t)WS_BLOCK_BYTES, at, at + 2 * WS_BLOCK_BYTES);
    *data = at + 2 * WS_BLOCK_BYTES;
    while (head % 8 != 1 + delta_any() % 2 * 6)
        header[head++] = ' ';
    memcpy(header, &(uint64_t){head - 8}, 8);
    return head;
}

/* An edit of any runs, whatever the tensors' widths, which names some elements that do not differ. Returns its bytes. */
static size_t any_edit(const unsigned char *a, const unsigned char *b, size_t len, unsigned char *out)
{
    enum { MOST = 40 };
    static struct ws_delta_span_changes spans[MOST];
    size_t n = 0, bytes;
    uint32_t changed;
    for (size_t at = 0; at < len && n < MOST;) {
        struct ws_delta_span_changes *s = &spans[n];
        const unsigned width = len - at < 4 || n + 1 == MOST ? 1 : 1U << (delta_any() % 3);
        for (unsigned skip = delta_any() % 20; skip > 0 && at + 4 < len && a[at] == b[at]; skip--)
            at++;
        const size_t most = (len - at) / width, few = n + 1 == MOST ? most : 1 + delta_any() % (len / 8);
        s->span = (struct ws_delta_span){(uint32_t)at, (uint32_t)(few < most ? few : most), width};
        uint32_t *places = malloc((s->span.n + 66) * sizeof(*places)),
                 *changes = malloc((s->span.n + 66) * sizeof(*changes));
        s->n = (uint32_t)ws_delta_block_find_changes(places, changes, a + at, b + at, s->span.n, width, 0);
        if (s->n > 0 && places[s->n - 1] + 1 < s->span.n) {
            places[s->n] = places[s->n - 1] + 1;
            changes[s->n++] = UINT32_MAX;
        }
        s->at = places;
        s->changes = changes;
        at += (size_t)s->span.n * width;
        n++;
    }
    assert_int_equal(ws_delta_block_encode_changes(spans, n, len, out, &bytes, &changed), 0);
    for (size_t i = 0; i < n; i++) {
        free(spans[i].at);
        free((uint32_t *)spans[i].changes);
    }
    return bytes;
}

/* Deltas of other makers: the bytes are what counts, not how an edit says them. */
static void test_any_edit(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 4; round++) {
        struct pair p = {0};
        struct ws_delta *d;
        char header[16 << 10];
        size_t data, n;
        const size_t head = any_layout(header, sizeof(header), &data), bytes = head + data;
        unsigned char *a = malloc(bytes), *b = malloc(bytes),
                      *out = malloc(WS_BLOCK_BYTES + WS_DELTA_PAD_BYTES);
        memcpy(a, header, head);
        for (size_t i = head; i < bytes; i++)
            a[i] = (unsigned char)delta_any();
        memcpy(b, a, bytes);
        for (size_t i = head; i < bytes; i++)
            if (delta_any() % 300 == 0)
                b[i] ^= (unsigned char)delta_any();
        version_folder_version(&p.from, 1, a, bytes, head);
        version_folder_version(&p.to, 2, b, bytes, head);
        write_pair(&p);
        mark_pair(&p);
        const struct ws_delta_link l = delta_link_of(&p.from, &p.to);
        struct ws_delta *own = delta_of(&p.from, &p.to, 0);
        assert_int_equal(ws_delta_new(&d, &l, p.to.manifest, NULL), 0);
        for (size_t at = 0, k = 0; at < bytes; at += WS_BLOCK_BYTES, k++) {
            const size_t len = bytes - at < WS_BLOCK_BYTES ? bytes - at : WS_BLOCK_BYTES;
            const struct ws_delta_record *r = ws_delta_at(own, 0, k);
            const bool any = delta_any() % 2;
            const size_t edit = any ? any_edit(a + at, b + at, len, out) : r->bytes;
            assert_int_equal(ws_delta_add(d, ws_delta_record_make(0, (uint32_t)k, WS_DELTA_EDIT, r->n_changed,
                                                                  any ? out : r->data, edit, 0)),
                             0);
        }
        ws_delta_end(d, WS_DELTA_WHOLE);
        unsigned char *stream = delta_stream(d, &n);
        version_folder_delta(p.target, p.from.manifest, stream, n);
        expect(&p, true);
        free(stream);
        free(out);
        ws_delta_put(own);
        ws_delta_put(d);
        free_pair(&p);
    }
}

/* The edit of a block of one tensor in elements of its own width, which names the element behind each that differs too; where none
 * does, some that do not. Returns its bytes. */
static size_t wide_edit(const unsigned char *a, const unsigned char *b, unsigned char *out)
{
    enum { MOST = WS_BLOCK_BYTES / 2 };
    uint32_t *places = malloc((MOST + 66) * sizeof(*places)),
             *changes = malloc((MOST + 66) * sizeof(*changes)), *found = malloc((MOST + 66) * sizeof(*found)),
             *by = malloc((MOST + 66) * sizeof(*by)), changed;
    const uint32_t n_found = (uint32_t)ws_delta_block_find_changes(found, by, a, b, MOST, 2, 0);
    size_t bytes;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_found; i++) {
        places[n] = found[i];
        changes[n++] = by[i];
        if (found[i] + 1 < (i + 1 < n_found ? found[i + 1] : MOST)) {
            places[n] = found[i] + 1;
            changes[n++] = UINT32_MAX;
        }
    }
    for (; n_found == 0 && n < 10; n++) {
        places[n] = 100 * n;
        changes[n] = UINT32_MAX;
    }
    const struct ws_delta_span_changes one = {.span = {0, MOST, 2}, .n = n, .at = places, .changes = changes};
    assert_int_equal(ws_delta_block_encode_changes(&one, 1, WS_BLOCK_BYTES, out, &bytes, &changed), 0);
    free(places);
    free(changes);
    free(found);
    free(by);
    return bytes;
}

/* Elements that do not differ are not listed, though a delta names them in the way that is listed without a walk over bytes. */
static void test_named_unchanged(void **state)
{
    struct pair p = {0};
    struct ws_delta *d, *own;
    char header[128];
    size_t n;
    const size_t head = 128, bytes = 4 * WS_BLOCK_BYTES;
    unsigned char *a = malloc(bytes), *b = malloc(bytes),
                  *out = malloc(2 * WS_BLOCK_BYTES + WS_DELTA_PAD_BYTES);
    (void)state;
    memset(header, ' ', sizeof(header));
    const int len = snprintf(header + 8, sizeof(header) - 8,
                             "{\"t\":{\"dtype\":\"BF16\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}",
                             (bytes - head) / 2, bytes - head);
    header[8 + len] = ' ';
    memcpy(header, &(uint64_t){head - 8}, 8);
    for (size_t i = 0; i < bytes; i++)
        a[i] = (unsigned char)delta_any();
    memcpy(a, header, head);
    memcpy(b, a, bytes);
    for (size_t i = head; i < 2 * WS_BLOCK_BYTES; i += 2 * (1 + delta_any() % 100))
        b[i] ^= 1; /* blocks 2 and 3 do not differ */
    version_folder_version(&p.from, 1, a, bytes, head);
    version_folder_version(&p.to, 2, b, bytes, head);
    write_pair(&p);
    mark_pair(&p);
    const struct ws_delta_link l = delta_link_of(&p.from, &p.to);
    own = delta_of(&p.from, &p.to, 0);
    const struct ws_delta_record *first = ws_delta_at(own, 0, 0);
    assert_int_equal(ws_delta_new(&d, &l, p.to.manifest, NULL), 0);
    assert_int_equal(ws_delta_add(d, ws_delta_record_make(0, 0, WS_DELTA_EDIT, first->n_changed, first->data,
                                                          first->bytes, 0)),
                     0);
    for (uint32_t k = 1; k < 3; k++) {
        const size_t edit = wide_edit(a + k * WS_BLOCK_BYTES, b + k * WS_BLOCK_BYTES, out);
        assert_int_equal(ws_delta_add(d, ws_delta_record_make(0, k, WS_DELTA_EDIT, 10, out, edit, 0)), 0);
    }
    ws_delta_end(d, WS_DELTA_WHOLE);
    unsigned char *stream = delta_stream(d, &n);
    version_folder_delta(p.target, p.from.manifest, stream, n);
    expect(&p, true);
    free(stream);
    free(out);
    ws_delta_put(own);
    ws_delta_put(d);
    free_pair(&p);
}

static void test_other_versions(void **state)
{
    struct pair p;
    (void)state;
    make_pair(&p, 600);
    mark_pair(&p);
    put_delta(&p, 0);
    struct ws_manifest *m;
    assert_int_equal(ws_manifest_copy(p.from.manifest, &m), 0);
    m->files[0].hashes[0] ^= 1;
    ws_manifest_seal(m);
    version_folder_mark(p.base, m); /* the same name, other bytes */
    refuse(&p, EBADMSG, "another's");
    ws_manifest_free(m);
    version_folder_mark(p.base, p.from.manifest);
    version_folder_mark(p.target, p.from.manifest);
    refuse(&p, EBADMSG, "another's");
    free_pair(&p);
}

/* The files' layout differs: what the records say of places counts for nothing. */
static void test_other_layout(void **state)
{
    char *root = checkpoint_folder(), a[PATH_MAX], b[PATH_MAX];
    struct ws_changes *c;
    struct ws_error err = {0};
    const struct ws_tensor one[] = {checkpoint_model[0]}, two[] = {checkpoint_model[2], checkpoint_model[3]};
    (void)state;
    snprintf(a, sizeof(a), "%s/1", root);
    snprintf(b, sizeof(b), "%s/2", root);
    checkpoint_write_model(a, 1);
    checkpoint_write(b, "x.safetensors", one, 1, 1);
    checkpoint_write(b, "y.safetensors", two, 2, 2);
    assert_int_equal(ws_changes_open(&c, b, a, 0, &err), -EPROTO);
    assert_non_null(strstr(err.text, "layers.0.bias"));
    checkpoint_write(b, "z.safetensors", &checkpoint_model[1], 1, 1);
    assert_int_equal(ws_changes_open(&c, b, a, 0, &err), 0);
    assert_int_equal(ws_changes_find(c, "embed.weight")->n, 0);
    assert_true(ws_changes_find(c, "layers.0.weight")->n > 200);
    assert_int_equal(ws_changes_find(c, "layers.0.weight")->elements, 17 * 13);
    assert_int_equal(ws_changes_elements(c), 64 * 32 + 17 * 13 + 1);
    assert_null(ws_changes_find(c, "nothing"));
    ws_changes_free(c);
    checkpoint_remove(root);
}

/* Two tensors change places in the header of a file of the same size: the records' places say nothing of them. */
static void test_swapped(void **state)
{
    for (unsigned whole = 0; whole < 2; whole++) {
        struct pair p = {0};
        struct ws_safetensors *st;
        void *header;
        size_t n;
        const uint64_t each = 3UL << 20;
        const struct ws_tensor specs[] = {{.name = "a", .dtype = WS_BF16, .n_dims = 1, .shape = {each}},
                                          {.name = "b", .dtype = WS_BF16, .n_dims = 1, .shape = {each}}};
        (void)state;
        assert_int_equal(ws_safetensors_layout(specs, 2, NULL, &st, &header, NULL), 0);
        const size_t head = st->data_begin, bytes = st->file_bytes;
        unsigned char *a = malloc(bytes), *b = malloc(bytes);
        memcpy(a, header, head);
        for (size_t i = head; i < bytes; i++)
            a[i] = (unsigned char)(i % 2 ? 0 : 7); /* a and b are the same but for a few elements */
        for (size_t i = 0; i < 1000; i++)
            a[head + 2 * (i * 37)] = (unsigned char)delta_any();
        memcpy(b, a, bytes);
        char *name = strstr((char *)b + 8, "\"a\":"), *other = strstr((char *)b + 8, "\"b\":");
        assert_true(name && other);
        name[1] = 'b';
        other[1] = 'a';
        version_folder_version(&p.from, 1, a, bytes, head);
        version_folder_version(&p.to, 2, b, bytes, head);
        write_pair(&p);
        mark_pair(&p);
        struct ws_delta *d = delta_of(&p.from, &p.to, 0);
        if (whole) {
            const struct ws_delta_link l = delta_link_of(&p.from, &p.to);
            ws_delta_put(d);
            assert_int_equal(ws_delta_new(&d, &l, p.to.manifest, NULL), 0);
            assert_int_equal(
                ws_delta_add(d, ws_delta_record_make(0, 0, WS_DELTA_BLOCK, 0, b, WS_BLOCK_BYTES, 1)), 0);
            ws_delta_end(d, WS_DELTA_WHOLE);
        }
        unsigned char *stream = delta_stream(d, &n);
        version_folder_delta(p.target, p.from.manifest, stream, n);
        struct ws_changes *c;
        struct ws_error err;
        assert_int_equal(ws_changes_open(&c, p.target, p.base, 2, &err), 0);
        assert_false(ws_changes_are_recorded(c));
        const struct ws_tensor_changes *t = ws_changes_find(c, "a");
        assert_true(t->n > 900 && ws_changes_find(c, "b")->n == t->n);
        for (uint64_t i = 0; i < t->n; i++) { /* what b was, a is */
            const size_t at = head + 2 * ws_tensor_changes_index(t, i);
            assert_memory_equal(t->before + 2 * i, a + at, 2);
            assert_memory_equal(t->after + 2 * i, a + at + 2 * each, 2);
        }
        ws_changes_free(c);
        ws_delta_put(d);
        free(stream);
        free(header);
        ws_safetensors_free(st);
        free_pair(&p);
    }
}

static void test_too_many(void **state)
{
    struct pair p;
    (void)state;
    make_pair(&p, 2);
    refuse(&p, E2BIG, "an eighth");
    mark_pair(&p);
    put_delta(&p, 0);
    refuse(&p, E2BIG, "an eighth");
    free_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compared),       cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_whole_blocks),   cmocka_unit_test(test_without_base),
        cmocka_unit_test(test_straddling),     cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_left_out),       cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_any_edit),       cmocka_unit_test(test_named_unchanged),
        cmocka_unit_test(test_other_versions), cmocka_unit_test(test_other_layout),
        cmocka_unit_test(test_swapped),        cmocka_unit_test(test_too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
