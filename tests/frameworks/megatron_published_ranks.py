"""Ranks that hold a tiny model as a published configuration of slime, verl or NeMo-RL makes it: megatron_published_ranks.py CASE... mbridge
builds the model with that configuration's flags, loads a random Hugging Face checkpoint into it and wraps it in Megatron's DDP; Megatron's
distributed optimizer makes two steps. wsync publishes each, and mbridge gathers the same weights as verl and slime do.

Published sizes are divided so that four ranks hold the model; the kinds of parallelism are those of the publication. Gradients are random
numbers, the same on ranks that hold copies: a stand-in for Transformer Engine has no tensor-parallel backward."""
import os
import sys
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../real/trainers"))
import transformer_engine_stand_in  # noqa: F401

del sys.modules["transformer_engine.pytorch.optimizers"]  # Megatron then takes torch's Adam, and norms and scales of its own
import megatron_on_cpu  # noqa: F401
import torch
import torch.distributed as dist
from mbridge import AutoBridge
from mbridge.core import LLMBridge
from mbridge.models import DeepseekV3Bridge
from megatron.core import parallel_state as ps
from megatron.core.distributed.finalize_model_grads import _update_router_expert_bias
from megatron.core.extensions.transformer_engine import TEDotProductAttention
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import MLATransformerConfig
from safetensors.torch import save_file
from transformers import (DeepseekV3Config, DeepseekV3ForCausalLM, Glm4MoeConfig, Glm4MoeForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM)

import wsync
from common import EXPECTED, main, publisher, rank

TEDotProductAttention.cp_stream = object()  # CUDA's, of which the stand-in has no use
# mbridge calls an option as Megatron-core did until 0.15.
DeepseekV3Bridge.TransformerConfigClass = staticmethod(
    lambda max_position_embeddings, **options: MLATransformerConfig(**options, original_max_position_embeddings=max_position_embeddings))
DeepseekV3Bridge._get_safetensor_io = LLMBridge._get_safetensor_io  # its own reads to a GPU, for files in FP8
H, HEADS, KV, D, F, MOE_F, E, V = 48, 4, 2, 16, 64, 32, 8, 104
SIZES = dict(vocab_size=V, hidden_size=H, intermediate_size=F, num_attention_heads=HEADS, rms_norm_eps=1e-6, max_position_embeddings=64)
GROUPED = dict(num_key_value_heads=KV, head_dim=D)
ROUTED = dict(moe_intermediate_size=MOE_F, num_experts_per_tok=2)
SHARED = dict(n_routed_experts=E, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, routed_scaling_factor=2.5,
              num_nextn_predict_layers=0, tie_word_embeddings=False)
LATENT = dict(kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=16, num_key_value_heads=HEADS)


def qwen3(layers):
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, **GROUPED, num_hidden_layers=layers, tie_word_embeddings=True))


def qwen3_moe(layers):
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **GROUPED, **ROUTED, num_hidden_layers=layers, num_experts=E, tie_word_embeddings=False))


def deepseek(q_lora_rank):
    return lambda layers: DeepseekV3ForCausalLM(DeepseekV3Config(**SIZES, **ROUTED, **SHARED, **LATENT, num_hidden_layers=layers, q_lora_rank=q_lora_rank))


def glm(layers):
    return Glm4MoeForCausalLM(Glm4MoeConfig(**SIZES, **GROUPED, **ROUTED, **SHARED, num_hidden_layers=layers, attention_bias=True, use_qk_norm=True))


