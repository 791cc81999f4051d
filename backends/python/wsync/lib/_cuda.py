"""What the package asks of CUDA before it hands a GPU's memory to libwsync, which would take it for the host's where it has no
driver. torch is looked at only where the program has imported it."""
from __future__ import annotations

import functools
import sys
from typing import Optional

from ._library import ffi, lib, text


@functools.lru_cache(maxsize=1)
def unavailable() -> Optional[str]:
    """Why libwsync cannot use GPUs here; None: it can."""
    return None if lib.wsync_strategy_available(lib.WSYNC_CUDA_IPC, ffi.NULL) == 0 else text(lib.wsync_error())


def need_cuda(name: str, where) -> None:
    """NotImplementedError: the tensor ``name`` is on a GPU that libwsync cannot reach."""
    why = unavailable()
    if why is not None:
        raise NotImplementedError(f"{name} is on {where}, which libwsync cannot copy from: {why}")


def need_cuda_tensor(name: str, tensor) -> None:
    """NotImplementedError: a torch tensor that is not on the host is not on a CUDA device either, or on one that cannot be reached."""
    if not tensor.is_cuda or sys.modules["torch"].version.hip is not None:  # ROCm's devices are called cuda, too
        raise NotImplementedError(f"{name} is on {tensor.device}: wsync copies from host memory and CUDA's; move it by .cpu()")
    need_cuda(name, tensor.device)


def stream_of(device) -> int:
    """The stream on which torch's work on that device is queued now, as CUDA has it."""
    return sys.modules["torch"].cuda.current_stream(device).cuda_stream


def settle(device) -> None:
    """Waits for what torch has queued there: memory that its allocator hands out may still be in use by it."""
    sys.modules["torch"].cuda.current_stream(device).synchronize()
