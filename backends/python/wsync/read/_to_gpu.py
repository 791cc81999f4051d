"""Loads files into GPU memory."""
from __future__ import annotations

import os
from typing import Any

from ..lib import _cuda, _dtypes
from ..lib._library import check, ffi, lib


def to_gpu(weights: Any, device: Any = "cuda") -> dict[str, Any]:
    """``Weights.to_gpu``: of these Weights."""
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        raise ValueError(f"device={str(device)!r} is no CUDA device: on the host, take the tensors themselves")
    found: dict[str, Any] = {}
    for file in dict.fromkeys(weights._file_names.values()):
        entries = weights._file(file).entries
        begin = min((e.begin for e in entries.values()), default=0)
        memory = torch.empty(max((e.end for e in entries.values()), default=0) - begin, dtype=torch.uint8, device=device)
        _cuda.synchronize(memory.device)
        fd = weights._folder.open(file)
        try:
            check(lib.wsync_file_to_gpu(fd, begin, memory.numel(), ffi.cast("void *", memory.data_ptr())))
        finally:
            os.close(fd)
        for name, e in entries.items():
            dtype, part = _dtypes.torch_dtype(e.dtype), memory[e.begin - begin : e.end - begin]
            if (e.begin - begin) % dtype.itemsize:
                part = part.clone()  # a view must be aligned to its dtype
            found[name] = part.view(dtype).reshape(_dtypes.torch_shape(e.dtype, e.shape))
    return {name: found[name] for name in weights._file_names}
