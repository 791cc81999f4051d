#include "mount-helpers/commands/pickle.h"
#include "transports/base/jansson_keys.h"
#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_STACK 256
#define MAX_MEMO  1024

/* --- writing --- */

static void write_text(FILE *f, const char *text, size_t n)
{
    uint32_t len = htole32((uint32_t)n);
    fputc('X', f);
    (void)!fwrite(&len, sizeof(len), 1, f);
    (void)!fwrite(text, 1, n, f);
}

static void write_number(FILE *f, json_int_t n)
{
    uint32_t small = htole32((uint32_t)n);
    uint64_t large = htole64((uint64_t)n);
    if (n >= INT32_MIN && n <= INT32_MAX) {
        fputc('J', f);
        (void)!fwrite(&small, sizeof(small), 1, f);
    } else {
        fputs("\x8a\x08", f);
        (void)!fwrite(&large, sizeof(large), 1, f);
    }
}

char *pickle_write(const json_t *object, size_t *n_bytes)
{
    char *bytes = NULL;
    const char *key;
    json_t *value;
    bool good = true;
    FILE *f = open_memstream(&bytes, n_bytes);
    if (!f)
        return NULL;
    fputs("\x80\x02}(", f);
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        write_text(f, key, strlen(key));
        if (json_is_string(value))
            write_text(f, json_string_value(value), json_string_length(value));
        else if (json_is_integer(value))
            write_number(f, json_integer_value(value));
        else
            good = false;
    }
    fputs("u.", f);
    if (fclose(f) != 0 || !good) {
        free(bytes);
        return NULL;
    }
    return bytes;
}

/* --- reading --- */

struct reader {
    const unsigned char *at, *end;
    json_t *stack[MAX_STACK]; /* NULL: a mark */
    size_t n_stack;
    json_t *memo[MAX_MEMO]; /* borrowed from the stack at that time, with a reference */
    size_t n_memo;
};

static bool take(struct reader *r, void *out, size_t n)
{
    if ((size_t)(r->end - r->at) < n)
        return false;
    memcpy(out, r->at, n);
    r->at += n;
    return true;
}

static bool push(struct reader *r, json_t *value) /* steals it */
{
    if (!value || r->n_stack == MAX_STACK) {
        json_decref(value);
        return false;
    }
    r->stack[r->n_stack++] = value;
    return true;
}

static json_t *top(const struct reader *r)
{
    return r->n_stack ? r->stack[r->n_stack - 1] : NULL;
}

/* A length of 1, 4 or 8 bytes, then text. */
static bool push_text(struct reader *r, size_t width)
{
    unsigned char raw[8] = {0};
    uint64_t n = 0;
    if (!take(r, raw, width))
        return false;
    memcpy(&n, raw, 8);
    n = le64toh(n);
    if (n > (uint64_t)(r->end - r->at))
        return false;
    r->at += n;
    return push(r, json_stringn((const char *)r->at - n, n)); /* NULL where it is no UTF-8 */
}

/* A two's complement number of n bytes. */
static bool push_number(struct reader *r, size_t n, bool is_signed)
{
    unsigned char raw[8] = {0};
    uint64_t v;
    if (n > 8 || !take(r, raw, n))
        return false;
    if (is_signed && n && raw[n - 1] & 0x80)
        memset(raw + n, 0xff, 8 - n);
    memcpy(&v, raw, 8);
    return push(r, json_integer((json_int_t)le64toh(v)));
}

static bool push_float(struct reader *r)
{
    uint64_t raw;
    double d;
    if (!take(r, &raw, sizeof(raw)))
        return false;
    raw = be64toh(raw);
    memcpy(&d, &raw, sizeof(d));
    json_t *value = json_real(d);
    return push(r, value ? value : json_null()); /* JSON has no infinity */
}

static bool memoize(struct reader *r, size_t at)
{
    if (at >= MAX_MEMO || !top(r))
        return false;
    json_decref(r->memo[at]);
    r->memo[at] = json_incref(top(r));
    if (at >= r->n_memo)
        r->n_memo = at + 1;
    return true;
}

static bool remember(struct reader *r, size_t width)
{
    uint32_t at = 0;
    unsigned char raw[4] = {0};
    if (!take(r, raw, width))
        return false;
    memcpy(&at, raw, 4);
    at = le32toh(at);
    return at < r->n_memo && r->memo[at] && push(r, json_incref(r->memo[at]));
}

/* The index after the topmost mark, which is there, else 0. */
static size_t after_mark(const struct reader *r)
{
    size_t at = r->n_stack;
    while (at > 0 && r->stack[at - 1])
        at--;
    return at;
}

