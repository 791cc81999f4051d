"""wsync.astraflow: WeightManager called as AstraFlow's trainer calls it, pulled from by a receiver like AstraFlow's; the services' calls."""
import dataclasses
import http.server
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import ml_dtypes
import numpy
import pytest
import world
import wsync
from wsync import astraflow

try:
    from fixtures.astraflow_receiver import Receiver, call
except ImportError as e:
    pytest.skip(f"no receiver: {e}", allow_module_level=True)


@dataclasses.dataclass
class SenderConfig:
    """What AstraFlow passes: trainer_global_rank, engine_configs and others, of which only these are used."""

    http_bind_port: int
    log_file: str
    trainer_global_rank: int = 0
    trainer_world_size: int = 1


@dataclasses.dataclass
class Config:
    sender_config: SenderConfig
    strategies: list
    shm_prefix: str = "astraflow_buffer_"


@pytest.fixture
def manager(monkeypatch):
    """manager(strategies) makes a WeightManager with a port, sockets and a state of its own."""
    folder, made = world.unique("sockets"), []
    os.makedirs(folder)
    monkeypatch.setattr(astraflow, "_folder", lambda: folder)
    monkeypatch.setenv("WSYNC_AGENT_OPTIONS", f"--state {world.TESTDIR}/state/")

    def make(strategies=("full", "delta"), port=None):
        port = port or world.free_port()
        made.append(astraflow.WeightManager(Config(SenderConfig(port, f"{folder}/logs/sender.log"), list(strategies))))
        made[-1].port, made[-1].url = port, f"http://127.0.0.1:{port}"
        return made[-1]

    yield make
    for m in made:
        m.shutdown()


def parameters(step=0):
    """In AstraFlow's order and with a tied output layer that is there twice; a hundredth of `layers.0` differs from step to step."""
    random = numpy.random.default_rng(1)
    out = {"model.embed_tokens.weight": random.integers(0, 2**16, (64, 32), numpy.uint16).view(ml_dtypes.bfloat16),
           "layers.0.weight": random.integers(0, 2**16, (300, 100), numpy.uint16).view(ml_dtypes.bfloat16), "norm.weight": numpy.ones(32, numpy.float32)}
    for s in range(1, step + 1):
        at = numpy.random.default_rng(s).choice(30000, 300, replace=False)
        out["layers.0.weight"].view(numpy.uint16).reshape(-1)[at] ^= 1
    return {**out, "lm_head.weight": out["model.embed_tokens.weight"]}


def same(receiver, params):
    got = receiver.tensors()
    assert set(got) == set(params)
    return all(got[name][2] == p.tobytes() and got[name][1] == list(p.shape) for name, p in params.items())


def receiver_of(m):
    r = Receiver(m.url, world.free_port())
    world.at_end(r.close)
    return r


def test_a_trainer(manager):
    """initialize, then offload, wait_delta_ready, notify: a full transfer, then deltas, bit for bit; the metrics' keys; shutdown ends it"""
    m = manager()
    with pytest.raises(RuntimeError, match="initialize"):
        m.offload(parameters().items(), 1, 0, 1)
    assert m.initialize(parameters().items(), 0, 0) is None and m.wait_delta_ready() is None
    assert m.get_sender_endpoint().rpartition(":")[2] == str(m.port) and m.get_sender_endpoint().rpartition(":")[0]
    assert call(m.url + "/get_version") == (200, {"version": 0})
    r = receiver_of(m)
    for step in (1, 2, 3):
        metrics = m.offload(iter(parameters(step).items()), version=step, rank=0, world_size=1)
        want = {f"weight_transfer/offload_{t}_time" for t in ("guard", "copy", "barrier", "notify", "total")}
        if step > 2:  # of the delta before
            want |= {f"weight_transfer/delta_{t}" for t in ("sparsity", "size_mb", "num_nonzero")}
            assert metrics["weight_transfer/delta_num_nonzero"] == 300 and metrics["weight_transfer/delta_size_mb"] < 0.01
        assert set(metrics) == want and all(isinstance(v, float) and v >= 0 for v in metrics.values())
        assert call(m.url + "/get_version") == (200, {"version": step})  # before anything else is called
        assert m.wait_delta_ready(timeout=30) is None
        if step == 1:
            r.register()
        mode, _ = r.notified(step)
        assert mode == ("full" if step == 1 else "delta") and same(r, parameters(step)), (step, mode)
    late = receiver_of(m)  # a RaaS that comes late
    late.register()
    assert late.notified(3)[0] == "full" and same(late, parameters(3))
    child = os.fork()
    if child == 0:
        astraflow._end_all()  # what its exit does
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and call(m.url + "/get_version") == (200, {"version": 3})
    assert m.shutdown() is None and m.shutdown() is None
    with pytest.raises(OSError):
        call(m.url + "/get_version")


