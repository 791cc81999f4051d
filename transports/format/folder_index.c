/* The index of a sharded checkpoint. Its text is kept and walked twice, once for the files and, when
 * their headers are known, once for the tensors; so no list of its entries is needed. */
#include "transports/format/folder_index.h"
#include "transports/base/file.h"
#include "transports/base/json_cursor.h"
#include "transports/format/folder.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INDEX_NAME "model.safetensors.index.json"
#define KEY_CHARS  256
#define SHOWN      "%.160s"

struct ws_folder_index {
    char *text;
    size_t len;
};

static int out_of_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "out of memory for %s", INDEX_NAME);
}

static int by_name(const void *name, const void *file)
{
    return strcmp(name, ((const struct ws_folder_file *)file)->name);
}

static const struct ws_folder_file *find_file(const struct ws_folder *f, const char *name)
{
    return bsearch(name, f->files, f->n_files, sizeof(*f->files), by_name);
}

static int read_text(const struct ws_folder *f, const struct ws_folder_file *file,
                     struct ws_folder_index *index, struct ws_error *err)
{
    int fd = ws_folder_file_open(f, file, err);
    if (fd < 0)
        return fd;
    const ssize_t n = ws_file_read(fd, index->text, index->len, 0);
    close(fd);
    index->len = n < 0 ? 0 : (size_t)n;
    return n < 0 ? ws_error_set(err, (int)-n, "cannot read %s: %s", INDEX_NAME, strerror((int)-n)) : 0;
}

int ws_folder_index_read(const struct ws_folder *f, struct ws_folder_index **out, struct ws_error *err)
{
    const struct ws_folder_file *file = find_file(f, INDEX_NAME);
    struct ws_folder_index *index;
    int rc;

    *out = NULL;
    if (!file)
        return 0;
    if (file->size_bytes > WS_MAX_MANIFEST_BYTES)
        return ws_error_set(err, E2BIG, "%s has %lu bytes, more than the limit of %lu", INDEX_NAME,
                            file->size_bytes, WS_MAX_MANIFEST_BYTES);
    index = calloc(1, sizeof(*index));
    if (!index)
        return out_of_memory(err);
    index->len = file->size_bytes;
    index->text = malloc(index->len + 1);
    rc = index->text ? read_text(f, file, index, err) : out_of_memory(err);
    if (rc < 0) {
        ws_folder_index_free(index);
        return rc;
    }
    *out = index;
    return 0;
}

typedef int visit_fn(void *arg, const char *tensor, const char *file, struct ws_error *err);

static int walk_map(struct ws_json *j, visit_fn *visit, void *arg, struct ws_error *err)
{
    char tensor[WS_MAX_TENSOR_NAME + 1], file[WS_MAX_NAME + 1];
    int rc = ws_json_enter(j, '{', err);

    while (rc == 0 && (rc = ws_json_member(j, tensor, sizeof(tensor), err)) == 1) {
        rc = ws_json_string(j, file, sizeof(file), err);
        if (rc == 0)
            rc = visit(arg, tensor, file, err);
    }
    return rc;
}

static int walk(const struct ws_folder_index *index, visit_fn *visit, void *arg, struct ws_error *err)
{
    char key[KEY_CHARS];
    bool seen = false;
    struct ws_json j;
    int rc;

    ws_json_start(&j, index->text, index->len);
    rc = ws_json_enter(&j, '{', err);
    while (rc == 0 && (rc = ws_json_member(&j, key, sizeof(key), err)) == 1) {
        if (strcmp(key, "weight_map") != 0)
            rc = ws_json_skip(&j, err);
        else if (seen)
            rc = ws_error_set(err, EBADMSG, "\"weight_map\" is there twice");
        else
            rc = walk_map(&j, visit, arg, err);
        seen |= strcmp(key, "weight_map") == 0;
    }
    if (rc == 0)
        rc = ws_json_finish(&j, err);
    if (rc == 0 && !seen)
        rc = ws_error_set(err, EBADMSG, "it has no \"weight_map\"");
    if (rc < 0)
        ws_error_prefix(err, "%s", INDEX_NAME);
    return rc;
}

struct selection {
    const struct ws_folder *folder;
    bool *wanted;
};

static int select_file(void *arg, const char *tensor, const char *name, struct ws_error *err)
{
    struct selection *s = arg;
    const struct ws_folder_file *file = find_file(s->folder, name);
    const char *end = strstr(name, ".safetensors");

    if (!end || strcmp(end, ".safetensors") != 0)
        return ws_error_set(err, EBADMSG,
                            "it places tensor \"" SHOWN "\" in \"%s\", which is no *.safetensors "
                            "file",
                            tensor, name);
    if (!file)
        return ws_error_set(err, ENOENT,
                            "it places tensor \"" SHOWN "\" in %s, which is missing: fetch the "
                            "checkpoint again",
                            tensor, name);
    s->wanted[file - s->folder->files] = true;
    return 0;
}

int ws_folder_index_select(const struct ws_folder_index *index, const struct ws_folder *f, bool *wanted,
                           struct ws_error *err)
{
    struct selection s = {f, wanted};

    return walk(index, select_file, &s, err);
}

struct checking {
    const struct ws_folder *folder;
    bool **named; /* [file][tensor] */
};

static int check_entry(void *arg, const char *tensor, const char *name, struct ws_error *err)
{
    struct checking *c = arg;
    const struct ws_folder_file *file = find_file(c->folder, name);
    const struct ws_tensor *t = file && file->st ? ws_safetensors_find(file->st, tensor) : NULL;
    bool *named;

    if (!t)
        return ws_error_set(err, EBADMSG, "it places tensor \"" SHOWN "\" in %s, which does not hold it",
                            tensor, name);
    named = &c->named[file - c->folder->files][t - file->st->tensors];
    if (*named)
        return ws_error_set(err, EBADMSG, "it has tensor \"" SHOWN "\" twice", tensor);
    *named = true;
    return 0;
}

static int check_all_named(const struct checking *c, struct ws_error *err)
{
    for (size_t i = 0; i < c->folder->n_files; i++) {
        const struct ws_folder_file *file = &c->folder->files[i];
        for (size_t k = 0; file->st && k < file->st->n_tensors; k++) {
            if (!c->named[i][k])
                return ws_error_set(err, EBADMSG,
                                    "%s holds tensor \"" SHOWN "\", which %s does not place there",
                                    file->name, file->st->tensors[k].name, INDEX_NAME);
        }
    }
    return 0;
}

int ws_folder_index_check(const struct ws_folder_index *index, const struct ws_folder *f,
                          struct ws_error *err)
{
    struct checking c = {f, calloc(f->n_files + 1, sizeof(bool *))};
    int rc = c.named ? 0 : out_of_memory(err);

    for (size_t i = 0; rc == 0 && i < f->n_files; i++) {
        if (!f->files[i].st)
            continue;
        c.named[i] = calloc(f->files[i].st->n_tensors + 1, sizeof(bool));
        if (!c.named[i])
            rc = out_of_memory(err);
    }
    if (rc == 0)
        rc = walk(index, check_entry, &c, err);
    if (rc == 0)
        rc = check_all_named(&c, err);
    for (size_t i = 0; c.named && i < f->n_files; i++)
        free(c.named[i]);
    free(c.named);
    return rc;
}

void ws_folder_index_free(struct ws_folder_index *index)
{
    if (!index)
        return;
    free(index->text);
    free(index);
}
