"""Weights with the interface of SkyRL 0.3's WeightExtractor: chunks of several tensors, grouped by module, up to a size. libwsync
decides which tensors form a chunk."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Optional

from ..lib import _dtypes
from ..lib._library import Strings, check, ffi, lib
from ._weight_source import ParamMeta
from ._weights import Weights

_CASTABLE = ("float16", "bfloat16", "float32", "float64")


def _dtype_name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


@dataclass
class WeightChunk:
    """As skyrl.backends.skyrl_train.weight_sync.WeightChunk: lists of equal length (else ValueError)."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]
    tensors: list[Any]

    def __post_init__(self) -> None:
        n = [len(x) for x in (self.names, self.dtypes, self.shapes, self.tensors)]
        if len(set(n)) > 1:
            raise ValueError(f"a chunk with {n[0]} names, {n[1]} dtypes, {n[2]} shapes and {n[3]} tensors")

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def total_numel(self) -> int:
        """Number of elements of all tensors."""
        return sum(_numel(shape) for shape in self.shapes)

    @cached_property
    def total_size_bytes(self) -> int:
        """Number of bytes of all tensors."""
        return sum(_numel(t.shape) * t.dtype.itemsize for t in self.tensors)


def _numel(shape: Any) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


class WeightExtractor:
    """SkyRL 0.3's WeightExtractor over ``wsync.open``: it reads from a version what SkyRL would gather from the ranks.

    Without group_by_module each tensor is a chunk. With it, tensors of one module (names equal without the last two parts) stay
    together, and a chunk takes further modules while it stays within batch_size_threshold_gb * 2^30 bytes (0: one module per
    chunk); a single module may be larger. Tensors are views, except those that are cast; one chunk is held at a time."""

    def __init__(self, weights: Weights, group_by_module: bool = False, batch_size_threshold_gb: float = 0.0):
        self.weights = weights
        self.group_by_module = group_by_module
        self.threshold_bytes = int(batch_size_threshold_gb * 2**30)

    def get_weight_metadata(self, dtype: Any = None) -> dict[str, list[Any]]:
        """{"names", "dtype_names" ("bfloat16"), "shapes"}, in the order of extract_weights."""
        dtype = self._dtype(dtype)
        metas = [self._cast(m, dtype) for modules in self._batches(dtype) for m in modules]
        return {"names": [m.name for m in metas], "dtype_names": [_dtype_name(m.dtype) for m in metas], "shapes": [list(m.shape) for m in metas]}

    def extract_weights(self, dtype: Any = None) -> Iterator[WeightChunk]:
        """Yields the chunks. dtype (the framework's): floats of 16 bits and more are cast to it, in a copy; others are unchanged."""
        dtype = self._dtype(dtype)
        for batch in self._batches(dtype):
            metas = [self._cast(m, dtype) for m in batch]
            tensors = [self._tensor(m) for m in metas]
            yield WeightChunk([m.name for m in metas], [str(m.dtype) for m in metas], [list(m.shape) for m in metas], tensors)

    def _dtype(self, dtype: Any) -> Any:
        if dtype is None or self.weights.framework == "torch":
            return dtype
        import numpy

        return numpy.dtype(dtype)

    @staticmethod
    def _cast(meta: ParamMeta, dtype: Any) -> ParamMeta:
        return meta if dtype is None or _dtype_name(meta.dtype) not in _CASTABLE else meta._replace(dtype=dtype)

    def _tensor(self, meta: ParamMeta) -> Any:
        tensor = self.weights[meta.name]
        if tensor.dtype == meta.dtype:
            return tensor
        return tensor.to(meta.dtype) if self.weights.framework == "torch" else tensor.astype(meta.dtype)

    def _batches(self, dtype: Optional[Any]) -> Iterator[list[ParamMeta]]:
        metas = self.weights.metadata()
        keep, options, out = Strings(), ffi.new("wsync_chunk_options *"), ffi.new("wsync_chunks **")
        params = keep.array("wsync_param[]", len(metas))
        for p, m in zip(params, metas):
            p.name, p.dtype, p.n_dims, p.shape = keep(m.name), _dtypes.number(self._cast(m, dtype).dtype, m.name), len(m.shape), m.shape
        options.struct_size = ffi.sizeof("wsync_chunk_options")
        options.ungrouped, options.threshold_bytes = not self.group_by_module, self.threshold_bytes
        check(lib.wsync_chunks_open(params, len(metas), options, out))
        chunks = ffi.gc(out[0], lib.wsync_chunks_close)
        for i in range(lib.wsync_chunks_count(chunks)):
            chunk = lib.wsync_chunks_get(chunks, i)
            yield [metas[chunk.entries[k].param - ffi.cast("wsync_param *", params)] for k in range(chunk.n)]
