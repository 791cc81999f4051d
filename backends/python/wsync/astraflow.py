"""AstraFlow: its trainer's WeightManager, with wsync behind it; and the calls that tell its services of versions.

AstraFlow imports its own when the trainer is made, so this is enough before that::

    import astraflow.core.weight_manager, wsync.astraflow
    astraflow.core.weight_manager.WeightManager = wsync.astraflow.WeightManager

Receivers need no change: the agent serves their protocol, wsync-astraflow(7). Importing this imports neither torch nor AstraFlow."""
from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import errno
import fcntl
import http.client
import io
import json
import logging
import os
import pickle
import shlex
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

from .lib import _agents
from .lib._library import Error, Timeout
from .lib._processes import COMMAND, POLL_SECONDS, tail
from .publish import _ranks
from .publish._held import Source, Tensors, detached
from .publish._publisher import Publisher

__all__ = ["WeightManager", "notify_services", "notify_version", "ready"]

log = logging.getLogger("wsync.astraflow")
START_SECONDS, END_SECONDS, RANKS_SECONDS = 120.0, 10.0, 600.0
ADAPTER_FILE = "adapter_model.safetensors"
MAX_REPLY_BYTES = 1 << 20


class WeightManager:
    """In the place of astraflow.core.weight_manager.WeightManager.

    Every rank writes the shards that it holds into the agent's memory, without a gather. Three cases gather on all ranks, as AstraFlow does, and
    global rank 0 writes: adapters, Megatron (megatron_hf_meta), and ranks that do not share rank 0's node.

    Global rank 0 starts an agent for sender_config.http_bind_port, and ends it at ``shutdown`` or exit; $WSYNC_AGENT_OPTIONS has further
    options for it. Or $WSYNC_AGENT names an agent that runs already, for mounts too: it needs ``--astraflow MODEL=HOST:PORT`` with that
    port, and $WSYNC_MODEL is MODEL (default "actor"). Beyond the constructor's strategies nothing of the configuration is used but the port and log_file."""

    def __init__(self, config: Any):
        self.config = config
        self._port = int(config.sender_config.http_bind_port)
        self._pub: Optional[Publisher] = None
        self._agent: Optional[_Agent] = None
        self._layout: list[tuple] = []
        self._file: Optional[str] = None
        self._named: dict[str, Any] = {}
        self._initialized = self._sharded = False
        self._version: Optional[int] = None
        self._delta_metrics: dict[str, float] = {}

    def initialize(self, named_params: Iterable[tuple], local_rank: int, global_rank: int, lora_config: Optional[dict] = None,
                   megatron_metadata: Optional[dict] = None, megatron_hf_meta: Optional[list] = None, dp_replicate_rank: int = 0) -> None:
        """Collective: all ranks call it. named_params is read for names, shapes and dtypes only."""
        if megatron_metadata is not None and megatron_hf_meta is None:
            raise NotImplementedError("megatron_metadata has raw shards of tensor parallelism: pass megatron_hf_meta and export_hf_named_params()")
        if megatron_hf_meta is not None:
            self._layout = [(name, dtype, shape) for name, (shape, dtype) in megatron_hf_meta]
        else:
            self._layout = [(name, p.dtype, tuple(p.shape)) for name, p in named_params]
        self._file = ADAPTER_FILE if lora_config is not None else None
        self._rank = global_rank
        address = self._address()
        ranks = _ranks.all_gather((dp_replicate_rank, _ranks.on_node_of_rank_0()))
        members = [r for r, (replica, _) in enumerate(ranks) if replica == 0]
        self._sharded = lora_config is None and megatron_hf_meta is None and all(here for replica, here in ranks if replica == 0)
        of_one: dict[str, Any] = {"agent": address, "start_agent": False, "new_run": True, "timeout": RANKS_SECONDS}
        if self._sharded and dp_replicate_rank == 0:
            source: Source = Tensors(lambda: self._named)
            self._pub = Publisher(_model(), source, rank=members.index(global_rank) if len(ranks) > 1 else 0, world_size=len(members), **of_one)
        elif not self._sharded and global_rank == 0:
            source = _Adapter(lora_config) if lora_config is not None else Tensors({})
            self._pub = Publisher(_model(), source, rank=0, world_size=1, **of_one)
        self._initialized = True
        log.info("rank %d: %s, agent %s", global_rank, "writes its shards" if self._sharded else "all ranks gather, rank 0 writes", address)

    def _address(self) -> str:
        """Of the agent, from rank 0, which starts it."""
        told: list[Any] = [None, None]
        if self._rank == 0:
            try:
                told[0] = self._start()
            except Exception as e:  # noqa: BLE001  # the others wait
                told[1] = e if isinstance(e, Error) else Error(getattr(e, "errno", None) or errno.EINVAL, str(e))
        address, error = _ranks.broadcast(told)
        if error is not None:
            raise error
        return address

    def _start(self) -> str:
        given = os.environ.get("WSYNC_AGENT")
        if given:
            try:
                _ask(self._port, "/get_version")
            except (OSError, http.client.HTTPException, ValueError):
                raise Error(errno.ECONNREFUSED, f"the agent at {given} ($WSYNC_AGENT) has no listener for AstraFlow's receivers at port {self._port}: "
                                                f"start it with --astraflow {_model()}=0.0.0.0:{self._port}, or unset WSYNC_AGENT") from None
            return _agents.ensure(given)
        self._agent = _Agent(self._port, "delta" in self.config.strategies, self.config.sender_config.log_file)
        return self._agent.address

    def offload(self, named_params: Iterable[tuple], version: int, rank: int, world_size: int) -> dict[str, float]:
        """Collective. When it returns, the weights may change; on rank 0 the version is served, too. Returns rank 0's times."""
        if not self._initialized:
            raise RuntimeError("WeightManager.initialize() was not called, or shutdown() was")
        start = time.perf_counter()
        if not self._sharded:
            whole = _gathered(named_params)
            if self._pub is None:
                for _ in whole:
                    pass
            else:
                self._pub.offload_stream(version, self._layout, whole, self._file)
        else:
            self._named = {name: detached(p) for name, p in named_params}  # on all ranks, since iterating may communicate
            try:
                if self._pub is not None:
                    self._pub.offload(version)
            finally:
                self._named = {}
        copied = time.perf_counter()
        if rank != 0:
            return {}
        self._pub.wait_published(version, RANKS_SECONDS)  # type: ignore[union-attr]  # rank 0 always has one
        self._version = version
        done = time.perf_counter()
        times = {"guard": 0.0, "copy": copied - start, "barrier": 0.0, "notify": done - copied, "total": done - start}
        metrics = {f"weight_transfer/offload_{name}_time": seconds for name, seconds in times.items()} | self._delta_metrics
        self._delta_metrics = {}
        return metrics

    def wait_delta_ready(self, timeout: float = 60.0) -> None:
        """Waits until the delta to the last version is made, or it is certain that there will be none. Raises nothing: receivers then take
        the whole version."""
        if self._pub is None or self._version is None:
            return
        try:
            if self._pub.wait_delta(self._version, timeout):
                can = _ask(self._port, "/get_capabilities")
                if can.get("delta_version") == self._version:
                    self._delta_metrics = {"weight_transfer/delta_sparsity": float(can["delta_sparsity"]),
                                           "weight_transfer/delta_size_mb": can["delta_size_bytes"] / (1 << 20),
                                           "weight_transfer/delta_num_nonzero": float(can["delta_num_nonzero"])}
        except (OSError, http.client.HTTPException, ValueError, TypeError, KeyError) as e:
            log.warning("the delta to version %d: %s", self._version, e)

    def get_sender_endpoint(self) -> str:
        """"HOST:PORT", as AstraFlow's services are told it. Only global rank 0's is answered."""
        return f"{socket.gethostname()}:{self._port}"

    def shutdown(self) -> None:
        """Closes the publisher, and ends the agent if it was started here."""
        pub, self._pub = self._pub, None
        agent, self._agent = self._agent, None
        self._initialized = False
        try:
            if pub is not None:
                pub.close()
        finally:
            if agent is not None:
                agent.end()


