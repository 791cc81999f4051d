#include "transports/delta/block.h"
#include "transports/base/cpu_features.h"
#include "transports/base/vector.h"
#include "transports/delta/block_impl.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The format's numbers are little-endian, and are written as the machine has them. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "deltas are written in the machine's byte order");

#define HEAD_BYTES  20
#define CHUNK_BYTES (16UL << 10) /* patched, then hashed while it is there; of whole WS_SUM_BYTES */
#define SAMPLE      4096         /* numbers that tell how many bits are best */
#define LEAD_BYTES  8
#define ROOM        (WS_BLOCK_BYTES + WS_DELTA_SLACK) /* elements of the narrowest width */

const struct ws_delta_block_impl *const ws_delta_block_impls[] = {
    [WS_PORTABLE] = &ws_delta_block_portable,
#ifdef WS_HAS_VECTORS
    [WS_AVX2] = &ws_delta_block_avx2,
    [WS_AVX512] = &ws_delta_block_avx512,
#endif
};

static const struct ws_delta_block_impl *the_impl(void)
{
    static struct ws_cpu_choice choice = {.variable = "WSYNC_DELTA"};
    return ws_delta_block_impls[ws_cpu_choose(&choice)];
}

const char *ws_delta_block_impl_name(void)
{
    return the_impl()->name;
}

/* --- numbers --- */

static void put_u32(unsigned char *p, uint32_t v)
{
    memcpy(p, &v, sizeof(v));
}

static uint32_t get_u32(const unsigned char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof(v));
    return v;
}

/* false: the bytes end within it, or it has more than 32 bits. */
static bool get_varint(const unsigned char **p, const unsigned char *end, uint32_t *out)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 35 && *p < end; shift += 7) {
        unsigned char byte = *(*p)++;
        v |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *out = (uint32_t)v;
            return v <= UINT32_MAX;
        }
    }
    return false;
}

static size_t packed_bytes(uint32_t n, unsigned bits)
{
    return ((uint64_t)n * bits + 7) / 8;
}

/* --- numbers packed with patches --- */

/* Bytes of n numbers, of which n_of_length[l] have l bits, packed with `bits`; a patch's first number is
 * taken as one byte, as it mostly is. */
static uint64_t cost_bytes(const uint32_t n_of_length[33], uint32_t n, unsigned bits)
{
    uint64_t cost = packed_bytes(n, bits);
    for (unsigned l = bits + 1; l <= 32; l++)
        cost += (uint64_t)n_of_length[l] * (1 + (l - bits + 6) / 7);
    return cost;
}

static unsigned best_bits(const uint32_t *v, uint32_t n)
{
    const uint32_t step = n / SAMPLE + 1;
    uint32_t n_of_length[33] = {0};
    unsigned best = 32;
    uint64_t least = UINT64_MAX;
    the_impl()->lengths(n_of_length, v, n, step);
    n = (n + step - 1) / step;
    for (unsigned bits = 0; bits <= 32; bits++) {
        uint64_t cost = cost_bytes(n_of_length, n, bits);
        if (cost < least) {
            least = cost;
            best = bits;
        }
    }
    return best;
}

/* Appends to a buffer; `at` over `room` says that it did not fit. */
struct writer {
    unsigned char *out;
    size_t at, room;
};

static unsigned char *claim(struct writer *w, size_t n)
{
    const bool fits = w->at <= w->room && n <= w->room - w->at;
    unsigned char *p = fits ? w->out + w->at : NULL;
    w->at = fits ? w->at + n : SIZE_MAX;
    return p;
}

static void put_low(struct writer *w, const uint32_t *v, uint32_t n, unsigned bits)
{
    unsigned char *p = claim(w, packed_bytes(n, bits));
    if (p)
        the_impl()->pack(p, v, n, bits);
}

static uint32_t put_patches(struct writer *w, const uint32_t *v, uint32_t n, unsigned bits)
{
    if (w->at > w->room)
        return 0;
    const size_t len = the_impl()->patches(w->out + w->at, w->room - w->at, v, n, bits);
    w->at = len == SIZE_MAX ? SIZE_MAX : w->at + len;
    return (uint32_t)len;
}

