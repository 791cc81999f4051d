/* Cursor over JSON text: hands out one member or element after the other and lets jansson decode each
 * string, number and small value by itself, so that no tree of the whole text is ever built. A tree
 * takes 20 to 40 times the memory of its text, and the texts here are headers of 100,000 tensors and manifests of 262,144 hashes, from peers that are not trusted.
 *
 *     struct ws_json j;
 *     ws_json_start(&j, text, len);
 *     rc = ws_json_enter(&j, '{', err);
 *     while (rc == 0 && (rc = ws_json_member(&j, key, sizeof(key), err)) == 1)
 *         rc = strcmp(key, "size") == 0 ? ws_json_uint(&j, &size, err) : ws_json_skip(&j, err);
 *
 * Duplicate keys within one jansson value are refused here; those of an object that is walked are the
 * caller's to find. All functions return -EBADMSG with a sentence (and the byte) for bad JSON, or
 * -ENOMEM. A cursor belongs to one thread; the text is borrowed. */
#ifndef WS_TRANSPORTS_BASE_JSON_CURSOR_H
#define WS_TRANSPORTS_BASE_JSON_CURSOR_H
#include "transports/base/error.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct ws_json {
    const char *text;
    size_t len, at; /* at: the next byte */
    bool fresh;     /* just entered: no comma is due */
};

void ws_json_start(struct ws_json *j, const char *text, size_t len);
/* Steps into an object ('{') or an array ('['). */
WS_MUST_USE int ws_json_enter(struct ws_json *j, char open, struct ws_error *err);
/* The next member of an object: 1 with its key (at most key_bytes - 1 bytes), the value comes next;
 * 0 when the object has ended, which has then been stepped out of. */
WS_MUST_USE int ws_json_member(struct ws_json *j, char *key, size_t key_bytes, struct ws_error *err);
/* The same for an array. */
WS_MUST_USE int ws_json_element(struct ws_json *j, struct ws_error *err);
/* A string of at most `bytes` - 1 bytes (NUL ends it; a NUL inside is refused). */
WS_MUST_USE int ws_json_string(struct ws_json *j, char *out, size_t bytes, struct ws_error *err);
/* An integer, 0 to 2^63 - 1. */
WS_MUST_USE int ws_json_uint(struct ws_json *j, uint64_t *out, struct ws_error *err);
WS_MUST_USE int ws_json_flag(struct ws_json *j, bool *out, struct ws_error *err);
/* Is the value that follows null? It is not consumed, and begins at j->at. */
bool ws_json_is_null(struct ws_json *j);
/* Any value of at most max_bytes of text, decoded by jansson; new reference. */
WS_MUST_USE int ws_json_value(struct ws_json *j, size_t max_bytes, json_t **out, struct ws_error *err);
/* Steps over any value of at most WS_MAX_JSON_VALUE bytes, checking it. */
WS_MUST_USE int ws_json_skip(struct ws_json *j, struct ws_error *err);
/* After the outermost value: nothing but white space may follow. */
WS_MUST_USE int ws_json_finish(struct ws_json *j, struct ws_error *err);

/* The other direction: writes s as a JSON string. -EINVAL: it is no UTF-8; -ENOMEM. */
WS_MUST_USE int ws_json_put_string(FILE *f, const char *s);

#endif
