#include "backends/trainer/skyrl/chunk.h"
#include "backends/trainer/api/arena.h"
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/api/struct_abi.h"
#include "backends/trainer/tensor/piece.h"
#include "transports/simd/box.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A parameter on its way to its place in the order. */
struct member {
    const char *name;
    size_t module_length; /* of the name: its module's; SIZE_MAX: a module of its own */
    size_t first;         /* index of the first parameter of that module */
    size_t index;
};

struct wsync_chunks {
    struct ws_arena arena; /* module names */
    wsync_chunk_entry *entries;
    wsync_chunk *list;
    size_t n, next;
    uint64_t threshold_bytes, alignment;
};

bool ws_pack_alignment_fits(uint64_t alignment)
{
    return alignment <= WS_MAX_PACK_ALIGNMENT && (alignment & (alignment - 1)) == 0;
}

uint64_t ws_pack_place(uint64_t at, uint64_t alignment, uint64_t element)
{
    uint64_t unit = alignment > element ? alignment : element;
    return (at + unit - 1) / unit * unit;
}

/* "a.b.q_proj.weight" -> "a.b"; "" of names with fewer parts, as ".".join(name.split(".")[:-2]) has it. */
static size_t module_length(const char *name)
{
    size_t dots = 0;
    for (size_t n = strlen(name); n-- > 0;)
        if (name[n] == '.' && ++dots == 2)
            return n;
    return 0;
}

static int by_module(const void *x, const void *y)
{
    const struct member *a = x, *b = y;
    if (a->module_length != b->module_length)
        return a->module_length < b->module_length ? -1 : 1;
    int c = memcmp(a->name, b->name, a->module_length);
    return c ? c : a->index < b->index ? -1 : 1;
}

