/* Text that came from outside, made fit for a log line, an error sentence and JSON. Pure functions,
 * callable from any thread. */
#ifndef WS_TRANSPORTS_BASE_TEXT_H
#define WS_TRANSPORTS_BASE_TEXT_H
#include <stddef.h>
#include <stdint.h>

/* Length of the valid UTF-8 sequence (shortest form, no surrogates) that begins at s and lies within
 * n bytes; 0 when there is none. NUL counts as a character. */
size_t ws_utf8_length(const char *s, size_t n);

/* Makes text one printable line in place: white space other than a space becomes a space, other
 * control characters, those that turn the direction of a text, and bytes that are no UTF-8 become '?'. */
void ws_text_clean(char *text);

/* The decimal number at *at, which is moved past it. -EINVAL: no digit there, or more than 64 bits. */
int ws_text_digits(const char **at, uint64_t *out);
/* The same where the whole text is the number. */
int ws_text_u64(const char *text, uint64_t *out);

/* A hash as we write it: 16 lower-case hex digits, nothing else. -EINVAL; NULL is none. */
#define WS_HASH_DIGITS 16
int ws_text_hash(const char *text, uint64_t *out);
/* The reverse, without a NUL: a manifest has one for each block. */
void ws_text_put_hash(uint64_t hash, char out[WS_HASH_DIGITS]);
/* 2 * n random hex digits and a NUL. -EIO. */
int ws_text_random(char *out, size_t n);

#endif
