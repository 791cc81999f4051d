#include "fs/switch/freshness.h"
#include <errno.h>
#include <inttypes.h>

/* What was signed; 0: the version need not be. */
static uint64_t signed_ns(struct ws_version *v)
{
    const struct ws_manifest *m =
        ws_version_must_be_signed(v) && ws_version_has_manifest(v) ? ws_version_manifest(v, NULL) : NULL;

    return m ? m->created_ns : 0;
}

int ws_freshness_check(struct ws_control *c, struct ws_controller *ctl, struct ws_version *v,
                       struct ws_error *err)
{
    const uint64_t ns = signed_ns(v);
    uint64_t youngest;

    pthread_mutex_lock(&c->lock);
    youngest = ctl->signed_ns;
    pthread_mutex_unlock(&c->lock);
    if (!ws_version_must_be_signed(v) || ns >= youngest)
        return 0;
    return ws_error_set(err, EPERM,
                        "version %" PRIu64
                        " of %s is older than one that this mount had, by the time that was "
                        "signed: it is not followed to; echo %" PRIu64 " > version, if it is meant",
                        ws_version_number(v), ctl->name, ws_version_number(v));
}

void ws_freshness_record(struct ws_control *c, struct ws_controller *ctl, struct ws_version *v)
{
    const uint64_t ns = signed_ns(v);

    pthread_mutex_lock(&c->lock);
    if (ns > ctl->signed_ns)
        ctl->signed_ns = ns;
    pthread_mutex_unlock(&c->lock);
}
