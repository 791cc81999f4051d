/* Keys and what is signed with them: files of keys, who is trusted for what, manifests, trees of blocks and proofs of
 * deltas. Whatever is changed in one of them is refused, and no sentence quotes a secret. */
#include "transports/delta/record.h"
#include "transports/sign/delta_proof.h"
#include "transports/sign/proof_path.h"
#include "transports/sign/tree.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FILE_BYTES (WS_BLOCK_BYTES + 100)

static char folder[] = "/tmp/wsync-signing.XXXXXX";
static struct ws_secret_key *key, *other;
static struct ws_trust trust;

static void path_of(const char *name, char out[128])
{
    snprintf(out, 128, "%s/%s", folder, name);
}

static void write_text(const char *path, const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void trust_key(struct ws_trust *t, const struct ws_secret_key *k, const char *model)
{
    char path[128], line[WS_KEY_LINE_CHARS], text[300];
    struct ws_error err = {0};

    path_of("trusted", path);
    ws_public_key_print(ws_secret_key_public(k), line);
    write_text(path, line, 0644);
    snprintf(text, sizeof(text), "%s%s%s", model ? model : "", model ? "=" : "", path);
    if (ws_trust_add(t, text, &err) < 0)
        fail_msg("%s", err.text);
}

static int set_up(void **state)
{
    struct ws_error err;

    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(ws_secret_key_new("one", &key, &err), 0);
    assert_int_equal(ws_secret_key_new("other", &other, &err), 0);
    trust_key(&trust, key, NULL);
    return 0;
}

static int tear_down(void **state)
{
    char command[128];

    (void)state;
    ws_secret_key_free(key);
    ws_secret_key_free(other);
    ws_trust_reset(&trust);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}

/* --- keys --- */

static void a_key_is_written_and_read(void **state)
{
    char path[128], line[WS_KEY_LINE_CHARS];
    struct ws_secret_key *again;
    struct ws_public_key public;
    struct ws_error err = {0};
    struct stat st;
    unsigned char a[WS_SIGNATURE_BYTES], b[WS_SIGNATURE_BYTES];

    (void)state;
    path_of("key", path);
    assert_int_equal(ws_secret_key_write(key, path, &err), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(ws_secret_key_write(key, path, &err), -EEXIST);
    assert_int_equal(ws_secret_key_read(path, &again, &err), 0);
    ws_secret_key_sign(key, "text", 4, a);
    ws_secret_key_sign(again, "text", 4, b);
    assert_memory_equal(a, b, sizeof(a));
    ws_public_key_print(ws_secret_key_public(again), line);
    assert_int_equal(ws_public_key_parse(line, strlen(line), &public, &err), 0);
    assert_string_equal(public.name, "one");
    assert_string_equal(public.id, ws_secret_key_public(key)->id);
    assert_true(ws_public_key_verifies(&public, a, "text", 4));
    assert_false(ws_public_key_verifies(&public, a, "texT", 4));
    a[0] ^= 1;
    assert_false(ws_public_key_verifies(&public, a, "text", 4));
    ws_secret_key_free(again);
}

static void a_key_that_others_can_use_is_refused(void **state)
{
    static const mode_t modes[] = {0640, 0604, 0620, 0601, 0666};
    struct ws_secret_key *k;
    struct ws_error err;
    char path[128];

    (void)state;
    path_of("open", path);
    assert_int_equal(ws_secret_key_write(key, path, &err), 0);
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        assert_int_equal(ws_secret_key_read(path, &k, &err), -EACCES);
        assert_non_null(strstr(err.text, "chmod 600"));
        assert_null(k);
    }
    assert_int_equal(chmod(path, 0400), 0);
    assert_int_equal(ws_secret_key_read(path, &k, &err), 0);
    ws_secret_key_free(k);
    assert_int_equal(ws_secret_key_read(folder, &k, &err), -EINVAL);
}

#define SEED "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static void a_line_that_is_no_key_is_refused_without_a_quote(void **state)
{
    static const char *const bad[] = {
        "",
        "wsync-secret-key-1",
        "wsync-secret-key-1 ",
        "wsync-secret-key-1 name",
        "wsync-secret-key-1 name " SEED "0",
        "wsync-secret-key-1 name " SEED " ",
        "wsync-secret-key-1 name " SEED "\n\n",
        "wsync-secret-key-1 two words " SEED,
        "wsync-secret-key-1  " SEED,
        "wsync-secret-key-2 name " SEED,
        "wsync-public-key-1 name " SEED,
        "wsync-secret-key-1 na/me " SEED,
        "wsync-secret-key-1 name 00112233445566778899AABBCCDDEEFF00112233445566778899aabbccddeeff",
    };
    struct ws_secret_key *k;
    struct ws_public_key public;
    struct ws_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(ws_secret_key_parse(bad[i], strlen(bad[i]), &k, &err), -EBADMSG);
        assert_null(strstr(err.text, "00112233"));
    }
    assert_int_equal(ws_secret_key_parse("wsync-secret-key-1 name " SEED "\n", 89, &k, &err), 0);
    ws_secret_key_free(k);
    assert_int_equal(ws_public_key_parse("wsync-secret-key-1 name " SEED, 88, &public, &err), -EBADMSG);
    assert_null(strstr(err.text, "00112233"));
    assert_int_equal(ws_secret_key_new("two words", &k, &err), -EINVAL);
    assert_int_equal(ws_secret_key_new("", &k, &err), -EINVAL);
}

