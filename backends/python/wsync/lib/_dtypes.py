"""Safetensors' element types in NumPy's and PyTorch's terms. Which there are, and their sizes, is libwsync's table."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Optional

from ._library import ffi, lib, text


def _all() -> Iterator[tuple[str, int, Optional[str]]]:
    """Safetensors' name, bits of an element and torch's name (None: it has none) of each type, in wsync.h's order."""
    number = 0
    while (name := lib.wsync_dtype_safetensors(number)) != ffi.NULL:
        yield text(name), lib.wsync_dtype_bits(number), text(lib.wsync_dtype_name(number)) or None
        number += 1


#: safetensors' names, in the order of wsync.h's numbers
NAMES = [name for name, _, _ in _all()]
#: wsync.h's number of each
NUMBERS = {name: number for number, name in enumerate(NAMES)}
#: bits of an element
BITS = {name: bits for name, bits, _ in _all()}
#: NumPy and ml_dtypes have torch's names
_CALLED = {name: called for name, _, called in _all() if called}
_TORCH = {**_CALLED, "F4": "float4_e2m1fn_x2"}  # two numbers an element
_FILE = {called: name for name, called in _CALLED.items()}
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
        found = _numbers[dtype] = NUMBERS[_FILE[called]]
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

    called = _CALLED.get(name)
    if called is None:
        raise TypeError(f"NumPy has no dtype for {name}, whose elements are no whole bytes: take its bytes by raw()")
    if hasattr(numpy, called):
        return numpy.dtype(called)
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError(f"NumPy itself has no dtype for {name}: install ml_dtypes, or use framework='torch'", name="ml_dtypes") from None
    if not hasattr(ml_dtypes, called):
        raise ImportError(f"ml_dtypes {ml_dtypes.__version__} has no {called}: install a newer ml_dtypes", name="ml_dtypes")
    return numpy.dtype(getattr(ml_dtypes, called))


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
