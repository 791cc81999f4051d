"""Ranks of Megatron-core over gloo, of the families that need Transformer Engine's specs (by a stand-in for it): megatron_family_ranks.py
CASE... As in megatron_ranks.py, a random Hugging Face model is split here by concatenating and chunking whole tensors, and equal logits
show that the split is right."""
import json
import os
import sys
import types

os.environ["TRANSFORMER_ENGINE"] = "1"
os.environ["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0"  # linear attention in plain torch
_LINEAR = {"fla": {}, "fla.modules": {}, "fla.modules.l2norm": {"l2norm": lambda x, eps=1e-6: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)},
           "fla.ops": {}, "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": None}}  # a package that Megatron imports, and transformers must not find
for _name, _members in _LINEAR.items():
    sys.modules[_name] = types.ModuleType(_name)
    vars(sys.modules[_name]).update(_members)
import megatron_ranks as base
import torch
import torch.distributed as dist
from megatron.core import parallel_state as ps
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.experimental_attention_variant_module_specs import get_transformer_block_with_experimental_attention_variant_spec
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

for _name in _LINEAR:
    del sys.modules[_name]
from megatron_ranks import D, F, H, HEADS, KV, MOE_F, V, mine
from safetensors.torch import save_file
from transformers import (DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM, Glm4MoeConfig, Glm4MoeForCausalLM,
                          MixtralConfig, MixtralForCausalLM, Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig,
                          Qwen3NextConfig, Qwen3NextForCausalLM)

import wsync
from common import EXPECTED, main, publisher, rank, save

E, L, SHARED = 8, 4, 2
LATENT = dict(kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=16)
SIZES = dict(vocab_size=V, hidden_size=H, num_hidden_layers=L, num_attention_heads=HEADS, rms_norm_eps=1e-6, num_experts_per_tok=2,
             tie_word_embeddings=False, rope_theta=10000.0, attn_implementation="eager")
EXPERTS = dict(intermediate_size=F, moe_intermediate_size=MOE_F, n_routed_experts=E, n_shared_experts=SHARED, first_k_dense_replace=1)
GROUPS = dict(n_group=2, topk_group=1, routed_scaling_factor=2.5)
SIGMOID = dict(moe_router_score_function="sigmoid", moe_router_enable_expert_bias=True, moe_router_num_groups=2, moe_router_group_topk=1,
               moe_router_topk_scaling_factor=2.5)


def latent(q_lora_rank):
    return dict(q_lora_rank=q_lora_rank, kv_lora_rank=16, qk_head_dim=12, qk_pos_emb_head_dim=8, v_head_dim=16, rope_type="rope", rotary_base=10000,
                rotary_percent=1.0, multi_latent_attention=True, qk_layernorm=True)


def deepseek(q_lora_rank):
    hf = DeepseekV3ForCausalLM(DeepseekV3Config(**SIZES, **EXPERTS, **GROUPS, **LATENT, q_lora_rank=q_lora_rank, num_key_value_heads=HEADS))
    return hf, {**latent(q_lora_rank), **SIGMOID}, 1.0


def with_mtp(family):
    """A layer of multi-token prediction behind the others, of which transformers has no forward: its tensors are random, and in the file's names."""

    def made():
        hf, options, rotary = family()
        hf.config.num_nextn_predict_layers = 1
        last, own, w = f"model.layers.{L - 1}.", f"model.layers.{L}.", {"eh_proj.weight": (H, 2 * H)}
        w.update({f"{norm}.weight": (H,) for norm in ("enorm", "hnorm", "shared_head.norm")})
        w.update({n[len(last):]: t.shape for n, t in hf.state_dict().items() if n.startswith(last)})
        hf.mtp = {own + n: torch.randn(shape) for n, shape in w.items()}
        return hf, {**options, "mtp_num_layers": 1}, rotary

    return made


def save_with_mtp(name, version, hf):
    save(name, version, hf)
    if hasattr(hf, "mtp") and rank() == 0:
        own, file = f"model.layers.{L}.", dict(hf.mtp)
        file[own + "embed_tokens.weight"], file[own + "shared_head.head.weight"] = hf.model.embed_tokens.weight, hf.lm_head.weight
        both, down = file.pop(own + "mlp.experts.gate_up_proj"), file.pop(own + "mlp.experts.down_proj")
        for e in range(E):
            file[f"{own}mlp.experts.{e}.down_proj.weight"] = down[e]
            for what, t in zip(("gate", "up"), both[e].chunk(2)):
                file[f"{own}mlp.experts.{e}.{what}_proj.weight"] = t
        save_file({n: t.detach().contiguous().clone() for n, t in file.items()}, os.path.join(EXPECTED, name, str(version), "mtp.safetensors"))
    dist.barrier()


