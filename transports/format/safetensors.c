/* Reading safetensors headers. The header is walked with a cursor, so that besides the result (one
 * block of memory: the object, its tensors, their names, the metadata) nothing grows with it. Every
 * rule of the format is checked here, once, so that the rest of the program can trust offsets. */
#include "transports/format/safetensors.h"
#include "transports/base/json_cursor.h"
#include "transports/base/vector.h"
#include "transports/memory/available.h"
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES 8           /* the header's length, in front of it */
#define MAX_INTEGER  (1UL << 53) /* beyond it JSON readers disagree about the value */
#define DTYPE_CHARS  32
#define KEY_CHARS    32
#define TRIM_TENSORS 4096     /* headers with more leave enough freed memory behind to hand it back */
#define SHOWN        "%.160s" /* a name in a sentence: the reason must still fit behind it */

WS_VECTOR(tensors, struct ws_tensor);
/* What grows while the header is walked. The names lie one after the other in the order of the
 * tensors, whose name pointers are set at the end, when the names no longer move. */
struct builder {
    struct tensors tensors;
    struct ws_bytes names;
    char *metadata;
    uint64_t data_begin, data_bytes;
};

static int out_of_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "out of memory for a safetensors header");
}

int ws_safetensors_header_bytes(const void *p, uint64_t file_bytes, uint64_t *out, struct ws_error *err)
{
    uint64_t length;

    if (file_bytes < LENGTH_BYTES)
        return ws_error_set(err, EBADMSG,
                            "this is no safetensors file: it has %lu bytes, fewer than the 8 of the "
                            "header's length",
                            file_bytes);
    memcpy(&length, p, sizeof(length));
    length = le64toh(length);
    if (length > WS_MAX_HEADER_BYTES)
        return ws_error_set(err, EBADMSG,
                            "this is no safetensors file: its header would have %lu bytes, more than "
                            "the limit of %lu",
                            length, WS_MAX_HEADER_BYTES);
    if (length > file_bytes - LENGTH_BYTES)
        return ws_error_set(err, EBADMSG,
                            "the file is cut off: its header has %lu bytes, but only %lu follow its "
                            "length; copy it again",
                            length, file_bytes - LENGTH_BYTES);
    if (length < strlen("{}"))
        return ws_error_set(err, EBADMSG, "this is no safetensors file: its header has %lu bytes", length);
    *out = LENGTH_BYTES + length;
    return 0;
}

/* Array of integers, at most max of them. */
static int read_integers(struct ws_json *j, const char *what, uint64_t *values, size_t max, size_t *n,
                         struct ws_error *err)
{
    int rc = ws_json_enter(j, '[', err);

    for (*n = 0; rc == 0 && (rc = ws_json_element(j, err)) == 1; ++*n) {
        if (*n == max)
            return ws_error_set(err, EBADMSG, "its %s has more than %zu numbers", what, max);
        rc = ws_json_uint(j, &values[*n], err);
        if (rc == 0 && values[*n] > MAX_INTEGER)
            return ws_error_set(err, EBADMSG, "its %s holds %lu, more than the limit of 2^53", what,
                                values[*n]);
    }
    if (rc < 0)
        ws_error_prefix(err, "its %s", what);
    return rc;
}

static int read_dtype(struct ws_json *j, enum ws_dtype *dtype, struct ws_error *err)
{
    char name[DTYPE_CHARS];
    int rc = ws_json_string(j, name, sizeof(name), err);

    if (rc < 0) {
        ws_error_prefix(err, "its dtype");
        return rc;
    }
    if (ws_dtype_parse(name, dtype) < 0)
        return ws_error_set(err, EBADMSG,
                            "its dtype \"%s\" is unknown to this program: is there a newer wsync?", name);
    return 0;
}

