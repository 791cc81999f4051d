/* Megatron's families: every tensor of a layer as its table's row is meant, by whole tensors stacked and cut. */
#include "tests/fixtures/megatron_rank.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum line_cut { LINE_WHOLE, LINE_SHARE, LINE_ROW, LINE_SECTIONS };
struct line {
    const char *held, *files[2]; /* below the layer; '#': the expert's number */
    enum line_cut cut;
    unsigned rows[2], columns;
};

static void numbered(char out[128], const char *name, int number)
{
    const char *at = strchr(name, '#');
    if (at)
        snprintf(out, 128, "%.*s%d%s", (int)(at - name), name, number, at + 1);
    else
        snprintf(out, 128, "%s", name);
}

/* layer: from m->layers on, one of multi-token prediction. */
static void hold_line(struct world *w, unsigned rank, wsync_held **h, const struct gpt *m,
                      const struct line *l, unsigned layer, int expert, int local_expert, unsigned at,
                      unsigned size)
{
    char name[320], part[128];
    struct rows s;
    rows_new(&s, l->rows[0] + l->rows[1], l->columns);
    for (unsigned i = 0; i < 2 && l->files[i]; i++) {
        numbered(part, l->files[i], expert);
        snprintf(name, sizeof(name), "%s%u.%s", m->in_file ? m->in_file : "model.layers.", layer, part);
        rows_take(&s, file_tensor(w, name, l->rows[i], l->columns), 0, l->rows[i]);
        s.g.sections[i] = l->rows[i];
        s.g.n_sections = i + 1;
    }
    static const int kinds[] = {WSYNC_REPLICATE, WSYNC_SHARD, WSYNC_SHARD, WSYNC_SECTION_SHARD};
    numbered(part, l->held, local_expert);
    if (layer < m->layers)
        snprintf(name, sizeof(name), "module.module.decoder.layers.%u.%s", layer % 2, part);
    else
        snprintf(name, sizeof(name), "module.mtp.layers.%u.%s%s", layer - m->layers, m->mtp, part);
    megatron_hold(w, rank, &s.g, (*h)++, name, layer < m->layers ? layer + 1 : layer - m->layers + 1,
                  kinds[l->cut], l->cut == LINE_ROW, at, size);
    free(s.g.values);
}

/* The file's tensor once more, under the name of a layer's. */
static void file_again(struct world *w, const char *name, unsigned layer, const char *again)
{
    char file[128];
    const struct tensor *t = tensor_named(w, name);
    snprintf(file, sizeof(file), "model.layers.%u.%s", layer, again);
    if (!tensor_named(w, file))
        memcpy(tensor_add(w, file, t->n_dims, t->shape)->values, t->values, t->n * sizeof(t->values[0]));
}

