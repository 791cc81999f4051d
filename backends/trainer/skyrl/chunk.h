/* Chunk: parameters that are sent together, grouped by module, as SkyRL's weight extractors do it
 * (yield_module_grouped_chunks); where they lie in one packed buffer, and the copy into it. The contract is
 * in wsync.h. Pure functions over memory, but for the cursor of wsync_chunks_next. */
#ifndef WS_TRAINER_SKYRL_CHUNK_H
#define WS_TRAINER_SKYRL_CHUNK_H
#include "backends/trainer/wsync.h"
#include "transports/base/error.h"
#include <stdbool.h>

#define WS_MAX_PACK_ALIGNMENT (1UL << 20)
bool ws_pack_alignment_fits(uint64_t alignment); /* 0 or a power of two that is not too large */
/* Where a tensor begins in a packed buffer: the next place after `at`. element: its dtype's bytes. */
uint64_t ws_pack_place(uint64_t at, uint64_t alignment, uint64_t element);

#endif
