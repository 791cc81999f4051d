/* Megatron-core's GPTModel in the names of Hugging Face's file. A rank holds plain local tensors; how they are cut over the
 * parallel groups, and what they are in the file, the tables of megatron_families say by name, and config.json says how
 * large they then are. What does not fit it is refused, and so is what is in no table. */
#include "backends/engine/adapter_config.h"
#include "backends/trainer/extract/extract.h"
#include "backends/trainer/extract/megatron_families.h"
#include "transports/base/limits.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PEFT_PREFIX  "base_model.model."
#define GATES        "attention_output_gate"
#define INTERLEAVED  "rotary_interleaved"
#define ZERO_CENTRED "layernorm_zero_centered_gamma"
#define MTP_NUMBER   "mtp_num_layers="

/* What changes layouts or values in a way that no row knows: a model_type, an option that is set, or a held name. */
static const struct {
    const char *model_type, *why;
} unknown_models[] = {
    {"gpt_oss", "its file has the experts transposed, and gate and up alternating within"},
    {"llama4", "its file has the experts stacked and transposed"},
    {"llama4_text", "its file has the experts stacked and transposed"},
    {"phi3", "its file has query, key and value in one tensor, and gate and up in another"},
    {"deepseek_v32",
     "the indexer of its sparse attention (DSA) has other names and orders in each fork of Megatron"},
    {"glm_moe_dsa",
     "the indexer of its sparse attention (DSA) has other names and orders in each fork of Megatron"},
};
static const struct {
    const char *feature, *why;
} unknown_features[] = {
    {GATES, "query, gate, key and value are interleaved"},
    {INTERLEAVED, "rows of queries and keys are in another order than the file's"},
    {"moe_mlp_glu_interleave_size", "gate and up alternate in blocks"},
    {"moe_single_grouped_weight", "the experts are stacked in one tensor"},
    {"fp8_param", "weights are kept in FP8 with scales of their own"},
    {"fp4_param", "weights are kept in FP4 with scales of their own"},
};
static const struct {
    const char *part, *why;
} unknown_names[] = {
    {"mlp.experts.weight1", "the legacy GroupedMLP keeps its experts transposed; build the model with "
                            "SequentialMLP or TEGroupedMLP (moe_use_legacy_grouped_gemm=False)"},
    {"mlp.experts.weight2", "the legacy GroupedMLP keeps its experts transposed; build the model with "
                            "SequentialMLP or TEGroupedMLP (moe_use_legacy_grouped_gemm=False)"},
    {"mtp.",
     "the layout of this model_type's multi-token prediction is not known; leave its tensors out and, "
     "of a model, give base="},
    {".indexer.",
     "the indexer of sparse attention (DSA) has other names and orders in each fork of Megatron"},
    {".softmax_offset", "attention sinks are known of no model_type here"},
    {".adapter.",
     "it is of an adapter (LoRA), whose matrices are known of attention and of MLPs that are no experts; "
     "publish the adapter alone (wsync.peft), or merge it"},
    {".to_wrap.", "an adapter (LoRA) is added to it: merge it, or publish the adapter alone (wsync.peft)"},
    {"router.expert_bias",
     "the file of such a model has no bias of the router, and an engine would route without it; train with "
     "moe_router_enable_expert_bias=False, or give the hf_config of the model that it is"},
};

static unsigned size_of(const wsync_parallel *p)
{
    return p->size ? p->size : 1;
}

static bool has_feature(const wsync_extract_options *o, const char *name)
{
    for (size_t i = 0; i < o->n_features; i++)
        if (strcmp(o->features[i], name) == 0)
            return true;
    return false;
}

/* A model without such layers has none in its file; one with fewer than its config.json would have layers that nobody writes. */
static int check_mtp(const wsync_extract_options *o, const struct ws_hf_config *c, struct ws_error *err)
{
    const char *number = NULL;
    for (size_t i = 0; i < o->n_features; i++)
        if (strncmp(o->features[i], MTP_NUMBER, strlen(MTP_NUMBER)) == 0)
            number = o->features[i] + strlen(MTP_NUMBER);
    if (!number || o->base || o->adapter || strtoull(number, NULL, 10) >= c->mtp_layers)
        return 0;
    return ws_error_set(
        err, EINVAL,
        "this Megatron model has %s layers of multi-token prediction, and config.json has %" PRIu64
        " (num_nextn_predict_layers), so its file would lack some: build it with mtp_num_layers=%" PRIu64
        ", give the hf_config of this model, or give base=, a checkpoint that has the others; a model "
        "without any (mtp_num_layers=None) is published without them",
        number, c->mtp_layers, c->mtp_layers);
}