/* DeepSeek's latent attention, shared experts, router's bias and multi-token prediction, in every form that specs give them. */
static void test_latent_family(void **state)
{
    static const char *const types[] = {"deepseek_v2", "deepseek_v3", "kimi_k2"};
    (void)state;
    for (unsigned round = 0; round < 300; round++) {
        struct world *w = calloc(1, sizeof(*w));
        struct gpt m = {.tp = 1U << below(3),
                        .ep = 1U << below(2),
                        .dp = 1 + below(2),
                        .etp = 1U << below(2),
                        .vocab = 9,
                        .layers = 2,
                        .mtp = below(2) ? "transformer_layer." : "mtp_model_layer."};
        const bool compressed = below(2), te = below(2), fused = compressed && below(2),
                   shares = !te && below(2);
        const unsigned type = below(3), heads = m.tp * (1 + below(2)), nope = 1 + below(3), rope = m.tp * 2,
                       v = 1 + below(4), q_rank = m.tp * (1 + below(3)), kv_rank = m.tp * (1 + below(3)),
                       hidden = m.tp * (1 + below(6)), inner = m.tp * (1 + below(3)),
                       expert = 2 * (1 + below(3)) * m.tp, n_shared = 1 + below(2),
                       n_experts = m.ep * (1 + below(3)), n_mtp = type ? below(3) : 0;
        char text[700];
        m.hidden = hidden;
        m.padded = m.tp * 12;
        write_text(
            &m, text,
            snprintf(
                text, sizeof(text),
                "{\"model_type\":\"%s\",\"num_attention_heads\":%u,\"num_key_value_heads\":%u,"
                "\"hidden_size\":%u,"
                "\"intermediate_size\":%u,\"moe_intermediate_size\":%u,\"n_shared_experts\":%u,"
                "\"n_routed_experts\":%u,\"vocab_size\":9,\"q_lora_rank\":%s,"
                "\"kv_lora_rank\":%u,\"qk_nope_head_dim\":%u,\"qk_rope_head_dim\":%u,\"v_head_"
                "dim\":%u,\"num_hidden_layers\":2,\"num_nextn_predict_layers\":%u,\"dtype\":\"bfloat16\"}",
                types[type], heads, heads, hidden, inner, expert, n_shared, n_experts,
                compressed ? "@" : "null", kv_rank, nope, rope, v, n_mtp));
        if (compressed) { /* its number in place of the mark */
            char with[700], *mark = strchr(text, '@');
            unlink(m.config);
            write_text(&m, with,
                       snprintf(with, sizeof(with), "%.*s%u%s", (int)(mark - text), text, q_rank, mark + 1));
        }
        const enum line_cut down = shares ? LINE_SHARE : LINE_WHOLE;
        const struct line all[] = {
            {"input_layernorm.weight", {"input_layernorm.weight"}, LINE_WHOLE, {hidden}, 0},
            {"self_attention.linear_qkv_down_proj.layer_norm_weight",
             {"input_layernorm.weight"},
             LINE_WHOLE,
             {hidden},
             0},
            {"self_attention.linear_q_proj.weight",
             {"self_attn.q_proj.weight"},
             LINE_SHARE,
             {heads * (nope + rope)},
             hidden},
            {"self_attention.linear_q_down_proj.weight",
             {"self_attn.q_a_proj.weight"},
             down,
             {q_rank},
             hidden},
            {"self_attention.linear_kv_down_proj.weight",
             {"self_attn.kv_a_proj_with_mqa.weight"},
             down,
             {kv_rank + rope},
             hidden},
            {"self_attention.linear_qkv_down_proj.weight",
             {"self_attn.q_a_proj.weight", "self_attn.kv_a_proj_with_mqa.weight"},
             LINE_SECTIONS,
             {q_rank, kv_rank + rope},
             hidden},
            {te ? "self_attention.linear_q_up_proj.layer_norm_weight" : "self_attention.q_layernorm.weight",
             {"self_attn.q_a_layernorm.weight"},
             LINE_WHOLE,
             {q_rank},
             0},
            {"self_attention.linear_q_up_proj.weight",
             {"self_attn.q_b_proj.weight"},
             LINE_SHARE,
             {heads * (nope + rope)},
             q_rank},
            {te ? "self_attention.linear_kv_up_proj.layer_norm_weight" : "self_attention.kv_layernorm.weight",
             {"self_attn.kv_a_layernorm.weight"},
             LINE_WHOLE,
             {kv_rank},
             0},
            {"self_attention.linear_kv_up_proj.weight",
             {"self_attn.kv_b_proj.weight"},
             LINE_SHARE,
             {heads * (nope + v)},
             kv_rank},
            {"self_attention.linear_proj.weight", {"self_attn.o_proj.weight"}, LINE_ROW, {hidden}, heads * v},
        };
        const bool has[] = {!fused, fused, !compressed, compressed && !fused,
                            !fused, fused, compressed,  compressed,
                            true,   true,  true};
        const struct line dense[] = {
            {te ? "mlp.linear_fc1.layer_norm_weight" : "pre_mlp_layernorm.weight",
             {"post_attention_layernorm.weight"},
             LINE_WHOLE,
             {hidden},
             0},
            {"mlp.linear_fc1.weight",
             {"mlp.gate_proj.weight", "mlp.up_proj.weight"},
             LINE_SECTIONS,
             {inner, inner},
             hidden},
            {"mlp.linear_fc2.weight", {"mlp.down_proj.weight"}, LINE_ROW, {hidden}, inner},
        };
        const struct line moe[] = {
            {"pre_mlp_layernorm.weight", {"post_attention_layernorm.weight"}, LINE_WHOLE, {hidden}, 0},
            {"mlp.router.weight", {"mlp.gate.weight"}, LINE_WHOLE, {n_experts}, hidden},
            {"mlp.shared_experts.linear_fc1.weight",
             {"mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"},
             LINE_SECTIONS,
             {n_shared * expert, n_shared * expert},
             hidden},
            {"mlp.shared_experts.linear_fc2.weight",
             {"mlp.shared_experts.down_proj.weight"},
             LINE_ROW,
             {hidden},
             n_shared * expert},
            {"mlp.router.expert_bias", {"mlp.gate.e_score_correction_bias"}, LINE_WHOLE, {n_experts}, 0},
        };
        const struct line mtp[] = {
            {"eh_proj.weight", {"eh_proj.weight"}, LINE_SHARE, {hidden}, 2 * hidden},
            {"enorm.weight", {"enorm.weight"}, LINE_WHOLE, {hidden}, 0},
            {"hnorm.weight", {"hnorm.weight"}, LINE_WHOLE, {hidden}, 0},
            {"final_layernorm.weight", {"shared_head.norm.weight"}, LINE_WHOLE, {hidden}, 0},
        };
        const struct line one[] = {
            {te ? "mlp.experts.linear_fc1.weight#" : "mlp.experts.local_experts.#.linear_fc1.weight",
             {"mlp.experts.#.gate_proj.weight", "mlp.experts.#.up_proj.weight"},
             LINE_SECTIONS,
             {expert, expert},
             hidden},
            {te ? "mlp.experts.linear_fc2.weight#" : "mlp.experts.local_experts.#.linear_fc2.weight",
             {"mlp.experts.#.down_proj.weight"},
             LINE_ROW,
             {hidden},
             expert},
        };
        const unsigned stage = m.tp > m.ep * m.etp ? m.tp : m.ep * m.etp;
        w->n_ranks = stage * m.dp;
        for (unsigned r = 0; r < w->n_ranks; r++) {
            static const char *const features[] = {"mtp_num_layers"};
            struct gpt outer = m;
            outer.mtp = "";
            wsync_held *held = calloc(256, sizeof(*held)), *h = held;
            const unsigned at = r / m.dp, tp = at % m.tp, etp = at % m.etp, ep = at / m.etp % m.ep,
                           each = n_experts / m.ep;
            for (unsigned layer = 0; layer < 2 + n_mtp; layer++) {
                for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
                    if (has[i])
                        hold_line(w, r, &h, &m, &all[i], layer, 0, 0, tp, m.tp);
                for (unsigned i = 0; layer == 0 && i < 3; i++)
                    hold_line(w, r, &h, &m, &dense[i], 0, 0, 0, tp, m.tp);
                for (unsigned i = 0; layer > 0 && i < (type == 0 ? 4 : 5); i++)
                    hold_line(w, r, &h, &m, &moe[i], layer, 0, 0, tp, m.tp);
                for (unsigned j = 0; layer > 0 && j < each; j++)
                    for (unsigned i = 0; i < 2; i++)
                        hold_line(w, r, &h, &m, &one[i], layer, (int)(ep * each + j), (int)j, etp, m.etp);
                for (unsigned i = 0; layer > 1 && i < sizeof(mtp) / sizeof(mtp[0]); i++)
                    hold_line(w, r, &h, &outer, &mtp[i], layer, 0, 0, tp, m.tp);
            }
            vocabulary(w, r, &h, &m, "embedding.word_embeddings.weight", "model.embed_tokens.weight", tp);
            vocabulary(w, r, &h, &m, "output_layer.weight", "lm_head.weight", tp);
            for (unsigned i = 2; i < 2 + n_mtp; i++) {
                file_again(w, "model.embed_tokens.weight", i, "embed_tokens.weight");
                file_again(w, "lm_head.weight", i, "shared_head.head.weight");
            }
            wsync_extract_options o = {.struct_size = sizeof(o),
                                       .kind = "megatron",
                                       .hf_config = m.config,
                                       .tensor = {tp, m.tp},
                                       .expert = {ep, m.ep},
                                       .expert_tensor = {etp, m.etp},
                                       .features = features,
                                       .n_features = n_mtp > 0};
            extract_ranges(w, r, &o, held, (size_t)(h - held), m.dp);
        }
        check_world(w);
        unlink(m.config);
        world_free(w);
    }
}

