#include "fs/store/cost.h"

#define LEAST_BYTES   (8UL << 20)
#define GUESSED_LINK  1e9 /* what 10 Gbit/s carry in practice */
#define GUESSED_PATCH 5e9
#define GUESSED_COPY  2e9
#define OPTIMISM      1.05

/* At level 1 zstd takes a twelfth off what is sent, at 0.6 GB/s; at level 3 a little more, at a tenth of that
 * speed. */
#define PACK_BELOW   50e6
#define PACK_2_BELOW 5e6

void ws_speeds_record(const struct ws_speeds *s, _Atomic(double) *speed, uint64_t bytes, double seconds)
{
    if (s->given || bytes < LEAST_BYTES || seconds <= 0)
        return;
    double now = (double)bytes / seconds, before = atomic_load(speed);
    atomic_store(speed, before > 0 ? (before + now) / 2 : now);
}

/* A speed that was not measured yet stays 0. */
void ws_speeds_favour_patching(struct ws_speeds *s)
{
    if (s->given)
        return;
    atomic_store(&s->patch, atomic_load(&s->patch) * OPTIMISM);
    atomic_store(&s->copy, atomic_load(&s->copy) * OPTIMISM);
    atomic_store(&s->making, atomic_load(&s->making) * OPTIMISM);
}

static double measured(const _Atomic(double) *speed, double guess)
{
    double v = atomic_load(speed);
    return v > 0 ? v : guess;
}

/* Bytes a second of one thread. To copy and patch is more work than to patch alone. If a copy was measured to
 * be faster, the delta that was patched in place had more changes; patching in place would then never be
 * measured again. */
static double patch_speed(const struct ws_speeds *s, bool copies)
{
    const double patch = measured(&s->patch, GUESSED_PATCH), copy = measured(&s->copy, GUESSED_COPY);
    return copies && copy < patch ? copy : patch;
}

/* Each further delta costs a part of the first pass over memory. */
static double patch_seconds(const struct ws_cost *cost, const struct ws_speeds *s, unsigned threads)
{
    const double passes = cost->n_deltas > 1 ? 1 + 0.2 * (double)(cost->n_deltas - 1) : 1;
    return passes * (double)cost->patch_bytes / (patch_speed(s, cost->copies) * (threads ? threads : 1));
}

static double fetch_seconds(const struct ws_cost *cost, const struct ws_speeds *s)
{
    const double fetch = (double)cost->fetch_bytes / measured(&s->link, GUESSED_LINK),
                 making = atomic_load(&s->making),
                 made = cost->is_made && making > 0 ? (double)cost->patch_bytes / making : 0;
    return fetch > made ? fetch : made; /* records are fetched as they are made */
}

/* Fetching and patching overlap. */
static double overlapped(double fetch, double patch)
{
    return fetch > patch ? fetch + patch / 10 : patch + fetch / 10;
}

double ws_cost_seconds(const struct ws_cost *cost, const struct ws_speeds *s, unsigned threads)
{
    return overlapped(fetch_seconds(cost, s), patch_seconds(cost, s, threads));
}

double ws_cost_price(const struct ws_cost *cost, const struct ws_speeds *s, unsigned threads)
{
    const double patch = patch_seconds(cost, s, threads);
    return overlapped(fetch_seconds(cost, s), cost->copies ? 2 * patch : patch);
}

unsigned ws_cost_zstd_level(const struct ws_speeds *s)
{
    double link = measured(&s->link, GUESSED_LINK);
    return link >= PACK_BELOW ? 0 : link >= PACK_2_BELOW ? 1 : 3;
}
