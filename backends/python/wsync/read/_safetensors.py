"""One safetensors file: its header, checked, and its data as one mapping of memory.

The safetensors package maps files for PyTorch, but copies for NumPy. libwsync reads the header, and refuses what is not sound: an
offset from here needs no checks."""
from __future__ import annotations

import errno
import json
import mmap
import os
from typing import Any, NamedTuple

from ..lib import _dtypes
from ..lib._library import Error, Strings, check, ffi, lib, text

MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_OF_CONTENTS = (errno.EBADMSG, errno.E2BIG, errno.EINVAL, errno.ENOENT)


class FormatError(ValueError):
    """A file or an index that is not what it should be; the message names it and says what is wrong."""


class Entry(NamedTuple):
    """A tensor in a file: bytes [begin, end) of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def checked(path: str, rc: int) -> None:
    """libwsync's return of a look at the file or folder at path; what it says of its contents is a FormatError."""
    try:
        check(rc)
    except Error as e:
        if e.errno in _OF_CONTENTS:
            raise FormatError(f"{path}: {e.strerror}") from None
        raise Error(e.errno, f"{path}: {e.strerror}") from None


def _header(path: str, fd: int, index: Any) -> tuple[dict[str, Entry], dict[str, str]]:
    """The tensors, in the order of their data, and __metadata__. index: NULL, or what has to name the same tensors."""
    out = ffi.new("wsync_safetensors **")
    checked(path, lib.wsync_safetensors_open(fd, out))
    header, entries = ffi.gc(out[0], lib.wsync_safetensors_close), {}
    while (t := lib.wsync_safetensors_tensor(header, len(entries))) != ffi.NULL:
        entries[text(t.name)] = Entry(_dtypes.NAMES[t.dtype], tuple(t.shape[0 : t.n_dims]), t.begin, t.end)
    if index != ffi.NULL:
        checked(path, lib.wsync_index_check(index, Strings()(os.path.basename(path)), header))
    return entries, json.loads(text(lib.wsync_safetensors_metadata(header)) or "{}")


class File:
    """A mapped safetensors file. fd: open for reading, closed here; path: what errors call it; index: libwsync's, of the folder,
    which the file must agree with. ``entries``: its tensors in the
    order of their data; ``metadata``: its __metadata__. Immutable, for any thread. The memory is mapped privately, so that what
    is written to a tensor stays in this process, and is unmapped when this object and every array over it are gone: never
    before, also when the file or its mount is."""

    def __init__(self, path: str, fd: int, index: Any = ffi.NULL):
        self.path = path
        try:
            self.entries, self.metadata = _header(path, fd, index)
            # Never closed by hand: torch.frombuffer keeps the object alive, but not its buffer locked.
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
        """A tensor over the mapping; a copy where the file has it at an address that its dtype cannot have, or it is empty."""
        import torch

        e = self.entries[name]
        dtype, shape = _dtypes.torch_dtype(e.dtype), _dtypes.torch_shape(e.dtype, e.shape)
        if e.begin == e.end:
            return torch.empty(shape, dtype=dtype)
        flat = torch.frombuffer(self._map, dtype=torch.uint8, count=e.end - e.begin, offset=e.begin)
        if e.begin % dtype.itemsize:
            flat = flat.clone()
        return flat.view(dtype).reshape(shape)
