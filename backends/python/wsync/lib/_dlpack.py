"""Arrays of other libraries (JAX, ...) by DLPack: address, shape and strides. The structs are those of DLPack 0.8's header
(https://github.com/dmlc/dlpack)."""
from __future__ import annotations

import ctypes

from ._cuda import need_cuda

_CPU, _CUDA = 1, 2
_LEGACY_STREAM = 1  # CUDA's default stream, in the protocol and in the driver
_CODES = {  # (type code, bits) -> dtype
    (0, 8): "int8", (0, 16): "int16", (0, 32): "int32", (0, 64): "int64", (1, 8): "uint8", (1, 16): "uint16", (1, 32): "uint32",
    (1, 64): "uint64", (2, 16): "float16", (2, 32): "float32", (2, 64): "float64", (4, 16): "bfloat16", (5, 64): "complex64",
    (6, 8): "bool",
}  # fmt: skip


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("n_dims", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class Array:
    """dtype (name), shape, strides (in elements), address, and the stream that writes the array (0: host memory). ``owner`` keeps
    the memory alive."""

    __slots__ = ("dtype", "shape", "strides", "address", "stream", "owner")


def _dense(shape: tuple) -> tuple:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def dlpack_array(name: str, value) -> Array:
    """The Array of a value. TypeError: not an array, or its dtype is not in safetensors; NotImplementedError: on another device."""
    if not hasattr(value, "__dlpack__"):
        raise TypeError(f"{name} is a {type(value).__name__}: give a torch tensor, a numpy array or what speaks DLPack")
    device = value.__dlpack_device__()
    if int(device[0]) not in (_CPU, _CUDA):
        raise NotImplementedError(f"{name} is on DLPack's device {tuple(map(int, device))}: wsync copies from host memory and CUDA's")
    on_gpu = int(device[0]) == _CUDA
    if on_gpu:
        need_cuda(name, f"DLPack's device {tuple(map(int, device))}")
    a = Array()
    a.stream = _LEGACY_STREAM if on_gpu else 0
    a.owner = value.__dlpack__(stream=_LEGACY_STREAM) if on_gpu else value.__dlpack__()  # deleting the capsule frees the tensor
    t = _Tensor.from_address(_pointer(a.owner, b"dltensor"))
    if (t.code, t.bits) not in _CODES or t.lanes != 1:
        raise TypeError(f"{name} has DLPack's type code {t.code} with {t.bits} bits, which a safetensors file cannot hold")
    a.dtype = _CODES[t.code, t.bits]
    a.shape = tuple(t.shape[: t.n_dims])
    a.strides = tuple(t.strides[: t.n_dims]) if t.strides else _dense(a.shape)
    a.address = (t.data or 0) + t.byte_offset
    return a
