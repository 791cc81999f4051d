"""Engines as members of a BroadcastSender's group: what SGLang and vLLM are told over HTTP, and what is known of each. How they are paused,
flushed, resumed and asked what they serve libwsync knows (``_http.Http``); here is what belongs to a group.

Nothing here knows tensors or torch. What shapes it:
- a reply that is lost says nothing: an engine counts as paused from the sending of the pause on, and as touched from the sending of
  the first part on; only an answer to the contrary clears that;
- neither engine can be asked which tensors it has, and SGLang keeps a mix of two versions without a word;
- SGLang's scheduler takes one request after the other, and its last part carries the version that it is told to serve;
- vLLM's back end ``wsync`` takes a version whole, checks it and undoes what fails, on all ranks of one replica; of several replicas
  (data parallelism) one may have it while another one undid it, and /collective_rpc answers for the first alone."""
from __future__ import annotations

import contextlib
import errno
import re
import time
from dataclasses import dataclass
from typing import Any, Callable, Optional

from ._engines import Engine, update_sglang_weights_from_disk, update_vllm_weights_from_disk
from ._http import Call, Http, Refused, State

LONG = 24 * 3600.0  # of a request that ends with the group
RESUME_AGAIN_SECONDS = 0.05
STILL_SERVES = ("nothing has changed", "was loaded again and is served")  # what our back end in vLLM says of an update it undid
SGLANG_TAKES_BUCKETS = (0, 5, 23)  # the oldest that was tried
PART = "part of "  # and a version: what an SGLang is told that it serves while it has not all of it
Request = dict[str, Any]  # names, dtypes and shapes of one part


class LeftOut(RuntimeError):
    """This engine cannot be a member now; the sentence says why, and what to do."""


@dataclass
class Told:
    """What all members are told of a version. path: where they find it as files; buckets: parts are packed."""

    version: str
    path: Optional[str]
    force_layout: bool = False
    group_name: str = ""
    buckets: bool = False


class Member:
    """One engine, for a sender's life. ``paused``: this sender has paused it, or may have; ``touched``: its weights may be no version's, or
    what it has cached not of its weights;
    ``size``: its workers; ``model_path``: what it says that it was started with, or has loaded last."""

    load_path: Callable[..., None]
    checks_layout = False  # itself, before it loads

    def __init__(self, engine: Engine, http: Http, timeout: float):
        self.engine, self.http, self.timeout = engine, http, timeout
        self.paused = self.touched = False
        self.size = 0
        self.model_path: Optional[str] = None
        self.pause_seconds = 0.0
        self.calls: list[Call] = []
        self._paused_at: Optional[float] = None
        self._unanswered = False  # a pause that may come yet

    # --- calls ---
    def get(self, path: str) -> dict[str, Any]:
        return self.http.call(path, None, self.timeout)

    def post(self, path: str, body: Optional[dict[str, Any]] = None, timeout: Optional[float] = None) -> dict[str, Any]:
        said = self.http.call(path, body or {}, timeout or self.timeout)
        if said.get("success") is False:
            raise Refused(f"{self.http.url}{path}: {str(said.get('message'))[:800]}", 200)
        return said

    def post_if_known(self, path: str, body: Optional[dict[str, Any]] = None) -> bool:
        """Whether it knows the route."""
        try:
            self.post(path, body)
        except Refused as e:
            if e.status not in (404, 405):
                raise
            return False
        return True

    def failed(self) -> Optional[str]:
        """What one of its calls ended with."""
        return next((sentence(c.error) for c in self.calls if c.failed and c.error is not None), None)

    # --- what a kind says ---
    def examine(self, workers: Optional[int]) -> str:
        """Looks at it, changes nothing, and returns the version that it serves. LeftOut."""
        raise NotImplementedError

    def takes_buckets(self) -> bool:
        """A part as one packed tensor; asked while it is in no group."""
        raise NotImplementedError

    def state(self) -> State:
        """What it reports now; sets model_path."""
        state = self.http.query(self.timeout)
        self.model_path = state.path or None
        return state

    def serving(self) -> str:
        return self.state().version

    def join(self, info: dict[str, Any]) -> None:
        raise NotImplementedError

    def leave(self, group: str) -> None:
        raise NotImplementedError

    def begin(self, requests: list[Request], told: Told) -> None:
        raise NotImplementedError

    def part(self, i: int, requests: list[Request], told: Told) -> None:
        """Before the part is sent: tells the engine to receive it."""

    def conclude(self, told: Told) -> None:
        """After all was sent: returns when the engine has all of it."""
        raise NotImplementedError

    def undo(self, told: Told) -> bool:
        """After a failure, when the group has ended: whether it serves what it did before, or will once it is resumed."""
        raise NotImplementedError

    # --- in and out of service ---
    def pause(self) -> None:
        self._paused_at, before = time.monotonic(), (self.paused, self._unanswered)  # by a send that failed
        self.paused = self._unanswered = True
        try:
            self.http.pause(self.timeout)
        except (OSError, Refused) as e:
            if e.changed_nothing if isinstance(e, Refused) else e.errno in (errno.EHOSTUNREACH, errno.EINVAL):
                self.paused, self._unanswered = before
            raise
        self._unanswered = False

    def resume(self) -> None:
        """Until it says so. A pause without an answer may come yet: it has come once another one is answered."""
        until = time.monotonic() + self.timeout
        lost: Optional[str] = None
        if self._unanswered:
            try:
                self.http.pause(self.timeout)
            except (OSError, Refused) as e:
                lost = sentence(e)
        while True:
            try:
                self.http.resume(self.timeout)
                break
            except Refused as e:
                if e.changed_nothing:
                    raise
                why = str(e)
            except OSError as e:
                why = sentence(e)
            if time.monotonic() > until:
                raise Refused(f"{why}: whether it is paused is not known; resume it")
            time.sleep(RESUME_AGAIN_SECONDS)
        if lost is not None:
            raise Refused(f"{lost}: no answer to its pause, which may come yet; look at it, and resume it again")
        self.paused = self._unanswered = False
        self.pause_seconds = time.monotonic() - self._paused_at if self._paused_at is not None else 0.0

    def await_calls(self, seconds: float) -> None:
        """Its requests end with the group; what has not ended by then is given up."""
        until = time.monotonic() + seconds
        for call in self.calls:
            call.join(max(0.0, until - time.monotonic()))
        self.http.give_up()


