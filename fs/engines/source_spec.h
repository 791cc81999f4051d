/* Source spec: a source as a mount and `add` name it: a URL, and behind one of HTTP the token that goes there and
 * nowhere else:
 *
 *     http://a:18861;token-file=/etc/wsync/a.token
 */
#ifndef WS_FS_ENGINES_SOURCE_SPEC_H
#define WS_FS_ENGINES_SOURCE_SPEC_H
#include "transports/base/error.h"
#include "transports/base/limits.h"
#include <stdbool.h>

struct ws_source_spec {
    char url[WS_MAX_URL + 1];
    const char *token_file; /* the end of the text that was parsed; NULL: none of its own */
};

/* -EINVAL: something else than an absolute path of a token file stands behind the URL; it is too long. */
WS_MUST_USE int ws_source_spec_parse(const char *text, struct ws_source_spec *out, struct ws_error *err);
/* Its own token, in secret memory, NULL where it has none. below: as in ws_token_read. */
WS_MUST_USE int ws_source_spec_token(const struct ws_source_spec *s, const char *below, char **out,
                                     struct ws_error *err);
/* Do two texts name the same URL? */
bool ws_source_spec_is_same(const char *text, const char *other);

#endif
