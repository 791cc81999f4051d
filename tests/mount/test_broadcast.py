# beside others
# timeout: 450, takes: 50
# sanitizers: thread
"""NCCL broadcasts from an agent's slot, with the stand-ins for CUDA's driver and NCCL: several receivers at once, receivers that die, hang
or are of another release; an agent that dies; a version that is revoked meanwhile."""
import os
import re

import pytest

from world import *

RECEIVE = os.path.join(BUILD, "tests/tools/receive")
CUDA, NCCL = (os.path.join(BUILD, "tests/fakes", name) for name in ("libcuda.so.1", "libnccl.so.2"))
BLOCK = 4 << 20
TENSORS = {f"t{i}": ("U8", [BLOCK - i]) for i in range(18)}  # with the header 18 blocks, in five buckets
SMALL = {f"t{i}": ("U8", [BLOCK - i]) for i in range(4)}


def need_stand_ins():
    if not os.path.exists(CUDA) or not os.path.exists(NCCL):
        pytest.skip("built without the headers of CUDA or NCCL")


@contextlib.contextmanager
def environment(nccl="", cuda="", **other):
    """Sets environment variables for processes that are started within it."""
    env = dict(WSYNC_LIBCUDA=CUDA, WSYNC_LIBNCCL=NCCL, WSYNC_FAKE_CUDA=",".join(filter(None, ("devices=5", cuda))),
               WSYNC_FAKE_NCCL=nccl) | other
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def agent_of(*args, device=0, window=100, tensors=TENSORS, **env):
    need_stand_ins()
    with environment(**env):
        agent = Agent("--broadcast", device, "--broadcast-window", window, *args)
    agent.publish("actor", 1, checkpoint(tensors, seed=1))
    return agent


