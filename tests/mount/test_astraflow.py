# beside others
# sanitizers: thread
# timeout: 390, takes: 70
"""AstraFlow's receivers, served by the agent. The tests' own receiver, which trusts the sender as AstraFlow's does, registers, pulls,
stalls and dies; a transfer that the agent calls complete must be one version, bit for bit."""
import contextlib
import http.client
import http.server
import json
import os
import pickle
import random
import shutil
import socket
import struct
import sys
import threading
import time

from adapters import adapter, pairs
from world import *

try:
    from astraflow_receiver import Failed, Receiver, call
except ImportError:
    print("1..0 # SKIP pyzmq is not installed")
    sys.exit(0)

SHARDS = {"model-00001-of-00002.safetensors": ["a.weight", "nested/name", "model.layers.2.x"],
          "model-00002-of-00002.safetensors": ["b.weight", "model.layers.10.x"]}
HUGE = {f"layer.{i}.weight": ("BF16", [2048, 4096]) for i in range(4)} | {"tail": ("U8", [12345])}  # 64 MiB


class Flow(Agent):
    """An agent with a listener for AstraFlow's receivers, at .flow."""

    def __init__(self, *args, flow_port=None, model="", **kw):
        self.flow_port = flow_port or free_port()
        self.flow = f"http://127.0.0.1:{self.flow_port}"
        super().__init__("--astraflow", f"{model}127.0.0.1:{self.flow_port}", "--state", TESTDIR + "/state/", *args, **kw)
        wait_for(self.flows, "AstraFlow's listener")

    def flows(self):
        try:
            return call(self.flow + "/get_version")[0] == 200
        except OSError:
            return False

    def receiver(self, register=True, **kw):
        r = Receiver(self.flow, free_port(), **kw)
        at_end(r.close)
        if register:
            r.register()
        return r

    def receivers(self):
        return {r["instance"]: r for r in self.get("/v1/status")["astraflow"][0]["receivers"]}


def same(receiver, folder):
    files = [f for f in sorted(os.listdir(folder)) if f.endswith(".safetensors")]
    expected = {k: v for f in files for k, v in tensors_of(os.path.join(folder, f)).items()}
    assert receiver.tensors() == expected
    return True


def refusal(receiver, **changes):
    try:
        receiver.register(**changes)
    except Failed as e:
        return str(e)
    raise AssertionError(f"a registration with {changes} was taken")


class Service:
    """An inference service (RaaS) with a receiver: takes a pickled notification and answers when that has pulled."""

    def __init__(self, agent, protocol=4, **answer):
        self.agent, self.protocol, self.answer, self.heard = agent, protocol, answer, []
        self.url = serve_posts(self.answer_to)
        self.receiver = agent.receiver(register=False)

    def answer_to(self, path, body):
        status, reply = self.notified(path, pickle.loads(body))
        return status, pickle.dumps(reply, protocol=self.protocol)

    def notified(self, path, news):
        assert path == "/notify_version", path
        self.heard.append(news)
        if self.answer:
            return self.answer.get("status", 200), {k: v for k, v in self.answer.items() if k != "status"}
        if not self.receiver.version:
            self.receiver.register()
        mode, _ = self.receiver.notified(news["version"])
        return 200, {"ok": True, "result": {"ok": True, "model_id": news["model_id"], "version": news["version"], "pull_result":
                                            {"mode": mode, "shm_path": "/dev/shm/x", "tcp_time": 0.25, "pull_time": 1e300}}}


