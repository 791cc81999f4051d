/* The manifest as JSON, both ways:
 *     {"format":1,"model":"actor","version":2,"run":"r1","created_ns":1,"block_bytes":4194304,
 *      "total_bytes":9,"digest":"32 hex digits",
 *      "files":[{"name":"config.json","size":9,"header_bytes":0,"xxh3":["16 hex digits", ...]}],
 *      "frozen":["lm_head.weight"],"signature":"KEY SIGNATURE","deltas":[]}
 * signature (sign/statement.h) is there where the version is signed.
 * Written and read as a stream: a manifest of 262,144 blocks is 5 MB of text and would be 30 MB of
 * tree. Unknown keys are skipped, so that later versions of wsync may add to it; what is needed must
 * be there once. The keys may come in any order, so hashes are kept aside until the file's size is
 * known, and everything is checked at the end. */
#include "transports/base/json_cursor.h"
#include "transports/base/text.h"
#include "transports/base/vector.h"
#include "transports/format/manifest.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT    1
#define KEY_CHARS 64

static int out_of_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "out of memory for a manifest");
}

static int put_string(FILE *f, const char *s, struct ws_error *err)
{
    int rc = ws_json_put_string(f, s);

    if (rc == -EINVAL)
        ws_error_set(err, EINVAL, "\"%.255s\" is not UTF-8 and cannot be in a manifest", s);
    else if (rc < 0)
        out_of_memory(err);
    return rc;
}

static int put_file(FILE *f, const struct ws_manifest_file *file, struct ws_error *err)
{
    int rc;

    fputs("{\"name\":", f);
    rc = put_string(f, file->name, err);
    if (rc < 0)
        return rc;
    fprintf(f, ",\"size\":%lu,\"header_bytes\":%lu,\"xxh3\":[", file->size_bytes, file->header_bytes);
    for (size_t i = 0; i < file->n_blocks; i++) {
        char text[WS_HASH_DIGITS + 3] = ",\"";
        ws_text_put_hash(file->hashes[i], text + 2);
        text[WS_HASH_DIGITS + 2] = '"';
        fwrite(text + (i == 0), 1, sizeof(text) - (i == 0), f);
    }
    fputs("]}", f);
    return 0;
}

static int put_manifest(FILE *f, const struct ws_manifest *m, struct ws_error *err)
{
    int rc;

    fprintf(f, "{\"format\":%d,\"model\":", FORMAT);
    rc = put_string(f, m->model, err);
    fprintf(f,
            ",\"version\":%lu,\"run\":\"%s\",\"created_ns\":%lu,\"block_bytes\":%lu,"
            "\"total_bytes\":%lu,\"digest\":\"%s\",\"files\":[",
            m->version, m->lineage, m->created_ns, WS_BLOCK_BYTES, m->total_bytes, m->digest);
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        if (i > 0)
            fputc(',', f);
        rc = put_file(f, &m->files[i], err);
    }
    fputs("],\"frozen\":[", f);
    for (size_t i = 0; rc == 0 && i < m->n_frozen; i++) {
        if (i > 0)
            fputc(',', f);
        rc = put_string(f, m->frozen[i], err);
    }
    fputs("],", f);
    if (rc == 0 && m->signature) {
        fputs("\"signature\":", f);
        rc = put_string(f, m->signature, err);
        fputc(',', f);
    }
    fputs(WS_MANIFEST_NO_DELTAS "}", f); /* its last member: a server puts its list there */
    return rc;
}

int ws_manifest_to_json(const struct ws_manifest *m, char **json, size_t *len, struct ws_error *err)
{
    char *text = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&text, &length);
    int rc;

    if (!f)
        return out_of_memory(err);
    rc = put_manifest(f, m, err);
    if ((fclose(f) != 0 || !text) && rc == 0)
        rc = out_of_memory(err);
    if (rc == 0 && length > WS_MAX_MANIFEST_BYTES)
        rc = ws_error_set(err, E2BIG, "the manifest would have %zu bytes, more than the limit of %lu", length,
                          WS_MAX_MANIFEST_BYTES);
    if (rc < 0) {
        free(text);
        return rc;
    }
    *json = text;
    *len = length;
    return 0;
}

/* What is read before there is a manifest to put it in. */
WS_VECTOR(hashes, uint64_t);
struct reading {
    struct ws_manifest *m;
    struct ws_json j;
    char model[WS_MAX_NAME + 1];
    char lineage[WS_LINEAGE_CHARS + 1];
    char digest[sizeof(((struct ws_manifest *)0)->digest)];
    uint64_t format, version, created_ns, block_bytes, total_bytes;
    unsigned seen;
    struct hashes hashes; /* of the file that is being read */
};

