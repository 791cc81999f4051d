#include "transports/format/node_part.h"
#include "transports/base/json_cursor.h"
#include "transports/base/number.h"
#include "transports/base/vector.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_CHARS   64
#define PIECE_CHARS (16UL << 10) /* of one piece: a name, escaped, and two lists of numbers */

int ws_node_part_model(char out[WS_MAX_NAME + 1], const char *model, unsigned index, unsigned count,
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

void ws_node_part_tensor(char out[WS_NODE_PART_NAME_BYTES], size_t i)
{
    snprintf(out, WS_NODE_PART_NAME_BYTES, "%07zu", i);
}

bool ws_node_part_is_of(const char *part_file, const char *file)
{
    const size_t n = strlen(file);
    return strncmp(part_file, file, n) == 0 &&
           (part_file[n] == '\0' || strcmp(part_file + n, WS_NODE_PART_HEADER) == 0);
}

/* --- written --- */

static json_t *numbers(const uint64_t *v, unsigned n)
{
    json_t *a = json_array();
    for (unsigned i = 0; i < n; i++)
        json_array_append_new(a, json_integer((json_int_t)v[i]));
    return a;
}

static json_t *piece_json(const struct ws_node_part_piece *p)
{
    if (p->range)
        return json_pack("{s:s,s:I,s:I}", "tensor", p->tensor, "start", (json_int_t)p->start, "count",
                         (json_int_t)p->count);
    return json_pack("{s:s,s:o,s:o}", "tensor", p->tensor, "offset", numbers(p->offset, p->n_dims), "size",
                     numbers(p->size, p->n_dims));
}

char *ws_node_part_to_json(const struct ws_node_part *p)
{
    json_t *files = json_array();
    for (size_t i = 0; i < p->n_files; i++) {
        const struct ws_node_part_file *f = &p->files[i];
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

static bool read_numbers(const json_t *a, unsigned *n, uint64_t *out)
{
    if (!json_is_array(a) || json_array_size(a) > WS_MAX_DIMS)
        return false;
    *n = (unsigned)json_array_size(a);
    for (unsigned i = 0; i < *n; i++)
        if (ws_number_read(json_array_get(a, i), &out[i]) < 0)
            return false;
    return true;
}

static int bad(struct ws_error *err, const char *what)
{
    return ws_error_set(err, EBADMSG, "%s", what);
}

static int no_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "no memory for a part");
}

static int read_piece(const json_t *o, struct ws_node_part_piece *p, struct ws_error *err)
{
    const char *tensor = json_string_value(json_object_get(o, "tensor"));
    const json_t *start = json_object_get(o, "start");
    unsigned n;
    if (!tensor || !*tensor || strlen(tensor) > WS_MAX_TENSOR_NAME)
        return bad(err, "a piece without the name of a tensor");
    p->range = start != NULL;
    if (p->range ? ws_number_read(start, &p->start) < 0 ||
                       ws_number_read(json_object_get(o, "count"), &p->count) < 0
                 : !read_numbers(json_object_get(o, "offset"), &p->n_dims, p->offset) ||
                       !read_numbers(json_object_get(o, "size"), &n, p->size) || n != p->n_dims)
        return bad(err, "a piece that is neither a box nor a range");
    p->tensor = strdup(tensor);
    return p->tensor ? 0 : no_memory(err);
}

/* What is being read, and what of it there may still be. */
struct reading {
    struct ws_json j;
    struct ws_node_part *part;
    size_t pieces_left;
};

static int add_piece(struct reading *r, struct ws_node_part_file *f, struct ws_error *err)
{
    struct ws_node_part_piece *more = ws_vector_room(f->pieces, f->n_pieces, sizeof(*more));
    json_t *o;
    int rc;
    if (!more)
        return no_memory(err);
    f->pieces = more;
    if (r->pieces_left-- == 0)
        return bad(err, "too many pieces");
    rc = ws_json_value(&r->j, PIECE_CHARS, &o, err);
    if (rc < 0)
        return rc;
    f->pieces[f->n_pieces] = (struct ws_node_part_piece){0};
    rc = read_piece(o, &f->pieces[f->n_pieces++], err);
    json_decref(o);
    return rc;
}

static int read_pieces(struct reading *r, struct ws_node_part_file *f, struct ws_error *err)
{
    int rc = ws_json_enter(&r->j, '[', err);
    while (rc == 0 && (rc = ws_json_element(&r->j, err)) == 1)
        rc = add_piece(r, f, err);
    return rc;
}

static int record_key(unsigned *seen, unsigned field, struct ws_error *err)
{
    if (*seen & field)
        return bad(err, "a key is there twice");
    *seen |= field;
    return 0;
}

static int read_name(struct reading *r, struct ws_node_part_file *f, struct ws_error *err)
{
    char name[WS_MAX_NAME + 1];
    int rc = ws_json_string(&r->j, name, sizeof(name), err);
    if (rc == 0 && !ws_name_is_file(name))
        rc = bad(err, "a file without a good name");
    if (rc == 0 && !(f->name = strdup(name)))
        rc = no_memory(err);
    return rc;
}

static int read_file(struct reading *r, struct ws_node_part_file *f, struct ws_error *err)
{
    enum { NAME = 1, BYTES = 2, HEADER = 4, PIECES = 8, ALL = 15 };
    char key[KEY_CHARS];
    unsigned seen = 0;
    int rc = ws_json_enter(&r->j, '{', err);
    while (rc == 0 && (rc = ws_json_member(&r->j, key, sizeof(key), err)) == 1) {
        if (strcmp(key, "name") == 0)
            rc = (rc = record_key(&seen, NAME, err)) ? rc : read_name(r, f, err);
        else if (strcmp(key, "bytes") == 0)
            rc = (rc = record_key(&seen, BYTES, err)) ? rc : ws_json_uint(&r->j, &f->size_bytes, err);
        else if (strcmp(key, "header_bytes") == 0)
            rc = (rc = record_key(&seen, HEADER, err)) ? rc : ws_json_uint(&r->j, &f->header_bytes, err);
        else if (strcmp(key, "pieces") == 0)
            rc = (rc = record_key(&seen, PIECES, err)) ? rc : read_pieces(r, f, err);
        else
            rc = ws_json_skip(&r->j, err);
    }
    if (rc == 0 && (seen != ALL || f->size_bytes > WS_MAX_FILE_BYTES || f->header_bytes > f->size_bytes ||
                    f->header_bytes > WS_MAX_HEADER_BYTES + 8))
        rc = bad(err, "a file without a name, pieces or a good size");
    return rc;
}

static int read_files(struct reading *r, struct ws_error *err)
{
    struct ws_node_part *p = r->part;
    int rc = ws_json_enter(&r->j, '[', err);
    while (rc == 0 && (rc = ws_json_element(&r->j, err)) == 1) {
        struct ws_node_part_file *more = ws_vector_room(p->files, p->n_files, sizeof(*more));
        if (!more)
            return no_memory(err);
        p->files = more;
        if (p->n_files == WS_MAX_FILES)
            return bad(err, "too many files");
        more[p->n_files] = (struct ws_node_part_file){0};
        rc = read_file(r, &more[p->n_files++], err);
        if (rc == 0 && p->n_files > 1 && strcmp(more[p->n_files - 2].name, more[p->n_files - 1].name) >= 0)
            rc = bad(err, "its files are not in order");
    }
    return rc == 0 && p->n_files == 0 ? bad(err, "no files") : rc;
}

static int read_part(struct reading *r, struct ws_error *err)
{
    enum { FORMAT = 1, INDEX = 2, COUNT = 4, PLACEMENT = 8, FILES = 16, ALL = 31 };
    struct ws_node_part *p = r->part;
    uint64_t index = 0, count = 0, format = 0;
    char key[KEY_CHARS];
    unsigned seen = 0;
    int rc = ws_json_enter(&r->j, '{', err);
    while (rc == 0 && (rc = ws_json_member(&r->j, key, sizeof(key), err)) == 1) {
        if (strcmp(key, "wsync_part") == 0)
            rc = (rc = record_key(&seen, FORMAT, err)) ? rc : ws_json_uint(&r->j, &format, err);
        else if (strcmp(key, "index") == 0)
            rc = (rc = record_key(&seen, INDEX, err)) ? rc : ws_json_uint(&r->j, &index, err);
        else if (strcmp(key, "count") == 0)
            rc = (rc = record_key(&seen, COUNT, err)) ? rc : ws_json_uint(&r->j, &count, err);
        else if (strcmp(key, "placement") == 0)
            rc = (rc = record_key(&seen, PLACEMENT, err))
                     ? rc
                     : ws_json_string(&r->j, p->placement, sizeof(p->placement), err);
        else if (strcmp(key, "files") == 0)
            rc = (rc = record_key(&seen, FILES, err)) ? rc : read_files(r, err);
        else
            rc = ws_json_skip(&r->j, err);
    }
    if (rc == 0)
        rc = ws_json_finish(&r->j, err);
    if (rc == 0 && (seen != ALL || format != 1))
        rc = bad(err, "it is not of format 1, or lacks index, count, placement or files");
    if (rc == 0 &&
        (count > WS_MAX_NODE_PARTS || index >= count || strlen(p->placement) != WS_NODE_PART_ID_CHARS))
        rc = bad(err, "no good index, count or placement");
    p->index = (unsigned)index;
    p->count = (unsigned)count;
    return rc;
}

int ws_node_part_from_json(const char *text, size_t n, struct ws_node_part **out, struct ws_error *err)
{
    struct reading r = {.part = calloc(1, sizeof(*r.part)), .pieces_left = WS_MAX_TENSORS};
    int rc = r.part ? 0 : no_memory(err);
    *out = NULL;
    if (rc == 0 && n > WS_MAX_NODE_PART_BYTES)
        rc = bad(err, "it is longer than the limit of WS_MAX_NODE_PART_BYTES");
    ws_json_start(&r.j, text, n);
    if (rc == 0)
        rc = read_part(&r, err);
    if (rc < 0) {
        if (rc == -EBADMSG)
            (void)ws_error_prefix(err, "its " WS_NODE_PART_FILE " is damaged or of another release");
        ws_node_part_free(r.part);
        return rc;
    }
    *out = r.part;
    return 0;
}

void ws_node_part_free(struct ws_node_part *p)
{
    if (!p)
        return;
    for (size_t i = 0; p->files && i < p->n_files; i++) {
        struct ws_node_part_file *f = &p->files[i];
        for (size_t k = 0; f->pieces && k < f->n_pieces; k++)
            free(f->pieces[k].tensor);
        free(f->pieces);
        free(f->name);
    }
    free(p->files);
    free(p);
}
