"""A version sent to engines over their own torch process groups: gloo from host memory, NCCL between GPUs.

The order, and what it is for: every engine is looked at and what is sent is compared with what it serves, before anything is
changed; the group is made and the first part packed while all of them serve; then they are paused, sent to, and each by itself is
asked what it serves, flushed and resumed. What goes wrong with one engine is that engine's result."""
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
from ._http import Call, Http, Refused
from ._members import KINDS, LeftOut, Member, Request, Told, sentence
from ._requests import broadcast_info, broadcast_request
from ._torch_group import Group, Lost, listen

log = logging.getLogger("wsync")


@dataclass(frozen=True)
class BroadcastResult(EngineResult):
    """by: "broadcast", or "disk" where the engine was not sent to, or that failed, and it loaded ``path`` instead; fallback: why."""

    by: str = "broadcast"
    fallback: Optional[str] = None


class BroadcastSender:
    """Sends versions to SGLang and vLLM servers as rank 0 of a process group that they join: a copy straight from this process into
    theirs, for engines that have no mount, or GPUs with a fast network between them.

    ::

        with wsync.BroadcastSender([wsync.Engine("sglang", url) for url in urls]) as sender:
            for result in sender.send(wsync.open("/wsync/actor/42", "torch")):
                if not result.ok: ...

    SGLang by /init_weights_update_group and /update_weights_from_distributed; vLLM by its weight-transfer routes with
    ``--weight-transfer-config '{"backend": "wsync"}'`` (its own NCCL back end is sent to by vLLM's own sender, from
    ``weights.source()``). The group is made at the first send, and anew after a failure. Engines that do not answer, sleep, or whose
    workers cannot join (pipeline stages, data-parallel SGLang) are left out of it.
    master_address: this host's, as the engines reach it; by default that of the way to the first one. backend: "nccl" where torch has
    GPUs, else "gloo". workers: of each engine; by default it is asked. bucket_bytes: of what is sent at once, and packed where all
    engines can take that apart; two of them are held. timeout: seconds in which each member has to take part in each step. layout: a
    checkpoint with the names, dtypes and shapes that the engines serve, where the folders that they name are not to be seen here.
    Not thread safe."""

    def __init__(self, engines: Iterable[Engine], *, master_address: Optional[str] = None, master_port: int = 0, backend: Optional[str] = None,
                 workers: Optional[int] = None, group_name: str = "wsync", bucket_bytes: int = 256 << 20, timeout: float = 60.0,
                 layout: Union[str, "os.PathLike[str]", None] = None):
        self.engines = list(engines)
        for engine in self.engines:
            if engine.kind not in KINDS:
                raise ValueError(f"engine kind {engine.kind!r}: {' or '.join(KINDS)}")
        if not self.engines or not timeout > 0 or bucket_bytes < 1:
            raise ValueError("a sender wants one engine at least, and a timeout and bucket_bytes above 0")
        self.timeout, self.bucket_bytes = timeout, bucket_bytes
        self._address, self._port, self._backend, self._workers, self._base_name = master_address, master_port, backend, workers, group_name
        self._given = None if layout is None else _layout_at(layout)
        self._all = [KINDS[e.kind](e, Http(e.url, e.token, e.admin_token, e.ca_file), timeout) for e in self.engines]
        self._sent: dict[Member, tuple[str, Layout]] = {}  # what an engine serves since a send
        self._group: Optional[Group] = None
        self._members: list[Member] = []
        self._buckets = False
        self._made = 0

    # --- the group ---
    def _name(self) -> str:
        return f"{self._base_name}-{os.getpid()}-{self._made}"  # one that failed may live on in an engine

    def _join(self, members: list[Member]) -> None:
        """Lost: not all of them have joined."""
        import torch

        self._made += 1
        asked = [Call(m.takes_buckets) for m in members]
        self._buckets = all([call.result(2 * self.timeout) for call in asked])
        world, backend = 1 + sum(m.size for m in members), self._backend or ("nccl" if torch.cuda.is_available() else "gloo")
        address = self._address or _address_towards(members[0].http)
        store = listen(address, self._port, world, self.timeout)
        calls, offset = [], 1
        for member in members:
            calls.append(Call(member.join, broadcast_info(address, store.port, offset, world, self._name(), backend)))
            offset += member.size
        making = Call(Group, store, 0, world, backend, self._name(), self.timeout)
        until = time.monotonic() + self.timeout
        while (making.is_alive() or any(c.is_alive() for c in calls)) and time.monotonic() < until and not any(c.failed for c in (*calls, making)):
            time.sleep(0.005)
        why = next((sentence(c.error) for c in (*calls, making) if c.error is not None), None)
        if why is None and (making.is_alive() or any(c.is_alive() for c in calls)):
            why = f"not all {world} members had joined the group after {self.timeout:g} s"
        if why is not None:
            for member in members:
                member.http.give_up()
            if making.value is not None:
                making.value.abort()
            raise Lost(why)
        self._group, self._members, self._device = making.value, members, "cuda" if backend == "nccl" else "cpu"

    # --- a version ---
    def send(self, weights: Union[Weights, GpuWeights], version: Optional[str] = None, path: Optional[str] = None,
             force_layout: bool = False) -> list[BroadcastResult]:
        """Pauses the engines, sends every tensor, asks what they serve, empties what old weights have computed (their ``cache``) and
        resumes them; a result for each, in their order. version: what they are told that they serve; default: the version's number
        and lineage, and what has none needs it. path: where they find the same version as files: what those load that cannot be sent to,
        or where the group fails. Without it an engine that failed in the middle stays paused, and its error says so. force_layout:
        names, dtypes and shapes may differ from what is served; else an engine for which they do, or cannot be known, is not touched.
        An engine is never resumed before it serves a whole version."""
        if weights.framework != "torch":
            raise ValueError("tensors are sent by torch: open the version with framework='torch'")
        if partial := getattr(weights, "partial", None):
            raise ValueError(f"{weights.path} is not whole on the GPUs ({len(partial)} tensors, such as {partial[0]}): send the version's files")
        if version is None:
            if weights.version is None:
                raise ValueError(f"{weights.path} has no version, and engines would keep the name of the old one: give version=")
            version = f"{weights.version}@{weights.run}"
        told, layout = Told(version, path, force_layout), weights.layout()
        results: list[Optional[BroadcastResult]] = [None] * len(self.engines)
        members, ends = [], {}
        for i, found in enumerate(_ended([Call(self._look_at, m, layout, force_layout) for m in self._all], 10 * self.timeout)):
            if found is None:
                members.append(self._all[i])
            elif isinstance(found, (Refused, LeftOut)) and path is not None:
                ends[i] = Call(self._by_path, self._all[i], told, sentence(found))
            else:
                results[i] = BroadcastResult(self.engines[i], _error(found), 0.0)
        if members != self._members:
            self.close()
        if members:
            for member, end in zip(members, self._send(members, weights, told)):
                results[self._all.index(member)] = end
                if end.ok:
                    self._sent[member] = (version, layout)
        for i, call in ends.items():
            results[i] = self._result(self._all[i], call)
        return [r for r in results if r is not None]

    def _look_at(self, member: Member, layout: Layout, force_layout: bool) -> None:
        """LeftOut, Refused, OSError: it cannot be sent to; nothing was changed."""
        member.calls = []
        serves = member.examine(self._workers)
        if force_layout:
            return
        before = self._sent.get(member)
        if before is not None and before[0] == serves:
            served, where = before[1], f"version {serves}"
        elif self._given is not None:
            served, where = self._given, "layout="
        else:
            served, where = _layout_here(member.model_path), str(member.model_path)
        if served is None:
            if member.checks_layout:
                return
            raise LeftOut(f"which tensors {member.http.url} serves cannot be known: {where} is no folder here. Give layout=, a checkpoint like it, "
                          "or send with force_layout=True")
        if difference := Difference.between(layout, served):
            raise Mismatch(f"it was not sent to {member.http.url}, where nothing has changed: it has not the tensors of {where}: {difference}")

    def _send(self, members: list[Member], weights: Any, told: Told) -> list[BroadcastResult]:
        why: Optional[str] = None
        try:
            plan = Buckets(weights, self.bucket_bytes)
            requests = [broadcast_request(part, weights.version, weights.run) for part in plan.parts]
            if self._group is None:
                self._join(members)
            told.group_name, told.buckets = self._name(), self._buckets
            self._transfer(members, plan, requests, told)
        except Exception as e:  # whatever it is, the engines wait
            why = sentence(e)
            log.warning("the broadcast of %s has failed: %s", told.version, why)
            self._abort()
        except BaseException:
            self._abort()
            self._end_all(members, told, "the sender was interrupted")
            raise
        ends = self._end_all(members, told, why)
        if not all(end.ok and end.by == "broadcast" for end in ends):
            self.close()
        return ends

    def _transfer(self, members: list[Member], plan: Buckets, requests: list[Request], told: Told) -> None:
        assert self._group is not None
        ready = plan.tensors(0, self._device, told.buckets)
        self._all_do(members, lambda m: m.pause())
        self._all_do(members, lambda m: m.begin(requests, told))
        for i in range(len(requests)):
            for member in members:
                member.part(i, requests, told)
            works = [self._group.start(tensor) for tensor in ready]
            following = plan.tensors(i + 1, self._device, told.buckets)
            self._group.wait(works, lambda: next((why for m in members if (why := m.failed())), None))
            ready = following

    def _all_do(self, members: list[Member], step: Callable[[Member], None]) -> None:
        """The step on all at once; the first that failed is raised once all have ended."""
        for found in _ended([Call(step, m) for m in members], 2 * self.timeout):
            if isinstance(found, BaseException):
                raise found

    # --- the end of one engine ---
    def _end_all(self, members: list[Member], told: Told, why: Optional[str]) -> list[BroadcastResult]:
        calls = [Call(self._end, member, told, why) for member in members]
        return [self._result(member, call) for member, call in zip(members, calls)]

    def _result(self, member: Member, call: Call) -> BroadcastResult:
        try:
            return call.result(10 * self.timeout + 4 * member.engine.timeout)
        except Exception as e:
            return BroadcastResult(member.engine, _error(e), 0.0)

    def _end(self, member: Member, told: Told, why: Optional[str]) -> BroadcastResult:
        """Asks what it serves, and resumes it or not."""
        engine = member.engine
        try:
            if why is None:
                try:
                    member.conclude(told)
                except Exception as e:
                    why = sentence(e)
                else:
                    return self._serve(member, told)
            undone = member.undo(told)
            member.touched = not undone
            own = member.failed()
            if own is not None and own not in why:
                why = f"{why}; {own}"
            if told.path is not None:
                return self._by_path(member, told, why)
            if undone:
                if member.paused:
                    member.resume()
                return BroadcastResult(engine, Error(errno.ECONNRESET, f"{why}. {engine.url} serves what it did before"), member.pause_seconds)
            member.serving()  # does it live?
            error = f"{why}. {engine.url} stays paused: it has a part of the version, or may have; have it load a whole one, or give path="
            return BroadcastResult(engine, Error(errno.EREMOTEIO, error), 0.0)
        except Exception as e:
            return BroadcastResult(engine, _error(e, f"{why}; " if why else ""), member.pause_seconds)

    def _serve(self, member: Member, told: Told) -> BroadcastResult:
        engine = member.engine
        try:
            serves = member.serving()
            if serves != told.version:
                raise Refused(200, f"{engine.url} says that it serves {serves} after {told.version} was sent")
            member.flush_all()
            member.touched = False
        except Exception as e:
            return BroadcastResult(engine, _error(e, after=": it stays paused"), 0.0)
        member.resume()
        return BroadcastResult(engine, None, member.pause_seconds)

    def _by_path(self, member: Member, told: Told, why: str) -> BroadcastResult:
        engine = member.engine
        began = time.monotonic()
        try:
            member.load_path(engine.url, told.path, version=told.version, token=engine.token, pause_mode=engine.pause_mode,
                             timeout=engine.timeout, admin_token=engine.admin_token, ca_file=engine.ca_file, cache=engine.cache)
        except Error as e:
            return BroadcastResult(engine, type(e)(e.errno, f"{why}; {e.strerror}"), 0.0, "disk", why)
        member.paused = member.touched = False
        return BroadcastResult(engine, None, time.monotonic() - began, "disk", why)

    def _abort(self) -> None:
        """The group, after a failure: what the engines' requests wait for ends with it."""
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
        _ended(leaving, self.timeout)

    def __enter__(self) -> "BroadcastSender":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Mismatch(RuntimeError):
    """What is to be sent cannot take the place of what is served."""


def _ended(calls: list[Call], seconds: float) -> list[Any]:
    """What each returned or raised; each has had all the seconds."""
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


def _layout_here(path: Optional[str]) -> Optional[Layout]:
    """Of a folder that an engine names, where it can be seen from here."""
    if not path or not os.path.isabs(path) or not os.path.isdir(path):
        return None
    try:
        return _layout_at(path)
    except (OSError, ValueError) as e:
        log.info("what is served cannot be compared with: %s", e)
        return None


def _error(e: BaseException, before: str = "", after: str = "") -> Error:
    number = e.errno if isinstance(e, OSError) and e.errno else errno.EREMOTEIO if isinstance(e, (Refused, LeftOut)) else \
        errno.EPROTO if isinstance(e, Mismatch) else errno.EHOSTUNREACH
    return (Timeout if isinstance(e, TimeoutError) else Error)(number, before + sentence(e) + after)


def _address_towards(http: Http) -> str:
    """This host's address on the way there."""
    family, _, _, _, there = socket.getaddrinfo(http.host, http.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.connect(there)
        return s.getsockname()[0]
