/* The stand-in driver for its own tests: opened in a child process, since its configuration is read once.
 * cmocka does not work in a child, so there are separate assertions, which end it. */
#ifndef WS_TESTS_FAKES_OPENED_H
#define WS_TESTS_FAKES_OPENED_H
#include "transports/device/cuda_driver.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MORE_SYMBOLS(X)                                                                                      \
    X(host_function, cuLaunchHostFunc)                                                                       \
    X(stream_query, cuStreamQuery)                                                                           \
    X(vmm_create, cuMemCreate)                                                                               \
    X(vmm_granularity, cuMemGetAllocationGranularity)                                                        \
    X(ctx_synchronize, cuCtxSynchronize)                                                                     \
    X(primary_release, cuDevicePrimaryCtxRelease_v2)                                                         \
    X(ctx_current, cuCtxGetCurrent)                                                                          \
    X(from_device, cuMemcpyDtoH_v2)                                                                          \
    X(to_device, cuMemcpyHtoD_v2)

struct opened {
#define MEMBER(member, symbol) __typeof__(&symbol) member;
    WS_CUDA_SYMBOLS(MEMBER)
    MORE_SYMBOLS(MEMBER)
#undef MEMBER
    CUcontext ctx; /* of device 0, current */
};

#define CHECK(cond)                                                                                          \
    do {                                                                                                     \
        if (!(cond)) {                                                                                       \
            fprintf(stderr, "# %s:%d: %s\n", __FILE__, __LINE__, #cond);                                     \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)
#define GIVES(result, call)                                                                                  \
    do {                                                                                                     \
        int gave = (int)(call);                                                                              \
        if (gave != (int)(result)) {                                                                         \
            fprintf(stderr, "# %s:%d: %s gave %d\n", __FILE__, __LINE__, #call, gave);                       \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)
#define OK(call) GIVES(0, call)

static inline void *open_fake(const char *name)
{
    const char *build = getenv("BUILD");
    char path[4096];
    snprintf(path, sizeof(path), "%s/tests/fakes/%s", build ? build : "build", name);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        fprintf(stderr, "# %s\n", dlerror());
    CHECK(lib);
    return lib;
}

/* The functions alone. */
static inline void load_driver(struct opened *d, const char *config)
{
    setenv("WSYNC_FAKE_CUDA", config, 1);
    void *lib = open_fake("libcuda.so.1");
#define LOAD(member, symbol)                                                                                 \
    *(void **)&d->member = dlsym(lib, #symbol);                                                              \
    CHECK(d->member);
    WS_CUDA_SYMBOLS(LOAD)
    MORE_SYMBOLS(LOAD)
#undef LOAD
}

static inline void open_driver(struct opened *d, const char *config)
{
    load_driver(d, config);
    OK(d->init(0));
    OK(d->primary_retain(&d->ctx, 0));
    OK(d->ctx_push(d->ctx));
}

/* Runs it in a child process; returns its status, as waitpid does. */
static inline int in_child(void (*fn)(void))
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        fn();
        exit(0);
    }
    return pid < 0 || waitpid(pid, &status, 0) != pid ? -1 : status;
}

#endif
