"""Engines told to load a path, for those who have a path and no mount: wsync.h's functions under the same names.

They block (without the GIL) and are thread safe; ``wsync.aio`` has them for asyncio. Nothing is kept between calls."""
from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Optional, Union

from ..lib._library import Error, Strings, Timeout, check, ffi, lib, text

Path = Union[str, "os.PathLike[str]"]
Version = Union[int, str, None]


@dataclass(frozen=True)
class Engine:
    """An inference server. kind: "sglang" or "vllm"; url: http(s)://HOST:PORT; version: what it is told that it serves; token: a
    bearer token; pause_mode: SGLang's retract (default), abort, in_place; vLLM's keep (default), wait, abort; timeout: of the load,
    in seconds; admin_token: for what changes it, where that wants another one; ca_file: whom to trust for https; cache: what is
    emptied of the old weights' keys and values, "local", "external" (stores beside it, too) or "keep"."""

    kind: str
    url: str
    version: Version = None
    token: Optional[str] = None
    pause_mode: Optional[str] = None
    timeout: float = 300.0
    admin_token: Optional[str] = None
    ca_file: Optional[Path] = None
    cache: str = "local"

    def __repr__(self) -> str:  # a token does not belong into logs
        return f"<wsync.Engine {self.kind} {self.url}>"


@dataclass(frozen=True)
class EngineResult:
    """What became of one engine. error: None, or the exception whose sentence says why and how the engine was left;
    pause_seconds: from its pause to its resume."""

    engine: Engine
    error: Optional[Error]
    pause_seconds: float

    @property
    def ok(self) -> bool:
        return self.error is None


def _fill(out: Any, keep: Strings, engine: Engine) -> Any:
    if not 0 < engine.timeout < 4_000_000:
        raise ValueError(f"timeout={engine.timeout!r}: it is in seconds, more than 0 and less than 4000000")
    out.kind, out.url, out.token, out.pause_mode = map(keep, (engine.kind, engine.url, engine.token, engine.pause_mode))
    out.admin_token, out.ca_file, out.cache = map(keep, (engine.admin_token, engine.ca_file, engine.cache))
    out.version = keep(None if engine.version is None else str(engine.version))
    out.timeout_ms = math.ceil(engine.timeout * 1000)
    return out


def _update(function: Any, path: Path, engine: Engine) -> None:
    keep = Strings()
    check(function(keep(engine.url), keep(path), _fill(ffi.new("wsync_engine *"), keep, engine)))


def update_sglang_weights_from_disk(url: str, path: Path, *, version: Version = None, token: Optional[str] = None,
                                    pause_mode: Optional[str] = None, timeout: float = 300.0, admin_token: Optional[str] = None,
                                    ca_file: Optional[Path] = None, cache: str = "local") -> None:
    """Pauses the SGLang server, has it load the folder at path (absolute, as the server sees it), asks it what it serves and
    resumes it. When the load fails it loads back what it served before, where that can be known; it is never resumed without a
    load that it confirmed. version: what it is told that it serves; pause_mode: retract, abort, in_place; timeout: seconds; the others
    are wsync.Engine's.
    wsync.Error: EREMOTEIO it refused or failed; EHOSTUNREACH, EACCES, EPROTO no such server; EINVAL. wsync.Timeout."""
    _update(lib.wsync_update_sglang_weights_from_disk, path, Engine("sglang", url, version, token, pause_mode, timeout, admin_token, ca_file, cache))


def update_vllm_weights_from_disk(url: str, path: Path, *, version: Version = None, token: Optional[str] = None,
                                  pause_mode: Optional[str] = None, timeout: float = 300.0, admin_token: Optional[str] = None,
                                  ca_file: Optional[Path] = None, cache: str = "local") -> None:
    """The same for a vLLM server with VLLM_SERVER_DEV_MODE=1. pause_mode: keep, wait, abort."""
    _update(lib.wsync_update_vllm_weights_from_disk, path, Engine("vllm", url, version, token, pause_mode, timeout, admin_token, ca_file, cache))


def sync_weights_to_engines(engines: Iterable[Engine], path: Path) -> list[EngineResult]:
    """The same for many engines at once, each by itself. Returns one result an engine, in their order; that some failed is no
    exception: look at ``ok``. wsync.Error, MemoryError: nothing was started."""
    engines = list(engines)
    keep = Strings()
    array = ffi.new("wsync_engine[]", len(engines))
    results = ffi.new("wsync_engine_result[]", len(engines))
    for i, engine in enumerate(engines):
        _fill(array[i], keep, engine)
    if engines:
        check(lib.wsync_sync_weights_to_engines(array, len(engines), keep(path), results))
    return [EngineResult(engine, _error(result), result.pause_seconds) for engine, result in zip(engines, results)]


def _error(result: Any) -> Optional[Error]:
    if result.rc >= 0:
        return None
    return (Timeout if result.rc == -errno.ETIMEDOUT else Error)(-result.rc, text(result.error))
