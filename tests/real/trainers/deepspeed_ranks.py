"""Ranks of DeepSpeed's ZeRO over gloo: deepspeed_ranks.py CASE..."""
import glob
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import wsync
from common import EXPECTED, batch, gathered, main, publisher, rank, save, save_adapter, with_adapter

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else compiled at the first start, which takes 45 s
deepspeed.init_distributed("gloo")
VOCABULARY = 101
SIZES = dict(vocab_size=VOCABULARY, hidden_size=40, intermediate_size=73, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=10)


def dense(tied=False):
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=tied))


def moe():
    torch.manual_seed(0)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, tie_word_embeddings=False, moe_intermediate_size=24, num_experts=5, num_experts_per_tok=2))


def hand_out_copies(optimizer):
    """DeepSpeed's accessor if masters are on another device than parameters: it returns temporary copies. Here all copies are in one
    place, as if freed memory were reused."""
    arena, original = torch.empty(1 << 20), optimizer.get_local_fp32_param

    def copied(*args, **kwargs):
        found = original(*args, **kwargs)
        return found if found is None else arena[: found.numel()].copy_(found.reshape(-1))

    optimizer.get_local_fp32_param = copied


def train(case, stage, make=dense, master=False, frozen=(), copies=False, adapter=False, **zero):
    """One version after two steps, and another after a third. adapter: of an adapter alone."""
    config = {
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 200, **zero},
    }  # fmt: skip
    if stage == 3:
        with deepspeed.zero.Init(config_dict_or_path=config):
            model = make()
    else:
        model = make()
    if adapter:
        model = with_adapter(model)
    for name, p in model.named_parameters() if not adapter else ():
        p.requires_grad_(not any(part in name for part in frozen))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=optimizer)
    if copies:
        hand_out_copies(engine.optimizer)
    pub = None

    def whole(_, p):
        if hasattr(p, "ds_id"):
            with deepspeed.zero.GatheredParameters([p]):
                return p.detach().clone()
        return p.detach().clone()

    for version in (1, 2):
        for seed in range(3 - version):
            tokens = batch(VOCABULARY, seed)[:1]
            loss = engine(input_ids=tokens, labels=tokens).loss
            engine.backward(loss)
            engine.step()
        if adapter:
            save_adapter(case, version, engine.module, {n: whole(n, p).to(torch.bfloat16) for n, p in engine.module.named_parameters() if ".lora_" in n})
            pub = pub or publisher(case, wsync.peft(engine, master=master), hf_config=None, dtype="bfloat16")
        else:
            save(case, version, gathered(engine.module, lambda: make().to(torch.bfloat16), whole))
            pub = pub or publisher(case, wsync.deepspeed(engine, master=master))
        pub.offload(version)
        pub.wait_published(version)
    pub.close()


class Rounding:
    """What DeepSpeed's CUDA kernels of ZeRO++ do, in torch: 8 bits and a scale for each group."""

    Symmetric = runs = 0

    @staticmethod
    def quantize(tensor, groups, bits, kind):
        Rounding.runs += 1
        x = tensor.reshape(groups, -1).float()
        scale = x.abs().amax(1, keepdim=True).clamp_min(1e-9) / 127
        return (x / scale).round().to(torch.int8).reshape(tensor.shape), scale.reshape(-1)

    @staticmethod
    def dequantize(tensor, scale, groups, bits, kind):
        return (tensor.reshape(groups, -1) * scale.reshape(-1, 1)).half().reshape(tensor.shape)


def wide():
    """Of sizes that can be quantised."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**dict(SIZES, vocab_size=128, intermediate_size=72, hidden_size=64, head_dim=32), tie_word_embeddings=False))


def quantised_gathers(case, **options):
    """ZeRO++: weights are quantised on their way to the ranks' forward, and published as their owners have them."""
    from deepspeed.runtime.zero.partition_parameters import CUDAQuantizer

    CUDAQuantizer.quantizer_cuda_module, Rounding.runs = Rounding, 0
    train(case, 3, wide, zero_quantized_weights=True, **options)
    assert Rounding.runs > 0


def refused(words, run, *args, **options):
    """The words are why every rank refuses the first version, before the agent has it."""
    try:
        run(*args, **options)
    except NotImplementedError as e:
        assert words in str(e), e
        return
    raise AssertionError(f"published, and it should have been refused: {words}")


