/* Writing safetensors headers: where each tensor of a file lies. The header that is made here is read
 * back by the strict parser before it is handed out, so that there is one set of rules and nothing is
 * ever published that a mount would refuse. */
#include "transports/base/json_cursor.h"
#include "transports/format/safetensors.h"
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES       8
#define STOCK_HEADER_BYTES 100000000UL /* the official parser refuses longer headers */
#define SHOWN              "%.160s"

struct placed {
    const struct ws_tensor *spec;
    uint64_t begin, end; /* from the start of the data */
};

/* What a reader's pointer to the elements must be a multiple of; packed types are read as bytes. */
static unsigned alignment(enum ws_dtype dtype)
{
    unsigned bits = ws_dtype_bits(dtype);

    return bits < 8 ? 1 : bits / 8;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct placed *)a)->spec->name, ((const struct placed *)b)->spec->name);
}

static int by_width_and_name(const void *a, const void *b)
{
    unsigned x = alignment(((const struct placed *)a)->spec->dtype);
    unsigned y = alignment(((const struct placed *)b)->spec->dtype);

    return x != y ? (x > y ? -1 : 1) : by_name(a, b);
}

static int check_spec(const struct ws_tensor *t, uint64_t *bytes, struct ws_error *err)
{
    if (!t->name || t->name[0] == '\0')
        return ws_error_set(err, EINVAL, "a tensor has no name");
    if (strnlen(t->name, WS_MAX_TENSOR_NAME + 1) > WS_MAX_TENSOR_NAME)
        return ws_error_set(err, EINVAL, "the name \"" SHOWN "...\" has more than %d bytes", t->name,
                            WS_MAX_TENSOR_NAME);
    if (strcmp(t->name, "__metadata__") == 0)
        return ws_error_set(err, EINVAL, "no tensor can be called \"__metadata__\"");
    if ((unsigned)t->dtype >= WS_DTYPE_COUNT)
        return ws_error_set(err, EINVAL, "tensor \"" SHOWN "\": dtype %u is unknown", t->name,
                            (unsigned)t->dtype);
    if (t->n_dims > WS_MAX_DIMS)
        return ws_error_set(err, EINVAL, "tensor \"" SHOWN "\" has %u dimensions, the limit is %d", t->name,
                            t->n_dims, WS_MAX_DIMS);
    if (ws_dtype_bytes(t->dtype, t->shape, t->n_dims, bytes) < 0)
        return ws_error_set(err, EINVAL,
                            "tensor \"" SHOWN "\": its shape is larger than any memory or ends within a byte",
                            t->name);
    return 0;
}

/* Puts the tensors one behind the other; false where one would be misaligned. */
static bool place(struct placed *order, size_t n)
{
    uint64_t at = 0;

    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = order[i].end - order[i].begin;
        if (at % alignment(order[i].spec->dtype) != 0)
            return false;
        order[i].begin = at;
        at += bytes;
        order[i].end = at;
    }
    return true;
}

static int choose_order(const struct ws_tensor *specs, size_t n, struct placed *order, struct ws_error *err)
{
    uint64_t total = 0;
    bool aligned;

    for (size_t i = 0; i < n; i++) {
        int rc = check_spec(&specs[i], &order[i].end, err);
        if (rc < 0)
            return rc;
        order[i].spec = &specs[i];
        order[i].begin = 0;
        if (order[i].end > WS_MAX_FILE_BYTES || (total += order[i].end) > WS_MAX_FILE_BYTES)
            return ws_error_set(err, E2BIG, "the tensors of one file have more than %lu bytes",
                                WS_MAX_FILE_BYTES);
    }
    qsort(order, n, sizeof(*order), by_name);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(order[i - 1].spec->name, order[i].spec->name) == 0)
            return ws_error_set(err, EINVAL, "tensor \"" SHOWN "\" is there twice", order[i].spec->name);
    }
    aligned = place(order, n);
    if (!aligned) {
        /* Every size is a multiple of its own type's, so widest first always fits. */
        qsort(order, n, sizeof(*order), by_width_and_name);
        aligned = place(order, n);
    }
    assert(aligned);
    return 0;
}