def test_full_only(manager):
    """without the strategy delta none is offered, and wait_delta_ready returns"""
    m = manager(["full"])
    m.initialize(parameters().items(), 0, 0)
    r = receiver_of(m)
    for step in (1, 2):
        m.offload(parameters(step).items(), step, 0, 1)
        m.wait_delta_ready(timeout=5)
        assert call(m.url + "/get_capabilities")[1]["strategies"] == ["full"]
        if step == 1:
            r.register()
        assert r.notified(step)[0] == "full" and same(r, parameters(step))


def test_hf_export(manager):
    """megatron_hf_meta: tensors are generated one after another into one memory, and copied before the next one is made"""
    m, memory = manager(), numpy.empty(1 << 20, numpy.uint8)
    with pytest.raises(NotImplementedError, match="megatron_hf_meta"):
        m.initialize(iter(()), 0, 0, megatron_metadata={"shard_specs": []})
    meta = [(name, (list(p.shape), str(p.dtype))) for name, p in parameters().items()]
    m.initialize(iter(()), 0, 0, megatron_hf_meta=meta)

    def export(step):
        for name, p in parameters(step).items():
            memory[:p.nbytes] = numpy.ascontiguousarray(p).reshape(-1).view(numpy.uint8)
            yield name, memory[:p.nbytes].view(p.dtype).reshape(p.shape)

    r = receiver_of(m)
    for step in (1, 2):
        m.offload(export(step), step, 0, 1)
        m.wait_delta_ready()
        if step == 1:
            r.register()
        assert r.notified(step)[0] == ("full" if step == 1 else "delta") and same(r, parameters(step))