class _Adapter(Source):
    """The files of an adapter's version beside its tensors."""

    def __init__(self, lora_config: Mapping[str, Any]) -> None:
        modules = lora_config.get("target_modules")
        text = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "inference_mode": True, "base_model_name_or_path": None, **lora_config}
        text["target_modules"] = modules if isinstance(modules, str) or modules is None else sorted(modules)
        self._config = json.dumps(text, indent=2, sort_keys=True).encode()

    def files(self) -> dict[str, bytes]:
        return {"adapter_config.json": self._config}


def _gathered(named_params: Iterable[tuple]) -> Iterator[tuple]:
    for name, p in named_params:
        tensor = detached(p)
        yield name, tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _model() -> str:
    return os.environ.get("WSYNC_MODEL") or "actor"


def _folder() -> str:
    """Where agents that are started here have their sockets."""
    folder = os.path.dirname(_agents._default_socket())
    if os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK):  # of a system's agent that this user may use
        folder = f"/tmp/wsync-{os.getuid()}"
    _agents._make_folder(folder)
    return folder


def _ask(port: int, route: str) -> dict[str, Any]:
    """GET of a route of this node's listener. ValueError: it is not one."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        c.request("GET", route)
        r = c.getresponse()
        reply = json.loads(r.read(MAX_REPLY_BYTES))
        if r.status != 200 or not isinstance(reply, dict) or "version" not in reply:
            raise ValueError(f"port {port} answered {r.status} to {route}: it is no listener for AstraFlow's receivers")
        return reply
    finally:
        c.close()


class _Agent:
    """The agent of one WeightManager, and a lock that the kernel releases when this process ends: whoever has it may end an agent that an
    earlier trainer, which was killed, has left behind."""

    def __init__(self, port: int, makes_deltas: bool, log_file: Optional[str]):
        path = os.path.join(_folder(), f"astraflow-{port}.sock")
        self.address = f"unix:{path}"
        self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._process: Optional[subprocess.Popen] = None
        self._owner = os.getpid()
        try:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Error(errno.EADDRINUSE, f"another trainer of this account on this node serves AstraFlow's receivers at port {port}: "
                                              "set WEIGHT_TRANSFER_HTTP_PORT to another one") from None
            _end_left_behind(path)
            log_file = log_file or f"{path}.log"
            os.makedirs(os.path.dirname(os.path.abspath(log_file)), exist_ok=True)
            command = [COMMAND, "agent", "--listen", "none", "--socket", path, "--astraflow", f"{_model()}=0.0.0.0:{port}",
                       *([] if makes_deltas else ["--delta-cache", "0"]), *shlex.split(os.environ.get("WSYNC_AGENT_OPTIONS", ""))]
            with open(log_file, "ab") as out:
                self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd="/")
            self._wait_for(path, log_file)
        except BaseException:
            self.end()
            raise
        _running.add(self)

    def _wait_for(self, path: str, log_file: str) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while _agents._agent_pid(path) is None:
            if self._process.poll() is not None:
                raise Error(errno.ECHILD, f"the agent for AstraFlow's receivers ended at once; the end of {log_file}:\n{tail(log_file)}")
            if time.monotonic() > deadline:
                raise Timeout(errno.ETIMEDOUT, f"the agent for AstraFlow's receivers does not answer; the end of {log_file}:\n{tail(log_file)}")
            time.sleep(POLL_SECONDS)

    def end(self) -> None:
        if os.getpid() != self._owner:  # a forked child exits
            return
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        lock, self._lock = self._lock, -1
        if lock >= 0:
            fcntl.flock(lock, fcntl.LOCK_UN)  # also where a forked child has it, too
            os.close(lock)
        _running.discard(self)

    def leave(self) -> None:
        """In a forked child: it must not hold the lock longer than the trainer."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def _end_left_behind(path: str) -> None:
    pid = _agents._agent_pid(path)
    if not pid:
        return
    log.warning("ending the agent %d that an earlier trainer has left at %s", pid, path)
    with contextlib.suppress(ProcessLookupError):
        agent = os.pidfd_open(pid)
        try:
            if _agents._agent_pid(path) == pid:  # it is still the same process
                signal.pidfd_send_signal(agent, signal.SIGTERM)
        finally:
            os.close(agent)
    deadline = time.monotonic() + END_SECONDS
    while _agents._agent_pid(path) == pid:
        if time.monotonic() > deadline:
            raise Timeout(errno.ETIMEDOUT, f"the agent {pid} that an earlier trainer has left at {path} does not end: kill it")
        time.sleep(POLL_SECONDS)


