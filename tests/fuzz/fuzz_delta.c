/* Deltas under libFuzzer. The first byte selects what the rest is: a stream as it is, a stream whose hashes
 * are corrected first (else mutated ones would be refused by their hashes), the deltas of one block, records,
 * JSON of listings, or two blocks to encode. For any input: nothing outside the block is written, a block
 * that cannot be patched is unchanged, and a patched one equals the result of the changes applied one after
 * the other. */
#include "transports/delta/listing.h"
#include "transports/delta/patcher.h"
#include "transports/delta/stream.h"
#include <errno.h>
#include <sanitizer/asan_interface.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <xxhash.h>

#define GUARD   4096
#define N_FILES 3

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define require(what) ((what) ? (void)0 : abort())

/* The input, consumed from its front; zeros at its end. */
struct input {
    const uint8_t *p;
    size_t n;
};

static const uint8_t *take(struct input *in, size_t n)
{
    const uint8_t *p = in->p;
    require(n <= in->n);
    in->p += n;
    in->n -= n;
    return p;
}

static uint32_t number(struct input *in, size_t bytes)
{
    uint32_t v = 0;
    size_t n = bytes < in->n ? bytes : in->n;
    memcpy(&v, take(in, n), n);
    return v;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* A copy with nothing readable behind `beyond` zeros. */
static uint8_t *copy_of(const uint8_t *p, size_t n, size_t beyond)
{
    uint8_t *copy = calloc(1, n + beyond + (n + beyond == 0));
    require(copy != NULL);
    if (n > 0)
        memcpy(copy, p, n);
    return copy;
}

static void fill(uint8_t *p, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        p[i] = (uint8_t)(seed >> 24);
    }
}

/* A block between inaccessible guards. */
struct slot {
    uint8_t *all, *block;
    size_t len;
};

static void slot_init(struct slot *s, size_t len, const uint8_t *bytes)
{
    s->all = malloc(len + 2 * GUARD);
    require(s->all != NULL);
    s->block = s->all + GUARD;
    s->len = len;
    if (len > 0)
        memcpy(s->block, bytes, len);
    ASAN_POISON_MEMORY_REGION(s->all, GUARD);
    ASAN_POISON_MEMORY_REGION(s->block + len, GUARD);
}

static void slot_free(struct slot *s)
{
    ASAN_UNPOISON_MEMORY_REGION(s->all, s->len + 2 * GUARD);
    free(s->all);
}

/* --- slow reference --- */

struct slow {
    uint8_t *block;
    size_t len;
    uint64_t free_from;
    uint32_t n;
};

static void apply_one(void *arg, uint32_t byte, unsigned width, uint32_t change)
{
    struct slow *s = arg;
    uint32_t z = change + 1, v = 0; /* 2^32, which no writer makes, is no change */
    require(width == 1 || width == 2 || width == 4);
    require(byte >= s->free_from && (uint64_t)byte + width <= s->len);
    memcpy(&v, s->block + byte, width);
    v = z & 1 ? v - z / 2 - 1 : v + z / 2;
    memcpy(s->block + byte, &v, width);
    s->free_from = (uint64_t)byte + width;
    s->n++;
}

static void apply_slowly(const struct ws_delta_edit *e, uint8_t *block, size_t len)
{
    struct slow s = {.block = block, .len = len};
    ws_delta_edit_each(e, apply_one, &s);
    require(s.n == ws_delta_edit_changed(e));
}

static int read_edit(struct ws_delta_edit *e, const uint8_t *bytes, size_t n, size_t len)
{
    struct ws_error err = {0};
    uint8_t *copy = copy_of(bytes, n, WS_DELTA_PAD_BYTES);
    int rc = ws_delta_edit_read(e, copy, n, len, &err);
    require(rc == 0 || (rc == -EBADMSG && err.code == EBADMSG && err.text[0]));
    require(rc == 0 || ws_delta_edit_changed(e) == 0);
    free(copy);
    return rc;
}