def serve_posts(answer):
    """The URL of a server that answers POSTs: answer(path, body) returns (status, bytes)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            status, reply = answer(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *args):
            pass

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    at_end(server.server_close)
    at_end(server.shutdown)
    return f"http://127.0.0.1:{server.server_port}"


def request_cut_off(receiver):
    with contextlib.suppress(OSError):
        receiver.request()


def test_reads():
    "the read-only routes: version, layout by offset and by torch's names, 404 for others; not on the main port"
    agent = Flow()
    assert call(agent.flow + "/get_version") == (200, {"version": 0})
    assert call(agent.flow + "/get_buffer_info")[0] == 503
    agent.publish("actor", 3, checkpoint(SMALL, files=SHARDS))
    assert call(agent.flow + "/get_version") == (200, {"version": 3})
    status, info = call(agent.flow + "/get_buffer_info")
    assert "lora_config" not in info, info
    total = sum(len(t[2]) for f in SHARDS for t in tensors_of(checkpoint(SMALL, files=SHARDS) + "/" + f).values())
    assert status == 200 and info["single_buffer_length"] == total, info
    meta = {n: (s, d) for n, (s, d) in info["tensors_meta"]}
    assert meta["a.weight"] == ([64, 32], "bfloat16") and meta["nested/name"] == ([5], "uint8"), meta
    assert {n for n, _ in info["tensors_meta"][:3]} == set(SHARDS["model-00001-of-00002.safetensors"])
    status, can = call(agent.flow + "/get_capabilities")
    assert status == 200 and "full" in can["strategies"] and can["version"] == 3, can
    for path, body in (("/nothing", None), ("/get_version", {}), ("/request_transfer", None), ("/v1/models", None)):
        assert call(agent.flow + path, body) == (404, {"error": "not found"}), path
    assert call(agent.url + "/get_buffer_info")[0] == 404  # only on the listener's port


def test_full():
    "a full transfer is the version, bit for bit, then the next one; from one file, from shards, over several ports"
    for files, n_ports in ((None, 1), (SHARDS, 1), (SHARDS, 3)):
        agent = Flow()
        one, two = (checkpoint(SMALL, seed=s, files=files) for s in (1, 2))
        agent.publish("actor", 1, one)
        r = agent.receiver(n_ports=n_ports)
        mode, reply = r.notified(1)
        assert mode == "full" and reply == {"ok": True, "version": 1, "mode": "full"}, reply
        assert same(r, one)
        wait_for(lambda: len(r.streams) == n_ports, f"each port to be through: {r.streams}")
        agent.publish("actor", 2, two)
        r.notified(2)
        assert same(r, two) and agent.receivers()[r.instance]["version"] == 2
        agent.end()
        os.unlink(f"{TESTDIR}/state/astraflow-127.0.0.1:{agent.flow_port}.json")


def test_many():
    "four receivers at once, of several megabytes, each in two streams"
    agent = Flow()
    folder = checkpoint(LARGE, seed=1)
    agent.publish("actor", 1, folder)
    receivers = [agent.receiver() for _ in range(4)]
    threads = [threading.Thread(target=r.notified, args=(1,)) for r in receivers]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for r in receivers:
        assert r.version == 1 and same(r, folder)
        assert len(r.streams) == 2 and sum(n for _, n in r.streams) == len(r.buffer), r.streams


def test_offloads_meanwhile():
    "while a trainer publishes versions in a row, each transfer reported as complete is exactly one version"
    agent = Flow("--slots", "2")
    folders = {v: checkpoint(LARGE, seed=v) for v in range(1, 4)}
    agent.publish("actor", 1, folders[1])
    receivers = [agent.receiver(pace=1 << 20, rest=0.002 * i) for i in range(3)]
    done = threading.Event()
    told = []

    def pull(r):
        while not done.is_set():
            try:
                reply = r.request()
            except OSError:
                continue
            if not reply["ok"]:
                assert "cut" in reply["error"], reply
                told.append(None)
                continue
            assert r.ok.get(timeout=30 * SLOW) == (0, 0)
            r.weights = bytearray(r.buffer)
            same(r, folders[(reply["version"] - 1) % 3 + 1])
            told.append(reply["version"])

    failures = []

    def guarded(r):
        try:
            pull(r)
        except BaseException as e:
            failures.append(e)
            raise

    threads = [threading.Thread(target=guarded, args=(r,)) for r in receivers]
    for t in threads:
        t.start()
    for v in range(2, 8 if SANITIZER else 14):
        start = time.monotonic()
        agent.publish("actor", v, folders[(v - 1) % 3 + 1])
        assert time.monotonic() - start < 15 * SLOW
    done.set()
    for t in threads:
        t.join()
    whole = [v for v in told if v]
    print(f"# {len(whole)} whole, of {len(set(whole))} versions; {len(told) - len(whole)} cut")
    assert not failures and len(set(whole)) > 1, failures
    assert all(r.ok.empty() for r in receivers)


def test_cut():
    "two offloads during one transfer cut it: ok is false, ZMQ is silent; the next transfer is complete"
    agent = Flow("--slots", "2")
    folders = {v: checkpoint(HUGE, seed=v) for v in (1, 2, 3)}
    agent.publish("actor", 1, folders[1])
    r = agent.receiver(pace=1 << 20)
    r.stuck.set()
    replies = []
    t = threading.Thread(target=lambda: replies.append(r.request()))
    t.start()
    wait_for(lambda: agent.receivers()[r.instance]["busy"] and r.n_connections == 2, "the transfer")
    agent.publish("actor", 2, folders[2])
    assert not replies
    start = time.monotonic()
    agent.publish("actor", 3, folders[3])
    assert time.monotonic() - start < 10 * SLOW
    t.join()
    assert not replies[0]["ok"] and "the trainer wants the memory" in replies[0]["error"], replies
    assert r.nothing_on_zmq()
    # the sockets still hold sent bytes: nothing new may follow them
    refused = r.request()
    assert not refused["ok"] and "not read to the end" in refused["error"], refused
    r.stuck.clear()
    r.notified(3)
    assert same(r, folders[3])


def test_stuck():
    "a receiver that does not read delays no other one, and is dropped after a while"
    agent = Flow("--astraflow-stall", "2")
    folder = checkpoint(HUGE, seed=1)
    agent.publish("actor", 1, folder)
    bad, mute, good = agent.receiver(), agent.receiver(acks=False), agent.receiver()
    bad.stuck.set()
    replies = {}
    threads = [threading.Thread(target=lambda x=x: replies.update({x: x.request()})) for x in (bad, mute)]
    for t in threads:
        t.start()
    wait_for(lambda: agent.receivers()[bad.instance]["busy"], "the transfer")
    good.notified(1)
    assert same(good, folder)
    for t in threads:
        t.join()
    assert not replies[bad]["ok"] and "in vain" in replies[bad]["error"], replies[bad]
    assert not replies[mute]["ok"] and "without an acknowledgement" in replies[mute]["error"], replies[mute]
    assert bad.nothing_on_zmq() and mute.nothing_on_zmq()
    assert agent.receivers()[bad.instance]["failures"] == 1
    bad.stuck.clear()
    bad.notified(1)
    assert same(bad, folder)


def test_dead():
    "for a receiver that has ended, one whose ZMQ socket has closed, and an unknown one ok is false, with the reason"
    agent = Flow()
    agent.publish("actor", 1, checkpoint(SMALL))
    gone, deaf = agent.receiver(), agent.receiver(zmq_answers=False)
    gone.hang_up()
    reply = gone.request()
    assert not reply["ok"] and "refused" in reply["error"], reply
    reply = deaf.request()
    assert not reply["ok"] and "ZMQ" in reply["error"], reply
    stranger = agent.receiver(register=False)
    reply = stranger.request()
    assert not reply["ok"] and "not registered" in reply["error"] and reply["version"] == 1, reply


def test_newer_request():
    "a second request of a receiver ends its first one; so does a second registration"
    agent = Flow()
    folder = checkpoint(HUGE, seed=1)
    agent.publish("actor", 1, folder)
    r = agent.receiver(pace=1 << 20)
    r.stuck.set()
    replies = []
    first = threading.Thread(target=lambda: replies.append(r.request()))
    first.start()
    wait_for(lambda: r.n_connections == 2, "the first")
    second = threading.Thread(target=lambda: r.notified(1))
    second.start()
    first.join()
    assert not replies[0]["ok"] and "asked for another" in replies[0]["error"], replies
    r.stuck.clear()
    second.join()
    assert r.version == 1 and same(r, folder)
    r.stuck.set()
    third = threading.Thread(target=lambda: replies.append(r.request()))
    third.start()
    wait_for(lambda: r.n_connections == 6, "the third")
    again = Receiver(agent.flow, r.port)
    at_end(again.close)
    again.register()
    third.join()
    assert not replies[1]["ok"], replies
    again.notified(1)
    assert same(again, folder) and len(agent.receivers()) == 1


def test_restart():
    "an agent restarted after a kill knows its receivers; a damaged file is moved aside"
    agent = Flow()
    one, two = checkpoint(SMALL, seed=1), checkpoint(SMALL, seed=2)
    agent.publish("actor", 1, one)
    receivers = [agent.receiver(n_ports=n) for n in (1, 2)]
    receivers[0].notified(1)
    agent.kill()
    again = Flow(port=agent.port, flow_port=agent.flow_port)
    assert set(again.receivers()) == {r.instance for r in receivers}
    reply = receivers[0].request()
    assert not reply["ok"] and reply["version"] == 0 and "published" in reply["error"], reply
    again.publish("actor", 2, two)
    for r in receivers:
        r.notified(2)
        assert same(r, two)
    again.publish("actor", 3, checkpoint({"a.weight": SMALL["a.weight"]}))  # another layout
    reply = receivers[0].request()
    assert not reply["ok"] and "restart it" in reply["error"] and receivers[0].nothing_on_zmq(), reply
    again.kill()
    path = f"{TESTDIR}/state/astraflow-127.0.0.1:{agent.flow_port}.json"
    with open(path) as f:
        kept = json.load(f)
    assert os.stat(path).st_mode & 0o77 == 0
    with open(path, "w") as f:
        f.write(json.dumps(kept).replace('"address"', '"adress"'))
    third = Flow(port=agent.port, flow_port=agent.flow_port)
    assert third.receivers() == {} and os.path.exists(path + ".damaged") and "damaged" in third.text()


def test_refused():
    "invalid registrations are refused: wrong length, missing fields, bad ports and hosts, no version yet"
    agent = Flow()
    assert call(agent.flow + "/register_sglang_instance", {})[0] == 500
    agent.publish("actor", 1, checkpoint(SMALL))
    r = agent.receiver(register=False)
    assert "bytes" in refusal(r, buffer_length=5)
    for field in ("sglang_http_host", "sglang_http_port", "session_ids", "buffer_ptr", "buffer_length", "zmq_endpoint", "zmq_port",
                  "handshake_ports"):
        assert field in refusal(r, **{field: None}), field
    for sessions in ([], ["127.0.0.1"], ["127.0.0.1:"], ["127.0.0.1:x"], ["127.0.0.1:70000"], ["a:1", "b:2"], [":1"], [5],
                     ["127.0.0.1" + ":1" * 65], ["[::1]:5"]):
        assert "session_ids" in refusal(r, session_ids=sessions) or "IPv4" in refusal(r, session_ids=sessions), sessions
    assert "zmq_port" in refusal(r, zmq_port=0) and "IPv4" in refusal(r, zmq_endpoint="tcp://127.0.0.1;x")
    assert agent.receivers() == {}
    for body in (None, b"", b"{", b"[]", b'{"instance_id":5}', b'{"instance_id":"a:1","mode":"half"}', b"x" * 100000):
        c = http.client.HTTPConnection("127.0.0.1", agent.flow_port, timeout=20)
        c.request("POST", "/request_transfer", body=body)
        reply = c.getresponse()
        said = json.load(reply)
        assert reply.status in (413, 500) and not said.get("ok"), (body, reply.status, said)
        c.close()
    r.register()
    assert r.notified(1)


def test_unsupported_dtype():
    "a dtype that AstraFlow's receivers cannot write is refused at the registration, with a message"
    agent = Flow()
    SIZES["F8_E4M3"] = 1
    agent.publish("actor", 1, checkpoint(SMALL | {"quantised": ("F8_E4M3", [16])}))
    r = agent.receiver(register=False)
    said = refusal(r)
    assert "quantised is float8_e4m3fn" in said, said


def test_models():
    "one listener serves one model: the named one, or the only one; with two models and no name there is an error message"
    agent = Flow(model="critic=")
    folder = checkpoint(SMALL, seed=2)
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    assert call(agent.flow + "/get_buffer_info")[0] == 503
    agent.publish("critic", 7, folder)
    r = agent.receiver()
    r.notified(7)
    assert same(r, folder)
    other = Flow()
    other.publish("actor", 1, folder)
    assert other.receiver().notified(1)
    other.publish("critic", 1, folder)
    status, said = call(other.flow + "/get_buffer_info")
    assert status == 503 and "--astraflow MODEL=" in said["error"], said
    said = wsync("agent", "--astraflow", "a/b=127.0.0.1:0", check=False)
    assert said.returncode == 2 and "no model" in said.stderr, said


def test_idle():
    "connections that send nothing delay no receiver, and do not keep the agent from exiting"
    agent = Flow()
    agent.publish("actor", 1, checkpoint(SMALL))
    idle = [socket.create_connection(("127.0.0.1", agent.flow_port)) for _ in range(64)]
    r = agent.receiver()
    assert r.notified(1)
    r.stuck.set()
    t = threading.Thread(target=request_cut_off, args=(r,))
    t.start()
    wait_for(lambda: agent.receivers()[r.instance]["busy"], "the transfer")
    start = time.monotonic()
    agent.end()
    assert time.monotonic() - start < 10 * SLOW
    t.join()
    for s in idle:
        s.close()


def changed(folder, change, seed=1):
    """A copy of a checkpoint with change(generator, name, bytearray) applied to each tensor's bytes."""
    generator = random.Random(seed)
    copy = unique("ckpt")
    shutil.copytree(folder, copy)
    for file in sorted(f for f in os.listdir(copy) if f.endswith(".safetensors")):
        with open(os.path.join(copy, file), "r+b") as f:
            raw = bytearray(f.read())
            at = 8 + struct.unpack("<Q", raw[:8])[0]
            header = json.loads(raw[8:at])
            for name, t in sorted(header.items()):
                if name != "__metadata__":
                    begin, end = (at + o for o in t["data_offsets"])
                    data = raw[begin:end]
                    change(generator, name, data)
                    raw[begin:end] = data
            f.seek(0)
            f.write(raw)
    return copy


