# timeout: 1800, takes: 150
# in every share
"""A real vLLM on a mount, switched by wsync, or by hand with the calls that it has."""

import pytest

from scenarios import *
from servers import CLOSE, PROMPTS, VLLM, Proxy, Refused, distance


@pytest.fixture(scope="module")
def kind():
    return VLLM


@pytest.fixture(scope="module")
def w():
    return World(VLLM)


def test_reload(w):
    "without wsync's switch: pause, reload_weights of the mount's other version, resume"
    for version in (2, 1):
        w.server.reload(w.path(version))
        w.check(w.server, version)


def test_sleep(w):
    "on a CPU it has no sleep mode: sleep= is refused, and says why"
    assert w.refused(f"engine add asleep vllm {w.server.url} sleep=1", f"{MODEL}/ctl") == "EPROTO"
    assert "--enable-sleep-mode" in w.last_error()


def test_incomplete(w):
    "why there is a gate: vLLM accepts a checkpoint without a tensor and serves a mix"
    w.server.reload(w.folder("missing"))  # equals version 2 except for the missing tensor
    mixed = w.server.score(PROMPTS[2])
    w.server.reload(w.path(1))
    w.check(w.server, 1)
    assert all(distance(mixed, score) > CLOSE for score in w.score.values())


def test_broken(w):
    "a failed reload leaves it paused; a good one from the mount repairs it"
    try:
        w.server.reload(w.folder("truncated"))
        raise AssertionError("vLLM took half a file")
    except Refused as e:
        assert "500" in str(e), e
    assert w.server.call("/is_paused")["is_paused"] is True
    w.server.reload(w.path(1))
    w.check(w.server, 1)


def test_forced_shape(w):
    "force-layout with a wrong shape: the switch fails, the server is rolled back and answers as before"
    w.engine("e1", w.server)
    w.switch(1)
    version = w.another("shape")
    assert w.refused(f"load {version} force-layout", f"{MODEL}/ctl") == "EREMOTEIO"
    assert "engine e1" in w.last_error() and "500" in w.last_error(), w.last_error()
    assert w.mount.text(f"{MODEL}/version") == "1\n" and w.engines()["e1"].startswith("serving 1 "), w.engines()
    w.check(w.server, 1)


def test_forced_head(w):
    "force-layout with a shape that vLLM cannot recover from: it is broken, and no switch ever resumes it"
    lost = w.ordinary[1]  # the last test of this server
    proxy = Proxy(lost)
    w.engine("lost", proxy)
    w.switch(1)
    version = w.another("head")
    proxy.seen.clear()
    for text in (f"load {version} force-layout", "load 2"):  # the second load is a good one
        assert w.refused(text, f"{MODEL}/ctl") == "EREMOTEIO", w.engines()
        assert w.engines()["lost"].startswith("broken "), w.engines()
        assert "restart it" in w.engines()["lost"], w.engines()
    assert w.mount.text(f"{MODEL}/version") == "1\n"
    assert "/resume" not in proxy.seen and lost.call("/is_paused")["is_paused"] is True
    lost.stop()


def test_strategies(w):
    "every file-reading strategy of vLLM works on the mount: lazy, eager, prefetch"
    for one in w.ordinary.values():  # this is the last test of the file: their memory is for others
        one.stop()
    servers = [(version, VLLM(w.path(version), *VLLM.uncached, "--safetensors-load-strategy", strategy))
               for version, strategy in ((2, "eager"), (1, "prefetch"), (2, "lazy"))]
    for version, server in servers:
        w.check(server.wait(), version)
        server.reload(w.path(3 - version))
        w.check(server, 3 - version)
