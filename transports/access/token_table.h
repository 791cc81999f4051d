/* Token table: a tokens file, read. Each line is
 *
 *     NAME ROLES [MODELS] HASH        # a comment; empty lines are skipped
 *
 *     rollout-7   read,report          blake2b:5f0c...
 *     trainer     read,release actor*  blake2b:91aa...
 *     node7.lab   read,report          -              known by its certificate alone
 *
 * NAME is the token's holder, or a name in a client certificate. ROLES are of access/role.h, MODELS patterns
 * with commas between. HASH is what `wsync token add` writes; the file holds no secret. A file with one bad
 * line is refused whole: an operator who meant to take a role away must hear that it did not happen. A name may
 * have several lines, while its token is exchanged; their roles and models must be the same, since a certificate
 * with that name is of all of them.
 *
 * A table does not change and may be used by any thread. */
#ifndef WS_TRANSPORTS_ACCESS_TOKEN_TABLE_H
#define WS_TRANSPORTS_ACCESS_TOKEN_TABLE_H
#include "transports/access/identity.h"
#include "transports/access/token_hash.h"
#include "transports/base/vector.h"

#define WS_MAX_TOKENS 65536

struct ws_token_line {
    struct ws_identity identity;
    unsigned number; /* of the line in the file, from 1 */
    bool has_hash;
    struct ws_token_hash hash;
};
WS_VECTOR(ws_token_lines, struct ws_token_line);
struct ws_token_table {
    struct ws_token_lines lines; /* by hash, those without one last */
};

/* Of a file's text; path is for errors. -EINVAL with the line's number; -E2BIG; -ENOMEM. */
WS_MUST_USE int ws_token_table_parse(struct ws_token_table *out, const char *path, const char *text, size_t n,
                                     struct ws_error *err);
/* Reads the file. -EPERM: others than its owner and group can write it; -ENOENT and other errors of files. */
WS_MUST_USE int ws_token_table_read(struct ws_token_table *out, const char *path, struct ws_error *err);
void ws_token_table_clear(struct ws_token_table *t);
/* The line of a secret's hash, or of a certificate's name. NULL: none. */
const struct ws_token_line *ws_token_table_by_hash(const struct ws_token_table *t,
                                                   const struct ws_token_hash *hash);
const struct ws_token_line *ws_token_table_by_name(const struct ws_token_table *t, const char *name);

#endif
