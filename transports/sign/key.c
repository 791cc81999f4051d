#include "transports/sign/key.h"
#include "transports/base/file.h"
#include "transports/base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PUBLIC_WORD "wsync-public-key-1"
#define SECRET_WORD "wsync-secret-key-1"

struct ws_secret_key {
    struct ws_public_key public;
    unsigned char seed[crypto_sign_SEEDBYTES];
    unsigned char secret[crypto_sign_SECRETKEYBYTES];
};

/* libsodium may be started any number of times, by any thread. */
static int start(struct ws_error *err)
{
    return sodium_init() < 0 ? ws_error_set(err, EIO, "libsodium does not start on this machine") : 0;
}

/* --- hex --- */

void ws_hex_print(const unsigned char *bytes, size_t n, char *out)
{
    sodium_bin2hex(out, 2 * n + 1, bytes, n);
}

int ws_hex_parse(const char *text, size_t chars, unsigned char *out, size_t n)
{
    size_t bytes;

    if (chars != 2 * n)
        return -EINVAL;
    for (size_t i = 0; i < chars; i++)
        if (!(text[i] >= '0' && text[i] <= '9') && !(text[i] >= 'a' && text[i] <= 'f'))
            return -EINVAL;
    return sodium_hex2bin(out, n, text, chars, NULL, &bytes, NULL) == 0 && bytes == n ? 0 : -EINVAL;
}

/* --- lines --- */

static bool is_name(const char *name, size_t n)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._@-";
    bool is = n > 0 && n <= WS_KEY_NAME_CHARS;

    for (size_t i = 0; is && i < n; i++)
        is = memchr(allowed, name[i], sizeof(allowed) - 1) != NULL;
    return is;
}

/* Reads "WORD NAME HEX". No sentence quotes the line, which may be a secret. */
static int parse_line(const char *word, const char *line, size_t n, char name[WS_KEY_NAME_CHARS + 1],
                      unsigned char bytes[WS_KEY_BYTES], struct ws_error *err)
{
    const size_t begin = strlen(word);
    const char *hex;

    if (n > 0 && line[n - 1] == '\n')
        n--;
    if (n < begin + 1 || memcmp(line, word, begin) != 0 || line[begin] != ' ')
        goto bad;
    line += begin + 1;
    n -= begin + 1;
    hex = memchr(line, ' ', n);
    if (!hex || !is_name(line, (size_t)(hex - line)) ||
        ws_hex_parse(hex + 1, n - (size_t)(hex + 1 - line), bytes, WS_KEY_BYTES) < 0)
        goto bad;
    memcpy(name, line, (size_t)(hex - line));
    name[hex - line] = '\0';
    return 0;
bad:
    return ws_error_set(err, EBADMSG, "it is not one line \"%s NAME\" and 64 hex digits", word);
}

static void make_id(struct ws_public_key *k)
{
    unsigned char hash[crypto_generichash_BYTES];

    crypto_generichash(hash, sizeof(hash), k->bytes, sizeof(k->bytes), NULL, 0);
    ws_hex_print(hash, WS_KEY_ID_CHARS / 2, k->id);
}

/* --- files --- */

