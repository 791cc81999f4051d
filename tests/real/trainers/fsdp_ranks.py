"""Ranks of FSDP2, FSDP1 and plain DTensors over gloo: fsdp_ranks.py CASE..."""
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from transformers import (MixtralConfig, MixtralForCausalLM, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen3Config, Qwen3ForCausalLM,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM, Qwen3VLConfig, Qwen3VLForConditionalGeneration)

import wsync
from common import batch, gathered, main, publisher, rank, save, save_adapter, with_adapter

dist.init_process_group("gloo")
WORLD = dist.get_world_size()
VOCABULARY = 101
DENSE = dict(vocab_size=VOCABULARY, hidden_size=40, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=10)
MOE = dict(DENSE, hidden_size=48, head_dim=16, num_experts_per_tok=2, tie_word_embeddings=False)


def dense(tied=False):
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**DENSE, tie_word_embeddings=tied))


def qwen_moe():
    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**MOE, moe_intermediate_size=20, num_experts=5))


def mixtral():
    torch.manual_seed(0)
    return MixtralForCausalLM(MixtralConfig(**MOE, num_local_experts=5))


TEXT = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=72, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
VISION = dict(depth=2, hidden_size=32, num_heads=2, intermediate_size=40, out_hidden_size=48, patch_size=4, spatial_merge_size=2)
SECTIONS = {"rope_type": "default", "mrope_section": [2, 2, 2]}


def qwen25_vl(tied=False):
    torch.manual_seed(0)
    text = dict(TEXT, rope_scaling=SECTIONS, tie_word_embeddings=tied)
    return Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=dict(VISION, fullatt_block_indexes=[1], window_size=16),
                                                               tie_word_embeddings=tied))


def qwen3_vl(tied=False):
    torch.manual_seed(0)
    text = dict(TEXT, head_dim=12, rope_scaling=SECTIONS, tie_word_embeddings=tied)
    return Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=dict(VISION, deepstack_visual_indexes=[0], num_position_embeddings=16),
                                                         tie_word_embeddings=tied))


def step(model, optimizer, seed):
    tokens = batch(VOCABULARY, seed)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def full(_, p):
    return p.full_tensor().cpu()


def whole(case, model, make, version, dtype):
    """The expected version, gathered by the framework's own collectives."""
    save(case, version, gathered(model, make, full), dtype)