def deepseek2():
    hf = DeepseekV2ForCausalLM(DeepseekV2Config(**SIZES, **EXPERTS, **LATENT, q_lora_rank=24, num_key_value_heads=HEADS, topk_method="greedy",
                                                routed_scaling_factor=1.0))
    return hf, {**latent(24), "moe_router_pre_softmax": True}, 1.0


def glm():
    hf = Glm4MoeForCausalLM(Glm4MoeConfig(**SIZES, **EXPERTS, **GROUPS, num_key_value_heads=KV, head_dim=D, attention_bias=True, use_qk_norm=True,
                                          partial_rotary_factor=0.5))
    return hf, dict(SIGMOID, num_query_groups=KV, kv_channels=D, add_qkv_bias=True, qk_layernorm=True), 0.5


def mixtral():
    hf = MixtralForCausalLM(MixtralConfig(**SIZES, intermediate_size=MOE_F, num_local_experts=E, num_key_value_heads=KV, head_dim=D, sliding_window=None))
    return hf, dict(num_query_groups=KV, kv_channels=D), 1.0


LINEAR = dict(linear_key_head_dim=8, linear_value_head_dim=12, linear_num_key_heads=4, linear_num_value_heads=8, linear_conv_kernel_dim=4)
GATED = dict(LINEAR, num_query_groups=KV, kv_channels=D, qk_layernorm=True, attention_output_gate=True, deterministic_mode=True,
             experimental_attention_variant="gated_delta_net", linear_attention_freq=4, transformer_impl="transformer_engine",
             layernorm_zero_centered_gamma=True)


ONE_SHARED = dict(moe_shared_expert_intermediate_size=MOE_F, moe_shared_expert_gate=True)


def qwen3_5(experts=False):
    sizes = {k: v for k, v in SIZES.items() if k != "rope_theta" and (experts or k != "num_experts_per_tok")}
    sizes.update(LINEAR, num_key_value_heads=KV, head_dim=D, rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0]})
    if experts:
        hf = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**sizes, num_experts=E, moe_intermediate_size=MOE_F, shared_expert_intermediate_size=MOE_F))
        return hf, dict(GATED, **ONE_SHARED), 0.25
    return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**sizes, intermediate_size=F)), dict(GATED, num_moe_experts=None), 0.25


def qwen3_next():
    hf = Qwen3NextForCausalLM(Qwen3NextConfig(**SIZES, **LINEAR, intermediate_size=F, num_key_value_heads=KV, head_dim=D, num_experts=E,
                                              moe_intermediate_size=MOE_F, shared_expert_intermediate_size=MOE_F, norm_topk_prob=True))
    return hf, dict(GATED, **ONE_SHARED), 0.25


def hugging_face(family):
    torch.manual_seed(0)
    hf, options, rotary = family()
    with torch.no_grad():
        for p in hf.parameters():
            # less one and plus one again, a norm of these sizes is the same
            p.copy_((torch.randn_like(p) * 0.1 + 1.0).clamp(0.6, 1.3) if p.dim() == 1 else torch.randn_like(p) * 0.1)
        for name, b in hf.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.copy_(torch.randn_like(b) * 0.1)
    return hf.eval(), options, rotary


