/* The fields of a request's head that a server has to understand: ranges and entity tags. Pure
 * functions. */
#ifndef WS_TRANSPORTS_HTTP_FIELDS_H
#define WS_TRANSPORTS_HTTP_FIELDS_H
#include <stdbool.h>
#include <stdint.h>

/* A Range header (or NULL) to [*begin, *end). 0: none, or one that may be ignored: the whole; 1: a part;
 * -ERANGE: outside. RFC 9110, section 14. */
int ws_http_range(const char *text, uint64_t size, uint64_t *begin, uint64_t *end);
/* Does an If-None-Match header (or NULL) name this entity tag (with its quotes)? RFC 9110, 13.1.2. */
bool ws_http_names_tag(const char *text, const char *tag);

#endif
