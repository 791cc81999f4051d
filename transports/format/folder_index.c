/* The index of a sharded checkpoint: walked once, into a list of its entries in the order of the text, and a
 * second one by file, along which a header is compared. */
#include "transports/format/folder_index.h"
#include "transports/base/file.h"
#include "transports/base/json_cursor.h"
#include "transports/base/vector.h"
#include "transports/format/shards.h"
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define KEY_CHARS 256
#define SHOWN     "%.160s"

/* Names lie one after the other and move while they become more, so that entries are places until the end. */
struct place {
    size_t tensor, file;
};
WS_VECTOR(places, struct place);
struct builder {
    struct places places;
    struct ws_bytes names;
};

static int out_of_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "out of memory for " WS_FOLDER_INDEX_NAME);
}

static int add_name(struct builder *b, const char *name, size_t *place)
{
    *place = b->names.len;
    return ws_bytes_append_all(&b->names, name, strlen(name) + 1);
}

static int add(struct builder *b, const char *tensor, const char *file, struct ws_error *err)
{
    const struct place *before = b->places.len ? &b->places.ptr[b->places.len - 1] : NULL;
    struct place p;

    if (!ws_shard_is(file))
        return ws_error_set(err, EBADMSG,
                            "it places tensor \"" SHOWN "\" in \"%s\", which is no *.safetensors file",
                            tensor, file);
    if (b->places.len == WS_MAX_TENSORS)
        return ws_error_set(err, E2BIG, "it has more than %d tensors, the limit", WS_MAX_TENSORS);
    if (add_name(b, tensor, &p.tensor) < 0)
        return out_of_memory(err);
    p.file = before ? before->file : 0;
    if ((!before || strcmp(b->names.ptr + before->file, file) != 0) && add_name(b, file, &p.file) < 0)
        return out_of_memory(err);
    return places_append(&b->places, p) < 0 ? out_of_memory(err) : 0;
}

static int walk_map(struct builder *b, struct ws_json *j, struct ws_error *err)
{
    char tensor[WS_MAX_TENSOR_NAME + 1], file[WS_MAX_NAME + 1];
    int rc = ws_json_enter(j, '{', err);

    while (rc == 0 && (rc = ws_json_member(j, tensor, sizeof(tensor), err)) == 1) {
        rc = ws_json_string(j, file, sizeof(file), err);
        if (rc == 0)
            rc = add(b, tensor, file, err);
    }
    return rc;
}

static int walk(struct builder *b, const char *text, size_t len, struct ws_error *err)
{
    char key[KEY_CHARS];
    bool seen = false;
    struct ws_json j;
    int rc;

    ws_json_start(&j, text, len);
    rc = ws_json_enter(&j, '{', err);
    while (rc == 0 && (rc = ws_json_member(&j, key, sizeof(key), err)) == 1) {
        if (strcmp(key, "weight_map") != 0)
            rc = ws_json_skip(&j, err);
        else if (seen)
            rc = ws_error_set(err, EBADMSG, "\"weight_map\" is there twice");
        else
            rc = walk_map(b, &j, err);
        seen |= strcmp(key, "weight_map") == 0;
    }
    if (rc == 0)
        rc = ws_json_finish(&j, err);
    if (rc == 0 && !seen)
        rc = ws_error_set(err, EBADMSG, "it has no \"weight_map\"");
    return rc;
}

static int by_tensor(const void *a, const void *b)
{
    const struct ws_folder_index_entry *x = a, *y = b;

    return strcmp(x->tensor, y->tensor);
}

static int by_file(const void *a, const void *b)
{
    const struct ws_folder_index_entry *x = a, *y = b;
    int order = strcmp(x->file, y->file);

    return order ? order : strcmp(x->tensor, y->tensor);
}

/* The object of what was walked; takes the names. */
static int pack(struct builder *b, struct ws_folder_index **out, struct ws_error *err)
{
    const size_t n = b->places.len, bytes = n * sizeof(struct ws_folder_index_entry);
    struct ws_folder_index *index = malloc(sizeof(*index) + 2 * bytes);

    if (!index)
        return out_of_memory(err);
    index->n = n;
    index->entries = (struct ws_folder_index_entry *)(index + 1);
    index->by_file = index->entries + n;
    index->names = b->names.ptr;
    b->names = (struct ws_bytes){0};
    for (size_t i = 0; i < n; i++) {
        index->entries[i].tensor = index->names + b->places.ptr[i].tensor;
        index->entries[i].file = index->names + b->places.ptr[i].file;
        index->by_file[i] = index->entries[i];
    }
    *out = index;
    return 0;
}

static int sort(struct ws_folder_index *index, struct ws_error *err)
{
    qsort(index->by_file, index->n, sizeof(index->by_file[0]), by_tensor);
    for (size_t i = 1; i < index->n; i++)
        if (by_tensor(&index->by_file[i - 1], &index->by_file[i]) == 0)
            return ws_error_set(err, EBADMSG, "it has tensor \"" SHOWN "\" twice", index->by_file[i].tensor);
    qsort(index->by_file, index->n, sizeof(index->by_file[0]), by_file);
    return 0;
}