/* --- the deltas of one block --- */

static void fuzz_edits(struct input in)
{
    static struct ws_delta_edit *edits[WS_MAX_DELTA_CHAIN];
    static struct ws_hasher *hasher;
    const size_t len = number(&in, 2);
    size_t n = 1 + number(&in, 1) % WS_MAX_DELTA_CHAIN, n_read = 0;
    struct slot base, dst;
    uint8_t *want = malloc(len + 1);
    require(want && (hasher || (hasher = ws_hasher_new())));
    fill(want, len, (uint32_t)len);
    slot_init(&base, len, want);
    slot_init(&dst, len, want);
    for (size_t i = 0; i < n; i++) {
        size_t bytes = i + 1 < n ? least(number(&in, 2), in.n) : in.n;
        require(edits[i] || (edits[i] = ws_delta_edit_new()));
        if (read_edit(edits[n_read], take(&in, bytes), bytes, len) == 0)
            apply_slowly(edits[n_read++], want, len);
    }
    uint64_t hash = ws_delta_edit_apply(hasher, dst.block, NULL, len, edits, n_read);
    require(memcmp(dst.block, want, len) == 0 && hash == XXH3_64bits(want, len));
    memset(dst.block, 0, len);
    require(ws_delta_edit_apply(hasher, dst.block, base.block, len, edits, n_read) == hash);
    require(memcmp(dst.block, want, len) == 0);
    slot_free(&base);
    slot_free(&dst);
    free(want);
}

/* --- records, and their application by a patcher --- */

static struct ws_patcher *the_patcher(void)
{
    static struct ws_patcher *p;
    require(p || (p = ws_patcher_new()));
    return p;
}

/* The chain's result for the block; false: it cannot be patched. */
static bool patch_slowly(uint8_t *block, size_t len, const struct ws_delta_record *const *chain, size_t n)
{
    static struct ws_delta_edit *edit;
    size_t from = 0;
    bool ok = true;
    require(edit || (edit = ws_delta_edit_new()));
    for (size_t i = 0; i < n; i++)
        from = chain[i] && chain[i]->kind == WS_DELTA_BLOCK ? i : from;
    for (size_t i = from; ok && i < n; i++) {
        const struct ws_delta_record *r = chain[i];
        uint8_t *room = r ? malloc(r->raw_bytes + WS_DELTA_PAD_BYTES) : NULL;
        const uint8_t *raw = r ? ws_delta_record_raw(r, room) : NULL;
        if (r && r->kind == WS_DELTA_BLOCK) {
            ok = raw && r->raw_bytes == len;
            if (ok && len > 0)
                memcpy(block, raw, len);
        } else if (r) {
            ok = raw && read_edit(edit, raw, r->raw_bytes, len) == 0;
            if (ok)
                apply_slowly(edit, block, len);
        }
        free(room);
    }
    return ok;
}

static void check_patched(const struct slot *s, const uint8_t *before, const uint8_t *want, int rc,
                          uint64_t hash, const struct ws_error *err)
{
    if (rc < 0) {
        require(!want && rc == -EBADMSG && err->code == EBADMSG && err->text[0]);
        require(memcmp(s->block, before, s->len) == 0);
    } else {
        require(want && memcmp(s->block, want, s->len) == 0 && hash == XXH3_64bits(want, s->len));
    }
}

