#include "transports/base/machine.h"
#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

uint64_t ws_machine_hash(void)
{
    char id[64];
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, id, sizeof(id));

    if (fd >= 0)
        close(fd);
    return n > 0 ? XXH3_64bits(id, (size_t)n) : 0;
}
