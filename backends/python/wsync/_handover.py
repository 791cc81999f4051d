"""What plug-ins of frameworks have in common: an iterator of named tensors is sent on one side and received on the other. The sender
publishes it as the next version of a lineage of its own; the receiver reads that version, and no other one, from its node's mount."""
from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from typing import Any, Optional

from .lib import _agents, _dtypes
from .lib._mounts import Mount, mount
from .publish._publisher import Publisher
from .read._weights import Weights

ARRIVAL_SECONDS = 300.0


class Sender:
    """One process's; of ranks that gather together, rank 0's. Not thread safe. options: wsync.Publisher's."""

    def __init__(self, model: str, **options: Any):
        self.model, self.run, self.version = model, secrets.token_hex(8), 0
        self._options, self._layout, self._agent = options, None, options.get("agent")
        self._pub: Optional[Publisher] = None

    def announce(self) -> dict[str, Any]:
        """Numbers the version that the next ``send`` publishes, and says what its receivers must be told; plain data. A version that was
        announced and never sent is skipped."""
        self.open()
        told = self.coming()
        self.version += 1
        return told

    def open(self) -> None:
        """Finds or starts the agent and registers with it, which ``announce`` does too."""
        self._opened()

    def coming(self) -> dict[str, Any]:
        """What the next ``announce`` will say, without an agent's start: for processes that do not know yet which of them sends."""
        return told_of(self.model, self.version + 1, self.run, self._agent)

    def wait_loaded(self, timeout: float) -> None:
        """Until the engines of all mounts serve what was sent last. Timeout, which names those that are missing."""
        self._opened().wait_loaded(self.version, timeout=timeout)

    def send(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Publishes the tensors; returns when receivers can have them and the tensors may change. All of pairs is taken, also after an
        error, as other ranks may wait in it. A tensor is copied before the next one is taken; the first time all are first copied into
        host memory, since a version's layout must be known before its first byte."""
        rest = iter(pairs)
        try:
            self._publish(rest)
        except Exception:
            for _ in rest:
                pass
            raise

    def _publish(self, pairs: Iterable[tuple[str, Any]]) -> None:
        if self._layout is None:
            pairs = [(name, _copied(tensor)) for name, tensor in pairs]
            layout = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in pairs]
        else:
            layout = self._layout
        self._layout = None  # if it fails, the model may have changed
        self._opened().offload_stream(self.version, layout, pairs)
        self._opened().wait_published(self.version)
        self._layout = layout

    def _opened(self) -> Publisher:
        if self._pub is None:
            self._agent = _agents.ensure(self._options.get("agent"))
            self._pub = Publisher(self.model, {}, rank=0, world_size=1, run=self.run, new_run=True, **{**self._options, "agent": self._agent})
        return self._pub

    def close(self) -> None:
        pub, self._pub = self._pub, None
        if pub is not None:
            pub.close()


class Receiver:
    """source, path: ``wsync.mount``'s; without source, on the sender's node, its agent. The mount is found or started at the first version."""

    def __init__(self, source: Optional[str] = None, path: Optional[str] = None):
        self._source, self._path = source or os.environ.get("WSYNC_SOURCE") or None, path
        self._mount: Optional[Mount] = None

    def receive(self, told: dict[str, Any], timeout: float = ARRIVAL_SECONDS) -> Iterator[tuple[str, Any]]:
        """Yields (name, tensor) of the version that a sender's ``announce`` told of, once it is there. Tensors are views of the mount's
        memory and stay valid (torch's, where the program has imported it; who changes them changes
        a copy). Timeout."""
        with Weights(self.opened(told).files(told["model"], name_of(told), timeout)) as weights:
            for name in weights:
                yield name, weights[name]

    def folder(self, told: dict[str, Any], timeout: float = ARRIVAL_SECONDS) -> str:
        """The path of the version that was told of, once it is there, for engines that load a path. Timeout. Error: nothing can be mounted here."""
        return self.opened(told).folder(told["model"], name_of(told), timeout)

    def opened(self, told: dict[str, Any]) -> Mount:
        """The mount in which what was told of appears."""
        if self._mount is None:
            source = self._source or (told["agent"] if told["host"] == _host() else None)
            self._mount = mount(source, self._path)
        return self._mount

    def close(self) -> None:
        found, self._mount = self._mount, None
        if found is not None:
            found.close()


def told_of(model: str, version: int, run: str, agent: Optional[str]) -> dict[str, Any]:
    """What receivers must be told of a version that this process publishes by agent, an address on its node. Plain data."""
    return {"model": model, "version": version, "run": run, "agent": agent, "host": _host()}


def name_of(told: dict[str, Any]) -> str:
    """An announced version's name in mounts and in engines."""
    return f"{told['version']}@{told['run']}"


def _host() -> str:
    """Tells machines apart, and containers that see other sockets."""
    with open("/proc/sys/kernel/random/boot_id") as f:
        return f"{f.read().strip()}/{os.stat('/proc/self/ns/mnt').st_ino}"


def _copied(tensor: Any) -> Any:
    if _dtypes.framework_of(None) == "torch" and hasattr(tensor, "detach"):
        import torch

        tensor = tensor.detach()
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)
    return tensor.copy()