static int add_hash(struct reading *r, const char *digits, struct ws_error *err)
{
    uint64_t value = 0;

    if (ws_text_hash(digits, &value) < 0)
        return ws_error_set(err, EBADMSG, "\"%s\" is no hash of 16 lower-case digits", digits);
    return hashes_append(&r->hashes, value) < 0 ? out_of_memory(err) : 0;
}

static int read_hashes(struct reading *r, struct ws_error *err)
{
    char digits[WS_HASH_DIGITS + 1];
    int rc = ws_json_enter(&r->j, '[', err);

    while (rc == 0 && (rc = ws_json_element(&r->j, err)) == 1) {
        rc = ws_json_string(&r->j, digits, sizeof(digits), err);
        if (rc == 0)
            rc = add_hash(r, digits, err);
    }
    return rc;
}

/* A needed key, once: notes it in *seen. */
static int note(unsigned *seen, unsigned field, const char *key, struct ws_error *err)
{
    if (*seen & field)
        return ws_error_set(err, EBADMSG, "\"%s\" is there twice", key);
    *seen |= field;
    return 0;
}

static int read_file_fields(struct reading *r, char name[WS_MAX_NAME + 1], uint64_t *size,
                            uint64_t *header_bytes, struct ws_error *err)
{
    enum { NAME = 1, SIZE = 2, HEADER = 4, HASHES = 8, ALL = 15 };
    char key[KEY_CHARS];
    unsigned seen = 0;
    int rc = ws_json_enter(&r->j, '{', err);

    while (rc == 0 && (rc = ws_json_member(&r->j, key, sizeof(key), err)) == 1) {
        unsigned field = 0;
        if (strcmp(key, "name") == 0) {
            field = NAME;
            rc = ws_json_string(&r->j, name, WS_MAX_NAME + 1, err);
        } else if (strcmp(key, "size") == 0) {
            field = SIZE;
            rc = ws_json_uint(&r->j, size, err);
        } else if (strcmp(key, "header_bytes") == 0) {
            field = HEADER;
            rc = ws_json_uint(&r->j, header_bytes, err);
        } else if (strcmp(key, "xxh3") == 0) {
            field = HASHES;
            rc = read_hashes(r, err);
        } else {
            rc = ws_json_skip(&r->j, err);
        }
        if (rc == 0)
            rc = note(&seen, field, key, err);
    }
    if (rc == 0 && seen != ALL)
        rc = ws_error_set(err, EBADMSG, "it lacks one of name, size, header_bytes and xxh3");
    return rc;
}

static int read_file(struct reading *r, struct ws_error *err)
{
    char name[WS_MAX_NAME + 1] = "";
    uint64_t size = 0, header_bytes = 0;
    struct ws_manifest_file *f;
    int rc;

    r->hashes.len = 0;
    rc = read_file_fields(r, name, &size, &header_bytes, err);
    if (rc < 0) {
        ws_error_prefix(err, "file %zu (\"%s\")", r->m->n_files, name);
        return rc;
    }
    if (r->hashes.len != ws_manifest_count_blocks(size))
        return ws_error_set(err, EBADMSG, "file \"%s\" of %lu bytes has %zu hashes", name, size,
                            r->hashes.len);
    rc = ws_manifest_add(r->m, name, size, header_bytes, &f, err);
    if (rc == 0 && r->hashes.len > 0)
        memcpy(f->hashes, r->hashes.ptr, r->hashes.len * sizeof(*f->hashes));
    return rc;
}

static int read_files(struct reading *r, struct ws_error *err)
{
    int rc = ws_json_enter(&r->j, '[', err);

    while (rc == 0 && (rc = ws_json_element(&r->j, err)) == 1)
        rc = read_file(r, err);
    return rc;
}

static int read_frozen(struct reading *r, struct ws_error *err)
{
    char name[WS_MAX_TENSOR_NAME + 1];
    int rc = ws_json_enter(&r->j, '[', err);

    while (rc == 0 && (rc = ws_json_element(&r->j, err)) == 1) {
        rc = ws_json_string(&r->j, name, sizeof(name), err);
        if (rc == 0)
            rc = ws_manifest_freeze(r->m, name, err);
    }
    return rc;
}

static int read_signature(struct reading *r, struct ws_error *err)
{
    char text[WS_MANIFEST_SIGNATURE_CHARS + 1];
    int rc = ws_json_string(&r->j, text, sizeof(text), err);

    if (rc == 0 && !(r->m->signature = strdup(text)))
        rc = out_of_memory(err);
    return rc;
}

/* The known keys: where each value goes. Exactly one of the three ways is set. */
struct field {
    const char *key;
    bool optional;
    char *text;
    size_t text_bytes;
    uint64_t *number;
    int (*read)(struct reading *r, struct ws_error *err);
};