class SGLangMember(Member):
    """/init_weights_update_group, then a request for each part of a session."""

    load_path = staticmethod(update_sglang_weights_from_disk)
    _release: tuple[int, ...] = ()

    def examine(self, workers: Optional[int]) -> str:
        serves = self.serving()
        self.touched = self.touched or serves.startswith(PART)  # some sender was killed
        info = self.get("/server_info")
        for key, what in (("pp_size", "pipeline stages, which would join a group with the same numbers"),
                          ("dp_size", "data-parallel replicas, which would join a group with the same numbers"),
                          ("tokenizer_worker_num", "tokenizer workers, of which one alone would hear of the new version")):
            if type(info.get(key, 1)) is not int or info.get(key, 1) > 1:
                raise LeftOut(f"{self.http.url} has {info[key]} {what}: give path=")
        size = workers or info.get("tp_size")
        if type(size) is not int or size < 1:
            raise LeftOut(f"{self.http.url}/server_info names no tp_size: give workers=")
        self.size = size
        release = re.match(r"(\d+)\.(\d+)\.(\d+)", str(info.get("version")))
        self._release = tuple(map(int, release.groups())) if release else ()
        return serves

    def takes_buckets(self) -> bool:
        return self._release >= SGLANG_TAKES_BUCKETS

    def join(self, info: dict[str, Any]) -> None:
        keys = ("master_port", "rank_offset", "world_size", "group_name", "backend")
        self.post("/init_weights_update_group", {"master_address": info["master_addr"], **{k: info[k] for k in keys}})

    def leave(self, group: str) -> None:
        self.post("/destroy_weights_update_group", {"group_name": group})

    def begin(self, requests: list[Request], told: Told) -> None:
        self.post_if_known("/begin_weight_update")  # older ones know no sessions

    def part(self, i: int, requests: list[Request], told: Told) -> None:
        body = {**{k: requests[i][k] for k in ("names", "dtypes", "shapes")}, "group_name": told.group_name, "abort_all_requests": False,
                "flush_cache": False}
        if told.buckets:
            body["load_format"] = "flattened_bucket"
        if i + 1 == len(requests):
            body["weight_version"] = told.version
        if self.calls:
            self.calls[-1].result(self.timeout)  # one after the other, as its group has them
        else:
            self._call_it_a_part(told)
        self.touched = True
        self.calls.append(Call(self.post, "/update_weights_from_distributed", body, LONG))

    def _call_it_a_part(self, told: Told) -> None:
        self.touched = True
        try:
            self.http.set_version(PART + told.version, self.timeout)
        except Refused as e:
            if e.changed_nothing and e.errno == errno.EPROTO:
                return  # an older release, whose version only a load changes
            self.touched = not e.changed_nothing
            raise

    def conclude(self, told: Told) -> None:
        for call in self.calls:
            call.result(self.engine.timeout)
        self.post_if_known("/end_weight_update")

    def undo(self, told: Told) -> bool:
        self.await_calls(self.timeout)
        for end in (lambda: self.post_if_known("/end_weight_update"), lambda: self.leave(told.group_name)):
            with contextlib.suppress(OSError, Refused):
                end()
        if self.touched:
            with contextlib.suppress(OSError, Refused):
                self._call_it_a_part(told)  # its last part has said that it is whole
            self.touched = True
        return not self.touched