static int get_patches(const unsigned char *p, const unsigned char *end, uint32_t *v, uint32_t n,
                       unsigned bits)
{
    uint64_t next = 0;
    while (p < end) {
        uint32_t skip, high;
        if (end - p >= 2 && (p[0] | p[1]) < 128) { /* as they mostly are */
            skip = p[0];
            high = p[1];
            p += 2;
        } else if (!get_varint(&p, end, &skip) || !get_varint(&p, end, &high)) {
            return -EBADMSG;
        }
        if (bits == 32 || high == 0 || next + skip >= n || (uint64_t)high << bits > UINT32_MAX)
            return -EBADMSG;
        v[next + skip] |= high << bits;
        next += skip + 1;
    }
    return 0;
}

/* --- encoding --- */

struct ws_delta_block_encoder {
    uint32_t at[ROOM], changes[ROOM];
};

struct ws_delta_block_encoder *ws_delta_block_encoder_new(void)
{
    return malloc(sizeof(struct ws_delta_block_encoder));
}

void ws_delta_block_encoder_free(struct ws_delta_block_encoder *c)
{
    free(c);
}

size_t ws_delta_block_find(uint32_t *at, const unsigned char *a, const unsigned char *b, size_t n,
                           unsigned width)
{
    return the_impl()->find(at, a, b, n, width, 0);
}

size_t ws_delta_block_find_changes(uint32_t *at, uint32_t *changes, const unsigned char *a,
                                   const unsigned char *b, size_t n, unsigned width, uint32_t first)
{
    const size_t found = the_impl()->find_changes(at, changes, a, b, n, width);
    for (size_t i = 0; i < found; i++)
        at[i] += first;
    return found;
}

static void put_segment(struct writer *w, const struct ws_delta_span_changes *f)
{
    const uint32_t n = f->n;
    unsigned char *head = n ? claim(w, HEAD_BYTES) : NULL;
    if (!head)
        return;
    the_impl()->gaps(f->at, n);
    unsigned gap_bits = best_bits(f->at, n), change_bits = best_bits(f->changes, n);
    put_low(w, f->at, n, gap_bits);
    put_low(w, f->changes, n, change_bits);
    put_u32(head, f->span.begin);
    put_u32(head + 4, n);
    head[8] = (unsigned char)f->span.width;
    head[9] = (unsigned char)gap_bits;
    head[10] = (unsigned char)change_bits;
    head[11] = 0;
    put_u32(head + 12, put_patches(w, f->at, n, gap_bits));
    put_u32(head + 16, put_patches(w, f->changes, n, change_bits));
}

/* A stretch of one width is whole elements, and before and behind them what is left of one that the block's end
 * cuts, which is compared byte by byte on both sides. */
bool ws_delta_span_next(struct ws_delta_span *out, size_t *at, size_t len, const struct ws_element_widths *w,
                        uint64_t offset)
{
    if (*at >= len)
        return false;
    const struct ws_element_width_extent *extent = ws_element_widths_at(w, offset + *at),
                                         *last = &w->extents[w->n - 1];
    const uint64_t end = extent < last ? extent[1].begin : UINT64_MAX;
    const size_t left = (end - offset < len ? (size_t)(end - offset) : len) - *at;
    const size_t within = (size_t)((offset + *at - extent->begin) % extent->width);
    const size_t head = within ? extent->width - within : 0;
    unsigned width = 1;
    size_t bytes = left;
    if (head > 0)
        bytes = head < left ? head : left;
    else if (left >= extent->width) {
        width = extent->width;
        bytes = left - left % width;
    }
    *out = (struct ws_delta_span){(uint32_t)*at, (uint32_t)(bytes / width), width};
    *at += bytes;
    return true;
}

static int encoded(const struct writer *w, size_t *out_bytes, uint32_t n_changed)
{
    *out_bytes = w->at;
    return w->at > w->room && n_changed ? -E2BIG : 0;
}

