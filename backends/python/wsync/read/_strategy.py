"""Strategies by which a loader in an engine's process opens a version: "cuda_ipc,disk" is tried in that order."""
from __future__ import annotations

import logging
import os
from collections.abc import Collection
from typing import Any, Optional

from ..lib._library import lib, text
from ._gpu import SHARED, GpuWeights, map_gpu
from ._layout import Difference
from ._weights import open as open_weights

AUTO = "auto"
CUDA_IPC, DISK = text(lib.wsync_strategy_at(lib.WSYNC_CUDA_IPC).name), "disk"


def parse(strategy: Optional[str]) -> list[str]:
    """The list of strategies; "auto" is cuda_ipc, then disk. ValueError."""
    if strategy is None or strategy == AUTO:
        return [CUDA_IPC, DISK]
    wanted = [word.strip() for word in strategy.split(",")] if isinstance(strategy, str) else []
    if not wanted or not set(wanted) <= {CUDA_IPC, DISK}:
        raise ValueError(f"strategy={strategy!r}: it is \"auto\", \"{CUDA_IPC}\", \"{DISK}\", or several with commas")
    return wanted


class Opened:
    """An opened version: weights; the strategy that was used; fallback: why an earlier strategy failed (None: none was tried)."""

    def __init__(self, weights: Any, strategy: str, fallback: Optional[str]):
        self.weights, self.strategy, self.fallback = weights, strategy, fallback


def open_version(path: str, strategy: Optional[str], device: Any, wanted: Optional[Collection[str]], log: logging.Logger) -> Opened:
    """Opens the version at path. wanted: names of the served tensors, all of which must be shared on the GPUs; None: unknown. If sharing
    fails, the files are used where the strategy allows it. OSError, ValueError."""
    requested, strategies = strategy, parse(strategy)
    why = None
    for i, one in enumerate(strategies):
        if one == DISK:
            return Opened(open_weights(path, "torch"), DISK, why)
        if requested in (None, AUTO) and not os.path.exists(os.path.join(path, SHARED)):
            continue
        try:
            return Opened(_open_shared(path, device, wanted), CUDA_IPC, why)
        except (OSError, ValueError, NotImplementedError, TypeError) as e:
            if i + 1 == len(strategies):
                raise
            why = f"not by {CUDA_IPC}: {type(e).__name__}: {e}"
            log.warning("%s is loaded from its files, %s", path, why)
    raise ValueError(f"{path}: no strategy is left")


def _open_shared(path: str, device: Any, wanted: Optional[Collection[str]]) -> GpuWeights:
    weights = map_gpu(path, device=device, framework="torch")
    try:
        if weights.partial:
            raise ValueError(f"only parts of {len(weights.partial)} tensors are on GPUs, such as {weights.partial[0]}")
        lacking = sorted(set(wanted or ()) - set(weights))
        if lacking:
            raise ValueError(str(Difference(missing=lacking)) + " on the GPUs")
    except BaseException:
        weights.close()
        raise
    return weights