def megatron(options, rotary, dense, tp, pp, ep, etp):
    shared = dict(moe_layer_freq=[0] * dense + [1] * (L - dense), moe_shared_expert_intermediate_size=SHARED * MOE_F) if dense else {}
    experts = {} if "num_moe_experts" in options else dict(
        num_moe_experts=E, moe_router_topk=2, moe_ffn_hidden_size=MOE_F, moe_router_load_balancing_type="none", moe_aux_loss_coeff=0.0,
        moe_token_dispatcher_type="allgather", moe_permute_fusion=False, moe_grouped_gemm=True)
    cls = MLATransformerConfig if options.get("multi_latent_attention") else TransformerConfig
    config = cls(
        num_layers=L, hidden_size=H, ffn_hidden_size=F, num_attention_heads=HEADS, use_cpu_initialization=True, tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp, pipeline_dtype=torch.float32,
        params_dtype=torch.float32, normalization="RMSNorm", layernorm_epsilon=1e-6, add_bias_linear=False, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        apply_rope_fusion=False, gradient_accumulation_fusion=False, hidden_dropout=0.0, attention_dropout=0.0, attention_softmax_in_fp32=True,
        **experts, **shared, **options)  # fmt: skip
    padded = -(-V // (8 * tp)) * 8 * tp
    spec = (get_transformer_block_with_experimental_attention_variant_spec(config) if config.experimental_attention_variant else
            get_gpt_decoder_block_spec(config, use_transformer_engine=True, normalization="RMSNorm"))
    mtp = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=True) if config.mtp_num_layers else None
    return GPTModel(config=config, transformer_layer_spec=spec, mtp_block_spec=mtp, vocab_size=padded, max_sequence_length=32, pre_process=ps.is_pipeline_first_stage(), post_process=ps.is_pipeline_last_stage(),
                    parallel_output=False, share_embeddings_and_output_weights=False, position_embedding_type="rope", rotary_base=10000,
                    rotary_percent=rotary).eval()


