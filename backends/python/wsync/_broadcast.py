"""A version sent to engines over their own torch process groups: gloo from host memory, NCCL between GPUs."""
from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from ._chunks import WeightExtractor
from ._engines import Engine, EngineResult, update_sglang_weights_from_disk, update_vllm_weights_from_disk
from ._gpu import GpuWeights
from ._http import Call, Http, Refused
from ._library import Error, Timeout
from ._requests import broadcast_info, broadcast_request
from ._torch_group import Group, Lost, listen
from ._weights import Weights

log = logging.getLogger("wsync")
LONG = 24 * 3600.0  # of a request that ends with the group
STILL_SERVES = ("nothing has changed", "was loaded again and is served")  # what our back end in vLLM says of an update it undid


@dataclass(frozen=True)
class BroadcastResult(EngineResult):
    """by: "broadcast", or "disk" where the group failed and the engine loaded ``path`` instead; fallback: why."""

    by: str = "broadcast"
    fallback: Optional[str] = None


class _Member:
    """One engine in a group. ``touched``: its weights may be no version's."""

    pause_path = resume_path = ""

    def __init__(self, engine: Engine, timeout: float):
        self.engine, self.timeout = engine, timeout
        self.http = Http(engine.url, engine.token)
        self.paused = self.touched = False
        self.paused_at = self.pause_seconds = 0.0
        self.calls: list[Call] = []

    def get(self, path: str) -> dict[str, Any]:
        return self.http.call(path, None, self.timeout)

    def post(self, path: str, body: Optional[dict[str, Any]] = None, timeout: Optional[float] = None) -> dict[str, Any]:
        said = self.http.call(path, body or {}, timeout or self.timeout)
        if said.get("success") is False:
            raise Refused(200, f"{self.http.url}{path}: {str(said.get('message'))[:800]}")
        return said

    def pause(self) -> None:
        self.paused_at = time.monotonic()
        self.post_pause()
        self.paused = True

    def resume(self) -> None:
        self.post_resume()
        self.paused = False
        self.pause_seconds = time.monotonic() - self.paused_at

    def failed(self) -> Optional[str]:
        """What one of its calls ended with."""
        return next((_sentence(c.error) for c in self.calls if c.failed and c.error is not None), None)


class _SGLang(_Member):
    """/init_weights_update_group, then a request for each chunk of a session."""

    def workers(self) -> int:
        size = self.get("/server_info").get("tp_size")
        if type(size) is not int or size < 1:
            raise Refused(200, f"{self.http.url}/server_info names no tp_size: give workers=")
        return size

    def serving(self) -> str:
        return str(self.get("/model_info").get("weight_version"))

    def join(self, info: dict[str, Any]) -> None:
        keys = ("master_port", "rank_offset", "world_size", "group_name", "backend")
        self.post("/init_weights_update_group", {"master_address": info["master_addr"], **{k: info[k] for k in keys}})

    def leave(self, group: str) -> None:
        self.post("/destroy_weights_update_group", {"group_name": group})

    def post_pause(self) -> None:
        self.post("/pause_generation", {"mode": self.engine.pause_mode or "retract"})

    def post_resume(self) -> None:
        self.post("/continue_generation")

    def begin(self, requests: list[dict[str, Any]], told: dict[str, Any]) -> None:
        try:
            self.post("/begin_weight_update")
        except Refused as e:
            if e.status not in (404, 405):  # older ones know no sessions
                raise

    def chunk(self, i: int, requests: list[dict[str, Any]], told: dict[str, Any]) -> None:
        self.touched = True
        last = i + 1 == len(requests)
        body = {**{k: requests[i][k] for k in ("names", "dtypes", "shapes")}, "group_name": told["group_name"], "abort_all_requests": False,
                "flush_cache": last and self.engine.pause_mode != "in_place"}
        if last and told["version"]:
            body["weight_version"] = told["version"]
        if self.calls:
            self.calls[-1].result(self.timeout)  # one after the other, as its group has them
        self.calls.append(Call(self.post, "/update_weights_from_distributed", body, LONG))

    def finish(self, told: dict[str, Any]) -> None:
        try:
            self.post("/end_weight_update")
        except Refused as e:
            if e.status not in (404, 405):
                raise

    def undo(self, told: dict[str, Any]) -> bool:
        """After a failure: ends the session; whether it still serves what it did before."""
        for end in (lambda: self.finish(told), lambda: self.leave(told["group_name"])):
            with contextlib.suppress(OSError, Refused):
                end()
        return not self.touched

    load_path = staticmethod(update_sglang_weights_from_disk)