/* MiMo's layer of multi-token prediction: names and numbers of its own, and the projection's halves the other way round. */
static void test_mimo(void **state)
{
    static const char text[] =
        "{\"model_type\":\"mimo\",\"hidden_size\":4,\"intermediate_size\":6,\"num_attention_heads\":2,"
        "\"num_key_value_heads\":2,\"vocab_size\":9,\"num_hidden_layers\":2,\"num_nextn_predict_layers\":1}";
    static const struct line lines[] = {
        {"enorm.weight", {"token_layernorm.weight"}, LINE_WHOLE, {4}, 0},
        {"hnorm.weight", {"hidden_layernorm.weight"}, LINE_WHOLE, {4}, 0},
        {"final_layernorm.weight", {"final_layernorm.weight"}, LINE_WHOLE, {4}, 0},
        {"self_attention.linear_proj.weight", {"self_attn.o_proj.weight"}, LINE_ROW, {4}, 4},
        {"mlp.linear_fc1.weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, LINE_SECTIONS, {6, 6}, 4},
    };
    static const char *const features[] = {"mtp_num_layers"};
    (void)state;
    for (unsigned round = 0; round < 12; round++) {
        struct world *w = calloc(1, sizeof(*w));
        struct gpt m = {.hidden = 4,
                        .vocab = 9,
                        .padded = 12,
                        .tp = 1 + round % 2,
                        .dp = 1 + round / 2 % 3,
                        .in_file = "model.mtp_layers.",
                        .mtp = round / 6 ? "transformer_layer." : "mtp_model_layer."};
        w->n_ranks = m.tp * m.dp;
        write_text(&m, text, (int)strlen(text));
        for (unsigned r = 0; r < w->n_ranks; r++) {
            wsync_held *held = calloc(16, sizeof(*held)), *h = held;
            const unsigned tp = r / m.dp;
            char name[] = "model.mtp_layers.0.input_proj.weight";
            struct tensor *t = file_tensor(w, name, 4, 8);
            struct rows s;
            rows_new(&s, 4, 8);
            for (unsigned row = 0; row < 4; row++)
                for (unsigned column = 0; column < 8; column++)
                    s.g.values[8 * row + column] = t->values[8 * row + (column + 4) % 8];
            megatron_hold(w, r, &s.g, h++, "mtp.layers.0.eh_proj.weight", 1, WSYNC_SHARD, 0, tp, m.tp);
            free(s.g.values);
            struct gpt outer = m;
            outer.mtp = "";
            for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
                hold_line(w, r, &h, i < 3 ? &outer : &m, &lines[i], 0, 0, 0, tp, m.tp);
            vocabulary(w, r, &h, &m, "embedding.word_embeddings.weight", "model.embed_tokens.weight", tp);
            vocabulary(w, r, &h, &m, "output_layer.weight", "lm_head.weight", tp);
            wsync_extract_options o = {.struct_size = sizeof(o),
                                       .kind = "megatron",
                                       .hf_config = m.config,
                                       .tensor = {tp, m.tp},
                                       .features = features,
                                       .n_features = 1};
            extract_ranges(w, r, &o, held, (size_t)(h - held), m.dp);
        }
        check_world(w);
        unlink(m.config);
        world_free(w);
    }
}

static void take_heads(struct rows *s, const struct tensor *t, unsigned heads, unsigned each, unsigned at,
                       unsigned n)
{
    for (unsigned i = 0; i < heads; i++)
        rows_take(s, t, i * each + at, n);
}

static void close_section(struct rows *s)
{
    uint64_t before = 0;
    for (unsigned i = 0; i < s->g.n_sections; i++)
        before += s->g.sections[i];
    s->g.sections[s->g.n_sections++] = s->next - before;
}

/* The projection of one rank's layer of linear attention, in Qwen3-Next's two tensors. */
static void next_projection(struct world *w, unsigned rank, wsync_held **h, const struct gpt *m, unsigned tp,
                            unsigned kh, unsigned r, unsigned kd, unsigned vd)
{
    const unsigned block = 2 * kd + 2 * r * vd, at[] = {0, kd, 2 * kd, 2 * kd + r * vd},
                   n[] = {kd, kd, r * vd, r * vd};
    const struct tensor *qkvz = file_tensor(w, "model.layers.0.linear_attn.in_proj_qkvz.weight", kh * block,
                                            m->hidden),
                        *ba = file_tensor(w, "model.layers.0.linear_attn.in_proj_ba.weight", kh * 2 * r,
                                          m->hidden);
    struct rows s;
    rows_new(&s, kh * (block + 2 * r), m->hidden);
    for (unsigned i = 0; i < 4; i++) {
        take_heads(&s, qkvz, kh, block, at[i], n[i]);
        close_section(&s);
    }
    for (unsigned i = 0; i < 2; i++) {
        take_heads(&s, ba, kh, 2 * r, i * r, r);
        close_section(&s);
    }
    megatron_hold(w, rank, &s.g, (*h)++, "decoder.layers.0.self_attention.in_proj.weight", 1,
                  WSYNC_SECTION_SHARD, 0, tp, m->tp);
    free(s.g.values);
}

/* The same in Qwen3.5's four, of which the first is query, key and value one below the other. */
static void split_projection(struct world *w, unsigned rank, wsync_held **h, const struct gpt *m, unsigned tp,
                             unsigned kh, unsigned r, unsigned kd, unsigned vd)
{
    const unsigned keys = kh * kd, values = kh * r * vd, n[] = {keys, keys, values};
    const struct tensor *qkv =
        file_tensor(w, "model.layers.0.linear_attn.in_proj_qkv.weight", 2 * keys + values, m->hidden);
    const char *const others[] = {"z", "b", "a"};
    struct rows s;
    rows_new(&s, 2 * keys + 2 * values + 2 * kh * r, m->hidden);
    for (unsigned i = 0; i < 3; i++) {
        rows_take(&s, qkv, i * keys, n[i]);
        close_section(&s);
    }
    for (unsigned i = 0; i < 3; i++) {
        char name[64];
        const unsigned rows = i ? kh * r : values;
        snprintf(name, sizeof(name), "model.layers.0.linear_attn.in_proj_%s.weight", others[i]);
        rows_take(&s, file_tensor(w, name, rows, m->hidden), 0, rows);
        close_section(&s);
    }
    megatron_hold(w, rank, &s.g, (*h)++, "decoder.layers.0.self_attention.in_proj.weight", 1,
                  WSYNC_SECTION_SHARD, 0, tp, m->tp);
    free(s.g.values);
}

/* One rank's layer of linear attention, of `kh` key heads with `r` value heads each, and one of attention with gates. */
static void gated_rank(struct world *w, unsigned rank, wsync_held **h, const struct gpt *m, unsigned tp,
                       unsigned kh, unsigned r, unsigned kd, unsigned vd, bool next)
{
    struct rows s;
    (next ? next_projection : split_projection)(w, rank, h, m, tp, kh, r, kd, vd);
    const uint64_t shape[3] = {kh * (2 * kd + r * vd), 1, 4};
    struct tensor *conv = tensor_named(w, "model.layers.0.linear_attn.conv1d.weight");
    if (!conv)
        conv = tensor_add(w, "model.layers.0.linear_attn.conv1d.weight", 3, shape);
    struct global g = {.n_dims = 3,
                       .shape = {shape[0], shape[1], shape[2]},
                       .values = conv->values,
                       .sections = {kh * kd, kh * kd, kh * r * vd},
                       .n_sections = 3};
    megatron_hold(w, rank, &g, (*h)++, "decoder.layers.0.self_attention.conv1d.weight", 1,
                  WSYNC_SECTION_SHARD, 0, tp, m->tp);
    const struct line lines[] = {
        {"self_attention.in_proj.layer_norm_weight", {"input_layernorm.weight"}, LINE_WHOLE, {m->hidden}, 0},
        {"self_attention.A_log", {"linear_attn.A_log"}, LINE_SHARE, {kh * r}, 0},
        {"self_attention.dt_bias", {"linear_attn.dt_bias"}, LINE_SHARE, {kh * r}, 0},
        {"self_attention.out_proj.weight",
         {"linear_attn.out_proj.weight"},
         LINE_ROW,
         {m->hidden},
         kh * r * vd},
        {"mlp.shared_experts.gate_weight", {"mlp.shared_expert_gate.weight"}, LINE_WHOLE, {1}, m->hidden},
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]) - !next; i++) /* the last one is of experts */
        hold_line(w, rank, h, m, &lines[i], 0, 0, 0, tp, m->tp);
    const unsigned queries = m->heads / m->kv_heads, d = m->head_dim;
    const struct tensor *q = file_tensor(w, "model.layers.1.self_attn.q_proj.weight", 2 * m->heads * d,
                                         m->hidden),
                        *k = file_tensor(w, "model.layers.1.self_attn.k_proj.weight", m->kv_heads * d,
                                         m->hidden),
                        *v = file_tensor(w, "model.layers.1.self_attn.v_proj.weight", m->kv_heads * d,
                                         m->hidden);
    rows_new(&s, 2 * (m->heads + m->kv_heads) * d, m->hidden);
    for (unsigned group = 0; group < m->kv_heads; group++) {
        for (unsigned gate = 0; gate < 2; gate++)
            for (unsigned i = 0; i < queries; i++)
                rows_take(&s, q, ((group * queries + i) * 2 + gate) * d, d);
        rows_take(&s, k, group * d, d);
        rows_take(&s, v, group * d, d);
    }
    megatron_hold(w, rank, &s.g, (*h)++, "decoder.layers.1.self_attention.linear_qkv.weight", 2, WSYNC_SHARD,
                  0, tp, m->tp);
    free(s.g.values);
}