static void keys_are_trusted_by_model(void **state)
{
    const char *const one = ws_secret_key_public(key)->id, *const two = ws_secret_key_public(other)->id;
    struct ws_trust t = {0}, copy;
    struct ws_error err;

    (void)state;
    trust_key(&t, key, NULL);
    trust_key(&t, other, "actor");
    assert_int_equal(ws_trust_copy(&t, &copy), 0);
    ws_trust_reset(&t);
    assert_null(ws_trust_find(&copy, "actor", one));
    assert_non_null(ws_trust_find(&copy, "actor", two));
    assert_non_null(ws_trust_find(&copy, "actor@1.2", two));
    assert_null(ws_trust_find(&copy, "actor@1.2", one));
    assert_non_null(
        ws_trust_find(&copy, "actor@fp8-channel", two)); /* a view is its model's, unless it has its own */
    assert_null(ws_trust_find(&copy, "actor@fp8-channel", one));
    assert_non_null(ws_trust_find(&copy, "critic@fp8-channel", one));
    assert_non_null(ws_trust_find(&copy, "critic", one));
    assert_null(ws_trust_find(&copy, "critic", two));
    assert_int_equal(ws_trust_add(&copy, "", &err), -EINVAL);
    assert_int_equal(ws_trust_add(&copy, "ctl=/nonexistent", &err), -EINVAL);
    assert_int_equal(ws_trust_add(&copy, "/nonexistent", &err), -ENOENT);
    ws_trust_reset(&copy);
}

/* --- manifests --- */

static struct ws_manifest *make_manifest(const char *model, uint64_t version, uint64_t hash)
{
    struct ws_manifest *m;
    struct ws_manifest_file *f;

    assert_int_equal(ws_manifest_new(&m, model, version, "run", NULL), 0);
    assert_int_equal(ws_manifest_add(m, "a", FILE_BYTES, 0, &f, NULL), 0);
    f->hashes[0] = hash;
    assert_int_equal(ws_manifest_add(m, "b", 5, 0, &f, NULL), 0);
    assert_int_equal(ws_manifest_add(m, "empty", 0, 0, &f, NULL), 0);
    assert_int_equal(ws_manifest_freeze(m, "frozen", NULL), 0);
    m->created_ns = 1000;
    ws_manifest_seal(m);
    return m;
}

static int check(const struct ws_manifest *m, const char *why)
{
    const struct ws_public_key *by = NULL;
    struct ws_error err = {0};
    int rc = ws_manifest_check(m, &trust, &by, &err);

    if (rc < 0)
        assert_non_null(strstr(err.text, why));
    else
        assert_string_equal(by->name, "one");
    return rc;
}

