#include "transports/base/library.h"
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

int ws_library_open(const char *name, int flags, const struct ws_library_symbol *symbols, size_t n, void *out,
                    void **handle, const char **missing, struct ws_error *err)
{
    *missing = NULL;
    *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | flags);
    if (!*handle)
        return ws_error_set(err, ENOTSUP, "%s", dlerror());
    for (size_t i = 0; i < n; i++) {
        void *f = dlsym(*handle, symbols[i].name);
        memcpy((char *)out + symbols[i].at, &f, sizeof(f));
        if (f)
            continue;
        *missing = symbols[i].name;
        dlclose(*handle);
        return ws_error_set(err, ENOTSUP, "%s has no %s", name, *missing);
    }
    return 0;
}
