"""One safetensors file: its header, checked, and its data as one mapping of memory.

The safetensors package maps files for PyTorch, but copies for NumPy; the format is simple enough to be read by json. What is
refused is what libwsync refuses (transports/format/safetensors.h): whoever uses an offset from here needs no checks."""
from __future__ import annotations

import json
import math
import mmap
import os
import stat
from typing import Any, NamedTuple

from ..lib import _dtypes

MAX_HEADER_BYTES = 256 << 20
MAX_TENSORS = 1_000_000
MAX_DIMS = 8
MAX_TENSOR_NAME = 1024
MAX_INTEGER = 1 << 53
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


class FormatError(ValueError):
    """A file or an index that is not what it should be; the message names it and says what is wrong."""


class Entry(NamedTuple):
    """A tensor in a file: bytes [begin, end) of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For json: an object whose keys are each there once."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise FormatError(f"\"{twice[:160]}\" is there twice")
    return found


def _integers(what: str, value: Any, most: int) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > most or not all(type(n) is int and 0 <= n <= MAX_INTEGER for n in value):
        raise FormatError(f"its {what} is no list of at most {most} whole numbers up to 2^53")
    return tuple(value)


def _entry(fields: Any, data_begin: int, file_bytes: int) -> Entry:
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise FormatError("it is not described by dtype, shape and data_offsets alone")
    dtype = fields["dtype"]
    if not isinstance(dtype, str) or dtype not in _dtypes.BITS:
        raise FormatError(f"its dtype {str(dtype)[:32]!r} is unknown: is there a newer wsync?")
    shape = _integers("shape", fields["shape"], MAX_DIMS)
    offsets = _integers("data_offsets", fields["data_offsets"], 2)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FormatError("its data_offsets are no beginning and end")
    bits = math.prod(shape) * _dtypes.BITS[dtype]
    if bits % 8:
        raise FormatError(f"its {dtype} elements do not end on a whole byte")
    if offsets[1] - offsets[0] != bits // 8:
        raise FormatError(f"its dtype and shape need {bits // 8} bytes, its data_offsets span {offsets[1] - offsets[0]}")
    if data_begin + offsets[1] > file_bytes:
        raise FormatError(f"it ends at byte {offsets[1]} of the data, the file has only {file_bytes - data_begin}: it is cut off, copy it again")
    return Entry(dtype, shape, data_begin + offsets[0], data_begin + offsets[1])


def _check_name(name: str) -> None:
    try:
        n_bytes = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        raise FormatError("its name is no Unicode") from None
    if not 0 < n_bytes <= MAX_TENSOR_NAME or "\0" in name:
        raise FormatError(f"its name is empty, longer than {MAX_TENSOR_NAME} bytes, or has a NUL")


def _check_cover(entries: dict[str, Entry], data_begin: int, file_bytes: int) -> None:
    """Tensors follow each other without gap or overlap, from the header to the file's end."""
    at, before = data_begin, ""
    for name, e in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if e.begin < at:
            raise FormatError(f"tensors \"{before[:160]}\" and \"{name[:160]}\" overlap")
        if e.begin > at:
            raise FormatError(f"there is a gap of {e.begin - at} bytes in front of tensor \"{name[:160]}\"")
        at, before = e.end, name
    if at != file_bytes:
        raise FormatError(f"{file_bytes - at} bytes follow the last tensor")


def parse_header(header: bytes, file_bytes: int) -> tuple[dict[str, Entry], dict[str, str]]:
    """The tensors, in the order of their data, and __metadata__, of a header without the 8 bytes of its length."""
    if not header.startswith(b"{"):
        raise FormatError("this is no safetensors file: its header does not begin with '{'")
    try:
        fields = json.loads(header.rstrip(b" ").decode("utf-8"), object_pairs_hook=no_duplicates)
    except (UnicodeDecodeError, RecursionError, json.JSONDecodeError) as e:
        raise FormatError(f"its header is no JSON: {e}") from None
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FormatError("its __metadata__ holds something else than strings")
    if len(fields) > MAX_TENSORS:
        raise FormatError(f"it has {len(fields)} tensors, more than the limit of {MAX_TENSORS}")
    data_begin = 8 + len(header)
    entries = {}
    for name, value in fields.items():
        try:
            _check_name(name)
            entries[name] = _entry(value, data_begin, file_bytes)
        except FormatError as e:
            raise FormatError(f"tensor \"{name[:160]}\": {e}") from None
    _check_cover(entries, data_begin, file_bytes)
    return dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end))), metadata


def _read(fd: int, begin: int, n_bytes: int) -> bytes:
    """Exactly these bytes: a read may return fewer, and the mapping of a file that a mount is still fetching would block unseen."""
    parts: list[bytes] = []
    while n_bytes:
        part = os.pread(fd, n_bytes, begin)
        if not part:
            raise FormatError("the file became shorter while it was read")
        parts.append(part)
        begin, n_bytes = begin + len(part), n_bytes - len(part)
    return b"".join(parts)


class File:
    """A mapped safetensors file. fd: open for reading, closed here; path: what errors call it. ``entries``: its tensors in the
    order of their data; ``metadata``: its __metadata__. Immutable, for any thread. The memory is mapped privately, so that what
    is written to a tensor stays in this process, and is unmapped when this object and every array over it are gone: never
    before, also when the file or its mount is."""

    def __init__(self, path: str, fd: int):
        self.path = path
        try:
            self.entries, self.metadata = self._header(fd)
            # Never closed by hand: torch.frombuffer keeps the object alive, but not its buffer locked.
            self._map = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE | MAP_NORESERVE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        except FormatError as e:
            raise FormatError(f"{path}: {e}") from None
        finally:
            os.close(fd)

    @staticmethod
    def _header(fd: int) -> tuple[dict[str, Entry], dict[str, str]]:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise FormatError("it is no regular file")
        if info.st_size < 8:
            raise FormatError(f"this is no safetensors file: it has {info.st_size} bytes, fewer than the 8 of the header's length")
        n_bytes = int.from_bytes(_read(fd, 0, 8), "little")
        if not 2 <= n_bytes <= MAX_HEADER_BYTES:
            raise FormatError(f"this is no safetensors file: its header would have {n_bytes} bytes; the limit is {MAX_HEADER_BYTES}")
        if n_bytes > info.st_size - 8:
            raise FormatError(f"the file is cut off: its header has {n_bytes} bytes, but only {info.st_size - 8} follow; copy it again")
        return parse_header(_read(fd, 8, n_bytes), info.st_size)

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
