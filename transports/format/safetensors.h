/* The safetensors file format: strict parsing and writing of headers.
 * Source: https://github.com/huggingface/safetensors (format section). Stricter than the official
 * parser: duplicate names, gaps, overlaps, trailing bytes, more than 8 dimensions are refused.
 * Pure functions over memory; objects are immutable after creation and may be shared by threads. */
#ifndef WS_TRANSPORTS_FORMAT_SAFETENSORS_H
#define WS_TRANSPORTS_FORMAT_SAFETENSORS_H
#include "transports/base/error.h"
#include "transports/base/limits.h"
#include "transports/base/name.h"
#include "transports/simd/dtype.h"
#include <stddef.h>
#include <stdint.h>

struct ws_tensor {
    const char *name; /* owned by the safetensors object; UTF-8, any character but NUL */
    enum ws_dtype dtype;
    unsigned n_dims;
    uint64_t shape[WS_MAX_DIMS];
    uint64_t begin, end; /* bytes, from the start of the FILE (not of the data) */
};

/* A parsed header. Tensors are sorted by name (strcmp order). */
struct ws_safetensors {
    uint64_t file_bytes, data_begin; /* data_begin = 8 + header length */
    size_t n_tensors;
    struct ws_tensor *tensors;
    char *metadata; /* the __metadata__ object as compact JSON, or NULL */
};

/* Header bytes (8 + length) needed to parse a file whose first 8 bytes are at p; -EBADMSG when the
 * length is over WS_MAX_HEADER_BYTES or the file's size. */
WS_MUST_USE int ws_safetensors_header_bytes(const void *p, uint64_t file_bytes, uint64_t *out,
                                            struct ws_error *err);
/* Parses the first `len` bytes of a file of file_bytes; len must cover the header. The result is the
 * caller's: ws_safetensors_free. -EBADMSG with a sentence for anything that is not a valid file. */
WS_MUST_USE int ws_safetensors_parse(const void *p, size_t len, uint64_t file_bytes,
                                     struct ws_safetensors **out, struct ws_error *err);
/* Reads and parses the header of the file at `path`: as ws_safetensors_parse, or what open and read
 * say; the sentence names the file. The tensors' bytes are not read. */
WS_MUST_USE int ws_safetensors_read(const char *path, struct ws_safetensors **out, struct ws_error *err);
WS_MUST_USE int ws_safetensors_read_fd(int fd, struct ws_safetensors **out, struct ws_error *err);
/* Lays tensors out in name order, because readers walk them so; where that would put a tensor at an
 * offset that its type cannot have (an F32 after three bytes of U8: PyTorch refuses it), the widest
 * types come first, as the stock writer has it. Sets begin and end of a copy of `specs` (name, dtype,
 * shape are read), header padded with spaces so that data begins at a multiple of WS_PAGE_BYTES.
 * *header is the first data_begin bytes of the file (malloc, caller frees). metadata: JSON object
 * text or NULL (PyTorch readers want {"format":"pt"}). -EINVAL: duplicate or bad name, bad shape,
 * bad metadata; -E2BIG: over a limit, or a header that the stock reader would not take. */
WS_MUST_USE int ws_safetensors_layout(const struct ws_tensor *specs, size_t n, const char *metadata,
                                      struct ws_safetensors **out, void **header, struct ws_error *err);
/* NULL when there is no such tensor. Binary search. */
const struct ws_tensor *ws_safetensors_find(const struct ws_safetensors *st, const char *name);
struct ws_safetensors *ws_safetensors_copy(const struct ws_safetensors *st); /* NULL: no memory */
void ws_safetensors_free(struct ws_safetensors *st);                         /* NULL is fine */

#endif
