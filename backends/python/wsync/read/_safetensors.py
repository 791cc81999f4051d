"""One safetensors file: its validated header, and its data as one memory mapping.

The safetensors package maps files for PyTorch, but copies for NumPy. libwsync reads and validates the header, so offsets need no
further checks here."""
from __future__ import annotations

import errno
import json
import mmap
import os
from typing import Any, NamedTuple

from ..lib import _dtypes
from ..lib._library import Error, Strings, check, ffi, lib, text

MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_CONTENT_ERRORS = (errno.EBADMSG, errno.E2BIG, errno.EINVAL, errno.ENOENT)


class FormatError(ValueError):
    """A malformed file or index; the message names it and says what is wrong."""


class Entry(NamedTuple):
    """A tensor in a file: bytes [begin, end) of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def checked(path: str, rc: int) -> None:
    """``check`` for calls that read the file or folder at path; errors about its contents become FormatError."""
    try:
        check(rc)
    except Error as e:
        if e.errno in _CONTENT_ERRORS:
            raise FormatError(f"{path}: {e.strerror}") from None
        raise Error(e.errno, f"{path}: {e.strerror}") from None


def _header(path: str, fd: int, index: Any) -> tuple[dict[str, Entry], dict[str, str]]:
    """The tensors, in the order of their data, and __metadata__. index: NULL, or libwsync's index, which must name the same tensors."""
    out = ffi.new("wsync_safetensors **")
    checked(path, lib.wsync_safetensors_open(fd, out))
    header, entries = ffi.gc(out[0], lib.wsync_safetensors_close), {}
    while (t := lib.wsync_safetensors_tensor(header, len(entries))) != ffi.NULL:
        entries[text(t.name)] = Entry(_dtypes.NAMES[t.dtype], tuple(t.shape[0 : t.n_dims]), t.begin, t.end)
    if index != ffi.NULL:
        checked(path, lib.wsync_index_check(index, Strings()(os.path.basename(path)), header))
    return entries, json.loads(text(lib.wsync_safetensors_metadata(header)) or "{}")


class File:
    """A mapped safetensors file. fd: open for reading, closed here; path: for messages; index: libwsync's index of the folder, which
    the file must match. ``entries``: its tensors in the order of their data; ``metadata``: its __metadata__. Immutable and thread
    safe. The mapping is private, so writes to a tensor stay in this process. It is unmapped when this object and all arrays over it
    are deleted, and stays valid until then even if the file or its mount is removed."""

    def __init__(self, path: str, fd: int, index: Any = ffi.NULL):
        self.path = path
        try:
            self.entries, self.metadata = _header(path, fd, index)
            # Never closed explicitly: torch.frombuffer keeps the object alive, but does not lock its buffer.
            self._map = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE | MAP_NORESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)

    def raw(self, name: str) -> memoryview:
        """A tensor's bytes, read-only, not copied."""
        e = self.entries[name]
        return memoryview(self._map)[e.begin:e.end].toreadonly()

    def numpy(self, name: str) -> Any:
        """A read-only array over the mapping."""
        import numpy

        e = self.entries[name]
        array = numpy.frombuffer(self._map, numpy.uint8, e.end - e.begin, e.begin).view(_dtypes.numpy_dtype(e.dtype))
        array = array.reshape(e.shape)
        array.flags.writeable = False
        return array

    def torch(self, name: str) -> Any:
        """A tensor over the mapping; a copy if the data is not aligned to the dtype; a new tensor if it is empty."""
        import torch

        e = self.entries[name]
        dtype, shape = _dtypes.torch_dtype(e.dtype), _dtypes.torch_shape(e.dtype, e.shape)
        if e.begin == e.end:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self._map, dtype=torch.uint8, count=e.end - e.begin, offset=e.begin)
        if e.begin % dtype.itemsize:
            flat = flat.clone()
        return flat.view(dtype).reshape(shape)
