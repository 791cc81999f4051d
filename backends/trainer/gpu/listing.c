#include "backends/trainer/gpu/listing.h"
#include "transports/base/number.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HANDLE_CHARS 88 /* of base64 */
#define MAX_PARTS    (1UL << 20)

/* --- handles --- */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void handle_text(const unsigned char h[WS_DEVICE_HANDLE_BYTES], char out[HANDLE_CHARS + 1])
{
    char *p = out;
    for (size_t i = 0; i < WS_DEVICE_HANDLE_BYTES; i += 3) {
        size_t n = WS_DEVICE_HANDLE_BYTES - i < 3 ? WS_DEVICE_HANDLE_BYTES - i : 3;
        uint32_t bits = (uint32_t)h[i] << 16 | (n > 1 ? (uint32_t)h[i + 1] << 8 : 0) | (n > 2 ? h[i + 2] : 0);
        for (size_t k = 0; k < 4; k++)
            *p++ = k <= n ? digits[bits >> (18 - 6 * k) & 63] : '=';
    }
    *p = 0;
}

static int read_handle(const json_t *json, unsigned char out[WS_DEVICE_HANDLE_BYTES])
{
    const char *text = json_string_value(json);
    size_t n = 0;
    uint32_t bits = 0;
    if (!text || strlen(text) != HANDLE_CHARS || strcmp(text + HANDLE_CHARS - 2, "==") != 0)
        return -EINVAL;
    for (size_t i = 0; i < HANDLE_CHARS - 2; i++) {
        const char *at = strchr(digits, text[i]);
        if (!at)
            return -EINVAL;
        bits = bits << 6 | (uint32_t)(at - digits);
        if (i % 4 > 0)
            out[n++] = (unsigned char)(bits >> (6 - i % 4 * 2));
    }
    return n == WS_DEVICE_HANDLE_BYTES ? 0 : -EINVAL;
}

/* --- numbers --- */

static json_t *numbers(const uint64_t *v, size_t n)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(a, json_integer((json_int_t)v[i]));
    return a;
}

static int read_numbers(const json_t *json, unsigned n, uint64_t *out)
{
    int rc = json_is_array(json) && json_array_size(json) == n ? 0 : -EINVAL;
    for (unsigned i = 0; rc == 0 && i < n; i++)
        rc = ws_number_read(json_array_get(json, i), &out[i]);
    return rc;
}

static int read_uuid(const json_t *json, char out[WS_DEVICE_UUID_BYTES])
{
    const char *text = json_string_value(json);
    if (!text || !*text || strlen(text) >= WS_DEVICE_UUID_BYTES)
        return -EINVAL;
    for (const char *c = text; *c; c++)
        if (*c <= ' ' || *c > '~')
            return -EINVAL;
    memcpy(out, text, strlen(text) + 1);
    return 0;
}

/* --- a piece's place --- */

/* Elements of under a byte: the piece is the whole tensor. */
static bool is_packed(enum ws_dtype dtype)
{
    return ws_dtype_bits(dtype) % 8 != 0;
}

void ws_gpu_piece_runs(const struct ws_gpu_piece *p, struct ws_box_extents *out)
{
    static const uint64_t nowhere[WS_MAX_DIMS];
    const bool flat = p->piece.range || is_packed(p->tensor.dtype);
    const uint64_t count = p->piece.range ? p->piece.count : ws_gpu_piece_bytes(p);
    const int64_t one = 1;
    struct ws_box box = {.n_dims = flat ? 1 : p->tensor.n_dims,
                         .shape = flat ? &count : p->piece.size,
                         .offset = nowhere,
                         .size = flat ? &count : p->piece.size,
                         .src_strides = flat ? &one : p->strides,
                         .element_bytes = is_packed(p->tensor.dtype) ? 1 : ws_dtype_bits(p->tensor.dtype) / 8,
                         .conversion = p->conversion};
    ws_box_extents_init(out, &box);
}