def autotp(case, stage, tied=False, size=2, heads=2, inner=73, master=False):
    """AutoTP over `size` ranks, and data parallelism over the others, against what DeepSpeed gathers of its layers. Most pieces are unequal."""
    from deepspeed.module_inject.layers import GatherReplacedLayerParams

    def make():
        torch.manual_seed(0)
        sizes = dict(SIZES, intermediate_size=inner, num_attention_heads=2 * heads, num_key_value_heads=heads, attention_bias=True)
        return Qwen3ForCausalLM(Qwen3Config(**sizes, tie_word_embeddings=tied))

    config = {
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
        "tensor_parallel": {"autotp_size": size}, "zero_optimization": {"stage": stage},
    }  # fmt: skip
    model = make()
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2))
    pub = None
    for version in (1, 2):
        tokens = batch(VOCABULARY, version)[:1]
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
        whole = {}
        for prefix, module in engine.module.named_modules() if stage < 3 else ():
            with GatherReplacedLayerParams(list(module.parameters(recurse=False)), module):
                whole.update({f"{prefix}.{n}": p.detach().clone() for n, p in module.named_parameters(recurse=False)})
        save(case, version, gathered(engine.module, lambda: make().to(torch.bfloat16), lambda name, _: whole[name]) if whole else make())
        pub = pub or publisher(case, wsync.deepspeed(engine, master=master))
        pub.offload(version)
        pub.wait_published(version)
    pub.close()


class Sparse(torch.nn.Module):
    """Two layers of DeepSpeed's own experts, `spread` over as many ranks."""

    def __init__(self, spread):
        from deepspeed.moe.layer import MoE

        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens = torch.nn.Embedding(VOCABULARY, 24)
        self.layers = torch.nn.ModuleList(MoE(24, Expert(24, 17), num_experts=4, ep_size=spread, k=1, min_capacity=0) for _ in range(2))
        self.lm_head = torch.nn.Linear(24, VOCABULARY)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = x + layer(x)[0].to(x.dtype)
        return torch.nn.functional.cross_entropy(self.lm_head(x.to(self.lm_head.weight.dtype)).flatten(0, 1).float(), tokens.flatten())


class Expert(torch.nn.Module):
    def __init__(self, size, inner):
        super().__init__()
        self.up, self.down = torch.nn.Linear(size, inner), torch.nn.Linear(inner, size)
        self.register_buffer("scale", torch.rand(size))

    def forward(self, x):
        return self.down(torch.relu(self.up(x.to(self.up.weight.dtype)))) * self.scale


def experts(case, stage, spread, master=False):
    """DeepSpeed's own experts, against its checkpoints, which number them over all ranks."""
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer as split

    config = {
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage},
    }  # fmt: skip
    model = Sparse(spread)
    groups = split({"params": list(model.parameters()), "name": "all"})
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=torch.optim.AdamW(groups, lr=1e-2))
    for i, layer in enumerate(layer.deepspeed_moe for layer in engine.module.layers):
        first = torch.distributed.get_rank(layer.ep_group) * layer.num_local_experts
        for j, expert in enumerate(layer.experts.deepspeed_experts, first):
            expert.scale.copy_(torch.arange(24) + 100 * i + 10 * j)
    pub = None
    for version in (1, 2):
        engine.backward(engine(batch(VOCABULARY, 7 * version + rank())[:1]))
        engine.step()
        folder = os.path.join(EXPECTED, case, str(version))
        engine.save_checkpoint(folder, tag="all")
        if rank() == 0:
            found = torch.load(os.path.join(folder, "all", "mp_rank_00_model_states.pt"), weights_only=False)["module"]
            for file in glob.glob(os.path.join(folder, "all", "layer_*_expert_*_model_states.pt")):
                found.update(torch.load(file, weights_only=False))
            save_file({n: t.to(torch.bfloat16).contiguous() for n, t in found.items()}, os.path.join(folder, "model.safetensors"))
        torch.distributed.barrier()
        pub = pub or publisher(case, wsync.deepspeed(engine, master=master), hf_config=None, dtype="bfloat16")
        pub.offload(version)
        pub.wait_published(version)
    pub.close()