def one_ulp(share, width=2):
    """Changes the given share of the elements by one unit in the last place, up or down."""

    def change(generator, name, data):
        for i in range(0, len(data) - width + 1, width):
            if generator.random() < share:
                value = (int.from_bytes(data[i:i + width], "little") + generator.choice((-1, 1))) % (1 << 8 * width)
                data[i:i + width] = value.to_bytes(width, "little")

    return change


def new_bytes(n, width):
    """Changes all bytes of every second one of each tensor's first elements, n elements in all."""

    def change(generator, name, data):
        for i in range(min(2 * n * width, len(data))):
            if i // width % 2 == 0:
                data[i] ^= generator.randrange(1, 256)

    return change


def differing(a, b):
    return sum(x != y for n in a for x, y in zip(a[n][2], b[n][2]))


EVEN = {f"layer.{i}.weight": ("BF16", [256, 64]) for i in range(4)} | {"f": ("F32", [64])}
ODD = {"a": ("U8", [7]), "b": ("BF16", [300, 33])}
ODD_SHARDS = {"model-00001-of-00002.safetensors": ["a"], "model-00002-of-00002.safetensors": ["b"]}


def pair(tensors, change, files=None, *args):
    """An agent with versions 1 and 2 and a receiver that has version 1: (agent, receiver, both folders)."""
    agent = Flow(*args)
    one = checkpoint(tensors, seed=1, files=files)
    two = changed(one, change)
    agent.publish("actor", 1, one)
    r = agent.receiver()
    assert r.notified(1)[0] == "full"
    agent.publish("actor", 2, two)
    return agent, r, one, two