static void a_manifest_stands_for_all_that_it_says(void **state)
{
    struct ws_manifest *m = make_manifest("actor", 7, 1), *with;
    char *json;
    size_t n;

    (void)state;
    assert_int_equal(check(m, "is not signed"), -EBADMSG);
    assert_int_equal(ws_manifest_sign(m, key, NULL), 0);
    assert_int_equal(check(m, ""), 0);
    assert_int_equal(ws_manifest_to_json(m, &json, &n, NULL), 0);
    assert_int_equal(ws_manifest_from_json(json, n, &with, NULL), 0);
    free(json);
    assert_int_equal(check(with, ""), 0);
#define CHANGED(change, back)                                                                                \
    change;                                                                                                  \
    assert_int_equal(check(with, "did not make of this"), -EBADMSG);                                         \
    back;                                                                                                    \
    assert_int_equal(check(with, ""), 0)
    CHANGED(with->version++, with->version--);
    CHANGED(with->created_ns++, with->created_ns--);
    CHANGED(with->lineage[0] = 'x', with->lineage[0] = 'r');
    CHANGED(with->model[0] = 'A', with->model[0] = 'a');
    CHANGED(with->files[0].hashes[1] ^= 1, with->files[0].hashes[1] ^= 1);
    CHANGED(with->files[0].name[0] = 'A', with->files[0].name[0] = 'a');
    CHANGED(with->files[1].size_bytes++, with->files[1].size_bytes--);
    CHANGED(with->files[1].header_bytes++, with->files[1].header_bytes--);
    CHANGED(with->frozen[0][0] = 'F', with->frozen[0][0] = 'f');
    char *last = &with->signature[WS_SIGNATURE_CHARS - 1];
    const char was = *last;
    CHANGED(*last = was == '0' ? '1' : '0', *last = was); /* a digit all the same */
    with->signature[WS_SIGNATURE_CHARS - 1] = '\0';
    assert_int_equal(check(with, "malformed"), -EBADMSG);
    assert_int_equal(ws_manifest_sign(with, other, NULL), 0);
    assert_int_equal(check(with, "not trusted for actor"), -EBADMSG);
    memcpy(with->signature, ws_secret_key_public(key)->id,
           WS_KEY_ID_CHARS); /* it claims to be by the trusted one */
    assert_int_equal(check(with, "did not make of this"), -EBADMSG);
    ws_manifest_free(with);
    ws_manifest_free(m);
}

/* --- trees --- */

static void a_tree_has_the_bytes_of_its_blocks(void **state)
{
    struct ws_manifest *m = make_manifest("actor", 7, 1), *next = make_manifest("actor", 8, 1);
    unsigned char *bytes = calloc(1, FILE_BYTES);
    struct ws_tree *t = ws_tree_new(m), *read;
    struct ws_error err;
    json_t *json;

    (void)state;
    assert_non_null(bytes);
    for (size_t b = 0; b < 2; b++)
        ws_tree_leaf(0, b, bytes + b * WS_BLOCK_BYTES, ws_manifest_block_bytes(&m->files[0], b),
                     t->leaves[0][b]);
    ws_tree_leaf(1, 0, "bytes", 5, t->leaves[1][0]);
    ws_tree_sign(t, key);
    json = ws_tree_to_json(t);
    assert_int_equal(ws_tree_from_json(json, m, &trust, &read, &err), 0);
    assert_true(ws_tree_has(read, 0, 0, bytes, WS_BLOCK_BYTES));
    assert_true(ws_tree_has(read, 0, 1, bytes, 100));
    assert_false(ws_tree_has(read, 0, 1, bytes, 99));
    assert_true(ws_tree_has(read, 1, 0, "bytes", 5));
    assert_false(ws_tree_has(read, 1, 0, "bytez", 5));
    bytes[WS_BLOCK_BYTES - 1] = 1;
    assert_false(ws_tree_has(read, 0, 0, bytes, WS_BLOCK_BYTES));
    ws_tree_free(read);

    /* of another manifest, by another key, changed, cut, or not of this shape */
    assert_int_equal(ws_tree_from_json(json, next, &trust, &read, &err), -EBADMSG);
    ws_tree_sign(t, other);
    json_t *by_other = ws_tree_to_json(t);
    assert_int_equal(ws_tree_from_json(by_other, m, &trust, &read, &err), -EBADMSG);
    assert_null(read);
    json_decref(by_other);
    json_t *leaves = json_object_get(json, "leaves");
    json_t *first = json_incref(json_array_get(leaves, 0));
    json_array_set_new(leaves, 0, json_string(""));
    assert_int_equal(ws_tree_from_json(json, m, &trust, &read, &err), -EBADMSG);
    json_array_set_new(leaves, 0, json_integer(1));
    assert_int_equal(ws_tree_from_json(json, m, &trust, &read, &err), -EBADMSG);
    char *text = strdup(json_string_value(first));
    text[3] = text[3] == '0' ? '1' : '0';
    json_array_set_new(leaves, 0, json_string(text));
    assert_int_equal(ws_tree_from_json(json, m, &trust, &read, &err), -EBADMSG);
    json_array_set(leaves, 0, first);
    assert_int_equal(ws_tree_from_json(json, m, &trust, &read, &err), 0);
    ws_tree_free(read);
    json_array_append(leaves, first);
    assert_int_equal(ws_tree_from_json(json, m, &trust, &read, &err), -EBADMSG);
    json_object_del(json, "leaves");
    assert_int_equal(ws_tree_from_json(json, m, &trust, &read, &err), -EBADMSG);
    json_object_set_new(json, "format", json_integer(2));
    assert_int_equal(ws_tree_from_json(json, m, &trust, &read, &err), -EBADMSG);
    json_decref(first);
    json_decref(json);
    free(text);
    free(bytes);
    ws_tree_free(t);
    ws_manifest_free(m);
    ws_manifest_free(next);
}