static int check_features(const wsync_extract_options *o, const struct ws_hf_config *c, struct ws_error *err)
{
    const struct ws_megatron_family *family = ws_megatron_family(c->model_type);
    if (family->zero_centred && !has_feature(o, ZERO_CENTRED))
        return ws_error_set(
            err, EOPNOTSUPP,
            "the file of a model_type '%s' has its norms less one, and this Megatron model has them as "
            "they are: build it with " ZERO_CENTRED,
            c->model_type);
    for (size_t i = 0; i < sizeof(unknown_features) / sizeof(unknown_features[0]); i++) {
        const char *feature = unknown_features[i].feature;
        if (has_feature(o, feature) && !(family->gated && strcmp(feature, GATES) == 0) &&
            !(family->interleaved && strcmp(feature, INTERLEAVED) == 0))
            return ws_error_set(err, EOPNOTSUPP,
                                "this Megatron model has %s: %s, and that layout is not known here", feature,
                                unknown_features[i].why);
    }
    return check_mtp(o, c, err);
}

static int check(const wsync_extract_options *o, const struct ws_hf_config *c, struct ws_error *err)
{
    const wsync_parallel *groups[] = {&o->tensor, &o->expert, &o->expert_tensor};
    if (!o->hf_config)
        return ws_error_set(err, EINVAL,
                            "a Megatron model needs hf_config, the folder of its Hugging Face "
                            "config.json: heads, vocabulary and sizes are taken from there");
    if (!ws_megatron_family(c->model_type)) {
        char known[200];
        const char *why = "";
        ws_megatron_model_types(known, sizeof(known));
        for (size_t i = 0; i < sizeof(unknown_models) / sizeof(unknown_models[0]); i++)
            if (strcmp(c->model_type, unknown_models[i].model_type) == 0)
                why = unknown_models[i].why;
        return ws_error_set(
            err, EOPNOTSUPP,
            "%s has the model_type '%s'%s%s, and Megatron's tensors are known here for %s only: convert "
            "them yourself and publish them by name (wsync.tensors, wsync_put)",
            o->hf_config, c->model_type, *why ? ": " : "", why, known);
    }
    if (c->is_within)
        return ws_error_set(
            err, EOPNOTSUPP,
            "%s is of a model that has '%s' within, as one of text and images does, and whose file has other "
            "names: give the config.json of the text model, or publish it by name (wsync.tensors, wsync_put)",
            o->hf_config, c->model_type);
    for (unsigned i = 0; i < 3; i++)
        if (groups[i]->rank >= size_of(groups[i]))
            return ws_error_set(err, EINVAL, "rank %u of a parallel group of %u makes no sense",
                                groups[i]->rank, size_of(groups[i]));
    return check_features(o, c, err);
}

/* A held tensor beside what the tables say of it. */
struct held {
    const wsync_held *h;
    const struct ws_megatron_row *row;
    const struct ws_hf_config *config;
    const wsync_parallel *group;
    const char *group_name;
    char layer[48]; /* what the file has before its names; empty: it is in no layer */
    unsigned n_parts;
    char names[WS_MEGATRON_PARTS][WS_MAX_TENSOR_NAME + 1];
    uint64_t rows[WS_MEGATRON_PARTS]; /* in the file, of all ranks */
};

/* The name in the file; prefix: of all its names. */
static int name_of(struct held *x, unsigned i, const char *prefix, uint64_t expert, struct ws_error *err)
{
    const char *file = x->row->parts[i].file, *number = strchr(file, '#');
    char *out = x->names[i];
    int n = snprintf(out, WS_MAX_TENSOR_NAME + 1, "%s%s", prefix, x->layer);
    if (number)
        n += snprintf(out + n, (size_t)(WS_MAX_TENSOR_NAME + 1 - n), "%.*s%" PRIu64 "%s",
                      (int)(number - file), file, expert, number + 1);
    else
        n += snprintf(out + n, (size_t)(WS_MAX_TENSOR_NAME + 1 - n), "%s", file);
    return n > WS_MAX_TENSOR_NAME ? ws_error_set(err, E2BIG, "the name of %s is too long", x->h->name) : 0;
}

