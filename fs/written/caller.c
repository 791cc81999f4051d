#include "fs/written/caller.h"
#include <linux/capability.h>
#include <stdbool.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel takes a thread's rights over files away when it makes files as an account that is not root. They are still permitted. */
static void take_rights_back(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];

    if (syscall(SYS_capget, &header, data) < 0)
        return;
    for (int i = 0; i < 2; i++)
        data[i].effective = data[i].permitted;
    (void)syscall(SYS_capset, &header, data);
}

void written_be_caller(uid_t uid, gid_t gid)
{
    if (geteuid() != 0)
        return;
    (void)setfsgid(gid);
    (void)setfsuid(uid);
    take_rights_back();
}

void written_be_self(void)
{
    if (geteuid() != 0)
        return;
    (void)setfsuid(geteuid());
    (void)setfsgid(getegid());
}