def layer_of(whole, h, tp, ep, etp):
    """One layer's local tensors, below the layer."""
    has = lambda name: h + name in whole
    w = lambda name: whole[h + name]
    local, s, a = {}, "self_attention.", "self_attn."
    if has(a + "kv_b_proj.weight"):
        local["input_layernorm.weight"] = w("input_layernorm.weight")
        if has(a + "q_proj.weight"):
            local[s + "linear_q_proj.weight"] = mine(w(a + "q_proj.weight"), 0, tp)
        else:
            local[s + "linear_q_down_proj.weight"] = w(a + "q_a_proj.weight")  # every rank has all of it
            local[s + "linear_q_up_proj.layer_norm_weight"] = w(a + "q_a_layernorm.weight")
            local[s + "linear_q_up_proj.weight"] = mine(w(a + "q_b_proj.weight"), 0, tp)
        local[s + "linear_kv_down_proj.weight"] = w(a + "kv_a_proj_with_mqa.weight")
        local[s + "linear_kv_up_proj.layer_norm_weight"] = w(a + "kv_a_layernorm.weight")
        local[s + "linear_kv_up_proj.weight"] = mine(w(a + "kv_b_proj.weight"), 0, tp)
    elif has("linear_attn.A_log"):
        return {**linear_attention(lambda name: w("linear_attn." + name), tp, has("linear_attn.in_proj_z.weight")), s + "in_proj.layer_norm_weight": w("input_layernorm.weight"),
                **experts_of(whole, h, tp, ep, etp)}
    elif w(a + "q_proj.weight").shape[0] == 2 * HEADS * D:  # with gates
        q = w(a + "q_proj.weight").view(KV, HEADS // KV, 2, D, H)
        groups = [torch.cat([q[g, :, 0].reshape(-1, H), q[g, :, 1].reshape(-1, H), *(w(f"{a}{x}_proj.weight").chunk(KV)[g] for x in "kv")]) for g in range(KV)]
        local[s + "linear_qkv.layer_norm_weight"], local[s + "linear_qkv.weight"] = w("input_layernorm.weight"), mine(torch.cat(groups), 0, tp)
        for x in "qk":
            local[f"{s}{x}_layernorm.weight"] = w(f"{a}{x}_norm.weight")
    else:
        local[s + "linear_qkv.layer_norm_weight"] = w("input_layernorm.weight")
        for what in ("weight", "bias"):
            if has(f"{a}q_proj.{what}"):
                groups = [torch.cat(g) for g in zip(*(w(f"{a}{x}_proj.{what}").chunk(KV) for x in "qkv"))]
                local[f"{s}linear_qkv.{what}"] = mine(torch.cat(groups), 0, tp)
        for x in "qk":
            if has(f"{a}{x}_norm.weight"):
                local[f"{s}{x}_layernorm.weight"] = w(f"{a}{x}_norm.weight")
    local[s + "linear_proj.weight"] = mine(w(a + "o_proj.weight"), 1, tp)
    return {**local, **experts_of(whole, h, tp, ep, etp)}


def linear_attention(w, tp, split):
    """Of w(name below linear_attn), which have query, key, value and gate of each key head together; Megatron has them one behind the other."""
    s, keys, ratio, kd, vd = "self_attention.", 4, 2, 8, 12
    if split:  # Qwen3.5's file has them as Megatron has
        parts = [*w("in_proj_qkv.weight").split([keys * kd, keys * kd, keys * ratio * vd]), *(w(f"in_proj_{x}.weight") for x in "zba")]
    else:
        x, ba = w("in_proj_qkvz.weight").view(keys, -1, H), w("in_proj_ba.weight").view(keys, -1, H)
        parts = [*x.split([kd, kd, ratio * vd, ratio * vd], 1), *ba.split([ratio, ratio], 1)]
    return {s + "in_proj.weight": torch.cat([mine(p.reshape(-1, H), 0, tp) for p in parts]),
            s + "conv1d.weight": torch.cat([mine(p, 0, tp) for p in w("conv1d.weight").split([keys * kd, keys * kd, keys * ratio * vd])]),
            s + "A_log": mine(w("A_log"), 0, tp), s + "dt_bias": mine(w("dt_bias"), 0, tp),
            s + "out_norm.weight": w("norm.weight") - 1, s + "out_proj.weight": mine(w("out_proj.weight"), 1, tp)}


def experts_of(whole, h, tp, ep, etp):
    """What is behind attention: an MLP, or experts, and its norm."""
    has = lambda name: h + name in whole
    w = lambda name: whole[h + name]
    local = {}
    norm = w("post_attention_layernorm.weight")
    glu = lambda gate, up, group: torch.cat([mine(gate, 0, group), mine(up, 0, group)])
    mlp = lambda to, of: local.update({to + "linear_fc1.weight": glu(w(of + "gate_proj.weight"), w(of + "up_proj.weight"), tp),
                                       to + "linear_fc2.weight": mine(w(of + "down_proj.weight"), 1, tp)})
    if has("mlp.gate_proj.weight"):
        local["mlp.linear_fc1.layer_norm_weight"] = norm
        mlp("mlp.", "mlp.")
        return local
    local["pre_mlp_layernorm.weight"], local["mlp.router.weight"] = norm, w("mlp.gate.weight")
    if has("mlp.gate.e_score_correction_bias"):
        local["mlp.router.expert_bias"] = w("mlp.gate.e_score_correction_bias")
    if has("mlp.shared_experts.gate_proj.weight"):
        mlp("mlp.shared_experts.", "mlp.shared_experts.")
    if has("mlp.shared_expert.gate_proj.weight"):
        mlp("mlp.shared_experts.", "mlp.shared_expert.")
        local["mlp.shared_experts.gate_weight"] = w("mlp.shared_expert_gate.weight")
    for j, e in enumerate(range(E)[ep[0] * E // ep[1] : (ep[0] + 1) * E // ep[1]]):
        local[f"mlp.experts.linear_fc1.weight{j}"] = glu(*w("mlp.experts.gate_up_proj")[e].chunk(2), etp)
        local[f"mlp.experts.linear_fc2.weight{j}"] = mine(w("mlp.experts.down_proj")[e], 1, etp)
    return local


def tensors_of(model):
    """What the file has: the parameters, and the router's bias, which is a buffer."""
    return {**dict(model.named_parameters()), **{n: b for n, b in model.named_buffers() if n.endswith(("expert_bias", "e_score_correction_bias"))}}


def fill(model, hf):
    whole = {**hf.state_dict(), **getattr(hf, "mtp", {})}
    tp, ep, etp = ((getattr(ps, f"get_{g}_parallel_rank")(), getattr(ps, f"get_{g}_parallel_world_size")())
                   for g in ("tensor_model", "expert_model", "expert_tensor"))
    local, held = {}, tensors_of(model)
    for name, of in (("embedding.word_embeddings.weight", "model.embed_tokens.weight"), ("output_layer.weight", "lm_head.weight")):
        if name in held:
            local[name] = mine(torch.cat([whole[of], torch.zeros(held[name].shape[0] * tp[1] - V, H)]), 0, tp)
    if model.post_process:
        local["decoder.final_layernorm.weight"] = whole["model.norm.weight"]
    for i, layer in enumerate(model.decoder.layers):
        below = layer_of(whole, f"model.layers.{layer.layer_number - 1}.", tp, ep, etp)
        local.update({f"decoder.layers.{i}.{name}": t for name, t in below.items()})
    for k, layer in enumerate(model.mtp.layers if getattr(model, "mtp", None) else ()):
        h, m = f"model.layers.{L + layer.layer_number - 1}.", f"mtp.layers.{k}."
        local.update({m + name + ".weight": whole[f"{h}{of}.weight"] for name, of in (("enorm", "enorm"), ("hnorm", "hnorm"), ("final_layernorm", "shared_head.norm"))})
        local[m + "eh_proj.weight"] = mine(whole[h + "eh_proj.weight"], 0, tp)
        local.update({f"{m}transformer_layer.{name}": t for name, t in layer_of(whole, h, tp, ep, etp).items()})
    if model.config.layernorm_zero_centered_gamma and "model.layers.0.linear_attn.A_log" not in whole:  # where the file's norms are not, too
        local.update({name: t - 1 for name, t in local.items() if name.endswith(("layernorm.weight", "layer_norm_weight"))})
    with torch.no_grad():
        for name, p in held.items():
            assert p.shape == local[name].shape, (name, p.shape, local[name].shape)
            p.copy_(local.pop(name))
    assert not local, sorted(local)


def case(family, tp, pp=1, ep=1, etp=1, model_type=None, zero_centred=False):
    def go(name):
        ps.initialize_model_parallel(tp, pp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
        hf, options, rotary = hugging_face(family)
        options.setdefault("layernorm_zero_centered_gamma", zero_centred)
        model = megatron(options, rotary, getattr(hf.config, "first_k_dense_replace", 0), tp, pp, ep, etp)
        fill(model, hf)
        predicted, model.config.mtp_num_layers = model.config.mtp_num_layers, None  # its layers run, behind the decoder's logits; they have no labels here
        base.check_logits([model], hf)
        model.config.mtp_num_layers = predicted
        pub = None
        for version in (1, 2):
            save_with_mtp(name, version, hf)
            pub = pub or publisher(name, wsync.megatron(model), folder=renamed(name, model_type))
            pub.offload(version)
            pub.wait_published(version)
            with torch.no_grad():
                for t in (*tensors_of(hf).values(), *getattr(hf, "mtp", {}).values()):
                    t.mul_(1.5)
            fill(model, hf)
        pub.close()
        ps.destroy_model_parallel()

    return go


def renamed(name, model_type):
    """The folder of a config.json with another model_type, of a model that transformers has no class for."""
    if model_type is None:
        return None
    folder = os.path.join(EXPECTED, f"{name}-{model_type}-{rank()}")
    with open(os.path.join(EXPECTED, name, "1", "config.json"), encoding="utf-8") as f:
        config = {**json.load(f), "model_type": model_type}
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return folder


FAMILIES = {"deepseek": lambda: deepseek(24), "moonlight": lambda: deepseek(None), "deepseek2": deepseek2, "glm": glm, "mixtral": mixtral,
            "deepseek-mtp": with_mtp(lambda: deepseek(24)), "glm-mtp": with_mtp(glm), "qwen3-next": qwen3_next, "qwen3.5": qwen3_5,
            "qwen3.5-moe": lambda: qwen3_5(experts=True)}
CASES = {f"{name}{suffix}": case(family, *sizes) for name, family in FAMILIES.items() for suffix, sizes in {
    "": (1,), "-tp2": (2, 1, 1, 2), "-pp2": (1, 2), "-tp2-ep2": (2, 1, 2), "-ep2": (1, 1, 2), "-tp4": (4, 1, 1, 4), "-tp2-pp2-ep2": (2, 2, 2),
    "-pp2-ep2": (1, 2, 2), "-etp2-ep2": (2, 1, 2, 2)}.items()}  # fmt: skip
CASES["kimi"] = case(FAMILIES["deepseek"], 2, 1, 2, model_type="kimi_k2")
CASES["glm-zero-centred"] = case(glm, 2, etp=2, zero_centred=True)
CASES["deepseek-zero-centred"] = case(FAMILIES["deepseek"], 1, 2, zero_centred=True)
if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(CASES)