static uint64_t bytes_as(const struct ws_gpu_piece *p, enum ws_dtype dtype)
{
    uint64_t bytes = 0;
    if (is_packed(p->tensor.dtype))
        (void)ws_dtype_bytes(p->tensor.dtype, p->tensor.shape, p->tensor.n_dims, &bytes);
    else
        bytes = ws_piece_elements(&p->piece, p->tensor.n_dims) * (ws_dtype_bits(dtype) / 8);
    return bytes;
}

uint64_t ws_gpu_piece_bytes(const struct ws_gpu_piece *p)
{
    return bytes_as(p, p->tensor.dtype);
}

uint64_t ws_gpu_piece_data_bytes(const struct ws_gpu_piece *p)
{
    return bytes_as(p, p->data_dtype);
}

int ws_gpu_piece_extent(const struct ws_gpu_piece *p, uint64_t *before, uint64_t *after)
{
    uint64_t element = ws_dtype_bits(p->data_dtype) / 8;
    *before = 0;
    *after = ws_gpu_piece_data_bytes(p);
    if (p->piece.range || is_packed(p->tensor.dtype) || *after == 0)
        return 0;
    *after = element;
    for (unsigned d = 0; d < p->tensor.n_dims; d++) {
        int64_t step = p->strides[d];
        uint64_t far = step < 0 ? -(uint64_t)step : (uint64_t)step;
        if (__builtin_mul_overflow(far, element, &far) ||
            __builtin_mul_overflow(far, p->piece.size[d] - 1, &far))
            return -EINVAL;
        uint64_t *side = step < 0 ? before : after;
        if (__builtin_add_overflow(*side, far, side) || *side > INT64_MAX)
            return -EINVAL;
    }
    return 0;
}

/* --- writing --- */

static json_t *segment_json(const struct ws_gpu_segment *s)
{
    char text[HANDLE_CHARS + 1];
    json_t *o = json_pack("{s:s,s:I}", "device", s->uuid, "bytes", (json_int_t)s->bytes);
    if (!o)
        return NULL;
    handle_text(s->handle, text);
    json_object_set_new(o, s->n_parts ? "parts" : "handle",
                        s->n_parts ? numbers(s->parts, s->n_parts) : json_string(text));
    return o;
}

static json_t *piece_json(const struct ws_gpu_piece *p)
{
    const struct ws_tensor *t = &p->tensor;
    json_t *o = json_pack("{s:s,s:s,s:o,s:s,s:I,s:I}", "name", t->name, "dtype", ws_dtype_name(t->dtype),
                          "shape", numbers(t->shape, t->n_dims), "kind",
                          p->piece.range        ? "range"
                          : is_packed(t->dtype) ? "whole"
                                                : "box",
                          "segment", (json_int_t)p->segment, "at", (json_int_t)p->at);
    if (!o)
        return NULL;
    if (p->piece.range) {
        json_object_set_new(o, "start", json_integer((json_int_t)p->piece.start));
        json_object_set_new(o, "count", json_integer((json_int_t)p->piece.count));
    } else if (!is_packed(t->dtype)) {
        json_t *strides = json_array();
        for (unsigned d = 0; d < t->n_dims; d++)
            json_array_append_new(strides, json_integer(p->strides[d]));
        json_object_set_new(o, "offset", numbers(p->piece.offset, t->n_dims));
        json_object_set_new(o, "size", numbers(p->piece.size, t->n_dims));
        json_object_set_new(o, "strides", strides);
    }
    if (p->conversion != WS_SAME_TYPE)
        json_object_set_new(o, "data_dtype", json_string(ws_dtype_name(p->data_dtype)));
    return o;
}

json_t *ws_gpu_listing_to_json(const struct ws_gpu_listing *l)
{
    char text[HANDLE_CHARS + 1];
    json_t *segments = json_array(), *tensors = json_array(), *marks = json_array();
    for (size_t i = 0; i < l->n_segments; i++)
        json_array_append_new(segments, segment_json(&l->segments[i]));
    for (size_t i = 0; i < l->n_pieces; i++)
        json_array_append_new(tensors, piece_json(&l->pieces[i]));
    for (size_t i = 0; i < l->n_events; i++) {
        handle_text(l->events[i].handle, text);
        json_array_append_new(marks, json_pack("{s:s,s:s}", "device", l->events[i].uuid, "handle", text));
    }
    return json_pack("{s:o,s:o,s:o}", "segments", segments, "tensors", tensors, "marks", marks);
}

