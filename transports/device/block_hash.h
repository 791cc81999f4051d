/* Block hash: XXH3-64 of blocks of a device's memory, the very hash that manifests have: what
 * WS_KERNEL_HASH_SUM and WS_KERNEL_HASH_FOLD (transports/device/kernels/hash.h) are told, and hashes made of
 * what they left. */
#ifndef WS_TRANSPORTS_DEVICE_BLOCK_HASH_H
#define WS_TRANSPORTS_DEVICE_BLOCK_HASH_H
#include "transports/device/device.h"
#include "transports/device/kernels/hash.h"

/* Is the block long enough? */
bool ws_block_hash_takes(uint32_t len);
/* Numbers the blocks' parts; returns how many parts they have, 8 sums each. */
uint32_t ws_block_hash_number(struct ws_hash_block *blocks, uint32_t n);
/* Both kernels. a: its blocks, sums and lanes addresses of the device; its secrets are set here. */
WS_MUST_USE int ws_block_hash_launch(struct ws_queue *q, struct ws_hash_args *a, struct ws_error *err);
/* Out of the block's eight lanes. */
uint64_t ws_block_hash_of(const uint64_t lanes[8], uint32_t len);

#endif
