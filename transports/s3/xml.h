/* XML of S3's replies: what stands between two tags. S3's replies are flat, without attributes on what is read here,
 * and what comes instead of them (a proxy's page) lacks the tags. Pure functions. */
#ifndef WS_TRANSPORTS_S3_XML_H
#define WS_TRANSPORTS_S3_XML_H
#include <stdbool.h>
#include <stddef.h>

/* The text of the first element of that name in [*at, end), its entities decoded; *at is moved behind it. end NULL: to
 * the end of the text. False: there is none, or it has no room; *at stays. */
bool ws_s3_xml_next(const char **at, const char *end, const char *name, char *out, size_t room);
/* The same for one alone; out is empty where there is none. */
bool ws_s3_xml_get(const char *text, const char *name, char *out, size_t room);
bool ws_s3_xml_has(const char *text, const char *name); /* does an element of that name begin in it? */
/* %41 -> A, in place: keys of a listing. False: a code that is none, or a NUL. */
bool ws_s3_xml_decode_url(char *text);

#endif
