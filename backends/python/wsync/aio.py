"""The engine functions for asyncio: the same calls, each in a thread of the loop's executor.

Cancellation ends the await at once, but not the call: its thread continues until the engine is resumed or the timeout has passed,
because an engine must not be left paused and half loaded; asyncio.run and the interpreter's exit wait for that thread. `timeout`
is therefore the bound. sync_weights_to_engines needs one thread for any number of engines."""
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