/* {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, in any order, each once and nothing else. */
static int read_fields(struct ws_json *j, struct ws_tensor *t, uint64_t offsets[2], struct ws_error *err)
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4, ALL = 7 };
    unsigned seen = 0, field;
    char key[KEY_CHARS];
    size_t n = 0;
    int rc = ws_json_enter(j, '{', err);

    while (rc == 0 && (rc = ws_json_member(j, key, sizeof(key), err)) == 1) {
        if (strcmp(key, "dtype") == 0) {
            field = DTYPE;
            rc = read_dtype(j, &t->dtype, err);
        } else if (strcmp(key, "shape") == 0) {
            field = SHAPE;
            rc = read_integers(j, "shape", t->shape, WS_MAX_DIMS, &n, err);
            t->n_dims = (unsigned)n;
        } else if (strcmp(key, "data_offsets") == 0) {
            field = OFFSETS;
            rc = read_integers(j, "data_offsets", offsets, 2, &n, err);
            if (rc == 0 && n != 2)
                rc = ws_error_set(err, EBADMSG, "its data_offsets are not two numbers");
        } else {
            return ws_error_set(err, EBADMSG, "it has a key \"%s\", which the format does not know", key);
        }
        if (rc == 0 && (seen & field))
            rc = ws_error_set(err, EBADMSG, "it has \"%s\" twice", key);
        seen |= field;
    }
    if (rc < 0)
        return rc;
    if (seen != ALL)
        return ws_error_set(err, EBADMSG, "it has no \"%s\"",
                            !(seen & DTYPE)   ? "dtype"
                            : !(seen & SHAPE) ? "shape"
                                              : "data_offsets");
    return 0;
}

static int check_extent(const struct builder *b, struct ws_tensor *t, const uint64_t offsets[2],
                        struct ws_error *err)
{
    uint64_t bytes;

    switch (ws_dtype_bytes(t->dtype, t->shape, t->n_dims, &bytes)) {
    case 0:
        break;
    case -EOVERFLOW:
        return ws_error_set(err, EBADMSG, "its shape is larger than any memory");
    default:
        return ws_error_set(err, EBADMSG, "its %s elements do not end on a whole byte",
                            ws_dtype_name(t->dtype));
    }
    if (offsets[0] > offsets[1])
        return ws_error_set(err, EBADMSG, "it begins at byte %lu of the data and ends before, at %lu",
                            offsets[0], offsets[1]);
    if (offsets[1] > b->data_bytes)
        return ws_error_set(err, EBADMSG,
                            "it ends at byte %lu of the data, but the file has only %lu: it is cut "
                            "off, copy it again",
                            offsets[1], b->data_bytes);
    if (offsets[1] - offsets[0] != bytes)
        return ws_error_set(err, EBADMSG, "its dtype and shape need %lu bytes, its data_offsets span %lu",
                            bytes, offsets[1] - offsets[0]);
    t->begin = b->data_begin + offsets[0];
    t->end = b->data_begin + offsets[1];
    return 0;
}

static int read_tensor(struct builder *b, struct ws_json *j, const char *name, struct ws_error *err)
{
    size_t name_bytes = strlen(name) + 1;
    struct ws_tensor t = {0};
    uint64_t offsets[2] = {0};
    int rc;

    if (name_bytes == 1)
        return ws_error_set(err, EBADMSG, "a tensor has an empty name");
    if (b->tensors.len == WS_MAX_TENSORS)
        return ws_error_set(err, EBADMSG, "the file has more than %d tensors, the limit", WS_MAX_TENSORS);
    rc = read_fields(j, &t, offsets, err);
    if (rc == 0)
        rc = check_extent(b, &t, offsets, err);
    if (rc < 0) {
        ws_error_prefix(err, "tensor \"" SHOWN "\"", name);
        return rc;
    }
    if (ws_bytes_append_all(&b->names, name, name_bytes) < 0 || tensors_append(&b->tensors, t) < 0)
        return out_of_memory(err);
    return 0;
}

