#include "backends/trainer/offload/copy_compare.h"
#include "transports/base/vector.h"
#include "transports/delta/block_impl.h"
#include "transports/delta/compare_page.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CHANGES (WS_BLOCK_BYTES / 8) /* with more, a record saves little, and takes longest to make */
#define ROOM        (MAX_CHANGES + WS_LINE_PAGE_BYTES + WS_DELTA_SLACK)

WS_VECTOR(span_changes, struct ws_delta_span_changes);

struct ws_copy_compare {
    struct ws_copy_compare_block b;
    size_t at;                 /* bytes of the block that were put */
    bool gives_up;             /* too much differs, or memory is short */
    int why;                   /* of gives_up */
    size_t n;                  /* changes found */
    size_t next_at;            /* where the block's next span begins: of ws_delta_span_next */
    struct ws_delta_span span; /* that `at` lies in, or is at the end of */
    size_t first;              /* the span's first change */
    unsigned char part[4];     /* the bytes of an element that the last piece cut */
    struct span_changes spans;
    uint32_t *places, *changes;
    unsigned char *out;
};

struct ws_copy_compare *ws_copy_compare_new(void)
{
    struct ws_copy_compare *c = calloc(1, sizeof(*c));
    if (c) {
        c->places = malloc(ROOM * sizeof(*c->places));
        c->changes = malloc(ROOM * sizeof(*c->changes));
        c->out = malloc(WS_BLOCK_BYTES);
    }
    if (c && c->places && c->changes && c->out)
        return c;
    ws_copy_compare_free(c);
    return NULL;
}

void ws_copy_compare_free(struct ws_copy_compare *c)
{
    if (!c)
        return;
    span_changes_reset(&c->spans);
    free(c->places);
    free(c->changes);
    free(c->out);
    free(c);
}

void ws_copy_compare_begin(struct ws_copy_compare *c, const struct ws_copy_compare_block *b)
{
    assert(b->len <= WS_BLOCK_BYTES && (uintptr_t)b->to % WS_LINE_BYTES == 0);
    c->b = *b;
    c->at = c->n = c->first = c->next_at = 0;
    c->span = (struct ws_delta_span){0};
    c->spans.len = 0;
    c->gives_up = false;
}

static void give_up(struct ws_copy_compare *c, int why)
{
    c->gives_up = true;
    c->why = why;
}

/* --- what differs --- */

static size_t span_end(const struct ws_copy_compare *c)
{
    return c->span.begin + (size_t)c->span.n * c->span.width;
}

/* Keeps the span that has ended, if anything in it differs. */
static void end_span(struct ws_copy_compare *c)
{
    const struct ws_delta_span_changes one = {.span = c->span,
                                              .n = (uint32_t)(c->n - c->first),
                                              .at = c->places + c->first,
                                              .changes = c->changes + c->first};
    if (one.n > 0 && span_changes_append(&c->spans, one) < 0)
        give_up(c, -ENOMEM);
    c->first = c->n;
}

static void find(struct ws_copy_compare *c, size_t at, const unsigned char *src, size_t n)
{
    c->n += ws_delta_block_find_changes(c->places + c->n, c->changes + c->n, c->b.base + at, src, n,
                                        c->span.width, (uint32_t)((at - c->span.begin) / c->span.width));
}

/* Completes, or goes on with, the element that a piece before has cut. Returns how many bytes that took. */
static size_t find_cut(struct ws_copy_compare *c, size_t at, const unsigned char *src, size_t n)
{
    const size_t had = (at - c->span.begin) % c->span.width;
    size_t more = had ? c->span.width - had : 0;
    more = more < n ? more : n;
    memcpy(c->part + had, src, more);
    if (had && had + more == c->span.width)
        find(c, at - had, c->part, 1);
    return more;
}

/* The block's next span, where the one before has ended. false: there is none. */
static bool enter_span(struct ws_copy_compare *c, size_t at)
{
    if (at != span_end(c))
        return true;
    end_span(c);
    return ws_delta_span_next(&c->span, &c->next_at, c->b.len, c->b.widths, c->b.offset);
}

/* The n bytes at `at`, of which some differ or none does. An element is compared when its last byte is there. */
static void find_in_piece(struct ws_copy_compare *c, size_t at, const unsigned char *src, size_t n,
                          bool differs)
{
    while (n > 0 && !c->gives_up) {
        if (!enter_span(c, at))
            return;
        const size_t here = span_end(c) - at < n ? span_end(c) - at : n;
        const size_t cut = find_cut(c, at, src, here), whole = (here - cut) / c->span.width,
                     end = cut + whole * c->span.width;
        if (differs)
            find(c, at + cut, src + cut, whole);
        if (end < here)
            memcpy(c->part, src + end, here - end);
        at += here;
        src += here;
        n -= here;
        if (c->n > MAX_CHANGES)
            give_up(c, -E2BIG);
    }
}

