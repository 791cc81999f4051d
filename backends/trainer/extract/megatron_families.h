/* Megatron families: what Megatron-core's GPTModel holds, and what Hugging Face's file of the same model calls it, as tables.
 * A family is the model_types of config.json and the tables of its tensors; a table's row is one held name, how it is cut
 * over the ranks, and the file's names and sizes. What is in none of a family's tables is not known. */
#ifndef WS_TRAINER_EXTRACT_MEGATRON_FAMILIES_H
#define WS_TRAINER_EXTRACT_MEGATRON_FAMILIES_H
#include "backends/trainer/extract/megatron_sizes.h"
#include <stddef.h>

/* How the tensor of all ranks is cut over its tensor-parallel group. */
enum ws_megatron_cut {
    WS_MEGATRON_WHOLE,
    WS_MEGATRON_COLUMN, /* dimension 0, evenly */
    WS_MEGATRON_ROW,    /* dimension 1, evenly */
    WS_MEGATRON_SECTIONS, /* dimension 0: each of the file's tensors evenly; a rank holds its shares one after the other */
    WS_MEGATRON_EITHER /* WHOLE or COLUMN, as specs differ: the number of rows held says which */
};

/* How it is made of the file's tensors. */
enum ws_megatron_form {
    WS_MEGATRON_PLAIN,     /* it is the file's one tensor */
    WS_MEGATRON_STACKED,   /* one below the other */
    WS_MEGATRON_EACH,      /* each of them is all of it */
    WS_MEGATRON_QKV,       /* query, key and value, interleaved by group */
    WS_MEGATRON_GATED_QKV, /* the same, with a gate for each query */
    WS_MEGATRON_GROUPS, /* sections of groups of rows; parts with one name in turn are one tensor, group by group */
    WS_MEGATRON_SWAPPED,    /* its second half of columns before the first */
    WS_MEGATRON_VOCABULARY, /* its first rows; the rest is padding */
    WS_MEGATRON_OUTPUT      /* the same of the output layer, which the file of a tied model does not have */
};

#define WS_MEGATRON_PARTS 6 /* of a row, at most */
struct ws_megatron_part {
    const char
        *file; /* below the layer, where held is in one; '#': the expert's global number. NULL: no more */
    enum ws_megatron_size rows;
};
struct ws_megatron_row {
    const char *held; /* '#': a number */
    enum ws_megatron_cut cut;
    enum ws_megatron_form form;
    struct ws_megatron_part parts[WS_MEGATRON_PARTS];
    enum ws_megatron_size columns;
    enum ws_megatron_size depth;  /* of a third dimension; ANY: there is none */
    enum ws_megatron_size groups; /* of GROUPS */
    bool expert;                  /* its group is the experts' */
    /* A norm: stored less one where the model has layernorm_zero_centered_gamma, in the file of a family that is
     * zero_centred, too, unless it is a factor there. */
    bool norm, factor;
    bool f32; /* the file has it in F32 whatever the model is in */
};
#define WS_MEGATRON_LAYER "decoder.layers.#."

struct ws_megatron_table {
    const struct ws_megatron_row *rows;
    size_t n;
};
/* Layers of multi-token prediction: each has tensors of its own, and a transformer layer, whose rows are the decoder's. */
struct ws_megatron_mtp {
    const struct ws_megatron_table *table;
    const char *layer; /* in the file, before its number */
    bool after;        /* the numbers go on behind the decoder's last layer */
    const char *embedding,
        *output; /* names below a layer under which the file has the embedding and the output layer once more; or NULL */
};
#define WS_MEGATRON_TABLES 8 /* of a family, at most */
struct ws_megatron_family {
    const char *model_types[4];
    const struct ws_megatron_table *tables[WS_MEGATRON_TABLES], *adapters[WS_MEGATRON_TABLES];
    const struct ws_megatron_mtp *mtp; /* NULL: such layers are not known */
    const char *layers;                /* in the file, before a layer's number; NULL: "model.layers." */
    bool zero_centred;                 /* its file has norms less one */
    bool gated;                        /* its attention has output gates */
    bool interleaved;                  /* its rotary embedding pairs neighbours, as its file's does */
};
/* What a held name is. */
struct ws_megatron_match {
    const struct ws_megatron_row *row;
    bool layered, mtp; /* it is in a layer; in one of multi-token prediction */
    uint64_t expert;   /* its number on this rank */
};

/* NULL: it is not known. */
const struct ws_megatron_family *ws_megatron_family(const char *model_type);
/* What the file has before the number of one of the decoder's layers. */
const char *ws_megatron_layers(const struct ws_megatron_family *f);
/* All known ones, for people: "llama, qwen2, ...". */
void ws_megatron_model_types(char *out, size_t cap);
/* false: the family has no such name. */
bool ws_megatron_find(const struct ws_megatron_family *f, bool adapter, const char *held,
                      struct ws_megatron_match *out);

#endif