/* The format allows strings only; readers in other languages rely on it. */
static int read_metadata(struct builder *b, struct ws_json *j, struct ws_error *err)
{
    json_t *object, *value;
    const char *key;
    int rc;

    if (b->metadata)
        return ws_error_set(err, EBADMSG, "the header has \"__metadata__\" twice");
    rc = ws_json_value(j, WS_MAX_JSON_VALUE, &object, err);
    if (rc < 0) {
        ws_error_prefix(err, "__metadata__");
        return rc;
    }
    if (!json_is_object(object))
        rc = ws_error_set(err, EBADMSG, "__metadata__ is no object");
    json_object_foreach(object, key, value)
    {
        if (rc == 0 && !json_is_string(value))
            rc = ws_error_set(err, EBADMSG, "__metadata__: the value of \"" SHOWN "\" is no string", key);
    }
    if (rc == 0) {
        b->metadata = json_dumps(object, JSON_COMPACT);
        if (!b->metadata)
            rc = out_of_memory(err);
    }
    json_decref(object);
    return rc;
}

static int walk(struct builder *b, const char *text, size_t len, struct ws_error *err)
{
    char name[WS_MAX_TENSOR_NAME + 1];
    struct ws_json j;
    int rc;

    if (text[0] != '{')
        return ws_error_set(err, EBADMSG, "this is no safetensors file: its header does not begin with '{'");
    ws_json_start(&j, text, len);
    rc = ws_json_enter(&j, '{', err);
    while (rc == 0 && (rc = ws_json_member(&j, name, sizeof(name), err)) == 1) {
        rc = strcmp(name, "__metadata__") == 0 ? read_metadata(b, &j, err) : read_tensor(b, &j, name, err);
    }
    for (size_t i = j.at; rc == 0 && i < len; i++) {
        if (text[i] != ' ')
            rc = ws_error_set(err, EBADMSG,
                              "byte %zu of the header, after its end, is no space: only spaces may "
                              "pad it",
                              i);
    }
    return rc;
}

/* The result in one block of its exact size, tensors still in the order of the file. */
static struct ws_safetensors *pack(const struct builder *b, uint64_t file_bytes)
{
    size_t tensors_bytes = b->tensors.len * sizeof(struct ws_tensor);
    size_t metadata_bytes = b->metadata ? strlen(b->metadata) + 1 : 0;
    struct ws_safetensors *st = malloc(sizeof(*st) + tensors_bytes + b->names.len + metadata_bytes);
    char *names;

    if (!st)
        return NULL;
    *st = (struct ws_safetensors){
        .file_bytes = file_bytes,
        .data_begin = b->data_begin,
        .n_tensors = b->tensors.len,
        .tensors = (struct ws_tensor *)(st + 1),
    };
    names = (char *)(st->tensors + st->n_tensors);
    if (b->tensors.len > 0) {
        memcpy(st->tensors, b->tensors.ptr, tensors_bytes);
        memcpy(names, b->names.ptr, b->names.len);
    }
    for (size_t i = 0; i < st->n_tensors; i++) {
        st->tensors[i].name = names;
        names += strlen(names) + 1;
    }
    if (b->metadata)
        st->metadata = memcpy(names, b->metadata, metadata_bytes);
    return st;
}
_Static_assert(sizeof(struct ws_safetensors) % _Alignof(struct ws_tensor) == 0,
               "tensors may follow the object directly");

static int by_offset(const void *a, const void *b)
{
    const struct ws_tensor *x = *(const struct ws_tensor *const *)a;
    const struct ws_tensor *y = *(const struct ws_tensor *const *)b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct ws_tensor *)a)->name, ((const struct ws_tensor *)b)->name);
}

/* As qsort, which takes many times one pass for what is in order already, as most writers' tensors are. */
static void sort(void *items, size_t n, size_t bytes, int (*compare)(const void *, const void *))
{
    const char *at = items;
    for (size_t i = 1; i < n; i++, at += bytes) {
        if (compare(at, at + bytes) > 0) {
            qsort(items, n, bytes, compare);
            return;
        }
    }
}

/* The tensors must follow each other without a gap or an overlap, from the header to the file's end:
 * otherwise some bytes would belong to no tensor, or to two. */
