"""Ranks of AstraFlow's trainer over gloo, with wsync.astraflow.WeightManager: astraflow_ranks.py CASE... Rank 0 compares each version, as its agent
serves it, with the whole tensors."""
import os
import socket
import types

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from wsync import astraflow
from wsync.publish import _ranks

dist.init_process_group("gloo")
RANK, WORLD = dist.get_rank(), dist.get_world_size()
os.environ.pop("WSYNC_AGENT", None)
os.environ["WSYNC_AGENT_OPTIONS"] = f"--state {os.environ['HOME']}/state/"
astraflow._folder = lambda: os.environ["HOME"]


def params(step):
    g = torch.Generator().manual_seed(7)
    out = {"model.embed.weight": torch.randn(513, 64, generator=g).bfloat16(), "w": torch.randn(300, 128, generator=g).bfloat16(), "bias": torch.randn(3, 5, generator=g)}
    out["w"].view(torch.int16)[:, :step] ^= 1
    return out | {"lm_head.weight": out["model.embed.weight"]}


def port():
    """A free one, the same on all ranks."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        found = [s.getsockname()[1]]
    dist.broadcast_object_list(found, src=0)
    return found[0]


def case(name):
    """fsdp; hsdp: two replicas of shards; apart: rank 1 is on another node, as far as it can tell; adapter: PEFT's tensors, of which other
    ranks than 0 have none at the offload; megatron: a generator that communicates."""
    read = _ranks._read
    if name == "apart" and RANK == 1:
        _ranks._read = lambda path: None
    hsdp = name == "hsdp"
    mesh = init_device_mesh("cpu", (2, WORLD // 2) if hsdp else (WORLD,))
    placements = [Replicate(), Shard(0)] if hsdp else [Shard(0)]

    def named(step):
        for key, value in params(step).items():
            yield key, torch.nn.Parameter(value if key == "bias" else distribute_tensor(value, mesh, placements))

    def whole(step):
        for key, value in params(step).items():
            dist.all_reduce(torch.ones(1))
            yield key, value

    config = types.SimpleNamespace(sender_config=types.SimpleNamespace(http_bind_port=port(), log_file=None), strategies=["full", "delta"])
    manager, more = astraflow.WeightManager(config), {}
    if name == "adapter":
        more["lora_config"] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    elif name == "megatron":
        more["megatron_hf_meta"] = [(key, (list(p.shape), str(p.dtype).split(".")[-1])) for key, p in params(0).items()]
    elif hsdp:
        more["dp_replicate_rank"] = mesh.get_coordinate()[0]
    manager.initialize(iter(()) if name == "megatron" else named(0), RANK, RANK, **more)
    assert manager._sharded == (name in ("fsdp", "hsdp")), name
    for step in (1, 2):
        given = whole(step) if name == "megatron" else named(step) if name != "adapter" else iter(params(step).items() if RANK == 0 else ())
        metrics = manager.offload(given, version=step, rank=RANK, world_size=WORLD)
        assert bool(metrics) == (RANK == 0)
        manager.wait_delta_ready()
        if RANK == 0:
            got, want = manager._pub.weights(step, "torch"), params(step)
            assert set(got) == set(want)
            for key, value in want.items():
                assert got[key].dtype == value.dtype and torch.equal(got[key].view(torch.int16), value.view(torch.int16)), (name, step, key)
        dist.barrier()
    manager.shutdown()
    dist.barrier()
    _ranks._read = read


if __name__ == "__main__":
    import sys

    for each in sys.argv[1:]:
        case(each)
    dist.destroy_process_group()
