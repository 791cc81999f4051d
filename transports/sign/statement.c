#include "transports/sign/statement.h"
#include <endian.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *begin;
    size_t n_hashes;
} kinds[] = {
    [WS_SIGNED_MANIFEST] = {"wsync signed manifest 1\n", 1},
    [WS_SIGNED_BLOCKS] = {"wsync signed blocks 1\n", 2},
    [WS_SIGNED_DELTA] = {"wsync signed delta 1\n", 3},
};
#define MAX_MESSAGE 128

static size_t make_message(enum ws_statement kind, const unsigned char hashes[][WS_HASH_BYTES],
                           unsigned char out[MAX_MESSAGE])
{
    const size_t begin = strlen(kinds[kind].begin), n = kinds[kind].n_hashes * WS_HASH_BYTES;

    memcpy(out, kinds[kind].begin, begin);
    memcpy(out + begin, hashes, n);
    return begin + n;
}

void ws_statement_sign(const struct ws_secret_key *k, enum ws_statement kind,
                       const unsigned char hashes[][WS_HASH_BYTES], char out[WS_SIGNATURE_CHARS + 1])
{
    unsigned char message[MAX_MESSAGE], signature[WS_SIGNATURE_BYTES];
    const size_t n = make_message(kind, hashes, message);

    ws_secret_key_sign(k, message, n, signature);
    memcpy(out, ws_secret_key_public(k)->id, WS_KEY_ID_CHARS);
    out[WS_KEY_ID_CHARS] = ' ';
    ws_hex_print(signature, sizeof(signature), out + WS_KEY_ID_CHARS + 1);
}

int ws_statement_check(const struct ws_trust *t, const char *model, enum ws_statement kind,
                       const unsigned char hashes[][WS_HASH_BYTES], const char *signature,
                       const struct ws_public_key **by, struct ws_error *err)
{
    unsigned char message[MAX_MESSAGE], bytes[WS_SIGNATURE_BYTES], id[WS_KEY_ID_CHARS / 2];
    char id_text[WS_KEY_ID_CHARS + 1];
    const struct ws_public_key *k;

    if (by)
        *by = NULL;
    if (!signature)
        return ws_error_set(err, EBADMSG, "is not signed");
    if (strlen(signature) != WS_SIGNATURE_CHARS || signature[WS_KEY_ID_CHARS] != ' ' ||
        ws_hex_parse(signature, WS_KEY_ID_CHARS, id, sizeof(id)) < 0 ||
        ws_hex_parse(signature + WS_KEY_ID_CHARS + 1, 2 * sizeof(bytes), bytes, sizeof(bytes)) < 0)
        return ws_error_set(err, EBADMSG, "has a signature that is malformed");
    memcpy(id_text, signature, WS_KEY_ID_CHARS);
    id_text[WS_KEY_ID_CHARS] = '\0';
    k = ws_trust_find(t, model, id_text);
    if (!k)
        return ws_error_set(err, EBADMSG, "is signed by the key %s, which is not trusted for %s here",
                            id_text, model);
    if (!ws_public_key_verifies(k, bytes, message, make_message(kind, hashes, message)))
        return ws_error_set(
            err, EBADMSG,
            "has a signature that the key %s (%s) did not make of this: it was changed on its way", k->name,
            k->id);
    if (by)
        *by = k;
    return 0;
}

/* --- manifests --- */

static void hash_number(crypto_generichash_state *h, uint64_t number)
{
    const uint64_t le = htole64(number);

    crypto_generichash_update(h, (const unsigned char *)&le, sizeof(le));
}

static void hash_string(crypto_generichash_state *h, const char *s)
{
    const size_t n = strlen(s);

    hash_number(h, n);
    crypto_generichash_update(h, (const unsigned char *)s, n);
}

void ws_manifest_id(const struct ws_manifest *m, unsigned char out[WS_HASH_BYTES])
{
    static const char begin[] = "wsync manifest id 1\n";
    crypto_generichash_state h;

    crypto_generichash_init(&h, NULL, 0, WS_HASH_BYTES);
    crypto_generichash_update(&h, (const unsigned char *)begin, strlen(begin));
    hash_string(&h, m->model);
    hash_string(&h, m->lineage);
    hash_number(&h, m->version);
    hash_number(&h, m->created_ns);
    hash_number(&h, WS_BLOCK_BYTES);
    hash_number(&h, m->n_files);
    for (size_t i = 0; i < m->n_files; i++) {
        const struct ws_manifest_file *f = &m->files[i];
        hash_string(&h, f->name);
        hash_number(&h, f->size_bytes);
        hash_number(&h, f->header_bytes);
        hash_number(&h, f->n_blocks);
        for (size_t b = 0; b < f->n_blocks; b++)
            hash_number(&h, f->hashes[b]);
    }
    hash_number(&h, m->n_frozen);
    for (size_t i = 0; i < m->n_frozen; i++)
        hash_string(&h, m->frozen[i]);
    crypto_generichash_final(&h, out, WS_HASH_BYTES);
}

int ws_manifest_sign(struct ws_manifest *m, const struct ws_secret_key *k, struct ws_error *err)
{
    unsigned char hashes[WS_STATEMENT_HASHES][WS_HASH_BYTES];
    char *text = malloc(WS_SIGNATURE_CHARS + 1);

    if (!text)
        return ws_error_set(err, ENOMEM, "no memory for a signature");
    ws_manifest_id(m, hashes[0]);
    ws_statement_sign(k, WS_SIGNED_MANIFEST, (const unsigned char(*)[WS_HASH_BYTES])hashes, text);
    free(m->signature);
    m->signature = text;
    return 0;
}

int ws_manifest_check(const struct ws_manifest *m, const struct ws_trust *t, const struct ws_public_key **by,
                      struct ws_error *err)
{
    unsigned char hashes[WS_STATEMENT_HASHES][WS_HASH_BYTES];
    int rc;

    ws_manifest_id(m, hashes[0]);
    rc = ws_statement_check(t, m->model, WS_SIGNED_MANIFEST, (const unsigned char(*)[WS_HASH_BYTES])hashes,
                            m->signature, by, err);
    if (rc < 0 && err) {
        char why[WS_ERROR_TEXT];
        snprintf(why, sizeof(why), "%s", err->text);
        ws_error_set(err, -rc, "the manifest of %s/%lu %.300s; nothing of it is taken (verify-key=)",
                     m->model, m->version, why);
    }
    return rc;
}
