#include "fs/store/cost.h"

#define LEAST_BYTES   (8UL << 20)
#define GUESSED_LINK  1e9 /* 10 Gbit/s, less what nobody gets of it */
#define GUESSED_PATCH 5e9
#define GUESSED_COPY  2e9
#define DOUBT         1.05

/* zstd takes a twelfth off what is sent, at 0.6 GB/s of it; harder still, at a tenth of that. */
#define PACK_BELOW   50e6
#define PACK_2_BELOW 5e6

void ws_speed_note(const struct ws_speeds *s, _Atomic(double) *speed, uint64_t bytes, double seconds)
{
    if (s->given || bytes < LEAST_BYTES || seconds <= 0)
        return;
    double now = (double)bytes / seconds, before = atomic_load(speed);
    atomic_store(speed, before > 0 ? (before + now) / 2 : now);
}

/* 0, not measured yet, stays. */
void ws_speeds_doubt(struct ws_speeds *s)
{
    if (s->given)
        return;
    atomic_store(&s->patch, atomic_load(&s->patch) * DOUBT);
    atomic_store(&s->copy, atomic_load(&s->copy) * DOUBT);
}

static double known(const _Atomic(double) *speed, double guess)
{
    double v = atomic_load(speed);
    return v > 0 ? v : guess;
}

/* Bytes a second of one thread. To copy and patch is more work than to patch: where a copy was measured to be
 * faster, what was patched in place then had more changes in it, and would not be measured again. */
static double patch_speed(const struct ws_speeds *s, bool copies)
{
    const double patch = known(&s->patch, GUESSED_PATCH), copy = known(&s->copy, GUESSED_COPY);
    return copies && copy < patch ? copy : patch;
}

/* Each link more costs a part of the first pass over memory. */
static double patch_seconds(const struct ws_cost *cost, const struct ws_speeds *s, unsigned threads)
{
    const double links = cost->n_links > 1 ? 1 + 0.2 * (double)(cost->n_links - 1) : 1;
    return links * (double)cost->patch_bytes / (patch_speed(s, cost->copies) * (threads ? threads : 1));
}

/* Fetching and patching overlap. */
static double together(double fetch, double patch)
{
    return fetch > patch ? fetch + patch / 10 : patch + fetch / 10;
}

double ws_cost_seconds(const struct ws_cost *cost, const struct ws_speeds *s, unsigned threads)
{
    return together((double)cost->fetch_bytes / known(&s->link, GUESSED_LINK),
                    patch_seconds(cost, s, threads));
}

double ws_cost_price(const struct ws_cost *cost, const struct ws_speeds *s, unsigned threads)
{
    const double patch = patch_seconds(cost, s, threads);
    return together((double)cost->fetch_bytes / known(&s->link, GUESSED_LINK),
                    cost->copies ? 2 * patch : patch);
}

unsigned ws_choice_level(const struct ws_speeds *s)
{
    double link = known(&s->link, GUESSED_LINK);
    return link >= PACK_BELOW ? 0 : link >= PACK_2_BELOW ? 1 : 3;
}
