"""The engine functions for asyncio: the same calls, each in a thread of the loop's executor.

Cancelling: the await ends at once, the call does not. It goes on in its thread until the engine is resumed or its timeout has
passed, because an engine that is paused and half loaded must not be left so; asyncio.run and the interpreter's end wait for it.
Choose `timeout` as the bound. Many engines take one thread by sync_weights_to_engines."""
from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Optional

from .engines import _engines
from .engines._engines import Engine, EngineResult, Path, Version

__all__ = ["sync_weights_to_engines", "update_sglang_weights_from_disk", "update_vllm_weights_from_disk"]


async def update_sglang_weights_from_disk(url: str, path: Path, *, version: Version = None, token: Optional[str] = None,
                                          pause_mode: Optional[str] = None, timeout: float = 300.0, admin_token: Optional[str] = None,
                                          ca_file: Optional[Path] = None, cache: str = "local") -> None:
    """wsync.update_sglang_weights_from_disk, awaited."""
    await asyncio.to_thread(_engines.update_sglang_weights_from_disk, url, path, version=version, token=token,
                            pause_mode=pause_mode, timeout=timeout, admin_token=admin_token, ca_file=ca_file, cache=cache)


async def update_vllm_weights_from_disk(url: str, path: Path, *, version: Version = None, token: Optional[str] = None,
                                        pause_mode: Optional[str] = None, timeout: float = 300.0, admin_token: Optional[str] = None,
                                        ca_file: Optional[Path] = None, cache: str = "local") -> None:
    """wsync.update_vllm_weights_from_disk, awaited."""
    await asyncio.to_thread(_engines.update_vllm_weights_from_disk, url, path, version=version, token=token,
                            pause_mode=pause_mode, timeout=timeout, admin_token=admin_token, ca_file=ca_file, cache=cache)


async def sync_weights_to_engines(engines: Iterable[Engine], path: Path) -> list[EngineResult]:
    """wsync.sync_weights_to_engines, awaited."""
    return await asyncio.to_thread(_engines.sync_weights_to_engines, list(engines), path)
