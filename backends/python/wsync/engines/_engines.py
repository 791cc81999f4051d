"""Functions that make an engine load a path without a mount's control file: wsync.h's functions under the same names.

They block (without the GIL) and are thread safe; ``wsync.aio`` has them for asyncio. They keep no state between calls."""
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
    """An inference server. kind: "sglang" or "vllm"; url: http(s)://HOST:PORT; version: the version name that the server is to
    report; token: bearer token; pause_mode: for SGLang retract (default), abort, in_place; for vLLM keep (default), wait, abort;
    timeout: for the load, in seconds; admin_token: token for requests that change the server, if it needs another one; ca_file:
    certificate authorities for https; cache: which keys and values of the old weights to flush, "local", "external" (external stores,
    too) or "keep"."""

    kind: str
    url: str
    version: Version = None
    token: Optional[str] = None
    pause_mode: Optional[str] = None
    timeout: float = 300.0
    admin_token: Optional[str] = None
    ca_file: Optional[Path] = None
    cache: str = "local"

    def __repr__(self) -> str:  # without tokens, which must not reach logs
        return f"<wsync.Engine {self.kind} {self.url}>"


@dataclass(frozen=True)
class EngineResult:
    """The result for one engine. error: None, or an exception whose message says why the update failed and in which state the engine
    was left; pause_seconds: time from pause to resume."""

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
    """Pauses the SGLang server, makes it load the folder at path (absolute, as the server sees it), asks which version it serves and
    resumes it. If the load fails, the server reloads the previous version where that one is known; it is never resumed without a
    load that it has confirmed. version: the version name that the server is to report; pause_mode: retract, abort, in_place;
    timeout: seconds; the others are wsync.Engine's.
    Raises wsync.Error: EREMOTEIO the server refused or failed; EHOSTUNREACH, EACCES, EPROTO no usable server; EINVAL. wsync.Timeout."""
    _update(lib.wsync_update_sglang_weights_from_disk, path, Engine("sglang", url, version, token, pause_mode, timeout, admin_token, ca_file, cache))


def update_vllm_weights_from_disk(url: str, path: Path, *, version: Version = None, token: Optional[str] = None,
                                  pause_mode: Optional[str] = None, timeout: float = 300.0, admin_token: Optional[str] = None,
                                  ca_file: Optional[Path] = None, cache: str = "local") -> None:
    """The same for a vLLM server with VLLM_SERVER_DEV_MODE=1. pause_mode: keep, wait, abort."""
    _update(lib.wsync_update_vllm_weights_from_disk, path, Engine("vllm", url, version, token, pause_mode, timeout, admin_token, ca_file, cache))


def require_engines(engines: list[Any]) -> None:
    """AssertionError: a list that came out empty would pass for an update of all engines."""
    if not engines:
        raise AssertionError("Must provide at least one engine")


def sync_weights_to_engines(engines: Iterable[Engine], path: Path) -> list[EngineResult]:
    """The same for many engines in parallel, independently of each other. Returns one result per engine, in their order; an engine's
    failure raises nothing: check ``ok``. Before any engine is contacted it raises AssertionError if there is none, wsync.Error or
    MemoryError."""
    engines = list(engines)
    require_engines(engines)
    keep = Strings()
    array = ffi.new("wsync_engine[]", len(engines))
    results = ffi.new("wsync_engine_result[]", len(engines))
    for i, engine in enumerate(engines):
        _fill(array[i], keep, engine)
    check(lib.wsync_sync_weights_to_engines(array, len(engines), keep(path), results))
    return [EngineResult(engine, _error(result), result.pause_seconds) for engine, result in zip(engines, results)]


def _error(result: Any) -> Optional[Error]:
    if result.rc >= 0:
        return None
    return (Timeout if result.rc == -errno.ETIMEDOUT else Error)(-result.rc, text(result.error))
