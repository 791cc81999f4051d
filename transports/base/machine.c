#include "transports/base/machine.h"
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#include <xxhash.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t hash;

static void read_id(void)
{
    char id[64];
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, id, sizeof(id));

    if (fd >= 0)
        close(fd);
    hash = n > 0 ? XXH3_64bits(id, (size_t)n) : 0;
}

/* Read once: callers have locks. */
uint64_t ws_machine_hash(void)
{
    (void)pthread_once(&once, read_id);
    return hash;
}
