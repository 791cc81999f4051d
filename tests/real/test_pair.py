# timeout: 600, takes: 50
"""One real vLLM and one real SGLang on one mount: a switch switches both, or neither."""
import os

import pytest

from scenarios import MODEL, Ground
from servers import CLOSE, PROMPTS, SGLang, VLLM, distance
from world import unique, wait_for

KEY = "key-of-the-pair"


class Pair(Ground):
    """Both are started on version 1 of the mount; SGLang requires a key."""

    def __init__(self):
        super().__init__(VLLM, SGLang)
        self.key_file = unique("key")
        with open(self.key_file, "w") as f:
            f.write(KEY + "\n")
        self.servers = {"vllm": VLLM(self.path(1), *VLLM.uncached),
                        "sglang": SGLang(self.path(1), *SGLang.uncached, "--api-key", KEY,
                                         "--weight-loader-prefetch-checkpoints")}
        self.servers["sglang"].key = KEY
        self.fresh = {name: server.wait().answers() for name, server in self.servers.items()}

    def add(self, **options):
        for name, server in self.servers.items():
            key = f" token-file={self.key_file}" if server.key else ""
            self.engine(name, server, options.get(name, "") + key)

    def check_still_1(self, *names):
        assert self.mount.text(f"{MODEL}/version") == "1\n" and os.readlink(self.mount.file(MODEL, "current")) == "1"
        for name in names or self.servers:
            assert self.engines()[name].startswith("serving 1 "), self.engines()
            assert self.servers[name].serves() == "1"
            assert self.servers[name].answers() == self.fresh[name], f"{name} answers otherwise than when it was fresh"


@pytest.fixture(scope="module")
def w():
    return Pair()


def test_both(w):
    "one switch takes both to version 2, another back, and they answer alike on either"
    w.add()
    scores = {}
    for version in (1, 2, 1):
        w.switch(version)
        scores[version] = [server.score(PROMPTS[2]) for server in w.servers.values()]
        assert distance(*scores[version]) < 2 * CLOSE, (version, distance(*scores[version]))
    assert distance(scores[1][0], scores[2][0]) > 10 * CLOSE
    w.check_still_1()


def test_refused_by_one(w):
    "force-layout with an extra tensor: vLLM fails, SGLang has loaded it; both are rolled back"
    w.add()  # added again: vLLM does not report the path that it loaded
    version = w.another("extra")
    assert w.refused(version) == "EPROTO"
    w.check_still_1()
    assert w.refused(f"load {version} force-layout", f"{MODEL}/ctl") == "EREMOTEIO"
    assert "engine vllm" in w.last_error(), w.last_error()
    events = w.mount.text(f"{MODEL}/events")
    for name, result in (("vllm", "EREMOTEIO"), ("sglang", "ok")):
        assert any(f"loaded model={MODEL} version={version} engine={name} " in line and f"result={result}" in line
                   for line in events.splitlines()), events[-3000:]
    w.check_still_1()


def test_refused_by_the_other(w):
    "SGLang cannot see the mount at the given prefix, vLLM has loaded: both are rolled back"
    w.add(sglang="prefix=/not/there")
    assert w.refused(2) == "EREMOTEIO"
    assert "engine sglang" in w.last_error(), w.last_error()
    w.check_still_1()


def test_death_of_one(w):
    "force-layout with a wrong shape: SGLang dies, vLLM is rolled back and continues"
    w.add()
    w.switch(1)
    version = w.another("shape")
    got = w.refused(f"load {version} force-layout", f"{MODEL}/ctl")
    assert got in ("EREMOTEIO", "ECONNRESET", "EHOSTUNREACH"), (got, w.last_error())
    wait_for(lambda: not w.servers["sglang"].alive(), "the end of SGLang", 60)
    wait_for(lambda: w.engines()["sglang"].startswith("unknown "), "the reconciler to see it", 30)
    w.check_still_1("vllm")
