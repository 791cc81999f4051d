"""Safetensors' element types in NumPy's and PyTorch's terms."""
from __future__ import annotations

import sys
from typing import Any, Optional

from ._library import lib

#: bits of an element
BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4,
        "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "F64": 64,
        "I64": 64, "U64": 64, "C64": 64}
_NUMPY = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16", "I32": "int32",
          "U32": "uint32", "F32": "float32", "F64": "float64", "I64": "int64", "U64": "uint64", "C64": "complex64"}
_ML_DTYPES = {"BF16": "bfloat16", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
              "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}
_TORCH = {**_NUMPY, **_ML_DTYPES, "F4": "float4_e2m1fn_x2"}
_FILE = {called: dtype for dtype, called in {**_NUMPY, **_ML_DTYPES}.items()}
_numbers: dict = {}  # dtype object -> number


def number(dtype: Any, name: str) -> int:
    """wsync.h's number of a torch or numpy dtype; name: the tensor's, for the error. TypeError: no file can hold it."""
    found = _numbers.get(dtype)
    if found is None:
        called = str(dtype).rpartition(".")[2]
        if not getattr(dtype, "isnative", True):
            raise TypeError(f"{name} has the dtype {dtype}, of the other byte order: convert it by .astype({dtype.newbyteorder('=')})")
        if called not in _FILE:
            raise TypeError(f"{name} has the dtype {dtype}, which a safetensors file cannot hold: convert it before")
        found = _numbers[dtype] = getattr(lib, "WSYNC_" + _FILE[called])
    return found


def file_dtype(called: str) -> str:
    """safetensors' name of torch's ("bfloat16", "torch.bfloat16"). ValueError: a file cannot hold it."""
    found = _FILE.get(called.rpartition(".")[2]) if isinstance(called, str) else None
    if found is None:
        raise ValueError(f"{str(called)[:60]!r} is no dtype that a safetensors file can hold")
    return found


def of_weights(dtype: Any) -> Optional[str]:
    """What weights may be converted to ("bfloat16", torch.bfloat16, "BF16", ...), as safetensors names it; None: None."""
    if dtype is None:
        return None
    called = str(dtype).rpartition(".")[2].lower()
    found = _FILE.get(called, called.upper())
    if found not in ("F32", "F16", "BF16"):
        raise ValueError(f"weights cannot be published as {dtype}: float32, float16 or bfloat16")
    return found


def framework_of(wanted: Optional[str]) -> str:
    """"torch" or "numpy": what is wanted, else torch where the program has imported it."""
    if wanted not in (None, "torch", "numpy"):
        raise ValueError(f"framework={wanted!r}: it is 'torch' or 'numpy'")
    return wanted or ("torch" if "torch" in sys.modules else "numpy")


def numpy_dtype(name: str) -> Any:
    """The numpy.dtype of a safetensors dtype. ImportError: it is ml_dtypes' and that is not installed; TypeError: NumPy has none."""
    import numpy

    if name in _NUMPY:
        return numpy.dtype(_NUMPY[name])
    if name not in _ML_DTYPES:
        raise TypeError(f"NumPy has no dtype for {name}, whose elements are no whole bytes: take its bytes by raw()")
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(f"NumPy itself has no dtype for {name}: install ml_dtypes, or use framework='torch'", name="ml_dtypes") from None
    if not hasattr(ml_dtypes, _ML_DTYPES[name]):
        raise ImportError(f"ml_dtypes {ml_dtypes.__version__} has no {_ML_DTYPES[name]}: install a newer ml_dtypes", name="ml_dtypes")
    return numpy.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))


def torch_dtype(name: str) -> Any:
    """The torch.dtype of a safetensors dtype. TypeError: this PyTorch has none."""
    import torch

    found = getattr(torch, _TORCH.get(name, ""), None)
    if found is None:
        raise TypeError(f"PyTorch {torch.__version__} has no dtype for {name}: take its bytes by raw()")
    return found


def torch_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in PyTorch's elements: its 4-bit type holds two numbers each, side by side in the last dimension."""
    if name != "F4":
        return shape
    if not shape or shape[-1] % 2:
        raise TypeError(f"an F4 tensor of shape {list(shape)} is no tensor of PyTorch's pairs: take its bytes by raw()")
    return (*shape[:-1], shape[-1] // 2)
