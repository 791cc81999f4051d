"""A version split into buckets for sending. Where all engines support it, a bucket's tensors are packed back to back into one buffer.

Within a bucket tensors are sorted by element size, widest first, so that each is aligned without padding, as SGLang's flattened
buckets require. There are two buffers: one is filled while the other is sent."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..read._chunks import WeightExtractor
from ..read._weight_source import ParamMeta


class Buckets:
    """Buckets of torch tensors. A bucket is larger than bucket_bytes only where a single module is."""

    def __init__(self, weights: Any, bucket_bytes: int):
        self._weights = weights
        batches = WeightExtractor(weights, group_by_module=True, batch_size_threshold_gb=bucket_bytes / 2**30)._batches(None)
        self.parts: list[list[ParamMeta]] = [sorted(batch, key=lambda m: -m.dtype.itemsize) for batch in batches]
        self._buffers: list[Any] = [None, None]

    def tensors(self, i: int, device: str, packed: bool) -> list[Any]:
        """Bucket i on the device; [] past the last one. A packed buffer is valid until bucket i + 2 is requested."""
        if i >= len(self.parts):
            return []
        if not packed:
            return [self._weights[m.name].to(device).contiguous() for m in self.parts[i]]
        return [self._packed(self.parts[i], i % 2, device)]

    def _packed(self, part: Sequence[ParamMeta], turn: int, device: str) -> Any:
        import torch

        sizes = [_size_bytes(m) for m in part]
        if self._buffers[turn] is None or self._buffers[turn].numel() < sum(sizes):
            self._buffers[turn] = None
            self._buffers[turn] = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        buffer, at = self._buffers[turn][: sum(sizes)], 0
        for meta, size in zip(part, sizes):
            if size:
                buffer[at : at + size].copy_(self._weights[meta.name].contiguous().reshape(-1).view(torch.uint8))
            at += size
        return buffer


def _size_bytes(meta: ParamMeta) -> int:
    n = meta.dtype.itemsize
    for d in meta.shape:
        n *= d
    return n