/* --- deltas --- */

static void add_record(struct ws_delta *d, uint32_t file, uint32_t block, const char *text)
{
    struct ws_delta_record *r = ws_delta_record_make(file, block, WS_DELTA_BLOCK, 0,
                                                     (const unsigned char *)text, (uint32_t)strlen(text), 0);

    assert_non_null(r);
    assert_int_equal(ws_delta_add(d, r), 0);
}

static void a_proof_has_the_records_of_its_delta(void **state)
{
    struct ws_manifest *base = make_manifest("actor", 7, 1), *target = make_manifest("actor", 8, 2);
    const struct ws_delta_link link = {.base = ws_version_id_make(7, "run"),
                                       .target = ws_version_id_make(8, "run")};
    struct ws_delta_proof *p, *read;
    unsigned char id[WS_HASH_BYTES];
    struct ws_delta *d;
    struct ws_error err;
    json_t *json;

    (void)state;
    assert_int_equal(ws_delta_new(&d, &link, target, &err), 0);
    add_record(d, 1, 0, "bytes"); /* not in the order of blocks */
    add_record(d, 0, 1, "more");
    add_record(d, 0, 0, "most");
    ws_delta_end(d, WS_DELTA_WHOLE);
    assert_int_equal(ws_delta_proof_make(&p, d, base, target, key, &err), 0);
    json = ws_delta_proof_to_json(p);
    assert_int_equal(ws_delta_proof_from_json(json, "actor", &trust, &read, &err), 0);
    assert_int_equal(read->n, 3);
    ws_manifest_id(base, id);
    assert_memory_equal(read->base_id, id, sizeof(id));
    ws_manifest_id(target, id);
    assert_memory_equal(read->target_id, id, sizeof(id));
    assert_true(ws_delta_proof_names(read, 0, 1));
    assert_false(ws_delta_proof_names(read, 1, 1));
    for (size_t i = 0; i < 2; i++)
        assert_true(ws_delta_proof_has(read, ws_delta_at(d, 0, i)));
    struct ws_delta_record *r = (struct ws_delta_record *)(uintptr_t)ws_delta_at(d, 1, 0);
    assert_true(ws_delta_proof_has(read, r));
#define NOT_PROVED(change, back)                                                                             \
    change;                                                                                                  \
    assert_false(ws_delta_proof_has(read, r));                                                               \
    back
    NOT_PROVED(r->data[4] ^= 1, r->data[4] ^= 1);
    NOT_PROVED(r->kind = WS_DELTA_EDIT, r->kind = WS_DELTA_BLOCK);
    NOT_PROVED(r->packed = 1, r->packed = 0);
    NOT_PROVED(r->raw_bytes++, r->raw_bytes--);
    NOT_PROVED(r->n_changed++, r->n_changed--);
    NOT_PROVED(r->file = 0, r->file = 1);
    NOT_PROVED(r->block = 1, r->block = 0);
    assert_true(ws_delta_proof_has(read, r));
    ws_delta_proof_free(read);

    /* without one of its records, or with other ids */
    json_t *files = json_object_get(json, "files"), *both = json_incref(json_array_get(files, 0));
    json_array_set_new(files, 0, json_stringn(json_string_value(both), json_string_length(both) / 2));
    assert_int_equal(ws_delta_proof_from_json(json, "actor", &trust, &read, &err), -EBADMSG);
    json_array_set_new(files, 0, json_stringn(json_string_value(both), json_string_length(both) / 2 - 1));
    assert_int_equal(ws_delta_proof_from_json(json, "actor", &trust, &read, &err), -EBADMSG);
    json_array_set(files, 0, both);
    json_object_set(json, "base", json_object_get(json, "target"));
    assert_int_equal(ws_delta_proof_from_json(json, "actor", &trust, &read, &err), -EBADMSG);
    assert_null(read);
    assert_int_equal(ws_delta_proof_from_json(json_null(), "actor", &trust, &read, &err), -EBADMSG);
    json_decref(both);
    json_decref(json);
    ws_delta_proof_free(p);
    ws_delta_put(d);
    ws_manifest_free(base);
    ws_manifest_free(target);
}