/* Qwen3-Next and Qwen3.5 over tensor parallel ranks, and by ranges of an optimizer. */
static void test_gated(void **state)
{
    static const char *const features[] = {"attention_output_gate", "layernorm_zero_centered_gamma"};
    (void)state;
    for (unsigned round = 0; round < 120; round++) {
        struct world *w = calloc(1, sizeof(*w));
        struct gpt m = {.tp = 1U << below(3),
                        .dp = 1 + below(3),
                        .layers = 2,
                        .hidden = 1 + below(6),
                        .head_dim = 1 + below(4)};
        const bool next = round % 2;
        const unsigned kh = m.tp * (1 + below(2)), r = 1 + below(3), kd = 1 + below(4), vd = 1 + below(4);
        m.kv_heads = 1U << below(3);
        m.heads = m.tp * m.kv_heads * (1 + below(2));
        while (2 * (m.heads + m.kv_heads) * m.head_dim % m.tp)
            m.head_dim++;
        char text[600];
        write_text(
            &m, text,
            snprintf(text, sizeof(text),
                     "{\"model_type\":\"%s\",\"hidden_size\":%u,\"num_attention_heads\":%u,"
                     "\"num_key_value_heads\":%u,\"head_dim\":%u,\"linear_num_key_heads\":%u,"
                     "\"linear_num_value_heads\":%u,\"linear_key_head_dim\":%u,\"linear_value_head_dim\":%u,"
                     "\"linear_conv_kernel_dim\":4}",
                     next ? "qwen3_next" : "qwen3_5_text", m.hidden, m.heads, m.kv_heads, m.head_dim, kh,
                     kh * r, kd, vd));
        w->n_ranks = m.tp * m.dp;
        for (unsigned rank = 0; rank < w->n_ranks; rank++) {
            wsync_held *held = calloc(16, sizeof(*held)), *h = held;
            const unsigned tp = rank / m.dp;
            gated_rank(w, rank, &h, &m, tp, kh, r, kd, vd, next);
            wsync_extract_options o = {.struct_size = sizeof(o),
                                       .kind = "megatron",
                                       .hf_config = m.config,
                                       .tensor = {tp, m.tp},
                                       .features = features,
                                       .n_features = 2};
            extract_ranges(w, rank, &o, held, (size_t)(h - held), m.dp);
        }
        check_world(w);
        unlink(m.config);
        world_free(w);
    }
}

