/* A version's files and its manifest: what is published, transferred, verified and mounted.
 *
 * The manifest is the identity of a version: names, sizes and the XXH3-64 of every 4 MiB block. It
 * never changes once it is announced, so it and the bytes can be cached by anything. The digest is
 * XXH3-128 over (model, run, version, files in name order with sizes and block hashes): it detects
 * damage and mixing, it is no protection against an attacker (TLS and tokens are). */
#ifndef WS_TRANSPORTS_BUNDLE_H
#define WS_TRANSPORTS_BUNDLE_H
#include "transports/error.h"
#include "transports/safetensors.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WS_RUN_CHARS 32 /* a lineage's run id: up to 32 of [A-Za-z0-9._-] */

struct ws_bundle_file {
    char *name;          /* ws_name_is_safe */
    uint64_t size_bytes;
    uint64_t header_bytes; /* safetensors: bytes of the file before its tensor data; else 0 */
    size_t n_blocks;     /* ceil(size / WS_BLOCK_BYTES) */
    uint64_t *hashes;    /* XXH3-64 of each block, the last one short */
};

struct ws_manifest {
    char *model;
    uint64_t version;
    char run[WS_RUN_CHARS + 1]; /* lineage */
    uint64_t created_ns;        /* CLOCK_REALTIME when it was committed */
    uint64_t total_bytes;       /* of all files */
    size_t n_files;             /* sorted by name (strcmp) */
    struct ws_bundle_file *files;
    size_t n_frozen;            /* tensors filled from a base checkpoint */
    char **frozen;
    char digest[33];            /* lower-case hex */
};

/* Empty manifest with safe model name; files are then added. Caller frees with ws_manifest_free. */
WS_MUST_USE int ws_manifest_new(struct ws_manifest **out, const char *model, uint64_t version,
                                const char *run, struct ws_error *err);
/* Adds a file with all hashes zero; keeps name order. The returned pointer is valid until the next
 * add. -EEXIST, -EINVAL (unsafe name), -E2BIG. */
WS_MUST_USE int ws_manifest_add(struct ws_manifest *m, const char *name, uint64_t size_bytes,
                                uint64_t header_bytes, struct ws_bundle_file **out,
                                struct ws_error *err);
/* Computes total_bytes and digest; to be called once, when every hash is in. */
void ws_manifest_seal(struct ws_manifest *m);
WS_MUST_USE int ws_manifest_to_json(const struct ws_manifest *m, char **json, size_t *len,
                                    struct ws_error *err);
/* Checks every limit, every name, and the digest. -EBADMSG. */
WS_MUST_USE int ws_manifest_from_json(const char *json, size_t len, struct ws_manifest **out,
                                      struct ws_error *err);
const struct ws_bundle_file *ws_manifest_find(const struct ws_manifest *m, const char *name);
WS_MUST_USE int ws_manifest_copy(const struct ws_manifest *m, struct ws_manifest **out);
void ws_manifest_free(struct ws_manifest *m);
/* Number of blocks of a size; length of block i of a file. */
size_t ws_blocks_of(uint64_t size_bytes);
size_t ws_block_len(const struct ws_bundle_file *f, size_t block);

/* A checkpoint folder as it lies on disk, checked: every safetensors header parsed, the index's
 * files all there and naming exactly what they hold. Sidecars are the other regular files a server
 * needs (json, txt, model, tiktoken, jinja; no *.bin, *.pt, *.pth, hidden files, folders). */
struct ws_folder_file {
    char *name;
    char *path;
    uint64_t size_bytes;
    struct ws_safetensors *st; /* NULL for a sidecar */
};
struct ws_folder {
    char *path;
    size_t n_files; /* sorted by name */
    struct ws_folder_file *files;
};
WS_MUST_USE int ws_folder_open(const char *path, struct ws_folder **out, struct ws_error *err);
void ws_folder_free(struct ws_folder *f);

/* Names, dtypes and shapes of two versions' tensors compared (the gate of a switch). Returns 0 when
 * equal; else -EPROTO and *report is a malloc'ed text, one "missing|extra|differs NAME ..." a line,
 * at most 100 lines and a count of the rest. Arrays of parsed headers, one a shard file. */
WS_MUST_USE int ws_layout_compare(struct ws_safetensors *const *have, size_t n_have,
                                  struct ws_safetensors *const *want, size_t n_want, char **report);

#endif
