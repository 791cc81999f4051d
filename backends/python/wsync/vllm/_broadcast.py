"""A version that comes over a process group, from wsync.BroadcastSender: one tensor after the other, none is kept."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

from .. import _dtypes
from .._layout import Layout
from .._torch_group import Group, connect


class Received:
    """As a loader sees a version; iterated once, in the order in which tensors are sent. path: where its files are, if anywhere."""

    model = digest = None

    def __init__(self, group: Optional[Group], names: list[str], dtype_names: list[str], shapes: list[list[int]], path: Optional[str],
                 version: Optional[str], device: Any):
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

    def layout(self) -> Layout:
        return self._layout

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getitem__(self, name: str) -> Any:
        """The next tensor; Lost: the group has ended."""
        import torch

        dtype, shape = self._layout[name]
        tensor = torch.empty(shape, dtype=_dtypes.torch_dtype(dtype), device=self._device)
        self._group.broadcast(tensor)
        return tensor

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