/* A tensor of the file's that Mamba's ranks cut in sections, as it is. */
static void hold_sections(struct world *w, unsigned rank, wsync_held **h, const struct gpt *m, unsigned tp,
                          const char *held, const char *file, unsigned n_dims, const uint64_t *sections,
                          unsigned n, uint64_t columns, uint64_t depth)
{
    struct global g = {.n_dims = n_dims, .shape = {0, columns, depth}, .n_sections = n};
    for (unsigned i = 0; i < n; i++)
        g.shape[0] += g.sections[i] = sections[i];
    struct tensor *t = tensor_named(w, file);
    if (!t)
        t = tensor_add(w, file, n_dims, g.shape);
    g.values = t->values;
    megatron_hold(w, rank, &g, (*h)++, held, 1, WSYNC_SECTION_SHARD, 0, tp, m->tp);
}

/* Nemotron-H: Mamba, attention, MLPs without gates, experts. */
static void test_nemotron_h(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 80; round++) {
        struct world *w = calloc(1, sizeof(*w));
        struct gpt m = {.tp = 1U << below(3), .dp = 1 + below(3), .layers = 2, .in_file = "backbone.layers."};
        const unsigned heads = m.tp * (1 + below(3)), head = 1 + below(4), inner = heads * head,
                       groups = m.tp * (1 + below(2)), states = groups * (1 + below(3)),
                       ff = m.tp * (1 + below(4)), hidden = 1 + below(6), each = m.tp * (1 + below(3)),
                       newer = below(2);
        const uint64_t in_proj[] = {inner, inner, states, states, heads}, conv[] = {inner, states, states};
        char text[500];
        write_text(
            &m, text,
            snprintf(text, sizeof(text),
                     "{\"model_type\":\"nemotron_h\",\"hidden_size\":%u,\"intermediate_size\":%u,"
                     "\"mamba_num_heads\":%u,\"mamba_head_dim\":%u,\"n_groups\":%u,\"ssm_state_size\":%u,"
                     "\"conv_kernel\":4,\"n_routed_experts\":2,\"moe_intermediate_size\":%u,"
                     "\"moe_shared_expert_intermediate_size\":%u,\"num_attention_heads\":%u,\"head_dim\":1}",
                     hidden, ff, heads, head, groups, states / groups, each, 2 * each, 4 * m.tp));
        const struct line lines[] = {
            {"mixer.in_proj.layer_norm_weight", {"norm.weight"}, LINE_WHOLE, {hidden}, 0},
            {"mixer.A_log", {"mixer.A_log"}, LINE_SHARE, {heads}, 0},
            {"mixer.D", {"mixer.D"}, LINE_SHARE, {heads}, 0},
            {"mixer.dt_bias", {"mixer.dt_bias"}, LINE_SHARE, {heads}, 0},
            {"mixer.norm.weight", {"mixer.norm.weight"}, LINE_SHARE, {inner}, 0},
            {"mixer.out_proj.weight", {"mixer.out_proj.weight"}, LINE_ROW, {hidden}, inner},
            {"self_attention.linear_proj.weight", {"mixer.o_proj.weight"}, LINE_ROW, {hidden}, 4 * m.tp},
            {"mlp.linear_fc1.weight", {"mixer.up_proj.weight"}, LINE_SHARE, {ff}, hidden},
            {"mlp.linear_fc2.weight", {"mixer.down_proj.weight"}, LINE_ROW, {hidden}, ff},
            {"mlp.router.weight", {"mixer.gate.weight"}, LINE_WHOLE, {2}, hidden},
            {"mlp.experts.linear_fc1.weight1",
             {"mixer.experts.1.up_proj.weight"},
             LINE_SHARE,
             {each},
             hidden},
            {"mlp.experts.local_experts.0.linear_fc2.weight",
             {"mixer.experts.0.down_proj.weight"},
             LINE_ROW,
             {hidden},
             each},
            {"mlp.shared_experts.linear_fc1.weight",
             {"mixer.shared_experts.up_proj.weight"},
             LINE_SHARE,
             {2 * each},
             hidden},
        };
        w->n_ranks = m.tp * m.dp;
        for (unsigned rank = 0; rank < w->n_ranks; rank++) {
            wsync_held *held = calloc(24, sizeof(*held)), *h = held;
            const unsigned tp = rank / m.dp;
            hold_sections(w, rank, &h, &m, tp, "decoder.layers.0.mixer.in_proj.weight",
                          "backbone.layers.0.mixer.in_proj.weight", 2, in_proj, 5, hidden, 0);
            hold_sections(w, rank, &h, &m, tp,
                          newer ? "decoder.layers.0.mixer.conv1d_weight"
                                : "decoder.layers.0.mixer.conv1d.weight",
                          "backbone.layers.0.mixer.conv1d.weight", 3, conv, 3, 1, 4);
            hold_sections(w, rank, &h, &m, tp,
                          newer ? "decoder.layers.0.mixer.conv1d_bias" : "decoder.layers.0.mixer.conv1d.bias",
                          "backbone.layers.0.mixer.conv1d.bias", 1, conv, 3, 0, 0);
            for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
                hold_line(w, rank, &h, &m, &lines[i], 0, 0, 0, tp, m.tp);
            whole(w, rank, h++, "decoder.final_norm.weight", 0, "backbone.norm_f.weight", hidden, 0);
            wsync_extract_options o = {.struct_size = sizeof(o),
                                       .kind = "megatron",
                                       .hf_config = m.config,
                                       .tensor = {tp, m.tp},
                                       .expert_tensor = {tp, m.tp}};
            extract_ranges(w, rank, &o, held, (size_t)(h - held), m.dp);
        }
        check_world(w);
        unlink(m.config);
        world_free(w);
    }
}

