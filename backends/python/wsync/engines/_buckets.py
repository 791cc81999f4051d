"""A version in parts: what is sent at once, packed back to back into one buffer where all members can take that apart.

In a part those with the widest elements come first, so that each lies at a multiple of its element's size without gaps, as SGLang's
flattened buckets want it. Two buffers take turns: while one is sent the next is filled."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..read._chunks import WeightExtractor
from ..read._weights import ParamMeta


class Buckets:
    """Of torch's tensors; a part may be larger than bucket_bytes where one module is."""

    def __init__(self, weights: Any, bucket_bytes: int):
        self._weights = weights
        batches = WeightExtractor(weights, group_by_module=True, batch_size_threshold_gb=bucket_bytes / 2**30)._batches(None)
        self.parts: list[list[ParamMeta]] = [sorted(batch, key=lambda m: -m.dtype.itemsize) for batch in batches]
        self._buffers: list[Any] = [None, None]

    def tensors(self, i: int, device: str, packed: bool) -> list[Any]:
        """The i-th part on the device, if there is one; a packed one is good until the part after the next is asked for."""
        if i >= len(self.parts):
            return []
        if not packed:
            return [self._weights[m.name].to(device).contiguous() for m in self.parts[i]]
        return [self._packed(self.parts[i], i % 2, device)]

    def _packed(self, part: Sequence[ParamMeta], turn: int, device: str) -> Any:
        import torch

        sizes = [_bytes(m) for m in part]
        if self._buffers[turn] is None or self._buffers[turn].numel() < sum(sizes):
            self._buffers[turn] = None
            self._buffers[turn] = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        buffer, at = self._buffers[turn][: sum(sizes)], 0
        for meta, size in zip(part, sizes):
            if size:
                buffer[at : at + size].copy_(self._weights[meta.name].contiguous().reshape(-1).view(torch.uint8))
            at += size
        return buffer


def _bytes(meta: ParamMeta) -> int:
    n = meta.dtype.itemsize
    for d in meta.shape:
        n *= d
    return n
