/* Release services: AstraFlow's inference services (service_notify.h) that a release tells of its models, by the
 * options --astraflow-notify, --astraflow-sender and --astraflow-model-id. */
#ifndef WS_MOUNT_HELPERS_COMMANDS_RELEASE_SERVICES_H
#define WS_MOUNT_HELPERS_COMMANDS_RELEASE_SERVICES_H
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/commands/service_notify.h"
#include "transports/protocol/source.h"
#include <jansson.h>
#include <stdbool.h>

#define RELEASE_MAX_SERVICES 64
#define RELEASE_MAX_TOLD     64

struct release_services {
    const char *urls[RELEASE_MAX_SERVICES];
    size_t n; /* 0: none is told */
    struct {
        const char *model; /* the agent's, of `models` */
        struct raas_news news;
    } told[RELEASE_MAX_TOLD];
    size_t n_told;
};

/* models: {MODEL: VERSION}, which outlives *out. Returns an exit status, with the error printed. */
int release_services_take(const struct cli_args *args, const json_t *models, struct release_services *out);
/* Receivers cannot request a version: they pull the newest, and would give it the number that they are sent. */
int release_services_check(struct ws_source *s, const struct release_services *to);
/* Model after model, since a service loads one at a time. seconds: left of all, since `start`; 0: a time of its own for
 * each. */
int release_services_tell(const struct release_services *to, uint64_t seconds, double start, bool quiet,
                          const volatile sig_atomic_t *stop);

#endif