def train(case, model, make, dtype=None, after=None, full_of=None, **options):
    """Two versions with a step in between. after: changes the model before the second offload."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    save(case, 1, make() if rank() == 0 else None, dtype)
    pub = publisher(case, wsync.fsdp(model), dtype=dtype, **options)
    for version in (1, 2):
        if version == 2:
            step(model, optimizer, 1)
            if after:
                after(model)
        pub.offload(version)
        pub.wait_published(version)
        if version == 2:
            if hasattr(model, "reshard"):
                model.reshard()
            save(case, version, gathered(model, make, full_of or full), dtype)
    pub.close()


def sharded(make, layer_options=None, **options):
    model = make()
    for layer in model.model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return model


def case_fsdp(case):
    train(case, sharded(dense, mesh=init_device_mesh("cpu", (WORLD,))), dense)


def case_dim1(case):
    placed = lambda p: Shard(1) if p.dim() == 2 and p.shape[1] % WORLD == 0 else Shard(0)
    train(case, sharded(dense, mesh=init_device_mesh("cpu", (WORLD,)), shard_placement_fn=placed), dense)


def case_hsdp(case):
    mesh = init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("replicate", "shard"))
    train(case, sharded(dense, mesh=mesh), dense)


def case_mixed(case):
    "float32 masters, bfloat16 in the file"
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    train(case, sharded(dense, mesh=init_device_mesh("cpu", (WORLD,)), mp_policy=policy), dense, dtype=torch.bfloat16)


def case_offload(case):
    train(case, sharded(dense, mesh=init_device_mesh("cpu", (WORLD,)), offload_policy=CPUOffloadPolicy(pin_memory=False)), dense)


def case_tied(case):
    tied = lambda: dense(tied=True)
    train(case, sharded(tied, mesh=init_device_mesh("cpu", (WORLD,))), tied)


def case_unsharded(case):
    "a forward without a backward leaves the root's parameters unsharded"
    def look(model):
        model.eval()
        with torch.no_grad():
            model(input_ids=batch(VOCABULARY, 2))
        assert not all(isinstance(p, DTensor) for p in model.parameters())

    train(case, sharded(dense, mesh=init_device_mesh("cpu", (WORLD,))), dense, after=look)


def case_moe(case):
    train(case, sharded(qwen_moe, mesh=init_device_mesh("cpu", (WORLD,))), qwen_moe, dtype=torch.bfloat16)


def case_mixtral(case):
    "other names in the file, for modules and experts"
    train(case, sharded(mixtral, mesh=init_device_mesh("cpu", (WORLD,))), mixtral)


def vision(case, make, **options):
    """A model of text and images, trained on text; each block of either part is sharded by itself."""
    model, mesh = make(), init_device_mesh("cpu", (WORLD,))
    for layer in (*model.model.visual.blocks, *model.model.language_model.layers, model):
        fully_shard(layer, mesh=mesh)
    train(case, model, make, **options)


def case_qwen25_vl(case):
    "other names in the file than in the module"
    vision(case, qwen25_vl)


def case_qwen25_vl_tied(case):
    vision(case, lambda: qwen25_vl(tied=True), dtype=torch.bfloat16)


def case_qwen3_vl(case):
    vision(case, qwen3_vl)


def case_qwen3_vl_tied(case):
    vision(case, lambda: qwen3_vl(tied=True), dtype=torch.bfloat16)


def tensor_parallel(case, dims, names):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, mesh = dense(), init_device_mesh("cpu", dims, mesh_dim_names=names)
    column, row = ColwiseParallel(), RowwiseParallel()
    plan = {"self_attn.q_proj": column, "self_attn.k_proj": column, "self_attn.v_proj": column, "self_attn.o_proj": row,
            "mlp.gate_proj": column, "mlp.up_proj": column, "mlp.down_proj": row}
    data = mesh[names[:-1]] if len(names) > 2 else mesh[names[0]]
    for layer in model.model.layers:
        parallelize_module(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=data)
    fully_shard(model, mesh=data)
    save(case, 1, dense() if rank() == 0 else None)
    pub = publisher(case, wsync.fsdp(model))
    pub.offload(1)
    pub.wait_published(1)
    pub.close()


def case_tp(case):
    tensor_parallel(case, (WORLD // 2, 2), ("dp", "tp"))


def case_tp_hsdp(case):
    tensor_parallel(case, (2, WORLD // 4, 2), ("replicate", "dp", "tp"))


def case_fsdp1(case):
    fsdp1(case, use_orig_params=True)


def case_fsdp1_flat(case):
    fsdp1(case, use_orig_params=False)


def fsdp1(case, use_orig_params):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = dense()
    policy = ModuleWrapPolicy({type(model.model.layers[0])})
    model = FullyShardedDataParallel(model, use_orig_params=use_orig_params, auto_wrap_policy=policy, device_id=torch.device("cpu"))
    save(case, 1, dense() if rank() == 0 else None)
    pub = publisher(case, wsync.fsdp(model))
    pub.offload(1)
    pub.wait_published(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step(model, optimizer, 1)
    pub.offload(2)
    pub.wait_published(2)
    with FullyShardedDataParallel.summon_full_params(model, writeback=False):
        state = {n: p.detach().clone() for n, p in model.module.named_parameters()}
    state = {n.replace("_fsdp_wrapped_module.", ""): p for n, p in state.items()}
    reference = dense()
    reference.load_state_dict(state)
    save(case, 2, reference)
    pub.close()


def adapter(case, model, whole, dtype=None):
    """Two versions of an adapter alone. whole: gathers all parameters, on all ranks."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    pub = publisher(case, wsync.peft(model), hf_config=None, dtype=dtype)
    for version in (1, 2):
        step(model, optimizer, version)
        pub.offload(version)
        pub.wait_published(version)
        save_adapter(case, version, getattr(model, "module", model), whole())
    pub.close()


