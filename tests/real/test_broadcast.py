# timeout: 1800, takes: 140
"""wsync.BroadcastSender over gloo: real SGLang (its weight-update group) and vLLM (the back end `wsync`) answer like servers started on that
version. Stand-in servers: a member that dies, hangs or refuses ends the group in time, and no engine is resumed on a partial version."""
import contextlib
import errno
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.request

import pytest

from scenarios import Ground
from servers import CLOSE, HERE, SGLang, SGLangWithWsync, VLLM, WithWsync, distance, installed
from world import at_end, checkpoint, entered, free_port, scope, wait_for

TIMEOUT = 8
TENSORS = {f"model.layers.{i}.mlp.w{k}": ("BF16" if k else "F32", [64, 3 + i]) for i in range(4) for k in (0, 1)}
TENSORS["lm_head.bias"] = ("F32", [])


def need(name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: PyPI could not be reached, or `.ci/deps real` has not run")


@pytest.fixture(autouse=True, scope="module")
def package():
    """The package, installed for servers and this process."""
    need("torch")
    target = WithWsync.target = SGLangWithWsync.target = installed()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(target)
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        yield


@pytest.fixture(scope="module")
def w():
    return World()


class StandIn:
    def __init__(self, *options, folder=None, release="0.5.23"):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "broadcast_server.py"), str(self.port), folder or checkpoint(TENSORS, seed=0), release,
                                         *options],
                                        env=dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL)
        at_end(lambda: (self.process.kill(), self.process.wait()))
        wait_for(self.lives, "the stand-in", 60)

    def state(self):
        with urllib.request.urlopen(self.url + "/state", timeout=5) as reply:
            return json.load(reply)

    def lives(self):
        assert self.process.poll() is None
        with contextlib.suppress(OSError):
            return self.state()
        return None


def sender(*engines, **options):
    import wsync

    made = wsync.BroadcastSender([wsync.Engine(kind, url, pause_mode=mode) for kind, url, mode in engines],
                                 **{"timeout": TIMEOUT, "backend": "gloo", "bucket_bytes": 2000, **options})
    at_end(made.close)
    return made


def weights_of(seed):
    import wsync

    return entered(wsync.open(checkpoint(TENSORS, seed=seed), "torch"))


def sums(weights):
    return {name: hashlib.sha256(bytes(weights.raw(name))).hexdigest() for name in weights}


def test_stand_ins():
    "two members, several buckets: every byte arrives; the next version uses the group again"
    a, b = StandIn(), StandIn()
    s = sender(("sglang", a.url, None), ("sglang", b.url, None))
    for seed, version in ((1, "1@r"), (2, "2@r")):
        weights = weights_of(seed)
        results = s.send(weights, version)
        assert all(r.ok and r.by == "broadcast" and r.pause_seconds > 0 for r in results), results
        for member in (a, b):
            state = member.state()
            assert state["tensors"] == sums(weights) and state["weight_version"] == version and not state["paused"], state
    assert a.state()["updates"] > 4 and a.state()["resumed_on"] == ["1@r", "2@r"]
    assert a.state()["flushed_on"] == ["1@r", "2@r"]
    assert s._group_count == 1, "the group was made twice"
    assert a.state()["buckets"] == a.state()["updates"]


def test_older():
    """for a release older than the first one tested with buckets, tensors are sent one by one; if its folder is not on this host, layout= is
    compared"""
    a, b = StandIn(folder="hub/name"), StandIn(release="0.4.9", folder="hub/name")
    weights = weights_of(1)
    results = sender(("sglang", a.url, None), ("sglang", b.url, None)).send(weights, "1@r")
    assert not any(r.ok for r in results) and all("Give layout=" in str(r.error) for r in results), results
    results = sender(("sglang", a.url, None), ("sglang", b.url, None), layout=checkpoint(TENSORS, seed=0)).send(weights, "1@r")
    assert all(r.ok for r in results), results
    for member in (a, b):
        assert member.state()["tensors"] == sums(weights) and not member.state()["buckets"], member.state()


def test_incomplete():
    "weights with a missing tensor or another shape are not sent; nor are weights without a version"
    import wsync

    a = StandIn()
    s = sender(("sglang", a.url, None))
    for tensors, what in (({k: v for k, v in TENSORS.items() if "layers.2" not in k}, "missing model.layers.2.mlp.w0"),
                          (TENSORS | {"lm_head.bias": ("F32", [2])}, "differs lm_head.bias")):
        with wsync.open(checkpoint(tensors, seed=1), "torch") as weights:
            results = s.send(weights, "1@r")
            assert not results[0].ok and what in str(results[0].error) and results[0].error.errno == errno.EPROTO, results
    with wsync.open(checkpoint(TENSORS, seed=1), "torch") as weights:
        try:
            s.send(weights)
        except ValueError as e:
            assert "give version=" in str(e)
        else:
            raise AssertionError("it was sent without a version")
    state = a.state()
    assert not state["updates"] and not state["resumed_on"] and state["weight_version"] == "default", state
    with wsync.open(checkpoint({k: v for k, v in TENSORS.items() if "layers.2" not in k}, seed=1), "torch") as weights:
        assert s.send(weights, "1@r", force_layout=True)[0].ok


