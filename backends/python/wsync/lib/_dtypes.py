"""Safetensors' element types as NumPy's and PyTorch's dtypes, from libwsync's table."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Optional

from ._library import ffi, lib, text


def _table() -> Iterator[tuple[str, int, Optional[str]]]:
    """For each type in wsync.h's order: safetensors' name, bits per element, and torch's name (None: torch has none)."""
    number = 0
    while (name := lib.wsync_dtype_safetensors(number)) != ffi.NULL:
        yield text(name), lib.wsync_dtype_bits(number), text(lib.wsync_dtype_name(number)) or None
        number += 1


#: safetensors' names, in the order of wsync.h's numbers
NAMES = [name for name, _, _ in _table()]
#: wsync.h's number of each
NUMBERS = {name: number for number, name in enumerate(NAMES)}
#: bits of an element
BITS = {name: bits for name, bits, _ in _table()}
#: NumPy and ml_dtypes have torch's names
_TORCH_NAMES = {name: torch_name for name, _, torch_name in _table() if torch_name}
_TORCH_ATTRIBUTES = {**_TORCH_NAMES, "F4": "float4_e2m1fn_x2"}  # one element holds two numbers
_FILE_DTYPES = {torch_name: name for name, torch_name in _TORCH_NAMES.items()}
_numbers: dict = {}  # dtype object -> number


def number(dtype: Any, name: str) -> int:
    """wsync.h's number of a torch or numpy dtype; name: the tensor's, for the error. TypeError: the dtype is not in safetensors."""
    found = _numbers.get(dtype)
    if found is None:
        torch_name = str(dtype).rpartition(".")[2]
        if not getattr(dtype, "isnative", True):
            raise TypeError(f"{name} has the dtype {dtype}, of the other byte order: convert it by .astype({dtype.newbyteorder('=')})")
        if torch_name not in _FILE_DTYPES:
            raise TypeError(f"{name} has the dtype {dtype}, which a safetensors file cannot hold: convert it before")
        found = _numbers[dtype] = NUMBERS[_FILE_DTYPES[torch_name]]
    return found


def file_dtype(torch_name: str) -> str:
    """safetensors' name of torch's name ("bfloat16", "torch.bfloat16"). ValueError: the dtype is not in safetensors."""
    found = _FILE_DTYPES.get(torch_name.rpartition(".")[2]) if isinstance(torch_name, str) else None
    if found is None:
        raise ValueError(f"{str(torch_name)[:60]!r} is no dtype that a safetensors file can hold")
    return found


def weight_dtype(dtype: Any) -> Optional[str]:
    """safetensors' name of a dtype that weights can be converted to ("bfloat16", torch.bfloat16, "BF16", ...); None for None."""
    if dtype is None:
        return None
    torch_name = str(dtype).rpartition(".")[2].lower()
    found = _FILE_DTYPES.get(torch_name, torch_name.upper())
    if found not in ("F32", "F16", "BF16"):
        raise ValueError(f"weights cannot be published as {dtype}: float32, float16 or bfloat16")
    return found


def framework_of(wanted: Optional[str]) -> str:
    """"torch" or "numpy": as requested; by default torch if the program has imported it."""
    if wanted not in (None, "torch", "numpy"):
        raise ValueError(f"framework={wanted!r}: it is 'torch' or 'numpy'")
    return wanted or ("torch" if "torch" in sys.modules else "numpy")


def numpy_dtype(name: str) -> Any:
    """The numpy.dtype of a safetensors dtype. ImportError: it needs ml_dtypes, which is not installed; TypeError: there is none."""
    import numpy

    torch_name = _TORCH_NAMES.get(name)
    if torch_name is None:
        raise TypeError(f"NumPy has no dtype for {name}, whose elements are no whole bytes: take its bytes by raw()")
    if hasattr(numpy, torch_name):
        return numpy.dtype(torch_name)
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(f"NumPy itself has no dtype for {name}: install ml_dtypes, or use framework='torch'", name="ml_dtypes") from None
    if not hasattr(ml_dtypes, torch_name):
        raise ImportError(f"ml_dtypes {ml_dtypes.__version__} has no {torch_name}: install a newer ml_dtypes", name="ml_dtypes")
    return numpy.dtype(getattr(ml_dtypes, torch_name))


def torch_dtype(name: str) -> Any:
    """The torch.dtype of a safetensors dtype. TypeError: this release of PyTorch has none."""
    import torch

    found = getattr(torch, _TORCH_ATTRIBUTES.get(name, ""), None)
    if found is None:
        raise TypeError(f"PyTorch {torch.__version__} has no dtype for {name}: take its bytes by raw()")
    return found


def torch_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in PyTorch's elements: PyTorch's 4-bit type packs two numbers along the last dimension into one element."""
    if name != "F4":
        return shape
    if not shape or shape[-1] % 2:
        raise TypeError(f"an F4 tensor of shape {list(shape)} is no tensor of PyTorch's pairs: take its bytes by raw()")
    return (*shape[:-1], shape[-1] // 2)
