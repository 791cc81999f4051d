"""Ranks of Megatron-core over gloo: megatron_ranks.py CASE... A random Hugging Face model is split into Megatron's tensors here by
concatenating and chunking whole tensors; equal logits show that the split is right."""
import contextlib
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"
import torch
import torch.distributed as dist

torch.cuda.current_device = lambda: "cpu"  # device functions that Megatron-core calls, for a machine without a GPU
torch.Tensor.cuda = lambda self, *a, **k: self
from megatron.core import parallel_state as ps
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel import random as megatron_random
from megatron.core.transformer.moe import router
from megatron.core.transformer.transformer_config import TransformerConfig
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

megatron_random.CudaRNGStatesTracker.fork = lambda self, *a, **k: contextlib.nullcontext()
router.router_gating_linear = lambda x, w, b, dtype: torch.nn.functional.linear(x, w, b)

import wsync
from common import main, publisher, rank, save

dist.init_process_group("gloo")
STAGES = 2
H, HEADS, KV, D, F, V, L, E, MOE_F = 48, 4, 2, 16, 64, 101, 4, 4, 32


def hugging_face(moe, tied, bias):
    torch.manual_seed(0)
    sizes = dict(vocab_size=V, hidden_size=H, intermediate_size=F, num_hidden_layers=L, num_attention_heads=HEADS, num_key_value_heads=KV,
                 head_dim=D, tie_word_embeddings=tied, rms_norm_eps=1e-6)
    if moe:
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, moe_intermediate_size=MOE_F, num_experts=E, num_experts_per_tok=2, norm_topk_prob=True))
    elif bias:
        sizes.pop("head_dim")
        model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**sizes))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.1 + (1.0 if p.dim() == 1 else 0))
    return model.eval()


