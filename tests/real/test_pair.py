#!/usr/bin/env python3
# timeout: 600
"""One real vLLM and one real SGLang on one mount: a switch takes both along, or neither."""
import contextlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from scenarios import MODEL, Ground, once
from servers import CLOSE, PROMPTS, SGLang, VLLM, distance
from world import run, unique, wait_for

KEY = "key-of-the-pair"


class Pair(Ground):
    """Both started on version 1 of the mount; SGLang asks for a key."""

    def __init__(self, stack):
        super().__init__(stack, VLLM, SGLang)
        self.key_file = unique("key")
        with open(self.key_file, "w") as f:
            f.write(KEY + "\n")
        self.servers = {"vllm": VLLM(stack, self.path(1), *VLLM.uncached),
                        "sglang": SGLang(stack, self.path(1), *SGLang.uncached, "--api-key", KEY,
                                         "--weight-loader-prefetch-checkpoints")}
        self.servers["sglang"].key = KEY
        self.fresh = {name: server.wait().answers() for name, server in self.servers.items()}

    def add(self, stack, **options):
        for name, server in self.servers.items():
            key = f" token-file={self.key_file}" if server.key else ""
            self.engine(stack, name, server, options.get(name, "") + key)

    def check_still_1(self, *names):
        assert self.mount.text(f"{MODEL}/version") == "1\n" and os.readlink(self.mount.file(MODEL, "current")) == "1"
        for name in names or self.servers:
            assert self.engines()[name].startswith("serving 1 "), self.engines()
            assert self.servers[name].serves() == "1"
            assert self.servers[name].answers() == self.fresh[name], f"{name} answers otherwise than when it was fresh"


def test_both(stack):
    "both go to version 2 and back in one switch, and answer alike on either"
    w = world()
    w.add(stack)
    scores = {}
    for version in (1, 2, 1):
        w.switch(version)
        scores[version] = [server.score(PROMPTS[2]) for server in w.servers.values()]
        assert distance(*scores[version]) < 2 * CLOSE, (version, distance(*scores[version]))
    assert distance(scores[1][0], scores[2][0]) > 10 * CLOSE
    w.check_still_1()


def test_refused_by_one(stack):
    "force-layout on a tensor too many: vLLM fails of it, SGLang has loaded it; both are back on the old version"
    w = world()
    w.add(stack)  # anew: vLLM does not say where it has loaded from
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


def test_refused_by_the_other(stack):
    "SGLang does not see the mount where it was said to be, vLLM has loaded: both are back on the old version"
    w = world()
    w.add(stack, sglang="prefix=/not/there")
    assert w.refused(2) == "EREMOTEIO"
    assert "engine sglang" in w.last_error(), w.last_error()
    w.check_still_1()


def test_death_of_one(stack):
    "force-layout on a wrong shape: SGLang dies of it, vLLM is back on the old version and goes on"
    w = world()
    w.add(stack)
    w.switch(1)
    version = w.another("shape")
    got = w.refused(f"load {version} force-layout", f"{MODEL}/ctl")
    assert got in ("EREMOTEIO", "ECONNRESET", "EHOSTUNREACH"), (got, w.last_error())
    wait_for(lambda: not w.servers["sglang"].alive(), "the end of SGLang", 60)
    wait_for(lambda: w.engines()["sglang"].startswith("unknown "), "the keeper to see it", 30)
    w.check_still_1("vllm")


with contextlib.ExitStack() as stack:
    world = once(Pair, stack)
    run(test_both, test_refused_by_one, test_refused_by_the_other, test_death_of_one)
