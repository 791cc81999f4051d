#include "fs/fuse/exclusions.h"
#include "transports/base/name.h"
#include "transports/memory/region.h"
#include <errno.h>
#include <string.h>

int ws_exclusions_derive(const struct ws_mount_options *o, struct ws_error *err)
{
    if (o->n_derive && o->store.copies != WS_COPIES_TWO)
        return ws_error_set(err, EINVAL,
                            "the mount options derive and copies=%s exclude each other: a view is made anew "
                            "beside the version before; leave copies out, or have another mount make it (-o "
                            "derive=,serve=) and mount that with copies=%s",
                            ws_copies_name(o->store.copies), ws_copies_name(o->store.copies));
    return 0;
}

/* Is a view to be made of a model of which there is only a part? Another mount's view of the same name would have other
 * bytes. */
static const char *find_narrowed(const struct ws_mount_options *o)
{
    char base[WS_MAX_NAME + 1];
    const char *found = NULL;

    for (size_t d = 0; d < o->n_derive; d++)
        for (size_t i = 0; i < o->n_needs && ws_name_is_view(o->derive[d], base, NULL); i++) {
            const size_t n = strcspn(o->needs[i], "=;");
            if (o->needs[i][n] != '=' || (strlen(base) == n && strncmp(base, o->needs[i], n) == 0))
                found = o->derive[d];
        }
    return found;
}

static bool learns(const struct ws_mount_options *o)
{
    bool learns = false;

    for (size_t i = 0; i < o->n_needs; i++) {
        const size_t n = strcspn(o->needs[i], "=;");
        learns = learns || strcmp(o->needs[i] + (o->needs[i][n] == '=' ? n + 1 : 0), "learn") == 0;
    }
    return learns;
}

int ws_exclusions_needs(const struct ws_mount_options *o, struct ws_error *err)
{
    const char *view = find_narrowed(o);

    if (learns(o) && o->store.copies != WS_COPIES_TWO)
        return ws_error_set(err, EINVAL,
                            "the mount options need=learn and copies=%s exclude each other: what was not "
                            "read of a version is not "
                            "here, so there is no way back to it; leave copies out, or write patterns",
                            ws_copies_name(o->store.copies));
    if (o->n_needs && o->serve.listen)
        return ws_error_set(
            err, EINVAL,
            "the mount options need and serve exclude each other: a mount that has only some tensors of a "
            "version cannot give others the version; have them mount its source");
    if (view)
        return ws_error_set(
            err, EINVAL,
            "the mount options need and derive=%s exclude each other: the view is made of the whole version; "
            "have another mount or the agent make it",
            view);
    return 0;
}

int ws_exclusions_copies(const struct ws_mount_options *o, struct ws_error *err)
{
    const char *copies = ws_copies_name(o->store.copies);
    if (o->store.copies == WS_COPIES_TWO)
        return 0;
    if (o->reads == WS_READS_LINK)
        return ws_error_set(
            err, EINVAL,
            "the mount options copies=%s and reads=link exclude each other: what is read by a link is opened "
            "without the daemon, which could not keep it from being patched; use reads=auto",
            copies);
    if (o->serve.listen)
        return ws_error_set(
            err, EINVAL,
            "the mount options copies=%s and serve exclude each other: other mounts read the version before "
            "while this one takes the next; serve with copies=2",
            copies);
    if (!ws_region_can_renew())
        return ws_error_set(
            err, ENOTSUP,
            "copies=%s does not work on this machine, whose pages are not of 4 KiB: use copies=2", copies);
    return 0;
}

int ws_exclusions_topology(const struct ws_mount_options *o, struct ws_error *err)
{
    const char *name = o->rack ? "rack" : o->peer_token ? "peer-token-file" : NULL;
    if (o->asks_parents || !name)
        return 0;
    return ws_error_set(
        err, EINVAL,
        "the mount option %s is for trees of mounts, and topology=auto is not given: add that, "
        "or leave %s out",
        name, name);
}
