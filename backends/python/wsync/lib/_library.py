"""libwsync by cffi. The declarations are parsed from wsync.h itself, so that there is one contract.

Other modules use ``ffi`` and ``lib``; ``check`` turns a negative return value into an exception with the library's message."""
from __future__ import annotations

import errno
import os
import re
from typing import Any

import cffi

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(_PACKAGE)))
_BUILT = {"libwsync.so": "build/libwsync.so", "wsync": "build/wsync", "wsync.h": "backends/trainer/wsync.h"}


def native(name: str) -> str:
    """The path of a file of the C part: inside the installed package, or where `make` puts it in a checkout."""
    installed = os.path.join(_PACKAGE, "native", name)
    if os.path.exists(installed) or not os.path.exists(os.path.join(_CHECKOUT, _BUILT["wsync.h"])):
        return installed
    return os.path.join(_CHECKOUT, _BUILT[name])


class Error(OSError):
    """An error of libwsync: ``errno`` as in wsync.h, and a message that says what to do."""


class Timeout(Error, TimeoutError):
    """A deadline passed."""


def _declarations(header: str) -> str:
    """The header without preprocessor lines and C++ parts, and with constants substituted, as cffi parses it."""
    header = re.sub(r"#ifdef __cplusplus\n.*?#endif\n", "", header, flags=re.S)
    constants = dict(re.findall(r"^#define (WSYNC_\w+)\s+(\d+)\s*$", header, re.M))
    header = re.sub(r"^#.*\n|^WSYNC_DEPRECATED\(.*\)\n", "", header, flags=re.M)
    return re.sub(r"\bWSYNC_\w+\b", lambda m: constants.get(m.group(0), m.group(0)), header)


def _refuse_older(ffi: cffi.FFI, lib: Any, path: str, header: str) -> None:
    """Refuses a library older than the header, whose structs it would not know. It lacks functions that the header declares."""
    missing = [name for name in dir(lib) if not hasattr(lib, name)]
    if missing:
        has = ffi.string(lib.wsync_version()).decode() if hasattr(lib, "wsync_version") else "of an unknown release"
        wants = ".".join(re.findall(r"^#define WSYNC_VERSION_(?:MAJOR|MINOR)\s+(\d+)", header, re.M))
        more = f" and {len(missing) - 1} more functions" if len(missing) > 1 else ""
        raise ImportError(f"{path} is libwsync {has} and has no {missing[0]}{more}, which this package's wsync.h ({wants}) declares: the library is "
                          "older than the package. Install both from one checkout, and unset WSYNC_LIBRARY where it names another one")


def _open() -> tuple[cffi.FFI, Any]:
    ffi = cffi.FFI()
    header, path = native("wsync.h"), os.environ.get("WSYNC_LIBRARY") or native("libwsync.so")
    try:
        with open(header, encoding="utf-8") as f:
            declared = f.read()
        ffi.cdef(_declarations(declared))
    except FileNotFoundError:
        raise ImportError(f"{header} is not there: `pip install ./backends/python` in a checkout of wsync puts it in place") from None
    if not os.path.exists(path):
        raise ImportError(f"{path} is not there: run `make` in the checkout, or `pip install ./backends/python`, which does")
    try:
        lib = ffi.dlopen(path)
    except OSError as e:
        raise ImportError(f"cannot load {path}: {e}. On Debian, libmicrohttpd, libcurl4, libjansson4, libxxhash0, libzstd1 and libzmq5 are needed") from None
    _refuse_older(ffi, lib, path, declared)
    return ffi, lib


ffi, lib = _open()
_libc_ffi = cffi.FFI()
_libc_ffi.cdef("void free(void *);")
_libc = _libc_ffi.dlopen(None)


def text(pointer) -> str:
    """A C string; "" for NULL."""
    return ffi.string(pointer).decode("utf-8", "replace") if pointer != ffi.NULL else ""


def text_and_free(out) -> str:
    """The string at a char** that a function of libwsync has filled; frees it."""
    try:
        return text(out[0])
    finally:
        _libc.free(_libc_ffi.cast("void *", int(ffi.cast("uintptr_t", out[0]))))


def check(rc: int) -> int:
    """Returns rc if it is not negative; else raises MemoryError, Timeout or Error."""
    if rc >= 0:
        return rc
    sentence = text(lib.wsync_error())
    if rc == -errno.ENOMEM:
        raise MemoryError(sentence)
    raise (Timeout if rc == -errno.ETIMEDOUT else Error)(-rc, sentence)


class Strings:
    """C strings and arrays that live as long as this object."""

    def __init__(self) -> None:
        self._alive: list = []

    def __call__(self, value):
        """str, bytes or path -> char*; None -> NULL. TypeError: not text; ValueError: it contains a NUL."""
        if value is None:
            return ffi.NULL
        if not isinstance(value, (str, bytes, os.PathLike)):
            raise TypeError(f"{value!r} is a {type(value).__name__} and should be text")
        encoded = os.fsencode(value)
        if b"\0" in encoded:
            raise ValueError(f"{value!r} has a NUL in it")
        self._alive.append(ffi.new("char[]", encoded))
        return self._alive[-1]

    def array(self, ctype: str, values):
        self._alive.append(ffi.new(ctype, values))
        return self._alive[-1]
