"""Sends a version to engines over a torch process group: gloo from host memory, NCCL between GPUs.

The order of steps: (1) each engine is inspected, and the layout to be sent is compared with what it serves; nothing is changed yet.
(2) The group is created and the first bucket packed while all engines still serve. (3) The engines are paused and sent the tensors.
(4) Each engine, independently, is asked which version it serves, flushed and resumed. An engine's failure shows in its result only."""
from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from ..lib._library import Error, Timeout
from ..read._gpu import GpuWeights
from ..read._layout import Difference, Layout
from ..read._weights import Weights, open as open_weights
from ._buckets import Buckets
from ._engines import Engine, EngineResult
from ._http import MAX_VERSION_BYTES, Call, Http, Refused
from ._members import KINDS, PARTIAL_PREFIX, Ineligible, Member, Request, Update, message_of
from ._requests import broadcast_info, broadcast_request
from ._torch_group import Group, Lost, listen

log = logging.getLogger("wsync")


@dataclass(frozen=True)
class BroadcastResult(EngineResult):
    """by: "broadcast", or "disk" if the engine was left out of the broadcast or the broadcast failed, and it loaded ``path`` instead;
    fallback: the reason for that."""

    by: str = "broadcast"
    fallback: Optional[str] = None


class BroadcastSender:
    """Sends versions to SGLang and vLLM servers as rank 0 of a process group that they join: a direct copy from this process into
    theirs, for engines that have no mount, or for GPUs with a fast network between them.

    ::

        with wsync.BroadcastSender([wsync.Engine("sglang", url) for url in urls]) as sender:
            for result in sender.send(wsync.open("/wsync/actor/42", "torch")):
                if not result.ok: ...

    SGLang by /init_weights_update_group and /update_weights_from_distributed; vLLM by its weight-transfer routes with
    ``--weight-transfer-config '{"backend": "wsync"}'`` (for vLLM's own NCCL back end use vLLM's own sender with
    ``weights.source()``). The group is created at the first send, and again after a failure. Engines that do not answer, sleep, or
    whose workers cannot join (pipeline stages, data-parallel SGLang) are left out of it.
    master_address: this host's address as the engines reach it; default: the local address of the route to the first engine. backend:
    default "nccl" if torch has GPUs, else "gloo". workers: number of workers of each engine; default: each engine is asked.
    bucket_bytes: size of a bucket; buckets are packed if all engines support it; two are held at a time. timeout: seconds for each
    member in each step. layout: a checkpoint with the names, dtypes and shapes that the engines serve, for engines whose model folder
    does not exist on this host. Not thread safe."""

    def __init__(self, engines: Iterable[Engine], *, master_address: Optional[str] = None, master_port: int = 0, backend: Optional[str] = None,
                 workers: Optional[int] = None, group_name: str = "wsync", bucket_bytes: int = 256 << 20, timeout: float = 60.0,
                 layout: Union[str, "os.PathLike[str]", None] = None):
        self.engines = list(engines)
        for engine in self.engines:
            if engine.kind not in KINDS:
                raise ValueError(f"engine kind {engine.kind!r}: {' or '.join(KINDS)}")
        if not self.engines or not timeout > 0 or bucket_bytes < 1:
            raise ValueError("a sender needs at least one engine, and timeout and bucket_bytes above 0")
        self.timeout, self.bucket_bytes = timeout, bucket_bytes
        self._address, self._port, self._backend, self._workers, self._base_name = master_address, master_port, backend, workers, group_name
        self._expected_layout = None if layout is None else _layout_at(layout)
        self._all_members = [KINDS[e.kind](e, Http(e.url, e.token, e.admin_token, e.ca_file, e.kind, e.pause_mode, e.cache), timeout) for e in self.engines]
        self._last_sent: dict[Member, tuple[str, Layout]] = {}  # (version, layout) that each engine serves since the last send
        self._group: Optional[Group] = None
        self._members: list[Member] = []
        self._buckets = False
        self._group_count = 0

    # --- the group ---
    def _name(self) -> str:
        return f"{self._base_name}-{os.getpid()}-{self._group_count}"  # unique: an engine may still hold a failed group

    def _join(self, members: list[Member]) -> None:
        """Creates the group. Raises Lost if not all members join in time."""
        import torch

        self._group_count += 1
        asked = [Call(m.supports_buckets) for m in members]
        self._buckets = all([call.result(2 * self.timeout) for call in asked])
        world, backend = 1 + sum(m.size for m in members), self._backend or ("nccl" if torch.cuda.is_available() else "gloo")
        address = self._address or _local_address_towards(members[0].http)
        store = listen(address, self._port, world, self.timeout)
        calls, offset = [], 1
        for member in members:
            calls.append(Call(member.join, broadcast_info(address, store.port, offset, world, self._name(), backend)))
            offset += member.size
        making = Call(Group, store, 0, world, backend, self._name(), self.timeout)
        until = time.monotonic() + self.timeout
        while (making.is_alive() or any(c.is_alive() for c in calls)) and time.monotonic() < until and not any(c.failed for c in (*calls, making)):
            time.sleep(0.005)
        why = next((message_of(c.error) for c in (*calls, making) if c.error is not None), None)
        if why is None and (making.is_alive() or any(c.is_alive() for c in calls)):
            why = f"not all {world} members had joined the group after {self.timeout:g} s"
        if why is not None:
            for member in members:
                member.http.cancel()
            if making.value is not None:
                making.value.abort()
            raise Lost(why)
        self._group, self._members, self._device = making.value, members, "cuda" if backend == "nccl" else "cpu"

    # --- a version ---
    def send(self, weights: Union[Weights, GpuWeights], version: Optional[str] = None, path: Optional[str] = None,
             force_layout: bool = False) -> list[BroadcastResult]:
        """Pauses the engines, sends every tensor, asks each engine which version it serves, flushes caches of the old weights
        (``Engine.cache``) and resumes them. Returns one result per engine, in their order.
        version: the version name that the engines are to report; default: number@run of the version; required for weights that have
        none. path: the same version as files, as the engines see it; engines load it if they cannot join or the group fails. Without
        path, an engine that failed during the transfer stays paused, and its error says so. force_layout: allows names, dtypes and
        shapes that differ from what is served; otherwise an engine whose layout differs or is unknown is not changed.
        An engine is never resumed before it serves a complete version."""
        if weights.framework != "torch":
            raise ValueError("tensors are sent by torch: open the version with framework='torch'")
        if partial := getattr(weights, "partial", None):
            raise ValueError(f"{weights.path} is not whole on the GPUs ({len(partial)} tensors, such as {partial[0]}): send the version's files")
        if version is None:
            if weights.version is None:
                raise ValueError(f"{weights.path} has no version number, so engines would go on reporting the old one: give version=")
            version = f"{weights.version}@{weights.run}"
        if len(os.fsencode(PARTIAL_PREFIX + version)) > MAX_VERSION_BYTES:
            raise ValueError(f"version={version!r} is longer than {MAX_VERSION_BYTES - len(PARTIAL_PREFIX)} bytes, which no engine could report back: give a shorter one")
        update, layout = Update(version, path, force_layout), weights.layout()
        results: list[Optional[BroadcastResult]] = [None] * len(self.engines)
        members, path_loads = [], {}
        for i, found in enumerate(_gather_results([Call(self._inspect, m, layout, force_layout) for m in self._all_members], 10 * self.timeout)):
            if found is None:
                members.append(self._all_members[i])
            elif isinstance(found, (Refused, Ineligible)) and path is not None:
                path_loads[i] = Call(self._load_from_path, self._all_members[i], update, message_of(found))
            else:
                results[i] = BroadcastResult(self.engines[i], _error(found), 0.0)
        if members != self._members:
            self.close()
        if members:
            for member, result in zip(members, self._send(members, weights, update)):
                results[self._all_members.index(member)] = result
                if result.ok:
                    self._last_sent[member] = (version, layout)
        for i, call in path_loads.items():
            results[i] = self._result(self._all_members[i], call)
        return [r for r in results if r is not None]

    def _inspect(self, member: Member, layout: Layout, force_layout: bool) -> None:
        """Checks that the engine can join and serves the same layout; changes nothing. Raises Ineligible, Refused, OSError or Mismatch."""
        member.calls = []
        serves = member.inspect(self._workers)
        if force_layout:
            return
        before = self._last_sent.get(member)
        if before is not None and before[0] == serves:
            served, where = before[1], f"version {serves}"
        elif self._expected_layout is not None:
            served, where = self._expected_layout, "layout="
        else:
            served, where = _layout_if_local(member.model_path), str(member.model_path)
        if served is None:
            if member.checks_layout:
                return
            raise Ineligible(f"which tensors {member.http.url} serves cannot be known: {where} is no folder here. Give layout=, a checkpoint like it, "
                          "or send with force_layout=True")
        if difference := Difference.between(layout, served):
            raise Mismatch(f"it was not sent to {member.http.url}, where nothing has changed: it has not the tensors of {where}: {difference}")

    def _send(self, members: list[Member], weights: Any, update: Update) -> list[BroadcastResult]:
        why: Optional[str] = None
        try:
            buckets = Buckets(weights, self.bucket_bytes)
            requests = [broadcast_request(part, weights.version, weights.run) for part in buckets.parts]
            if self._group is None:
                self._join(members)
            update.group_name, update.buckets = self._name(), self._buckets
            self._transfer(members, buckets, requests, update)
        except Exception as e:  # of any kind: the engines are paused and must be finished
            why = message_of(e)
            log.warning("the broadcast of %s has failed: %s", update.version, why)
            self._abort()
        except BaseException:
            self._abort()
            self._finish_all(members, update, "the sender was interrupted")
            raise
        results = self._finish_all(members, update, why)
        if not all(result.ok and result.by == "broadcast" for result in results):
            self.close()
        return results

    def _transfer(self, members: list[Member], buckets: Buckets, requests: list[Request], update: Update) -> None:
        assert self._group is not None
        ready = buckets.tensors(0, self._device, update.buckets)
        self._run_on_all(members, lambda m: m.pause())
        self._run_on_all(members, lambda m: m.begin(requests, update))
        for i in range(len(requests)):
            for member in members:
                member.start_part(i, requests, update)
            works = [self._group.start(tensor) for tensor in ready]
            following = buckets.tensors(i + 1, self._device, update.buckets)
            self._group.wait(works, lambda: next((why for m in members if (why := m.call_error())), None))
            ready = following

    def _run_on_all(self, members: list[Member], step: Callable[[Member], None]) -> None:
        """Runs the step on all members in parallel; raises the first failure once all have ended."""
        for found in _gather_results([Call(step, m) for m in members], 2 * self.timeout):
            if isinstance(found, BaseException):
                raise found

    # --- after the transfer, per engine ---
    def _finish_all(self, members: list[Member], update: Update, why: Optional[str]) -> list[BroadcastResult]:
        calls = [Call(self._finish, member, update, why) for member in members]
        return [self._result(member, call) for member, call in zip(members, calls)]

    def _result(self, member: Member, call: Call) -> BroadcastResult:
        try:
            return call.result(10 * self.timeout + 4 * member.engine.timeout)
        except Exception as e:
            return BroadcastResult(member.engine, _error(e), 0.0)

    def _finish(self, member: Member, update: Update, why: Optional[str]) -> BroadcastResult:
        """After the transfer (why: its failure, if any): confirms and resumes the engine, or undoes, or loads path, or leaves it paused."""
        engine = member.engine
        try:
            if why is None:
                try:
                    member.finish(update)
                except Exception as e:
                    why = message_of(e)
                else:
                    return self._confirm_and_resume(member, update)
            undone = member.undo(update)
            member.dirty = not undone
            own = member.call_error()
            if own is not None and own not in why:
                why = f"{why}; {own}"
            if update.path is not None:
                return self._load_from_path(member, update, why)
            if undone:
                if member.paused:
                    member.resume()
                return BroadcastResult(engine, Error(errno.ECONNRESET, f"{why}. {engine.url} serves what it did before"), member.pause_seconds)
            member.serving()  # raises if the engine does not answer
            error = f"{why}. {engine.url} stays paused: it has a part of the version, or may have; have it load a whole one, or give path="
            return BroadcastResult(engine, Error(errno.EREMOTEIO, error), 0.0)
        except Exception as e:
            return BroadcastResult(engine, _error(e, f"{why}; " if why else ""), member.pause_seconds)

    def _confirm_and_resume(self, member: Member, update: Update) -> BroadcastResult:
        engine = member.engine
        try:
            serves = member.serving()
            if serves != update.version:
                raise Refused(f"{engine.url} says that it serves {serves} after {update.version} was sent")
            member.http.flush(engine.timeout)
            member.dirty = False
        except Exception as e:
            return BroadcastResult(engine, _error(e, after=": it stays paused"), 0.0)
        member.resume()
        return BroadcastResult(engine, None, member.pause_seconds)

    def _load_from_path(self, member: Member, update: Update, why: str) -> BroadcastResult:
        engine = member.engine
        began = time.monotonic()
        try:
            member.load_path(engine.url, update.path, version=update.version, token=engine.token, pause_mode=engine.pause_mode,
                             timeout=engine.timeout, admin_token=engine.admin_token, ca_file=engine.ca_file, cache=engine.cache)
        except Error as e:
            return BroadcastResult(engine, type(e)(e.errno, f"{why}; {e.strerror}"), 0.0, "disk", why)
        member.paused = member.dirty = False
        return BroadcastResult(engine, None, time.monotonic() - began, "disk", why)

    def _abort(self) -> None:
        """Aborts the group after a failure, which also ends the requests in the engines that wait for it."""
        group, self._group, self._members = self._group, None, []
        if group is not None:
            group.abort()

    def close(self) -> None:
        """Ends the group. May be called twice."""
        group, name, members = self._group, self._name(), self._members
        self._group, self._members = None, []
        if group is None:
            return
        leaving = [Call(m.leave, name) for m in members]
        group.close()
        _gather_results(leaving, self.timeout)

    def __enter__(self) -> "BroadcastSender":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Mismatch(RuntimeError):
    """The layout to be sent differs from the layout that is served."""