_running: set[_Agent] = set()  # also those whose manager is forgotten


@atexit.register
def _end_all() -> None:
    for agent in list(_running):
        agent.end()


def _leave_all() -> None:
    for agent in _running:
        agent.leave()
    _running.clear()


os.register_at_fork(after_in_child=_leave_all)


# --- AstraFlow's services: bodies are pickled dicts, and nothing that is read is ever built or called ---


class _Plain(pickle._Unpickler):  # type: ignore[name-defined]
    """Reads dicts, lists, tuples, texts, numbers; refuses whatever names a class or a function. The one in Python, since that in C makes its
    memo as large as a reply says, gigabytes for a few bytes. Nor are there bytearrays, which are as large as they say, nor tuples that are
    hashed: in a few hundred bytes they hold one another so often that it never ends."""

    dispatch = dict(pickle._Unpickler.dispatch)  # type: ignore[attr-defined]

    def _refuse(self) -> None:
        raise pickle.UnpicklingError("it has values that are not plain")

    def _load_dict(self, opcode: bytes) -> None:
        keys = self.stack[-2:-1] if opcode == pickle.SETITEM else self.stack[::2]
        if any(isinstance(key, tuple) for key in keys):
            raise pickle.UnpicklingError("it has a tuple as a key")
        pickle._Unpickler.dispatch[opcode[0]](self)  # type: ignore[attr-defined]

    for _opcode in (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET, pickle.BYTEARRAY8):
        dispatch[_opcode[0]] = _refuse
    for _opcode in (pickle.DICT, pickle.SETITEM, pickle.SETITEMS):
        dispatch[_opcode[0]] = lambda self, opcode=_opcode: self._load_dict(opcode)

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and only plain values are read")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to something outside of it")


