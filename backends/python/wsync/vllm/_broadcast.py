"""A version received over a process group from wsync.BroadcastSender: tensor by tensor, or in buckets of tensors packed back to back."""
from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Optional

from ..engines._torch_group import Group, connect
from ..lib import _dtypes
from ..read._layout import Layout


class ReceivedVersion:
    """The interface that a loader needs of a version; iterated once, in the order of sending, and not cached. path: of its files, if
    any; buckets: the number of tensors in each bucket; None: tensors are sent one by one."""

    model = digest = None

    def __init__(self, group: Optional[Group], names: list[str], dtype_names: list[str], shapes: list[list[int]], path: Optional[str],
                 version: Optional[str], device: Any, buckets: Optional[list[int]] = None):
        """ValueError: the description is not a valid version."""
        if group is None:
            raise ValueError("there is no group: give init_weight_transfer_engine a master_addr first")
        for given in (names, dtype_names, shapes):
            if not isinstance(given, list) or len(given) != len(names):
                raise ValueError("names, dtype_names and shapes are no lists of one length")
        self._group, self._device, self._names = group, device, names
        number, _, run = (version or "").partition("@")
        self.path, self.version, self.run = path, int(number) if number.isdigit() else None, run or None
        self.name = f"version {version} by broadcast" if version else "a version by broadcast"
        self._layout: Layout = {name: (_dtypes.file_dtype(dtype), _shape(shape)) for name, dtype, shape in zip(names, dtype_names, shapes)}
        if len(self._layout) != len(names):
            raise ValueError("a name is there twice")
        if buckets is not None and (not isinstance(buckets, list) or not all(type(n) is int and n > 0 for n in buckets) or sum(buckets) != len(names)):
            raise ValueError(f"buckets={str(buckets)[:100]} does not divide {len(names)} names")
        ends = list(itertools.accumulate(buckets or ()))
        self._buckets = {names[end - n]: names[end - n : end] for n, end in zip(buckets or (), ends)}  # by the first name in each
        self._current_bucket: dict[str, Any] = {}  # tensors of the bucket received last

    def layout(self) -> Layout:
        return self._layout

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getitem__(self, name: str) -> Any:
        """Receives the tensor. Raises Lost if the group has ended."""
        if name in self._buckets:
            self._current_bucket = self._bucket(self._buckets[name])
        if self._buckets:
            return self._current_bucket.pop(name)
        tensor = self._empty(name, self._device)
        self._group.broadcast(tensor)
        return tensor

    def _empty(self, name: str, device: Any) -> Any:
        import torch

        dtype, shape = self._layout[name]
        return torch.empty(shape, dtype=_dtypes.torch_dtype(dtype), device=device)

    def _bucket(self, names: list[str]) -> dict[str, Any]:
        """Receives a bucket; returns views of its buffer. The sender sorts tensors so that each is aligned: see _buckets."""
        import torch

        metas = [self._empty(name, "meta") for name in names]
        sizes = [meta.numel() * meta.itemsize for meta in metas]
        buffer = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        self._group.broadcast(buffer)
        parts = torch.split(buffer, sizes)
        return {name: part.view(meta.dtype).reshape(meta.shape) for name, meta, part in zip(names, metas, parts)}

    def close(self) -> None:
        """Nothing to release."""

    def __enter__(self) -> "ReceivedVersion":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or len(shape) > 8 or not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
        raise ValueError(f"{str(shape)[:100]} is no shape")
    return tuple(shape)


def join(info: Any, parallel_config: Any) -> Group:
    """Joins the sender's group with this worker's rank."""
    rank = info.rank_offset + getattr(parallel_config, "data_parallel_index", 0) * parallel_config.world_size + parallel_config.rank
    store = connect(info.master_addr, info.master_port, info.world_size, info.timeout)
    return Group(store, rank, info.world_size, info.backend, info.group_name, info.timeout)