static void a_statement_of_one_kind_is_none_of_another(void **state)
{
    unsigned char hashes[WS_STATEMENT_HASHES][WS_HASH_BYTES] = {{1}, {2}, {3}};
    char text[WS_SIGNATURE_CHARS + 1];

    (void)state;
    ws_statement_sign(key, WS_SIGNED_BLOCKS, (const unsigned char(*)[WS_HASH_BYTES])hashes, text);
    for (int kind = WS_SIGNED_MANIFEST; kind <= WS_SIGNED_DELTA; kind++)
        assert_int_equal(ws_statement_check(&trust, "actor", (enum ws_statement)kind,
                                            (const unsigned char(*)[WS_HASH_BYTES])hashes, text, NULL, NULL),
                         kind == WS_SIGNED_BLOCKS ? 0 : -EBADMSG);
}

static void a_request_names_its_base(void **state)
{
    char query[WS_PROOF_QUERY_CHARS];
    struct ws_version_id base = ws_version_id_make(INT64_MAX, "0123456789abcdef0123456789abcdef"), read;
    bool has;

    (void)state;
    ws_proof_query(query, base.lineage, &base);
    assert_int_equal(ws_proof_base(query, &has, &read), 0);
    assert_true(has && ws_version_id_equal(&base, &read));
    ws_proof_query(query, "run", NULL);
    assert_int_equal(ws_proof_base(query, &has, &read), 0);
    assert_false(has);
    assert_int_equal(ws_proof_base(NULL, &has, &read), 0);
    assert_false(has);
    assert_int_equal(ws_proof_base("base=1", &has, &read), 0);
    assert_true(has && read.version == 1 && !read.lineage[0]);
    assert_int_equal(ws_proof_base("base=x", &has, &read), -EINVAL);
    assert_int_equal(ws_proof_base("base=1&base_run=a/b", &has, &read), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_written_and_read),
        cmocka_unit_test(a_key_that_others_can_use_is_refused),
        cmocka_unit_test(a_line_that_is_no_key_is_refused_without_a_quote),
        cmocka_unit_test(keys_are_trusted_by_model),
        cmocka_unit_test(a_manifest_stands_for_all_that_it_says),
        cmocka_unit_test(a_tree_has_the_bytes_of_its_blocks),
        cmocka_unit_test(a_proof_has_the_records_of_its_delta),
        cmocka_unit_test(a_statement_of_one_kind_is_none_of_another),
        cmocka_unit_test(a_request_names_its_base),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
