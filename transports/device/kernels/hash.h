/* WS_KERNEL_HASH_SUM and WS_KERNEL_HASH_FOLD: XXH3-64 of blocks of a device's memory, up to where eight
 * numbers a block are left, of which the host makes the hash (transports/device/block_hash.h).
 *
 * XXH3 adds up stripes of 64 bytes in eight lanes, 16 stripes to a part of 1 KiB, and mixes the lanes between
 * one part and the next. SUM adds up all parts at once; FOLD takes a block's sums one after the other, and
 * what is behind the last whole part. A thread has two neighbouring lanes, since each is added the other's
 * bytes. Source: xxHash's specification (doc/xxhash_spec.md, XXH3, large inputs), with seed 0 and the default
 * secret. */
#ifndef WS_TRANSPORTS_DEVICE_KERNELS_HASH_H
#define WS_TRANSPORTS_DEVICE_KERNELS_HASH_H
#include "transports/device/kernels/kernel.h"

#define WS_HASH_PART    1024U
#define WS_HASH_STRIPE  64U
#define WS_HASH_STRIPES 16U  /* of a part */
#define WS_HASH_PAIRS   4U   /* of lanes */
#define WS_HASH_SHORT   240U /* XXH3 hashes so few bytes in other ways */

struct ws_hash_block {
    const unsigned char *bytes; /* at a multiple of 16 */
    uint32_t len;               /* over WS_HASH_SHORT */
    uint32_t first_part;        /* number of its first whole part among those of all blocks */
};

struct ws_hash_args {
    const struct ws_hash_block *blocks;
    uint64_t *sums;  /* 8 a part; written by SUM */
    uint64_t *lanes; /* 8 a block; written by FOLD */
    uint32_t n_blocks, n_parts;
    uint64_t secret[24], end[8]; /* end: the secret's, as the last stripe takes it */
};

/* Whole parts of a block that others follow. */
WS_DEVICE uint32_t ws_hash_parts(uint32_t len)
{
    return (len - 1) / WS_HASH_PART;
}

struct ws_hash_pair {
    uint64_t even, odd;
};

/* By bytes: the last stripe may begin anywhere. */
WS_DEVICE uint64_t ws_hash_u64(const unsigned char *p)
{
    uint64_t v = 0;
    for (uint32_t i = 0; i < 8; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

WS_DEVICE uint64_t ws_hash_product(uint64_t keyed)
{
    return (keyed & 0xffffffffU) * (keyed >> 32);
}

WS_DEVICE void ws_hash_add(struct ws_hash_pair *sum, uint64_t even, uint64_t odd, uint64_t even_key,
                           uint64_t odd_key)
{
    sum->even += odd + ws_hash_product(even ^ even_key);
    sum->odd += even + ws_hash_product(odd ^ odd_key);
}

WS_DEVICE void ws_hash_add_aligned(struct ws_hash_pair *sum, const unsigned char *stripe, uint32_t pair,
                                   const uint64_t *key)
{
    const struct ws_word16 w = *(const struct ws_word16 *)(stripe + (size_t)pair * 16);
    ws_hash_add(sum, w.u32[0] | (uint64_t)w.u32[1] << 32, w.u32[2] | (uint64_t)w.u32[3] << 32, key[2 * pair],
                key[2 * pair + 1]);
}

/* The block that a part of all belongs to. */
WS_DEVICE uint32_t ws_hash_find(const struct ws_hash_args *a, uint32_t part)
{
    uint32_t low = 0, high = a->n_blocks;
    while (high - low > 1) {
        const uint32_t mid = low + (high - low) / 2;
        if (a->blocks[mid].first_part <= part)
            low = mid;
        else
            high = mid;
    }
    return low;
}

WS_DEVICE void ws_hash_sum_body(const struct ws_hash_args *a, struct ws_warp w)
{
    const uint64_t n = (uint64_t)a->n_parts * WS_HASH_PAIRS, step = (uint64_t)w.n * WS_WARP;
    for (uint64_t i = (uint64_t)w.at * WS_WARP + w.lane; i < n; i += step) {
        const uint32_t part = (uint32_t)(i / WS_HASH_PAIRS), pair = (uint32_t)(i % WS_HASH_PAIRS);
        const struct ws_hash_block *b = &a->blocks[ws_hash_find(a, part)];
        const unsigned char *p = b->bytes + (size_t)(part - b->first_part) * WS_HASH_PART;
        struct ws_hash_pair sum = {0, 0};
        WS_UNROLL
        for (uint32_t s = 0; s < WS_HASH_STRIPES; s++)
            ws_hash_add_aligned(&sum, p + (size_t)s * WS_HASH_STRIPE, pair, a->secret + s);
        a->sums[(size_t)part * 8 + 2 * pair] = sum.even;
        a->sums[(size_t)part * 8 + 2 * pair + 1] = sum.odd;
    }
}

WS_DEVICE uint64_t ws_hash_mix(uint64_t lane, uint64_t key)
{
    return (lane ^ lane >> 47 ^ key) * 0x9E3779B1ULL;
}

WS_DEVICE struct ws_hash_pair ws_hash_begin(uint32_t pair)
{
    const struct ws_hash_pair first[WS_HASH_PAIRS] = {{0xC2B2AE3DULL, 0x9E3779B185EBCA87ULL},
                                                      {0xC2B2AE3D27D4EB4FULL, 0x165667B19E3779F9ULL},
                                                      {0x85EBCA77C2B2AE63ULL, 0x85EBCA77ULL},
                                                      {0x27D4EB2F165667C5ULL, 0x9E3779B1ULL}};
    return first[pair];
}

WS_DEVICE void ws_hash_fold_body(const struct ws_hash_args *a, struct ws_warp w)
{
    const uint64_t n = (uint64_t)a->n_blocks * WS_HASH_PAIRS, step = (uint64_t)w.n * WS_WARP;
    for (uint64_t i = (uint64_t)w.at * WS_WARP + w.lane; i < n; i += step) {
        const uint32_t block = (uint32_t)(i / WS_HASH_PAIRS), pair = (uint32_t)(i % WS_HASH_PAIRS);
        const struct ws_hash_block b = a->blocks[block];
        const uint32_t n_parts = ws_hash_parts(b.len), left = b.len - n_parts * WS_HASH_PART;
        const uint64_t *sum = a->sums + (size_t)b.first_part * 8 + 2 * pair;
        const uint64_t even_key = a->secret[16 + 2 * pair], odd_key = a->secret[17 + 2 * pair];
        struct ws_hash_pair lanes = ws_hash_begin(pair);
        for (uint32_t p = 0; p < n_parts; p++, sum += 8) {
            lanes.even = ws_hash_mix(lanes.even + sum[0], even_key);
            lanes.odd = ws_hash_mix(lanes.odd + sum[1], odd_key);
        }
        const unsigned char *at = b.bytes + (size_t)n_parts * WS_HASH_PART;
        for (uint32_t s = 0; s < (left - 1) / WS_HASH_STRIPE; s++)
            ws_hash_add_aligned(&lanes, at + (size_t)s * WS_HASH_STRIPE, pair, a->secret + s);
        at = b.bytes + b.len - WS_HASH_STRIPE + (size_t)pair * 16;
        ws_hash_add(&lanes, ws_hash_u64(at), ws_hash_u64(at + 8), a->end[2 * pair], a->end[2 * pair + 1]);
        a->lanes[(size_t)block * 8 + 2 * pair] = lanes.even;
        a->lanes[(size_t)block * 8 + 2 * pair + 1] = lanes.odd;
    }
}

#endif