static int by_appearance(const void *x, const void *y)
{
    const struct member *a = x, *b = y;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

static bool same_module(const struct member *a, const struct member *b)
{
    return a->module_length == b->module_length && memcmp(a->name, b->name, a->module_length) == 0;
}

/* Modules in the order of their first parameter, each with its parameters in the caller's order. */
static void group(struct member *m, size_t n)
{
    qsort(m, n, sizeof(m[0]), by_module);
    for (size_t i = 0; i < n; i++)
        m[i].first = i > 0 && same_module(&m[i - 1], &m[i]) ? m[i - 1].first : m[i].index;
    qsort(m, n, sizeof(m[0]), by_appearance);
}

static int entry_of(const wsync_param *a, wsync_chunk_entry *e, struct ws_error *err)
{
    struct ws_tensor t = {0};
    struct ws_piece piece = {0};
    int rc = ws_tensor_from_param(a, &t, err);
    if (rc == 0)
        rc = ws_piece_from_public(&a->piece, &t, &piece, err);
    if (rc < 0)
        return rc;
    *e = (wsync_chunk_entry){.param = a, .n_dims = piece.range ? 1 : t.n_dims};
    memcpy(e->shape, piece.range ? &piece.count : piece.size, e->n_dims * sizeof(e->shape[0]));
    e->numel = ws_piece_elements(&piece, t.n_dims);
    if (ws_dtype_bits(t.dtype) % 8 != 0 && a->piece.kind != WSYNC_WHOLE)
        return ws_error_set(err, EINVAL, "%s is %s, which can only be passed whole", a->name,
                            ws_dtype_name(t.dtype));
    return ws_dtype_bytes(t.dtype, e->shape, e->n_dims, &e->size_bytes)
               ? ws_error_set(err, EINVAL, "the piece of %s ends within a byte", a->name)
               : 0;
}

static uint64_t element_bytes(const wsync_chunk_entry *e)
{
    uint64_t bits = ws_dtype_bits((enum ws_dtype)e->param->dtype);
    return bits < 8 ? 1 : bits / 8;
}

/* The effective strides of a box. true: those of a dense, row-major tensor. */
static bool strides_of(const wsync_chunk_entry *e, int64_t strides[WSYNC_MAX_DIMS])
{
    const wsync_piece *p = &e->param->piece;
    static const int64_t contiguous[WSYNC_MAX_DIMS];
    bool dense = true, box = p->kind == WSYNC_BOX;
    int64_t step = 1;
    ws_piece_strides(box ? p->strides : contiguous, box && p->strided, e->shape, e->n_dims, strides);
    for (unsigned d = e->n_dims; d-- > 0; step *= (int64_t)e->shape[d])
        dense = dense && (strides[d] == step || e->shape[d] <= 1);
    return dense || e->numel == 0;
}

/* Do the sources lie in memory as in the layout? */
static bool is_packed(const wsync_chunk *c)
{
    const unsigned char *base = NULL;
    int64_t strides[WSYNC_MAX_DIMS];
    for (size_t i = 0; i < c->n; i++) {
        const wsync_chunk_entry *e = &c->entries[i];
        if (e->size_bytes == 0)
            continue;
        if (!e->param->data || !strides_of(e, strides))
            return false;
        if (!base) /* nothing but empty entries before it: its offset is 0 */
            base = e->param->data;
        if ((uintptr_t)e->param->data != (uintptr_t)base + e->offset)
            return false;
    }
    return true;
}

/* Everything that follows from the entries. -E2BIG: more than 64 bits count. */
static int finish(const struct wsync_chunks *s, wsync_chunk *c, struct ws_error *err)
{
    wsync_chunk_entry *entries = s->entries + (c->entries - s->entries);
    c->alignment = s->alignment;
    c->one_dtype = 1;
    for (size_t i = 0; i < c->n; i++) {
        wsync_chunk_entry *e = &entries[i];
        e->offset = ws_pack_place(c->packed_bytes, s->alignment, element_bytes(e));
        c->one_dtype = c->one_dtype && e->param->dtype == entries[0].param->dtype;
        if (e->offset < c->packed_bytes ||
            __builtin_add_overflow(e->offset, e->size_bytes, &c->packed_bytes) ||
            c->packed_bytes > INT64_MAX || /* so that the next place can be computed */
            __builtin_add_overflow(c->total_numel, e->numel, &c->total_numel))
            return ws_error_set(err, E2BIG, "a chunk that ends with %s has more than 2^63 bytes",
                                e->param->name);
        c->total_size_bytes += e->size_bytes;
    }
    c->packed = is_packed(c);
    return 0;
}

/* SkyRL's rule: a module that would make the chunk too large begins a new one, unless the chunk is empty. m
 * and the entries are in order. */
static void cut(struct wsync_chunks *s, const struct member *m, size_t n)
{
    uint64_t bytes = 0;
    size_t end;
    for (size_t i = 0; i < n; i = end) {
        uint64_t more = 0, sum;
        bool over = false;
        for (end = i; end < n && m[end].first == m[i].first; end++)
            over = __builtin_add_overflow(more, s->entries[end].size_bytes, &more) || over;
        over = over || __builtin_add_overflow(bytes, more, &sum) || sum > s->threshold_bytes;
        wsync_chunk *c = s->n ? &s->list[s->n - 1] : NULL;
        if (!c || (bytes > 0 && over)) {
            c = &s->list[s->n++];
            c->entries = s->entries + i;
            bytes = 0;
        }
        c->n += end - i;
        bytes += more;
    }
}

/* The modules' names: of each chunk that has one only. */
static int name_modules(struct wsync_chunks *s, const struct member *m)
{
    for (size_t i = 0; i < s->n; i++) {
        wsync_chunk *c = &s->list[i];
        size_t at = (size_t)(c->entries - s->entries);
        if (m[at].first != m[at + c->n - 1].first)
            continue;
        c->module_name = ws_arena_text(&s->arena, m[at].name, m[at].module_length);
        if (!c->module_name)
            return -ENOMEM;
    }
    return 0;
}

static int check_options(const wsync_chunk_options *o, struct ws_error *err)
{
    if (!ws_pack_alignment_fits(o->alignment))
        return ws_error_set(err, EINVAL, "an alignment of %lu is no power of two of at most %lu",
                            (unsigned long)o->alignment, WS_MAX_PACK_ALIGNMENT);
    if (o->ungrouped && o->threshold_bytes)
        return ws_error_set(err, EINVAL, "chunks that are not grouped by module have no threshold");
    return 0;
}

static int sort_into(struct wsync_chunks *s, struct member *m, const wsync_param *params, size_t n,
                     bool grouped, struct ws_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < n; i++) {
        if (!params[i].name)
            return ws_error_set(err, EINVAL, "parameter %zu has no name", i);
        m[i] = (struct member){params[i].name, grouped ? module_length(params[i].name) : 0, i, i};
    }
    if (grouped)
        group(m, n);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = entry_of(&params[m[i].index], &s->entries[i], err);
    if (rc < 0)
        return rc;
    if (grouped)
        cut(s, m, n);
    else
        for (; s->n < n; s->n++)
            s->list[s->n] = (wsync_chunk){.n = 1, .entries = s->entries + s->n};
    for (size_t i = 0; rc == 0 && i < s->n; i++)
        rc = finish(s, &s->list[i], err);
    if (rc == 0 && grouped && name_modules(s, m) < 0)
        rc = ws_error_set(err, ENOMEM, "no memory for the modules' names");
    return rc;
}

