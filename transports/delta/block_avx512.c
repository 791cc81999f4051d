/* The delta's loops with AVX-512: built with its compiler flags, called only where the processor has it. */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#include "transports/delta/block_vector.h"

const struct ws_delta_block_impl ws_delta_block_avx512 = WS_DELTA_BLOCK_IMPL("avx512");
#endif
