/* Youngest: what an export remembers of each model: the signed time of the youngest version that `latest` led to
 * (switch/freshness.h says why). A small file keeps it over the end of the daemon:
 *
 *     wsync-signed 1
 *     1700000000000000000 actor      a line for each model
 *
 * One thread. */
#ifndef WS_FS_YOUNGEST_H
#define WS_FS_YOUNGEST_H
#include "transports/base/error.h"
#include <stdbool.h>
#include <stdint.h>

struct ws_youngest;
/* Reads the file; path NULL: there is none, and nothing is kept. The path is copied. -EINVAL: it is damaged, or of a
 * newer release: it is not known what `latest` led to. */
WS_MUST_USE int ws_youngest_open(struct ws_youngest **out, const char *path, struct ws_error *err);
void ws_youngest_free(struct ws_youngest *y); /* NULL is fine */
/* May `latest` lead to a version with this time? If it may, that is remembered; that it could not be written is
 * logged. false: an older one, or there is no room to tell. */
bool ws_youngest_take(struct ws_youngest *y, const char *model, uint64_t signed_ns);

#endif