static void drop_to(struct reader *r, size_t n)
{
    while (r->n_stack > n)
        json_decref(r->stack[--r->n_stack]);
}

/* Puts [from, n_stack) into the collection at `into`. A thing cannot be put into itself: it would never be
 * freed, or printed. */
static bool put_in(struct reader *r, size_t from, size_t into, bool dict)
{
    json_t *to = into < r->n_stack ? r->stack[into] : NULL;
    bool good = dict ? json_is_object(to) && (r->n_stack - from) % 2 == 0 : json_is_array(to);
    for (size_t i = from; good && i < r->n_stack; i += dict ? 2 : 1) {
        json_t *value = r->stack[i + (dict ? 1 : 0)];
        if ((json_is_object(value) || json_is_array(value)) && value->refcount > 2)
            good = false; /* shared: it could be a circle */
        else if (dict)
            good =
                json_is_string(r->stack[i]) && json_object_setn(to, json_string_value(r->stack[i]),
                                                                json_string_length(r->stack[i]), value) == 0;
        else
            good = json_array_append(to, value) == 0;
    }
    return good;
}

static bool put_marked(struct reader *r, bool dict)
{
    size_t from = after_mark(r);
    if (from < 2 || !put_in(r, from, from - 2, dict))
        return false;
    drop_to(r, from);
    r->n_stack--; /* the mark */
    return true;
}

static bool put_top(struct reader *r, size_t n, bool dict)
{
    if (r->n_stack < n + 1 || !put_in(r, r->n_stack - n, r->n_stack - n - 1, dict))
        return false;
    drop_to(r, r->n_stack - n);
    return true;
}

/* Tuples become lists. */
static bool make_tuple(struct reader *r, size_t from, bool marked)
{
    json_t *list = json_array();
    bool good = list != NULL;
    for (size_t i = from; good && i < r->n_stack; i++)
        good = r->stack[i] && json_array_append(list, r->stack[i]) == 0;
    if (!good) {
        json_decref(list);
        return false;
    }
    drop_to(r, from);
    r->n_stack -= marked;
    return push(r, list);
}

static bool step(struct reader *r, unsigned char code)
{
    unsigned char n = 0;
    uint64_t ignored;
    switch (code) {
    case 0x80: /* PROTO */
        return take(r, &n, 1);
    case 0x95: /* FRAME */
        return take(r, &ignored, 8);
    case '}':
        return push(r, json_object());
    case ']':
        return push(r, json_array());
    case '(':
        if (r->n_stack == MAX_STACK)
            return false;
        r->stack[r->n_stack++] = NULL;
        return true;
    case 0x8c:
        return push_text(r, 1);
    case 'X':
        return push_text(r, 4);
    case 0x8d:
        return push_text(r, 8);
    case 'K':
        return push_number(r, 1, false);
    case 'M':
        return push_number(r, 2, false);
    case 'J':
        return push_number(r, 4, true);
    case 0x8a:
        return take(r, &n, 1) && push_number(r, n, true);
    case 'G':
        return push_float(r);
    case 'N':
        return push(r, json_null());
    case 0x88:
        return push(r, json_true());
    case 0x89:
        return push(r, json_false());
    case 0x94: /* MEMOIZE */
        return memoize(r, r->n_memo);
    case 'q':
        return take(r, &n, 1) && memoize(r, n);
    case 'h':
        return remember(r, 1);
    case 'j':
        return remember(r, 4);
    case 's':
        return put_top(r, 2, true);
    case 'a':
        return put_top(r, 1, false);
    case 'u':
        return put_marked(r, true);
    case 'e':
        return put_marked(r, false);
    case ')':
        return push(r, json_array());
    case 't':
        return after_mark(r) > 0 && make_tuple(r, after_mark(r), true);
    case 0x85:
    case 0x86:
    case 0x87:
        return r->n_stack >= (size_t)(code - 0x84) &&
               make_tuple(r, r->n_stack - (size_t)(code - 0x84), false);
    default:
        return false;
    }
}

json_t *pickle_read(const void *bytes, size_t n_bytes)
{
    struct reader *r = calloc(1, sizeof(*r));
    json_t *out = NULL;
    bool good = r && n_bytes <= PICKLE_MAX_BYTES;
    if (good) {
        r->at = bytes;
        r->end = r->at + n_bytes;
    }
    while (good && r->at < r->end && *r->at != '.') {
        unsigned char code = *r->at++;
        good = step(r, code);
    }
    if (good && r->at < r->end && r->n_stack == 1 && r->stack[0])
        out = json_incref(r->stack[0]);
    if (r) {
        drop_to(r, 0);
        for (size_t i = 0; i < r->n_memo; i++)
            json_decref(r->memo[i]);
    }
    free(r);
    return out;
}
