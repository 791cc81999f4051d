#include "transports/sign/tree.h"
#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT 1
#define LEAF   0
#define ROOT   1

#define PIECE_BYTES (128UL << 10)

struct ws_tree *ws_tree_new(const struct ws_manifest *m)
{
    struct ws_tree *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    t->n_blocks = calloc(m->n_files + 1, sizeof(*t->n_blocks));
    t->leaves = calloc(m->n_files + 1, sizeof(*t->leaves));
    if (!t->n_blocks || !t->leaves) {
        ws_tree_free(t);
        return NULL;
    }
    ws_manifest_id(m, t->manifest_id);
    for (size_t i = 0; i < m->n_files; i++) {
        t->n_blocks[i] = m->files[i].n_blocks;
        t->leaves[i] = calloc(m->files[i].n_blocks + 1, sizeof(*t->leaves[i]));
        t->n_files++;
        if (!t->leaves[i]) {
            ws_tree_free(t);
            return NULL;
        }
    }
    return t;
}

void ws_tree_free(struct ws_tree *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_files; i++)
        free(t->leaves[i]);
    free(t->leaves);
    free(t->n_blocks);
    free(t);
}

static void hash_number(crypto_generichash_state *h, uint64_t number)
{
    const uint64_t le = htole64(number);

    crypto_generichash_update(h, (const unsigned char *)&le, sizeof(le));
}

bool ws_tree_leaf_until(size_t file, size_t block, const void *bytes, size_t n, const atomic_bool *stop,
                        unsigned char out[WS_HASH_BYTES])
{
    const unsigned char kind = LEAF, *at = bytes;
    crypto_generichash_state h;

    crypto_generichash_init(&h, NULL, 0, WS_HASH_BYTES);
    crypto_generichash_update(&h, &kind, 1);
    hash_number(&h, file);
    hash_number(&h, block);
    hash_number(&h, n);
    for (size_t left = n; left > 0;) {
        const size_t piece = left < PIECE_BYTES ? left : PIECE_BYTES;
        if (stop && atomic_load(stop))
            return false;
        crypto_generichash_update(&h, at, piece);
        at += piece;
        left -= piece;
    }
    crypto_generichash_final(&h, out, WS_HASH_BYTES);
    return true;
}

void ws_tree_leaf(size_t file, size_t block, const void *bytes, size_t n, unsigned char out[WS_HASH_BYTES])
{
    (void)ws_tree_leaf_until(file, block, bytes, n, NULL, out);
}

bool ws_tree_has(const struct ws_tree *t, size_t file, size_t block, const void *bytes, size_t n)
{
    unsigned char leaf[WS_HASH_BYTES];

    assert(file < t->n_files && block < t->n_blocks[file]);
    ws_tree_leaf(file, block, bytes, n, leaf);
    return sodium_memcmp(leaf, t->leaves[file][block], sizeof(leaf)) == 0;
}

static void make_root(const struct ws_tree *t, unsigned char out[WS_HASH_BYTES])
{
    const unsigned char kind = ROOT;
    crypto_generichash_state h;
    uint64_t n = 0;

    for (size_t i = 0; i < t->n_files; i++)
        n += t->n_blocks[i];
    crypto_generichash_init(&h, NULL, 0, WS_HASH_BYTES);
    crypto_generichash_update(&h, &kind, 1);
    hash_number(&h, n);
    for (size_t i = 0; i < t->n_files; i++)
        crypto_generichash_update(&h, (const unsigned char *)t->leaves[i], t->n_blocks[i] * WS_HASH_BYTES);
    crypto_generichash_final(&h, out, WS_HASH_BYTES);
}

static void make_statement(const struct ws_tree *t, unsigned char out[WS_STATEMENT_HASHES][WS_HASH_BYTES])
{
    memset(out, 0, WS_STATEMENT_HASHES * WS_HASH_BYTES);
    memcpy(out[0], t->manifest_id, WS_HASH_BYTES);
    make_root(t, out[1]);
}

void ws_tree_sign(struct ws_tree *t, const struct ws_secret_key *k)
{
    unsigned char hashes[WS_STATEMENT_HASHES][WS_HASH_BYTES];

    make_statement(t, hashes);
    ws_statement_sign(k, WS_SIGNED_BLOCKS, (const unsigned char(*)[WS_HASH_BYTES])hashes, t->signature);
}

json_t *ws_tree_to_json(const struct ws_tree *t)
{
    char id[2 * WS_HASH_BYTES + 1];
    json_t *leaves = json_array(), *out;

    for (size_t i = 0; leaves && i < t->n_files; i++) {
        const size_t n = t->n_blocks[i] * WS_HASH_BYTES;
        char *text = malloc(2 * n + 1);
        json_t *one = NULL;
        if (text) {
            ws_hex_print((const unsigned char *)t->leaves[i], n, text);
            one = json_stringn_nocheck(text, 2 * n);
        }
        free(text);
        if (!one || json_array_append_new(leaves, one) < 0) {
            json_decref(leaves);
            return NULL;
        }
    }
    ws_hex_print(t->manifest_id, WS_HASH_BYTES, id);
    out = json_pack("{s:i,s:s,s:s,s:o}", "format", FORMAT, "manifest", id, "signature", t->signature,
                    "leaves", leaves);
    return out;
}

static int read_leaves(struct ws_tree *t, const json_t *leaves)
{
    if (!json_is_array(leaves) || json_array_size(leaves) != t->n_files)
        return -EBADMSG;
    for (size_t i = 0; i < t->n_files; i++) {
        const json_t *one = json_array_get(leaves, i);
        if (!json_is_string(one) ||
            ws_hex_parse(json_string_value(one), json_string_length(one), (unsigned char *)t->leaves[i],
                         t->n_blocks[i] * WS_HASH_BYTES) < 0)
            return -EBADMSG;
    }
    return 0;
}

int ws_tree_from_json(const json_t *json, const struct ws_manifest *m, const struct ws_trust *trust,
                      struct ws_tree **out, struct ws_error *err)
{
    unsigned char hashes[WS_STATEMENT_HASHES][WS_HASH_BYTES];
    const char *signature = json_string_value(json_object_get(json, "signature"));
    struct ws_tree *t;
    struct ws_error why = {0};
    int rc;

    *out = NULL;
    if (json_integer_value(json_object_get(json, "format")) != FORMAT)
        return ws_error_set(err, EBADMSG,
                            "the signature of %s/%lu has a format that this program does not know", m->model,
                            m->version);
    t = ws_tree_new(m);
    if (!t)
        return ws_error_set(err, ENOMEM, "no memory for the hashes of %s/%lu", m->model, m->version);
    if (read_leaves(t, json_object_get(json, "leaves")) < 0) {
        rc = ws_error_set(err, EBADMSG, "the signature of %s/%lu is not that of its files", m->model,
                          m->version);
    } else {
        make_statement(t, hashes);
        rc = ws_statement_check(trust, m->model, WS_SIGNED_BLOCKS,
                                (const unsigned char(*)[WS_HASH_BYTES])hashes, signature, NULL, &why);
        if (rc < 0)
            ws_error_set(err, -rc, "the list of the blocks of %s/%lu %.300s", m->model, m->version, why.text);
    }
    if (rc < 0) {
        ws_tree_free(t);
        return rc;
    }
    memcpy(t->signature, signature, sizeof(t->signature)); /* its length was checked */
    *out = t;
    return 0;
}
