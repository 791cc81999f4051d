#include "transports/simd/box.h"
#include <assert.h>
#include <stdbool.h>
#include <string.h>

#define GATHERED 512 /* elements that are gathered, then converted */

static uint64_t min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Dimensions join the extent, innermost first, as long as both sides have an even step; the others become loops. */
void ws_box_extents_init(struct ws_box_extents *r, const struct ws_box *b)
{
    assert(b->n_dims <= WS_MAX_DIMS && b->element_bytes > 0);
    size_t src_bytes =
        b->conversion == WS_SAME_TYPE ? b->element_bytes : ws_conversion_src_bytes(b->conversion);
    *r = (struct ws_box_extents){.conversion = b->conversion,
                                 .element_bytes = b->element_bytes,
                                 .src_element_bytes = src_bytes,
                                 .bytes = b->element_bytes,
                                 .extent_bytes = b->element_bytes,
                                 .extent_step = (int64_t)src_bytes};
    uint64_t dst_step = b->element_bytes, extent_elements = 1;
    for (unsigned d = b->n_dims; d-- > 0; dst_step *= b->shape[d]) {
        int64_t src_step = b->src_strides[d] * (int64_t)src_bytes;
        assert(b->size[d] <= b->shape[d] && b->offset[d] <= b->shape[d] - b->size[d]);
        r->begin += b->offset[d] * dst_step;
        r->bytes *= b->size[d];
        if (b->size[d] == 1)
            continue;
        if (r->n_loops == 0 && dst_step == r->extent_bytes &&
            (extent_elements == 1 || src_step == r->extent_step * (int64_t)extent_elements)) {
            r->extent_step = extent_elements == 1 ? src_step : r->extent_step;
            extent_elements *= b->size[d];
            r->extent_bytes *= b->size[d];
            continue;
        }
        r->count[r->n_loops] = b->size[d];
        r->dst_step[r->n_loops] = dst_step;
        r->src_step[r->n_loops++] = src_step;
    }
    for (unsigned i = 0, k = r->n_loops; i + 1 < k; i++) { /* outermost first */
        k--;
        uint64_t count = r->count[i], dst = r->dst_step[i];
        int64_t src = r->src_step[i];
        r->count[i] = r->count[k];
        r->dst_step[i] = r->dst_step[k];
        r->src_step[i] = r->src_step[k];
        r->count[k] = count;
        r->dst_step[k] = dst;
        r->src_step[k] = src;
    }
}

/* The steps of loops over `inside` bytes that lie packed. */
static void pack_steps(struct ws_box_extents *r, int64_t *step, int64_t inside)
{
    for (unsigned l = r->n_loops; l-- > 0; inside *= (int64_t)r->count[l])
        step[l] = inside;
}

void ws_box_extents_packed(struct ws_box_extents *out, const struct ws_box_extents *r, bool converted)
{
    *out = *r;
    if (converted) {
        out->conversion = WS_SAME_TYPE;
        out->src_element_bytes = r->element_bytes;
    }
    out->extent_step = (int64_t)out->src_element_bytes;
    pack_steps(out, out->src_step, (int64_t)(r->extent_bytes / r->element_bytes) * out->extent_step);
}

void ws_box_extents_raw(struct ws_box_extents *out, const struct ws_box_extents *r)
{
    int64_t steps[WS_MAX_DIMS] = {0};
    *out = *r;
    out->conversion = WS_SAME_TYPE;
    out->element_bytes = r->src_element_bytes;
    out->bytes = r->bytes / r->element_bytes * out->element_bytes;
    out->extent_bytes = r->extent_bytes / r->element_bytes * out->element_bytes;
    out->begin = 0;
    pack_steps(out, steps, (int64_t)out->extent_bytes);
    for (unsigned l = 0; l < out->n_loops; l++)
        out->dst_step[l] = (uint64_t)steps[l];
}

uint64_t ws_box_extents_before(const struct ws_box_extents *r, uint64_t at)
{
    uint64_t before = 0, each = r->bytes;
    if (at <= r->begin || r->bytes == 0)
        return 0;
    uint64_t rest = at - r->begin;
    for (unsigned l = 0; l < r->n_loops; l++) { /* a loop's body spans no more than its step */
        uint64_t i = rest / r->dst_step[l];
        each /= r->count[l];
        if (i >= r->count[l])
            return before + r->count[l] * each;
        before += i * each;
        rest -= i * r->dst_step[l];
    }
    return before + min(rest, r->extent_bytes);
}

uint64_t ws_box_extents_place(const struct ws_box_extents *r, uint64_t byte)
{
    assert(byte < r->bytes);
    uint64_t extent = byte / r->extent_bytes, place = r->begin + byte % r->extent_bytes;
    for (unsigned l = r->n_loops; l-- > 0; extent /= r->count[l])
        place += extent % r->count[l] * r->dst_step[l];
    return place;
}

/* --- a cursor --- */

void ws_box_cursor_seek(struct ws_box_cursor *c, const struct ws_box_extents *r, const void *src,
                        uint64_t from, uint64_t n)
{
    assert(from <= r->bytes && n <= r->bytes - from);
    c->extents = r;
    c->src = src;
    c->dst = r->begin;
    c->left = n;
    c->at = from;
    if (n == 0 || r->n_loops == 0)
        return;
    uint64_t extent = from / r->extent_bytes;
    c->at = from % r->extent_bytes;
    for (unsigned l = r->n_loops; l-- > 0; extent /= r->count[l]) {
        c->index[l] = extent % r->count[l];
        c->dst += c->index[l] * r->dst_step[l];
        c->src += (int64_t)c->index[l] * r->src_step[l];
    }
}

