#include "transports/base/cpu_features.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef WS_HAS_VECTORS
#include <cpuid.h>

/* __builtin_cpu_supports does not know it in every compiler. */
static int has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

static enum ws_vector best(void)
{
#ifdef WS_HAS_VECTORS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return WS_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c())
        return WS_AVX2;
#endif
    return WS_PORTABLE;
}

enum ws_vector ws_cpu_vector(const char *variable)
{
    static const char *const names[] = {
        [WS_PORTABLE] = "portable", [WS_AVX2] = "avx2", [WS_AVX512] = "avx512"};
    const char *asked = variable ? getenv(variable) : NULL;
    for (enum ws_vector v = best(); v > WS_PORTABLE; v--)
        if (!asked || strcmp(asked, names[v]) == 0)
            return v;
    return WS_PORTABLE;
}

enum ws_vector ws_cpu_choose(struct ws_cpu_choice *choice)
{
    int found = atomic_load_explicit(&choice->found, memory_order_relaxed);
    if (!found) { /* several threads find the same */
        found = (int)ws_cpu_vector(choice->variable) + 1;
        atomic_store_explicit(&choice->found, found, memory_order_relaxed);
    }
    return (enum ws_vector)(found - 1);
}

unsigned ws_cpu_cores(unsigned most)
{
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    const unsigned cores = n > 0 ? (unsigned)n : 1;
    return most && cores > most ? most : cores;
}