/* Reads a file of one short line. own: only its owner may have access, and that is this user or root. */
static int read_line(const char *path, bool own, char line[WS_KEY_LINE_CHARS], size_t *n,
                     struct ws_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    ssize_t got;
    int rc = 0;

    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = ws_error_set(err, errno, "cannot read the key %s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        rc = ws_error_set(err, EINVAL, "the key %s is not a regular file", path);
    } else if (own && (st.st_mode & 077)) {
        rc = ws_error_set(err, EACCES,
                          "the secret key %s can be used by others (mode %03o): chmod 600 it, and make a new "
                          "key if somebody may have read it",
                          path, st.st_mode & 0777U);
    } else if (own && st.st_uid != geteuid() && st.st_uid != 0) {
        rc = ws_error_set(err, EACCES, "the secret key %s belongs to another user", path);
    } else {
        got = ws_file_read(fd, line, WS_KEY_LINE_CHARS, 0);
        if (got < 0)
            rc = ws_error_set(err, (int)-got, "cannot read the key %s: %s", path, strerror((int)-got));
        *n = got < 0 ? 0 : (size_t)got;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

/* --- public keys --- */

int ws_public_key_parse(const char *line, size_t n, struct ws_public_key *out, struct ws_error *err)
{
    int rc = start(err);

    memset(out, 0, sizeof(*out));
    if (rc == 0)
        rc = parse_line(PUBLIC_WORD, line, n, out->name, out->bytes, err);
    if (rc == 0)
        make_id(out);
    return rc;
}

int ws_public_key_read(const char *path, struct ws_public_key *out, struct ws_error *err)
{
    char line[WS_KEY_LINE_CHARS];
    size_t n;
    int rc = read_line(path, false, line, &n, err);

    if (rc < 0)
        return rc;
    rc = ws_public_key_parse(line, n, out, err);
    if (rc < 0)
        ws_error_prefix(err, "%s is no public key", path);
    sodium_memzero(line, sizeof(line)); /* it may be a secret key, by mistake */
    return rc;
}

void ws_public_key_print(const struct ws_public_key *k, char out[WS_KEY_LINE_CHARS])
{
    char hex[2 * WS_KEY_BYTES + 1];

    ws_hex_print(k->bytes, sizeof(k->bytes), hex);
    snprintf(out, WS_KEY_LINE_CHARS, "%s %s %s\n", PUBLIC_WORD, k->name, hex);
}

bool ws_public_key_verifies(const struct ws_public_key *k, const unsigned char signature[WS_SIGNATURE_BYTES],
                            const void *message, size_t n)
{
    return crypto_sign_verify_detached(signature, message, n, k->bytes) == 0;
}

/* --- secret keys --- */

/* Memory of its own between guard pages, locked and in no core dump. */
static int make(struct ws_secret_key **out, struct ws_error *err)
{
    int rc = start(err);

    *out = NULL;
    if (rc < 0)
        return rc;
    *out = sodium_malloc(sizeof(**out));
    if (!*out)
        return ws_error_set(err, ENOMEM,
                            "no memory for a key that can be locked: raise the limit of locked "
                            "memory (ulimit -l)");
    memset(*out, 0, sizeof(**out));
    if (sodium_mlock(*out, sizeof(**out)) != 0) /* sodium_malloc does not say so */
        ws_log(WS_LOG_WARN, "sign",
               "the secret key may be written to swap: its memory cannot be locked (%s); raise the limit of "
               "locked "
               "memory (ulimit -l, LimitMEMLOCK=)",
               strerror(errno));
    return 0;
}

static void complete(struct ws_secret_key *k)
{
    crypto_sign_seed_keypair(k->public.bytes, k->secret, k->seed);
    make_id(&k->public);
    (void)sodium_mprotect_readonly(k);
}

int ws_secret_key_new(const char *name, struct ws_secret_key **out, struct ws_error *err)
{
    struct ws_secret_key *k;
    int rc;

    *out = NULL;
    if (!is_name(name, strnlen(name, WS_KEY_NAME_CHARS + 1)))
        return ws_error_set(
            err, EINVAL,
            "\"%.64s\" cannot be a key's name: use 1 to %d of letters, digits, '.', '_', '@', "
            "'-'",
            name, WS_KEY_NAME_CHARS);
    rc = make(&k, err);
    if (rc < 0)
        return rc;
    snprintf(k->public.name, sizeof(k->public.name), "%s", name);
    randombytes_buf(k->seed, sizeof(k->seed));
    complete(k);
    *out = k;
    return 0;
}

int ws_secret_key_parse(const char *line, size_t n, struct ws_secret_key **out, struct ws_error *err)
{
    struct ws_secret_key *k;
    int rc = make(&k, err);

    *out = NULL;
    if (rc < 0)
        return rc;
    rc = parse_line(SECRET_WORD, line, n, k->public.name, k->seed, err);
    if (rc < 0) {
        ws_secret_key_free(k);
        return rc;
    }
    complete(k);
    *out = k;
    return 0;
}

int ws_secret_key_read(const char *path, struct ws_secret_key **out, struct ws_error *err)
{
    char *line;
    size_t n;
    int rc = start(err);

    *out = NULL;
    if (rc < 0)
        return rc;
    line = sodium_malloc(WS_KEY_LINE_CHARS);
    if (!line)
        return ws_error_set(err, ENOMEM, "no memory for a key that can be locked");
    rc = read_line(path, true, line, &n, err);
    if (rc == 0 && (rc = ws_secret_key_parse(line, n, out, err)) < 0)
        ws_error_prefix(err, "%s is no secret key", path);
    sodium_free(line); /* which clears it */
    return rc;
}

int ws_secret_key_write(const struct ws_secret_key *k, const char *path, struct ws_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    char *line;
    int rc;

    if (fd < 0)
        return ws_error_set(err, errno, "cannot make the key file %s: %s%s", path, strerror(errno),
                            errno == EEXIST ? "; a key is never overwritten" : "");
    line = sodium_malloc(WS_KEY_LINE_CHARS);
    if (line) {
        const size_t begin = (size_t)snprintf(line, WS_KEY_LINE_CHARS, "%s %s ", SECRET_WORD, k->public.name);
        ws_hex_print(k->seed, sizeof(k->seed), line + begin);
        line[begin + 2 * sizeof(k->seed)] = '\n';
        rc = ws_file_write(fd, line, begin + 2 * sizeof(k->seed) + 1);
        if (rc == 0 && fsync(fd) != 0)
            rc = -errno;
        sodium_free(line);
    } else {
        rc = -ENOMEM;
    }
    close(fd);
    if (rc < 0) {
        (void)unlink(path);
        return ws_error_set(err, -rc, "cannot write the key file %s: %s", path, strerror(-rc));
    }
    return 0;
}

const struct ws_public_key *ws_secret_key_public(const struct ws_secret_key *k)
{
    return &k->public;
}

void ws_secret_key_sign(const struct ws_secret_key *k, const void *message, size_t n,
                        unsigned char out[WS_SIGNATURE_BYTES])
{
    crypto_sign_detached(out, NULL, message, n, k->secret);
}

void ws_secret_key_free(struct ws_secret_key *k)
{
    if (k)
        sodium_free(k); /* which clears it, also where it is read-only */
}
