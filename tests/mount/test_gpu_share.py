#!/usr/bin/env python3
# sanitizers: address thread
"""Versions that are shared device to device: ranks, their agent, and who opens them, over the stand-in driver (tests/fakes)."""
import base64
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from world import BUILD, SLOW, Agent, Mount, Skip, need_fuse, run, unique, wait_for

DRIVER = os.path.join(BUILD, "tests/fakes/libcuda.so.1")
FAKE = "devices=2,memory=256M,delay=200,seed=3"
ALL = {1: 6, 2: 8}  # pieces on GPUs, by ranks: rows and flat of each, turned, back, master, big
PLAIN = 3


def need_driver():
    if not os.path.exists(DRIVER):
        raise Skip("built without CUDA's headers: no stand-in driver")


class Refused(Exception):
    def __init__(self, line):
        _, number, self.text = line.split(" ", 2)
        self.errno = os.strerror(int(number))
        self.number = int(number)
        super().__init__(line)


class Tool:
    """A process that answers a line for a line."""

    def __init__(self, stack, name, *args, fake=FAKE, driver=DRIVER, **kw):
        env = dict(os.environ, WSYNC_LIBCUDA=driver, WSYNC_FAKE_CUDA=fake)
        self.log_path = unique(name) + ".log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([os.path.join(BUILD, "tests/tools", name), *map(str, args)], env=env, text=True, bufsize=1,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, **kw)
        self.pid = self.process.pid
        try:
            line = self.answer()
        except Refused:
            self.process.wait(20 * SLOW)
            raise
        finally:
            stack.callback(self.end)
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
        """The number of the error, whose sentence has the word."""
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


def agent_of(stack):
    need_driver()
    return Agent(stack)


def rank_of(stack, agent, *args, rank=0, world=1, model="actor", **kw):
    return Tool(stack, "gpu_rank", f"unix:{agent.sock}", model, rank, world, *args, **kw)


def reader_of(stack, agent, model="actor", **kw):
    return Tool(stack, "gpu_reader", f"unix:{agent.sock}", model, **kw)


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


def test_parameters(stack):
    """cuda_ipc: strided, transposed, reversed and converted parameters are opened where they are, byte for byte"""
    agent = agent_of(stack)
    rank, reader = rank_of(stack, agent, "share=cuda_ipc"), reader_of(stack, agent)
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


def test_mapped(stack):
    """cuda_ipc: mappings side by side come as one segment of descriptors, with parameters across their borders"""
    agent = agent_of(stack)
    rank, reader = rank_of(stack, agent, "share=cuda_ipc", "vmm"), reader_of(stack, agent)
    offload([rank], 7)
    opens(reader, 7, ALL[1])


def test_packed(stack):
    """packed_cuda_ipc: buffers in turn, offsets of 256, the parameters are the trainer's again at once"""
    agent = agent_of(stack)
    rank, reader = rank_of(stack, agent, "share=packed_cuda_ipc"), reader_of(stack, agent)
    for version in range(1, 5):
        offload([rank], version)
        rank.ask(f"fill {version + 1000}")
        opens(reader, version, ALL[1])
        assert reader.ask("close 0") == "closed"
    assert sorted(status(agent)) == [3, 4]
    opens(reader, 3, ALL[1])
    assert reader.refused("open 2", "") == ENOENT


def test_mount(stack):
    """.wsync/cuda_ipc.json is there while an agent of this host shares the version, and not elsewhere"""
    need_driver()
    need_fuse()
    agent = agent_of(stack)
    rank = rank_of(stack, agent, "share=cuda_ipc")
    offload([rank], 1)
    mount, far = Mount(stack, f"unix:{agent.sock}"), Mount(stack, agent.url)
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
    assert mount.read("actor/1/model.safetensors")  # which the slot still has


def test_ranks(stack):
    """Two ranks on two devices share one version; in steps, too"""
    agent = agent_of(stack)
    ranks = [rank_of(stack, agent, "share=packed_cuda_ipc", f"device={r}", rank=r, world=2) for r in range(2)]
    reader = reader_of(stack, agent)
    offload(ranks, 1)
    opens(reader, 1, ALL[2])
    assert {n.split(":")[1] for n in reader.ask("names 0").split()} == {"0", "1"}
    offload(ranks, 2, "steps")
    opens(reader, 2, ALL[2])
    blind = reader_of(stack, agent, fake=FAKE.replace("devices=2", "devices=1"))
    assert blind.refused("open 2", "not visible") == ENODEV
    assert "not visible" in status(agent)[2]["refused"]


def test_unshare(stack):
    """Taking back waits for who has it and names them, also one that is killed; it stays closed to others meanwhile"""
    agent = agent_of(stack)
    rank, reader, other = rank_of(stack, agent, "share=cuda_ipc"), reader_of(stack, agent), reader_of(stack, agent)
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


