"""Versions in GPU memory: shared there by a trainer (``map_gpu``), or loaded from files (``load_gpu``)."""
from __future__ import annotations

import errno
import json
import math
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Optional, Union

from ..lib import _cuda, _dtypes
from ..lib._library import Error, Strings, check, ffi, lib, text
from ._safetensors import FormatError
from ._weight_source import ParamMeta, WeightSource
from ._weights import open as open_weights

SHARED = os.path.join(".wsync", "cuda_ipc.json")
MAX_SHARED_BYTES = 256 << 20
_INTEGERS = {1: "|u1", 2: "<i2", 4: "<i4", 8: "<i8"}  # __cuda_array_interface__ has no bfloat16: integers, then view(dtype)


class _Map:
    """libwsync's map of a shared version. It is released when its last view is deleted and queued GPU work has finished."""

    def __init__(self, agent: Optional[str], model: str, version: int):
        keep, out = Strings(), ffi.new("wsync_gpu_map **")
        self._c = ffi.NULL
        check(lib.wsync_map_gpu(keep(agent), keep(model), version, out))
        self._c = out[0]
        self._lock = threading.Lock()
        self.devices: set = set()  # torch devices whose queued work may still read it

    def version(self) -> int:
        return lib.wsync_gpu_map_version(self._c)

    def run(self) -> str:
        return text(lib.wsync_gpu_map_run(self._c))

    def tensors(self) -> Iterator[Any]:
        i = 0
        while (t := lib.wsync_gpu_map_tensor(self._c, i)) != ffi.NULL:
            yield t
            i += 1

    def copy(self, index: int, address: int, n_bytes: int) -> None:
        with self._lock:
            check(lib.wsync_gpu_map_copy(self._c, index, ffi.cast("void *", address), n_bytes))

    def __del__(self) -> None:
        if self._c == ffi.NULL or sys.is_finalizing():  # the agent releases the leases of an ended process
            return
        for device in self.devices:
            sys.modules["torch"].cuda.synchronize(device)
        lib.wsync_unmap_gpu(self._c)


class _Piece(NamedTuple):
    """One rank's part of a tensor. where: slices of the tensor; None: a range of the flattened tensor from start on."""

    index: int
    where: Optional[tuple[slice, ...]]
    start: int
    size: tuple[int, ...]
    strides: tuple[int, ...]  # elements
    address: int
    device: int
    same_elements: bool  # same dtype as in the file, and of whole bytes

    @property
    def count(self) -> int:
        return math.prod(self.size)


def _dense(size: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def _piece(index: int, t: Any) -> _Piece:
    n, p = t.n_dims, t.piece
    shape = tuple(t.shape[0:n])
    same_elements = (not t.converts or t.data_dtype == t.dtype) and _dtypes.BITS[_dtypes.NAMES[t.dtype]] >= 8
    if p.kind == lib.WSYNC_RANGE:
        where, start, size = None, p.start, (p.count,)
        strides = (1,)
    else:
        whole = p.kind == lib.WSYNC_WHOLE
        offset, size = ((0,) * n, shape) if whole else (tuple(p.offset[0:n]), tuple(p.size[0:n]))
        where, start = tuple(slice(a, a + b) for a, b in zip(offset, size)), 0
        given = tuple(p.strides[0:n])
        strides = given if p.strided or any(given) else _dense(size)
    return _Piece(index, where, start, size, strides, int(ffi.cast("uintptr_t", t.data)), t.device, same_elements)


class _Memory:
    """A piece with __cuda_array_interface__. The torch tensor keeps this object alive, and this object the map."""

    def __init__(self, of: _Map, piece: _Piece, item: int):
        self._map = of
        self.__cuda_array_interface__ = {"shape": piece.size, "typestr": _INTEGERS[item], "data": (piece.address, False), "version": 3,
                                         "strides": tuple(s * item for s in piece.strides)}


class _TorchArrays:
    """Creates the result tensors as torch tensors on one device."""

    def __init__(self, device: Any):
        import torch

        self._torch = torch
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        if self.device.type not in ("cpu", "cuda"):
            raise ValueError(f"device={device!r}: tensors are assembled on 'cpu' or 'cuda'")
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())

    def meta(self, name: str, dtype: str, shape: tuple[int, ...]) -> ParamMeta:
        return ParamMeta(name, _dtypes.torch_dtype(dtype), _dtypes.torch_shape(dtype, shape))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        made = self._torch.empty(shape, dtype=dtype, device=self.device)
        if self.device.type == "cuda":
            _cuda.synchronize(self.device)
        return made

    def view(self, of: _Map, piece: _Piece, dtype: Any) -> Optional[Any]:
        """A view of the piece, without a copy; None if torch cannot represent it."""
        if self.device.type != "cuda" or not piece.same_elements or min(piece.strides, default=0) < 0:
            return None
        device = self._torch.device("cuda", piece.device)
        of.devices |= {device, self.device}
        return self._torch.as_tensor(_Memory(of, piece, dtype.itemsize), device=device).view(dtype)

    def is_on_device(self, piece: _Piece) -> bool:
        return self.device.index == piece.device

    @staticmethod
    def is_dense(tensor: Any) -> bool:
        return tensor.is_contiguous()

    @staticmethod
    def address_and_size(tensor: Any) -> tuple[int, int]:
        return tensor.data_ptr(), tensor.numel() * tensor.element_size()


