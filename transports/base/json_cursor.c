/* Cursor over JSON text. Only the six structural characters, white space, and what there is most of, are read here:
 * strings of printable ASCII without escapes, and short whole numbers. Whatever else has content goes through jansson, a
 * window of the text at a time, which says how far it read. */
#include "transports/base/json_cursor.h"
#include "transports/base/limits.h"
#include "transports/base/text.h"
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

#define ESCAPED_BYTES 6  /* the longest form of a byte in a string: \u0041 */
#define SHORT_DIGITS  18 /* of a number that fits into 63 bits whatever its digits are */

void ws_json_start(struct ws_json *j, const char *text, size_t len)
{
    *j = (struct ws_json){.text = text, .len = len};
}

/* The next byte that is no white space, not yet consumed; -1 at the end. */
static int peek(struct ws_json *j)
{
    for (; j->at < j->len; j->at++) {
        char c = j->text[j->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
            return (unsigned char)c;
    }
    return -1;
}

static int unexpected(const struct ws_json *j, const char *wanted, struct ws_error *err)
{
    if (j->at >= j->len)
        return ws_error_set(err, EBADMSG, "the JSON ends at byte %zu where %s should be", j->at, wanted);
    return ws_error_set(err, EBADMSG, "the JSON has '%c' at byte %zu where %s should be",
                        j->text[j->at] ? j->text[j->at] : '?', j->at, wanted);
}

int ws_json_enter(struct ws_json *j, char open, struct ws_error *err)
{
    assert(open == '{' || open == '[');
    if (peek(j) != open)
        return unexpected(j, open == '{' ? "an object" : "an array", err);
    j->at++;
    j->fresh = true;
    return 0;
}

/* 1: another one follows, its comma consumed; 0: `close` consumed. */
static int next(struct ws_json *j, char close, struct ws_error *err)
{
    int c = peek(j);
    bool fresh = j->fresh;

    j->fresh = false;
    if (c == close) {
        j->at++;
        return 0;
    }
    if (fresh)
        return 1;
    if (c != ',')
        return unexpected(j, close == '}' ? "',' or '}'" : "',' or ']'", err);
    j->at++;
    return 1;
}

int ws_json_member(struct ws_json *j, char *key, size_t key_bytes, struct ws_error *err)
{
    int rc = next(j, '}', err);

    if (rc <= 0)
        return rc;
    if (peek(j) != '"')
        return unexpected(j, "a key", err);
    rc = ws_json_string(j, key, key_bytes, err);
    if (rc < 0)
        return rc;
    if (peek(j) != ':')
        return unexpected(j, "':'", err);
    j->at++;
    return 1;
}

int ws_json_element(struct ws_json *j, struct ws_error *err)
{
    return next(j, ']', err);
}

bool ws_json_is_null(struct ws_json *j)
{
    static const char word[] = "null";
    return peek(j) == 'n' && j->len - j->at >= strlen(word) &&
           memcmp(j->text + j->at, word, strlen(word)) == 0;
}

int ws_json_value(struct ws_json *j, size_t max_bytes, json_t **out, struct ws_error *err)
{
    json_error_t error;
    size_t window;

    assert(max_bytes > 0 && max_bytes < INT_MAX);
    if (peek(j) < 0)
        return unexpected(j, "a value", err);
    window = j->len - j->at < max_bytes ? j->len - j->at : max_bytes;
    /* When an allocation fails, jansson reports a bad token or, within a long string, drops a character
     * and goes on. Only the errno that malloc leaves shows it. */
    errno = 0;
    *out = json_loadb(j->text + j->at, window,
                      JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &error);
    if (errno == ENOMEM) {
        json_decref(*out);
        *out = NULL;
        return ws_error_set(err, ENOMEM, "out of memory while reading JSON");
    }
    if (*out) {
        assert(error.position > 0 && (size_t)error.position <= window);
        j->at += (size_t)error.position;
        return 0;
    }
    if (json_error_code(&error) == json_error_premature_end_of_input && window == max_bytes)
        return ws_error_set(err, EBADMSG, "the JSON value at byte %zu is longer than %zu bytes, the limit",
                            j->at, max_bytes);
    return ws_error_set(err, EBADMSG, "bad JSON at byte %zu: %s", j->at + (size_t)error.position, error.text);
}

/* A byte of a string that stands for itself. */
static bool is_plain(char c)
{
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
}

/* Copies a string of printable ASCII without escapes, which is what nearly all are: a manifest has one for each block.
 * False: it is another one, or does not fit, and nothing was read. */
static bool copy_plain(struct ws_json *j, char *out, size_t bytes)
{
    const char *from = j->text + j->at + 1;
    const size_t left = j->len - j->at - 1, most = left < bytes ? left : bytes;

    for (size_t n = 0; n < most; n++) {
        if (from[n] == '"') {
            memcpy(out, from, n);
            out[n] = '\0';
            j->at += n + 2;
            return true;
        }
        if (!is_plain(from[n]))
            return false;
    }
    return false;
}

int ws_json_string(struct ws_json *j, char *out, size_t bytes, struct ws_error *err)
{
    size_t start, length;
    json_t *value = NULL;
    int rc;

    if (peek(j) != '"')
        return unexpected(j, "a string", err);
    if (copy_plain(j, out, bytes))
        return 0;
    start = j->at;
    rc = ws_json_value(j, bytes * ESCAPED_BYTES + 2, &value, err);
    if (rc < 0)
        return rc;
    length = json_string_length(value);
    if (length < bytes)
        memcpy(out, json_string_value(value), length + 1);
    else
        rc = ws_error_set(err, EBADMSG,
                          "the string at byte %zu of the JSON has %zu bytes, more than the limit "
                          "of %zu",
                          start, length, bytes - 1);
    json_decref(value);
    return rc;
}

/* Reads a whole number of a few digits that something else than a number's text follows. False: it is another one, and
 * nothing was read. */
static bool read_short(struct ws_json *j, uint64_t *out)
{
    uint64_t value = 0;
    size_t at = j->at;

    while (at < j->len && at - j->at < SHORT_DIGITS && j->text[at] >= '0' && j->text[at] <= '9')
        value = value * 10 + (uint64_t)(j->text[at++] - '0');
    if (at == j->at || at == j->len || !strchr(",]} \t\r\n", j->text[at]) || !j->text[at] ||
        (j->text[j->at] == '0' && at - j->at > 1))
        return false;
    j->at = at;
    *out = value;
    return true;
}

int ws_json_uint(struct ws_json *j, uint64_t *out, struct ws_error *err)
{
    json_t *value = NULL;
    size_t start;
    int rc, c = peek(j);

    if (c >= 0 && read_short(j, out))
        return 0;
    start = j->at;
    if (c != '-' && (c < '0' || c > '9'))
        return unexpected(j, "a number", err);
    rc = ws_json_value(j, 32, &value, err); /* 2^63 has 19 digits */
    if (rc < 0)
        return rc;
    if (json_is_integer(value) && c != '-')
        *out = (uint64_t)json_integer_value(value);
    else
        rc = ws_error_set(err, EBADMSG, "the number at byte %zu of the JSON is no integer of 0 or more",
                          start);
    json_decref(value);
    return rc;
}

int ws_json_skip(struct ws_json *j, struct ws_error *err)
{
    json_t *value = NULL;
    int rc = ws_json_value(j, WS_MAX_JSON_VALUE, &value, err);

    if (rc == 0)
        json_decref(value);
    return rc;
}

int ws_json_finish(struct ws_json *j, struct ws_error *err)
{
    return peek(j) < 0 ? 0 : unexpected(j, "its end", err);
}

int ws_json_put_string(FILE *f, const char *s)
{
    size_t left = strlen(s), step, plain = 0;
    json_t *value;
    int rc;

    while (is_plain(s[plain]))
        plain++;
    if (plain == left)
        return fputc('"', f) == EOF || fwrite(s, 1, plain, f) != plain || fputc('"', f) == EOF ? -ENOMEM : 0;
    for (const char *p = s; left > 0; p += step, left -= step) {
        step = ws_utf8_length(p, left);
        if (step == 0)
            return -EINVAL;
    }
    value = json_string(s);
    if (!value)
        return -ENOMEM;
    rc = json_dumpf(value, f, JSON_ENCODE_ANY);
    json_decref(value);
    return rc < 0 ? -ENOMEM : 0;
}

int ws_json_flag(struct ws_json *j, bool *out, struct ws_error *err)
{
    json_t *value;
    int rc = ws_json_value(j, 64, &value, err);
    if (rc < 0)
        return rc;
    if (!json_is_boolean(value))
        rc = ws_error_set(err, EBADMSG, "it is neither true nor false");
    *out = json_is_true(value);
    json_decref(value);
    return rc;
}
