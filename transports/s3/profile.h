/* Profile: what AWS's own files say: ~/.aws/credentials and ~/.aws/config, or what AWS_SHARED_CREDENTIALS_FILE and
 * AWS_CONFIG_FILE name. Any thread. */
#ifndef WS_TRANSPORTS_S3_PROFILE_H
#define WS_TRANSPORTS_S3_PROFILE_H
#include "transports/base/error.h"
#include "transports/s3/place.h"

#define WS_S3_ENDPOINT_CHARS 511

struct ws_s3_profile {
    char name[128];                          /* AWS_PROFILE, or "default" */
    char *key_id, *secret, *session;         /* secret memory; NULL: it has none */
    char region[WS_S3_REGION_CHARS + 1];     /* empty: none */
    char endpoint[WS_S3_ENDPOINT_CHARS + 1]; /* likewise */
    char other
        [32]; /* the key of a way to credentials that is not known here (role_arn, sso_session); or empty */
};

/* What is not there is left empty: -EINVAL only where AWS_PROFILE names what neither file has; -EACCES, -EBADMSG and
 * what else files fail with. The caller releases it. */
WS_MUST_USE int ws_s3_profile_read(struct ws_s3_profile *out, struct ws_error *err);
void ws_s3_profile_release(struct ws_s3_profile *p);

#endif