class _NumpyArrays:
    """Creates the result tensors as NumPy arrays in host memory."""

    device = "cpu"

    def __init__(self, device: Any):
        import numpy

        self._numpy = numpy
        if str(device or "cpu") != "cpu":
            raise ValueError(f"device={device!r}: NumPy's arrays are on 'cpu'; framework='torch' has others")

    def meta(self, name: str, dtype: str, shape: tuple[int, ...]) -> ParamMeta:
        return ParamMeta(name, _dtypes.numpy_dtype(dtype), shape)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self._numpy.empty(shape, dtype)

    def view(self, _of: _Map, _piece: _Piece, _dtype: Any) -> None:
        return None

    def is_on_device(self, _piece: _Piece) -> bool:
        return False

    @staticmethod
    def is_dense(array: Any) -> bool:
        return array.flags.c_contiguous

    @staticmethod
    def address_and_size(array: Any) -> tuple[int, int]:
        return array.ctypes.data, array.nbytes


class GpuWeights(Mapping[str, Any]):
    """The result of ``wsync.map_gpu``: a read-only mapping of tensor names to tensors.

    A tensor that one rank holds completely on the requested GPU is a view of the trainer's memory: do not write to it. Every other
    tensor is assembled from the ranks' pieces at each access and not cached, so ``for name, tensor in weights.items()`` needs
    memory for one at a time. The trainer's ``unshare`` waits until this is closed and the last view is deleted."""

    def __init__(self, of: _Map, path: str, model: str, framework: Optional[str], device: Any):
        self.framework = _dtypes.framework_of(framework)
        self._arrays = _TorchArrays(device) if self.framework == "torch" else _NumpyArrays(device)
        self.device = self._arrays.device
        self.path, self.model = path, model
        self.version, self.run = of.version(), of.run()
        self._map: Optional[_Map] = of
        self._entries: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._pieces: dict[str, list[_Piece]] = {}
        for i, t in enumerate(of.tensors()):
            name = text(t.name)
            self._entries[name] = (_dtypes.NAMES[t.dtype], tuple(t.shape[0 : t.n_dims]))
            self._pieces.setdefault(name, []).append(_piece(i, t))
        #: tensors of which only a part is on GPUs: they are not in the mapping
        self.partial = [name for name, (_, shape) in self._entries.items() if sum(p.count for p in self._pieces[name]) != math.prod(shape)]
        for name in self.partial:
            del self._entries[name], self._pieces[name]

    def _mapped(self) -> _Map:
        if self._map is None:
            raise ValueError(f"{self.path} is closed")
        return self._map

    def __getitem__(self, name: str) -> Any:
        """The whole tensor, in the file's dtype and shape."""
        pieces, of = self._pieces[name], self._mapped()
        file_dtype, _ = self._entries[name]
        _, dtype, shape = self._arrays.meta(name, *self._entries[name])
        if len(pieces) == 1 and pieces[0].count and pieces[0].where is not None and self._arrays.is_on_device(pieces[0]):
            found = self._arrays.view(of, pieces[0], dtype)
            if found is not None:
                return found
        if _dtypes.BITS[file_dtype] < 8 and len(pieces) > 1:
            raise TypeError(f"{name} is in {len(pieces)} pieces and its {file_dtype} elements are no whole bytes: take it from the version's files")
        out = self._arrays.empty(shape, dtype)
        for piece in pieces:
            if piece.count:
                self._copy_piece(of, piece, out, dtype)
        return out

    def _copy_piece(self, of: _Map, piece: _Piece, out: Any, dtype: Any) -> None:
        """Copies the piece to its place in the tensor."""
        to = out.reshape(-1)[piece.start : piece.start + piece.count] if piece.where is None else out[(*piece.where, ...)]
        found = self._arrays.view(of, piece, dtype)
        if found is not None:
            to[...] = found
        elif self._arrays.is_dense(to):
            of.copy(piece.index, *self._arrays.address_and_size(to))
        else:
            part = self._arrays.empty(piece.size, dtype)
            of.copy(piece.index, *self._arrays.address_and_size(part))
            to[...] = part

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<wsync.GpuWeights {self.path}: {len(self._entries)} tensors, {self.framework} on {self.device}>"

    def layout(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Name to (safetensors' dtype, shape)."""
        return dict(self._entries)

    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and shape of every tensor, in the mapping's order, which is that of names."""
        return [self._arrays.meta(name, *entry) for name, entry in self._entries.items()]

    def source(self) -> WeightSource:
        """These weights as a ``wsync.WeightSource``, the interface of vLLM's and SkyRL's senders."""
        return WeightSource(self)

    def close(self) -> None:
        """Ends access to tensors; the lease is released once the last view is deleted. May be called twice."""
        self._map = None

    def __enter__(self) -> "GpuWeights":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_share(path: str) -> dict[str, Any]:
    """Reads .wsync/cuda_ipc.json of a mounted version. Error ENOENT: the version is not shared."""
    place = os.path.join(path, SHARED)
    try:
        with open(place, "rb") as f:
            said = f.read(MAX_SHARED_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise Error(errno.ENOENT, f"{path} is not shared on a GPU (it has no {SHARED}): the publisher wants share=, and a mount of its own host "
                    "by unix:PATH") from None
    try:
        share = json.loads(said)
        if not (isinstance(share["model"], str) and isinstance(share["run"], str) and type(share["version"]) is int and isinstance(share["agent"], str)):
            raise TypeError("its model, run, version and agent are no texts and a number")
    except (KeyError, TypeError, ValueError, RecursionError) as e:
        raise FormatError(f"{place} says nothing of a share: {type(e).__name__}: {e}") from None
    return share


def map_gpu(model_or_path: Union[str, "os.PathLike[str]"], version: Optional[int] = None, agent: Optional[str] = None, *,
            device: Any = None, framework: Optional[str] = None) -> GpuWeights:
    """Opens a version that a trainer on this host shares on its GPUs (``Publisher(share=...)``).

    model_or_path: a mounted version's folder ("/wsync/actor/42", ".../current"), whose .wsync/cuda_ipc.json names the agent; or a
    model's name, with version (None: the newest shared one) and agent ("unix:PATH", default as in Publisher).
    device: of the torch tensors: "cuda:0", or "cpu", which copies; default: the current GPU if torch has one. framework: as in
    ``wsync.open``; NumPy arrays are in host memory. Error: ENOENT not shared; ESTALE of another lineage; ENODEV the device is not
    visible to this process; EXDEV not reachable from it; ENOTSUP no driver. FormatError: cuda_ipc.json is damaged."""
    given = os.fspath(model_or_path)
    if os.sep not in given:
        of = _Map(agent, given, version or 0)
        return GpuWeights(of, f"{agent or 'agent'}:{given}/{of.version()}", given, framework, device)
    if version is not None:
        raise ValueError(f"{given} is a version's folder already: version={version!r} goes with a model's name")
    path = os.path.realpath(given)
    share = read_share(path)
    of = _Map(agent or _address(share["agent"]), share["model"], share["version"])
    if of.run() != share["run"]:
        raise Error(errno.ESTALE, f"{path} is of the lineage {share['run']}, and the agent shares version {share['version']} of {of.run()}")
    return GpuWeights(of, path, share["model"], framework, device)


def _address(agent: str) -> str:
    return agent if agent.startswith("unix:") else f"unix:{agent}"


def load_gpu(path: Union[str, "os.PathLike[str]"], device: Any = "cuda") -> dict[str, Any]:
    """Loads all tensors of a mounted version, a checkpoint folder or a file into GPU memory: several threads read through pinned
    buffers, at the speed of the link if the file is in memory. Tensors are views of one buffer per file."""
    with open_weights(path, "torch") as weights:
        return weights.to_gpu(device)