class _VLLM(_Member):
    """vLLM with the weight-transfer back end ``wsync``, which takes a version whole and checks it."""

    def workers(self) -> int:
        size = self.get("/get_world_size").get("world_size")
        if type(size) is not int or size < 1:
            raise Refused(200, f"{self.http.url}/get_world_size names none: give workers=")
        return size

    def serving(self) -> str:
        return str(self.get("/weight_info").get("weight_version"))

    def join(self, info: dict[str, Any]) -> None:
        self.post("/init_weight_transfer_engine", {"init_info": {"timeout": self.timeout, **{k: info[k] for k in (
            "master_addr", "master_port", "rank_offset", "world_size", "group_name", "backend")}}})

    def leave(self, group: str) -> None:
        self.post("/init_weight_transfer_engine", {"init_info": {}})

    def post_pause(self) -> None:
        self.post(f"/pause?mode={self.engine.pause_mode or 'keep'}")

    def post_resume(self) -> None:
        self.post("/resume")

    def begin(self, requests: list[dict[str, Any]], told: dict[str, Any]) -> None:
        self.post("/start_weight_update")
        whole = {key: [one for r in requests for one in r[key]] for key in ("names", "dtypes", "shapes")}
        self.touched = True
        self.calls.append(Call(self.post, "/update_weights", {"update_info": {
            "strategy": "broadcast", "names": whole["names"], "dtype_names": whole["dtypes"], "shapes": whole["shapes"],
            "path": told["path"], "version": told["version"]}}, LONG))

    def chunk(self, i: int, requests: list[dict[str, Any]], told: dict[str, Any]) -> None:
        """It was told of all of them."""

    def finish(self, told: dict[str, Any]) -> None:
        self.post("/finish_weight_update", {"weight_version": told["version"]} if told["version"] else {})

    def undo(self, told: dict[str, Any]) -> bool:
        said = self.failed() or ""
        with contextlib.suppress(OSError, Refused):
            self.leave(told["group_name"])
        return not self.touched or any(words in said for words in STILL_SERVES)

    load_path = staticmethod(update_vllm_weights_from_disk)


_KINDS: dict[str, Callable[[Engine, float], _Member]] = {"sglang": _SGLang, "vllm": _VLLM}


