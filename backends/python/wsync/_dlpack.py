"""Arrays of other libraries as an address, a shape and strides: numpy's own, and DLPack's for the rest (JAX, ...).
DLPack's structs are those of its header, version 0.8 (https://github.com/dmlc/dlpack)."""
from __future__ import annotations

import ctypes

from . import _dtypes
from ._library import lib

_CPU = 1
_CODES = {  # (type code, bits) -> dtype
    (0, 8): lib.WSYNC_I8, (0, 16): lib.WSYNC_I16, (0, 32): lib.WSYNC_I32, (0, 64): lib.WSYNC_I64,
    (1, 8): lib.WSYNC_U8, (1, 16): lib.WSYNC_U16, (1, 32): lib.WSYNC_U32, (1, 64): lib.WSYNC_U64,
    (2, 16): lib.WSYNC_F16, (2, 32): lib.WSYNC_F32, (2, 64): lib.WSYNC_F64,
    (4, 16): lib.WSYNC_BF16, (5, 64): lib.WSYNC_C64, (6, 8): lib.WSYNC_BOOL,
}  # fmt: skip


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("n_dims", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class HostArray:
    """number (dtype), shape, strides (elements), address; keeps the memory alive."""

    __slots__ = ("number", "shape", "strides", "address", "owner")


def _dense(shape: tuple) -> tuple:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def host_array(name: str, value) -> HostArray:
    """-> HostArray. TypeError: no array, or of a dtype that a file cannot hold; NotImplementedError: not in host memory."""
    a = HostArray()
    interface = getattr(value, "__array_interface__", None)
    if interface is not None:
        if value.dtype.kind in "iufc" and not value.dtype.isnative:
            raise TypeError(f"{name} has the dtype {value.dtype}, of the other byte order: convert it by .astype({value.dtype.newbyteorder('=')})")
        a.owner, a.number, a.shape = value, _dtypes.number(value.dtype, name), value.shape
        size = value.itemsize
        if any(s % size for s in value.strides):
            raise ValueError(f"{name} has strides of {value.strides} bytes, which are no multiples of its elements' {size}: pass numpy.ascontiguousarray() of it")
        a.strides = tuple(s // size for s in value.strides)
        a.address = interface["data"][0]
        return a
    if not hasattr(value, "__dlpack__"):
        raise TypeError(f"{name} is a {type(value).__name__}: give a torch tensor, a numpy array or what speaks DLPack")
    device = value.__dlpack_device__()
    if int(device[0]) != _CPU:
        raise NotImplementedError(f"{name} is on DLPack's device {tuple(map(int, device))}: this release copies from host memory only")
    a.owner = value.__dlpack__()  # the capsule frees the tensor when it goes
    t = _Tensor.from_address(_pointer(a.owner, b"dltensor"))
    if (t.code, t.bits) not in _CODES or t.lanes != 1:
        raise TypeError(f"{name} has DLPack's type code {t.code} with {t.bits} bits, which a safetensors file cannot hold")
    a.number = _CODES[t.code, t.bits]
    a.shape = tuple(t.shape[: t.n_dims])
    a.strides = tuple(t.strides[: t.n_dims]) if t.strides else _dense(a.shape)
    a.address = (t.data or 0) + t.byte_offset
    return a
