"""Checks before GPU memory is passed to libwsync: without a CUDA driver, libwsync would take the address for host memory. torch is
used only if the program has already imported it."""
from __future__ import annotations

import functools
import sys
from typing import Optional

from ._library import ffi, lib, text


@functools.lru_cache(maxsize=1)
def unavailable() -> Optional[str]:
    """The reason why libwsync cannot use GPUs here; None if it can."""
    return None if lib.wsync_strategy_available(lib.WSYNC_CUDA_IPC, ffi.NULL) == 0 else text(lib.wsync_error())


def need_cuda(name: str, where) -> None:
    """Raises NotImplementedError if libwsync cannot reach GPUs; where: the device of the tensor ``name``."""
    why = unavailable()
    if why is not None:
        raise NotImplementedError(f"{name} is on {where}, which libwsync cannot copy from: {why}")


def need_cuda_tensor(name: str, tensor) -> None:
    """Raises NotImplementedError unless the torch tensor is on a CUDA device that libwsync can reach."""
    if not tensor.is_cuda or sys.modules["torch"].version.hip is not None:  # torch also calls ROCm devices "cuda"
        raise NotImplementedError(f"{name} is on {tensor.device}: wsync copies from host memory and CUDA's; move it by .cpu()")
    need_cuda(name, tensor.device)


def stream_of(device) -> int:
    """torch's current CUDA stream on the device, as a handle."""
    return sys.modules["torch"].cuda.current_stream(device).cuda_stream


def synchronize(device) -> None:
    """Waits for torch's queued work: memory that its allocator has just returned may still be in use by earlier kernels."""
    sys.modules["torch"].cuda.current_stream(device).synchronize()
