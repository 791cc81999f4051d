/* What the stand-in has and which failures it injects: WSYNC_FAKE_CUDA, words with commas between them.
 *
 *   devices=2 memory=256M driver=13000 peer=1 vmm=1 legacy=1 kernels=1
 *                       what there is (these are the defaults)
 *   register=BYTES      the most host memory that may be registered; 0: none at all
 *   delay=300           microseconds that work is late by at most, now and then; 0: never
 *   seed=7              of those delays
 *   fail=NAME:FIRST:RESULT[:COUNT]
 *                       calls of NAME from the FIRST on (COUNT of them) do nothing and give RESULT
 *   die=NAME:N          the process is killed at that call
 *   lost=NAME:N[:RESULT]
 *                       from that call on, every call of the context gives RESULT (700)
 *   fault=NAME:N        what that call puts into a stream breaks the context when its turn comes (700)
 *
 * A text that is not understood ends the process. */
#include "tests/fakes/config.h"
#include "tests/fakes/fake.h"
#include "transports/device/cuda_driver.h"
#include <signal.h>
#include <string.h>
#include <unistd.h>

static struct fake_plan plan = {.devices = 2,
                                .delay_us = 300,
                                .memory = 256UL << 20,
                                .seed = 1,
                                .register_bytes = UINT64_MAX,
                                .driver = 13000,
                                .peer = true,
                                .vmm = true,
                                .legacy = true,
                                .kernels = true};
static _Thread_local bool fault_next;

#define QUOTED(member, symbol) #symbol,
static const char *const names[] = {WS_CUDA_SYMBOLS(QUOTED) "cuLaunchHostFunc",
                                    "cuStreamQuery",
                                    "cuMemCreate",
                                    "cuMemGetAllocationGranularity",
                                    "cuCtxSynchronize",
                                    "cuDevicePrimaryCtxRelease_v2",
                                    "cuCtxGetCurrent",
                                    "cuCtxSetCurrent",
                                    "cuCtxGetDevice",
                                    "cuMemcpyDtoH_v2",
                                    "cuMemcpyHtoD_v2"};

static struct config config = {.library = "libcuda.so.1",
                               .variable = "WSYNC_FAKE_CUDA",
                               .grammar = "tests/fakes/fake_plan.c",
                               .names = names,
                               .n_names = sizeof(names) / sizeof(names[0]),
                               .result = CUDA_ERROR_ILLEGAL_ADDRESS};

static bool take(const char *word, const char *value)
{
    const char *end;
    uint64_t n;

    if (!config_number(value, &end, &n) || *end)
        return false;
    if (!strcmp(word, "devices") && n <= FAKE_DEVICES)
        plan.devices = (unsigned)n;
    else if (!strcmp(word, "memory"))
        plan.memory = n;
    else if (!strcmp(word, "driver") && n < INT32_MAX)
        plan.driver = (int)n;
    else if (!strcmp(word, "delay") && n < 10000000)
        plan.delay_us = (unsigned)n;
    else if (!strcmp(word, "seed"))
        plan.seed = n;
    else if (!strcmp(word, "register"))
        plan.register_bytes = n;
    else if (!strcmp(word, "peer") && n <= 1)
        plan.peer = n;
    else if (!strcmp(word, "vmm") && n <= 1)
        plan.vmm = n;
    else if (!strcmp(word, "legacy") && n <= 1)
        plan.legacy = n;
    else if (!strcmp(word, "kernels") && n <= 1)
        plan.kernels = n;
    else
        return false;
    return true;
}

static void parse(void)
{
    config_read(&config, take);
}

const struct fake_plan *fake_plan(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, parse);
    return &plan;
}

bool fake_take_fault(void)
{
    bool was = fault_next;
    fault_next = false;
    return was;
}

CUresult fake_injected(const char *name)
{
    const struct config_rule *r;
    CUcontext ctx = fake_context();

    fake_plan();
    fault_next = false;
    for (size_t at = 0; (r = config_match(&config, name, &at));) {
        switch (r->action) {
        case CONFIG_FAIL:
            return (CUresult)r->result;
        case CONFIG_DIE:
            kill(getpid(), SIGKILL);
            break;
        case CONFIG_LOST:
            pthread_mutex_lock(&fake_lock);
            if (ctx)
                fake_break(ctx, (CUresult)r->result);
            pthread_mutex_unlock(&fake_lock);
            break;
        case CONFIG_FAULT:
            fault_next = true;
            break;
        }
    }
    return CUDA_SUCCESS;
}
