"""Ranks of Megatron-core over gloo: megatron_ranks.py CASE... A random Hugging Face model is split into Megatron's tensors here by
concatenating and chunking whole tensors; equal logits show that the split is right. TRANSFORMER_ENGINE=1: of its specs, by a stand-in for it."""
import os

TE = os.environ.get("TRANSFORMER_ENGINE") == "1"
if TE:
    import transformer_engine_stand_in  # noqa: F401
import megatron_on_cpu  # noqa: F401
import torch
import torch.distributed as dist
from megatron.core import parallel_state as ps
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_layer_with_transformer_engine_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.transformer.transformer_config import TransformerConfig
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import wsync
from common import EXPECTED, main, publisher, rank, save

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


def megatron(tp, pp, ep, moe, tied, bias, head_dim, stage=None, cp=1, dtype=torch.float32, split=()):
    """A model chunk; stage: the number of this rank's virtual pipeline stages, or None."""
    etp = 1 if ep > 1 else tp
    more = dict(num_moe_experts=E, moe_router_topk=2, moe_ffn_hidden_size=MOE_F, moe_router_load_balancing_type="none", moe_aux_loss_coeff=0.0,
                moe_token_dispatcher_type="allgather", moe_permute_fusion=False, moe_grouped_gemm=TE) if moe else {}
    if stage is not None:
        more["virtual_pipeline_model_parallel_size"] = STAGES
    config = TransformerConfig(
        num_layers=L, hidden_size=H, ffn_hidden_size=F, num_attention_heads=HEADS, num_query_groups=KV, kv_channels=head_dim,
        use_cpu_initialization=True, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=ep,
        expert_tensor_parallel_size=etp, context_parallel_size=cp, pipeline_dtype=dtype, params_dtype=dtype, bf16=dtype == torch.bfloat16, normalization="RMSNorm",
        layernorm_epsilon=1e-6, qk_layernorm=not bias, add_bias_linear=False, add_qkv_bias=bias, gated_linear_unit=True,
        activation_func=torch.nn.functional.silu, bias_activation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        apply_rope_fusion=False, gradient_accumulation_fusion=False, hidden_dropout=0.0, attention_dropout=0.0,
        attention_softmax_in_fp32=True, perform_initialization=False, sequence_parallel=False, **more, **dict(split))  # fmt: skip
    where = dict(ignore_virtual=False, vp_stage=stage)
    kind = dict(num_experts=E if moe else None, moe_grouped_gemm=TE, qk_layernorm=not bias)
    spec = get_gpt_layer_with_transformer_engine_spec(**kind) if TE else get_gpt_layer_local_spec(**kind, normalization="RMSNorm")
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
        dense = h + "mlp.gate_proj.weight" in whole
        local[m + ("self_attention.linear_qkv.layer_norm_weight" if TE else "input_layernorm.weight")] = whole[h + "input_layernorm.weight"]
        local[m + ("mlp.linear_fc1.layer_norm_weight" if TE and dense else "pre_mlp_layernorm.weight")] = whole[h + "post_attention_layernorm.weight"]
        for a in "qk":
            if h + f"self_attn.{a}_norm.weight" in whole:
                local[m + f"self_attention.{a}_layernorm.weight"] = whole[h + f"self_attn.{a}_norm.weight"]
        for what in ("weight", "bias"):
            if h + f"self_attn.q_proj.{what}" in whole:
                q, k, v = (whole[h + f"self_attn.{a}_proj.{what}"] for a in "qkv")
                groups = [torch.cat(g) for g in zip(q.chunk(KV), k.chunk(KV), v.chunk(KV))]
                local[m + f"self_attention.linear_qkv.{what}"] = mine(torch.cat(groups), 0, tp)
        local[m + "self_attention.linear_proj.weight"] = mine(whole[h + "self_attn.o_proj.weight"], 1, tp)
        if dense:
            halves = (mine(whole[h + f"mlp.{x}_proj.weight"], 0, tp) for x in ("gate", "up"))
            local[m + "mlp.linear_fc1.weight"] = torch.cat(list(halves))
            local[m + "mlp.linear_fc2.weight"] = mine(whole[h + "mlp.down_proj.weight"], 1, tp)
            continue
        local[m + "mlp.router.weight"] = whole[h + "mlp.gate.weight"]
        stacked, down = whole[h + "mlp.experts.gate_up_proj"], whole[h + "mlp.experts.down_proj"]
        for j, e in enumerate(range(E)[ep[0] * E // ep[1] : (ep[0] + 1) * E // ep[1]]):
            x = m + ("mlp.experts.linear_fc%d.weight" + str(j) if TE else f"mlp.experts.local_experts.{j}.linear_fc%d.weight")
            local[x % 1] = torch.cat([mine(half, 0, etp) for half in stacked[e].chunk(2)])
            local[x % 2] = mine(down[e], 1, etp)
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
                difference = (got[:, :12, :V] - want).abs().max().item()
                assert difference < 1e-3, difference


def case(tp, pp=1, ep=1, moe=False, tied=False, bias=False, virtual=False, **split):
    """split: options of how layers are split over the pipeline's stages."""

    def go(name):
        etp = 1 if ep > 1 else tp
        ps.initialize_model_parallel(tp, pp, STAGES if virtual else None, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
        hf, head_dim = hugging_face(moe, tied, bias), H // HEADS if bias else D
        chunks = [megatron(tp, pp, ep, moe, tied, bias, head_dim, stage, split=split) for stage in (range(STAGES) if virtual else [None])]
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


def ddp_of(chunk, overlaps):
    config = DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_param_gather=overlaps, overlap_grad_reduce=overlaps,
                                           grad_reduce_in_fp32=True, bucket_size=20000)
    return DistributedDataParallel(chunk.config, config, chunk)


def case_late(name):
    """Two ranks with Megatron's own DDP; each updates its shard and gathers the other's during the next forward."""
    ps.initialize_model_parallel(1)
    hf = hugging_face(False, False, False)
    chunk = megatron(1, 1, 1, False, False, False, D)
    fill(chunk, hf, D)
    ddp = ddp_of(chunk, True)
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


def ranges_of(ddp):
    """Megatron's distributed optimizer by its ranges alone."""
    optimizer = DistributedOptimizer.__new__(DistributedOptimizer)
    optimizer.is_stub_optimizer = False
    optimizer.buffers = ddp.buffers + ddp.expert_parallel_buffers
    optimizer.gbuf_ranges = [DistributedOptimizer._build_gbuf_range_map(b) for b in optimizer.buffers]
    optimizer.model_param_gbuf_map = DistributedOptimizer._build_model_param_gbuf_map(optimizer.gbuf_ranges)
    return optimizer


def case_ranges(tp, ep=1, moe=False):
    """With Megatron's own DDP each rank updates its shard, which is not gathered; then its masters, which are written nowhere."""

    def go(name):
        etp = 1 if ep > 1 else tp
        ps.initialize_model_parallel(tp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
        hf = hugging_face(moe, False, False)
        chunk = megatron(tp, 1, ep, moe, False, False, D)
        fill(chunk, hf, D)
        chunk.decoder.final_layernorm.weight.requires_grad_(False)
        ddp = ddp_of(chunk, True)
        optimizer = ranges_of(ddp)
        for version in (1, 2):
            for p in optimizer.model_param_gbuf_map:
                owned = optimizer._get_model_param_range_map(p)["param"]
                mine = p.detach().view(-1)[owned.start : owned.end]
                p.main_param = mine * 1.5
                if version == 1:
                    mine.copy_(p.main_param)
            with torch.no_grad():
                for name_of_p, p in hf.named_parameters():
                    if name_of_p != "model.norm.weight":
                        p.mul_(1.5)
            save(name, version, hf)
            pub = publisher(name, wsync.megatron(ddp, optimizer, master=version == 2))
            pub.offload(version)
            pub.wait_published(version)
            pub.close()
        ps.destroy_model_parallel()

    return go


def hugging_face_of(hf, of):
    """hf, filled with the tensors of(name) of a dense model that one rank has whole."""
    state = {"model.embed_tokens.weight": of("embedding.word_embeddings.weight")[:V], "lm_head.weight": of("output_layer.weight")[:V],
             "model.norm.weight": of("decoder.final_layernorm.weight")}
    for i in range(L):
        held = lambda name: of(f"decoder.layers.{i}.{name}")  # noqa: B023
        groups = held("self_attention.linear_qkv.weight").view(KV, HEADS // KV + 2, D, H)
        layer = {"input_layernorm": held("input_layernorm.weight"), "post_attention_layernorm": held("pre_mlp_layernorm.weight"),
                 "self_attn.q_proj": groups[:, :-2].reshape(-1, H), "self_attn.k_proj": groups[:, -2].reshape(-1, H),
                 "self_attn.v_proj": groups[:, -1].reshape(-1, H), "self_attn.o_proj": held("self_attention.linear_proj.weight"),
                 "self_attn.q_norm": held("self_attention.q_layernorm.weight"), "self_attn.k_norm": held("self_attention.k_layernorm.weight"),
                 "mlp.down_proj": held("mlp.linear_fc2.weight")}
        layer["mlp.gate_proj"], layer["mlp.up_proj"] = held("mlp.linear_fc1.weight").chunk(2)
        state.update({f"model.layers.{i}.{name}.weight": t for name, t in layer.items()})
    hf.load_state_dict(state)
    return hf


def case_trained(overlaps, *sources):
    """Two ranks train with Megatron's own distributed optimizer, a step a source. Before the next forward they publish the ranges that it has
    updated, its masters, or the model by the gather that wsync makes of it; against what Megatron itself gathers afterwards."""

    def go(name):
        ps.initialize_model_parallel(1)
        hf = hugging_face(False, False, False)
        chunk = megatron(1, 1, 1, False, False, False, D, dtype=torch.bfloat16).train()
        fill(chunk, hf, D)
        ddp = ddp_of(chunk, overlaps)
        config = OptimizerConfig(optimizer="adam", lr=1e-2, weight_decay=0.0, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True,
                                 overlap_param_gather=overlaps)
        optimizer = get_megatron_optimizer(config, [ddp])
        names = {p: n for n, p in chunk.named_parameters()}
        positions, mask = torch.arange(12)[None].expand(2, -1), torch.ones(12, 12).tril()[None, None] < 0.5

        def step(seed):
            ddp.zero_grad_buffer()
            optimizer.zero_grad()
            x = torch.randint(0, V, (2, 12), generator=torch.Generator().manual_seed(seed + rank()))
            ddp(x, positions, mask)[..., :V].float().log_softmax(-1).gather(-1, x[..., None]).mean().backward()
            ddp.finish_grad_sync()
            assert optimizer.step()[0]

        def masters():
            whole = {n: torch.zeros(p.numel()) for p, n in names.items()}
            for o in optimizer.chained_optimizers:
                for p in o.model_param_gbuf_map:
                    owned = o._get_model_param_range_map(p)["param"]
                    whole[names[p]][owned.start : owned.end] = getattr(p, "main_param", p.detach().view(-1)[owned.start : owned.end])  # norms are float32
            for t in whole.values():
                dist.all_reduce(t)
            return {n: whole[n].view(p.shape) for p, n in names.items()}

        save(name, 1, hf)  # its config.json
        config_json = os.path.join(EXPECTED, name, "1")
        old = {n: p.detach().clone() for n, p in chunk.named_parameters()}
        for version, source in enumerate(sources, 1):
            step(version)
            options = {"ranges": dict(optimizer=optimizer), "masters": dict(optimizer=optimizer, master=True), "model": {}}[source]
            dtype = torch.float32 if source == "masters" else torch.bfloat16
            pub = publisher(name, wsync.megatron(ddp, **options), folder=config_json, dtype=str(dtype)[6:])
            fresh = sum((p != old[n]).any().item() for n, p in chunk.named_parameters())
            pub.offload(version)
            pub.wait_published(version)
            pub.close()
            if overlaps:
                ddp.start_param_sync(force_sync=True)
            want = masters() if source == "masters" else {n: p.detach() for n, p in chunk.named_parameters()}
            assert all((p != old[n]).any() for n, p in chunk.named_parameters()) and overlaps == (fresh < len(names)), fresh
            old = {n: p.detach().clone() for n, p in chunk.named_parameters()}
            save(name, version, hugging_face_of(hf.to(dtype), want.__getitem__))
        ps.destroy_model_parallel()

    return go


def case_audit(tp, cp=1, ep=1, moe=False, drifts=()):
    """One replica after the other differs in one element: drifts are a held name and the ranks that it is compared between, the drifted
    one first. No such version is published, and all ranks hear why."""

    def go(name):
        if cp > 1:
            from megatron.core.extensions.transformer_engine import TEDotProductAttention

            TEDotProductAttention.cp_stream = object()  # CUDA's, of which the stand-in has no use
        etp = 1 if ep > 1 else tp
        ps.initialize_model_parallel(tp, context_parallel_size=cp, expert_model_parallel_size=ep, expert_tensor_parallel_size=etp)
        hf = hugging_face(moe, False, False)
        chunk = megatron(tp, 1, ep, moe, False, False, D, cp=cp)
        fill(chunk, hf, D)
        last = len(drifts) + 1
        save(name, last, hf)
        for version, (held, ranks) in enumerate(drifts, 1):
            pub = publisher(name, wsync.megatron(chunk), last)
            p = dict(chunk.named_parameters())[held].detach()
            before = p.clone()
            if rank() == ranks[0]:
                p.view(-1)[-1] += 1
            try:
                pub.offload(version)
                pub.wait_published(version)
                raise AssertionError(f"{held} of rank {ranks[0]} differs, and version {version} is published")
            except wsync.Error as e:
                words = ["replicas differ", *(f"rank {r}" for r in ranks)]
                assert all(w in str(e) for w in words), (words, str(e))
            pub.close()
            p.copy_(before)
        pub = publisher(name, wsync.megatron(chunk), last)
        pub.offload(last)
        pub.wait_published(last)
        pub.close()
        ps.destroy_model_parallel()

    return go


class Wrapped(torch.nn.Module):
    """As DDP and Float16Module wrap it."""

    def __init__(self, module):
        super().__init__()
        self.module = module


CASES = {
    "tp1": case(1),
    "tp2": case(2),
    "late": case_late,
    "ranges": case_ranges(1),
    "ranges-tp2": case_ranges(2),
    "ranges-moe-ep2": case_ranges(1, 2, moe=True),
    "trained": case_trained(False, "ranges", "masters"),
    "trained-late": case_trained(True, "model", "ranges"),
    # of 4 ranks, tensor parallel varies first: 0 and 1 share a tensor, 0 and 2 are copies
    "audit-tp2-cp2": case_audit(2, 2, drifts=[("decoder.layers.1.self_attention.q_layernorm.weight", (1, 0)),
                                              ("decoder.layers.2.self_attention.linear_proj.weight", (3, 1))]),
    "audit-moe-ep2": case_audit(1, 1, 2, True, [("decoder.layers.0.mlp.router.weight", (2, 0)),
                                                ("decoder.layers.3.mlp.experts.linear_fc1.weight1", (3, 1))]),
    "tp4": case(4),  # 2 key and value heads on 4 ranks: groups are split
    "tp2-bias": case(2, bias=True),
    "tp4-bias": case(4, bias=True),
    "pp2-tied": case(1, 2, tied=True),
    "vpp2": case(1, 2, virtual=True),
    "pp2-uneven": case(1, 2, num_layers_in_first_pipeline_stage=1),
    "vpp2-layout": case(1, 2, virtual=True, pipeline_model_parallel_layout="Et|t|t|tL"),
    "tp2-pp2": case(2, 2),
    "tp2-pp2-tied": case(2, 2, tied=True),
    "moe-tp1": case(1, moe=True),
    "moe-tp2": case(2, moe=True),
    "moe-ep2": case(1, 1, 2, moe=True),
    "moe-tp2-ep2": case(2, 1, 2, moe=True),
    "moe-pp2-ep2": case(1, 2, 2, moe=True),
}  # fmt: skip
if __name__ == "__main__":
    dist.init_process_group("gloo")
    main(CASES)
