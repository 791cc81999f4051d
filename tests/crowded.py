"""Supervisors that find no room for another process just when their daemon dies."""
from preloaded import *

NO_ROOM = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
static int n;
pid_t fork(void)
{
    pid_t (*real)(void) = dlsym(RTLD_NEXT, "fork");
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    if (strcmp(name, "wsync-keeps") != 0 || n++ >= 3)
        return real();
    errno = EAGAIN;
    return -1;
}
"""


def crowded(kind):
    "a supervised process of that kind, of whose next daemon's start the first tries fail"
    return preloaded(kind, NO_ROOM)
