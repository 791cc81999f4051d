/* Keys, lists of trusted keys' signatures, trees and proofs of deltas under libFuzzer. The first byte selects what the
 * rest is. What is no key or no JSON is refused with a sentence; no random text is ever taken for signed. */
#include "transports/sign/delta_proof.h"
#include "transports/sign/proof_path.h"
#include "transports/sign/tree.h"
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

static struct ws_manifest *manifest(void)
{
    static struct ws_manifest *m;
    struct ws_manifest_file *f;

    if (m)
        return m;
    require(ws_manifest_new(&m, "actor", 7, "run", NULL) == 0);
    require(ws_manifest_add(m, "a", WS_BLOCK_BYTES + 1, 0, &f, NULL) == 0);
    require(ws_manifest_add(m, "b", 5, 0, &f, NULL) == 0);
    ws_manifest_seal(m);
    return m;
}

/* One key is trusted, whose secret nobody has. */
static const struct ws_trust *trust(void)
{
    static struct ws_trusted_key one;
    static struct ws_trust t = {.keys = &one, .n = 1};
    static const char line[] =
        "wsync-public-key-1 fuzz d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

    if (!one.key.id[0])
        require(ws_public_key_parse(line, strlen(line), &one.key, NULL) == 0);
    return &t;
}

static void try_keys(const char *text, size_t n)
{
    char line[WS_KEY_LINE_CHARS];
    struct ws_public_key k, again;
    struct ws_secret_key *secret = NULL;
    struct ws_error err = {0};

    if (ws_public_key_parse(text, n, &k, &err) == 0) {
        ws_public_key_print(&k, line);
        require(ws_public_key_parse(line, strlen(line), &again, &err) == 0 &&
                memcmp(&k, &again, sizeof(k)) == 0);
    } else {
        require(err.code == EBADMSG && err.text[0]);
    }
    if (ws_secret_key_parse(text, n, &secret, &err) == 0)
        require(ws_secret_key_public(secret)->name[0]);
    ws_secret_key_free(secret);
}

static void try_signature(const char *text)
{
    static const unsigned char hashes[WS_STATEMENT_HASHES][WS_HASH_BYTES];
    struct ws_version_id base;
    bool has;

    for (int kind = WS_SIGNED_MANIFEST; kind <= WS_SIGNED_DELTA; kind++)
        require(ws_statement_check(trust(), "actor", (enum ws_statement)kind, hashes, text, NULL, NULL) ==
                -EBADMSG);
    require(ws_proof_base(text, &has, &base) <= 0);
}

static void try_json(const char *text, size_t n)
{
    json_t *json = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    struct ws_delta_proof *proof;
    struct ws_tree *tree;
    struct ws_error err = {0};

    if (!json)
        return;
    require(ws_tree_from_json(json, manifest(), trust(), &tree, &err) == -EBADMSG && !tree && err.text[0]);
    require(ws_delta_proof_from_json(json, "actor", trust(), &proof, &err) == -EBADMSG && !proof);
    json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text;

    if (size < 1)
        return 0;
    text = malloc(size);
    require(text != NULL);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    if (data[0] % 3 == 0)
        try_keys(text, size - 1);
    else if (data[0] % 3 == 1)
        try_signature(text);
    else
        try_json(text, size - 1);
    free(text);
    return 0;
}