static int write_tensor(FILE *f, const struct placed *p, bool first, struct ws_error *err)
{
    const struct ws_tensor *t = p->spec;
    int rc;

    if (!first)
        fputc(',', f);
    rc = ws_json_put_string(f, t->name);
    if (rc == -EINVAL)
        return ws_error_set(err, EINVAL, "the name \"" SHOWN "\" is not UTF-8", t->name);
    if (rc < 0)
        return ws_error_set(err, -rc, "out of memory for a safetensors header");
    fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", ws_dtype_name(t->dtype));
    for (unsigned i = 0; i < t->n_dims; i++)
        fprintf(f, i ? ",%lu" : "%lu", t->shape[i]);
    fprintf(f, "],\"data_offsets\":[%lu,%lu]}", p->begin, p->end);
    return 0;
}

static int write_metadata(FILE *f, const char *metadata, struct ws_error *err)
{
    json_t *object = NULL;
    struct ws_json j;
    int rc;

    ws_json_start(&j, metadata, strlen(metadata));
    rc = ws_json_value(&j, WS_MAX_JSON_VALUE, &object, err);
    if (rc == 0)
        rc = ws_json_finish(&j, err);
    if (rc < 0) {
        json_decref(object);
        ws_error_prefix(err, "the metadata");
        return rc;
    }
    fputs("\"__metadata__\":", f);
    if (json_dumpf(object, f, JSON_COMPACT | JSON_ENCODE_ANY) < 0)
        rc = ws_error_set(err, ENOMEM, "out of memory for a safetensors header");
    json_decref(object);
    return rc;
}

/* The header's text, padded so that the data behind it begins on a page. */
static int write_text(FILE *f, const struct placed *order, size_t n, const char *metadata,
                      struct ws_error *err)
{
    static const char no_length[LENGTH_BYTES];
    long end;
    int rc = 0;

    fwrite(no_length, 1, LENGTH_BYTES, f);
    fputc('{', f);
    if (metadata)
        rc = write_metadata(f, metadata, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = write_tensor(f, &order[i], i == 0 && !metadata, err);
    fputc('}', f);
    end = ftell(f);
    if (rc == 0 && end >= 0 && end % (long)WS_PAGE_BYTES != 0)
        fprintf(f, "%*s", (int)((long)WS_PAGE_BYTES - end % (long)WS_PAGE_BYTES), "");
    if (rc == 0 && (end < 0 || ferror(f)))
        rc = ws_error_set(err, ENOMEM, "out of memory for a safetensors header");
    return rc;
}

static int make_header(const struct placed *order, size_t n, const char *metadata, char **header,
                       size_t *header_bytes, struct ws_error *err)
{
    FILE *f = open_memstream(header, header_bytes);
    uint64_t length;
    int rc;

    if (!f)
        return ws_error_set(err, ENOMEM, "out of memory for a safetensors header");
    rc = write_text(f, order, n, metadata, err);
    if ((fclose(f) != 0 || !*header) && rc == 0)
        rc = ws_error_set(err, ENOMEM, "out of memory for a safetensors header");
    if (rc == 0 && *header_bytes - LENGTH_BYTES > STOCK_HEADER_BYTES)
        rc = ws_error_set(err, E2BIG,
                          "the header of %zu tensors would have %zu bytes, and safetensors readers "
                          "stop at %lu: spread the tensors over more files",
                          n, *header_bytes, STOCK_HEADER_BYTES);
    if (rc != 0) {
        free(*header);
        *header = NULL;
        return rc;
    }
    length = htole64(*header_bytes - LENGTH_BYTES);
    memcpy(*header, &length, sizeof(length));
    return 0;
}

int ws_safetensors_layout(const struct ws_tensor *specs, size_t n, const char *metadata,
                          struct ws_safetensors **out, void **header, struct ws_error *err)
{
    struct placed *order = NULL;
    size_t header_bytes = 0;
    char *text = NULL;
    uint64_t data_bytes;
    int rc;

    if (n > WS_MAX_TENSORS)
        return ws_error_set(err, E2BIG, "%zu tensors are more than %d, the limit of one file", n,
                            WS_MAX_TENSORS);
    order = calloc(n + 1, sizeof(*order));
    if (!order)
        return ws_error_set(err, ENOMEM, "out of memory for a safetensors header");
    rc = choose_order(specs, n, order, err);
    if (rc == 0)
        rc = make_header(order, n, metadata, &text, &header_bytes, err);
    if (rc == 0) {
        data_bytes = n > 0 ? order[n - 1].end : 0;
        rc = ws_safetensors_parse(text, header_bytes, header_bytes + data_bytes, out, err);
    }
    if (rc == -EBADMSG) { /* what the parser does not take came from our caller */
        rc = -EINVAL;
        if (err)
            err->code = EINVAL;
    }
    if (rc == 0) {
        *header = text;
        text = NULL;
    }
    free(order);
    free(text);
    return rc;
}
