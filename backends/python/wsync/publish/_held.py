"""Describes the tensors that a rank holds and passes them to libwsync, which does all arithmetic.

A held tensor is a plain tuple, so that one step's tensors can be compared with the previous step's:
``(name, dtype, shape, flat, placements, local, strides, unit, start, count, layer)``, the members of wsync.h's
``wsync_held`` without the pointer; dtype is the framework's object, and ``unit`` is the unit of the strides: 0 elements, 1
bytes. Addresses may change from step to step and are a separate list. All tensors are described at every step, so describing one
must take about a microsecond: everything else is deferred."""
from __future__ import annotations

import sys
from typing import Callable, Iterable, Mapping

from ..lib import _dtypes
from ..lib._cuda import need_cuda_tensor, stream_of
from ..lib._dlpack import dlpack_array
from ..lib._library import Strings, ffi, lib

_KINDS = {"Replicate": lib.WSYNC_REPLICATE, "Shard": lib.WSYNC_SHARD, "_StridedShard": lib.WSYNC_STRIDED_SHARD}
_NO_KIND = 99  # libwsync refuses it with a message
_MAX_DIMS = 8
_UINTPTR = ffi.typeof("uintptr_t")
_kinds_of_type: dict = {}


def _kind_of(cls: type) -> str:
    """"DTensor", "torch", "wrapper", "numpy" (an array of its own), "interface" (which looks like one), or "" for any other, which must
    support DLPack."""
    names = [c.__name__ for c in cls.__mro__]
    looks = "interface" if hasattr(cls, "__array_interface__") else ""
    found = "DTensor" if "DTensor" in names else _torch_kind(cls) if hasattr(cls, "data_ptr") else "numpy" if _is_array(cls) else looks
    _kinds_of_type[cls] = found
    return found


def _is_array(cls: type) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(cls, numpy.ndarray) and cls.__array_interface__ is numpy.ndarray.__array_interface__


def _array_address(array) -> int:
    """Asked anew at each step: an array that is resized stays the same object, and its memory moves. By the buffer protocol this takes half
    of the time of __array_interface__, which makes a description for other programs."""
    try:
        return int(ffi.cast(_UINTPTR, ffi.from_buffer(array)))
    except (ValueError, BufferError, TypeError):  # its elements lie in another order, or are of a type that buffers do not know
        return array.__array_interface__["data"][0]


def _torch_kind(cls: type) -> str:
    """"torch", or "wrapper" for a tensor subclass that does not hold its values itself (quantised tensors, asynchronous results)."""
    torch = sys.modules.get("torch")
    return "wrapper" if torch is not None and issubclass(cls, torch.Tensor) and cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ else "torch"


def _address(name: str, tensor) -> int:
    found = tensor.data_ptr()
    if not found and tensor.numel():
        raise RuntimeError(f"{name} has no memory now: its framework has taken it away or put it elsewhere (offloaded, or not gathered); let it bring it back before the offload")
    return found


class Held:
    """One step's tensors of a rank: ``meta`` (tuples), ``addresses``, and ``kept``, the objects that own the memory, which must live
    until it is copied. For tensors on a GPU, by index: ``devices`` of torch tensors, ``streams`` of others."""

    __slots__ = ("meta", "addresses", "kept", "devices", "streams")

    def __init__(self) -> None:
        self.meta: list[tuple] = []
        self.addresses: list[int] = []
        self.kept: list = []
        self.devices: dict = {}
        self.streams: dict[int, int] = {}

    def record_device(self, name: str, tensor) -> None:
        """Records the GPU of the tensor that is added next."""
        if tensor.device not in self.devices.values():
            need_cuda_tensor(name, tensor)
        self.devices[len(self.addresses)] = tensor.device

    def all_streams(self) -> list[int]:
        """The stream that writes each tensor, as of now; 0 for host memory. [] if all tensors are in host memory."""
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
        """Adds a torch tensor (plain or DTensor), a numpy array, or an object with DLPack, in host or CUDA memory, and keeps it alive."""
        cls = type(tensor)
        kind = _kinds_of_type.get(cls)
        if kind is None:
            kind = _kind_of(cls)
        if kind == "numpy" or kind == "interface":
            shape = tensor.shape
            self.meta.append((name, tensor.dtype, shape, 0, (), shape, tensor.strides, 1, 0, 0, layer))
            self.addresses.append(_array_address(tensor) if kind == "numpy" else tensor.__array_interface__["data"][0])
            self.kept.append(tensor)
        elif kind == "torch":
            if not tensor.is_cpu:
                self.record_device(name, tensor)
            if tensor.is_conj() or tensor.is_neg():
                raise NotImplementedError(f"{name} is a view whose elements are conjugated or negated when they are read: pass .resolve_conj().resolve_neg()")
            shape = tensor.shape
            self.meta.append((name, tensor.dtype, shape, 0, (), shape, tensor.stride(), 0, 0, 0, layer))
            self.addresses.append(_address(name, tensor))
            self.kept.append(tensor)
        elif kind == "DTensor":
            spec, local = tensor._spec, tensor._local_tensor
            placements = _placements(spec)
            if placements is not None:  # else this rank is not in the tensor's mesh
                self.add_local(name, tensor.shape, placements, local, layer)
        elif kind == "wrapper":
            raise NotImplementedError(f"{name} is a {cls.__name__}, whose values are in tensors of its own: pass what it stands for, as a plain torch tensor")
        else:
            array = dlpack_array(name, tensor)
            self.kept.append(array)
            if array.stream:
                self.streams[len(self.addresses)] = array.stream
            self.meta.append((name, array.dtype, array.shape, 0, (), array.shape, array.strides, 0, 0, 0, layer))
            self.addresses.append(array.address)

    def add_local(self, name: str, shape, placements: tuple, local, layer: int = 0) -> None:
        """Adds a torch tensor that is this rank's part of one of `shape`."""
        if not local.is_cpu:
            self.record_device(name, local)
        self.meta.append((name, local.dtype, shape, 0, placements, local.shape, local.stride(), 0, 0, 0, layer))
        self.addresses.append(_address(name, local))
        self.kept.append(local)

    def add_flat(self, name: str, shape, source, placements=(), start: int = 0, count: int = 0, layer: int = 0) -> None:
        """Adds a range of the flattened tensor; ``source`` holds its elements (torch, 1-D, contiguous)."""
        if not source.is_contiguous():
            raise ValueError(f"{name}: its flat part is not contiguous in memory")
        if not source.is_cpu:
            self.record_device(name, source)
        self.meta.append((name, source.dtype, shape, 1, placements, (), (), 0, start, count, layer))
        self.addresses.append(_address(name, source))
        self.kept.append(source)


