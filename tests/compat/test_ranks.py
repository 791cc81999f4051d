#!/usr/bin/env python3
# beside others
# timeout: 240
"""Trainers whose ranks have another release's library than the agent, than each other, or than their program was built with."""
import struct

from releases import *

try:
    import ranks
except ImportError as e:
    skip_all(f"{e.name} is not installed, as PyPI could not be reached")

ELEMENTS = 1 << 20  # 3 MB


def rank(stack, release, agent, i, n, *args):
    return type("Rank", (ranks.Rank,), {"build": release.build})(stack, agent, "actor", i, n, ELEMENTS, *args)


def offload(trainer, version):
    for command, answer in (("offload", "offloaded"), ("wait", "published")):
        got = ranks.ask_all(trainer, f"{command} {version}")
        assert got == [f"{answer} {version}"] * len(trainer), got


def same_ranks(mount, version):
    mount.wait_version("actor", version)
    got, want = tensors_of(mount.file("actor", version, "model.safetensors")), ranks.expected(version, ELEMENTS)
    assert got == want, ranks.describe(version, got, want)


def test_agent(stack, trainers, agents):
    "ranks on an agent publish steps, also while readers of both releases hold some and a rank comes back"
    agent = agents.Agent(stack)
    trainer = [rank(stack, trainers, agent, i, 2) for i in (0, 1)]
    mounts = [release.Mount(stack, source) for release in (trainers, agents) for source in (agent.url, f"unix:{agent.sock}")]
    for version in range(1, 7):
        offload(trainer, version)
        for mount in mounts:
            same_ranks(mount, version)
        if version == 3:
            trainer[1].end()
            trainer[1] = rank(stack, trainers, agent, 1, 2)


def test_each_other(stack, first, other):
    "ranks of one trainer have both releases' libraries, on an agent of either"
    for agents in first, other:
        agent = agents.Agent(stack)
        trainer = [rank(stack, release, agent, i, 3) for i, release in enumerate((first, other, first))]
        mount = NEW.Mount(stack, agent.url)
        for version in range(1, 5):
            offload(trainer, version)
            same_ranks(mount, version)


def test_nodes(stack, primaries, secondaries):
    "a trainer of two nodes whose agents are of both releases; mounts of either make the version of its parts"
    first = primaries.Agent(stack)
    agents = [first, secondaries.Agent(stack, "--primary", first.url)]
    trainer = [rank(stack, release, agent, i, 2) for i, (release, agent) in enumerate(zip((primaries, secondaries), agents))]
    mounts = [release.Mount(stack, f"{agents[0].url},{agents[1].url}") for release in (primaries, secondaries)]
    for version in range(1, 5):
        offload(trainer, version)
        for mount in mounts:
            same_ranks(mount, version)


def test_library(stack, programs, libraries):
    "a program that was built with a header runs with the library: it publishes the same, or is told both releases"
    agent = libraries.Agent(stack)
    mount = libraries.Mount(stack, agent.url)
    done = subprocess.run([f"{programs.build}/backends/trainer/examples/offload", f"unix:{agent.sock}", "example", "0", "1"], stdin=subprocess.DEVNULL,
                          env=dict(os.environ, LD_LIBRARY_PATH=libraries.build), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    mount.wait_version("example", 3)
    bits = [struct.unpack("<I", struct.pack("<f", 3 + i / 8))[0] >> 16 for i in range(30)]  # bfloat16 holds them all
    want = ("BF16", [5, 6], struct.pack("<30H", *bits))
    got = tensors_of(mount.file("example/3/model.safetensors"))
    assert got == {f"model.{name}.weight": want for name in ("by_rows", "by_columns", "everywhere")}, got


run(*pairs(test_agent, test_each_other, test_nodes, test_library))
