"""What a rank holds of a framework's tensors, read off and handed to libwsync, which does all arithmetic.

A held tensor is a plain tuple, so that one step's can be compared with those of the step before:
``(name, dtype, shape, flat, placements, local, strides, unit, start, count, layer)``, the members of wsync.h's
``wsync_held`` but for the pointer; dtype is the framework's object, and ``unit`` what its strides count: 0 elements, 1
bytes. Addresses, which may change from step to step, are a list of their own. Reading a tensor off takes
a microsecond or so, since all of them are read at every step: nothing is worked out here that can wait."""
from __future__ import annotations

import sys
from typing import Callable, Iterable, Mapping

from ..lib import _dtypes
from ..lib._cuda import need_cuda_tensor, stream_of
from ..lib._dlpack import dlpack_array
from ..lib._library import Strings, ffi, lib

_KINDS = {"Replicate": lib.WSYNC_REPLICATE, "Shard": lib.WSYNC_SHARD, "_StridedShard": lib.WSYNC_STRIDED_SHARD}
_NO_KIND = 99  # libwsync refuses it, with a sentence
_MAX_DIMS = 8
_kinds_of_type: dict = {}


def _kind_of(cls: type) -> str:
    """"DTensor", "torch", "numpy", or "" for what speaks DLPack."""
    names = [c.__name__ for c in cls.__mro__]
    found = "DTensor" if "DTensor" in names else _torch_kind(cls) if hasattr(cls, "data_ptr") else "numpy" if hasattr(cls, "__array_interface__") else ""
    _kinds_of_type[cls] = found
    return found


def _torch_kind(cls: type) -> str:
    """"wrapper": a subclass whose own address is not that of its values (quantised ones, results that are not there yet)."""
    torch = sys.modules.get("torch")
    return "wrapper" if torch is not None and issubclass(cls, torch.Tensor) and cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ else "torch"


def _address(name: str, tensor) -> int:
    found = tensor.data_ptr()
    if not found and tensor.numel():
        raise RuntimeError(f"{name} has no memory now: its framework has taken it away or put it elsewhere (offloaded, or not gathered); let it bring it back before the offload")
    return found


class Held:
    """One step's tensors of a rank: ``meta`` (tuples), ``addresses``, and ``kept``, their owners, which must live until they are
    copied: whoever adds an address adds its object. Those on a GPU are noted by their index: ``devices`` of torch's,
    ``streams`` of others."""

    __slots__ = ("meta", "addresses", "kept", "devices", "streams")

    def __init__(self) -> None:
        self.meta: list[tuple] = []
        self.addresses: list[int] = []
        self.kept: list = []
        self.devices: dict = {}
        self.streams: dict[int, int] = {}

    def on_gpu(self, name: str, tensor) -> None:
        """Notes that the next tensor is no host's."""
        if tensor.device not in self.devices.values():
            need_cuda_tensor(name, tensor)
        self.devices[len(self.addresses)] = tensor.device

    def all_streams(self) -> list[int]:
        """The stream that writes each tensor, at this moment; 0 for those on the host. [] where all are."""
        if not self.devices and not self.streams:
            return []
        now = {device: stream_of(device) for device in set(self.devices.values())}
        found = [0] * len(self.addresses)
        for i, device in self.devices.items():
            found[i] = now[device]
        for i, stream in self.streams.items():
            found[i] = stream
        return found

    def add(self, name: str, tensor, layer: int = 0) -> None:
        """A torch tensor (plain or a DTensor), a numpy array, or anything that speaks DLPack, in host memory or CUDA's. It is kept."""
        cls = type(tensor)
        kind = _kinds_of_type.get(cls)
        if kind is None:
            kind = _kind_of(cls)
        if kind == "numpy":
            shape = tensor.shape
            self.meta.append((name, tensor.dtype, shape, 0, (), shape, tensor.strides, 1, 0, 0, layer))
            self.addresses.append(tensor.__array_interface__["data"][0])
            self.kept.append(tensor)
        elif kind == "torch":
            if not tensor.is_cpu:
                self.on_gpu(name, tensor)
            if tensor.is_conj() or tensor.is_neg():
                raise NotImplementedError(f"{name} is a view whose elements are conjugated or negated when they are read: pass .resolve_conj().resolve_neg()")
            shape = tensor.shape
            self.meta.append((name, tensor.dtype, shape, 0, (), shape, tensor.stride(), 0, 0, 0, layer))
            self.addresses.append(_address(name, tensor))
            self.kept.append(tensor)
        elif kind == "DTensor":
            spec, local = tensor._spec, tensor._local_tensor
            placements = _placements(spec)
            if placements is None:  # this rank is not in the tensor's mesh
                return
            if not local.is_cpu:
                self.on_gpu(name, local)
            self.meta.append((name, local.dtype, tensor.shape, 0, placements, local.shape, local.stride(), 0, 0, 0, layer))
            self.addresses.append(_address(name, local))
            self.kept.append(local)
        elif kind == "wrapper":
            raise NotImplementedError(f"{name} is a {cls.__name__}, whose values are in tensors of its own: pass what it stands for, as a plain torch tensor")
        else:
            array = dlpack_array(name, tensor)
            self.kept.append(array)
            if array.stream:
                self.streams[len(self.addresses)] = array.stream
            self.meta.append((name, array.dtype, array.shape, 0, (), array.shape, array.strides, 0, 0, 0, layer))
            self.addresses.append(array.address)

    def add_flat(self, name: str, shape, source, placements=(), start: int = 0, count: int = 0) -> None:
        """A part of the flattened tensor, from ``source``'s first element on (torch, 1-D, contiguous)."""
        if not source.is_contiguous():
            raise ValueError(f"{name}: its flat part is not contiguous in memory")
        if not source.is_cpu:
            self.on_gpu(name, source)
        self.meta.append((name, source.dtype, shape, 1, placements, (), (), 0, start, count, 0))
        self.addresses.append(_address(name, source))
        self.kept.append(source)


