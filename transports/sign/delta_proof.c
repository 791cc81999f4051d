#include "transports/sign/delta_proof.h"
#include "transports/base/vector.h"
#include "transports/delta/stream.h"
#include <endian.h>
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT      1
#define LEAF        2
#define ROOT        3
#define HEAD_BYTES  (WS_DELTA_RECORD_BYTES - 8) /* without its hash */
#define BLOCK_BYTES 8                           /* of a block's number in the JSON */
#define ENTRY_CHARS (2 * (BLOCK_BYTES + WS_HASH_BYTES))

static void make_leaf(const struct ws_delta_record *r, unsigned char out[WS_HASH_BYTES])
{
    const unsigned char kind = LEAF;
    unsigned char head[WS_DELTA_RECORD_BYTES];
    crypto_generichash_state h;

    ws_delta_stream_record_head(r, head);
    crypto_generichash_init(&h, NULL, 0, WS_HASH_BYTES);
    crypto_generichash_update(&h, &kind, 1);
    crypto_generichash_update(&h, head, HEAD_BYTES);
    crypto_generichash_update(&h, r->data, r->bytes);
    crypto_generichash_final(&h, out, WS_HASH_BYTES);
}

static void hash_number(crypto_generichash_state *h, uint64_t number)
{
    const uint64_t le = htole64(number);

    crypto_generichash_update(h, (const unsigned char *)&le, sizeof(le));
}

static void make_statement(const struct ws_delta_proof *p,
                           unsigned char out[WS_STATEMENT_HASHES][WS_HASH_BYTES])
{
    const unsigned char kind = ROOT;
    crypto_generichash_state h;

    memcpy(out[0], p->base_id, WS_HASH_BYTES);
    memcpy(out[1], p->target_id, WS_HASH_BYTES);
    crypto_generichash_init(&h, NULL, 0, WS_HASH_BYTES);
    crypto_generichash_update(&h, &kind, 1);
    hash_number(&h, p->n);
    for (size_t i = 0; i < p->n; i++) {
        hash_number(&h, p->records[i].file);
        hash_number(&h, p->records[i].block);
        crypto_generichash_update(&h, p->records[i].leaf, WS_HASH_BYTES);
    }
    crypto_generichash_final(&h, out[2], WS_HASH_BYTES);
}

static int by_block(const void *a, const void *b)
{
    const struct ws_proved_record *x = a, *y = b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->block < y->block ? -1 : x->block > y->block;
}

static int add(struct ws_delta_proof *p, const struct ws_proved_record *one)
{
    struct ws_proved_record *records = ws_vector_room(p->records, p->n, sizeof(*one));

    if (!records)
        return -ENOMEM;
    p->records = records;
    p->records[p->n++] = *one;
    return 0;
}

int ws_delta_proof_make(struct ws_delta_proof **out, const struct ws_delta *d, const struct ws_manifest *base,
                        const struct ws_manifest *target, const struct ws_secret_key *k, struct ws_error *err)
{
    unsigned char hashes[WS_STATEMENT_HASHES][WS_HASH_BYTES];
    struct ws_delta_proof *p = calloc(1, sizeof(*p));
    const struct ws_delta_record *r;
    size_t at = 0;
    int rc = p ? 0 : -ENOMEM;

    *out = NULL;
    while (rc == 0 && (r = ws_delta_next(d, &at, 0, 1))) {
        struct ws_proved_record one = {.file = r->file, .block = r->block};
        make_leaf(r, one.leaf);
        rc = add(p, &one);
    }
    if (rc < 0) {
        ws_delta_proof_free(p);
        return ws_error_set(err, ENOMEM, "no memory for the signature of a delta");
    }
    if (p->n)
        qsort(p->records, p->n, sizeof(*p->records), by_block);
    ws_manifest_id(base, p->base_id);
    ws_manifest_id(target, p->target_id);
    make_statement(p, hashes);
    ws_statement_sign(k, WS_SIGNED_DELTA, (const unsigned char(*)[WS_HASH_BYTES])hashes, p->signature);
    *out = p;
    return 0;
}

void ws_delta_proof_free(struct ws_delta_proof *p)
{
    if (!p)
        return;
    free(p->records);
    free(p);
}

/* --- as JSON --- */

/* The text of one file's records from *at on, which moves behind them. */
static json_t *file_json(const struct ws_delta_proof *p, uint64_t file, size_t *at)
{
    size_t n = 0;
    char *text;
    json_t *out;

    while (*at + n < p->n && p->records[*at + n].file == file)
        n++;
    text = malloc(n * ENTRY_CHARS + 1);
    if (!text)
        return NULL;
    text[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        const uint64_t block = htobe64(p->records[*at + i].block);
        ws_hex_print((const unsigned char *)&block, BLOCK_BYTES, text + i * ENTRY_CHARS);
        ws_hex_print(p->records[*at + i].leaf, WS_HASH_BYTES, text + i * ENTRY_CHARS + 2 * BLOCK_BYTES);
    }
    *at += n;
    out = json_stringn_nocheck(text, n * ENTRY_CHARS);
    free(text);
    return out;
}

