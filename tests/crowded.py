"""Supervisors that find no room for another process just when their daemon dies."""
from world import *

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
    if SANITIZER:
        pytest.skip("a library cannot be loaded before the sanitizer's: not under a sanitizer")
    source, library = TESTDIR + "/no_room.c", TESTDIR + "/no_room.so"
    with open(source, "w") as f:
        f.write(NO_ROOM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return type("Crowded", (kind,), {"prefix": ("env", f"LD_PRELOAD={library}")})