_meshes: dict = {}


def _placements(spec) -> tuple | None:
    """(kind, dim, split factor, size, coordinate) of each mesh dimension, by class name: _StridedShard is a
    subclass of Shard in some releases of torch and not in others."""
    key = (id(spec.mesh), spec.placements)
    found = _meshes.get(key)
    if found is None or found[0] is not spec.mesh:
        mesh = spec.mesh
        at = mesh.get_coordinate()
        parts = None
        if at is not None:
            parts = tuple(
                (_KINDS.get(type(p).__name__, _NO_KIND), getattr(p, "dim", 0), getattr(p, "split_factor", 0), mesh.size(i), at[i])
                for i, p in enumerate(spec.placements)
            )
        found = _meshes[key] = (mesh, parts)
    return found[1]


class Source:
    """Where a publisher's tensors come from. ``kind``: libwsync's extractor; ``options``: more members of
    wsync_extract_options."""

    kind: str | None = None

    def held(self) -> Held:
        raise NotImplementedError

    def options(self) -> dict:
        return {}

    def expected(self, meta: list[tuple]) -> Mapping[str, tuple] | None:
        """The file's tensors and shapes as the framework itself would write them, where it can say."""
        return None


class Tensors(Source):
    def __init__(self, given: Mapping | Callable[[], Mapping]) -> None:
        self._given = given

    def held(self) -> Held:
        held = Held()
        given = self._given() if callable(self._given) else self._given
        held.kept.append(given)
        add = held.add
        for name, tensor in given.items():
            add(name, tensor)
        return held


def tensors(given: Mapping | Callable[[], Mapping]) -> Source:
    """Tensors by the names of the file: ``{"model.norm.weight": tensor, ...}``, or a function that returns such a
    mapping, called at each offload (JAX makes new arrays at each step).

    A value is a torch tensor, a DTensor (each rank gives its own; libwsync puts the shards together), a numpy
    array (ml_dtypes for bfloat16 and float8), or anything with ``__dlpack__``, in host memory or CUDA's. The mapping is looked
    at anew at each offload: values may be replaced, and a changed shape is registered again."""
    return Tensors(given)


def to_c(meta: Iterable[tuple], addresses: list[int], keep: Strings):
    """The C array of what is held; it lives as long as ``keep``."""
    meta = list(meta)
    held = keep.array("wsync_held[]", len(meta))
    for h, (name, dtype, shape, flat, placements, local, strides, unit, start, count, layer), address in zip(held, meta, addresses):
        if len(shape) > _MAX_DIMS or len(placements) > _MAX_DIMS:
            raise ValueError(f"{name} has {len(shape)} dimensions over a mesh of {len(placements)}; at most {_MAX_DIMS} each: reshape it")
        h.name = keep(name)
        h.dtype = _dtypes.number(dtype, name)
        h.n_dims = len(shape)
        h.shape = tuple(shape)
        h.flat = flat
        h.n_placements = len(placements)
        for c, (kind, dim, factor, size, coordinate) in zip(h.placements, placements):
            c.kind, c.dim, c.split_factor, c.size, c.coordinate = kind, dim % max(len(shape), 1), factor, size, coordinate
        h.local = tuple(local)
        h.strides = _elements(name, dtype, strides) if unit else tuple(strides)
        h.strided = not flat  # also where all are 0: one element that is repeated
        h.start, h.count, h.layer = start, count, layer
        h.data = ffi.cast("void *", address)
    return held


def _elements(name: str, dtype, strides: tuple) -> tuple:
    """numpy's strides, which are bytes."""
    if any(s % dtype.itemsize for s in strides):
        raise ValueError(f"{name} has strides of {strides} bytes, which are no multiples of its elements' {dtype.itemsize}: pass numpy.ascontiguousarray() of it")
    return tuple(s // dtype.itemsize for s in strides)
