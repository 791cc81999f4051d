/* Which of several codes for the same bytes this processor runs best, and how many cores there are. */
#ifndef WS_TRANSPORTS_BASE_CPU_FEATURES_H
#define WS_TRANSPORTS_BASE_CPU_FEATURES_H
#include <stdatomic.h>

#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#define WS_HAS_VECTORS 1 /* those codes are compiled */
#endif

enum ws_vector { WS_PORTABLE, WS_AVX2, WS_AVX512 };
/* The best that can run here. In tests, the environment's `variable` (NULL: none) asks for one by its name,
 * "portable", "avx2" or "avx512"; what cannot run gives WS_PORTABLE. */
enum ws_vector ws_cpu_vector(const char *variable);

/* The same, found once: one such object for each set of codes. Thread safe. */
struct ws_cpu_choice {
    const char *variable;
    atomic_int found; /* 0: not yet; else one more than the ws_vector */
};
enum ws_vector ws_cpu_choose(struct ws_cpu_choice *choice);

/* The cores that are online, at least 1 and at most `most` (0: all of them). */
unsigned ws_cpu_cores(unsigned most);

#endif