static int parse(const char *text, size_t len, struct ws_folder_index **out, struct ws_error *err)
{
    struct builder b = {0};
    struct ws_folder_index *index = NULL;
    int rc = walk(&b, text, len, err);

    if (rc == 0)
        rc = pack(&b, &index, err);
    if (rc == 0)
        rc = sort(index, err);
    if (rc == 0)
        *out = index;
    else
        ws_folder_index_free(index);
    places_reset(&b.places);
    ws_bytes_reset(&b.names);
    return rc;
}

static int read_text(int fd, char **text, size_t *len, struct ws_error *err)
{
    struct stat stat;

    if (fstat(fd, &stat) < 0)
        return ws_error_set(err, errno, "cannot stat it: %m");
    if (!S_ISREG(stat.st_mode))
        return ws_error_set(err, EINVAL, "this is no regular file");
    if ((uint64_t)stat.st_size > WS_MAX_MANIFEST_BYTES)
        return ws_error_set(err, E2BIG, "it has %lu bytes, more than the limit of %lu",
                            (uint64_t)stat.st_size, WS_MAX_MANIFEST_BYTES);
    *text = malloc((size_t)stat.st_size + 1);
    if (!*text)
        return out_of_memory(err);
    const ssize_t n = ws_file_read(fd, *text, (size_t)stat.st_size, 0);
    *len = n < 0 ? 0 : (size_t)n;
    return n < 0 ? ws_error_set(err, (int)-n, "cannot read it: %s", strerror((int)-n)) : 0;
}

int ws_folder_index_read(int fd, struct ws_folder_index **out, struct ws_error *err)
{
    char *text = NULL;
    size_t len = 0;
    int rc = read_text(fd, &text, &len, err);

    if (rc == 0)
        rc = parse(text, len, out, err);
    free(text);
    if (rc < 0)
        ws_error_prefix(err, "%s", WS_FOLDER_INDEX_NAME);
    return rc;
}

static int by_name(const void *name, const void *listed)
{
    return strcmp(name, *(const char *const *)listed);
}

int ws_folder_index_select(const struct ws_folder_index *index, const char *const *names, size_t n,
                           bool *wanted, struct ws_error *err)
{
    const struct ws_folder_index_entry *e = index->by_file, *end = e + index->n;

    for (; e < end; e++) {
        if (e > index->by_file && strcmp(e[-1].file, e->file) == 0)
            continue;
        const char *const *found = n ? bsearch(e->file, names, n, sizeof(*names), by_name) : NULL;
        if (!found)
            return ws_error_set(err, ENOENT,
                                WS_FOLDER_INDEX_NAME ": it places tensor \"" SHOWN
                                                     "\" in %s, which is missing: fetch the checkpoint again",
                                e->tensor, e->file);
        wanted[found - names] = true;
    }
    return 0;
}

/* The first entry of a file; where there is none, the end. */
static const struct ws_folder_index_entry *first_of(const struct ws_folder_index *index, const char *file)
{
    size_t low = 0, high = index->n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(index->by_file[middle].file, file) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return &index->by_file[low];
}

bool ws_folder_index_has(const struct ws_folder_index *index, const char *file)
{
    const struct ws_folder_index_entry *e = first_of(index, file);

    return e < index->by_file + index->n && strcmp(e->file, file) == 0;
}

int ws_folder_index_check(const struct ws_folder_index *index, const char *file,
                          const struct ws_safetensors *st, struct ws_error *err)
{
    const struct ws_folder_index_entry *e = first_of(index, file), *end = index->by_file + index->n;
    size_t i = 0;

    while (i < st->n_tensors || (e < end && strcmp(e->file, file) == 0)) {
        bool placed = e < end && strcmp(e->file, file) == 0;
        int order = !placed ? -1 : i == st->n_tensors ? 1 : strcmp(st->tensors[i].name, e->tensor);
        if (order < 0)
            return ws_error_set(err, EBADMSG,
                                "%s holds tensor \"" SHOWN "\", which " WS_FOLDER_INDEX_NAME
                                " does not place there",
                                file, st->tensors[i].name);
        if (order > 0)
            return ws_error_set(err, EBADMSG,
                                WS_FOLDER_INDEX_NAME ": it places tensor \"" SHOWN
                                                     "\" in %s, which does not hold it",
                                e->tensor, file);
        i++;
        e++;
    }
    return 0;
}

void ws_folder_index_free(struct ws_folder_index *index)
{
    if (!index)
        return;
    free(index->names);
    free(index);
}

int ws_folder_index_write(FILE *f, const struct ws_folder_index_entry *entries, size_t n,
                          uint64_t total_bytes, struct ws_error *err)
{
    fprintf(f, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {",
            total_bytes);
    for (size_t i = 0; i < n; i++) {
        fputs(i ? ",\n    " : "\n    ", f);
        if (ws_json_put_string(f, entries[i].tensor) < 0 || fputs(": ", f) < 0 ||
            ws_json_put_string(f, entries[i].file) < 0)
            return ws_error_set(err, EBADMSG, "the name of a tensor or of a file is no UTF-8");
    }
    fputs("\n  }\n}\n", f);
    return 0;
}