_placement_cache: dict = {}


def _placements(spec) -> tuple | None:
    """(kind, dim, split factor, size, coordinate) of each mesh dimension; None if this rank is not in the mesh. Kinds are told by class
    name, because _StridedShard is a subclass of Shard in some releases of torch only."""
    key = (id(spec.mesh), spec.placements)
    found = _placement_cache.get(key)
    if found is None or found[0] is not spec.mesh:
        mesh = spec.mesh
        at = mesh.get_coordinate()
        parts = None
        if at is not None:
            parts = tuple(
                (_KINDS.get(type(p).__name__, _NO_KIND), getattr(p, "dim", 0), getattr(p, "split_factor", 0), mesh.size(i), at[i])
                for i, p in enumerate(spec.placements)
            )
        found = _placement_cache[key] = (mesh, parts)
    return found[1]


class Source:
    """Supplies a publisher's tensors. ``kind``: the name of libwsync's extractor; ``options``: further members of
    wsync_extract_options."""

    kind: str | None = None

    def held(self) -> Held:
        raise NotImplementedError

    def options(self) -> dict:
        return {}

    def takes(self, name: str) -> bool:
        """Is the framework's tensor of this name one of them?"""
        return True

    def files(self) -> dict[str, bytes]:
        """Small files that make a version of these tensors whole. With any, none of another model's go along."""
        return {}

    def saved(self, meta: list[tuple]):
        """What the framework itself would save (_conversions.Saved); None if it cannot tell."""
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


def detached(parameter):
    """torch's parameter without its graph; anything else as it is."""
    return parameter.detach() if hasattr(parameter, "detach") else parameter


def tensors(given: Mapping | Callable[[], Mapping]) -> Source:
    """Tensors by their names in the file: ``{"model.norm.weight": tensor, ...}``, or a function that returns such a
    mapping, called at each offload (JAX creates new arrays at each step).

    A value is a torch tensor, a DTensor (each rank passes its own; libwsync combines the shards), a numpy array (ml_dtypes
    for bfloat16 and float8), or an object with ``__dlpack__``, in host or CUDA memory. The mapping is read again at each
    offload: values may be replaced, and a model whose shapes change is registered again."""
    return Tensors(given)


def to_c(meta: Iterable[tuple], addresses: list[int], keep: Strings, names: Mapping[str, str] = {}):
    """The C array of held tensors; it lives as long as ``keep``. names: other names to pass for some of them."""
    meta = list(meta)
    held = keep.array("wsync_held[]", len(meta))
    for h, (name, dtype, shape, flat, placements, local, strides, unit, start, count, layer), address in zip(held, meta, addresses):
        if len(shape) > _MAX_DIMS or len(placements) > _MAX_DIMS:
            raise ValueError(f"{name} has {len(shape)} dimensions over a mesh of {len(placements)}; at most {_MAX_DIMS} each: reshape it")
        h.name = keep(names.get(name, name))
        h.dtype = _dtypes.number(dtype, name)
        h.n_dims = len(shape)
        h.shape = tuple(shape)
        h.flat = flat
        h.n_placements = len(placements)
        for c, (kind, dim, factor, size, coordinate) in zip(h.placements, placements):
            c.kind, c.dim, c.split_factor, c.size, c.coordinate = kind, dim % max(len(shape), 1), factor, size, coordinate
        h.local = tuple(local)
        h.strides = _elements(name, dtype, strides) if unit else tuple(strides)
        h.strided = not flat  # true even if all strides are 0 (one element, broadcast)
        h.start, h.count, h.layer = start, count, layer
        h.data = ffi.cast("void *", address)
    return held


def fill_whole(param, held: Held) -> None:
    """Points a wsync_param that is all of one tensor to the only one that is held. It is good while the tensor is."""
    name, dtype, _, _, placements, _, strides, unit, *_ = held.meta[0]
    if placements:
        raise NotImplementedError(f"{name} is a part of a tensor; pass the whole one")
    param.data, param.stream = ffi.cast("void *", held.addresses[0]), ffi.cast("void *", (held.all_streams() or [0])[0])
    param.converts, param.data_dtype = 1, _dtypes.number(dtype, name)
    param.piece.strides, param.piece.strided = _elements(name, dtype, strides) if unit else tuple(strides), 1


def _elements(name: str, dtype, strides: tuple) -> tuple:
    """numpy's strides, which are in bytes, converted to elements."""
    if any(s % dtype.itemsize for s in strides):
        raise ValueError(f"{name} has strides of {strides} bytes, which are no multiples of its elements' {dtype.itemsize}: pass numpy.ascontiguousarray() of it")
    return tuple(s // dtype.itemsize for s in strides)
