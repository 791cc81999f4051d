"""A version that comes over a process group, from wsync.BroadcastSender: one tensor after the other, or in buckets of several that lie
back to back; none is kept."""
from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Optional

from ..engines._torch_group import Group, connect
from ..lib import _dtypes
from ..read._layout import Layout


class Received:
    """As a loader sees a version; iterated once, in the order in which tensors are sent. path: where its files are, if anywhere;
    buckets: how many of them come in one piece, each time; None: each by itself."""

    model = digest = None

    def __init__(self, group: Optional[Group], names: list[str], dtype_names: list[str], shapes: list[list[int]], path: Optional[str],
                 version: Optional[str], device: Any, buckets: Optional[list[int]] = None):
        """ValueError: what was told makes no version."""
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
        self._buckets = {names[end - n]: names[end - n : end] for n, end in zip(buckets or (), ends)}  # by the first name in it
        self._here: dict[str, Any] = {}  # of the bucket that came last

    def layout(self) -> Layout:
        return self._layout

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getitem__(self, name: str) -> Any:
        """The next tensor; Lost: the group has ended."""
        if name in self._buckets:
            self._here = self._bucket(self._buckets[name])
        if self._buckets:
            return self._here.pop(name)
        tensor = self._empty(name, self._device)
        self._group.broadcast(tensor)
        return tensor

    def _empty(self, name: str, device: Any) -> Any:
        import torch

        dtype, shape = self._layout[name]
        return torch.empty(shape, dtype=_dtypes.torch_dtype(dtype), device=device)

    def _bucket(self, names: list[str]) -> dict[str, Any]:
        """Views of a buffer that lives as long as one of them. Each lies at a multiple of its element's size: see _buckets."""
        import torch

        forms = [self._empty(name, "meta") for name in names]
        sizes = [form.numel() * form.itemsize for form in forms]
        buffer = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        self._group.broadcast(buffer)
        parts = torch.split(buffer, sizes)
        return {name: part.view(form.dtype).reshape(form.shape) for name, form, part in zip(names, forms, parts)}

    def close(self) -> None:
        """Holds nothing."""

    def __enter__(self) -> "Received":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, list) or len(shape) > 8 or not all(type(n) is int and 0 <= n < 1 << 48 for n in shape):
        raise ValueError(f"{str(shape)[:100]} is no shape")
    return tuple(shape)


def join(info: Any, parallel_config: Any) -> Group:
    """The sender's group, as this worker's rank in it."""
    rank = info.rank_offset + getattr(parallel_config, "data_parallel_index", 0) * parallel_config.world_size + parallel_config.rank
    store = connect(info.master_addr, info.master_port, info.world_size, info.timeout)
    return Group(store, rank, info.world_size, info.backend, info.group_name, info.timeout)
