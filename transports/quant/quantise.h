/* Quantises rows of one weight, by AVX-512, AVX2 or portable code, chosen once at run time; all give the same bytes.
 * Pure functions over memory, thread safe: rows that do not share a block may be done by several threads at once. The
 * thread's floating-point environment must be the usual one: to nearest, subnormals kept. */
#ifndef WS_TRANSPORTS_QUANT_QUANTISE_H
#define WS_TRANSPORTS_QUANT_QUANTISE_H
#include "transports/quant/recipe.h"

/* A weight, or some rows of it. No pointer needs an alignment. */
struct ws_quantise {
    const struct ws_recipe *recipe;
    const char *name;       /* for sentences */
    enum ws_dtype dtype;    /* of the source: ws_recipe_takes */
    uint64_t rows, columns; /* of the whole weight */
    uint64_t row, n_rows; /* these: row is a multiple of block_rows, and so is n_rows or it goes to the end */
    const void *src;      /* of the first of these rows, row-major */
    /* Where what becomes of the first of these rows goes, as ws_quantise_range says; no overlap with src. */
    void *dst[WS_RECIPE_MAX_TARGETS];
};

/* The bytes of target k, from the target's begin, that these rows make; none where *begin is *end. */
void ws_quantise_range(const struct ws_quantise *q, unsigned k, uint64_t *begin, uint64_t *end);
/* -EBADMSG: an element is NaN or infinite; the sentence has the weight's name and the element's place. What was
 * written until then is of no use. */
WS_MUST_USE int ws_quantise(const struct ws_quantise *q, struct ws_error *err);
const char *ws_quantise_code(void); /* "avx512", "avx2", "portable"; WSYNC_QUANT=... overrides for tests */

#endif