/* Families that differ in a few rows only. */
static void test_few_rows(void **state)
{
    static const struct {
        const char *model_type, *feature;
        struct line lines[5];
    } all[] = {
        {"glm4",
         "",
         {{"mlp.linear_fc1.weight", {"mlp.gate_up_proj.weight"}, LINE_SECTIONS, {16}, 4},
          {"mlp.linear_fc2.weight", {"mlp.down_proj.weight"}, LINE_ROW, {4}, 8},
          {"mlp.linear_fc1.layer_norm_weight", {"post_attention_layernorm.weight"}, LINE_WHOLE, {4}, 0},
          {"post_self_attn_layernorm.weight", {"post_self_attn_layernorm.weight"}, LINE_WHOLE, {4}, 0},
          {"post_mlp_layernorm.weight", {"post_mlp_layernorm.weight"}, LINE_WHOLE, {4}, 0}}},
        {"gemma2",
         "layernorm_zero_centered_gamma",
         {{"mlp.linear_fc1.weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, LINE_SECTIONS, {8, 8}, 4},
          {"self_attention.linear_qkv.layer_norm_weight", {"input_layernorm.weight"}, LINE_WHOLE, {4}, 0},
          {"mlp.linear_fc1.layer_norm_weight", {"pre_feedforward_layernorm.weight"}, LINE_WHOLE, {4}, 0},
          {"self_attention.linear_proj.post_layernorm.weight",
           {"post_attention_layernorm.weight"},
           LINE_WHOLE,
           {4},
           0},
          {"mlp.linear_fc2.post_layernorm.weight",
           {"post_feedforward_layernorm.weight"},
           LINE_WHOLE,
           {4},
           0}}},
        {"gemma3_text",
         "layernorm_zero_centered_gamma",
         {{"self_attention.q_layernorm.weight", {"self_attn.q_norm.weight"}, LINE_WHOLE, {2}, 0},
          {"self_attention.linear_proj.weight", {"self_attn.o_proj.weight"}, LINE_ROW, {4}, 4},
          {"pre_mlp_layernorm.weight", {"pre_feedforward_layernorm.weight"}, LINE_WHOLE, {4}, 0},
          {"self_attention.linear_proj.post_layernorm.weight",
           {"post_attention_layernorm.weight"},
           LINE_WHOLE,
           {4},
           0},
          {"mlp.linear_fc2.post_layernorm.weight",
           {"post_feedforward_layernorm.weight"},
           LINE_WHOLE,
           {4},
           0}}},
        {"qwen3_next", /* transformers' own module, as slime and miles put it in */
         "layernorm_zero_centered_gamma",
         {{"self_attention.linear_attn.in_proj_qkvz.weight",
           {"linear_attn.in_proj_qkvz.weight"},
           LINE_WHOLE,
           {12},
           4},
          {"self_attention.linear_attn.A_log", {"linear_attn.A_log"}, LINE_WHOLE, {2}, 0},
          {"self_attention.linear_attn.norm.weight", {"linear_attn.norm.weight"}, LINE_WHOLE, {3}, 0},
          {"self_attention.linear_attn.out_proj.weight", {"linear_attn.out_proj.weight"}, LINE_WHOLE, {4}, 6},
          {"self_attention.input_layernorm.weight", {"input_layernorm.weight"}, LINE_WHOLE, {4}, 0}}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct world *w = calloc(1, sizeof(*w));
        struct gpt m = {.tp = 2, .layers = 2};
        char text[400];
        write_text(
            &m, text,
            snprintf(
                text, sizeof(text),
                "{\"model_type\":\"%s\",\"hidden_size\":4,\"intermediate_size\":8,\"num_attention_heads\":2,"
                "\"head_dim\":2,\"vocab_size\":9,\"linear_num_value_heads\":2,\"linear_value_head_dim\":3}",
                all[i].model_type));
        w->n_ranks = m.tp;
        for (unsigned rank = 0; rank < m.tp; rank++) {
            wsync_held held[6] = {{0}}, *h = held;
            for (unsigned k = 0; k < 5; k++)
                if (all[i].lines[k].rows[0] != 16)
                    hold_line(w, rank, &h, &m, &all[i].lines[k], 0, 0, 0, rank, m.tp);
                else /* one tensor of the file's, held in two sections */
                    hold_sections(w, rank, &h, &m, rank, "decoder.layers.0.mlp.linear_fc1.weight",
                                  "model.layers.0.mlp.gate_up_proj.weight", 2, (const uint64_t[]){8, 8}, 2, 4,
                                  0);
            const wsync_extract_options o = {.struct_size = sizeof(o),
                                             .kind = "megatron",
                                             .hf_config = m.config,
                                             .tensor = {rank, m.tp},
                                             .features = &all[i].feature,
                                             .n_features = 1};
            extract(w, rank, &o, held, (size_t)(h - held));
        }
        check_world(w);
        unlink(m.config);
        world_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_latent_family), cmocka_unit_test(test_mimo),     cmocka_unit_test(test_gated),
        cmocka_unit_test(test_nemotron_h),    cmocka_unit_test(test_few_rows),
    };
    return cmocka_run_group_tests_name("megatron_families", tests, NULL, NULL);
}