def _gather_results(calls: list[Call], seconds: float) -> list[Any]:
    """The value or exception of each call; all calls share one deadline."""
    until, found = time.monotonic() + seconds, []
    for call in calls:
        try:
            found.append(call.result(max(0.0, until - time.monotonic())))
        except Exception as e:
            found.append(e)
    return found


def _layout_at(path: Union[str, "os.PathLike[str]"]) -> Layout:
    with open_weights(path, "torch") as weights:
        return weights.layout()


def _layout_if_local(path: Optional[str]) -> Optional[Layout]:
    """The layout of the folder that an engine names, if it exists on this host and is readable."""
    if not path or not os.path.isabs(path) or not os.path.isdir(path):
        return None
    try:
        return _layout_at(path)
    except (OSError, ValueError) as e:
        log.info("the layout that the engine serves cannot be read: %s", e)
        return None


def _error(e: BaseException, before: str = "", after: str = "") -> Error:
    number = e.errno if isinstance(e, OSError) and e.errno else errno.EREMOTEIO if isinstance(e, (Refused, Ineligible)) else \
        errno.EPROTO if isinstance(e, Mismatch) else errno.EHOSTUNREACH
    return (Timeout if isinstance(e, TimeoutError) else Error)(number, before + message_of(e) + after)


def _local_address_towards(http: Http) -> str:
    """The local address of the route to the server."""
    family, _, _, _, there = socket.getaddrinfo(http.host, http.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.connect(there)
        return s.getsockname()[0]
