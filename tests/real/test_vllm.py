#!/usr/bin/env python3
# timeout: 900
"""A real vLLM on a mount, switched by wsync, or by hand with the calls that it has."""
import contextlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from scenarios import scenarios
from servers import CLOSE, PROMPTS, VLLM, Refused, distance
from world import run


def test_reload(_):
    "without wsync's switch: pause, reload_weights of the mount's other version, resume"
    w = world()
    for version in (2, 1):
        w.server.reload(w.path(version))
        w.check(w.server, version)


def test_incomplete(_):
    "why there is a gate: vLLM takes a checkpoint without a tensor and serves a mix"
    w = world()
    w.server.reload(w.folder("missing"))  # is version 2 but for what it lacks
    mixed = w.server.score(PROMPTS[2])
    w.server.reload(w.path(1))
    w.check(w.server, 1)
    assert all(distance(mixed, score) > CLOSE for score in w.score.values())


def test_broken(_):
    "a reload that failed leaves it paused; a good one from the mount brings it back"
    w = world()
    try:
        w.server.reload(w.folder("truncated"))
        raise AssertionError("vLLM took half a file")
    except Refused as e:
        assert "500" in str(e), e
    assert w.server.call("/is_paused")["is_paused"] is True
    w.server.reload(w.path(1))
    w.check(w.server, 1)


def test_strategies(stack):
    "every way of reading files that vLLM has reads the mount: lazy, eager, prefetch"
    w = world()
    for version, strategy in ((2, "eager"), (1, "prefetch"), (2, "lazy")):
        with contextlib.ExitStack() as one:  # one after the other: memory
            server = VLLM(one, w.path(version), *VLLM.uncached, "--safetensors-load-strategy", strategy).wait()
            w.check(server, version)
            server.reload(w.path(3 - version))
            w.check(server, 3 - version)


with contextlib.ExitStack() as stack:
    world, tests = scenarios(stack, VLLM)
    run(tests[0], test_reload, test_incomplete, test_broken, *tests[1:], test_strategies)
