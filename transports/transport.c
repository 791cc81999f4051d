/* The registry of transports. */
#include "transports/transport.h"
#include "transports/dir/archive.h"
#include "transports/dir/dir.h"
#include "transports/fault.h"
#include "transports/ipc/ipc.h"
#include "transports/s3/place.h"
#include "transports/tcp/tcp.h"
#include "transports/ucx/ucx.h"
#include <assert.h>
#include <errno.h>
#include <string.h>

static const struct ws_transport_ops *const all[] = {&ws_tcp_ops,     &ws_ipc_ops, &ws_dir_ops,
                                                     &ws_archive_ops, &ws_ucx_ops, &ws_fault_ops};

static const struct ws_transport_ops *find(const char *url)
{
    if (strncmp(url, "dir:", 4) == 0 && ws_archive_exists(url + 4))
        return &ws_archive_ops;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        for (const char *const *s = all[i]->schemes; *s; s++)
            if (strncmp(url, *s, strlen(*s)) == 0)
                return all[i];
    return NULL;
}

int ws_source_open(const char *url, const struct ws_source_options *options, struct ws_source **out,
                   struct ws_error *err)
{
    assert(url && out);
    *out = NULL;
    if (strlen(url) > WS_MAX_URL)
        return ws_error_set(err, EINVAL, "a source is longer than %d bytes", WS_MAX_URL);
    const struct ws_transport_ops *ops = find(url);
    struct ws_s3_place place;
    if (!ops && ws_s3_place_parse(url, &place, err) == -ENOTSUP)
        return -ENOTSUP;
    if (!ops)
        return ws_error_set(
            err, EINVAL,
            "'%s' is no source; write http://HOST:PORT, https://HOST:PORT, unix:/PATH, dir:/PATH or "
            "s3://BUCKET/PREFIX",
            url);
    return ws_source_open_by(ops, url, options, out, err);
}
