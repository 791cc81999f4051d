"""Ranks of Megatron-FSDP over gloo: megatron_fsdp_ranks.py CASE... Models and what they are compared with are those of megatron_ranks.
TRANSFORMER_ENGINE=1: of its specs, by a stand-in for it, which Megatron-FSDP asks for with tensor parallelism."""
import copy
import os

if os.environ.get("TRANSFORMER_ENGINE") == "1":
    import transformer_engine_stand_in  # noqa: F401
import megatron_fsdp_on_cpu  # noqa: F401
import torch
import torch.distributed as dist
from megatron.core import parallel_state as ps
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel
from megatron.core.distributed.fsdp.src.megatron_fsdp import fully_shard_model
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from torch.distributed.device_mesh import init_device_mesh
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

import wsync
from common import main, publisher, rank, save
from megatron_ranks import D, V, fill, hugging_face, hugging_face_of, megatron


def made(tp, ep, moe, strategy):
    """A Hugging Face model whose values are bf16's, and the same in Megatron-FSDP."""
    ps.initialize_model_parallel(tp, expert_model_parallel_size=ep, expert_tensor_parallel_size=1 if ep > 1 else tp)
    hf = hugging_face(moe, False, False)
    with torch.no_grad():
        for p in hf.parameters():
            p.copy_(p.bfloat16())
    chunk = megatron(tp, 1, ep, moe, False, False, D, dtype=torch.bfloat16).train()
    fill(chunk, hf, D)
    config = DistributedDataParallelConfig(use_distributed_optimizer=True, use_megatron_fsdp=True, data_parallel_sharding_strategy=strategy,
                                           overlap_param_gather=True, overlap_grad_reduce=True, grad_reduce_in_fp32=True,
                                           gradient_reduce_div_fusion=False)
    return hf, FullyShardedDataParallel(chunk.config, config, chunk, device=torch.device("cpu"))


def scaled(strategy, tp=1, ep=1, moe=False):
    """The float32 weights of each rank's shard change, and are copied into its model weights, which nobody gathers; then the former once
    more, which only those who ask for them see."""

    def go(name):
        hf, fsdp = made(tp, ep, moe, strategy)
        buffers = fsdp.param_and_grad_buffer
        for version, master in ((1, False), (2, True)):
            for group in buffers.parameter_groups:
                (group.main_weight_buffer or group.model_weight_buffer).data.mul_(1.5)
            if not master:
                fsdp.module.install_optimized_model_weights()
            with torch.no_grad():
                for p in hf.parameters():
                    p.mul_(1.5)
            save(name, version, hf if master else copy.deepcopy(hf).bfloat16())
            pub = publisher(name, wsync.megatron(fsdp, master=master), dtype="float32" if master else "bfloat16")
            pub.offload(version)
            pub.wait_published(version)
            pub.close()
        try:
            wsync.megatron(fsdp.module.module).held()
            raise AssertionError("a model without its FullyShardedDataParallel was taken")
        except ValueError as e:
            assert "sharded by Megatron-FSDP" in str(e), e
        ps.destroy_model_parallel()

    return go


def trained(strategy):
    """Two ranks train with Megatron's own optimizer, a step a version, and publish before the next forward; against what Megatron-FSDP itself
    gathers for that."""

    def go(name):
        hf, fsdp = made(1, 1, False, strategy)
        config = OptimizerConfig(optimizer="adam", lr=1e-2, weight_decay=0.0, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True,
                                 overlap_param_gather=True)
        optimizer = get_megatron_optimizer(config, [fsdp])
        positions, mask = torch.arange(12)[None].expand(2, -1), torch.ones(12, 12).tril()[None, None] < 0.5
        hf.bfloat16()
        save(name, 1, hf)  # its config.json
        pub = publisher(name, wsync.megatron([fsdp]), dtype="bfloat16")
        old = {n: None for n in fsdp.module.raw_param}
        for version in (1, 2):
            fsdp.zero_grad_buffer()
            optimizer.zero_grad()
            x = torch.randint(0, V, (2, 12), generator=torch.Generator().manual_seed(version + rank()))
            fsdp(x, positions, mask)[..., :V].float().log_softmax(-1).gather(-1, x[..., None]).mean().backward()
            fsdp.finish_grad_sync()
            assert optimizer.step()[0]
            pub.offload(version)
            pub.wait_published(version)
            fsdp.start_param_sync(force_sync=True)
            found = {n: p.detach().clone() for n, p in fsdp.module.raw_param.items()}
            assert all(old[n] is None or (t != old[n]).any() for n, t in found.items())
            old = found
            save(name, version, hugging_face_of(hf, found.__getitem__))
        pub.close()
        ps.destroy_model_parallel()

    return go


def case_hugging_face(name):
    """transformers' model in Megatron-FSDP, tied."""
    hf = hugging_face(False, True, False).bfloat16()
    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("dp", "tp"))
    model = fully_shard_model(copy.deepcopy(hf), device_mesh=mesh, dp_shard_dim="dp", tp_dim="tp", fsdp_unit_modules=[Qwen3DecoderLayer],
                              device=torch.device("cpu"))
    pub = None
    for version in (1, 2):
        save(name, version, hf)
        pub = pub or publisher(name, wsync.fsdp(model), dtype="bfloat16")
        pub.offload(version)
        pub.wait_published(version)
        for group in model.param_and_grad_buffer.parameter_groups:
            group.main_weight_buffer.data.mul_(2)
        model.install_optimized_model_weights()
        with torch.no_grad():
            for p in hf.parameters():
                p.mul_(2)
    pub.close()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main({
        "shards": scaled("optim_grads_params"),
        "shards-tp2": scaled("optim_grads_params", tp=2),
        "shards-moe-ep2": scaled("optim_grads_params", ep=2, moe=True),
        "shards-grads": scaled("optim_grads"),
        "shards-none": scaled("no_shard"),
        "hugging-face": case_hugging_face,
        "trained": trained("optim_grads_params"),
        "trained-optim": trained("optim"),
    })  # fmt: skip