int ws_delta_block_encode(struct ws_delta_block_encoder *c, const unsigned char *a, const unsigned char *b,
                          size_t len, const struct ws_element_widths *w, uint64_t offset, unsigned char *out,
                          size_t *out_bytes, uint32_t *n_changed)
{
    struct writer to = {.out = out, .room = len ? len - 1 : 0};
    struct ws_delta_span_changes f = {.at = c->at, .changes = c->changes};
    assert(len <= WS_BLOCK_BYTES);
    *n_changed = 0;
    for (size_t at = 0; ws_delta_span_next(&f.span, &at, len, w, offset);) {
        f.n = (uint32_t)the_impl()->find_changes(c->at, c->changes, a + f.span.begin, b + f.span.begin,
                                                 f.span.n, f.span.width);
        *n_changed += f.n;
        put_segment(&to, &f);
    }
    return encoded(&to, out_bytes, *n_changed);
}

int ws_delta_block_encode_changes(const struct ws_delta_span_changes *spans, size_t n_spans, size_t len,
                                  unsigned char *out, size_t *out_bytes, uint32_t *n_changed)
{
    struct writer to = {.out = out, .room = len ? len - 1 : 0};
    *n_changed = 0;
    for (size_t i = 0; i < n_spans; i++) {
        *n_changed += spans[i].n;
        put_segment(&to, &spans[i]);
    }
    return encoded(&to, out_bytes, *n_changed);
}

/* --- reading --- */

struct segment {
    uint32_t begin, n;
    unsigned width;
    size_t first; /* index of its first change in the arrays */
    size_t done;  /* how many are applied */
};

WS_VECTOR(segments, struct segment);

struct ws_delta_edit {
    size_t n, room;
    size_t at_segment; /* the first that is not applied to its end */
    struct segments segments;
    uint32_t *at, *changes;
};

struct ws_delta_edit *ws_delta_edit_new(void)
{
    return calloc(1, sizeof(struct ws_delta_edit));
}

static void clear_edit(struct ws_delta_edit *e)
{
    e->segments.len = 0;
    e->n = 0;
}

void ws_delta_edit_free(struct ws_delta_edit *e)
{
    if (!e)
        return;
    segments_reset(&e->segments);
    free(e->at);
    free(e->changes);
    free(e);
}

uint32_t ws_delta_edit_changed(const struct ws_delta_edit *e)
{
    return (uint32_t)e->n;
}

static bool more_numbers(uint32_t **p, size_t has, size_t room)
{
    uint32_t *more = calloc(room, sizeof(**p));
    if (!more)
        return false;
    if (has > 0)
        memcpy(more, *p, has * sizeof(**p));
    free(*p);
    *p = more;
    return true;
}

/* Room for one segment more with n changes. */
static int grow(struct ws_delta_edit *e, uint32_t n)
{
    if (segments_reserve(&e->segments, 1) < 0)
        return -ENOMEM;
    if (e->n + n + WS_DELTA_SLACK > e->room) {
        size_t room = e->n + n + e->n / 2 + WS_DELTA_SLACK;
        if (!more_numbers(&e->at, e->n, room) || !more_numbers(&e->changes, e->n, room))
            return -ENOMEM;
        e->room = room;
    }
    return 0;
}

static int damaged(struct ws_error *err, const char *what)
{
    return ws_error_set(err, EBADMSG, "the delta of a block is damaged: %s", what);
}

