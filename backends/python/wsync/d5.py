"""Stateless functions that make engines load a checkpoint from a path, with the contracts of "rollouts" (training/weight_sync.py):
asynchronous, under asyncio and trio alike; they assert what they are given and return the servers' replies as dicts.

They only post: nothing is paused, verified or rolled back, and no version is told; ``wsync.sync_weights_to_engines`` does that.
An update that is cancelled, or out of time, may still be going on in the engine. Needs httpx, whose exceptions callers of these
functions catch, and which brings anyio: what both event loops have in common."""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Union

import anyio
import httpx

from .engines._engines import require_engines

__all__ = ["InferenceEngine", "SGLangEngine", "VLLMEngine", "sync_weights_to_engines", "update_sglang_weights_from_disk",
           "update_vllm_weights_from_disk"]

Path = Union[str, "os.PathLike[str]"]


def _require(condition: Any, sentence: str) -> None:
    """An assertion that python -O does not remove."""
    if not condition:
        raise AssertionError(sentence)


def _fail_after(seconds: float) -> AbstractContextManager[Any]:
    """Raises trio.TooSlowError in trio, TimeoutError in asyncio."""
    try:
        import trio

        if trio.lowlevel.in_trio_run():
            return trio.fail_after(seconds)
    except ImportError:
        pass
    return anyio.fail_after(seconds)


async def _post(base_url: str, route: str, checkpoint_path: Path, timeout: float, body: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    _require(base_url, "base_url cannot be empty")
    _require(checkpoint_path, "checkpoint_path cannot be empty")
    _require(timeout > 0, f"timeout must be > 0, got {timeout}")
    with _fail_after(timeout):
        async with httpx.AsyncClient(timeout=None) as client:
            response = await client.post(base_url.rstrip("/") + route, json=body(os.fspath(checkpoint_path)))
            response.raise_for_status()
            return response.json()


async def update_sglang_weights_from_disk(base_url: str, checkpoint_path: Path, *, timeout: float = 300.0) -> dict[str, Any]:
    """Has an SGLang server load checkpoint_path (as the server sees it); returns its reply, {"success", "message", ...}.
    Raises AssertionError; httpx.HTTPStatusError if the server refuses or fails, httpx.TransportError if it cannot be reached; and as in
    trio.fail_after if it takes longer than timeout seconds: trio.TooSlowError, or TimeoutError in asyncio."""
    reply = await _post(base_url, "/update_weights_from_disk", checkpoint_path, timeout, lambda path: {"model_path": path})
    _require("success" in reply, "Response must have 'success' field")
    return reply


async def update_vllm_weights_from_disk(base_url: str, checkpoint_path: Path, *, timeout: float = 300.0) -> dict[str, Any]:
    """The same for a vLLM server with VLLM_SERVER_DEV_MODE=1; returns {"results": [...]}, one a worker. The path is passed in ``kwargs``,
    where vLLM reads it: what is in ``params`` it ignores, loads the checkpoint that it started with, and answers 200."""
    return await _post(base_url, "/collective_rpc", checkpoint_path, timeout, lambda path: {"method": "reload_weights", "kwargs": {"weights_path": path}})


class InferenceEngine(Protocol):
    """An engine that sync_weights_to_engines can update."""

    async def update_weights_from_checkpoint(self, checkpoint_path: Path) -> dict[str, Any]: ...


@dataclass
class SGLangEngine:
    """An SGLang server. timeout: of an update, in seconds."""

    base_url: str
    timeout: float = 300.0

    async def update_weights_from_checkpoint(self, checkpoint_path: Path) -> dict[str, Any]:
        return await update_sglang_weights_from_disk(self.base_url, checkpoint_path, timeout=self.timeout)


@dataclass
class VLLMEngine:
    """A vLLM server. timeout: of an update, in seconds."""

    base_url: str
    timeout: float = 300.0

    async def update_weights_from_checkpoint(self, checkpoint_path: Path) -> dict[str, Any]:
        return await update_vllm_weights_from_disk(self.base_url, checkpoint_path, timeout=self.timeout)


async def sync_weights_to_engines(engines: Sequence[InferenceEngine], checkpoint_path: Path) -> list[dict[str, Any]]:
    """Updates all engines at once. Returns one reply an engine, in the engines' order. The first failure cancels the other updates and
    is raised, as nurseries and task groups raise it: in an ExceptionGroup. AssertionError before any engine is contacted: there is
    none, or the path is empty."""
    engines = list(engines)
    require_engines(engines)
    _require(checkpoint_path, "checkpoint_path cannot be empty")
    replies: list[Any] = [None] * len(engines)

    async def update(i: int) -> None:
        replies[i] = await engines[i].update_weights_from_checkpoint(checkpoint_path)

    async with anyio.create_task_group() as group:
        for i in range(len(engines)):
            group.start_soon(update, i)
    return replies
