/* What the stand-in is told to be and to do wrong: WSYNC_FAKE_CUDA, words with commas between them.
 *
 *   devices=2 memory=256M driver=13000 peer=1 vmm=1 legacy=1 kernels=1   what there is (these are the
 * defaults) register=BYTES      the most host memory that may be registered; 0: none at all delay=300
 * microseconds that work is late by at most, now and then; 0: never seed=7              of those delays
 *   fail=NAME:FIRST:RESULT[:COUNT]   calls of NAME from the FIRST on (COUNT of them) do nothing and give
 * RESULT die=NAME:N          the process is killed at that call lost=NAME:N[:RESULT]   from that call on,
 * every call of the context gives RESULT (700) fault=NAME:N        what that call puts into a stream breaks
 * the context when its turn comes (700)
 *
 * A text that is not understood ends the process. */
#include "tests/fakes/fake.h"
#include "transports/cuda.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RULES 16

enum deed { FAIL, DIE, LOST, FAULT };

struct rule {
    const char *name;
    enum deed deed;
    unsigned first, count;
    CUresult result;
    atomic_uint calls;
};

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
static struct rule rules[RULES];
static size_t n_rules;
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

static const char *known_name(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strlen(names[i]) == len && !memcmp(names[i], name, len))
            return names[i];
    return NULL;
}

/* A number, with K, M or G behind it; what follows it in *end. */
static bool number(const char *s, const char **end, uint64_t *out)
{
    static const char units[] = "KMG";
    char *stop;
    if (*s < '0' || *s > '9')
        return false;
    *out = strtoull(s, &stop, 0);
    const char *unit = *stop ? strchr(units, *stop) : NULL;
    if (unit) {
        *out <<= 10 * (unit - units + 1);
        stop++;
    }
    *end = stop;
    return true;
}

/* NAME and up to three numbers, a colon before each. */
static bool parse_rule(enum deed deed, const char *s)
{
    size_t len = strcspn(s, ":");
    uint64_t v[3];
    size_t n = 0;
    struct rule *r = &rules[n_rules];

    r->name = known_name(s, len);
    for (s += len; n < 3 && *s == ':'; n++)
        if (!number(s + 1, &s, &v[n]))
            return false;
    if (!r->name || *s || n < 1 || v[0] < 1 || n_rules == RULES - 1 || (deed == FAIL && n < 2))
        return false;
    r->deed = deed;
    r->first = (unsigned)v[0];
    r->result = n > 1 ? (CUresult)v[1] : CUDA_ERROR_ILLEGAL_ADDRESS;
    r->count = n > 2 ? (unsigned)v[2] : deed == FAIL ? UINT32_MAX : 1;
    n_rules++;
    return true;
}

static bool parse_word(char *word)
{
    static const char *const deeds[] = {"fail", "die", "lost", "fault"};
    char *value = strchr(word, '=');
    const char *end;
    uint64_t n;

    if (!value)
        return false;
    *value++ = '\0';
    for (size_t i = 0; i < sizeof(deeds) / sizeof(deeds[0]); i++)
        if (!strcmp(word, deeds[i]))
            return parse_rule((enum deed)i, value);
    if (!number(value, &end, &n) || *end)
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
    const char *text = getenv("WSYNC_FAKE_CUDA");
    char *words = strdup(text ? text : ""), *rest = words, *word;

    while (words && (word = strsep(&rest, ",")))
        if (*word && !parse_word(word)) {
            fprintf(stderr,
                    "libcuda.so.1 (stand-in): WSYNC_FAKE_CUDA='%s': '%s' and what follows is not understood; "
                    "tests/fakes/fake_plan.c has the grammar\n",
                    text, word);
            _exit(2);
        }
    free(words);
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
    fake_plan();
    fault_next = false;
    for (size_t i = 0; i < n_rules; i++) {
        struct rule *r = &rules[i];
        if (strcmp(r->name, name))
            continue;
        unsigned call = atomic_fetch_add(&r->calls, 1) + 1;
        if (call < r->first || call - r->first >= r->count)
            continue;
        CUcontext ctx = fake_context();
        switch (r->deed) {
        case FAIL:
            return r->result;
        case DIE:
            kill(getpid(), SIGKILL);
            break;
        case LOST:
            pthread_mutex_lock(&fake_lock);
            if (ctx)
                fake_break(ctx, r->result);
            pthread_mutex_unlock(&fake_lock);
            break;
        case FAULT:
            fault_next = true;
            break;
        }
    }
    return CUDA_SUCCESS;
}