def test_delta():
    "the announced delta, bit for bit, with the smallest element size: 5 bytes for a change of the low byte"
    for tensors, change, files, element in ((EVEN, one_ulp(0.02), None, 1), (EVEN, new_bytes(100, 2), None, 2),
                                            (EVEN | {"f": ("F32", [6000])}, new_bytes(200, 4), None, 4),
                                            (ODD, new_bytes(100, 2), None, 1), (ODD, one_ulp(0.02), ODD_SHARDS, 1),
                                            (EVEN, lambda *_: None, None, 1), (SMALL, one_ulp(0.01), SHARDS, 1)):
        agent, r, one, two = pair(tensors, change, files)
        before = r.tensors()
        status, can = call(agent.flow + "/get_capabilities")
        mode, reply = r.notified(2)
        assert mode == "delta" and same(r, two), (mode, reply)
        assert can["delta_ready"] and (can["delta_base_version"], can["delta_version"]) == (1, 2), can
        count, got = struct.unpack_from("<QH", r.buffer)
        assert (got, count) == (element, reply["num_nonzero"]), (got, element, count)
        assert reply["delta_size"] == can["delta_size_bytes"] == 16 + count * (4 + element), reply
        assert reply["delta_base_version"] == 1 and reply["version"] == 2 and 0 <= reply["sparsity"] <= 1, reply
        if element == 1:
            assert count == differing(before, r.tensors()), count
        assert agent.receivers()[r.instance]["version"] == 2
        agent.publish("actor", 3, changed(two, change, 2))
        assert r.notified(3)[0] == "delta" and r.nothing_on_zmq()
        agent.end()