static void patch(const struct ws_delta_record *const *chain, size_t n, size_t len)
{
    struct slot base, dst;
    struct ws_error err = {0};
    uint64_t hash = 0;
    uint8_t *before = malloc(len + 1), *want = malloc(len + 1);
    require(before && want);
    fill(before, len, (uint32_t)n);
    if (len > 0)
        memcpy(want, before, len);
    const bool ok = patch_slowly(want, len, chain, n);
    slot_init(&base, len, before);
    slot_init(&dst, len, before);
    int rc = ws_patcher_block(the_patcher(), dst.block, NULL, len, chain, n, &hash, &err);
    check_patched(&dst, before, ok ? want : NULL, rc, hash, &err);
    slot_free(&dst);
    uint8_t *other = copy_of(want, len, 0);
    fill(other, len, 77);
    slot_init(&dst, len, other);
    rc = ws_patcher_block(the_patcher(), dst.block, base.block, len, chain, n, &hash, &err);
    check_patched(&dst, other, ok ? want : NULL, rc, hash, &err);
    require(memcmp(base.block, before, len) == 0);
    slot_free(&base);
    slot_free(&dst);
    free(other);
    free(before);
    free(want);
}

/* As a reader may return it: raw_bytes of the block's size at most, bytes not more. */
static struct ws_delta_record *record_of(struct input *in, bool last)
{
    const uint32_t how = number(in, 1);
    const enum ws_delta_kind kind = how & 1 ? WS_DELTA_BLOCK : WS_DELTA_EDIT;
    const uint32_t raw = how & 2 ? number(in, 3) % (WS_BLOCK_BYTES + 1) : 0;
    const size_t n = last ? in->n : least(number(in, 2), in->n);
    uint8_t *bytes = copy_of(take(in, n), n, 0);
    struct ws_delta_record *r;
    if (how & 2) { /* a frame, or invalid data */
        r = ws_delta_record_new(n);
        require(r != NULL);
        if (n > 0)
            memcpy(r->data, bytes, n);
        r->kind = (uint8_t)kind;
        r->packed = 1;
        r->raw_bytes = raw < n ? (uint32_t)n : raw;
    } else {
        r = ws_delta_record_make(0, 0, kind, 1, bytes, (uint32_t)n, (int)(how >> 2 & 3));
        require(r && r->hash == ws_delta_record_hash(r) && r->raw_bytes == n && r->bytes <= n);
        uint8_t *room = malloc(n + WS_DELTA_PAD_BYTES);
        const uint8_t *back = ws_delta_record_raw(r, room);
        require(back && memcmp(back, bytes, n) == 0);
        free(room);
    }
    free(bytes);
    return r;
}

static void fuzz_records(struct input in)
{
    struct ws_delta_record *records[WS_MAX_DELTA_CHAIN];
    const size_t len = number(&in, 2), n = 1 + number(&in, 1) % WS_MAX_DELTA_CHAIN;
    for (size_t i = 0; i < n; i++)
        records[i] = i % 3 == 2 && in.n % 2 ? NULL : record_of(&in, i + 1 == n);
    patch((const struct ws_delta_record *const *)records, n, len);
    for (size_t i = 0; i < n; i++)
        free(records[i]);
}

/* --- streams --- */

static const size_t sizes[N_FILES] = {40000, 700, 5};

static const struct ws_manifest *target(void)
{
    static struct ws_manifest *m;
    static const char *const names[N_FILES] = {"a.safetensors", "b", "c"};
    struct ws_manifest_file *f;
    if (m)
        return m;
    require(ws_manifest_new(&m, "actor", 2, "run", NULL) == 0);
    for (size_t i = 0; i < N_FILES; i++)
        require(ws_manifest_add(m, names[i], sizes[i], 0, &f, NULL) == 0);
    ws_manifest_seal(m);
    return m;
}

static struct ws_delta_link the_link(void)
{
    struct ws_delta_link l = {.base = ws_version_id_make(1, "run"), .target = ws_version_id_make(2, "run")};
    memset(l.base_digest, 'a', 32);
    memset(l.target_digest, 'b', 32);
    return l;
}

static int add(void *arg, struct ws_delta_record *r)
{
    require(r->bytes > 0 && r->bytes <= r->raw_bytes && r->raw_bytes <= WS_BLOCK_BYTES);
    require(r->hash == ws_delta_record_hash(r));
    return ws_delta_add(arg, r);
}

