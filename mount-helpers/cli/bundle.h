/* Bundle: small texts as the files of one .tar.zst, which appears complete or not at all. */
#ifndef WS_MOUNT_HELPERS_CLI_BUNDLE_H
#define WS_MOUNT_HELPERS_CLI_BUNDLE_H
#include "transports/base/error.h"
#include "transports/base/vector.h"
#include <stddef.h>

#define BUNDLE_NAME_CHARS 99
#define BUNDLE_BYTES      (64UL << 20) /* of all of its files, which are in memory */

WS_VECTOR(bundle_bytes, char);
struct bundle {
    struct bundle_bytes tar;
};

/* Adds a file; name: up to 99 bytes, relative. -E2BIG: the bundle is full; -ENOMEM. */
WS_MUST_USE int bundle_add(struct bundle *b, const char *name, const char *text);
/* May it be written there? -EEXIST: what is there is a device, a folder or a link, which is not replaced. */
WS_MUST_USE int bundle_check(const char *path, struct ws_error *err);
/* Writes it to that path, mode 0600, by way of a file beside it that takes its name; a file that was there is replaced. */
WS_MUST_USE int bundle_write(struct bundle *b, const char *path, struct ws_error *err);
void bundle_reset(struct bundle *b);

#endif