static int read_segment(struct ws_delta_edit *e, const unsigned char **p, const unsigned char *end,
                        size_t len, uint64_t *free_from, struct ws_error *err)
{
    const unsigned char *head = *p;
    if ((size_t)(end - head) < HEAD_BYTES)
        return damaged(err, "it ends within a segment's head");
    uint32_t begin = get_u32(head), n = get_u32(head + 4);
    unsigned width = head[8], gap_bits = head[9], change_bits = head[10];
    uint64_t gap_patches = get_u32(head + 12), change_patches = get_u32(head + 16);
    if ((width != 1 && width != 2 && width != 4) || gap_bits > 32 || change_bits > 32 || head[11])
        return damaged(err, "a segment's head is malformed");
    if (begin < *free_from || begin > len || n == 0 || n > (len - begin) / width)
        return damaged(err, "a segment lies outside the block or over another");
    uint64_t gap_bytes = packed_bytes(n, gap_bits), change_bytes = packed_bytes(n, change_bits);
    if (gap_bytes + change_bytes + gap_patches + change_patches > (uint64_t)(end - head) - HEAD_BYTES)
        return damaged(err, "a segment is longer than the delta");
    if (grow(e, n) < 0)
        return ws_error_set(err, ENOMEM, "no memory for a delta of %u changes", n);
    const unsigned char *gaps = head + HEAD_BYTES, *changes = gaps + gap_bytes,
                        *patches = changes + change_bytes;
    uint32_t *at = e->at + e->n, *change = e->changes + e->n;
    the_impl()->unpack(at, gaps, n, gap_bits);
    the_impl()->unpack(change, changes, n, change_bits);
    *p = patches + gap_patches + change_patches;
    if (get_patches(patches, patches + gap_patches, at, n, gap_bits) < 0 ||
        get_patches(patches + gap_patches, *p, change, n, change_bits) < 0)
        return damaged(err, "a patch is malformed");
    uint64_t last = the_impl()->places(at, n);
    if (last > (len - begin) / width)
        return damaged(err, "a change lies outside the block");
    e->segments.ptr[e->segments.len++] =
        (struct segment){.begin = begin, .n = n, .width = width, .first = e->n};
    e->n += n;
    *free_from = begin + last * width;
    return 0;
}

int ws_delta_edit_read(struct ws_delta_edit *e, const unsigned char *bytes, size_t n_bytes, size_t len,
                       struct ws_error *err)
{
    const unsigned char *p = bytes, *end = bytes + n_bytes;
    uint64_t free_from = 0;
    int rc = 0;
    clear_edit(e);
    while (rc == 0 && p < end)
        rc = read_segment(e, &p, end, len, &free_from, err);
    if (rc < 0)
        clear_edit(e);
    return rc;
}

void ws_delta_edit_each(const struct ws_delta_edit *e,
                        void (*fn)(void *arg, uint32_t byte, unsigned width, uint32_t change), void *arg)
{
    for (size_t k = 0; k < e->segments.len; k++) {
        const struct segment *s = &e->segments.ptr[k];
        for (size_t i = s->first; i < s->first + s->n; i++)
            fn(arg, s->begin + e->at[i] * s->width, s->width, e->changes[i]);
    }
}

bool ws_delta_edit_run(const struct ws_delta_edit *e, size_t k, struct ws_delta_edit_run *out)
{
    if (k >= e->segments.len)
        return false;
    const struct segment *s = &e->segments.ptr[k];
    *out = (struct ws_delta_edit_run){.begin = s->begin,
                                      .width = s->width,
                                      .n = s->n,
                                      .at = e->at + s->first,
                                      .changes = e->changes + s->first};
    return true;
}

/* --- applying --- */

/* The changes that begin before byte `end`; those that were applied already are not done again. */
static void apply_until(struct ws_delta_edit *e, unsigned char *dst, size_t end)
{
    for (; e->at_segment < e->segments.len; e->at_segment++) {
        struct segment *s = &e->segments.ptr[e->at_segment];
        if (s->begin >= end)
            return;
        uint32_t before = (uint32_t)((end - s->begin + s->width - 1) / s->width);
        s->done += the_impl()->apply(dst + s->begin, e->at + s->first + s->done,
                                     e->changes + s->first + s->done, s->n - s->done, s->width, before);
        if (s->done < s->n)
            return;
    }
}