/* --- the copy --- */

/* A part of a line: it is stored in any case. */
static uint64_t put_part(struct ws_copy_compare *c, size_t at, const unsigned char *src, size_t n)
{
    if (n == 0)
        return 0;
    if (c->b.stale)
        memcpy(c->b.to + at, src, n);
    return (uint64_t)(memcmp(c->b.base + at, src, n) != 0) << at % WS_LINE_PAGE_BYTES / WS_LINE_BYTES;
}

/* A page that lies in a span, from one's beginning on, all in one pass. false: it is none, or cannot be
 * done so, and nothing was done. */
static bool put_page(struct ws_copy_compare *c, const unsigned char *src, size_t n)
{
    const size_t at = c->at, page = at / WS_LINE_PAGE_BYTES;
    if (n != WS_LINE_PAGE_BYTES || c->gives_up || !enter_span(c, at) ||
        (at - c->span.begin) % c->span.width || span_end(c) - at < n)
        return false;
    struct ws_compare_page p = {.hasher = c->b.hasher,
                                .to = c->b.stale ? NULL : c->b.to + at,
                                .src = src,
                                .base = c->b.base + at,
                                .width = c->span.width,
                                .first = (uint32_t)((at - c->span.begin) / c->span.width),
                                .at = c->places + c->n,
                                .changes = c->changes + c->n};
    if (!ws_compare_page(&p))
        return false;
    if (c->b.stale)
        ws_lines_store(c->b.to + at, src, p.lines | c->b.stale[page]);
    c->b.changed[page] = p.lines;
    c->n += p.n;
    c->at += n;
    if (c->n > MAX_CHANGES)
        give_up(c, -E2BIG);
    return true;
}

/* n bytes within a page of lines. */
static void put_in_page(struct ws_copy_compare *c, const unsigned char *src, size_t n)
{
    const size_t at = c->at, to_line = -at % WS_LINE_BYTES, head = to_line < n ? to_line : n,
                 lines = (n - head) / WS_LINE_BYTES, tail = head + lines * WS_LINE_BYTES,
                 line = (at + head) % WS_LINE_PAGE_BYTES / WS_LINE_BYTES, page = at / WS_LINE_PAGE_BYTES;
    if (c->b.stale)
        ws_hasher_add(c->b.hasher, src, n);
    else
        ws_hasher_copy_unordered(c->b.hasher, c->b.to + at, src, n);
    uint64_t found = put_part(c, at, src, head);
    if (lines > 0) {
        const uint64_t differ = ws_lines_differ(src + head, c->b.base + at + head, lines),
                       all = lines < WS_LINE_PAGE_LINES ? ((uint64_t)1 << lines) - 1 : UINT64_MAX;
        if (c->b.stale)
            ws_lines_store(c->b.to + at + head, src + head, differ | (c->b.stale[page] >> line & all));
        found |= differ << line;
    }
    found |= put_part(c, at + tail, src + tail, n - tail);
    c->b.changed[page] |= found;
    find_in_piece(c, at, src, n, found != 0);
    c->at += n;
}

void ws_copy_compare_put(struct ws_copy_compare *c, const unsigned char *src, size_t n)
{
    assert(n <= c->b.len - c->at);
    for (size_t part; n > 0; src += part, n -= part) {
        const size_t room = WS_LINE_PAGE_BYTES - c->at % WS_LINE_PAGE_BYTES;
        part = n < room ? n : room;
        if (!put_page(c, src, part))
            put_in_page(c, src, part);
    }
}

int ws_copy_compare_end(struct ws_copy_compare *c, uint32_t file, uint32_t block,
                        struct ws_delta_record **out, uint32_t *n_changed)
{
    size_t bytes = 0;
    assert(c->at == c->b.len);
    *out = NULL;
    *n_changed = (uint32_t)c->n;
    if (!c->gives_up)
        end_span(c);
    if (c->gives_up)
        return c->why;
    int rc = ws_delta_block_encode_changes(c->spans.ptr, c->spans.len, c->b.len, c->out, &bytes, n_changed);
    if (rc < 0 || bytes == 0)
        return rc;
    *out = ws_delta_record_make(file, block, WS_DELTA_EDIT, *n_changed, c->out, (uint32_t)bytes, 0);
    return *out ? 0 : -ENOMEM;
}
