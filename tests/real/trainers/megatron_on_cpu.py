"""Megatron-core on a machine without a GPU: import this before megatron. Its device functions are the CPU's, and where its optimizers
look for CUDA's types they find them. Its distributed optimizer then runs as it is, over gloo."""
import contextlib
import functools
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"
import torch

torch.cuda.current_device = lambda: "cpu"
torch.Tensor.cuda = lambda self, *a, **k: self
_type = torch.Tensor.type
torch.Tensor.type = lambda self, *a, **k: _type(self, *a, **k) if a or k else _type(self).replace("torch.", "torch.cuda.", 1)


def _on_cpu(make):
    @functools.wraps(make)
    def made(*a, **k):
        return make(*a, **{**k, "device": "cpu"} if k.get("device") == "cuda" else k)

    return made


for _name in ("tensor", "zeros", "ones"):
    setattr(torch, _name, _on_cpu(getattr(torch, _name)))

from megatron.core.tensor_parallel import random as _random
from megatron.core.transformer.moe import router as _router

_random.CudaRNGStatesTracker.fork = lambda self, *a, **k: contextlib.nullcontext()
_router.router_gating_linear = lambda x, w, b, dtype: torch.nn.functional.linear(x.to(dtype or x.dtype), w.to(dtype or w.dtype), b)
