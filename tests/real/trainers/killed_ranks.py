"""FSDP2 ranks with weights computed from version and position: killed_ranks.py FIRST VICTIM SHARE. Publishes FIRST and the next version, and
kills the victim in the middle of the third, after SHARE of an offload's duration."""
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

import wsync

first, victim, share = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(*(nn.Linear(1021, 1023) if i % 2 else nn.Linear(1023, 1021) for i in range(6)))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)


def fill(version):
    """Element i of a tensor is i % 4093 + version, which float32 holds exactly."""
    with torch.no_grad():
        for p in model.parameters():
            whole = (torch.arange(p.numel()) % 4093 + version).float().view(p.shape)
            p.copy_(distribute_tensor(whole, mesh, p.placements))


pub = wsync.Publisher("actor", wsync.fsdp(model), start_agent=False, timeout=20)
seconds = 0.0
for version in (first, first + 1, first + 2):
    fill(version)
    dist.barrier()
    if version == first + 2 and dist.get_rank() == victim:
        threading.Timer(share * seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    began = time.monotonic()
    pub.offload(version)
    seconds = time.monotonic() - began
    fill(0)  # the weights may change again
    if version < first + 2:
        pub.wait_published(version)
        dist.barrier()
signal.pause()  # ended by torchrun, or by the timer
