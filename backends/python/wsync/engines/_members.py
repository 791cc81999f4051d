"""Engines as members of a BroadcastSender's group: the HTTP requests of a broadcast to SGLang and vLLM, and each engine's state. libwsync
pauses, flushes, resumes and queries them (``_http.Http``); this module has what belongs to a group.

It does not use torch. Facts behind its design:
- a lost reply proves nothing: an engine counts as paused once the pause was sent, and as dirty once the first part was announced; only
  an answer to the contrary clears that;
- neither engine reports which tensors it has, and SGLang silently keeps a mix of two versions;
- SGLang's scheduler handles one request at a time, and the last part's request carries the new version name;
- vLLM's back end ``wsync`` takes a whole version, checks it and undoes a failure, on all ranks of one replica; with several replicas
  (data parallelism) one may have the version while another has undone it, and /collective_rpc reports only the first."""
from __future__ import annotations

import contextlib
import errno
import re
import time
from dataclasses import dataclass
from typing import Any, Callable, Optional

from ._engines import Engine, update_sglang_weights_from_disk, update_vllm_weights_from_disk
from ._http import Call, Http, Refused, State

GROUP_CALL_SECONDS = 24 * 3600.0  # timeout of requests that end with the group
RESUME_RETRY_SECONDS = 0.05
UNDONE_MESSAGES = ("nothing has changed", "was loaded again and is served")  # in errors of our back end in vLLM after it undid an update
SGLANG_MIN_BUCKETS_RELEASE = (0, 5, 23)  # the oldest release that was tested with buckets
PARTIAL_PREFIX = "part of "  # before the version: the version name of an SGLang that has received only a part
Request = dict[str, Any]  # names, dtypes and shapes of one part


class Ineligible(RuntimeError):
    """This engine cannot be a member now; the message says why, and what to do."""


@dataclass
class Update:
    """The description of a version that all members get. path: its files, as the engines see them; buckets: parts are packed."""

    version: str
    path: Optional[str]
    force_layout: bool = False
    group_name: str = ""
    buckets: bool = False


class Member:
    """One engine, for a sender's life. ``paused``: this sender has paused it, or may have; ``dirty``: its weights may be a mix of
    versions, or its caches not of its weights; ``size``: the number of its workers; ``model_path``: the path that it reports, of its start
    or its last load."""

    load_path: Callable[..., None]
    checks_layout = False  # whether the engine itself compares layouts before it loads

    def __init__(self, engine: Engine, http: Http, timeout: float):
        self.engine, self.http, self.timeout = engine, http, timeout
        self.paused = self.dirty = False
        self.size = 0
        self.model_path: Optional[str] = None
        self.pause_seconds = 0.0
        self.calls: list[Call] = []
        self._paused_at: Optional[float] = None
        self._pause_unconfirmed = False  # a pause without an answer, which may still take effect

    # --- calls ---
    def get(self, path: str) -> dict[str, Any]:
        return self.http.call(path, None, self.timeout)

    def post(self, path: str, body: Optional[dict[str, Any]] = None, timeout: Optional[float] = None) -> dict[str, Any]:
        reply = self.http.call(path, body or {}, timeout or self.timeout)
        if reply.get("success") is False:
            raise Refused(f"{self.http.url}{path}: {str(reply.get('message'))[:800]}", 200)
        return reply

    def post_if_known(self, path: str, body: Optional[dict[str, Any]] = None) -> bool:
        """Posts; returns whether the engine knows the route."""
        try:
            self.post(path, body)
        except Refused as e:
            if e.status not in (404, 405):
                raise
            return False
        return True

    def call_error(self) -> Optional[str]:
        """The error of the first of its calls that failed."""
        return next((message_of(c.error) for c in self.calls if c.failed and c.error is not None), None)

    # --- per kind ---
    def inspect(self, workers: Optional[int]) -> str:
        """Checks that the engine can join; changes nothing. Returns the version that it serves. Raises Ineligible."""
        raise NotImplementedError

    def supports_buckets(self) -> bool:
        """Whether it accepts a part as one packed tensor. Called while it is in no group."""
        raise NotImplementedError

    def state(self) -> State:
        """Queries its present state; sets model_path."""
        state = self.http.query(self.timeout)
        self.model_path = state.path or None
        return state

    def serving(self) -> str:
        return self.state().version

    def join(self, info: dict[str, Any]) -> None:
        raise NotImplementedError

    def leave(self, group: str) -> None:
        raise NotImplementedError

    def begin(self, requests: list[Request], update: Update) -> None:
        raise NotImplementedError

    def start_part(self, i: int, requests: list[Request], update: Update) -> None:
        """Makes the engine receive part i; called before the part is sent."""

    def finish(self, update: Update) -> None:
        """Called after the last part; returns when the engine has the whole version."""
        raise NotImplementedError

    def undo(self, update: Update) -> bool:
        """Called after a failure, when the group has ended. Returns whether the engine has the previous version."""
        raise NotImplementedError

    # --- in and out of service ---
    def pause(self) -> None:
        self._paused_at, before = time.monotonic(), (self.paused, self._pause_unconfirmed)  # before: by an earlier send that failed
        self.paused = self._pause_unconfirmed = True
        try:
            self.http.pause(self.timeout)
        except (OSError, Refused) as e:
            if e.changed_nothing if isinstance(e, Refused) else e.errno in (errno.EHOSTUNREACH, errno.EINVAL):
                self.paused, self._pause_unconfirmed = before
            raise
        self._pause_unconfirmed = False

    def resume(self) -> None:
        """Resumes the engine until it confirms. A pause without an answer may still take effect; once another pause is answered, it has."""
        until = time.monotonic() + self.timeout
        lost: Optional[str] = None
        if self._pause_unconfirmed:
            try:
                self.http.pause(self.timeout)
            except (OSError, Refused) as e:
                lost = message_of(e)
        while True:
            try:
                self.http.resume(self.timeout)
                break
            except Refused as e:
                if e.changed_nothing:
                    raise
                why = str(e)
            except OSError as e:
                why = message_of(e)
            if time.monotonic() > until:
                raise Refused(f"{why}: whether it is paused is not known; resume it")
            time.sleep(RESUME_RETRY_SECONDS)
        if lost is not None:
            raise Refused(f"{lost}: no answer to its pause, which may come yet; look at it, and resume it again")
        self.paused = self._pause_unconfirmed = False
        self.pause_seconds = time.monotonic() - self._paused_at if self._paused_at is not None else 0.0

    def await_calls(self, seconds: float) -> None:
        """Waits for its requests, which end with the group; cancels those that do not end in time."""
        until = time.monotonic() + seconds
        for call in self.calls:
            call.join(max(0.0, until - time.monotonic()))
        self.http.cancel()


