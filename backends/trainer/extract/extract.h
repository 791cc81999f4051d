/* Extract: the table of extractors (fsdp, deepspeed, megatron) over what they have in common. An extractor
 * says what the file calls a held tensor and how it is cut over the ranks; the rest is the same for all:
 * cutting (sharding), splitting (fused), dtypes, pointers. */
#ifndef WS_TRAINER_EXTRACT_EXTRACT_H
#define WS_TRAINER_EXTRACT_EXTRACT_H
#include "backends/trainer/extract/fused.h"
#include "backends/trainer/extract/hf_config.h"

/* What an extractor says of a held tensor. */
struct ws_extracted {
    bool skip;             /* the file does not have it */
    const char *file;      /* that it goes to, a constant; NULL: wherever there is room */
    struct ws_fused fused; /* the tensor of all ranks together, and the file's in it */
    unsigned n_placements;
    wsync_placement placements[WSYNC_MAX_DIMS];
    unsigned n_sections; /* of a SECTION_SHARD among them */
    uint64_t sections[WSYNC_MAX_SECTIONS];
    bool plus_1;        /* it is stored less one; of F32, F16 or BF16 */
    bool f32;           /* the file has it in F32, unless the base says otherwise */
    uint64_t mtp_layer; /* of multi-token prediction, from 1; 0: it is in none */
    bool own_range;     /* a flat one is a range of this rank's part, which the placements make, not of all */
};
struct ws_extractor_ops {
    const char *name;
    bool adapters; /* it takes wsync_extract_options.adapter */
    /* Once, before the others. -EINVAL, -EOPNOTSUPP. NULL: nothing to check. */
    int (*check)(const wsync_extract_options *o, const struct ws_hf_config *c, struct ws_error *err);
    /* out is zero; what is in it is released by the caller, after an error too. -EINVAL: it does not fit;
     * -EOPNOTSUPP: the extractor does not know it. */
    int (*describe)(const wsync_extract_options *o, const struct ws_hf_config *c, const wsync_held *h,
                    struct ws_extracted *out, struct ws_error *err);
    /* Once, after the others. mtp_layers: bit n is set where a tensor is in layer n of multi-token prediction. -EINVAL: one
     * is missing. NULL: nothing to check. */
    int (*check_layers)(const wsync_extract_options *o, const struct ws_hf_config *c, uint64_t mtp_layers,
                        struct ws_error *err);
};
extern const struct ws_extractor_ops ws_extract_plain, ws_extract_fsdp, ws_extract_deepspeed,
    ws_extract_megatron;

#endif