def test_buffers(stack):
    """A packed buffer that somebody has is not written: EBUSY names who, and the next offload goes on"""
    agent = agent_of(stack)
    rank, reader = rank_of(stack, agent, "share=packed_cuda_ipc", "timeout=500"), reader_of(stack, agent)
    offload([rank], 1)
    opens(reader, 1, ALL[1])
    offload([rank], 2)
    assert rank.refused("offload 3", f"pid {reader.pid}") == EBUSY
    assert reader.ask("check 1").startswith("good")
    assert reader.ask("close 0") == "closed"
    offload([rank], 4)
    opens(reader, 4, ALL[1])


def test_trainer_ends(stack):
    """A trainer that is killed: who has the version keeps it, nobody opens it any more"""
    agent = agent_of(stack)
    for how in ("share=cuda_ipc", "share=packed_cuda_ipc"):
        model = how[6:]
        rank, reader, late = rank_of(stack, agent, how, model=model), reader_of(stack, agent, model), reader_of(stack, agent, model)
        offload([rank], 1)
        opens(reader, 1, ALL[1])
        rank.kill()
        wait_for(lambda: status(agent, model)[1]["state"] == "over", "the agent to notice")
        assert reader.ask("check 1").startswith("good")
        assert late.refused("open 1", "has ended") == ENOENT
        assert late.refused("open 0", "") == ENOENT


def test_agent_ends(stack):
    """An agent that is killed: what is open is still waited for, and the next agent goes on"""
    agent = agent_of(stack)
    rank = rank_of(stack, agent, "share=packed_cuda_ipc", "timeout=500")
    reader = reader_of(stack, agent)
    offload([rank], 1)
    opens(reader, 1, ALL[1])
    offload([rank], 2)
    agent.kill()
    again = Agent(stack, sock=agent.sock)
    assert rank.refused("offload 3", "still has version 1") == EBUSY
    assert reader.ask("check 1").startswith("good")
    assert reader.ask("close 0") == "closed"
    offload([rank], 4)
    opens(reader, 4, ALL[1])
    assert sorted(status(again)) == [4]


def test_lineage(stack):
    """Another lineage's versions are closed to who asks for the old ones; a version that was abandoned is never offered"""
    agent = agent_of(stack)
    first = rank_of(stack, agent, "share=cuda_ipc", "timeout=2000", rank=0, world=2)
    second = rank_of(stack, agent, "share=cuda_ipc", "timeout=2000", rank=1, world=2)
    reader = reader_of(stack, agent)
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


def test_limits(stack):
    """What cannot be: no driver, an unknown strategy, a full table of descriptors"""
    agent = agent_of(stack)
    rank, reader = rank_of(stack, agent, "share=cuda_ipc", "vmm"), reader_of(stack, agent, driver="/nowhere/libcuda.so")
    offload([rank], 1)
    assert reader.refused("open 1", "driver") == ENOTSUP
    reader = reader_of(stack, agent)
    opens(reader, 1, ALL[1])
    reader.ask("close 0")
    used = len(os.listdir(f"/proc/{reader.pid}/fd"))
    assert reader.ask(f"limit {used + 3}") == "limited 0"
    assert reader.refused("open 1", "") in (EMFILE,)
    assert status(agent)[1]["leases"] == 0
    rank.ask("unshare 5000")
    try:
        rank_of(stack, agent, "share=nccl", model="other")
        raise AssertionError("share=nccl was taken")
    except Refused as e:
        assert "wsync_config.share" in e.text, e


class Peer:
    """A raw connection to the agent's socket."""

    def __init__(self, stack, agent):
        self.socket = stack.enter_context(socket.socket(socket.AF_UNIX))
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


def test_hostile(stack):
    """Malformed requests on the local routes are refused with a reason, and the agent goes on"""
    agent = agent_of(stack)
    rank, reader = rank_of(stack, agent, "share=cuda_ipc"), reader_of(stack, agent)
    offload([rank], 1)
    peer = Peer(stack, agent)
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
            continue  # a negative version counts as none: the newest
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
            assert "begin" not in reply["error"], (one, reply)  # it is the listing that is refused
        reply = peer.ask("share", {"version": 1, "run": good["run"], "strategy": "cuda_ipc", "listing": listing()}, [null.fileno()])
        assert "begin" in reply["error"], reply
    opens(reader, 1, ALL[1])


if __name__ == "__main__":
    run(test_parameters, test_mapped, test_packed, test_mount, test_ranks, test_unshare, test_buffers, test_trainer_ends, test_agent_ends, test_lineage,
        test_limits, test_hostile)