static void rewind_edit(struct ws_delta_edit *e)
{
    e->at_segment = 0;
    for (size_t i = 0; i < e->segments.len; i++)
        e->segments.ptr[i].done = 0;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

uint64_t ws_delta_edit_apply(struct ws_hasher *h, unsigned char *dst, const unsigned char *src, size_t len,
                             struct ws_delta_edit *const *edits, size_t n)
{
    return ws_delta_edit_apply_by(h, dst, src, len, edits, n, NULL);
}

uint64_t ws_delta_edit_apply_by(struct ws_hasher *h, unsigned char *dst, const unsigned char *src, size_t len,
                                struct ws_delta_edit *const *edits, size_t n,
                                const struct ws_delta_flow *flow)
{
    size_t copied = 0;
    ws_hasher_reset(h);
    for (size_t i = 0; i < n; i++)
        rewind_edit(edits[i]);
    for (size_t at = 0, stop; at < len; at = stop) {
        stop = least(len, at + CHUNK_BYTES);
        /* an element may lie across the chunk's end: each step is ahead of the next by one and more */
        size_t copy = least(len, stop + n * LEAD_BYTES) - copied;
        if (src && copy > 0)
            memcpy(dst + copied, src + copied, copy);
        else if (flow && copy > 0)
            flow->load(flow->arg, copied, copy, dst + copied);
        copied += copy;
        for (size_t i = 0; i < n; i++)
            apply_until(edits[i], dst, least(len, stop + (n - 1 - i) * LEAD_BYTES));
        ws_hasher_add(h, dst + at, stop - at);
        if (flow)
            flow->store(flow->arg, at, stop - at, dst + at);
    }
    return ws_hasher_digest(h);
}

/* --- applying to a block in runs --- */

/* Behind its last changed element. */
static size_t segment_end(const struct ws_delta_edit *e, const struct segment *s)
{
    return s->begin + ((size_t)e->at[s->first + s->n - 1] + 1) * s->width;
}

static bool fits(const struct ws_delta_edit *e, const struct ws_delta_runs *runs)
{
    bool whole = true;
    size_t begin = 0, k = 0;
    for (size_t r = 0; whole && r < runs->n; begin += runs->runs[r++].n) {
        while (k < e->segments.len && segment_end(e, &e->segments.ptr[k]) <= begin)
            k++;
        if (k == e->segments.len)
            break;
        const struct segment *s = &e->segments.ptr[k];
        whole = begin <= s->begin || (begin - s->begin) % s->width == 0;
    }
    return whole;
}

bool ws_delta_edit_fits_runs(struct ws_delta_edit *const *edits, size_t n, const struct ws_delta_runs *runs)
{
    bool whole = true;
    for (size_t i = 0; whole && i < n; i++)
        whole = fits(edits[i], runs);
    return whole;
}

/* The end of the chunk that begins at byte `at` of the run: chunks end at multiples of CHUNK_BYTES of memory. */
static size_t chunk_end(const struct ws_delta_run *r, size_t at)
{
    return least(r->n, at + CHUNK_BYTES - (uintptr_t)(r->place + at) % CHUNK_BYTES);
}

uint64_t ws_delta_edit_apply_runs(struct ws_hasher *h, const struct ws_delta_runs *runs,
                                  const unsigned char *src, struct ws_delta_edit *const *edits, size_t n)
{
    size_t begin = 0; /* of the run in the block */
    ws_hasher_reset(h);
    for (size_t i = 0; i < n; i++)
        rewind_edit(edits[i]);
    for (size_t k = 0; k < runs->n; begin += runs->runs[k++].n) {
        const struct ws_delta_run *r = &runs->runs[k];
        /* where the block would begin if all of it lay here: only what lies in the run is looked at */
        unsigned char *dst = (unsigned char *)((uintptr_t)r->place - begin);
        if (src)
            memcpy(r->place, src + begin, r->n);
        for (size_t at = 0, stop; at < r->n; at = stop) {
            stop = chunk_end(r, at);
            for (size_t i = 0; i < n; i++)
                apply_until(edits[i], dst, begin + least(r->n, stop + (n - 1 - i) * LEAD_BYTES));
            ws_hasher_add(h, r->place + at, stop - at);
            runs->patched(runs->arg, k, at, stop - at);
        }
    }
    return ws_hasher_digest(h);
}