def unknown_experts(case):
    """Parameters that are marked as DeepSpeed's layers mark experts', in a layer of somebody else's."""
    model = dense()
    engine, *_ = deepspeed.initialize(model=model, config={"train_micro_batch_size_per_gpu": 1}, optimizer=torch.optim.AdamW(model.parameters()))
    marked = model.model.layers[0].mlp.up_proj.weight
    marked.allreduce, marked.group_name = False, "ep_size_2"
    publisher(case, wsync.deepspeed(engine), hf_config=None).offload(1)


def auto_experts(case):
    """AutoEP puts its own layers in place of a model's experts."""
    config = {"train_micro_batch_size_per_gpu": 1, "expert_parallel": {"enabled": True, "autoep_size": 2}}
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, tie_word_embeddings=False, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2))
    engine, *_ = deepspeed.initialize(model=model, config=config)
    publisher(case, wsync.deepspeed(engine), hf_config=None).offload(1)


def transposed(case):
    """The layer that AutoTP puts in place of transformers' Conv1D, which it turns over, in a square one."""
    from deepspeed.module_inject.layers import Conv_LinearALlreduce
    from transformers.pytorch_utils import Conv1D

    model, square = torch.nn.Module(), Conv1D(48, 48)
    square.bias = None
    model.c_proj = Conv_LinearALlreduce(square, torch.distributed.group.WORLD, name="c_proj")
    publisher(case, wsync.deepspeed(model), hf_config=None).offload(1)


CPU = {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
main({
    "zero1": lambda c: train(c, 1),
    "zero1-master": lambda c: train(c, 1, master=True),
    "zero1-frozen": lambda c: train(c, 1, frozen=("embed_tokens", "layers.0")),
    "zero2": lambda c: train(c, 2),
    "zero2-master": lambda c: train(c, 2, master=True),
    "zero3": lambda c: train(c, 3),
    "zero3-master": lambda c: train(c, 3, master=True),
    "zero3-copies": lambda c: train(c, 3, master=True, copies=True),
    "zero3-master-offload": lambda c: train(c, 3, master=True, copies=True, frozen=("embed_tokens",), **CPU),
    "zero3-frozen": lambda c: train(c, 3, frozen=("embed_tokens", "layers.0")),
    "zero3-tied": lambda c: train(c, 3, lambda: dense(tied=True)),
    "zero3-offload": lambda c: train(c, 3, **CPU),
    "zero3-moe": lambda c: train(c, 3, moe),
    "zero2-peft": lambda c: train(c, 2, adapter=True),
    "zero3-peft": lambda c: train(c, 3, adapter=True),
    "zero3-peft-master": lambda c: train(c, 3, adapter=True, master=True),
    "autotp": lambda c: autotp(c, 0),
    "autotp-zero1": lambda c: autotp(c, 1),
    "autotp-zero2-tied": lambda c: autotp(c, 2, tied=True),
    "autotp-few-heads": lambda c: autotp(c, 1, size=4, inner=76),
    "autotp-3-heads": lambda c: refused("cuts its 60 columns unevenly, into 40, 20", autotp, c, 1, heads=3),
    "autotp-zero3": lambda c: refused("ZeRO-3 partitions its part further", autotp, c, 3),
    "autotp-master": lambda c: refused("publish with master=False", autotp, c, 1, master=True),
    "experts": lambda c: experts(c, 0, 2),
    "experts-zero1": lambda c: experts(c, 1, 2),
    "experts-zero2": lambda c: experts(c, 2, 2),
    "experts-zero2-master": lambda c: experts(c, 2, 2, master=True),
    "experts-apart": lambda c: experts(c, 1, 4),
    "experts-whole": lambda c: experts(c, 1, 1),
    "experts-unknown": lambda c: refused("which experts rank", unknown_experts, c),
    "experts-auto": lambda c: refused("DeepSpeed's AutoEP", auto_experts, c),
    "autotp-transposed": lambda c: refused("whose way of cutting is not known here", transposed, c),
    "zero3-quantised": quantised_gathers,
    "zero3-quantised-hpz": lambda c: quantised_gathers(c, zero_hpz_partition_size=2),
    "zero3-hpz": lambda c: train(c, 3, zero_hpz_partition_size=2),
})  # fmt: skip