/* The head of our own stream, with the part that the bytes name; then every hash. */
static void put_right(struct ws_delta *empty, uint8_t *p, size_t n)
{
    struct ws_delta_stream_writer w;
    XXH64_hash_t hash;
    XXH3_state_t *hashes = XXH3_createState();
    uint32_t part, parts, bytes, n_records = 0;
    require(hashes && XXH3_64bits_reset(hashes) == XXH_OK);
    if (n < WS_DELTA_HEAD_BYTES)
        goto out;
    memcpy(&part, p + 40, 4);
    memcpy(&parts, p + 44, 4);
    require(ws_delta_stream_writer_init(&w, empty, part, parts) == 0);
    memcpy(p, w.head, WS_DELTA_HEAD_BYTES);
    ws_delta_stream_writer_free(&w);
    for (p += WS_DELTA_HEAD_BYTES, n -= WS_DELTA_HEAD_BYTES; n >= WS_DELTA_RECORD_BYTES; n_records++) {
        const bool end = memcmp(p, "\xff\xff\xff\xff", 4) == 0;
        memcpy(&bytes, p + 20, 4);
        if (end) {
            memcpy(p + 20, &n_records, 4);
            hash = XXH3_64bits_digest(hashes);
            memcpy(p + 24, &hash, 8);
            break;
        }
        if (bytes > n - WS_DELTA_RECORD_BYTES)
            break;
        hash = XXH3_64bits_withSeed(p + WS_DELTA_RECORD_BYTES, bytes, XXH3_64bits(p, 24));
        memcpy(p + 24, &hash, 8);
        require(XXH3_64bits_update(hashes, &hash, 8) == XXH_OK);
        p += WS_DELTA_RECORD_BYTES + bytes;
        n -= WS_DELTA_RECORD_BYTES + bytes;
    }
out:
    XXH3_freeState(hashes);
}

/* The read delta, written again: the same bytes. */
static void check_written(struct ws_delta *d, const uint8_t *bytes, size_t n)
{
    uint32_t part, parts;
    struct ws_delta_stream_writer w;
    uint8_t piece[1000];
    size_t at = 0;
    ssize_t more;
    memcpy(&part, bytes + 40, 4);
    memcpy(&parts, bytes + 44, 4);
    for (size_t i = 0, k = 0; ws_delta_next(d, &i, 0, 1);)
        if (!ws_delta_next(d, &k, part, parts) || k != i)
            return; /* records of another part: a writer leaves them out */
    require(n == ws_delta_stream_bytes(d, part, parts));
    require(ws_delta_stream_writer_init(&w, d, part, parts) == 0);
    while ((more = ws_delta_stream_write(&w, piece, 1 + at % sizeof(piece))) > 0) {
        require((size_t)more <= n - at && memcmp(piece, bytes + at, (size_t)more) == 0);
        at += (size_t)more;
    }
    require(more == -1 && at == n);
    ws_delta_stream_writer_free(&w);
}

static void patch_all(const struct ws_delta *d)
{
    for (size_t i = 0; i < N_FILES; i++) {
        const struct ws_delta_record *r = ws_delta_at(d, i, 0), *chain[] = {r, NULL, r};
        if (r)
            patch(chain, 1, sizes[i]);
        if (r)
            patch(chain, 3, sizes[i]);
    }
}