def test_adapter(manager):
    """lora_config: receivers are told it, and take the adapter's tensors"""
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    params = {name.format("A"): numpy.arange(32, dtype=numpy.float32).reshape(4, 8), name.format("B"): numpy.ones((8, 4), numpy.float32)}
    m, lora = manager(), {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    m.initialize(params.items(), 0, 0, lora_config=lora)
    m.offload(params.items(), 1, 0, 1)
    m.wait_delta_ready()
    assert call(m.url + "/get_buffer_info")[1]["lora_config"] == lora
    r = receiver_of(m)
    r.register()
    assert r.notified(1)[0] == "full" and same(r, params)


def test_another_trainer(manager):
    """a port that another trainer's manager has is refused; an agent that a killed trainer left is ended, and its receivers come back"""
    port = world.free_port()
    code = """
import sys, threading
sys.path[:0] = sys.argv[3:]
import numpy
from python.test_astraflow import Config, SenderConfig, astraflow, parameters
astraflow._folder = lambda: sys.argv[2]
m = astraflow.WeightManager(Config(SenderConfig(int(sys.argv[1]), sys.argv[2] + "/log"), ["full", "delta"]))
m.initialize(parameters().items(), 0, 0)
m.offload(parameters(1).items(), 1, 0, 1)
print("served", flush=True)
threading.Event().wait()
"""
    folder = astraflow._folder()
    first = subprocess.Popen([sys.executable, "-c", code, str(port), folder, *sys.path], stdout=subprocess.PIPE, text=True)
    world.at_end(first.kill)
    assert first.stdout.readline() == "served\n"
    m = manager(port=port)
    with pytest.raises(wsync.Error, match="another trainer"):
        m.initialize(parameters().items(), 0, 0)
    r = receiver_of(m)
    r.register()
    assert r.notified(1)[0] == "full" and same(r, parameters(1))
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert call(m.url + "/get_version") == (200, {"version": 1})  # it still serves
    m.initialize(parameters().items(), 0, 0)
    m.offload(parameters(2).items(), 2, 0, 1)
    assert r.notified(2)[0] == "full" and same(r, parameters(2))  # without another registration


def test_operators_agent(manager, monkeypatch):
    """$WSYNC_AGENT: an agent that runs already, for mounts too, under $WSYNC_MODEL; one without the listener is refused; it is not ended"""
    port = world.free_port()
    agent = world.Agent("--astraflow", f"critic=127.0.0.1:{port}", "--state", world.TESTDIR + "/state/")
    monkeypatch.setenv("WSYNC_AGENT", f"unix:{agent.sock}")
    monkeypatch.setenv("WSYNC_MODEL", "critic")
    with pytest.raises(wsync.Error, match="--astraflow critic="):
        manager().initialize(parameters().items(), 0, 0)
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(404)
            self.end_headers()
            self.wfile.write(b'{"version": "none", "error": "no such route"}')

        def log_message(self, *_):
            pass

    other = http.server.HTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    world.at_end(other.server_close)
    world.at_end(other.shutdown)
    with pytest.raises(wsync.Error, match="--astraflow critic="):
        manager(port=other.server_port).initialize(parameters().items(), 0, 0)
    for start in (1, 2):  # a trainer that begins at version 1 again
        m = manager(port=port)
        m.initialize(parameters().items(), 0, 0)
        m.offload(parameters(start).items(), 1, 0, 1)
        m.shutdown()
        assert call(m.url + "/get_version") == (200, {"version": 1})
        assert [v["name"] for v in agent.get("/v1/models")["models"]] == ["critic"]
        r = receiver_of(m)
        r.register()
        assert r.notified(1)[0] == "full" and same(r, parameters(start))


class Service:
    """Answers POSTs with `answer(path, dict)`: a dict that it pickles, or bytes; .heard has the calls."""

    def __init__(self, answer=lambda path, body: {"ok": True}, status=200):
        self.heard, service = [], self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = pickle.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.headers["Content-Type"] == "application/octet-stream"
                service.heard.append((self.path, body))
                said = answer(self.path, body)
                said = said if isinstance(said, bytes) else pickle.dumps(said)
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        world.at_end(server.server_close)
        world.at_end(server.shutdown)
        self.url = f"http://127.0.0.1:{server.server_port}"


def test_dataflow():
    """ready and notify_version: what is sent, what is left out, what comes back"""
    s = Service(lambda path, body: {"ok": True, "eval_results": {"reward": 0.5}} if "run_eval" in body else {"ok": True})
    assert astraflow.ready(s.url, "a:1") == {"ok": True}
    astraflow.ready(s.url + "/", "a:1", model_id="m0", train_batch_size=8, recovered_version=7)
    assert astraflow.notify_version(s.url, 3, model_id="m0", run_eval=True)["eval_results"] == {"reward": 0.5}
    astraflow.notify_version(s.url, 4)
    assert s.heard == [("/ready", {"sender_endpoint": "a:1"}),
                       ("/ready", {"sender_endpoint": "a:1", "model_id": "m0", "train_batch_size": 8, "recovered_version": 7}),
                       ("/notify_version", {"version": 3, "run_eval": True, "model_id": "m0"}), ("/notify_version", {"version": 4, "run_eval": False})]
    for answer, status, says in ((lambda *_: {"ok": False, "error": "no model"}, 500, "no model"), (lambda *_: b"gone", 404, "gone"),
                                 (lambda *_: {"ok": True, "result": {"ok": False, "reason": "no sender"}}, 200, "no sender"), (lambda *_: {"ok": 1}, 200, "not ok")):
        with pytest.raises(wsync.Error, match=says):
            astraflow.notify_version(Service(answer, status).url, 1)
    with pytest.raises(wsync.Error, match="cannot be reached"):
        astraflow.ready(f"http://127.0.0.1:{world.free_port()}", "a:1")
    stop = threading.Event()
    with pytest.raises(wsync.Timeout):
        astraflow.notify_version(Service(lambda *_: stop.wait(30) and {}).url, 1, timeout=0.2)
    stop.set()


class Evil:
    def __reduce__(self):
        return os.mkdir, (world.TESTDIR + "/executed",)


def test_pickles_are_not_executed():
    """a reply that would call something is refused, and nothing is called; nor is one read that has no end, or is too long"""
    for said in (pickle.dumps({"ok": True, "x": Evil()}), pickle.dumps(Evil(), protocol=0), pickle.dumps({"ok": True, "x": numpy.ones(3)}), b"\x80\x04", b"",
                 pickle.dumps({"ok": True, "x": "y" * (1 << 20)}), b"\x80\x04cos\nsystem\n", pickle.dumps([1]),
                 b"\x80\x04}r\xff\xff\xff\x7f.", b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f."):
        with pytest.raises(wsync.Error):
            astraflow.ready(Service(lambda *_: said).url, "a:1")
    assert not os.path.exists(world.TESTDIR + "/executed")


def test_services():
    """several models to several services: each has its own result; one that comes late is told the newest"""
    def loads(path, body):
        news = body["version"] > had.get(body["model_id"], 0)
        had[body["model_id"]] = max(body["version"], had.get(body["model_id"], 0))
        return {"ok": True, "result": {"ok": True, "model_id": body["model_id"], **({"version": body["version"]} if news else {"pulled": False})}}

    had = {}
    good, bad = Service(loads), Service(lambda *_: {"ok": True, "result": {"ok": False, "model_id": "m1", "reason": "no engine"}})
    models = {"m0": (3, "a:1"), "m1": (5, "a:2")}
    replies = astraflow.notify_services([good.url, bad.url, good.url], models)
    assert set(replies) == {(url, m) for url in (good.url, bad.url) for m in models}
    assert replies[good.url, "m1"]["version"] == 5 and "no engine" in str(replies[bad.url, "m0"])
    assert good.heard == [("/notify_version", {"model_id": m, "version": v, "sender_endpoint": s}) for m, (v, s) in models.items()]
    assert astraflow.notify_services([good.url], models)[good.url, "m0"] == {"ok": True, "model_id": "m0", "pulled": False}
    assert astraflow.notify_services([], models) == {}


def test_forgotten(manager):
    """a manager that nobody holds any more at the trainer's exit: its agent is ended all the same"""
    code = """
import gc, sys
sys.path[:0] = sys.argv[3:]
from python.test_astraflow import Config, SenderConfig, astraflow, parameters
astraflow._folder = lambda: sys.argv[2]
def train():
    m = astraflow.WeightManager(Config(SenderConfig(int(sys.argv[1]), sys.argv[2] + "/log"), ["full"]))
    m.initialize(parameters().items(), 0, 0)
    print(m._agent._process.pid, flush=True)
train()
gc.collect()
"""
    port = world.free_port()
    said = subprocess.run([sys.executable, "-c", code, str(port), astraflow._folder(), *sys.path], stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    with pytest.raises(OSError):
        call(f"http://127.0.0.1:{port}/get_version")
    assert not os.path.exists(f"/proc/{said.stdout.strip()}")


def test_forked_workers(manager):
    """a worker that the trainer has forked, and that outlives it or its manager, does not hold the port's lock"""
    m = manager()
    m.initialize(parameters().items(), 0, 0)
    (end_read, end_write), (begun_read, begun_write) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end_write)
        os.write(begun_write, b".")
        os.read(end_read, 1)
        os._exit(0)
    try:
        os.read(begun_read, 1)
        lock = os.fstat(m._agent._lock)
        held = [os.stat(f"/proc/{child}/fd/{n}") for n in os.listdir(f"/proc/{child}/fd")]
        assert lock.st_ino not in [s.st_ino for s in held if s.st_dev == lock.st_dev]
        m.shutdown()
        again = manager(port=m.port)
        again.initialize(parameters().items(), 0, 0)
    finally:
        os.close(end_write)
        os.waitpid(child, 0)
        for fd in (end_read, begun_read, begun_write):
            os.close(fd)


def test_log_in_this_folder(manager, monkeypatch):
    """a log_file without a folder is in the current one"""
    m = manager()
    monkeypatch.chdir(world.TESTDIR)
    m.config.sender_config.log_file = "sender.log"
    m.initialize(parameters().items(), 0, 0)
    assert os.path.exists(world.TESTDIR + "/sender.log")


def test_hostile_replies():
    """replies whose printing, hashing or reading would take forever, or more memory than they have bytes, and those that break off: an Error each"""
    deep = b"\x80\x04}(\x8c\x05error" + b"]" * 50000 + b"a" * 49999 + b"u."
    many = b"\x80\x04}(\x8c\x05error]" + b"".join(b"\x940](h" + bytes([i]) + b"h" + bytes([i]) + b"e" for i in range(60)) + b"u."
    keys = b"\x80\x04}(\x8c\x02ok\x88)" + b"".join(b"\x94h" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(60)) + b"Nu."
    items = b"\x80\x04}(\x8c\x02ok\x88\x8c\x01x\x8f()" + b"".join(b"\x94h" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(60)) + b"\x90u."
    big = pickle.dumps({"ok": False, "error": 1 << 40000})
    room = b"\x80\x05}(\x8c\x02ok\x88\x8c\x01x\x96" + (1 << 30).to_bytes(8, "little") + b"u."
    for said in (deep, many, keys, items, big, room):
        s = Service(lambda *_: said)
        code = """import re, sys, wsync.astraflow as a  # getrusage would name the memory of the tests that started this, too
try:
    a.ready(sys.argv[1], "a:1", timeout=20)
except a.Error as e:
    print(len(str(e)) < 1000 and int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) < 500000)
"""
        run = subprocess.run(["prlimit", f"--as={2 << 30}", sys.executable, "-c", code, s.url], capture_output=True, text=True, timeout=60,
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        assert run.stdout == "True\n", (said[:30], run)


def test_broken_off():
    """a refusal whose text never comes, a connection that is reset in it, an address that is none: an Error each, and the others are told"""
    def half(reset):
        listener = socket.create_server(("127.0.0.1", 0))
        world.at_end(listener.close)

        def serve():
            c, _ = listener.accept()
            c.recv(65536)
            c.sendall(b"HTTP/1.0 500 No\r\nContent-Length: 100\r\n\r\nfull")
            if reset:
                c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                time.sleep(0.3)
                c.close()
            kept.append(c)

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    kept = []
    good, urls = Service(), [half(False), half(True), "nowhere", "http://a b:1"]
    replies = astraflow.notify_services([*urls, good.url], {"m": (1, "a:1")}, timeout=2)
    assert [type(replies[url, "m"]) for url in urls] == [wsync.Timeout, wsync.Error, wsync.Error, wsync.Error], replies
    assert replies[good.url, "m"] == {"ok": True}


def test_start_fails(manager, monkeypatch):
    """whatever rank 0 fails of before it has an agent, the other ranks are told, who wait for the address"""
    told = []
    monkeypatch.setattr(astraflow._ranks, "broadcast", lambda values: told.append(values) or values)
    m = manager()
    m.config.strategies = None
    with pytest.raises(wsync.Error):
        m.initialize(parameters().items(), 0, 0)
    assert [type(error) for _, error in told] == [wsync.Error]


def test_agent_fails(manager, monkeypatch):
    """an agent that ends at once: the error has the end of its log"""
    monkeypatch.setenv("WSYNC_AGENT_OPTIONS", "--no-such-option")
    with pytest.raises(wsync.Error, match="ended at once(.|\n)*no-such-option"):
        manager().initialize(parameters().items(), 0, 0)


def test_shutdown_during_a_call(manager):
    """another thread is in a call of the publisher: that is said, and the agent is ended all the same"""
    m = manager()
    m.initialize(parameters().items(), 0, 0)
    m.offload(parameters(1).items(), 1, 0, 1)

    def wait(pub=m._pub):
        with pytest.raises(wsync.Error):
            pub.wait_loaded(1, who=5, timeout=60)

    waiting = threading.Thread(target=wait)
    waiting.start()
    world.wait_for(m._pub._lock.locked, "the other thread's call")
    with pytest.raises(RuntimeError, match="another thread"):
        m.shutdown()
    with pytest.raises(OSError):
        call(m.url + "/get_version")
    waiting.join()