static int check_cover(const struct ws_safetensors *st, struct ws_error *err)
{
    const struct ws_tensor **order = calloc(st->n_tensors + 1, sizeof(*order));
    const struct ws_tensor *before = NULL;
    uint64_t at = st->data_begin;
    int rc = 0;

    if (!order)
        return out_of_memory(err);
    for (size_t i = 0; i < st->n_tensors; i++)
        order[i] = &st->tensors[i];
    sort(order, st->n_tensors, sizeof(*order), by_offset);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct ws_tensor *t = order[i];
        if (t->begin < at) {
            rc = ws_error_set(err, EBADMSG, "tensors \"" SHOWN "\" and \"" SHOWN "\" overlap in the file",
                              before ? before->name : "", t->name);
            goto out;
        }
        if (t->begin > at) {
            rc = ws_error_set(err, EBADMSG,
                              "there is a gap of %lu bytes in front of tensor \"" SHOWN
                              "\", which the format does not allow",
                              t->begin - at, t->name);
            goto out;
        }
        at = t->end;
        before = t;
    }
    if (at != st->file_bytes)
        rc = ws_error_set(err, EBADMSG, "%lu bytes follow the last tensor: no header describes them",
                          st->file_bytes - at);
out:
    free(order);
    return rc;
}

static int sort_by_name(struct ws_safetensors *st, struct ws_error *err)
{
    sort(st->tensors, st->n_tensors, sizeof(struct ws_tensor), by_name);
    for (size_t i = 1; i < st->n_tensors; i++) {
        if (strcmp(st->tensors[i - 1].name, st->tensors[i].name) == 0)
            return ws_error_set(err, EBADMSG, "tensor \"" SHOWN "\" is there twice", st->tensors[i].name);
    }
    return 0;
}

int ws_safetensors_parse(const void *p, size_t len, uint64_t file_bytes, struct ws_safetensors **out,
                         struct ws_error *err)
{
    struct ws_safetensors *st = NULL;
    struct builder b = {0};
    uint64_t header_bytes = 0;
    int rc;

    if (len < LENGTH_BYTES && len < file_bytes)
        return ws_error_set(err, EBADMSG, "only %zu bytes of the header are here", len);
    rc = ws_safetensors_header_bytes(p, file_bytes, &header_bytes, err);
    if (rc < 0)
        return rc;
    if (len < header_bytes)
        return ws_error_set(err, EBADMSG, "only %zu of the header's %lu bytes are here", len, header_bytes);
    b.data_begin = header_bytes;
    b.data_bytes = file_bytes - header_bytes;
    rc = walk(&b, (const char *)p + LENGTH_BYTES, header_bytes - LENGTH_BYTES, err);
    if (rc < 0)
        goto out;
    st = pack(&b, file_bytes);
    if (!st) {
        rc = out_of_memory(err);
        goto out;
    }
    rc = check_cover(st, err);
    if (rc == 0)
        rc = sort_by_name(st, err);
    if (rc < 0)
        goto out;
    *out = st;
    st = NULL;
out:
    ws_safetensors_free(st);
    tensors_reset(&b.tensors);
    ws_bytes_reset(&b.names);
    free(b.metadata);
    if (b.tensors.len > TRIM_TENSORS)
        ws_memory_trim();
    return rc;
}

const struct ws_tensor *ws_safetensors_find(const struct ws_safetensors *st, const char *name)
{
    struct ws_tensor key = {.name = name};

    return bsearch(&key, st->tensors, st->n_tensors, sizeof(struct ws_tensor), by_name);
}

struct ws_safetensors *ws_safetensors_copy(const struct ws_safetensors *st)
{
    struct builder b = {.data_begin = st->data_begin,
                        .tensors = {.ptr = st->tensors, .len = st->n_tensors},
                        .metadata = st->metadata};
    bool ok = true;

    for (size_t i = 0; ok && i < st->n_tensors; i++)
        ok = ws_bytes_append_all(&b.names, st->tensors[i].name, strlen(st->tensors[i].name) + 1) == 0;
    struct ws_safetensors *copy = ok ? pack(&b, st->file_bytes) : NULL;
    ws_bytes_reset(&b.names);
    return copy;
}

void ws_safetensors_free(struct ws_safetensors *st)
{
    free(st); /* one block */
}
