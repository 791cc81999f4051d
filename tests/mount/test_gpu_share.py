# sanitizers: address
# timeout: 400, takes: 20
"""Versions shared on GPUs between ranks, their agent and readers, on the stand-in driver (tests/fakes)."""
import base64
import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.error

import numpy as np

import pytest

from world import BUILD, SLOW, Agent, Mount, at_end, entered, need_fuse, unique, wait_for

DRIVER = os.path.join(BUILD, "tests/fakes/libcuda.so.1")
FAKE = "devices=2,memory=256M,delay=200,seed=3"
ALL = {1: 6, 2: 8}  # pieces on GPUs, by ranks: rows and flat of each, turned, back, master, big


REAL = os.environ.get("TEST_GPU") == "1"  # make test-gpu: the machine's own driver


def need_driver():
    if REAL and not os.path.exists("/dev/nvidia0"):
        pytest.skip("no GPU on this machine")
    if not REAL and not os.path.exists(DRIVER):
        pytest.skip("built without CUDA's headers: no stand-in driver")


class Refused(Exception):
    def __init__(self, line):
        _, number, self.text = line.split(" ", 2)
        self.errno = os.strerror(int(number))
        self.number = int(number)
        super().__init__(line)


class Tool:
    """A process with line-based requests and answers."""

    def __init__(self, name, *args, fake=FAKE, driver=DRIVER, prefix=(), **kw):
        if REAL and fake != FAKE:
            pytest.skip("only the stand-in driver does what it is told")
        if REAL and any(str(a).startswith("device=1") for a in args) and not os.path.exists("/dev/nvidia1"):
            pytest.skip("one GPU here")
        env = dict(os.environ) if REAL and driver == DRIVER else dict(os.environ, WSYNC_LIBCUDA=driver, WSYNC_FAKE_CUDA=fake)
        self.log_path = unique(name) + ".log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([*prefix, os.path.join(BUILD, "tests/tools", name), *map(str, args)], env=env, text=True, bufsize=1,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, **kw)
        self.pid = self.process.pid
        try:
            line = self.answer()
        except Refused:
            self.process.wait(20 * SLOW)
            raise
        finally:
            at_end(self.end)
        if not line or not line.startswith("ready"):
            raise AssertionError(f"{line!r} {self.log()}")

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def send(self, command):
        self.process.stdin.write(command + "\n")

    def answer(self, seconds=60):
        timer = threading.Timer(seconds * SLOW, self.process.kill)
        timer.start()
        line = self.process.stdout.readline().strip()
        timer.cancel()
        if not line:
            raise AssertionError(f"no answer: {self.process.wait(10)} {self.log()}")
        if line.startswith("error"):
            raise Refused(line)
        return line

    def ask(self, command, seconds=60):
        self.send(command)
        return self.answer(seconds)

    def refused(self, command, word=""):
        """The errno of a refusal whose message contains the word."""
        try:
            line = self.ask(command)
        except Refused as e:
            assert word in e.text, f"'{e.text}' does not say '{word}'"
            return e.number
        raise AssertionError(f"'{command}' was answered: {line}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(30 * SLOW)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"{self.process.args[0]} did not end: {self.log()}")
        self.process.stdout.close()
        assert "Sanitizer" not in self.log(), self.log()
        code = self.process.returncode
        assert code in (0, 1, -signal.SIGKILL), f"{self.process.args} ended with {code}: {self.log()}"


ENOENT, EBUSY, EINVAL, ENODEV, EXDEV, ENOTSUP, ETIMEDOUT, ESTALE, EMFILE = 2, 16, 22, 19, 18, 95, 110, 116, 24


def agent_of():
    need_driver()
    agent = Agent()
    wait_for(lambda: os.path.exists(agent.sock), "the agent's socket")  # wait for its port
    return agent


def rank_of(agent, *args, rank=0, world=1, model="actor", **kw):
    return Tool("gpu_rank", f"unix:{agent.sock}", model, rank, world, *args, **kw)


def reader_of(agent, model="actor", **kw):
    return Tool("gpu_reader", f"unix:{agent.sock}", model, **kw)


def offload(ranks, version, how="offload"):
    for r in ranks:
        r.send(f"{how} {version}")
    for r in ranks:
        r.answer()
    ranks[0].ask(f"wait {version}")


def status(agent, model="actor"):
    """{version: what the agent's status says of it}."""
    found = [m for m in agent.get("/v1/status")["models"] if m["name"] == model]
    return {v["version"]: v for v in (found[0].get("gpu", []) if found else [])}


def opens(reader, version, pieces):
    assert reader.ask(f"open {version}") == f"opened {version} {pieces}"
    good = reader.ask(f"check {version}").split()
    assert good[:3] == ["good", str(version), str(pieces)], good


def test_parameters():
    """cuda_ipc: strided, transposed, reversed and converted parameters are opened in place, byte for byte"""
    agent = agent_of()
    rank, reader = rank_of(agent, "share=cuda_ipc"), reader_of(agent)
    offload([rank], 1)
    opens(reader, 1, ALL[1])
    assert "master:0:F32:converts" in reader.ask("names 0").split()
    assert status(agent)[1]["holders"] == f"pid {reader.pid}"
    assert reader.ask("close 0") == "closed"
    wait_for(lambda: status(agent)[1]["leases"] == 0, "the lease's end")
    rank.ask("unshare 5000")
    assert reader.refused("open 1", "any more") == ENOENT
    assert reader.refused("open 0", "no version") == ENOENT
    assert status(agent) == {}


def test_mapped():
    """cuda_ipc: adjacent mappings are one segment of descriptors, with parameters that cross their borders"""
    agent = agent_of()
    rank, reader = rank_of(agent, "share=cuda_ipc", "vmm"), reader_of(agent)
    offload([rank], 7)
    opens(reader, 7, ALL[1])


def packed(fake, pieces, *args):
    agent = agent_of()
    rank, reader = rank_of(agent, "share=packed_cuda_ipc", *args, fake=fake), reader_of(agent)
    for version in range(1, 5):
        offload([rank], version)
        rank.ask(f"fill {version + 1000}")
        opens(reader, version, pieces)
        names = reader.ask("names 0").split()
        assert reader.ask("close 0") == "closed"
    assert sorted(status(agent)) == [3, 4]
    opens(reader, 3, pieces)
    assert reader.refused("open 2", "") == ENOENT
    return names


def test_packed():
    """packed_cuda_ipc: two buffers in turn, gathered and converted by the kernel; the parameters may change at once"""
    names = packed(FAKE, ALL[1])
    assert "master:0:BF16" in names or "master:0:F32:converts" in names, names  # built without nvcc


def test_packed_by_copies():
    """packed_cuda_ipc without kernels: gathered by copies; converted tensors are shared unconverted, and the report says so"""
    assert "master:0:F32:converts" in packed(FAKE + ",kernels=0", ALL[1] - 1, "forward")


def test_mount():
    """.wsync/cuda_ipc.json exists while an agent of this host shares the version, and not elsewhere"""
    need_driver()
    need_fuse()
    agent = agent_of()
    rank = rank_of(agent, "share=cuda_ipc")
    offload([rank], 1)
    mount, far = Mount(f"unix:{agent.sock}"), Mount(agent.url)
    for m in (mount, far):
        m.wait_version("actor", 1)
    assert "cuda_ipc.json" in os.listdir(mount.file("actor/1/.wsync"))
    told = json.loads(mount.read("actor/1/.wsync/cuda_ipc.json"))
    assert (told["model"], told["version"], told["strategy"], told["agent"]) == ("actor", 1, "cuda_ipc", agent.sock)
    assert told["run"] == json.loads(mount.read("actor/1/.wsync/manifest.json"))["run"]
    ranks = told["ranks"]
    assert [r["rank"] for r in ranks] == [0] and ranks[0]["pid"] == rank.pid
    names = {t["name"] for t in ranks[0]["tensors"]}
    assert names == {"rows", "flat", "turned", "back", "master", "big"}
    turned = next(t for t in ranks[0]["tensors"] if t["name"] == "turned")
    assert (turned["dtype"], turned["shape"], turned["strides"]) == ("F32", [24, 40], [1, 24])
    assert all(s["device"].startswith("GPU-") and len(base64.b64decode(s["handle"])) == 64 for s in ranks[0]["segments"])
    assert not os.path.exists(far.file("actor/1/.wsync/cuda_ipc.json"))
    assert "cuda_ipc.json" not in os.listdir(far.file("actor/1/.wsync"))
    rank.ask("unshare 5000")
    wait_for(lambda: not os.path.exists(mount.file("actor/1/.wsync/cuda_ipc.json")), "the file to go")
    assert mount.read("actor/1/model.safetensors")  # the slot still has it


def test_ranks():
    """Two ranks on two devices share one version; in steps, too"""
    agent = agent_of()
    ranks = [rank_of(agent, "share=packed_cuda_ipc", f"device={r}", rank=r, world=2) for r in range(2)]
    reader = reader_of(agent)
    offload(ranks, 1)
    opens(reader, 1, ALL[2])
    assert {n.split(":")[1] for n in reader.ask("names 0").split()} == {"0", "1"}
    offload(ranks, 2, "steps")
    opens(reader, 2, ALL[2])
    blind = reader_of(agent, fake=FAKE.replace("devices=2", "devices=1"))
    assert blind.refused("open 2", "not visible") == ENODEV
    assert "not visible" in status(agent)[2]["refused"]


def test_unshare():
    """unshare waits for the readers that have the version open and names them, also a killed one; meanwhile no other reader can open it"""
    agent = agent_of()
    rank, reader, other = rank_of(agent, "share=cuda_ipc"), reader_of(agent), reader_of(agent)
    offload([rank], 1)
    opens(reader, 1, ALL[1])
    assert rank.refused("unshare 300", f"pid {reader.pid}") == ETIMEDOUT
    assert other.refused("open 1", "took it back") == ENOENT
    assert reader.ask("check 1").startswith("good")
    assert status(agent)[1]["state"] == "over"
    rank.send("unshare -1")
    time.sleep(0.3)
    reader.kill()
    assert rank.answer() == "done -1"
    assert status(agent) == {}


def test_buffers():
    """a packed buffer that a reader has open is not written: the version is published without being shared, and the next one is shared again"""
    agent = agent_of()
    rank, reader = rank_of(agent, "share=packed_cuda_ipc", "timeout=500"), reader_of(agent)
    offload([rank], 1)
    opens(reader, 1, ALL[1])
    offload([rank], 2)
    offload([rank], 3)
    assert 3 not in status(agent)
    assert reader.ask("check 1").startswith("good")
    offload([rank], 4)  # in the other buffer
    assert 4 in status(agent)
    for version in 5, 6, 7:
        offload([rank], version)
    assert sorted(status(agent)) == [1, 6]
    assert reader.ask("check 1").startswith("good")
    assert rank.log().count("not shared on GPUs") == 1, rank.log()  # the same reader is named, and waited for, once
    assert reader.ask("close 0") == "closed"
    offload([rank], 8)
    offload([rank], 9)
    opens(reader, 9, ALL[1])


def test_trainer_ends():
    """the trainer is killed: readers that have the version open keep it, and no other reader can open it"""
    agent = agent_of()
    for how in ("share=cuda_ipc", "share=packed_cuda_ipc"):
        model = how[6:]
        rank, reader, late = rank_of(agent, how, model=model), reader_of(agent, model), reader_of(agent, model)
        offload([rank], 1)
        opens(reader, 1, ALL[1])
        rank.kill()
        wait_for(lambda: status(agent, model)[1]["state"] == "over", "the agent to notice")
        assert reader.ask("check 1").startswith("good")
        assert late.refused("open 1", "has ended") == ENOENT
        assert late.refused("open 0", "") == ENOENT


def test_agent_ends():
    """the agent is killed: unshare still waits for open readers, and the next agent continues"""
    agent = agent_of()
    rank = rank_of(agent, "share=packed_cuda_ipc", "timeout=500")
    reader = reader_of(agent)
    offload([rank], 1)
    opens(reader, 1, ALL[1])
    offload([rank], 2)
    agent.kill()
    os.unlink(agent.sock)
    again = Agent(sock=agent.sock)
    wait_for(lambda: os.path.exists(agent.sock), "the agent's socket")
    offload([rank], 3)  # not shared: a reader still has version 1
    assert 3 not in status(again)
    assert reader.ask("check 1").startswith("good")
    assert reader.ask("close 0") == "closed"
    offload([rank], 4)
    opens(reader, 4, ALL[1])
    assert sorted(status(again)) == [4]


def test_lineage():
    """a request for the old lineage's version does not open another lineage's; an abandoned version is never offered"""
    agent = agent_of()
    first = rank_of(agent, "share=cuda_ipc", "timeout=2000", rank=0, world=2)
    second = rank_of(agent, "share=cuda_ipc", "timeout=2000", rank=1, world=2)
    reader = reader_of(agent)
    first.send("offload 1")
    second.send("fill 1")
    second.answer()
    second.kill()
    try:
        first.answer()
        raise AssertionError("a version of one of two ranks was taken")
    except Refused:
        pass
    assert reader.refused("open 1") == ENOENT
    assert status(agent) == {}


def test_limits():
    """no driver, an unknown strategy, a full table of descriptors"""
    agent = agent_of()
    rank, reader = rank_of(agent, "share=cuda_ipc", "vmm"), reader_of(agent, driver="/nowhere/libcuda.so")
    offload([rank], 1)
    assert reader.refused("open 1", "driver") == ENOTSUP
    reader = reader_of(agent)
    opens(reader, 1, ALL[1])
    reader.ask("close 0")
    used = len(os.listdir(f"/proc/{reader.pid}/fd"))
    assert reader.ask(f"limit {used + 3}") == "limited 0"
    assert reader.refused("open 1", "") in (EMFILE,)
    wait_for(lambda: status(agent)[1]["leases"] == 0, "the lease's end")
    rank.ask("unshare 5000")
    try:
        rank_of(agent, "share=nccl", model="other")
        raise AssertionError("share=nccl was taken")
    except Refused as e:
        assert "wsync_config.share" in e.text, e


class Between:
    """A proxy for the agent's socket; it sees requests before the agent does."""

    def __init__(self, agent, seen):
        self.sock, self.target, self.seen = unique("between.sock"), agent.sock, seen
        self.listener = entered(socket.socket(socket.AF_UNIX))
        self.listener.bind(self.sock)
        self.listener.listen()
        self.peers = []
        at_end(self.end)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                here, there = self.listener.accept()[0], socket.socket(socket.AF_UNIX)
                there.connect(self.target)
                self.peers += here, there
                threading.Thread(target=self.pump, args=(here, there, self.seen), daemon=True).start()
                threading.Thread(target=self.pump, args=(there, here, None), daemon=True).start()

    def pump(self, source, to, seen):
        with contextlib.suppress(OSError):
            while True:
                data, fds, _, _ = socket.recv_fds(source, 1 << 16, 64)
                if not data:
                    break
                if seen:
                    seen(data)
                socket.send_fds(to, [data], fds)
                for fd in fds:
                    os.close(fd)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_RDWR)

    def end(self):
        for s in self.peers:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