uint64_t ws_box_cursor_ready(const struct ws_box_cursor *c)
{
    return min(c->left, c->extents->extent_bytes - c->at);
}

const unsigned char *ws_box_cursor_plain(const struct ws_box_cursor *c)
{
    const struct ws_box_extents *r = c->extents;
    bool plain = r->conversion == WS_SAME_TYPE && r->extent_step == (int64_t)r->element_bytes;
    return plain ? c->src + c->at : NULL;
}

const unsigned char *ws_box_cursor_unconverted(const struct ws_box_cursor *c)
{
    const struct ws_box_extents *r = c->extents;
    const bool packed = r->conversion != WS_SAME_TYPE && r->extent_step == (int64_t)r->src_element_bytes;
    if (!packed || c->at % r->element_bytes)
        return NULL;
    return c->src + c->at / r->element_bytes * r->src_element_bytes;
}

void ws_box_cursor_skip(struct ws_box_cursor *c, uint64_t n)
{
    const struct ws_box_extents *r = c->extents;
    c->at += n;
    c->left -= n;
    if (c->at < r->extent_bytes || c->left == 0)
        return;
    c->at = 0;
    for (unsigned l = r->n_loops; l-- > 0;) { /* the next extent: the innermost loop first */
        c->dst += r->dst_step[l];
        c->src += r->src_step[l];
        if (++c->index[l] < r->count[l])
            return;
        c->index[l] = 0;
        c->dst -= r->count[l] * r->dst_step[l];
        c->src -= (int64_t)r->count[l] * r->src_step[l];
    }
}

/* Elements of a fixed size become single moves. */
static void gather(unsigned char *dst, const unsigned char *src, int64_t step, size_t n, size_t width)
{
#define MOVES(bytes)                                                                                         \
    for (size_t i = 0; i < n; i++)                                                                           \
        memcpy(dst + i * (bytes), src + (int64_t)i * step, bytes);                                           \
    break
    switch (width) {
    case 1:
        MOVES(1);
    case 2:
        MOVES(2);
    case 4:
        MOVES(4);
    case 8:
        MOVES(8);
    default:
        MOVES(width);
    }
#undef MOVES
}

static uint64_t copy_elements(const struct ws_box_extents *r, unsigned char *dst, const unsigned char *src,
                              size_t n)
{
    unsigned char gathered[GATHERED * 4]; /* no conversion has wider elements */
    uint64_t overflows = 0;
    if (r->conversion == WS_SAME_TYPE && r->extent_step == (int64_t)r->element_bytes) {
        memcpy(dst, src, n * r->element_bytes);
        return 0;
    }
    if (r->conversion == WS_SAME_TYPE) {
        gather(dst, src, r->extent_step, n, r->element_bytes);
        return 0;
    }
    if (r->extent_step == (int64_t)r->src_element_bytes)
        return ws_convert(r->conversion, dst, src, n);
    for (size_t at = 0, part; at < n; at += part) {
        part = min(n - at, GATHERED);
        gather(gathered, src + (int64_t)at * r->extent_step, r->extent_step, part, r->src_element_bytes);
        overflows += ws_convert(r->conversion, dst + at * r->element_bytes, gathered, part);
    }
    return overflows;
}

/* Bytes [skip, skip + n) of one element; its overflow counts with its first byte. */
static uint64_t copy_part(const struct ws_box_extents *r, unsigned char *dst, const unsigned char *src,
                          size_t skip, size_t n)
{
    unsigned char whole[8];
    if (r->conversion == WS_SAME_TYPE) { /* elements of any width */
        memcpy(dst, src + skip, n);
        return 0;
    }
    uint64_t overflows = ws_convert(r->conversion, whole, src, 1);
    memcpy(dst, whole + skip, n);
    return skip == 0 ? overflows : 0;
}

uint64_t ws_box_cursor_copy(struct ws_box_cursor *c, void *dst, size_t n)
{
    const struct ws_box_extents *r = c->extents;
    unsigned char *to = dst;
    assert(n > 0 && n <= ws_box_cursor_ready(c));
    const unsigned char *src = c->src + (int64_t)(c->at / r->element_bytes) * r->extent_step;
    size_t skip = c->at % r->element_bytes, left = n;
    uint64_t overflows = 0;
    if (skip > 0) {
        size_t head = min(r->element_bytes - skip, left);
        overflows += copy_part(r, to, src, skip, head);
        to += head;
        left -= head;
        src += r->extent_step;
    }
    size_t whole = left / r->element_bytes;
    overflows += copy_elements(r, to, src, whole);
    if (left % r->element_bytes)
        overflows += copy_part(r, to + whole * r->element_bytes, src + (int64_t)whole * r->extent_step, 0,
                               left % r->element_bytes);
    ws_box_cursor_skip(c, n);
    return overflows;
}

uint64_t ws_box_copy(void *dst, const void *src, const struct ws_box *box)
{
    struct ws_box_extents extents;
    struct ws_box_cursor c;
    uint64_t n, infinite = 0;
    ws_box_extents_init(&extents, box);
    ws_box_cursor_seek(&c, &extents, src, 0, extents.bytes);
    while ((n = ws_box_cursor_ready(&c)) > 0)
        infinite += ws_box_cursor_copy(&c, (unsigned char *)dst + c.dst + c.at, n);
    return infinite;
}
