/* What the stand-in is to be and to do wrong: WSYNC_FAKE_NCCL, words with commas between them.
 *
 *   version=22809       what ncclGetVersion says
 *   one_gpu=1           several ranks may be on one GPU, which NCCL refuses
 *   slow=RANK:MS        that rank's collectives take so much longer
 *   hang=RANK:N         that rank's collectives hang from the Nth on
 *   fail=NAME:FIRST:RESULT[:COUNT], die=NAME:N   as for the driver (fake_plan.c) */
#include "tests/fakes/config.h"
#include "tests/fakes/nccl_fake.h"
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static const char *const names[] = {
    "ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommFinalize", "ncclCommDestroy",
    "ncclCommAbort",  "ncclCommShrink",  "ncclCommGetAsyncError",  "ncclBroadcast",    "ncclAllReduce",
    "ncclGroupStart", "ncclGroupEnd",    "ncclCommInitRank"};
static struct config config = {.library = "libnccl.so.2",
                               .variable = "WSYNC_FAKE_NCCL",
                               .grammar = "tests/fakes/nccl_plan.c",
                               .names = names,
                               .n_names = sizeof(names) / sizeof(names[0]),
                               .result = ncclSystemError};
static struct nccl_plan plan = {.version = NCCL_VERSION_CODE, .slow_rank = -1, .hang_rank = -1};
static struct nccl_driver driver;

static bool take(const char *key, const char *value)
{
    const char *end;
    uint64_t n, more = 0;
    if (!config_number(value, &end, &n) || n > INT32_MAX)
        return false;
    bool pair = *end == ':' && config_number(end + 1, &end, &more) && more <= UINT32_MAX;
    if (*end)
        return false;
    if (!pair && !strcmp(key, "version"))
        plan.version = (int)n;
    else if (!pair && !strcmp(key, "one_gpu") && n <= 1)
        plan.one_gpu = n;
    else if (pair && !strcmp(key, "slow")) {
        plan.slow_rank = (int)n;
        plan.slow_ms = (unsigned)more;
    } else if (pair && !strcmp(key, "hang")) {
        plan.hang_rank = (int)n;
        plan.hang_at = (unsigned)more;
    } else {
        return false;
    }
    return true;
}

static void parse(void)
{
    config_read(&config, take);
}

const struct nccl_plan *nccl_plan(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, parse);
    return &plan;
}

ncclResult_t nccl_enter(const char *name)
{
    const struct config_rule *r;
    nccl_plan();
    for (size_t at = 0; (r = config_match(&config, name, &at));) {
        if (r->action == CONFIG_DIE)
            kill(getpid(), SIGKILL);
        if (r->action == CONFIG_FAIL)
            return (ncclResult_t)r->result;
    }
    return ncclSuccess;
}

/* By its soname, since the process may have opened it from any path. */
static void find_driver(void)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!lib)
        return;
    *(void **)&driver.device = dlsym(lib, "cuCtxGetDevice");
    *(void **)&driver.uuid = dlsym(lib, "cuDeviceGetUuid_v2");
    *(void **)&driver.host_work = dlsym(lib, "ws_fake_host_work");
    *(void **)&driver.at = dlsym(lib, "ws_fake_at");
}

const struct nccl_driver *nccl_driver(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_driver);
    return driver.at ? &driver : NULL;
}
