"""A sender and a receiver over gloo, alternating: a version sent tensor by tensor, and in buckets, packing included. Started by
bench_python.py; writes the seconds of each round to $FIGURES."""
import json
import os
import socket
import time

import torch
import torch.distributed as dist
from wsync.engines._buckets import Buckets
from wsync.engines._torch_group import Group, connect, listen
from wsync.read._weight_source import ParamMeta
from wsync.vllm._broadcast import ReceivedVersion

ROUNDS, BUCKET_BYTES, TIMEOUT = 7, 16 << 20, 60.0
LAYERS = 32  # each as a mixture of experts has it: many small ones


class Made(dict):
    framework = "torch"

    def metadata(self):
        return [ParamMeta(name, t.dtype, tuple(t.shape)) for name, t in self.items()]


def parts_of(plan):
    return [m for part in plan.parts for m in part]


dist.init_process_group("gloo")
rank = dist.get_rank()
weights = Made({f"model.layers.{i}.experts.{k}.w": torch.ones(64, 64 + k % 3, dtype=torch.bfloat16) for i in range(LAYERS) for k in range(64)})
weights |= {f"model.layers.{i}.mlp.up": torch.ones(1024, 512, dtype=torch.bfloat16) for i in range(LAYERS)}
told = [None]
if rank == 0:
    with socket.create_server(("127.0.0.1", 0)) as s:
        told = [s.getsockname()[1]]
    store = listen("127.0.0.1", told[0], 2, TIMEOUT)
dist.broadcast_object_list(told, src=0)
group = Group(store if rank == 0 else connect("127.0.0.1", told[0], 2, TIMEOUT), rank, 2, "gloo", "bench", TIMEOUT)
figures = {"tensors": [], "buckets": []}
for _ in range(ROUNDS):
    for name, packed in (("tensors", False), ("buckets", True)):
        plan = Buckets(weights, BUCKET_BYTES)
        metas = parts_of(plan)
        dist.barrier()
        began = time.perf_counter()
        if rank == 0:
            ready = plan.tensors(0, "cpu", packed)
            for i in range(len(plan.parts)):
                works = [group.start(t) for t in ready]
                following = plan.tensors(i + 1, "cpu", packed)
                group.wait(works)
                ready = following
        else:
            buckets = [len(part) for part in plan.parts] if packed else None
            received = ReceivedVersion(group, [m.name for m in metas], [str(m.dtype) for m in metas], [list(m.shape) for m in metas], None, "1", "cpu", buckets)
            for one in received:
                assert received[one].shape == weights[one].shape
        dist.barrier()
        figures[name].append(time.perf_counter() - began)
if rank == 0:
    with open(os.environ["FIGURES"], "w") as f:
        json.dump({name: times[1:] for name, times in figures.items()}, f)
group.close()
dist.destroy_process_group()
