/* The index of a sharded checkpoint, model.safetensors.index.json:
 * {"metadata":{...},"weight_map":{TENSOR:FILE,...}}. Objects do not change once read. */
#ifndef WS_TRANSPORTS_FORMAT_FOLDER_INDEX_H
#define WS_TRANSPORTS_FORMAT_FOLDER_INDEX_H
#include "transports/base/error.h"
#include "transports/format/safetensors.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define WS_FOLDER_INDEX_NAME "model.safetensors.index.json"

struct ws_folder_index_entry {
    const char *tensor, *file;
};
struct ws_folder_index {
    size_t n;
    struct ws_folder_index_entry *entries; /* in the order of the text */
    struct ws_folder_index_entry *by_file; /* the same, by file and then by tensor (strcmp) */
    char *names;
};

/* Reads the index at fd, a regular file. -E2BIG: it is larger than WS_MAX_MANIFEST_BYTES, or has more than
 * WS_MAX_TENSORS; -EBADMSG: it is no index, names a tensor twice, or a file that is no *.safetensors; or what
 * read says. The sentence names the index. The caller frees it. */
WS_MUST_USE int ws_folder_index_read(int fd, struct ws_folder_index **out, struct ws_error *err);
/* Sets wanted[i] for each of the names (sorted by strcmp) that the index places a tensor in. -ENOENT: a file
 * is not among them. */
WS_MUST_USE int ws_folder_index_select(const struct ws_folder_index *index, const char *const *names,
                                       size_t n, bool *wanted, struct ws_error *err);
/* Does it place a tensor in the file? */
bool ws_folder_index_has(const struct ws_folder_index *index, const char *file);
/* Has the file, by its header, the tensors that the index places there, and no others? -EBADMSG. */
WS_MUST_USE int ws_folder_index_check(const struct ws_folder_index *index, const char *file,
                                      const struct ws_safetensors *st, struct ws_error *err);
void ws_folder_index_free(struct ws_folder_index *index); /* NULL is fine */
/* Writes an index of n tensors, as they are ordered; total_bytes: of all of them. -EBADMSG: a name is no UTF-8. */
WS_MUST_USE int ws_folder_index_write(FILE *f, const struct ws_folder_index_entry *entries, size_t n,
                                      uint64_t total_bytes, struct ws_error *err);

#endif
