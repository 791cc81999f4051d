"""Two FSDP2 ranks over gloo, alternating: an offload, and full_tensor() of every parameter with a save_file to /dev/shm on rank 0. Started
by bench_python.py; writes the seconds of each round to $FIGURES."""
import json
import os
import time

import torch
import torch.distributed as dist
import wsync
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import Qwen3Config, Qwen3ForCausalLM

ROUNDS = 5
dist.init_process_group("gloo")
torch.manual_seed(0)
model = Qwen3ForCausalLM(Qwen3Config(vocab_size=32000, hidden_size=1024, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=16,
                                     num_key_value_heads=8, head_dim=128, tie_word_embeddings=True)).to(torch.bfloat16)
mesh = init_device_mesh("cpu", (2,))
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
file = f"/dev/shm/wsync-bench-{os.getppid()}.safetensors"
figures = {"offload": [], "gather": []}
pub = wsync.Publisher("gathered", wsync.fsdp(model), start_agent=False)


def timed(name, work):
    dist.barrier()
    began = time.perf_counter()
    work()
    dist.barrier()
    figures[name].append(time.perf_counter() - began)


def gather():
    whole = {}
    for name, p in model.named_parameters():
        full = p.full_tensor()
        if dist.get_rank() == 0:
            whole[name] = full
    if dist.get_rank() == 0:
        save_file(whole, file)


try:
    for version in range(1, ROUNDS + 3):  # the first two runs touch the slots' memory
        timed("offload", lambda: pub.offload(version))
        pub.wait_published(version)
        timed("gather", gather)
finally:
    if dist.get_rank() == 0 and os.path.exists(file):
        os.unlink(file)
if dist.get_rank() == 0:
    with open(os.environ["FIGURES"], "w") as f:
        json.dump({k: v[2:] for k, v in figures.items()}, f)
pub.close()
dist.destroy_process_group()
