#include "transports/dir/archive_store.h"
#include "transports/s3/place.h"
#include <errno.h>

/* A folder called "x:" would have to be one on purpose. */
static bool has_scheme(const char *root)
{
    const char *slashes = strstr(root, "://");
    return slashes && slashes > root && !memchr(root, '/', (size_t)(slashes - root));
}

int ws_archive_store_open(struct ws_archive_store **out, const char *root,
                          const struct ws_archive_store_options *options, struct ws_error *err)
{
    static const struct ws_archive_store_options none;
    const bool is_bucket = has_scheme(root);
    if (strlen(root) >= WS_ARCHIVE_ROOT_BYTES)
        return ws_error_set(err, ENAMETOOLONG, "the path of an archive has at most %d bytes",
                            WS_ARCHIVE_ROOT_BYTES - 1);
    return (is_bucket ? &ws_archive_bucket_ops : &ws_archive_folder_ops)
        ->open(root, options ? options : &none, out, err);
}

void ws_archive_store_close(struct ws_archive_store *s)
{
    if (s)
        s->ops->close(s);
}