class SGLangMember(Member):
    """/init_weights_update_group, then a request for each part of a session."""

    load_path = staticmethod(update_sglang_weights_from_disk)
    _release: tuple[int, ...] = ()

    def inspect(self, workers: Optional[int]) -> str:
        serves = self.serving()
        self.dirty = self.dirty or serves.startswith(PARTIAL_PREFIX)  # left by a sender that was killed
        info = self.get("/server_info")
        for key, what in (("pp_size", "pipeline stages, which would join a group with the same numbers"),
                          ("dp_size", "data-parallel replicas, which would join a group with the same numbers"),
                          ("tokenizer_worker_num", "tokenizer workers, of which only one would get the new version")):
            if type(info.get(key, 1)) is not int or info.get(key, 1) > 1:
                raise Ineligible(f"{self.http.url} has {info[key]} {what}: give path=")
        size = workers or info.get("tp_size")
        if type(size) is not int or size < 1:
            raise Ineligible(f"{self.http.url}/server_info names no tp_size: give workers=")
        self.size = size
        release = re.match(r"(\d+)\.(\d+)\.(\d+)", str(info.get("version")))
        self._release = tuple(map(int, release.groups())) if release else ()
        return serves

    def supports_buckets(self) -> bool:
        return self._release >= SGLANG_MIN_BUCKETS_RELEASE

    def join(self, info: dict[str, Any]) -> None:
        keys = ("master_port", "rank_offset", "world_size", "group_name", "backend")
        self.post("/init_weights_update_group", {"master_address": info["master_addr"], **{k: info[k] for k in keys}})

    def leave(self, group: str) -> None:
        self.post("/destroy_weights_update_group", {"group_name": group})

    def begin(self, requests: list[Request], update: Update) -> None:
        self.post_if_known("/begin_weight_update")  # older releases have no sessions

    def start_part(self, i: int, requests: list[Request], update: Update) -> None:
        body = {**{k: requests[i][k] for k in ("names", "dtypes", "shapes")}, "group_name": update.group_name, "abort_all_requests": False,
                "flush_cache": False}
        if update.buckets:
            body["load_format"] = "flattened_bucket"
        if i + 1 == len(requests):
            body["weight_version"] = update.version
        if self.calls:
            self.calls[-1].result(self.timeout)  # one at a time, in the group's order
        else:
            self._mark_partial(update)
        self.dirty = True
        self.calls.append(Call(self.post, "/update_weights_from_distributed", body, GROUP_CALL_SECONDS))

    def _mark_partial(self, update: Update) -> None:
        self.dirty = True
        try:
            self.http.set_version(PARTIAL_PREFIX + update.version, self.timeout)
        except Refused as e:
            if e.changed_nothing and e.errno == errno.EPROTO:
                return  # an older release, in which only a load changes the version name
            self.dirty = not e.changed_nothing
            raise

    def finish(self, update: Update) -> None:
        for call in self.calls:
            call.result(self.engine.timeout)
        self.post_if_known("/end_weight_update")

    def undo(self, update: Update) -> bool:
        self.await_calls(self.timeout)
        for end in (lambda: self.post_if_known("/end_weight_update"), lambda: self.leave(update.group_name)):
            with contextlib.suppress(OSError, Refused):
                end()
        if self.dirty:
            with contextlib.suppress(OSError, Refused):
                self._mark_partial(update)  # the last part's request has already set the new name
            self.dirty = True
        return not self.dirty


