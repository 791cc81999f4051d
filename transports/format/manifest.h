/* A version's files and its manifest: what is published, transferred, verified and mounted.
 *
 * The manifest is the identity of a version: names, sizes and the XXH3-64 of every 4 MiB block. It
 * never changes once it is announced, so it and the bytes can be cached by anything. The digest is
 * XXH3-128 over (model, run, version, files in name order with sizes and block hashes, frozen): it
 * detects damage and mixing, it is no protection against an attacker (TLS, tokens and signatures are).
 *
 * The digest's input, so that another program can compute it: the bytes "wsync manifest 1\n"; model;
 * run; version; number of files; of each file its name, size, header bytes and the hashes one after
 * the other; number of frozen names; the names in order. Numbers and hashes are 8 bytes, little
 * endian; a string is its length as such a number and its bytes. It is shown with the most
 * significant digit first, as XXH128_canonicalFromHash has it.
 *
 * A manifest is built by one thread, then never changes and may be read by any. */
#ifndef WS_TRANSPORTS_FORMAT_MANIFEST_H
#define WS_TRANSPORTS_FORMAT_MANIFEST_H
#include "transports/base/error.h"
#include "transports/format/folder.h"
#include "transports/format/layout.h"
#include "transports/format/safetensors.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_manifest_file {
    char *name; /* ws_name_is_safe */
    uint64_t size_bytes;
    uint64_t header_bytes; /* safetensors: bytes of the file before its tensor data; else 0 */
    size_t n_blocks;       /* ceil(size / WS_BLOCK_BYTES) */
    uint64_t *hashes;      /* XXH3-64 of each block, the last one short */
};

struct ws_manifest {
    char *model;
    uint64_t version;
    char lineage[WS_LINEAGE_CHARS + 1];
    uint64_t created_ns;  /* CLOCK_REALTIME when it was committed */
    uint64_t total_bytes; /* of all files */
    size_t n_files;       /* sorted by name (strcmp) */
    struct ws_manifest_file *files;
    size_t n_frozen; /* tensors filled from a base checkpoint */
    char **frozen;
    char digest[33]; /* lower-case hex */
    char *signature; /* as text (sign/statement.h), with at most WS_MANIFEST_SIGNATURE_CHARS; NULL: none */
};
#define WS_MANIFEST_SIGNATURE_CHARS 1000

/* Empty manifest; files are then added. -EINVAL: model is no safe name, run is not 1 to WS_LINEAGE_CHARS
 * of its characters, version is over 2^63 - 1 (JSON ends there). The caller frees it. */
WS_MUST_USE int ws_manifest_new(struct ws_manifest **out, const char *model, uint64_t version,
                                const char *lineage, struct ws_error *err);
/* Adds a file with all hashes zero; keeps name order. The returned pointer is valid until the next
 * add. header_bytes: 0 or that of a safetensors file. -EEXIST, -EINVAL (unsafe name), -E2BIG. */
WS_MUST_USE int ws_manifest_add(struct ws_manifest *m, const char *name, uint64_t size_bytes,
                                uint64_t header_bytes, struct ws_manifest_file **out, struct ws_error *err);
/* Adds the name of a frozen tensor (the only way to add one). -EINVAL, -E2BIG, -ENOMEM. */
WS_MUST_USE int ws_manifest_freeze(struct ws_manifest *m, const char *tensor, struct ws_error *err);
/* Computes total_bytes and digest; to be called once, when every hash is in. */
void ws_manifest_seal(struct ws_manifest *m);
/* *json: NUL-terminated, len without it; malloc, the caller's. */
WS_MUST_USE int ws_manifest_to_json(const struct ws_manifest *m, char **json, size_t *len,
                                    struct ws_error *err);
/* How the last member of such a text reads. */
#define WS_MANIFEST_NO_DELTAS "\"deltas\":[]"
/* Checks every limit, every name, and the digest. -EBADMSG. Keys that are unknown are skipped. */
WS_MUST_USE int ws_manifest_from_json(const char *json, size_t len, struct ws_manifest **out,
                                      struct ws_error *err);
/* NULL when there is no such file. Binary search. */
const struct ws_manifest_file *ws_manifest_find(const struct ws_manifest *m, const char *name);
/* Have both the same files, of the same sizes? */
bool ws_manifest_has_same_files(const struct ws_manifest *a, const struct ws_manifest *b);
WS_MUST_USE int ws_manifest_copy(const struct ws_manifest *m, struct ws_manifest **out);
void ws_manifest_free(struct ws_manifest *m); /* NULL is fine */
/* Is this a run id: 1 to WS_LINEAGE_CHARS of [A-Za-z0-9._-]? */
bool ws_lineage_is_safe(const char *lineage);
/* Number of blocks of a size; length of block i of a file. */
size_t ws_manifest_count_blocks(uint64_t size_bytes);
size_t ws_manifest_block_bytes(const struct ws_manifest_file *f, size_t block);

#endif
