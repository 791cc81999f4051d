"""verl over wsync, for trainers apart from their rollouts: ``actor_rollout_ref.rollout.checkpoint_engine.backend=wsync`` and
``actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=wsync.verl``.

Options, each ``+actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.wsync.NAME=``: model ("actor"); source and mount, where the
rollout's nodes find the trainer's agent and mount it (wsync.mount's source and path; default: what is mounted at /wsync, and on the
trainer's node its agent); hf_config, whose small files are published along; timeout (seconds until a version has arrived)."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Optional

from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from ._handover import ARRIVAL_SECONDS, Receiver, Sender

_DONE = object()


@CheckpointEngineRegistry.register("wsync")
class Engine(CheckpointEngine):
    """In every rank of the actor and every worker of the rollout. The actor's ranks gather as verl has them gather, rank 0 publishes, and each
    worker reads its node's mount. verl pauses, loads and resumes its engines."""

    def __init__(self, bucket_size: int, is_master: bool = False, model: str = "actor", source: Optional[str] = None, mount: Optional[str] = None,
                 hf_config: Optional[str] = None, timeout: float = ARRIVAL_SECONDS):
        self._sender = Sender(model, hf_config=hf_config) if is_master else None
        self._receiver = Receiver(source, mount)
        self._timeout = timeout
        self._told: Optional[dict[str, Any]] = None

    def prepare(self) -> Optional[dict[str, Any]]:
        """Before each step: the master names the version that comes."""
        return self._sender.announce() if self._sender is not None else None

    @classmethod
    def build_topology(cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list) -> tuple[dict[str, list], dict[str, list]]:
        told = [m for m in metadata if m]
        if len(told) != 1:
            raise RuntimeError(f"{len(told)} ranks of the actor call themselves its master, and one publishes")
        return {"told": told * actor_wg_world_size}, {"told": told * rollout_world_size}

    def init_process_group(self, told: dict[str, Any]) -> None:
        self._told = told

    async def send_weights(self, weights: Any, global_steps: Optional[int] = None) -> dict[str, Any]:
        if self._sender is not None:
            await asyncio.to_thread(self._sender.send, weights)
        else:
            await asyncio.to_thread(_exhaust, weights)  # they gather together
        return {}

    async def receive_weights(self, global_steps: Optional[int] = None) -> AsyncIterator[tuple[str, Any]]:
        if self._told is None:
            raise RuntimeError("no version was announced: init_process_group comes first")
        pairs = self._receiver.receive(self._told, self._timeout)
        while (pair := await asyncio.to_thread(next, pairs, _DONE)) is not _DONE:
            yield pair

    def finalize(self) -> None:
        """After each step. The mount stays for the next one."""
        self._told = None

    def close(self) -> None:
        """At the process's exit that happens by itself."""
        self._receiver.close()
        if self._sender is not None:
            self._sender.close()


def _exhaust(weights: Any) -> None:
    for _ in weights:
        pass