def case_peft(case):
    "the adapter of a PEFT model that is sharded by FSDP2, and of no other tensor"
    model = with_adapter(dense())
    for layer in model.base_model.model.model.layers:
        fully_shard(layer)
    fully_shard(model)

    def whole():
        model.reshard()
        return {n: p.full_tensor() for n, p in model.named_parameters() if ".lora_" in n}

    adapter(case, model, whole)


def case_peft_fsdp1(case):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    inner = with_adapter(dense())
    policy = ModuleWrapPolicy({type(inner.base_model.model.model.layers[0])})
    model = FullyShardedDataParallel(inner, use_orig_params=True, auto_wrap_policy=policy, device_id=torch.device("cpu"))

    def whole():
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            return {n: p.detach().clone() for n, p in model.module.named_parameters()}

    adapter(case, model, whole)


def case_peft_replicated(case):
    "DDP: each rank holds the adapter whole"
    model = torch.nn.parallel.DistributedDataParallel(with_adapter(dense()))
    adapter(case, model, lambda: {n: p.detach() for n, p in model.module.named_parameters()})


def case_manual(case):
    "every placement of a plain DTensor, uneven and empty, transposed too"
    from safetensors.torch import save_file
    import os
    from common import EXPECTED
    from torch.distributed.tensor.placement_types import _StridedShard

    one, g = init_device_mesh("cpu", (WORLD,)), torch.arange(7 * 11, dtype=torch.float32).view(7, 11)
    layouts = [(one, [Shard(0)]), (one, [Shard(1)]), (one, [Replicate()])]
    if WORLD % 2 == 0:
        two = init_device_mesh("cpu", (2, WORLD // 2))
        layouts += [(two, [Shard(0), Shard(0)]), (two, [Shard(1), Shard(0)]), (two, [Replicate(), Shard(1)]), (two, [Shard(1), Shard(1)])]
    tensors, expected = {}, {}
    for i, (mesh, placements) in enumerate(layouts):
        expected[f"t{i}"], tensors[f"t{i}"] = g + i, distribute_tensor(g + i, mesh, placements)
    few = torch.arange(2.0)
    expected["few"], tensors["few"] = few, distribute_tensor(few, one, [Shard(0)])  # most ranks hold none of it
    expected["t"], tensors["t"] = g.t().contiguous(), distribute_tensor(g.t(), one, [Shard(0)])
    expected["plain"] = tensors["plain"] = g.clone()
    expected["strides"], tensors["strides"] = g.t().contiguous(), g.t()
    if WORLD == 4:
        from torch.distributed.tensor import DTensor as D

        mesh = init_device_mesh("cpu", (2, 2))
        rows = torch.arange(7)
        # two pieces first (as tensor parallelism cuts them), each halved by the outer dimension
        mine = torch.cat([piece.chunk(2)[mesh.get_coordinate()[0]] for piece in rows.chunk(2)])
        inner = mine.chunk(2)
        at = mesh.get_coordinate()[1]
        local = g[inner[at]] if at < len(inner) else g[:0]
        expected["strided"] = g
        tensors["strided"] = D.from_local(local, mesh, [_StridedShard(0, split_factor=2), Shard(0)], run_check=False, shape=g.shape, stride=g.stride())
    folder = os.path.join(EXPECTED, case, "1")
    if rank() == 0:
        os.makedirs(folder)
        save_file({k: v.contiguous() for k, v in expected.items()}, os.path.join(folder, "model.safetensors"))
    dist.barrier()
    pub = publisher(case, wsync.tensors(tensors), hf_config=None, folder=folder)
    pub.offload(1)
    pub.wait_published(1)
    pub.close()


main({name[5:]: f for name, f in list(globals().items()) if name.startswith("case_")})