static void fuzz_stream(struct input in, bool right)
{
    struct ws_delta_link l = the_link();
    struct ws_delta *d;
    struct ws_error err = {0};
    bool whole = false;
    uint32_t step = 1 + number(&in, 1);
    const size_t n = in.n;
    uint8_t *bytes = copy_of(in.p, n, 0);
    int rc = 0;
    require(ws_delta_new(&d, &l, target(), NULL) == 0);
    struct ws_delta_stream_reader *r = ws_delta_stream_reader_new(
        &l, ws_delta_blocks(d), &(struct ws_delta_stream_sink){.record = add, .arg = d});
    require(r != NULL);
    if (right)
        put_right(d, bytes, n);
    for (size_t at = 0, more; rc == 0 && at < n; at += more) {
        step = step * 1103515245 + 12345;
        more = least(n - at, 1 + step / 65536 % (step & 128 ? 40 : 4000));
        uint8_t *piece = copy_of(bytes + at, more, 0);
        rc = ws_delta_stream_read(r, piece, more, &err);
        free(piece);
    }
    require(rc == 0 || rc == -EINVAL || rc == -EEXIST ||
            (rc == -EBADMSG && err.code == EBADMSG && err.text[0]));
    const bool ended = ws_delta_stream_reader_ended(r, &whole);
    require(ended || !whole);
    ws_delta_end(d, whole ? WS_DELTA_WHOLE : WS_DELTA_GIVEN_UP);
    if (rc == 0 && ended)
        check_written(d, bytes, n);
    patch_all(d);
    ws_delta_stream_reader_free(r);
    ws_delta_put(d);
    free(bytes);
}

/* --- offers --- */

static void fuzz_offers(struct input in)
{
    struct ws_delta_entry offers[WS_MAX_DELTA_ENTRIES];
    size_t n = 0;
    json_t *list = json_loadb((const char *)in.p, in.n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
    int rc = list ? ws_delta_listing_read(list, offers, &n) : 0;
    require(rc == 0 || rc == -EPROTO);
    require(n <= WS_MAX_DELTA_ENTRIES && n <= json_array_size(list));
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct ws_delta_link *l = &offers[i].link;
        require(ws_lineage_is_safe(l->base.lineage) && ws_lineage_is_safe(l->target.lineage));
        require(strlen(l->base_digest) == 32 && strlen(l->target_digest) == 32);
        require(ws_delta_state_name(offers[i].stats.state) != NULL);
    }
    json_decref(list);
}

/* --- encoding --- */

static void fuzz_encode(struct input in)
{
    static struct ws_delta_block_encoder *coder;
    struct ws_element_widths *w = malloc(sizeof(*w) + 4 * sizeof(w->extents[0]));
    require(w != NULL);
    w->n = 1 + number(&in, 1) % 4;
    const uint64_t offset = number(&in, 2);
    uint64_t begin = 0;
    uint32_t changed;
    size_t bytes;
    require(coder || (coder = ws_delta_block_encoder_new()));
    for (size_t i = 0; i < w->n; i++) {
        w->extents[i] = (struct ws_element_width_extent){begin, 1U << number(&in, 1) % 3};
        begin += 1 + number(&in, 2);
    }
    const size_t len = in.n / 2;
    uint8_t *a = copy_of(in.p, len, 0), *b = copy_of(in.p + len, len, 0), *out = copy_of(b, len, 0);
    int rc = ws_delta_block_encode(coder, a, b, len, w, offset, out, &bytes, &changed);
    require((changed == 0) == (memcmp(a, b, len) == 0));
    require(rc == -E2BIG || (rc == 0 && (bytes < len || bytes == 0)));
    if (rc == 0) {
        struct ws_delta_edit *e = ws_delta_edit_new();
        require(e && read_edit(e, out, bytes, len) == 0 && ws_delta_edit_changed(e) == changed);
        apply_slowly(e, a, len);
        require(memcmp(a, b, len) == 0);
        ws_delta_edit_free(e);
    }
    free(w);
    free(a);
    free(b);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data + 1, size - 1};
    if (size == 0)
        return 0;
    switch (data[0] % 6) {
    case 0:
    case 1:
        fuzz_stream(in, data[0] % 6 == 1);
        break;
    case 2:
        fuzz_edits(in);
        break;
    case 3:
        fuzz_records(in);
        break;
    case 4:
        fuzz_offers(in);
        break;
    default:
        fuzz_encode(in);
    }
    return 0;
}
