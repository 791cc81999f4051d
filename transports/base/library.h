/* Library: a shared library of another project that is opened at run time by a list of symbols, so that one binary
 * runs with and without it. Any thread. */
#ifndef WS_TRANSPORTS_BASE_LIBRARY_H
#define WS_TRANSPORTS_BASE_LIBRARY_H
#include "transports/base/error.h"
#include <stddef.h>

struct ws_library_symbol {
    const char *name;
    size_t at; /* offset of the pointer in the caller's structure of functions */
};

/* Loads library `name` with dlopen's `flags` and sets the functions' pointers in `out`. -ENOTSUP: it cannot be
 * loaded, and *missing is NULL; or it lacks the symbol *missing, and is closed again. err has dlopen's words. *handle:
 * for dlclose. */
WS_MUST_USE int ws_library_open(const char *name, int flags, const struct ws_library_symbol *symbols,
                                size_t n, void *out, void **handle, const char **missing,
                                struct ws_error *err);

#endif
