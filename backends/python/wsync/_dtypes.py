"""Element types by the names that torch, numpy and ml_dtypes give them, as wsync.h's."""
from __future__ import annotations

from ._library import lib

_NAMES = {
    "bool": lib.WSYNC_BOOL,
    "uint8": lib.WSYNC_U8,
    "int8": lib.WSYNC_I8,
    "float8_e5m2": lib.WSYNC_F8_E5M2,
    "float8_e4m3fn": lib.WSYNC_F8_E4M3,
    "float8_e8m0fnu": lib.WSYNC_F8_E8M0,
    "float8_e4m3fnuz": lib.WSYNC_F8_E4M3FNUZ,
    "float8_e5m2fnuz": lib.WSYNC_F8_E5M2FNUZ,
    "int16": lib.WSYNC_I16,
    "uint16": lib.WSYNC_U16,
    "float16": lib.WSYNC_F16,
    "bfloat16": lib.WSYNC_BF16,
    "int32": lib.WSYNC_I32,
    "uint32": lib.WSYNC_U32,
    "float32": lib.WSYNC_F32,
    "float64": lib.WSYNC_F64,
    "int64": lib.WSYNC_I64,
    "uint64": lib.WSYNC_U64,
    "complex64": lib.WSYNC_C64,
}
_FILE = {"float32": b"F32", "float16": b"F16", "bfloat16": b"BF16", "f32": b"F32", "f16": b"F16", "bf16": b"BF16"}
_known: dict = {}  # dtype object -> number


def number(dtype, name: str) -> int:
    """wsync.h's number of a torch or numpy dtype; ``name``: the tensor's, for the error."""
    found = _known.get(dtype)
    if found is None:
        called = str(dtype).rpartition(".")[2]
        if called not in _NAMES:
            raise TypeError(f"{name} has the dtype {dtype}, which a safetensors file cannot hold")
        found = _known[dtype] = _NAMES[called]
    return found


def of_file(dtype) -> bytes | None:
    """What ``Publisher(dtype=...)`` asks for, as wsync.h names it; None: None."""
    if dtype is None:
        return None
    called = str(dtype).rpartition(".")[2].lower()
    if called not in _FILE:
        raise ValueError(f"weights cannot be published as {dtype}: float32, float16 or bfloat16")
    return _FILE[called]
