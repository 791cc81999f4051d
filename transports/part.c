#include "transports/part.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ws_part_model(char out[WS_MAX_NAME + 1], const char *model, unsigned index, unsigned count,
                  struct ws_error *err)
{
    int n = snprintf(out, WS_MAX_NAME + 1, "%s@%u.%u", model, index, count);
    if (n < 0 || n > WS_MAX_NAME)
        return ws_error_set(
            err, ENAMETOOLONG,
            "the name of the model %.60s... is too long for a trainer that spans nodes: its parts "
            "add \"@%u.%u\", %d bytes in all",
            model, index, count, WS_MAX_NAME);
    return 0;
}

void ws_part_tensor(char out[WS_PART_NAME_BYTES], size_t i)
{
    snprintf(out, WS_PART_NAME_BYTES, "%07zu", i);
}

/* --- written --- */

static json_t *numbers(const uint64_t *v, unsigned n)
{
    json_t *a = json_array();
    for (unsigned i = 0; i < n; i++)
        json_array_append_new(a, json_integer((json_int_t)v[i]));
    return a;
}

static json_t *piece_json(const struct ws_part_piece *p)
{
    if (p->range)
        return json_pack("{s:s,s:I,s:I}", "tensor", p->tensor, "start", (json_int_t)p->start, "count",
                         (json_int_t)p->count);
    return json_pack("{s:s,s:o,s:o}", "tensor", p->tensor, "offset", numbers(p->offset, p->n_dims), "size",
                     numbers(p->size, p->n_dims));
}

char *ws_part_to_json(const struct ws_part *p)
{
    json_t *files = json_array();
    for (size_t i = 0; i < p->n_files; i++) {
        const struct ws_part_file *f = &p->files[i];
        json_t *pieces = json_array();
        for (size_t k = 0; k < f->n_pieces; k++)
            json_array_append_new(pieces, piece_json(&f->pieces[k]));
        json_array_append_new(files, json_pack("{s:s,s:I,s:I,s:o}", "name", f->name, "bytes",
                                               (json_int_t)f->size_bytes, "header_bytes",
                                               (json_int_t)f->header_bytes, "pieces", pieces));
    }
    json_t *o = json_pack("{s:i,s:i,s:i,s:s,s:o}", "wsync_part", 1, "index", (int)p->index, "count",
                          (int)p->count, "placement", p->placement, "files", files);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}

/* --- read --- */

static bool read_u64(const json_t *o, uint64_t *out)
{
    if (!json_is_integer(o) || json_integer_value(o) < 0)
        return false;
    *out = (uint64_t)json_integer_value(o);
    return true;
}

static bool read_numbers(const json_t *a, unsigned *n, uint64_t *out)
{
    if (!json_is_array(a) || json_array_size(a) > WS_MAX_DIMS)
        return false;
    *n = (unsigned)json_array_size(a);
    for (unsigned i = 0; i < *n; i++)
        if (!read_u64(json_array_get(a, i), &out[i]))
            return false;
    return true;
}

static int bad(struct ws_error *err, const char *what)
{
    return ws_error_set(err, EBADMSG, "its " WS_PART_FILE " is damaged or of another release: %s", what);
}

static int read_piece(const json_t *o, struct ws_part_piece *p, struct ws_error *err)
{
    const char *tensor = json_string_value(json_object_get(o, "tensor"));
    const json_t *start = json_object_get(o, "start");
    unsigned n;
    if (!tensor || !*tensor || strlen(tensor) > WS_MAX_TENSOR_NAME)
        return bad(err, "a piece without the name of a tensor");
    p->range = start != NULL;
    if (p->range ? !read_u64(start, &p->start) || !read_u64(json_object_get(o, "count"), &p->count)
                 : !read_numbers(json_object_get(o, "offset"), &p->n_dims, p->offset) ||
                       !read_numbers(json_object_get(o, "size"), &n, p->size) || n != p->n_dims)
        return bad(err, "a piece that is neither a box nor a range");
    p->tensor = strdup(tensor);
    return p->tensor ? 0 : ws_error_set(err, ENOMEM, "no memory for a part");
}

static int read_file(const json_t *o, struct ws_part_file *f, struct ws_error *err)
{
    const char *name = json_string_value(json_object_get(o, "name"));
    const json_t *pieces = json_object_get(o, "pieces");
    size_t n = json_array_size(pieces);
    int rc = 0;
    if (!name || !ws_name_is_file(name) || !read_u64(json_object_get(o, "bytes"), &f->size_bytes) ||
        !read_u64(json_object_get(o, "header_bytes"), &f->header_bytes) ||
        f->size_bytes > WS_MAX_FILE_BYTES || f->header_bytes > f->size_bytes || n > WS_MAX_TENSORS)
        return bad(err, "a file without a good name or size");
    f->name = strdup(name);
    f->pieces = calloc(n ? n : 1, sizeof(*f->pieces));
    if (!f->name || !f->pieces)
        return ws_error_set(err, ENOMEM, "no memory for a part");
    for (size_t i = 0; rc == 0 && i < n; i++, f->n_pieces++)
        rc = read_piece(json_array_get(pieces, i), &f->pieces[i], err);
    return rc;
}

static int read_part(const json_t *o, struct ws_part *p, struct ws_error *err)
{
    const char *placement = json_string_value(json_object_get(o, "placement"));
    const json_t *files = json_object_get(o, "files");
    uint64_t index, count, format;
    size_t n = json_array_size(files);
    int rc = 0;
    if (!read_u64(json_object_get(o, "wsync_part"), &format) || format != 1)
        return bad(err, "it is not of format 1");
    if (!read_u64(json_object_get(o, "index"), &index) || !read_u64(json_object_get(o, "count"), &count) ||
        count > WS_MAX_PARTS || index >= count || !placement || strlen(placement) != WS_PART_ID_CHARS)
        return bad(err, "no index, count or placement");
    if (n == 0 || n > WS_MAX_FILES)
        return bad(err, "no files, or too many");
    p->index = (unsigned)index;
    p->count = (unsigned)count;
    memcpy(p->placement, placement, sizeof(p->placement));
    p->files = calloc(n, sizeof(*p->files));
    if (!p->files)
        return ws_error_set(err, ENOMEM, "no memory for a part");
    for (size_t i = 0; rc == 0 && i < n; i++) {
        p->n_files++;
        rc = read_file(json_array_get(files, i), &p->files[i], err);
        if (rc == 0 && i > 0 && strcmp(p->files[i - 1].name, p->files[i].name) >= 0)
            rc = bad(err, "its files are not in order");
    }
    return rc;
}

int ws_part_from_json(const char *text, size_t n, struct ws_part **out, struct ws_error *err)
{
    json_error_t why;
    json_t *o = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    struct ws_part *p = calloc(1, sizeof(*p));
    int rc = o ? 0 : bad(err, why.text);
    *out = NULL;
    if (rc == 0 && !p)
        rc = ws_error_set(err, ENOMEM, "no memory for a part");
    if (rc == 0)
        rc = read_part(o, p, err);
    json_decref(o);
    if (rc < 0) {
        ws_part_free(p);
        return rc;
    }
    *out = p;
    return 0;
}

void ws_part_free(struct ws_part *p)
{
    if (!p)
        return;
    for (size_t i = 0; p->files && i < p->n_files; i++) {
        struct ws_part_file *f = &p->files[i];
        for (size_t k = 0; f->pieces && k < f->n_pieces; k++)
            free(f->pieces[k].tensor);
        free(f->pieces);
        free(f->name);
    }
    free(p->files);
    free(p);
}