json_t *ws_delta_proof_to_json(const struct ws_delta_proof *p)
{
    char base[2 * WS_HASH_BYTES + 1], target[2 * WS_HASH_BYTES + 1];
    json_t *files = json_array();
    size_t at = 0;

    for (uint64_t file = 0; files && at < p->n; file++) {
        if (json_array_append_new(files, file_json(p, file, &at)) < 0) {
            json_decref(files);
            return NULL;
        }
    }
    ws_hex_print(p->base_id, WS_HASH_BYTES, base);
    ws_hex_print(p->target_id, WS_HASH_BYTES, target);
    return json_pack("{s:i,s:s,s:s,s:s,s:o}", "format", FORMAT, "base", base, "target", target, "signature",
                     p->signature, "files", files);
}

static int read_id(const json_t *json, const char *key, unsigned char out[WS_HASH_BYTES])
{
    const json_t *text = json_object_get(json, key);

    return json_is_string(text) &&
                   ws_hex_parse(json_string_value(text), json_string_length(text), out, WS_HASH_BYTES) == 0
               ? 0
               : -EBADMSG;
}

static int read_file(struct ws_delta_proof *p, uint64_t file, const json_t *json)
{
    const char *text = json_string_value(json);
    const size_t chars = text ? json_string_length(json) : 0;
    int rc = text && chars % ENTRY_CHARS == 0 ? 0 : -EBADMSG;

    for (size_t at = 0; rc == 0 && at < chars; at += ENTRY_CHARS) {
        struct ws_proved_record one = {.file = file};
        uint64_t block;
        if (ws_hex_parse(text + at, 2 * BLOCK_BYTES, (unsigned char *)&block, BLOCK_BYTES) < 0 ||
            ws_hex_parse(text + at + 2 * BLOCK_BYTES, 2 * WS_HASH_BYTES, one.leaf, WS_HASH_BYTES) < 0)
            return -EBADMSG;
        one.block = be64toh(block);
        if (p->n && by_block(&p->records[p->n - 1], &one) >= 0)
            return -EBADMSG;
        rc = add(p, &one);
    }
    return rc;
}

static int read_files(struct ws_delta_proof *p, const json_t *files)
{
    const size_t n = json_array_size(files);
    int rc = json_is_array(files) && n <= WS_MAX_FILES ? 0 : -EBADMSG;

    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = read_file(p, i, json_array_get(files, i));
    return rc;
}

int ws_delta_proof_from_json(const json_t *json, const char *model, const struct ws_trust *trust,
                             struct ws_delta_proof **out, struct ws_error *err)
{
    unsigned char hashes[WS_STATEMENT_HASHES][WS_HASH_BYTES];
    const char *signature = json_string_value(json_object_get(json, "signature"));
    struct ws_delta_proof *p = calloc(1, sizeof(*p));
    struct ws_error why = {0};
    int rc = p ? 0 : -ENOMEM;

    *out = NULL;
    if (rc == 0 && json_integer_value(json_object_get(json, "format")) != FORMAT)
        rc = -EBADMSG;
    if (rc == 0)
        rc = read_id(json, "base", p->base_id);
    if (rc == 0)
        rc = read_id(json, "target", p->target_id);
    if (rc == 0)
        rc = read_files(p, json_object_get(json, "files"));
    if (rc < 0) {
        ws_error_set(err, -rc, "the signature of a delta of %s %s", model,
                     rc == -ENOMEM ? "has no memory here" : "is malformed");
    } else {
        make_statement(p, hashes);
        rc = ws_statement_check(trust, model, WS_SIGNED_DELTA, (const unsigned char(*)[WS_HASH_BYTES])hashes,
                                signature, NULL, &why);
        if (rc < 0)
            ws_error_set(err, -rc, "a delta of %s %.300s", model, why.text);
    }
    if (rc < 0) {
        ws_delta_proof_free(p);
        return rc;
    }
    memcpy(p->signature, signature, sizeof(p->signature)); /* its length was checked */
    *out = p;
    return 0;
}

/* --- records --- */

static const struct ws_proved_record *find(const struct ws_delta_proof *p, uint64_t file, uint64_t block)
{
    const struct ws_proved_record key = {.file = file, .block = block};

    return p->n ? bsearch(&key, p->records, p->n, sizeof(key), by_block) : NULL;
}

bool ws_delta_proof_has(const struct ws_delta_proof *p, const struct ws_delta_record *r)
{
    const struct ws_proved_record *proved = find(p, r->file, r->block);
    unsigned char leaf[WS_HASH_BYTES];

    if (!proved)
        return false;
    make_leaf(r, leaf);
    return sodium_memcmp(leaf, proved->leaf, sizeof(leaf)) == 0;
}

bool ws_delta_proof_names(const struct ws_delta_proof *p, size_t file, size_t block)
{
    return find(p, file, block) != NULL;
}
