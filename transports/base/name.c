/* Names become paths here and nowhere else. */
#include "transports/base/name.h"
#include "transports/base/text.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define KEPT_BYTES 200 /* of a name that is too long; then "%~" and 16 digits */

/* Length of the piece of the name at p: one character of UTF-8, or one byte that is none. *encode:
 * it must be written as %XX. A byte that is no UTF-8 cannot come from a safetensors header; a caller
 * that has one all the same gets a name that every tool can print. */
static size_t piece(const char *p, size_t left, bool first, bool *encode)
{
    unsigned char c = (unsigned char)*p;
    size_t length = ws_utf8_length(p, left);

    *encode = length == 0 || c < ' ' || c == 0x7F || c == '/' || c == '%' || (first && c == '.');
    return length == 0 ? 1 : length;
}

/* How many bytes at the begin of the name stand for themselves as a file's, as far as one look at each tells. */
static size_t plain_bytes(const char *name)
{
    size_t n = 0;

    for (; name[n] >= ' ' && name[n] < 0x7F && name[n] != '/' && name[n] != '%'; n++)
        ;
    return name[0] == '.' ? 0 : n;
}

const char *ws_name_as_file(const char *name, char out[WS_MAX_NAME + 1])
{
    const size_t n = plain_bytes(name);

    if (n > 0 && n <= WS_MAX_NAME && !name[n])
        return name;
    ws_name_to_file(name, out);
    return out;
}

void ws_name_to_file(const char *name, char out[WS_MAX_NAME + 1])
{
    static const char hex[] = "0123456789ABCDEF";
    size_t length = strlen(name);
    size_t used = 0, kept = 0; /* kept: the longest whole prefix within KEPT_BYTES */
    size_t step;

    assert(length > 0);
    for (size_t i = 0; i < length; i += step) {
        unsigned char c = (unsigned char)name[i];
        bool encode;
        size_t wide;

        step = piece(name + i, length - i, i == 0, &encode);
        wide = encode ? 3 : step;
        if (used + wide > WS_MAX_NAME) {
            snprintf(out + kept, WS_MAX_NAME + 1 - kept, "%%~%016llx",
                     (unsigned long long)XXH3_64bits(name, length));
            return;
        }
        if (encode) {
            out[used] = '%';
            out[used + 1] = hex[c >> 4];
            out[used + 2] = hex[c & 15];
        } else {
            memcpy(out + used, name + i, step);
        }
        used += wide;
        if (used <= KEPT_BYTES)
            kept = used;
    }
    out[used] = '\0';
}

bool ws_name_is_safe(const char *name)
{
    size_t length = strnlen(name, WS_MAX_NAME + 1);
    size_t step;

    if (length == 0 || length > WS_MAX_NAME)
        return false;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return false;
    for (const char *p = name; length > 0; p += step, length -= step) {
        unsigned char c = (unsigned char)*p;
        step = ws_utf8_length(p, length);
        if (step == 0 || c < ' ' || c == 0x7F || c == '/')
            return false;
    }
    return true;
}

bool ws_name_matches_mount(const char *name, const char *mount_id)
{
    size_t n = strlen(name);
    return n && strncmp(mount_id, name, n) == 0 && (mount_id[n] == 0 || mount_id[n] == ':');
}

static bool is_plain(const char *name)
{
    /* files of a mount's top folder, and paths of the API that a model's would hide */
    static const char *const reserved[] = {"ctl",    "status", "events",  "metrics", "last_error",
                                           "models", "local",  "release", "releases"};
    for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++)
        if (strcmp(name, reserved[i]) == 0)
            return false;
    return ws_name_is_safe(name) && name[0] != '.' && !strpbrk(name, "@%");
}

bool ws_name_is_view(const char *name, char *base, const char **recipe)
{
    char model[WS_MAX_NAME + 1];
    const char *at = strchr(name, '@'), *p;
    if (!at || strlen(name) > WS_MAX_NAME)
        return false;
    memcpy(model, name, (size_t)(at - name));
    model[at - name] = '\0';
    for (p = at + 1; (*p >= 'a' && *p <= 'z') || (p > at + 1 && ((*p >= '0' && *p <= '9') || *p == '-')); p++)
        ;
    if (!is_plain(model) || p == at + 1 || *p)
        return false;
    if (base)
        memcpy(base, model, strlen(model) + 1);
    if (recipe)
        *recipe = at + 1;
    return true;
}

bool ws_name_is_model(const char *name)
{
    return is_plain(name) || ws_name_is_view(name, NULL, NULL);
}

static bool read_count(const char **at, unsigned *out)
{
    unsigned n = 0;
    const char *p = *at;
    if (*p == '0' && p[1] >= '0' && p[1] <= '9')
        return false; /* one part, one name */
    for (; *p >= '0' && *p <= '9' && n <= WS_MAX_NODE_PARTS; p++)
        n = n * 10 + (unsigned)(*p - '0');
    if (p == *at || n > WS_MAX_NODE_PARTS)
        return false;
    *at = p;
    *out = n;
    return true;
}

bool ws_name_is_node_part(const char *name, char *base, unsigned *index, unsigned *count)
{
    char model[WS_MAX_NAME + 1];
    const char *at = strrchr(name, '@');
    unsigned i, n;
    if (!at || at == name || strlen(name) > WS_MAX_NAME)
        return false;
    memcpy(model, name, (size_t)(at - name));
    model[at - name] = '\0';
    at++;
    if (!is_plain(model) || !read_count(&at, &i) || *at++ != '.' || !read_count(&at, &n) || *at || n < 2 ||
        i >= n)
        return false;
    if (base)
        memcpy(base, model, strlen(model) + 1);
    if (index)
        *index = i;
    if (count)
        *count = n;
    return true;
}

bool ws_name_is_offered(const char *name)
{
    return ws_name_is_model(name) || ws_name_is_node_part(name, NULL, NULL, NULL);
}

bool ws_name_is_file(const char *name)
{
    return ws_name_is_safe(name) && name[0] != '.' && strcmp(name, "tensors") != 0;
}