class VLLMMember(Member):
    """vLLM with the weight-transfer back end ``wsync``."""

    load_path = staticmethod(update_vllm_weights_from_disk)
    checks_layout = True

    def __init__(self, engine: Engine, http: Http, timeout: float):
        super().__init__(engine, http, timeout)
        self._one_replica = self._began = False

    def examine(self, workers: Optional[int]) -> str:
        state = self.state()
        if (state.paused or state.sleeping is not False) and not self.paused:  # one that somebody else has paused is not ours to resume
            raise LeftOut(f"{self.http.url} sleeps, or somebody else has paused it: wake it (/wake_up) or resume it, or give path=")
        world, replica = (self._world(query) for query in ("", "?include_dp=false"))
        if workers is None and world is None:
            raise LeftOut(f"{self.http.url}/get_world_size names none: give workers=")
        self.size = workers or world or 0
        self._one_replica = world is not None and world == replica
        if not self._one_replica:
            self._owns_all_replicas()
        return state.version

    def takes_buckets(self) -> bool:
        """Our back end's own word; an older one refuses what it does not know."""
        try:
            self.post("/init_weight_transfer_engine", {"init_info": {"buckets": True}})
        except Refused:
            return False
        return True

    def _world(self, query: str) -> Optional[int]:
        try:
            size = self.get(f"/get_world_size{query}").get("world_size")
        except Refused:
            return None
        return size if type(size) is int and size >= 1 else None

    def _owns_all_replicas(self) -> None:
        """Behind a balancer of their own (data_parallel_external_lb) each server counts all replicas and speaks to its own."""
        try:
            config = self.get("/server_info?config_format=json").get("vllm_config")
        except Refused:
            return
        found = config.get("parallel_config") if isinstance(config, dict) else None
        if isinstance(found, dict) and (found.get("data_parallel_external_lb") or found.get("data_parallel_hybrid_lb")):
            raise LeftOut(f"{self.http.url} is one of several servers of the same data-parallel engine: workers of the others would not join; give path=")

    def join(self, info: dict[str, Any]) -> None:
        self.post("/init_weight_transfer_engine", {"init_info": {"timeout": self.timeout, **{k: info[k] for k in (
            "master_addr", "master_port", "rank_offset", "world_size", "group_name", "backend")}}})

    def leave(self, group: str) -> None:
        self.post("/init_weight_transfer_engine", {"init_info": {}})

    def begin(self, requests: list[Request], told: Told) -> None:
        self._began = True
        self.post("/start_weight_update")
        whole = {key: [one for r in requests for one in r[key]] for key in ("names", "dtypes", "shapes")}
        info = {"strategy": "broadcast", "names": whole["names"], "dtype_names": whole["dtypes"], "shapes": whole["shapes"],
                "path": told.path, "version": told.version, "force_layout": told.force_layout}
        if told.buckets:
            info["buckets"] = [len(r["names"]) for r in requests]
        self.touched = True
        self.calls.append(Call(self.post, "/update_weights", {"update_info": info}, LONG))

    def conclude(self, told: Told) -> None:
        for call in self.calls:
            call.result(self.engine.timeout)
        self.post("/finish_weight_update", {"weight_version": told.version})

    def undo(self, told: Told) -> bool:
        self.await_calls(self.timeout + self.engine.timeout)  # it may be loading the version before again
        said = self.failed() or ""
        with contextlib.suppress(OSError, Refused):
            if self._began and not self.touched:
                self.post("/finish_weight_update")  # or no other could be started
        with contextlib.suppress(OSError, Refused):
            self.leave(told.group_name)
        return not self.touched or (self._one_replica and any(words in said for words in STILL_SERVES))


KINDS: dict[str, Callable[[Engine, Http, float], Member]] = {"sglang": SGLangMember, "vllm": VLLMMember}


def sentence(e: BaseException) -> str:
    return (e.strerror if isinstance(e, OSError) else str(e)) or str(e) or type(e).__name__