def megatron(tp, pp, ep, moe, tied, bias, head_dim, stage=None):
    """A model chunk; stage: the number of this rank's virtual pipeline stages, or None."""
    etp = 1 if ep > 1 else tp
    more = dict(num_moe_experts=E, moe_router_topk=2, moe_ffn_hidden_size=MOE_F, moe_router_load_balancing_type="none", moe_aux_loss_coeff=0.0,
                moe_token_dispatcher_type="allgather", moe_permute_fusion=False) if moe else {}
    if stage is not None:
        more["virtual_pipeline_model_parallel_size"] = STAGES
    config = TransformerConfig(
        num_layers=L, hidden_size=H, ffn_hidden_size=F, num_attention_heads=HEADS, num_query_groups=KV, kv_channels=head_dim,
        use_cpu_initialization=True, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp, pipeline_dtype=torch.float32, params_dtype=torch.float32, normalization="RMSNorm",
        layernorm_epsilon=1e-6, qk_layernorm=not bias, add_bias_linear=False, add_qkv_bias=bias, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        apply_rope_fusion=False, gradient_accumulation_fusion=False, hidden_dropout=0.0, attention_dropout=0.0,
        attention_softmax_in_fp32=True, perform_initialization=False, sequence_parallel=False, **more)  # fmt: skip
    where = dict(ignore_virtual=False, vp_stage=stage)
    spec = get_gpt_layer_local_spec(num_experts=E if moe else None, moe_grouped_gemm=False, qk_layernorm=not bias, normalization="RMSNorm")
    padded = -(-V // (8 * tp)) * 8 * tp
    return GPTModel(config=config, transformer_layer_spec=spec, vocab_size=padded, max_sequence_length=32,
                    pre_process=ps.is_pipeline_first_stage(**where), post_process=ps.is_pipeline_last_stage(**where), parallel_output=False,
                    vp_stage=stage,
                    share_embeddings_and_output_weights=tied, position_embedding_type="rope", rotary_base=10000).eval()


def mine(t, dim, group):
    return t.chunk(group[1], dim)[group[0]]


def fill(model, hf, head_dim):
    """Megatron's local tensors, from the whole model's, by concatenating and chunking."""
    whole = {k: v for k, v in hf.state_dict().items()}
    tp = (ps.get_tensor_model_parallel_rank(), ps.get_tensor_model_parallel_world_size())
    ep = (ps.get_expert_model_parallel_rank(), ps.get_expert_model_parallel_world_size())
    etp = (ps.get_expert_tensor_parallel_rank(), ps.get_expert_tensor_parallel_world_size())
    local = {}

    def vocabulary(name):
        rows = model_rows * tp[1]
        return mine(torch.cat([whole[name], torch.zeros(rows - V, H)]), 0, tp)

    if model.pre_process:
        model_rows = model.embedding.word_embeddings.weight.shape[0]
        local["embedding.word_embeddings.weight"] = vocabulary("model.embed_tokens.weight")
    if model.post_process and hasattr(model, "output_layer") and model.output_layer.weight is not None:
        model_rows = model.output_layer.weight.shape[0]
        local["output_layer.weight"] = vocabulary("lm_head.weight")
    if model.post_process:
        local["decoder.final_layernorm.weight"] = whole["model.norm.weight"]
    for i, layer in enumerate(model.decoder.layers):
        m, h = f"decoder.layers.{i}.", f"model.layers.{layer.layer_number - 1}."
        local[m + "input_layernorm.weight"] = whole[h + "input_layernorm.weight"]
        local[m + "pre_mlp_layernorm.weight"] = whole[h + "post_attention_layernorm.weight"]
        for a in "qk":
            if h + f"self_attn.{a}_norm.weight" in whole:
                local[m + f"self_attention.{a}_layernorm.weight"] = whole[h + f"self_attn.{a}_norm.weight"]
        for what in ("weight", "bias"):
            if h + f"self_attn.q_proj.{what}" in whole:
                q, k, v = (whole[h + f"self_attn.{a}_proj.{what}"] for a in "qkv")
                groups = [torch.cat(g) for g in zip(q.chunk(KV), k.chunk(KV), v.chunk(KV))]
                local[m + f"self_attention.linear_qkv.{what}"] = mine(torch.cat(groups), 0, tp)
        local[m + "self_attention.linear_proj.weight"] = mine(whole[h + "self_attn.o_proj.weight"], 1, tp)
        if h + "mlp.gate_proj.weight" in whole:
            halves = (mine(whole[h + f"mlp.{x}_proj.weight"], 0, tp) for x in ("gate", "up"))
            local[m + "mlp.linear_fc1.weight"] = torch.cat(list(halves))
            local[m + "mlp.linear_fc2.weight"] = mine(whole[h + "mlp.down_proj.weight"], 1, tp)
            continue
        local[m + "mlp.router.weight"] = whole[h + "mlp.gate.weight"]
        stacked, down = whole[h + "mlp.experts.gate_up_proj"], whole[h + "mlp.experts.down_proj"]
        for j, e in enumerate(range(E)[ep[0] * E // ep[1] : (ep[0] + 1) * E // ep[1]]):
            x = m + f"mlp.experts.local_experts.{j}."
            local[x + "linear_fc1.weight"] = torch.cat([mine(half, 0, etp) for half in stacked[e].chunk(2)])
            local[x + "linear_fc2.weight"] = mine(down[e], 1, etp)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(local.pop(name))
    assert not local, sorted(local)


def check_logits(chunks, hf):
    x = torch.randint(0, V, (2, 12), generator=torch.Generator().manual_seed(1))
    positions, mask = torch.arange(12)[None].expand(2, -1), torch.ones(12, 12).tril()[None, None] < 0.5
    with torch.no_grad():
        want = hf(input_ids=x).logits
        for model in chunks:  # layers are assigned to all ranks in turn, once for each virtual stage
            if not model.pre_process:
                hidden = torch.empty(12, 2, H)
                dist.recv(hidden, ps.get_pipeline_model_parallel_prev_rank())
                model.set_input_tensor(hidden)
            got = model(x, positions, mask)
            if not model.post_process:
                dist.send(got.contiguous(), ps.get_pipeline_model_parallel_next_rank())
            else:
                difference = (got[..., :V] - want).abs().max().item()
                assert difference < 1e-3, difference


def case(tp, pp=1, ep=1, moe=False, tied=False, bias=False, virtual=False):
    def go(name):
        etp = 1 if ep > 1 else tp
        ps.initialize_model_parallel(tp, pp, STAGES if virtual else None, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
        hf, head_dim = hugging_face(moe, tied, bias), H // HEADS if bias else D
        chunks = [megatron(tp, pp, ep, moe, tied, bias, head_dim, stage) for stage in (range(STAGES) if virtual else [None])]
        for chunk in chunks:
            fill(chunk, hf, head_dim)
        check_logits(chunks, hf)
        save(name, 1, hf)
        pub = publisher(name, wsync.megatron(Wrapped(chunks[0]) if bias else chunks))
        pub.offload(1)
        pub.wait_published(1)
        with torch.no_grad():
            for p in (*hf.parameters(), *(p for c in chunks for p in c.parameters())):
                p.mul_(1.5)
        save(name, 2, hf)
        pub.offload(2)
        pub.wait_published(2)
        pub.close()
        ps.destroy_model_parallel()

    return go


def case_late(name):
    """Two ranks with Megatron's own DDP; each updates its shard and gathers the other's during the next forward."""
    ps.initialize_model_parallel(1)
    hf = hugging_face(False, False, False)
    chunk = megatron(1, 1, 1, False, False, False, D)
    fill(chunk, hf, D)
    config = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_param_gather=True, overlap_grad_reduce=True, bucket_size=20000)
    ddp = DistributedDataParallel(chunk.config, config, chunk)
    pub = None
    for version in (1, 2):
        for group in ddp.bucket_groups:  # step(); before the second one a gather has run that was not waited for
            if version == 2:
                group.start_param_sync()
                group.param_gather_handle.wait()
            for bucket in group.buckets:
                bucket.param_data.chunk(2)[rank()].mul_(1.5)
        with torch.no_grad():
            for p in hf.parameters():
                p.mul_(1.5)
        save(name, version, hf)
        pub = pub or publisher(name, wsync.megatron(ddp))
        pub.offload(version)
        pub.wait_published(version)
    try:
        wsync.megatron(chunk).held()
        raise AssertionError("a model without its DDP was taken")
    except ValueError as e:
        assert "overlap_param_gather" in str(e), e
    pub.close()
    ps.destroy_model_parallel()


class Wrapped(torch.nn.Module):
    """As DDP and Float16Module wrap it."""

    def __init__(self, module):
        super().__init__()
        self.module = module


main({
    "tp1": case(1),
    "tp2": case(2),
    "late": case_late,
    "tp4": case(4),  # 2 key and value heads on 4 ranks: groups are split
    "tp2-bias": case(2, bias=True),
    "tp4-bias": case(4, bias=True),
    "pp2-tied": case(1, 2, tied=True),
    "vpp2": case(1, 2, virtual=True),
    "tp2-pp2": case(2, 2),
    "tp2-pp2-tied": case(2, 2, tied=True),
    "moe-tp1": case(1, moe=True),
    "moe-tp2": case(2, moe=True),
    "moe-ep2": case(1, 1, 2, moe=True),
    "moe-tp2-ep2": case(2, 1, 2, moe=True),
    "moe-pp2-ep2": case(1, 2, 2, moe=True),
})  # fmt: skip