def test_one_dies():
    "one member dies midway: both results are errors, in time, and the other engine stays paused; then the survivors get the next version"
    a, b = StandIn(), StandIn("--die-at", "2")
    s = sender(("sglang", a.url, None), ("sglang", b.url, None))
    began = time.monotonic()
    results = s.send(weights_of(1), "1@r")
    assert time.monotonic() - began < 5 * TIMEOUT
    assert not results[0].ok and "stays paused" in str(results[0].error), results
    assert not results[1].ok and b.process.wait(5) == 9, results
    state = a.state()
    assert state["paused"] and not state["resumed_on"] and not state["session"], state
    assert state["weight_version"] == "part of 1@r", state
    results = s.send(weights_of(2), "2@r")
    assert results[0].ok and not results[1].ok, results
    assert a.state()["resumed_on"] == ["2@r"] and a.state()["tensors"] == sums(weights_of(2))


def test_one_hangs():
    "one member does not take part: the group ends within its timeout"
    a, b = StandIn(), StandIn("--hang-at", "2")
    s = sender(("sglang", a.url, None), ("sglang", b.url, None), timeout=3)
    began = time.monotonic()
    results = s.send(weights_of(1), "1@r")
    assert time.monotonic() - began < 30, time.monotonic() - began
    assert not any(r.ok for r in results) and all("stays paused" in str(r.error) for r in results), results
    assert not a.state()["resumed_on"] and not b.state()["resumed_on"]


def test_one_refuses():
    "one member refuses its first update: its answer is every engine's error, and none is resumed"
    a, b = StandIn(), StandIn("--refuse-at", "1")
    s = sender(("sglang", a.url, None), ("sglang", b.url, None))
    results = s.send(weights_of(1), "1@r")
    assert not any(r.ok for r in results) and all("refused as asked" in str(r.error) for r in results), results
    assert not a.state()["resumed_on"] and not b.state()["resumed_on"]


def test_no_server():
    "without a server at a URL that engine's result is an error and the others are sent to; an unknown kind is refused"
    import wsync

    a = StandIn()
    results = sender(("sglang", a.url, None), ("vllm", f"http://127.0.0.1:{free_port()}", None)).send(weights_of(1), "1@r")
    assert results[0].ok and not results[1].ok and "no connection to" in str(results[1].error) and results[1].error.errno == errno.EHOSTUNREACH, results
    try:
        wsync.BroadcastSender([wsync.Engine("other", a.url)])
    except ValueError as e:
        assert "sglang or vllm" in str(e)
    else:
        raise AssertionError("it was taken")


class World(Ground):
    """A real SGLang and a real vLLM on version 1, and the answers of fresh servers on each version."""

    def __init__(self):
        super().__init__(SGLang, VLLM)
        with scope():  # these two, then those two, to save memory
            fresh = [kind(self.folder(2), *kind.uncached) for kind in (SGLang, VLLM)]
            self.answers = {server.kind: server.wait().answers() for server in fresh}
        self.sglang = SGLangWithWsync(self.path(1), *SGLang.uncached)
        self.vllm = WithWsync(self.path(1), *VLLM.uncached, "--weight-transfer-config", '{"backend": "wsync"}')
        for server in (self.sglang, self.vllm):
            server.wait()
            assert distance(server.answers(), self.answers[server.kind]) > 10 * CLOSE

    def check(self, server):
        assert server.answers() == self.answers[server.kind], f"{server.kind}: other answers than a fresh server on 2"


def test_real(w):
    "SGLang and vLLM in one group: both answer like fresh servers on version 2"
    import wsync

    both = (("sglang", w.sglang.url, None), ("vllm", w.vllm.url, None))
    s = sender(*both, bucket_bytes=64 << 10, timeout=40)
    with wsync.open(w.path(2), "torch") as weights:
        results = s.send(weights, path=w.path(2))
    assert all(r.ok and r.by == "broadcast" for r in results), results
    for server in (w.sglang, w.vllm):
        w.check(server)
        assert server.serves() == "2", server.serves()
    assert w.sglang.call("/server_info")["internal_states"][0]["wsync"]["forgets_embeddings"]


def test_real_refused(w):
    "vLLM refuses a version with a missing tensor and serves the previous one; with path= it loads the complete version"
    import wsync

    s = sender(("vllm", w.vllm.url, None), timeout=20)
    before = w.vllm.answers()
    with wsync.open(w.folder("missing"), "torch") as weights:
        results = s.send(weights, version="9")
        assert "missing model.layers.1.mlp.down_proj.weight" in str(results[0].error) and results[0].error.errno == errno.EPROTO, results
        s = sender(("vllm", w.vllm.url, None), timeout=20, layout=w.folder("missing"))  # so that vLLM finds the difference
        results = s.send(weights, version="9")
    assert not results[0].ok and "missing model.layers.1.mlp.down_proj.weight" in str(results[0].error), results
    assert "serves what it did before" in str(results[0].error), results
    assert w.vllm.answers() == before
    with wsync.open(w.path(1), "torch") as weights:
        results = sender(("vllm", w.vllm.url, None), timeout=20).send(weights, path=w.path(1))
    assert results[0].ok, results
    assert distance(w.vllm.answers(), before) > 10 * CLOSE