/* The layer in the file: number is Megatron's, from 1. */
static int layer_of(const struct ws_hf_config *c, const struct ws_megatron_mtp *mtp, uint64_t number,
                    const char *held, char out[48], struct ws_error *err)
{
    const uint64_t most = mtp ? c->mtp_layers : c->layers;
    if (number == 0)
        return ws_error_set(err, EINVAL, "%s comes without the number of its layer", held);
    if (mtp ? number > most || c->layers == 0 : most && number > most)
        return ws_error_set(err, EINVAL,
                            "%s is of layer %" PRIu64 "%s, and config.json has %" PRIu64
                            " (%s): give the hf_config of this model",
                            held, number, mtp ? " of multi-token prediction" : "", most,
                            mtp ? "num_nextn_predict_layers, behind num_hidden_layers" : "num_hidden_layers");
    snprintf(out, 48, "%s%" PRIu64 ".",
             mtp ? mtp->layer : ws_megatron_layers(ws_megatron_family(c->model_type)),
             number - 1 + (mtp && mtp->after ? c->layers : 0));
    return 0;
}

/* config.json's number of rows or columns; *out: 0 where the row has none. */
static int size_in_config(const struct held *x, enum ws_megatron_size size, uint64_t *out,
                          struct ws_error *err)
{
    const char *what = "";
    *out = ws_megatron_size(size, x->config, &what);
    if (size == WS_MEGATRON_ANY || *out)
        return 0;
    return ws_error_set(
        err, EINVAL,
        "%s is held, and config.json does not give its size, which is %s: is hf_config another "
        "model's, or of a config that lacks it?",
        x->h->name, what);
}

static int check_size(const struct held *x, unsigned dim, uint64_t all, uint64_t config,
                      enum ws_megatron_size size, bool at_least, struct ws_error *err)
{
    const char *what = "";
    if (config == 0 || (at_least ? all >= config : all == config))
        return 0;
    (void)ws_megatron_size(size, x->config, &what);
    return ws_error_set(err, EINVAL,
                        "%s of %s rank %u of %u: the %" PRIu64 " %s that it holds make %" PRIu64
                        " of all ranks, and config.json says %s%" PRIu64
                        " (%s): give the hf_config of this model, "
                        "and build all of its ranks with the same parallel groups",
                        x->h->name, x->group_name, x->group->rank, size_of(x->group), x->h->shape[dim],
                        dim ? "columns" : "rows", all, at_least ? "at least " : "", config, what);
}

static int check_shape(const struct held *x, const uint64_t *shape, struct ws_error *err)
{
    const struct ws_megatron_row *r = x->row;
    uint64_t rows = x->rows[0], columns, depth = 0;
    int rc = size_in_config(x, r->columns, &columns, err);
    if (rc == 0)
        rc = size_in_config(x, r->depth, &depth, err);
    if (r->form == WS_MEGATRON_STACKED || r->form == WS_MEGATRON_QKV || r->form == WS_MEGATRON_GATED_QKV ||
        r->form == WS_MEGATRON_GROUPS)
        for (unsigned i = 1; i < x->n_parts; i++)
            rows += x->rows[i];
    if (rc == 0)
        rc = check_size(x, 0, shape[0], rows, r->parts[0].rows,
                        r->form == WS_MEGATRON_VOCABULARY || r->form == WS_MEGATRON_OUTPUT, err);
    if (rc == 0 && x->h->n_dims > 1)
        rc = check_size(x, 1, shape[1], columns, r->columns, false, err);
    return rc < 0 || x->h->n_dims < 3 ? rc : check_size(x, 2, shape[2], depth, r->depth, false, err);
}

static bool has_dims(const struct ws_megatron_row *r, unsigned n)
{
    if (r->depth != WS_MEGATRON_ANY)
        return n == 3;
    if (r->columns != WS_MEGATRON_ANY || r->cut == WS_MEGATRON_ROW)
        return n == 2;
    return n == 1 || n == 2;
}