int wsync_chunks_open(const wsync_param *params, size_t n, const wsync_chunk_options *options,
                      wsync_chunks **out)
{
    struct ws_error *err = ws_last_error();
    wsync_chunk_options o = {0};
    *out = NULL;
    int rc = options ? ws_struct_abi_copy(&o, sizeof(o), options, "wsync_chunk_options", err) : 0;
    if (rc == 0)
        rc = check_options(&o, err);
    if (rc == 0 && n > WS_MAX_TENSORS)
        rc = ws_error_set(err, E2BIG, "%zu parameters; at most %d", n, WS_MAX_TENSORS);
    if (rc < 0)
        return rc;
    struct wsync_chunks *s = calloc(1, sizeof(*s));
    struct member *m = calloc(n + 1, sizeof(*m));
    if (s) {
        s->threshold_bytes = o.threshold_bytes;
        s->alignment = o.alignment;
        s->entries = calloc(n + 1, sizeof(*s->entries));
        s->list = calloc(n + 1, sizeof(*s->list));
    }
    rc = s && m && s->entries && s->list
             ? sort_into(s, m, params, n, !o.ungrouped, err)
             : ws_error_set(err, ENOMEM, "no memory for the chunks of %zu parameters", n);
    free(m);
    if (rc < 0)
        wsync_chunks_close(s);
    else
        *out = s;
    return rc;
}

size_t wsync_chunks_count(const wsync_chunks *s)
{
    return s->n;
}

const wsync_chunk *wsync_chunks_get(const wsync_chunks *s, size_t i)
{
    return i < s->n ? &s->list[i] : NULL;
}

const wsync_chunk *wsync_chunks_next(wsync_chunks *s)
{
    if (s->next < s->n)
        return &s->list[s->next++];
    s->next = 0;
    return NULL;
}

void wsync_chunks_close(wsync_chunks *s)
{
    if (!s)
        return;
    ws_arena_free(&s->arena);
    free(s->entries);
    free(s->list);
    free(s);
}

static void pack_entry(const wsync_chunk_entry *e, unsigned char *dst)
{
    static const uint64_t zeroes[WSYNC_MAX_DIMS];
    int64_t strides[WSYNC_MAX_DIMS];
    struct ws_box box = {.n_dims = e->n_dims,
                         .shape = e->shape,
                         .offset = zeroes,
                         .size = e->shape,
                         .src_strides = strides,
                         .element_bytes = element_bytes(e)};
    if (strides_of(e, strides))
        ws_copy(dst, e->param->data, e->size_bytes);
    else
        (void)ws_box_copy(dst, e->param->data, &box);
}

int wsync_chunk_pack(const wsync_chunk *c, void *dst, size_t bytes)
{
    struct ws_error *err = ws_last_error();
    uint64_t at = 0;
    if (bytes < c->packed_bytes)
        return ws_error_set(err, ENOSPC, "a packed chunk takes %lu bytes, and there is room for %zu",
                            (unsigned long)c->packed_bytes, bytes);
    for (size_t i = 0; i < c->n; i++)
        if (!c->entries[i].param->data && c->entries[i].size_bytes)
            return ws_error_set(err, EINVAL, "%s has no data to pack", c->entries[i].param->name);
    for (size_t i = 0; i < c->n; i++) {
        const wsync_chunk_entry *e = &c->entries[i];
        memset((unsigned char *)dst + at, 0, e->offset - at);
        if (e->size_bytes)
            pack_entry(e, (unsigned char *)dst + e->offset);
        at = e->offset + e->size_bytes;
    }
    return 0;
}