static int read_field(struct reading *r, const struct field *f, struct ws_error *err)
{
    if (f->text)
        return ws_json_string(&r->j, f->text, f->text_bytes, err);
    if (f->number)
        return ws_json_uint(&r->j, f->number, err);
    return f->read(r, err);
}

static int read_members(struct reading *r, struct ws_error *err)
{
    const struct field fields[] = {
        {.key = "format", .number = &r->format},
        {.key = "model", .text = r->model, .text_bytes = sizeof(r->model)},
        {.key = "version", .number = &r->version},
        {.key = "run", .text = r->lineage, .text_bytes = sizeof(r->lineage)},
        {.key = "created_ns", .number = &r->created_ns},
        {.key = "block_bytes", .number = &r->block_bytes},
        {.key = "total_bytes", .number = &r->total_bytes},
        {.key = "digest", .text = r->digest, .text_bytes = sizeof(r->digest)},
        {.key = "files", .read = read_files},
        {.key = "frozen", .read = read_frozen},
        {.key = "signature", .optional = true, .read = read_signature},
    };
    const size_t n_fields = sizeof(fields) / sizeof(fields[0]);
    char key[KEY_CHARS];
    int rc = ws_json_enter(&r->j, '{', err);

    while (rc == 0 && (rc = ws_json_member(&r->j, key, sizeof(key), err)) == 1) {
        size_t i = 0;
        while (i < n_fields && strcmp(fields[i].key, key) != 0)
            i++;
        if (i == n_fields) {
            rc = ws_json_skip(&r->j, err);
            continue;
        }
        rc = note(&r->seen, 1U << i, key, err);
        if (rc == 0)
            rc = read_field(r, &fields[i], err);
        if (rc < 0)
            ws_error_prefix(err, "\"%s\"", key);
    }
    for (size_t i = 0; rc == 0 && i < n_fields; i++) {
        if (!fields[i].optional && !(r->seen & 1U << i))
            rc = ws_error_set(err, EBADMSG, "it has no \"%s\"", fields[i].key);
    }
    return rc == 0 ? ws_json_finish(&r->j, err) : rc;
}

/* Everything has been read; is it a manifest that this program can use, and undamaged? */
static int finish_manifest(struct reading *r, struct ws_error *err)
{
    struct ws_manifest *m = r->m, *named;
    int rc;

    if (r->format != FORMAT)
        return ws_error_set(err, EBADMSG,
                            "its format is %lu, this program knows %d: use the same wsync on both "
                            "sides",
                            r->format, FORMAT);
    if (r->block_bytes != WS_BLOCK_BYTES)
        return ws_error_set(err, EBADMSG, "its blocks have %lu bytes, here they have %lu", r->block_bytes,
                            WS_BLOCK_BYTES);
    /* The name checks are the constructor's. */
    rc = ws_manifest_new(&named, r->model, r->version, r->lineage, err);
    if (rc < 0)
        return rc;
    free(m->model);
    m->model = named->model;
    named->model = NULL;
    ws_manifest_free(named);
    m->version = r->version;
    m->created_ns = r->created_ns;
    memcpy(m->lineage, r->lineage, sizeof(m->lineage));
    ws_manifest_seal(m);
    if (m->total_bytes != r->total_bytes)
        return ws_error_set(err, EBADMSG, "its files have %lu bytes, it says %lu", m->total_bytes,
                            r->total_bytes);
    if (strcmp(m->digest, r->digest) != 0)
        return ws_error_set(err, EBADMSG,
                            "its digest is %s, it says \"%s\": it was damaged or mixed with another "
                            "version's, fetch it again",
                            m->digest, r->digest);
    return 0;
}

int ws_manifest_from_json(const char *json, size_t len, struct ws_manifest **out, struct ws_error *err)
{
    struct reading r = {0};
    int rc;

    if (len > WS_MAX_MANIFEST_BYTES)
        return ws_error_set(err, EBADMSG, "the manifest has %zu bytes, more than the limit of %lu", len,
                            WS_MAX_MANIFEST_BYTES);
    r.m = calloc(1, sizeof(*r.m));
    if (!r.m)
        return out_of_memory(err);
    ws_json_start(&r.j, json, len);
    rc = read_members(&r, err);
    if (rc == 0)
        rc = finish_manifest(&r, err);
    hashes_reset(&r.hashes);
    if (rc == 0) {
        *out = r.m;
        return 0;
    }
    ws_manifest_free(r.m);
    if (rc != -ENOMEM) { /* whatever is wrong with it came from outside */
        rc = -EBADMSG;
        if (err)
            err->code = EBADMSG;
    }
    ws_error_prefix(err, "the manifest cannot be used");
    return rc;
}