/* The group's tensor of a local one, and how the ranks share it. */
static int unshard(const struct held *x, struct ws_extracted *out, struct ws_error *err)
{
    const wsync_held *h = x->h;
    const struct ws_megatron_row *r = x->row;
    const unsigned dim = r->cut == WS_MEGATRON_ROW, size = size_of(x->group);
    bool whole = r->cut == WS_MEGATRON_WHOLE;
    if (!has_dims(r, h->n_dims))
        return ws_error_set(err, EINVAL, "%s has %u dimensions", h->name, h->n_dims);
    if (r->cut == WS_MEGATRON_EITHER)
        whole = h->shape[0] == x->rows[0];
    out->own_range = h->flat;
    out->fused.n_dims = h->n_dims;
    memcpy(out->fused.shape, h->shape, sizeof(out->fused.shape));
    if (!whole) {
        out->fused.shape[dim] *= size;
        out->n_placements = 1;
        out->placements[0] =
            (wsync_placement){.kind = r->cut == WS_MEGATRON_SECTIONS ? WSYNC_SECTION_SHARD : WSYNC_SHARD,
                              .dim = dim,
                              .size = size,
                              .coordinate = x->group->rank};
    }
    if (r->cut == WS_MEGATRON_SECTIONS) {
        out->n_sections = x->n_parts;
        memcpy(out->sections, x->rows, x->n_parts * sizeof(x->rows[0]));
    }
    return check_shape(x, out->fused.shape, err);
}

/* The held tensor's halves of columns, in the other order. */
static int swap_halves(struct ws_fused *f, const char *name)
{
    const uint64_t half = f->shape[1] / 2;
    for (unsigned i = 0; i < 2; i++) {
        struct ws_fused_part *p = ws_fused_add(f, name, f->n_dims);
        if (!p)
            return -ENOMEM;
        memcpy(p->shape, f->shape, sizeof(p->shape));
        p->size[1] = half;
        p->from[1] = i * half;
        p->to[1] = (1 - i) * half;
    }
    return 0;
}

/* A vocabulary's rows, which the layers of multi-token prediction have once more in the file, where the model has such layers. */
static int split_vocabulary(const struct held *x, const wsync_extract_options *o, struct ws_fused *f,
                            struct ws_error *err)
{
    const struct ws_hf_config *c = x->config;
    const struct ws_megatron_mtp *mtp = ws_megatron_family(c->model_type)->mtp;
    const char *again = !mtp ? NULL : x->row->form == WS_MEGATRON_OUTPUT ? mtp->output : mtp->embedding;
    int rc = ws_fused_rows(f, x->names[0], c->vocab_size, err);
    for (uint64_t i = 1; rc == 0 && again && has_feature(o, "mtp_num_layers") && i <= c->mtp_layers; i++) {
        char layer[48], name[128];
        rc = layer_of(c, mtp, i, x->h->name, layer, err);
        snprintf(name, sizeof(name), "%s%s", layer, again);
        if (rc == 0)
            rc = ws_fused_rows(f, name, c->vocab_size, err);
    }
    return rc;
}

static int split(const struct held *x, const wsync_extract_options *o, struct ws_fused *f,
                 struct ws_error *err)
{
    const char *names[WS_MEGATRON_PARTS];
    const wsync_fusion stack = {.names = names, .n_names = x->n_parts, .sizes = x->rows};
    const struct ws_hf_config *c = x->config;
    uint64_t groups = 0;
    int rc = 0;
    for (unsigned i = 0; i < WS_MEGATRON_PARTS; i++)
        names[i] = x->names[i];
    switch (x->row->form) {
    case WS_MEGATRON_VOCABULARY:
    case WS_MEGATRON_OUTPUT:
        return split_vocabulary(x, o, f, err);
    case WS_MEGATRON_SWAPPED:
        return swap_halves(f, names[0]);
    case WS_MEGATRON_QKV:
    case WS_MEGATRON_GATED_QKV:
        return ws_fused_qkv(f, names, c->heads, c->kv_heads, c->head_dim,
                            x->row->form == WS_MEGATRON_GATED_QKV, err);
    case WS_MEGATRON_GROUPS:
        rc = size_in_config(x, x->row->groups, &groups, err);
        return rc < 0 ? rc : ws_fused_groups(f, names, x->rows, x->n_parts, groups, err);
    case WS_MEGATRON_STACKED:
        return ws_fused_stack(f, &stack, "", 0, err);
    case WS_MEGATRON_PLAIN:
    case WS_MEGATRON_EACH:
        for (unsigned i = 0; rc == 0 && i < x->n_parts; i++)
            rc = ws_fused_plain(f, names[i]);
        return rc;
    }
    return -EINVAL;
}

static int refuse(const struct ws_hf_config *c, const wsync_held *h, const char *name, struct ws_error *err)
{
    for (size_t i = 0; i < sizeof(unknown_names) / sizeof(unknown_names[0]); i++)
        if (strstr(name, unknown_names[i].part))
            return ws_error_set(err, EOPNOTSUPP, "%s cannot be published: %s", h->name, unknown_names[i].why);
    return ws_error_set(err, EOPNOTSUPP,
                        "%s is no tensor that is known here of a Megatron GPTModel of model_type '%s', which "
                        "hf_config has: its layout would be a guess",
                        h->name, c->model_type);
}

