"""In the place of flash-attn, which wants a GPU: what OpenRLHF imports of it, none of which is called with --ds.attn_implementation eager.
As OpenRLHF imports this before most of what it takes from torch and DeepSpeed, the rest that wants a GPU is replaced here, too: CUDA's calls
that set a process up do nothing, what is on "cuda" is on the CPU, and DeepSpeed's fused Adam is torch's."""
import sys

import torch
import torch.distributed.device_mesh as device_mesh

_init_device_mesh = device_mesh.init_device_mesh


class _Device(str):
    """"cpu" where tensors go to; a number in "cuda:%s"."""

    def __format__(self, _):
        return "0"


if "deepspeed" in sys.modules:  # a process of the trainer, not vLLM's
    import deepspeed

    torch.cuda.set_device = lambda _: None
    torch.cuda.synchronize = lambda: None
    torch.cuda.empty_cache = lambda: None
    torch.cuda.current_device = lambda: _Device("cpu")
    device_mesh.init_device_mesh = lambda _, *shape, **how: _init_device_mesh("cpu", *shape, **how)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else compiled at the first start
    deepspeed.ops.adam.FusedAdam = lambda params, adam_w_mode=True, **options: torch.optim.AdamW(params, **options)