class VLLMMember(Member):
    """vLLM with the weight-transfer back end ``wsync``."""

    load_path = staticmethod(update_vllm_weights_from_disk)
    checks_layout = True

    def __init__(self, engine: Engine, http: Http, timeout: float):
        super().__init__(engine, http, timeout)
        self._one_replica = self._began = False

    def inspect(self, workers: Optional[int]) -> str:
        state = self.state()
        if (state.paused or state.sleeping is not False) and not self.paused:  # paused by another program, which must resume it
            raise Ineligible(f"{self.http.url} sleeps, or another program has paused it: wake it (/wake_up) or resume it, or give path=")
        world, replica = (self._world_size(query) for query in ("", "?include_dp=false"))
        if workers is None and world is None:
            raise Ineligible(f"{self.http.url}/get_world_size names none: give workers=")
        self.size = workers or world or 0
        self._one_replica = world is not None and world == replica
        if not self._one_replica:
            self._require_all_replicas()
        return state.version

    def supports_buckets(self) -> bool:
        """Asks our back end in vLLM; an older one refuses the unknown field."""
        try:
            self.post("/init_weight_transfer_engine", {"init_info": {"buckets": True}})
        except Refused:
            return False
        return True

    def _world_size(self, query: str) -> Optional[int]:
        try:
            size = self.get(f"/get_world_size{query}").get("world_size")
        except Refused:
            return None
        return size if type(size) is int and size >= 1 else None

    def _require_all_replicas(self) -> None:
        """Refuses servers behind an external balancer (data_parallel_external_lb): each counts all replicas, and updates only its own."""
        try:
            config = self.get("/server_info?config_format=json").get("vllm_config")
        except Refused:
            return
        found = config.get("parallel_config") if isinstance(config, dict) else None
        if isinstance(found, dict) and (found.get("data_parallel_external_lb") or found.get("data_parallel_hybrid_lb")):
            raise Ineligible(f"{self.http.url} is one of several servers of the same data-parallel engine: workers of the others would not join; give path=")

    def join(self, info: dict[str, Any]) -> None:
        self.post("/init_weight_transfer_engine", {"init_info": {"timeout": self.timeout, **{k: info[k] for k in (
            "master_addr", "master_port", "rank_offset", "world_size", "group_name", "backend")}}})

    def leave(self, group: str) -> None:
        self.post("/init_weight_transfer_engine", {"init_info": {}})

    def begin(self, requests: list[Request], update: Update) -> None:
        self._began = True
        self.post("/start_weight_update")
        whole = {key: [one for r in requests for one in r[key]] for key in ("names", "dtypes", "shapes")}
        info = {"strategy": "broadcast", "names": whole["names"], "dtype_names": whole["dtypes"], "shapes": whole["shapes"],
                "path": update.path, "version": update.version, "force_layout": update.force_layout}
        if update.buckets:
            info["buckets"] = [len(r["names"]) for r in requests]
        self.dirty = True
        self.calls.append(Call(self.post, "/update_weights", {"update_info": info}, GROUP_CALL_SECONDS))

    def finish(self, update: Update) -> None:
        for call in self.calls:
            call.result(self.engine.timeout)
        self.post("/finish_weight_update", {"weight_version": update.version})

    def undo(self, update: Update) -> bool:
        self.await_calls(self.timeout + self.engine.timeout)  # it may be loading the previous version again
        reply = self.call_error() or ""
        with contextlib.suppress(OSError, Refused):
            if self._began and not self.dirty:
                self.post("/finish_weight_update")  # else no other update could be started
        with contextlib.suppress(OSError, Refused):
            self.leave(update.group_name)
        return not self.dirty or (self._one_replica and any(words in reply for words in UNDONE_MESSAGES))


KINDS: dict[str, Callable[[Engine, Http, float], Member]] = {"sglang": SGLangMember, "vllm": VLLMMember}


def message_of(e: BaseException) -> str:
    return (e.strerror if isinstance(e, OSError) else str(e)) or str(e) or type(e).__name__
