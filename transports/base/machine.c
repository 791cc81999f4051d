#include "transports/base/machine.h"
#include "transports/base/clock.h"
#include "transports/base/json_text.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
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

json_t *ws_machine_facts(void)
{
    json_t *o = json_pack("{s:s,s:I}", "wsync", WS_VERSION, "now_us", (json_int_t)(ws_clock_day_ns() / 1000));
    struct utsname u;
    struct sysinfo memory;

    if (o && uname(&u) == 0)
        json_object_set_new(o, "kernel", ws_json_text(u.release));
    if (o && sysinfo(&memory) == 0) {
        const json_int_t unit = memory.mem_unit;
        json_object_set_new(o, "memory", json_integer((json_int_t)memory.totalram * unit));
        json_object_set_new(o, "memory_free", json_integer((json_int_t)memory.freeram * unit));
    }
    return o;
}
