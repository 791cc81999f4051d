"""A torch process group in addition to the program's default one: the weight sender is rank 0, the engines' workers are the others.

It is created as SGLang (init_custom_process_group) and slime create theirs, so that either end may be theirs. Every wait is bounded:
if a peer dies, the broadcast fails instead of hanging."""
from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Callable, Optional

POLL_SECONDS = 0.001


class Lost(RuntimeError):
    """The group is unusable: a member failed, or did not take part in time."""


def listen(address: str, port: int, world_size: int, timeout: float) -> Any:
    """Rank 0's side of the store where members rendezvous; port 0: any free one (``.port``)."""
    from torch.distributed import TCPStore

    return TCPStore(address, port, world_size, is_master=True, timeout=timedelta(seconds=timeout), wait_for_workers=False)


def connect(address: str, port: int, world_size: int, timeout: float) -> Any:
    """A member's side of that store."""
    from torch.distributed import TCPStore

    return TCPStore(address, port, world_size, is_master=False, timeout=timedelta(seconds=timeout), wait_for_workers=False)


class Group:
    """Creation is collective: every member creates one at the same time. Not thread safe."""

    def __init__(self, store: Any, rank: int, world_size: int, backend: str, name: str, timeout: float):
        from torch.distributed import distributed_c10d as c10d

        self.timeout = timeout
        options = "backend_options" if "backend_options" in inspect.signature(c10d._new_process_group_helper).parameters else "pg_options"
        store.set_timeout(timedelta(seconds=timeout))
        self._pg, _ = c10d._new_process_group_helper(world_size, rank, [], c10d.Backend(backend), c10d.PrefixStore(name, store), group_name=name,
                                                     timeout=timedelta(seconds=timeout), **{options: None})
        c10d._world.pg_group_ranks[self._pg] = {i: i for i in range(world_size)}
        self._store = store

    def start(self, tensor: Any) -> Any:
        """Starts a broadcast from rank 0; the tensor must live until ``wait`` has returned. Raises Lost."""
        from torch import distributed

        if self._pg is None:
            raise Lost("the group has ended")
        try:
            return distributed.broadcast(tensor, src=0, group=self._pg, async_op=True)
        except RuntimeError as e:
            self.abort()
            raise _lost(e) from None

    def wait(self, works: Iterable[Any], failed: Optional[Callable[[], Optional[str]]] = None) -> None:
        """Waits until the started broadcasts have finished. failed: polled meanwhile; if it returns a reason, waiting ends. Raises Lost."""
        try:
            for work in works:
                until = time.monotonic() + self.timeout
                while not work.is_completed():
                    why = failed() if failed else None
                    if why is None and time.monotonic() > until:
                        why = f"no member has taken part for {self.timeout:g} s"
                    if why is not None:
                        raise Lost(why)
                    time.sleep(POLL_SECONDS)
                work.wait()  # raises its error, and orders the current stream after it
        except RuntimeError as e:
            self.abort()
            raise e if isinstance(e, Lost) else _lost(e) from None

    def broadcast(self, tensor: Any) -> None:
        """Broadcasts from rank 0 and waits. Raises Lost."""
        self.wait([self.start(tensor)])

    def abort(self) -> None:
        """Ends the group without the other members. May be called twice."""
        from torch.distributed import distributed_c10d as c10d

        pg, self._pg = self._pg, None
        if pg is None:
            return
        abort = getattr(c10d, "_abort_process_group", None)
        nccl = "nccl" in c10d._world.pg_map.get(pg, ("",))[0]
        ender = threading.Thread(target=_suppressed, args=(abort if abort and nccl else c10d.destroy_process_group, pg), daemon=True)
        ender.start()
        ender.join(self.timeout)  # the destruction may wait for queued work
        self._store = None

    close = abort


def _lost(e: RuntimeError) -> Lost:
    return Lost(f"a member has gone: {str(e).splitlines()[0].partition('. ')[0][:300]}")


def _suppressed(end: Callable[[Any], None], pg: Any) -> None:
    with contextlib.suppress(Exception):
        end(pg)