def test_refused():
    """a version that cannot be opened completely is released after its opened parts are closed"""
    agent = agent_of()
    rank = rank_of(agent, "share=cuda_ipc")
    offload([rank], 1)
    found = []

    def seen(data):
        if b"/v1/local/gpu/fds" in data or b"/v1/local/gpu/close" in data:
            with open(f"/proc/{reader.pid}/maps") as f:
                found.append((b"gpu/close" in data, sum("memfd:fake-gpu" in line for line in f)))

    between = Between(agent, seen)
    reader = reader_of(between, fake=FAKE + ",fail=cuIpcOpenMemHandle_v2:2:1")
    assert reader.refused("open 1", "") > 0
    assert found[-1][0] and found[-1][1] == found[0][1], found
    assert status(agent)[1]["leases"] == 0


def test_namespaces():
    """a reader in another PID namespace is refused with the reason, which the agent's status shows too"""
    agent = agent_of()
    if os.geteuid() != 0 or subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("cannot make a PID namespace here")
    rank = rank_of(agent, "share=cuda_ipc")
    reader = reader_of(agent, prefix=("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))
    offload([rank], 1)
    assert reader.refused("open 1", "another PID namespace") == EXDEV
    told = status(agent)[1]
    assert "another PID namespace" in told["refused"] and told["leases"] == 0, told
    rank.ask("unshare 5000")


class Peer:
    """A raw connection to the agent's socket."""

    def __init__(self, agent):
        self.socket = entered(socket.socket(socket.AF_UNIX))
        self.socket.settimeout(20 * SLOW)
        self.socket.connect(agent.sock)

    def ask(self, verb, body, fds=()):
        data = json.dumps({"method": "POST", "path": f"/v1/local/{verb}", "query": "", "body": body}).encode()
        head = struct.pack("<III", 0x31465357, len(data), len(fds))
        socket.send_fds(self.socket, [head + data], list(fds))
        head = b""
        while len(head) < 12:
            head += self.socket.recv(12 - len(head))
        _, size, _ = struct.unpack("<III", head)
        data = b""
        while len(data) < size:
            data += self.socket.recv(size - len(data))
        return json.loads(data)


def test_hostile():
    """Malformed requests on the local routes are refused with a reason, and the agent goes on"""
    agent = agent_of()
    rank, reader = rank_of(agent, "share=cuda_ipc"), reader_of(agent)
    offload([rank], 1)
    peer = Peer(agent)
    good = peer.ask("gpu/open", {"model": "actor", "version": 1})["body"]
    lease = good["lease"]
    asks = [("gpu/open", {}), ("gpu/open", {"model": 7}), ("gpu/open", {"model": "actor", "version": -1, "run": 5, "x": []}),
            ("gpu/look", []), ("gpu/look", {"model": "../x"}), ("gpu/fds", {"lease": lease, "rank": 9}),
            ("gpu/fds", {"lease": lease, "rank": 0, "segment": 99, "from": 0}), ("gpu/fds", {"lease": lease, "rank": 0, "segment": 0, "from": 7}),
            ("gpu/fds", {"lease": lease + 999, "rank": 0}), ("gpu/check", {"lease": "x"}), ("gpu/close", {"lease": 12345}),
            ("share", {"version": 1, "strategy": "cuda_ipc", "listing": {}}), ("share/fds", {"version": 1, "segment": 0, "from": 0}),
            ("share", {"strategy": "nccl"}), ("gpu/nothing", {})]
    for verb, body in asks:
        reply = peer.ask(verb, body)
        if verb == "gpu/open" and reply["status"] == 200:
            continue  # a negative version means the newest
        assert reply["status"] >= 400 and reply["error"], (verb, body, reply)
    device = good["ranks"][0]["segments"][0]["device"]
    handle = base64.b64encode(bytes(64)).decode()
    segment = {"device": device, "bytes": 100, "handle": handle}
    tensor = {"name": "a", "dtype": "U8", "shape": [10], "kind": "box", "offset": [0], "size": [10], "strides": [1], "segment": 0, "at": 0}
    def listing(**change):
        return {"segments": [segment], "tensors": [dict(tensor, **change)], "marks": []}
    bad = [listing(at=91), listing(at=-1), listing(segment=1), listing(strides=[-1]), listing(strides=[2 ** 62]), listing(strides=["1"]),
           listing(shape=[2 ** 62, 2 ** 62]), listing(shape=[1] * 9), listing(size=[11]), listing(name=""), listing(dtype="X9"), listing(kind="range"),
           listing(kind="range", start=5, count=6), listing(data_dtype="I64"), listing(kind="whole"), dict(listing(), segments=[dict(segment, handle="AA==")]),
           dict(listing(), segments=[dict(segment, parts=[50, 51])]), dict(listing(), segments=[dict(segment, parts=[])]), dict(listing(), segments=5),
           dict(listing(), marks=[{"device": device}]), dict(listing(), segments=[dict(segment, device="x" * 99)])]
    with open("/dev/null") as null:
        for one in bad:
            reply = peer.ask("share", {"version": 1, "run": good["run"], "strategy": "cuda_ipc", "listing": one}, [null.fileno()])
            assert reply["status"] >= 400 and reply["error"], (one, reply)
            assert "begin" not in reply["error"], (one, reply)  # the listing is refused
        reply = peer.ask("share", {"version": 1, "run": good["run"], "strategy": "cuda_ipc", "listing": listing()}, [null.fileno()])
        assert "begin" in reply["error"], reply
    opens(reader, 1, ALL[1])


def value16(version, n):
    """gpu_value of tests/tools/gpu_values.h"""
    i = np.arange(n, dtype=np.uint64)
    return ((i * 31 + version * 7 + (i >> 9)) & 0x3FFF).astype(np.uint16)


def expected(version):
    """The file's bytes of each tensor of gpu_rank."""
    def of(n, dtype):
        v = value16(version, n)
        return (v if dtype == "<u2" else (v ^ v >> 7).astype(np.uint8) if dtype == "u1" else v.astype("<u4") * 65537).astype(dtype).tobytes()
    return {"rows": of(96 * 64, "<u2"), "flat": of(5000, "<u2"), "turned": of(960, "<u4"), "back": of(33, "u1"), "host": of(5, "<u4"),
            "master": of(1000, "<u2"), "big": of(3145735, "u1")}


def whole(data, version):
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    want = expected(version)
    assert sorted(header) == sorted(want)
    for name, t in header.items():
        begin, end = (8 + size + o for o in t["data_offsets"])
        assert data[begin:end] == want[name], name


def demanded(share, source):
    need_fuse()
    agent = agent_of()
    ranks = [rank_of(agent, f"share={share}", "on-demand", f"device={r}", rank=r, world=2, model=share) for r in range(2)]
    reader, mount = reader_of(agent, share), Mount(source(agent))
    offload(ranks, 1)
    opens(reader, 1, ALL[2])
    told = status(agent, share)[1]
    assert told["on_demand"] and not told["made"], told
    mount.wait_version(share, 1)
    if share == "packed_cuda_ipc":
        for r in ranks:
            r.ask("fill 99")  # the parameters may change again
    whole(mount.read(share, "1/model.safetensors"), 1)
    assert status(agent, share)[1]["made"]
    reader.ask("close 0")
    for r in ranks:
        r.ask("unshare 5000")
    whole(mount.read(share, "1/model.safetensors"), 1)
    offload(ranks, 2)
    for r in ranks:
        r.ask("unshare 5000")
    assert [v["version"] for v in agent.get("/v1/models")["models"][0]["versions"]] == [1]
    offload(ranks, 3)
    wait_for(lambda: os.path.isdir(mount.file(share, 3)) and not os.path.isdir(mount.file(share, 2)), "3 and not 2")
    whole(mount.read(share, "3/model.safetensors"), 3)


def test_demand():
    """on demand: announced without a slot, filled when a mount reads it, gone if it is unshared before"""
    need_driver()
    demanded("cuda_ipc", lambda agent: f"unix:{agent.sock}")


def test_demand_packed():
    """on demand, packed, over tcp: filled from the buffers, whatever the parameters contain by then"""
    need_driver()
    demanded("packed_cuda_ipc", lambda agent: agent.url)


def test_demand_trainer_ends():
    """on demand: when a rank ends the version is gone, and waiting readers get an error"""
    agent = agent_of()
    rank = rank_of(agent, "share=packed_cuda_ipc", "on-demand")
    offload([rank], 1)
    assert agent.get("/v1/models")["models"][0]["versions"][0]["digest"] == ""
    os.kill(rank.pid, signal.SIGSTOP)
    answers = []
    def ask():
        try:
            answers.append(agent.get("/v1/actor/1/manifest"))
        except urllib.error.HTTPError as e:
            answers.append(e.code)
    asking = threading.Thread(target=ask)
    asking.start()
    wait_for(lambda: status(agent)[1]["wanted"], "the request")
    rank.kill()
    asking.join(20 * SLOW)
    assert answers == [410], answers
    assert agent.get("/v1/models")["models"][0]["versions"] == []


def test_demand_one_rank_ahead():
    """on demand: a rank that is one step ahead continues with the others as soon as they arrive"""
    agent = agent_of()
    ranks = [rank_of(agent, "share=packed_cuda_ipc", "on-demand", rank=r, world=2) for r in range(2)]
    offload(ranks, 1)
    ranks[0].ask("offload 2")
    begun = time.monotonic()
    ranks[0].send("offload 3")
    time.sleep(0.5)
    ranks[1].send("offload 3")
    for r in ranks:
        assert r.answer() == "done 3"
    assert time.monotonic() - begun < 15 * SLOW  # and not after the rank's timeout of 20 s
    opens(reader_of(agent), 3, ALL[2])


def test_demand_fails():
    """on demand: if filling the slot fails the reader gets the reason, and may try again"""
    agent = agent_of()
    rank = rank_of(agent, "share=cuda_ipc", "on-demand", fake=FAKE + ",fail=cuStreamWaitEvent:2:999:40")
    reader = reader_of(agent)
    offload([rank], 1)
    try:
        agent.get("/v1/actor/1/manifest")
        raise AssertionError("it was made")
    except urllib.error.HTTPError as e:
        assert "could not be made" in json.load(e)["error"]