# What all of a framework's scripts have: flags of the model, of DDP and of the optimizer.
RECOMPUTE = dict(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
SLIME = dict(model=dict(RECOMPUTE, attention_dropout=0.0, hidden_dropout=0.0, attention_softmax_in_fp32=True), ddp=dict(grad_reduce_in_fp32=True),
             optimizer=dict(weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.98))
VERL = dict(model=dict(moe_router_dtype="fp32"), ddp=dict(grad_reduce_in_fp32=True), optimizer=dict(weight_decay=0.1))
NEMO = dict(model=dict(moe_router_dtype="fp64", moe_router_load_balancing_type="none", moe_router_bias_update_rate=0.0, moe_shared_expert_overlap=False,
                       apply_rope_fusion=False),
            ddp=dict(grad_reduce_in_fp32=False), optimizer=dict(weight_decay=0.01, adam_beta1=0.9, adam_beta2=0.999, clip_grad=1.0))
# Not on a CPU: fused kernels, DeepEP's dispatcher, averages in gloo's collectives, the precision-aware optimizer, whose Adam is Transformer Engine's.
CPU = dict(masked_softmax_fusion=False, bias_activation_fusion=False, bias_dropout_fusion=False, gradient_accumulation_fusion=False, persist_layer_norm=False,
           moe_token_dispatcher_type="allgather", variable_seq_lengths=False, moe_shared_expert_overlap=False, attention_backend="auto")

# (model, layers, flags, parallel sizes, more flags of the model). The names are the scripts': slime's scripts/run-*.sh, verl's
# examples/grpo_trainer/run_*.sh, NeMo-RL's recipes grpo-*.yaml.
PUBLISHED = {
    "slime-qwen3-4B": (qwen3, 2, SLIME, dict(tp=2), {}),
    "slime-qwen3-30B-A3B": (qwen3_moe, 2, SLIME, dict(tp=2, ep=4), {}),  # TP 4, EP 8
    "slime-glm4.5-355B-A32B": (glm, 2, SLIME, dict(tp=2, cp=2, ep=2), {}),  # TP 8, PP 4, CP 2, EP 16
    "verl-qwen3moe-30b": (qwen3_moe, 2, VERL, dict(ep=2), {}),  # EP 8
    "verl-deepseek671b": (deepseek(24), 4, VERL, dict(pp=2, ep=2), dict(  # PP 16, EP 16
        RECOMPUTE, num_layers_in_first_pipeline_stage=3, num_layers_in_last_pipeline_stage=1)),
    "nemo-rl-moonlight-16ba3b": (deepseek(None), 5, NEMO, dict(pp=2, ep=2), dict(  # 14 and 13 layers
        num_layers_in_first_pipeline_stage=3, num_layers_in_last_pipeline_stage=2)),
}  # fmt: skip


def checkpoint(name, make, layers):
    """The folder of a random model's checkpoint, which rank 0 writes, and its config with the attributes that mbridge looks for."""
    torch.manual_seed(0)
    folder, hf = os.path.join(EXPECTED, name + "-start"), make(layers).to(torch.bfloat16)
    with torch.no_grad():
        for p in hf.parameters():
            p.copy_(torch.randn_like(p) * 0.1 + (1.0 if p.dim() == 1 else 0))
    if rank() == 0:
        hf.save_pretrained(folder)
    dist.barrier()
    hf.config.rope_theta = 10000.0  # transformers 5 has these among rope_parameters
    hf.config.partial_rotary_factor = 0.5
    return folder, hf.config


def mark(chunks):
    """As Transformer Engine marks biases that are cut; its stand-in marks weights only, and mbridge gathers what is marked."""
    for m in (m for chunk in chunks for m in chunk.modules()):
        if getattr(m, "parallel_mode", None) == "column" and getattr(m, "bias", None) is not None:
            m.bias.tensor_model_parallel, m.bias.partition_dim, m.bias.partition_stride = True, 0, 1


def give_gradients(chunks, step):
    """Random ones: ranks of one data-parallel group have different ones, ranks that hold copies of a tensor the same."""
    for chunk in chunks:
        for name, p in chunk.module.named_parameters():
            dense = getattr(p, "allreduce", True)
            replica = ps.get_data_parallel_rank(with_context_parallel=True) if dense else ps.get_expert_data_parallel_rank()
            generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {step} {replica}".encode()))
            p.main_grad.copy_(torch.randn(p.shape, generator=generator))
        for router in (m for m in chunk.modules() if getattr(m, "expert_bias", None) is not None):
            router.local_tokens_per_expert.copy_(torch.arange(E) + rank())


def step(chunks, optimizer, number):
    for chunk in chunks:
        chunk.zero_grad_buffer()
    optimizer.zero_grad()
    give_gradients(chunks, number)
    for chunk in chunks:
        if chunk.ddp_config.overlap_grad_reduce:
            chunk.start_grad_sync()
        chunk.finish_grad_sync()
    if chunks[0].config.moe_router_enable_expert_bias:
        _update_router_expert_bias(chunks, chunks[0].config)
    assert optimizer.step()[0]


def gather(bridge, chunks, name, version):
    """Saves what mbridge gathers."""
    with torch.no_grad():
        whole = {n: t.detach().clone().contiguous() for n, t in bridge.export_weights(chunks)}
    if rank() == 0:
        folder = os.path.join(EXPECTED, name, str(version))
        os.makedirs(folder)
        save_file(whole, os.path.join(folder, "model.safetensors"))
    dist.barrier()


def case(make, layers, flags, sizes, more, overlaps):
    def go(name):
        ps.initialize_model_parallel(sizes.get("tp", 1), sizes.get("pp", 1), context_parallel_size=sizes.get("cp", 1),
                                     expert_model_parallel_size=sizes.get("ep", 1), expert_tensor_parallel_size=1)
        folder, config = checkpoint(name, make, layers)
        bridge = AutoBridge.from_config(config)
        bridge.set_extra_args(**{**flags["model"], **more, **CPU})
        overlap = dict(overlap_grad_reduce=overlaps, overlap_param_gather=overlaps)
        chunks = bridge.get_model(wrap_with_ddp=True, ddp_config=dict(flags["ddp"], **overlap, use_distributed_optimizer=True, bucket_size=20000))
        mark(chunks)
        with torch.no_grad():
            bridge.load_weights(chunks, folder)
        optimizer = get_megatron_optimizer(
            OptimizerConfig(optimizer="adam", lr=1e-2, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True,
                            overlap_param_gather=overlaps, **flags["optimizer"]), chunks)
        held = [p for chunk in chunks for p in chunk.module.parameters()]
        for version, options in enumerate((dict(optimizer=optimizer), {}), 1):
            old = [p.detach().clone() for p in held]
            step(chunks, optimizer, version)
            late = sum((p == was).all().item() for p, was in zip(held, old))
            pub = publisher(name, wsync.megatron(chunks, **options), folder=folder)
            pub.offload(version)
            pub.wait_published(version)
            pub.close()
            for chunk in chunks if overlaps else ():
                chunk.start_param_sync(force_sync=True)
            assert all((p != was).any() for p, was in zip(held, old)) and overlaps == (late > 0), late
            gather(bridge, chunks, name, version)
        ps.destroy_model_parallel()

    return go


CASES = {name + suffix: case(*published, overlaps) for name, published in PUBLISHED.items() for suffix, overlaps in (("", False), ("-overlap", True))}
if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(CASES)
