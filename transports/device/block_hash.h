/* Block hash: XXH3-64 of blocks of a device's memory, the hash that manifests have. It makes the arguments of
 * WS_KERNEL_HASH_SUM and WS_KERNEL_HASH_FOLD (transports/device/kernels/hash.h), and hashes of their results.
 * Pure functions, but for the launch; any thread. */
#ifndef WS_TRANSPORTS_DEVICE_BLOCK_HASH_H
#define WS_TRANSPORTS_DEVICE_BLOCK_HASH_H
#include "transports/device/device.h"
#include "transports/device/kernels/hash.h"

/* Is a block of len bytes long enough for the kernels? */
bool ws_block_hash_supports(uint32_t len);
/* Sets each block's first_part; returns how many parts the blocks have, 8 sums each. */
uint32_t ws_block_hash_number(struct ws_hash_block *blocks, uint32_t n);
/* Queues both kernels. a: blocks, sums and lanes are addresses of the device; the secrets are set here. */
WS_MUST_USE int ws_block_hash_launch(struct ws_device_queue *q, struct ws_hash_args *a, struct ws_error *err);
/* The hash, from the block's eight lanes. */
uint64_t ws_block_hash_finish(const uint64_t lanes[8], uint32_t len);

#endif
