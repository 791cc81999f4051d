/* RaaS: AstraFlow's inference services, told that a version exists. Each answers when its engine has loaded.
 */
#ifndef WS_MOUNT_HELPERS_COMMANDS_SERVICE_NOTIFY_H
#define WS_MOUNT_HELPERS_COMMANDS_SERVICE_NOTIFY_H
#include <signal.h>
#include <stddef.h>
#include <stdint.h>

struct raas_news {
    const char *model_id;
    uint64_t version;
    const char *sender; /* HOST:PORT of the agent's listener, as the services reach it */
};
/* POST /notify_version to each of the URLs, all at once, each waited for timeout_s seconds, or until *stop.
 * What fails is said on stderr. Returns how many have loaded it. */
size_t raas_notify(const char *const *urls, size_t n, const struct raas_news *news, unsigned timeout_s,
                   const volatile sig_atomic_t *stop);

#endif