class Receiver:
    def __init__(self, source, device=1, version=1, timeout_ms=0, share=1, **env):
        with environment(**env):
            self.process = subprocess.Popen([RECEIVE, source, "actor", *map(str, (version, device, timeout_ms * SLOW, share))],
                                            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        at_end(self.end)
        assert self.process.stdout.readline() == "begins\n"

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def says(self, seconds=30):
        self.process.wait(seconds * SLOW)
        return self.process.stdout.read().strip()

    def fails(self, seconds=30):
        name, n, text = self.says(seconds).split(" ", 2)
        assert name != "ok", (name, n, text)
        return name, int(n), text


def status(agent):
    return agent.get("/v1/status")["broadcast"]


def metric(agent, name):
    with urllib.request.urlopen(agent.url + "/metrics", timeout=20) as r:
        return float(re.search(rf"^{re.escape(name)} (\S+)$", r.read().decode(), re.M).group(1))


def test_one():
    "one receiver gets the published bytes, and both ends report the speed"
    agent = agent_of()
    assert re.fullmatch(r"ok broadcast to 1 at \d+\.\d GB/s in 1 round", r := Receiver(agent.url).says()), r
    s = wait_for(lambda: status(agent)["rounds"] == 1 and status(agent), "the end of the round")
    assert s["failed"] == 0 and s["bytes"] > 18 * BLOCK - 200 and s["bytes_per_second"] > 0 and s["waiting"] == 0, s
    assert metric(agent, 'wsync_agent_broadcasts_total{result="whole"}') == 1
    assert metric(agent, "wsync_agent_broadcast_bytes_total") == s["bytes"]
    assert re.search(r"broadcast model=actor version=1 to=1 bytes=\d+ ms=\S+ GB/s=\d", agent.text()), agent.text()


def test_three():
    "one round serves three receivers, by TCP and by the socket, also one that has most blocks already"
    agent = agent_of(window=2000)  # the longest that the agent takes: all three must start within it
    all_ = [Receiver(agent.url, 1), Receiver(f"unix:{agent.sock}", 2), Receiver(agent.url, 3, share=4)]
    for r in all_:
        assert re.match(r"ok broadcast to 3 at .* in 1 round$", said := r.says()), said
    wait_for(lambda: status(agent)["rounds"] == 1, "the end of the round")


def test_only_what_is_missing():
    "blocks that no receiver lacks are not sent"
    agent = agent_of()
    assert Receiver(agent.url, share=6).says().startswith("ok ")
    assert wait_for(lambda: status(agent)["bytes"], "the end of the round") <= 4 * BLOCK


def test_next_round():
    "a receiver that joins during a round takes part in the next one"
    agent = agent_of()
    first = Receiver(agent.url, 1, nccl="slow=1:300")
    wait_for(lambda: status(agent)["receiving"] == 1, "the first round")
    second = Receiver(agent.url, 2)
    for receiver in (first, second):
        assert (said := receiver.says()).startswith("ok broadcast to 1 "), said
    wait_for(lambda: status(agent)["rounds"] == 2, "the end of both")


def test_killed():
    "a receiver killed inside a bucket costs the others one round, and nothing else"
    agent = agent_of(window=2000)
    lost = Receiver(agent.url, 1, nccl="die=ncclBroadcast:2")
    others = [Receiver(agent.url, d) for d in (2, 3)]
    for r in others:
        assert re.match(r"ok broadcast to [23] at ", said := r.says(60)), said
    assert lost.says() == ""
    s = wait_for(lambda: status(agent)["rounds"] >= 1 and status(agent), "the end of the round")
    assert s["failed"] >= 1, s
    assert "broadcast given up model=actor version=1 to=3" in agent.text(), agent.text()


def test_hangs():
    "a receiver that hangs is dropped within the deadline, and the others finish without it"
    agent = agent_of(window=1500)
    hung = Receiver(agent.url, 1, nccl="hang=1:2")
    time.sleep(0.2)
    # Longer than the agent's own limit, for one that comes too late for the round which hangs.
    others = [Receiver(agent.url, d, timeout_ms=8000) for d in (2, 3)]
    for r in others:  # in one round without it, or each in a later one
        assert re.match(r"ok broadcast to [123] at ", said := r.says(60)), said
    hung.process.kill()


def test_lost_gpu():
    "a receiver that loses its GPU costs the others one round; an agent that loses its GPU reports it to all receivers"
    agent = agent_of(window=2000)
    lost = Receiver(agent.url, 1, cuda="lost=cuMemcpyAsync:2")
    other = Receiver(agent.url, 2)
    assert lost.fails()[0] == "EIO" and other.says(60).startswith("ok broadcast to ")
    agent = agent_of(cuda="lost=cuMemcpyAsync:3")
    name, n, text = Receiver(agent.url, timeout_ms=2000).fails(60)
    assert n < 18 and "it lost its GPU" in text, (name, n, text)
    assert "it lost its GPU" in Receiver(agent.url).fails()[2]


def test_known_mounts():
    "once all mounts that the agent knows have joined, it waits for no other"
    agent = agent_of(window=2000, tensors=SMALL)
    agent.ask("/v1/actor/mounts", dict(mount="h1:/wsync"))
    agent.ask("/v1/actor/mounts", dict(mount="h2:/wsync"))
    all_ = [Receiver(agent.url, d, WHO=f"h{d}:/wsync") for d in (1, 2)]
    began = time.monotonic()
    for r in all_:
        assert (said := r.says()).startswith("ok broadcast to 2 "), said
    assert time.monotonic() - began < 1.5 * SLOW


def test_agent_dies():
    "if the agent dies inside a round, its receivers report it in time and keep the received blocks"
    agent = agent_of(nccl="die=ncclBroadcast:4")
    name, n, text = Receiver(agent.url, timeout_ms=2000).fails(60)
    assert name in ("ECONNREFUSED", "EHOSTUNREACH", "ECONNRESET"), (name, text)
    assert n < 18, n
    assert not agent.alive()


def test_revoked():
    "revoking a version ends its round, and its receivers are told that the version is gone"
    agent = agent_of("--slots", 2)
    r = Receiver(agent.url, nccl="slow=1:400")
    wait_for(lambda: status(agent)["receiving"] == 1, "the round")
    for version in (2, 3):
        agent.publish("actor", version, checkpoint(SMALL, seed=version))
    name, _, text = r.fails(60)
    assert name == "ESTALE" and "actor/1" in text, (name, text)
    assert "broadcast given up model=actor version=1" in agent.text()
    assert Receiver(agent.url, version=3).says().startswith("ok ")


def test_other_release():
    "NCCL of another release is refused by the agent, of another major release by the receiver, with both numbers"
    agent = agent_of(tensors=SMALL)
    ours = status(agent)["nccl"]
    name, n, text = Receiver(agent.url, nccl="version=21803").fails()
    assert name in ("ENOTSUP", "EOPNOTSUPP") and n == 0 and f"the agent's is {ours}, this one's 2.18.3" in text, (name, text)
    name, n, text = Receiver(agent.url, nccl="version=30100").fails()
    assert name in ("ENOTSUP", "EOPNOTSUPP") and "of release 3.1.0, and this build is for 2." in text, (name, text)
    name, n, text = Receiver(agent.url, nccl="version=21400").fails()
    assert "2.14.0, and 2.18.0 is the oldest" in text, text


def test_refused():
    "requests for the agent's own GPU, to an agent that broadcasts nothing or has no driver, and for a folder are refused with the reason"
    agent = agent_of(tensors=SMALL)
    assert "from this very GPU" in Receiver(agent.url, 0).fails()[2]
    assert "there is no device 9" in Receiver(agent.url, 9).fails()[2]
    plain = Agent()
    plain.publish("actor", 1, checkpoint(SMALL, seed=1))
    for url in (plain.url, f"unix:{plain.sock}"):
        name, _, text = Receiver(url).fails()
        assert name in ("ENOTSUP", "EOPNOTSUPP") and "broadcasts nothing" in text, (name, text)
    with environment(WSYNC_LIBNCCL="/nowhere/libnccl.so.2"):
        auto = Agent("--broadcast", "auto")
        assert "nothing is broadcast: there is no NCCL" in auto.text(), auto.text()
        r = wsync("agent", "--listen", "127.0.0.1:0", "--socket", "none", "--broadcast", "0", check=False)
        assert r.returncode and "cannot broadcast from device 0: there is no NCCL" in r.stderr, r.stderr
    with environment():
        r = wsync("agent", "--listen", "127.0.0.1:0", "--socket", "none", "--broadcast", "9", check=False)
        assert r.returncode and "there is no device 9" in r.stderr, r.stderr
    assert "broadcast" not in plain.get("/v1/status")


def test_hostile():
    "malformed requests are refused, and do not disturb the rounds of others"
    agent = agent_of(tensors=SMALL)
    m = agent.get("/v1/actor/1/manifest")
    good = dict(mount="x", uuid="GPU-1", nccl=int("".join(f"{int(p):02}" for p in status(agent)["nccl"].split("."))),
                digest=m["digest"], wants="all")

    def code(version=1, **change):
        body = {k: v for k, v in dict(good, **change).items() if v is not None}
        try:
            return agent.ask(f"/v1/actor/{version}/broadcast", body)
        except urllib.error.HTTPError as e:
            return e.code

    assert code(uuid=None) == 400 and code(uuid="x" * 99) == 400 and code(wants="some") == 400 and code(wants=7) == 400
    assert code(mount="x" * 999) == 400 and code(nccl=-1) in (400, 405) and code(nccl="2") == 405
    assert code(digest="0" * 32) == 410 and code(version=9) == 404
    assert code(ticket=77) == 503 and code(ticket="x") == 503
    for wants in ([[0, 0, 99999999]], [[0, -1, 1]], [[9, 0, 1]], [], [[]], [[0, 1, 1], [0, 0, 1]], [7]):
        assert code(wants=wants) == 400, wants
    assert status(agent)["waiting"] == 0
    left = code()
    assert agent.ask("/v1/actor/1/broadcast", dict(ticket=left["ticket"], leave=True)) is not None
    assert status(agent)["waiting"] == 0
    code()  # the participant does not join
    assert Receiver(agent.url, timeout_ms=6000).says(60).startswith("ok ")


def test_signed():
    "a mount with a key takes part in a broadcast, and each block that it gets is checked against what was signed"
    key = unique("key")
    wsync("key", "new", "--out", key)
    need_fuse()
    agent = agent_of("--sign-key", key)
    with environment():
        mount = Mount(agent.url, f"device=1,strategy=broadcast:tcp,verify-key={key}.pub")
    mount.wait_version("actor", 1)
    mount.write("pull 1", "actor/ctl")
    assert "broadcast to" in mount.status("actor")["version.1"], mount.status("actor")["version.1"]
    mount.write("verify 1", "actor/ctl")