/* --- reading --- */

static int bad(struct ws_error *err, const char *what, size_t i)
{
    return ws_error_set(err, EINVAL, "%s %zu of what is shared on GPUs is malformed", what, i);
}

static int read_segment(const json_t *o, struct ws_gpu_segment *s)
{
    const json_t *parts = json_object_get(o, "parts");
    uint64_t total = 0;
    int rc = read_uuid(json_object_get(o, "device"), s->uuid);
    if (rc == 0)
        rc = ws_number_read(json_object_get(o, "bytes"), &s->bytes);
    if (rc < 0 || s->bytes == 0 || s->bytes > WS_MAX_FILE_BYTES)
        return -EINVAL;
    if (!parts)
        return read_handle(json_object_get(o, "handle"), s->handle);
    size_t n = json_array_size(parts);
    if (n == 0 || n > MAX_PARTS)
        return -EINVAL;
    s->parts = calloc(n, sizeof(*s->parts));
    if (!s->parts)
        return -ENOMEM;
    s->n_parts = n;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = ws_number_read(json_array_get(parts, i), &s->parts[i]);
        if (rc == 0 && (s->parts[i] == 0 || s->parts[i] > s->bytes - total))
            rc = -EINVAL;
        total += rc == 0 ? s->parts[i] : 0;
    }
    return rc == 0 && total == s->bytes ? 0 : -EINVAL;
}

static int read_strides(const json_t *array, struct ws_gpu_piece *p)
{
    if (!json_is_array(array) || json_array_size(array) != p->tensor.n_dims)
        return -EINVAL;
    for (unsigned d = 0; d < p->tensor.n_dims; d++) {
        const json_t *v = json_array_get(array, d);
        if (!json_is_integer(v))
            return -EINVAL;
        p->strides[d] = json_integer_value(v);
    }
    return 0;
}

static int read_place(const json_t *o, struct ws_gpu_piece *p, struct ws_error *err)
{
    const char *kind = json_string_value(json_object_get(o, "kind"));
    wsync_piece given = {.kind = WSYNC_WHOLE};
    int rc = kind ? 0 : -EINVAL;
    if (rc == 0 && strcmp(kind, "range") == 0) {
        given.kind = WSYNC_RANGE;
        rc = ws_number_read(json_object_get(o, "start"), &given.start);
        if (rc == 0)
            rc = ws_number_read(json_object_get(o, "count"), &given.count);
    } else if (rc == 0 && strcmp(kind, "box") == 0) {
        given.kind = WSYNC_BOX;
        rc = read_numbers(json_object_get(o, "offset"), p->tensor.n_dims, given.offset);
        if (rc == 0)
            rc = read_numbers(json_object_get(o, "size"), p->tensor.n_dims, given.size);
        if (rc == 0)
            rc = read_strides(json_object_get(o, "strides"), p);
    } else if (rc == 0 && strcmp(kind, "whole") != 0) {
        rc = -EINVAL;
    }
    if (rc < 0 || is_packed(p->tensor.dtype) != (given.kind == WSYNC_WHOLE))
        return -EINVAL;
    return ws_piece_from_public(&given, &p->tensor, &p->piece, err);
}

static int read_dtypes(const json_t *o, enum ws_dtype *dtype, struct ws_gpu_piece *p)
{
    const char *name = json_string_value(json_object_get(o, "dtype")),
               *data = json_string_value(json_object_get(o, "data_dtype"));
    if (!name || ws_dtype_parse(name, dtype) < 0)
        return -EINVAL;
    p->data_dtype = *dtype;
    if (!data)
        return 0;
    return ws_dtype_parse(data, &p->data_dtype) < 0
               ? -EINVAL
               : ws_conversion_find(p->data_dtype, *dtype, &p->conversion);
}