/* The expert's number in the file. */
static int expert_of(const wsync_extract_options *o, const struct ws_hf_config *c, const wsync_held *h,
                     uint64_t local, uint64_t *out, struct ws_error *err)
{
    const uint64_t each = c->experts / size_of(&o->expert);
    if (c->experts == 0 || c->experts % size_of(&o->expert) || local >= each)
        return ws_error_set(err, EINVAL,
                            "%s of expert-parallel rank %u: %" PRIu64 " experts over %u ranks are %" PRIu64
                            " each, and this is number %" PRIu64 ": give the hf_config of this model",
                            h->name, o->expert.rank, c->experts, size_of(&o->expert), each, local);
    *out = o->expert.rank * each + local;
    return 0;
}

static int describe_known(struct held *x, const wsync_extract_options *o, uint64_t local_expert,
                          struct ws_extracted *out, struct ws_error *err)
{
    const struct ws_megatron_row *r = x->row;
    const char *prefix = o->adapter ? PEFT_PREFIX : "";
    uint64_t expert = 0;
    int rc = r->expert ? expert_of(o, x->config, x->h, local_expert, &expert, err) : 0;
    for (; rc == 0 && x->n_parts < WS_MEGATRON_PARTS && r->parts[x->n_parts].file; x->n_parts++) {
        rc = size_in_config(x, r->parts[x->n_parts].rows, &x->rows[x->n_parts], err);
        if (rc == 0)
            rc = name_of(x, x->n_parts, prefix, expert, err);
    }
    if (rc == 0)
        rc = unshard(x, out, err);
    return rc < 0 ? rc : split(x, o, &out->fused, err);
}

static int describe(const wsync_extract_options *o, const struct ws_hf_config *c, const wsync_held *h,
                    struct ws_extracted *out, struct ws_error *err)
{
    const struct ws_megatron_family *family = ws_megatron_family(c->model_type);
    const char *held = h->name;
    struct ws_megatron_match found;
    while (strncmp(held, "module.", 7) == 0) /* DDP, Float16Module */
        held += 7;
    if (o->adapter && !strstr(held, ".adapter.")) {
        out->skip = true; /* the base model */
        return 0;
    }
    if (!ws_megatron_find(family, o->adapter, held, &found))
        return refuse(c, h, held, err);
    const struct ws_megatron_row *r = found.row;
    out->file = o->adapter ? WS_ADAPTER_WEIGHTS_NAME : NULL;
    out->f32 = r->f32;
    out->plus_1 = r->norm && has_feature(o, ZERO_CENTRED) && (r->factor || !family->zero_centred);
    if (r->form == WS_MEGATRON_OUTPUT && c->tied) {
        out->skip = true;
        return 0;
    }
    struct held x = {.h = h,
                     .row = r,
                     .config = c,
                     .group = r->expert ? &o->expert_tensor : &o->tensor,
                     .group_name = r->expert ? "expert-tensor-parallel" : "tensor-parallel"};
    int rc = found.layered ? layer_of(c, found.mtp ? family->mtp : NULL, h->layer, h->name, x.layer, err) : 0;
    out->mtp_layer = found.mtp ? h->layer : 0;
    return rc < 0 ? rc : describe_known(&x, o, found.expert, out, err);
}

/* Megatron has all layers of multi-token prediction on one stage. */
static int check_layers(const wsync_extract_options *o, const struct ws_hf_config *c, uint64_t mtp_layers,
                        struct ws_error *err)
{
    for (uint64_t i = 1; mtp_layers && !o->base && i <= c->mtp_layers && i < 64; i++)
        if (!(mtp_layers >> i & 1))
            return ws_error_set(
                err, EINVAL,
                "this rank holds layers of multi-token prediction, but nothing of layer %" PRIu64
                " of the %" PRIu64
                " that config.json has (num_nextn_predict_layers), and its file would lack it: give all of "
                "the rank's model chunks, or base=, a checkpoint that has it",
                i, c->mtp_layers);
    return 0;
}

const struct ws_extractor_ops ws_extract_megatron = {
    .name = "megatron", .adapters = true, .check = check, .describe = describe, .check_layers = check_layers};