def test_adapter():
    "a version that is an adapter: receivers are told its lora_config, and take it whole"
    agent = Flow()
    one, two = adapter(1), adapter(2)
    agent.publish("actor-lora", 1, one)
    info = call(agent.flow + "/get_buffer_info")[1]
    assert info["lora_config"] == {"peft_type": "LORA", "r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}, info
    assert {n for n, _ in info["tensors_meta"]} == set(pairs())
    r = agent.receiver()
    assert r.notified(1)[0] == "full" and same(r, one)
    agent.publish("actor-lora", 2, two)
    assert call(agent.flow + "/get_capabilities") == (200, {"strategies": ["full"], "version": 2})
    status, said = call(agent.flow + "/request_transfer", {"instance_id": r.instance, "mode": "delta"})
    assert (status, said["ok"], said["reason"]) == (200, False, "delta_not_ready"), said
    assert r.notified(2)[0] == "full" and same(r, two)
    agent.publish("actor-lora", 3, adapter(3, use_rslora=True))  # SGLang, into which they load it, would scale it wrong
    status, said = call(agent.flow + "/get_buffer_info")
    assert status == 503 and "use_rslora" in said["error"] and "actor-lora/3" in said["error"], said
    agent.publish("actor-lora", 4, adapter(4, target_modules=".*_proj"))
    status, said = call(agent.flow + "/get_buffer_info")
    assert status == 503 and "pattern" in said["error"], said


def test_delta_wrong_base():
    "a delta goes only to a receiver whose last version is its base; others are told to request the whole version"
    agent, r, one, two = pair(EVEN, one_ulp(0.02))
    late = agent.receiver()
    refused = {"ok": False, "version": 2, "fallback": "full", "reason": "delta_not_ready"}
    assert late.request("delta") == refused  # it has no version
    late.version = 1  # claims the base, as AstraFlow's receivers may
    assert late.notified(2)[0] == "full" and same(late, two)
    assert late.request("delta") == refused  # it already has the delta's target
    again = Receiver(agent.flow, r.port)  # restarted: the agent does not know what it has
    at_end(again.close)
    again.register()
    assert again.request("delta") == refused and again.nothing_on_zmq()
    three = changed(two, one_ulp(0.02), 3)
    agent.publish("actor", 3, three)
    assert again.notified(3)[0] == "full" and late.notified(3)[0] == "delta"
    assert same(again, three) and same(late, three)
    # a new lineage reuses the numbers
    agent.publish("actor", 3, two, "--new-run")
    again.version = 0
    assert again.notified(3)[0] == "full" and same(again, two)
    agent.publish("actor", 4, three)
    assert call(agent.flow + "/get_capabilities")[1]["delta_base_version"] == late.version == 3
    assert late.request("delta")["reason"] == "delta_not_ready"
    assert late.notified(4)[0] == "full" and same(late, three)
    assert again.notified(4)[0] == "delta" and same(again, three)


def test_delta_snapshot():
    "an announced delta can still be pulled after another version was published"
    agent, r, one, two = pair(EVEN, one_ulp(0.02))
    other = agent.receiver()
    assert other.notified(2)[0] == "full"
    assert call(agent.flow + "/get_capabilities")[1]["delta_base_version"] == 1
    three = changed(two, one_ulp(0.02), 3)
    agent.publish("actor", 3, three)
    assert call(agent.flow + "/get_capabilities")[1]["delta_base_version"] == 2
    reply = r.request("delta")
    assert reply["ok"] and reply["version"] == 2 and r.ok.get(timeout=30) == (0, 0), reply
    r.apply(reply["delta_size"])
    assert same(r, two)
    r.version = 2
    assert r.notified(3)[0] == "delta" and same(r, three)


def test_delta_none():
    "no delta is announced if it exceeds half of the version, if no receiver has its base, or if none is made"
    agent, r, one, two = pair(EVEN, one_ulp(0.9))
    assert call(agent.flow + "/get_capabilities") == (200, {"strategies": ["full"], "version": 2})
    assert r.notified(2)[0] == "full" and same(r, two)
    agent, r, one, two = pair(EVEN, one_ulp(0.01), None, "--delta-cache", "0")
    assert call(agent.flow + "/get_capabilities") == (200, {"strategies": ["full"], "version": 2})
    assert r.notified(2)[0] == "full" and same(r, two)
    agent = Flow()
    agent.publish("actor", 1, one)
    agent.publish("actor", 2, two)
    assert call(agent.flow + "/get_capabilities") == (200, {"strategies": ["full"], "version": 2})


def test_deltas_meanwhile():
    "receivers that follow a trainer by deltas and whole versions have each announced version, bit for bit"
    agent = Flow()
    folders = [checkpoint(LARGE, seed=1)]
    for v in range(2, 9):
        folders.append(changed(folders[-1], lambda g, name, data, v=v: data.__setitem__(slice(64 * v, 64 * v + 32), g.randbytes(32)), v))
    receivers = [agent.receiver(register=False) for _ in range(3)]
    failures, modes, cut = [], [], []
    newest = [0]

    def follow(r):
        try:
            while r.version < 8:
                n = newest[0]
                if n <= r.version:
                    time.sleep(0.01)
                    continue
                try:
                    if not r.buffer:
                        r.register()
                    mode, reply = r.notified(n)
                except Failed as e:
                    assert "cut" in str(e), e
                    cut.append(r)
                    continue
                modes.append(mode)
                same(r, folders[reply["version"] - 1])
        except BaseException as e:
            failures.append(e)
            raise

    threads = [threading.Thread(target=follow, args=(r,)) for r in receivers]
    for t in threads:
        t.start()
    for v, folder in enumerate(folders, 1):
        agent.publish("actor", v, folder)
        newest[0] = v
        if v % 2:
            wait_for(lambda: failures or all(r.version == v for r in receivers), f"version {v} everywhere", 60)
    for t in threads:
        t.join()
    print(f"# {modes.count('delta')} deltas, {modes.count('full')} whole, {len(cut)} cut")
    assert not failures and modes.count("delta") >= 3, failures
    assert all(r.ok.empty() for r in receivers)


def test_notify():
    "release notifies the services: a pickled dict out, a pickled dict back; a failing service is named; only the newest version can be released"
    agent = Flow()
    one, two = checkpoint(SMALL, seed=1), checkpoint(SMALL, seed=2)
    agent.publish("actor", 1, one)
    services = [Service(agent, protocol=p) for p in (2, 4, 5)]
    to = ["--agent", agent.url, "--astraflow-sender", f"127.0.0.1:{agent.flow_port}"]
    said = wsync("release", "actor", 1, *to, "--wait", 60 * SLOW, *[f"--astraflow-notify={s.url}/" for s in services])
    assert "loaded by 3 of" in said.stdout, said
    for s in services:
        assert s.heard == [{"model_id": "default", "version": 1, "sender_endpoint": f"127.0.0.1:{agent.flow_port}"}], s.heard
        assert same(s.receiver, one)
    agent.publish("actor", 2, two)
    big = 2**40
    answers = [Service(agent, status=500, ok=False, error="no room on the device"), Service(agent, ok=True, result={"ok": False}),
               Service(agent, protocol=2, ok=False, error="π", more=[1, 2.5, None, (big, -big, "x" * 300)])]
    nobody = f"http://127.0.0.1:{free_port()}"
    said = wsync("release", "actor", 2, *to, "--astraflow-model-id", "m", f"--astraflow-notify={nobody}",
                 *[f"--astraflow-notify={s.url}" for s in answers + services[:1]], check=False)
    assert said.returncode == 1 and "1 of 5" in said.stderr, said
    for text in (f"{answers[0].url}: it answered 500: no room on the device", f"{answers[1].url}: it answered 200",
                 f"{answers[2].url}: it answered 200: π", f"{nobody}: "):
        assert text in said.stderr, (text, said.stderr)
    assert services[0].heard[1]["model_id"] == "m" and same(services[0].receiver, two)
    for arguments, why in ((("actor", 1, *to), "take the newest version"), (("actor", 2, "--agent", agent.url), "--astraflow-sender"),
                           (("actor=2", "other=2", *to), "of which model?"), (("other", 2, *to), "other")):
        said = wsync("release", *arguments, f"--astraflow-notify={services[0].url}", check=False)
        assert said.returncode and why in said.stderr, said
    assert len(services[0].heard) == 2
    agent.publish("actor", 2**33, one)
    wsync("release", "actor", 2**33, "--astraflow-sender", "nowhere:1", *to, f"--astraflow-notify={services[0].url}")  # the last counts
    assert services[0].heard[2]["version"] == 2**33 and services[0].heard[2]["sender_endpoint"] == to[-1]


def test_notify_of_several_models():
    "release notifies services of several models, each with its sender and its id; one that lacks a sender, or is not the newest, ends it before"
    ports = free_port(), free_port()
    agent = Agent("--state", TESTDIR + "/state/", *[f"--astraflow={m}=127.0.0.1:{p}" for m, p in zip(("actor", "critic"), ports)])
    for model in ("actor", "critic"):
        agent.publish(model, 3, checkpoint(SMALL))
    to = ["actor=3", "critic=3", "--agent", agent.url, f"--astraflow-sender=actor=127.0.0.1:{ports[0]}"]
    services = [Service(Flow(), ok=True, result={"ok": True}), Service(Flow(), ok=True, result={"ok": True})]
    notify = [f"--astraflow-notify={s.url}" for s in services]
    for more, why in (([], "--astraflow-sender MODEL=HOST:PORT"), (["--astraflow-sender=other=h:1"], "not released"),
                      (["--astraflow-sender=critic=h:1", "--astraflow-model-id=m"], "of which model?")):
        said = wsync("release", *to, *more, *notify, check=False)
        assert said.returncode == 2 and why in said.stderr, said
    to.append(f"--astraflow-sender=critic=127.0.0.1:{ports[1]}")
    said = wsync("release", *to, *notify, "--astraflow-model-id=critic=c0")
    assert "actor loaded by 2 of" in said.stdout and "critic loaded by 2 of" in said.stdout, said
    want = [{"model_id": i, "version": 3, "sender_endpoint": f"127.0.0.1:{p}"} for i, p in zip(("actor", "c0"), ports)]
    assert [s.heard for s in services] == [want, want]
    agent.publish("critic", 4, checkpoint(SMALL, seed=2))
    said = wsync("release", *to, *notify, check=False)
    assert said.returncode == 1 and "which of critic is 4 and not 3; nothing was done" in said.stderr, said
    services[1].answer = {"status": 500, "ok": False, "error": "full"}
    said = wsync("release", "actor=3", "critic=4", *to[2:], *notify, check=False)
    assert said.returncode == 1 and said.stderr.count("1 of 2") == 2 and "critic" in said.stderr, said


def test_hostile_pickles():
    "pickles in a service's reply are never executed, and no reply breaks the command"
    agent = Flow()
    agent.publish("actor", 1, checkpoint(SMALL))
    generator = random.Random(1)
    good = pickle.dumps({"ok": True, "result": {"a": [1, (2, 3)], "b": {"c": None}}}, protocol=4)
    bad = [b"", b".", b"N", b"}.", b"(.", b"((.", b"}q\x00h\x00h\x00s.", b"]\x94h\x00a.", b"]\x94(h\x00e.",
           b"}\x94X\x01\x00\x00\x00ah\x00s.", b"\x8d" + b"\xff" * 8 + b".", b"]" * 5000 + b".", b"(" * 5000, b"\x8a\xff",
           b"\x8a\x00.", b"\x87.", b"u.", b"s.", b"e.", b"t.", b"cos\nsystem\n(S'touch /tmp/never'\ntR.",
           b"X\x02\x00\x00\x00\xff\xfe.", b"}(NNu.", b"G\x7f\xf0" + b"\0" * 6 + b"."]
    bad += [bytes(b if generator.random() > 0.1 else generator.randrange(256) for b in good) for _ in range(120 - len(bad))]
    replies = iter(bad)
    url = serve_posts(lambda *_: (200, next(replies)))
    for _ in range(2):
        said = wsync("release", "actor", 1, "--agent", agent.url, "--astraflow-sender", "127.0.0.1:1",
                     *[f"--astraflow-notify={url}"] * 60, check=False)
        assert said.returncode in (0, 1) and said.stderr.count("RESET") == 0, said
    assert next(replies, None) is None
    for reply, why in ((b"", "cannot be read"), (b"<html>", "cannot be read"), (pickle.dumps({"ok": True, "x": {1}}), "cannot be read"),
                       (pickle.dumps({}), "not ok"), (pickle.dumps({"ok": 1}), "not ok")):
        url = serve_posts(lambda *_: (200, reply))
        said = wsync("release", "actor", 1, "--agent", agent.url, "--astraflow-sender", "127.0.0.1:1", f"--astraflow-notify={url}", check=False)
        assert said.returncode == 1 and why in said.stderr, said
