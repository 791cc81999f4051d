/* The delta's loops with AVX2: built with its compiler flags, called only where the processor has it. */
#if defined(__x86_64__) && !defined(WS_NO_VECTOR)
#include "transports/delta/block_vector.h"

const struct ws_delta_block_impl ws_delta_block_avx2 = WS_DELTA_BLOCK_IMPL("avx2");
#endif