static int read_piece(const json_t *o, struct ws_gpu_piece *p, const struct ws_gpu_listing *l,
                      struct ws_error *err)
{
    const char *name = json_string_value(json_object_get(o, "name"));
    const json_t *shape = json_object_get(o, "shape");
    wsync_param a = {.name = name, .n_dims = (unsigned)json_array_size(shape)};
    enum ws_dtype dtype;
    uint64_t before = 0, after = 0, segment = 0;
    if (!name || !json_is_array(shape) || json_array_size(shape) > WS_MAX_DIMS ||
        read_numbers(shape, a.n_dims, a.shape) < 0 || read_dtypes(o, &dtype, p) < 0)
        return -EINVAL;
    a.dtype = (wsync_dtype)dtype;
    int rc = ws_tensor_from_param(&a, &p->tensor, err);
    p->tensor.name = NULL;
    if (rc == 0)
        rc = read_place(o, p, err);
    if (rc == 0)
        rc = ws_number_read(json_object_get(o, "segment"), &segment);
    if (rc == 0)
        rc = ws_number_read(json_object_get(o, "at"), &p->at);
    if (rc == 0)
        rc = segment < l->n_segments ? ws_gpu_piece_extent(p, &before, &after) : -EINVAL;
    if (rc < 0)
        return rc;
    p->segment = segment;
    const uint64_t room = l->segments[segment].bytes;
    if (before > p->at || p->at > room || after > room - p->at)
        return -EINVAL;
    p->tensor.name = strdup(name);
    return p->tensor.name ? 0 : -ENOMEM;
}

static int read_all(const json_t *json, struct ws_gpu_listing *l, struct ws_error *err)
{
    const json_t *segments = json_object_get(json, "segments"), *tensors = json_object_get(json, "tensors"),
                 *marks = json_object_get(json, "marks");
    size_t n_segments = json_array_size(segments), n_pieces = json_array_size(tensors),
           n_events = json_array_size(marks);
    if (!json_is_array(segments) || !json_is_array(tensors) || n_segments > WS_MAX_TENSORS ||
        n_pieces > WS_MAX_TENSORS || n_events > WS_MAX_GPUS)
        return ws_error_set(err, EINVAL, "what is shared on GPUs is no list of segments and tensors");
    l->segments = calloc(n_segments + 1, sizeof(*l->segments));
    l->pieces = calloc(n_pieces + 1, sizeof(*l->pieces));
    l->events = calloc(n_events + 1, sizeof(*l->events));
    if (!l->segments || !l->pieces || !l->events)
        return ws_error_set(err, ENOMEM, "no memory for %zu tensors on GPUs", n_pieces);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < n_segments; i++) {
        l->n_segments++;
        if (read_segment(json_array_get(segments, i), &l->segments[i]) < 0)
            rc = bad(err, "segment", i);
    }
    for (size_t i = 0; rc == 0 && i < n_pieces; i++) {
        l->n_pieces++;
        if (read_piece(json_array_get(tensors, i), &l->pieces[i], l, NULL) < 0)
            rc = bad(err, "tensor", i);
    }
    for (size_t i = 0; rc == 0 && i < n_events; i++) {
        const json_t *o = json_array_get(marks, i);
        l->n_events++;
        if (read_uuid(json_object_get(o, "device"), l->events[i].uuid) < 0 ||
            read_handle(json_object_get(o, "handle"), l->events[i].handle) < 0)
            rc = bad(err, "mark", i);
    }
    return rc;
}

int ws_gpu_listing_from_json(const json_t *json, struct ws_gpu_listing **out, struct ws_error *err)
{
    struct ws_gpu_listing *l = calloc(1, sizeof(*l));
    int rc = l ? read_all(json, l, err) : ws_error_set(err, ENOMEM, "no memory for what is on GPUs");
    if (rc < 0)
        ws_gpu_listing_free(l);
    else
        *out = l;
    return rc;
}

void ws_gpu_listing_clear(struct ws_gpu_listing *l)
{
    for (size_t i = 0; l->segments && i < l->n_segments; i++)
        free(l->segments[i].parts);
    for (size_t i = 0; l->pieces && i < l->n_pieces; i++)
        free((char *)(uintptr_t)l->pieces[i].tensor.name);
    free(l->segments);
    free(l->pieces);
    free(l->events);
}

void ws_gpu_listing_free(struct ws_gpu_listing *l)
{
    if (l)
        ws_gpu_listing_clear(l);
    free(l);
}