def _post(url: str, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """Error if it was not answered with 200 and {"ok": true}."""
    data = pickle.dumps({k: v for k, v in body.items() if v is not None}, protocol=2)
    try:
        request = urllib.request.Request(url, data, {"Content-Type": "application/octet-stream"})
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout) as r:
                status, text = r.status, r.read(MAX_REPLY_BYTES + 1)
        except urllib.error.HTTPError as e:
            with e:
                status, text = e.code, e.read(MAX_REPLY_BYTES + 1)
    except ValueError as e:
        raise Error(errno.EINVAL, f"{url} is no address of a service: {e}") from None
    except TimeoutError:
        raise Timeout(errno.ETIMEDOUT, f"{url} has not answered within {timeout:g} s") from None
    except (OSError, http.client.HTTPException) as e:
        if isinstance(getattr(e, "reason", None), TimeoutError):
            raise Timeout(errno.ETIMEDOUT, f"{url} has not answered within {timeout:g} s") from None
        raise Error(errno.EHOSTUNREACH, f"{url} cannot be reached: {e}") from None
    try:
        if len(text) > MAX_REPLY_BYTES:
            raise pickle.UnpicklingError(f"it has more than {MAX_REPLY_BYTES} bytes")
        reply = _Plain(io.BytesIO(text)).load() if status == 200 or text[:1] == b"\x80" else {"error": text[:300].decode("utf-8", "replace")}
    except Exception as e:  # noqa: BLE001  # whatever a damaged pickle raises
        raise Error(errno.EPROTO, f"{url} answered {status}, with a reply that cannot be read: {str(e)[:300]}") from None
    result = reply.get("result") if isinstance(reply, dict) else None
    if status != 200 or not isinstance(reply, dict) or reply.get("ok") is not True or (isinstance(result, dict) and result.get("ok") is False):
        said = [d.get(k) for d in (reply, result) if isinstance(d, dict) for k in ("error", "reason")]
        why = next((text for text in said if isinstance(text, str) and text), "not ok")  # other values may have no end when they are printed
        raise Error(errno.EREMOTEIO, f"{url} answered {status}: {why[:300]}")
    return reply


def ready(service_url: str, sender_endpoint: str, *, model_id: Optional[str] = None, train_batch_size: Optional[int] = None,
          recovered_version: Optional[int] = None, timeout: float = 1800.0) -> dict[str, Any]:
    """Tells the Dataflow service that a model's trainer is ready, and where its versions are. With recovered_version its RaaS load that
    one before this returns. wsync.Error (EREMOTEIO refused, EHOSTUNREACH, EPROTO), wsync.Timeout."""
    return _post(service_url.rstrip("/") + "/ready", {"train_batch_size": train_batch_size, "model_id": model_id, "sender_endpoint": sender_endpoint,
                                                      "recovered_version": recovered_version}, timeout)


def notify_version(service_url: str, version: int, *, model_id: Optional[str] = None, run_eval: bool = False, timeout: Optional[float] = None) -> dict[str, Any]:
    """Tells the Dataflow service that a model has a new version. Returns its reply when all models of the service have reported the same
    one; with run_eval after the evaluation: {"ok", "eval_results"}. timeout: default 1800 s, with run_eval 43200 s. Errors as of ready."""
    return _post(service_url.rstrip("/") + "/notify_version", {"version": version, "run_eval": run_eval, "model_id": model_id},
                 (43200.0 if run_eval else 1800.0) if timeout is None else timeout)


def notify_services(service_urls: Iterable[str], models: Mapping[str, tuple[int, str]], timeout: float = 600.0) -> dict[tuple[str, str], Any]:
    """Tells inference services (RaaS) without Dataflow: models is {model_id: (version, sender_endpoint)}. Services load at the same time, each
    its models one after another. Returns for each (url, model_id) what the service answered, or the wsync.Error. What a service has it
    does not load again, so one that came late is told the newest versions by the same call."""
    urls = list(dict.fromkeys(service_urls))

    def tell(url: str) -> dict[tuple[str, str], Any]:
        replies: dict[tuple[str, str], Any] = {}
        for model_id, (version, sender) in models.items():
            try:
                reply = _post(url.rstrip("/") + "/notify_version", {"model_id": model_id, "version": version, "sender_endpoint": sender}, timeout)
                replies[url, model_id] = reply.get("result", reply)
            except Error as e:
                replies[url, model_id] = e
        return replies

    with concurrent.futures.ThreadPoolExecutor(max(1, min(64, len(urls)))) as threads:
        return {key: reply for replies in threads.map(tell, urls) for key, reply in replies.items()}