class BroadcastSender:
    """Sends versions to SGLang and vLLM servers as rank 0 of a process group that they join: a copy straight from this process into
    theirs, for engines that have no mount, or GPUs with a fast network between them.

    ::

        with wsync.BroadcastSender([wsync.Engine("sglang", url) for url in urls]) as sender:
            for result in sender.send(wsync.open("/wsync/actor/42", "torch")):
                if not result.ok: ...

    SGLang by /init_weights_update_group and /update_weights_from_distributed; vLLM by its weight-transfer routes with
    ``--weight-transfer-config '{"backend": "wsync"}'`` (its own NCCL back end is sent to by vLLM's own sender, from
    ``weights.source()``). The group is made at the first send, and anew after a failure; engines that do not answer are left out of it.
    master_address: this host's, as the engines reach it; by default that of the way to the first one. backend: "nccl" where torch has
    GPUs, else "gloo". workers: of each engine; by default it is asked. bucket_bytes: of a request to SGLang. timeout: seconds
    in which each member has to take part in each step. Not thread safe."""

    def __init__(self, engines: Iterable[Engine], *, master_address: Optional[str] = None, master_port: int = 0, backend: Optional[str] = None,
                 workers: Optional[int] = None, group_name: str = "wsync", bucket_bytes: int = 1 << 30, timeout: float = 60.0):
        self.engines = list(engines)
        for engine in self.engines:
            if engine.kind not in _KINDS:
                raise ValueError(f"engine kind {engine.kind!r}: {' or '.join(_KINDS)}")
        if not self.engines or not timeout > 0 or bucket_bytes < 1:
            raise ValueError("a sender wants one engine at least, and a timeout and bucket_bytes above 0")
        self.timeout, self.bucket_bytes = timeout, bucket_bytes
        self._address, self._port, self._backend, self._workers, self._base_name = master_address, master_port, backend, workers, group_name
        self._group: Optional[Group] = None
        self._members: list[_Member] = []
        self._made = 0

    # --- the group ---
    def _name(self) -> str:
        return f"{self._base_name}-{os.getpid()}-{self._made}"  # one that failed may live on in an engine

    def _answering(self, results: dict[int, BroadcastResult]) -> list[_Member]:
        found = []
        for i, engine in enumerate(self.engines):
            member = _KINDS[engine.kind](engine, self.timeout)
            try:
                member.serving()
                found.append(member)
            except (OSError, Refused) as e:
                results[i] = BroadcastResult(engine, _error(e), 0.0)
        return found

    def _join(self, members: list[_Member]) -> None:
        """Lost: not all of them have joined."""
        import torch

        self._made += 1
        sizes = [self._workers or m.workers() for m in members]
        world, backend = 1 + sum(sizes), self._backend or ("nccl" if torch.cuda.is_available() else "gloo")
        address = self._address or _address_towards(members[0].http)
        store = listen(address, self._port, world, self.timeout)
        calls, offset = [], 1
        for member, size in zip(members, sizes):
            calls.append(Call(member.join, broadcast_info(address, store.port, offset, world, self._name(), backend)))
            offset += size
        making = Call(Group, store, 0, world, backend, self._name(), self.timeout)
        until = time.monotonic() + self.timeout
        while (making.is_alive() or any(c.is_alive() for c in calls)) and time.monotonic() < until and not any(c.failed for c in (*calls, making)):
            time.sleep(0.005)
        why = next((_sentence(c.error) for c in (*calls, making) if c.error is not None), None)
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
    def send(self, weights: Union[Weights, GpuWeights], version: Optional[str] = None, path: Optional[str] = None) -> list[BroadcastResult]:
        """Pauses the engines, sends every tensor, asks what they serve, resumes them; a result for each, in their order. version: what
        they are told that they serve; default: the version's number and lineage. path: where they find the same version as
        files: what they load where the group fails. Without it an engine that failed in the middle stays paused, and its error says so.
        An engine is never resumed before it serves a whole version."""
        if weights.framework != "torch":
            raise ValueError("tensors are sent by torch: open the version with framework='torch'")
        if version is None and weights.version is not None:
            version = f"{weights.version}@{weights.run}"
        results: dict[int, BroadcastResult] = {}
        members = self._answering(results)
        if [m.engine for m in members] != [m.engine for m in self._members]:
            self.close()
        if members:
            self._send(members, weights, version, path, results)
        return [results[i] for i in range(len(self.engines))]

    def _send(self, members: list[_Member], weights: Any, version: Optional[str], path: Optional[str], results: dict[int, BroadcastResult]) -> None:
        why: Optional[str] = None
        batches = list(WeightExtractor(weights, group_by_module=True, batch_size_threshold_gb=self.bucket_bytes / 2**30)._batches(None))
        requests = [broadcast_request(batch, weights.version, weights.run) for batch in batches]
        told = {"version": version, "path": path, "group_name": ""}
        try:
            if self._group is None:
                self._join(members)
            told["group_name"] = self._name()
            self._transfer(members, weights, batches, requests, told)
        except Exception as e:  # whatever it is, the engines wait
            why = _sentence(e)
            log.warning("the broadcast of %s has failed: %s", version or weights.path, why)
            self._drop(members)
        except BaseException:
            self._drop(members)
            raise
        for member in members:
            results[self.engines.index(member.engine)] = self._end(member, told, why)

    def _transfer(self, members: list[_Member], weights: Any, batches: list, requests: list[dict[str, Any]], told: dict[str, Any]) -> None:
        assert self._group is not None
        _all(members, lambda m: m.pause(), self.timeout)
        _all(members, lambda m: m.begin(requests, told), self.timeout)
        for i, batch in enumerate(batches):
            for member in members:
                member.chunk(i, requests, told)
            for meta in batch:
                tensor = weights[meta.name].to(self._device).contiguous()
                self._group.broadcast(tensor, lambda: next((why for m in members if (why := m.failed())), None))
                del tensor
        for member in members:
            for call in member.calls:
                call.result(self.timeout)
        _all(members, lambda m: m.finish(told), self.timeout)

    def _end(self, member: _Member, told: dict[str, Any], why: Optional[str]) -> BroadcastResult:
        """Asks what it serves, and resumes it or not."""
        engine = member.engine
        own = member.failed()
        if why is not None and own is not None and own not in why:
            why = f"{why}; {own}"
        try:
            if why is None:
                serves = member.serving()
                if told["version"] and serves != told["version"]:
                    raise Refused(200, f"{engine.url} says that it serves {serves} after {told['version']} was sent: it stays paused")
                member.resume()
                return BroadcastResult(engine, None, member.pause_seconds)
            undone = member.undo(told)
            member.serving()  # does it live?
            if undone:
                if member.paused:
                    member.resume()
                if told["path"] is None:
                    return BroadcastResult(engine, Error(errno.ECONNRESET, f"{why}. {engine.url} serves what it did before"), member.pause_seconds)
            if told["path"] is not None:
                return self._by_path(member, told, why)
            error = f"{why}. {engine.url} stays paused: it has a part of the version; have it load a whole one, or give path="
            return BroadcastResult(engine, Error(errno.EREMOTEIO, error), 0.0)
        except (OSError, Refused) as e:
            return BroadcastResult(engine, _error(e, f"{why}; " if why else ""), member.pause_seconds)

    def _by_path(self, member: _Member, told: dict[str, Any], why: str) -> BroadcastResult:
        engine = member.engine
        paused_at = member.paused_at or time.monotonic()
        try:
            member.load_path(engine.url, told["path"], version=told["version"], token=engine.token, pause_mode=engine.pause_mode,
                             timeout=engine.timeout, admin_token=engine.admin_token, ca_file=engine.ca_file, cache=engine.cache)
        except Error as e:
            return BroadcastResult(engine, type(e)(e.errno, f"{why}; {e.strerror}"), 0.0, "disk", why)
        return BroadcastResult(engine, None, time.monotonic() - paused_at, "disk", why)

    def _drop(self, members: list[_Member]) -> None:
        """The group, after a failure. Engines' requests end with it, or are given up."""
        group, self._group, self._members = self._group, None, []
        if group is not None:
            group.abort()
        until = time.monotonic() + self.timeout
        for member in members:
            for call in member.calls:
                call.join(max(0.0, until - time.monotonic()))
            member.http.give_up()

    def close(self) -> None:
        """Ends the group. May be called twice."""
        group, name, members = self._group, self._name(), self._members
        self._group, self._members = None, []
        if group is None:
            return
        leaving = [Call(m.leave, name) for m in members]
        group.close()
        for call in leaving:
            call.join(self.timeout)

    def __enter__(self) -> "BroadcastSender":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _all(members: list[_Member], step: Callable[[_Member], None], timeout: float) -> None:
    """The step on all at once; the first that failed is raised once all have ended."""
    errors = []
    for call in [Call(step, m) for m in members]:
        try:
            call.result(2 * timeout)
        except (OSError, Refused, TimeoutError) as e:
            errors.append(e)
    if errors:
        raise errors[0]


def _sentence(e: BaseException) -> str:
    return (e.strerror if isinstance(e, OSError) else str(e)) or str(e) or type(e).__name__


def _error(e: BaseException, before: str = "") -> Error:
    number = e.errno if isinstance(e, OSError) and e.errno else errno.EREMOTEIO if isinstance(e, Refused) else errno.EHOSTUNREACH
    return (Timeout if isinstance(e, TimeoutError) else Error)(number, before + _sentence(e))


def _address_towards(http: Http) -> str:
    """This host's address on the way there."""
    family, _, _, _, there = socket.getaddrinfo(http.host, http.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as s:
        s.connect(there)
        return s.getsockname()[0]
