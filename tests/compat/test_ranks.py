# beside others
# timeout: 480
"""Trainers whose ranks' library is of another release than the agent's, than each other's, or than the header of their program."""
import os
import re
import signal
import struct

import pytest

from releases import *

try:
    import ranks
except ImportError as e:
    pytest.skip(f"{e.name} is not installed, as PyPI could not be reached", allow_module_level=True)

ELEMENTS = 1 << 20  # 3 MB


def rank(release, agent, i, n, *args, elements=ELEMENTS):
    return type("Rank", (ranks.Rank,), {"build": release.build})(agent, "actor", i, n, elements, *args)


def offload(trainer, version):
    for command, answer in (("offload", "offloaded"), ("wait", "published")):
        got = ranks.ask_all(trainer, f"{command} {version}")
        assert got == [f"{answer} {version}"] * len(trainer), got


def same_ranks(mount, version, elements=ELEMENTS):
    mount.wait_version("actor", version)
    got, want = tensors_of(mount.file("actor", version, "model.safetensors")), ranks.expected(version, elements)
    assert got == want, ranks.describe(version, got, want)


@pairs
def test_agent(trainers, agents):
    "ranks publish steps to an agent, also while readers of both releases hold some and a rank restarts"
    agent = agents.Agent()
    trainer = [rank(trainers, agent, i, 2) for i in (0, 1)]
    mounts = [release.Mount(source) for release in (trainers, agents) for source in (agent.url, f"unix:{agent.sock}")]
    for version in range(1, 7):
        offload(trainer, version)
        for mount in mounts:
            same_ranks(mount, version)
        if version == 3:
            trainer[1].end()
            trainer[1] = rank(trainers, agent, 1, 2)


@pairs
def test_each_other(first, other):
    "ranks of one trainer with both releases' libraries, with an agent of either"
    for agents in first, other:
        agent = agents.Agent()
        trainer = [rank(release, agent, i, 3) for i, release in enumerate((first, other, first))]
        mount = NEW.Mount(agent.url)
        for version in range(1, 5):
            offload(trainer, version)
            same_ranks(mount, version)


@pairs
def test_nodes(primaries, secondaries):
    "a trainer on two nodes whose agents are of both releases; mounts of either release merge its parts"
    first = primaries.Agent(*(["--nodes"] if primaries is not FIRST else []))
    agents = [first, secondaries.Agent("--primary", first.url)]
    trainer = [rank(release, agent, i, 2) for i, (release, agent) in enumerate(zip((primaries, secondaries), agents))]
    mounts = [release.Mount(f"{agents[0].url},{agents[1].url}") for release in (primaries, secondaries)]
    for version in range(1, 5):
        offload(trainer, version)
        for mount in mounts:
            same_ranks(mount, version)


@pairs
def test_library(programs, libraries):
    "a program built with one header runs with the other library: it publishes the same, or an older library is refused at its start"
    agent = libraries.Agent()
    mount = libraries.Mount(agent.url)
    done = subprocess.run([f"{programs.build}/backends/trainer/examples/offload", f"unix:{agent.sock}", "example", "0", "1"], stdin=subprocess.DEVNULL,
                          env=dict(os.environ, LD_LIBRARY_PATH=libraries.build), capture_output=True, text=True, timeout=60)
    if libraries is FIRST:
        assert done.returncode and "libwsync.so" in done.stderr and "version `WSYNC_0.2' not found" in done.stderr, done.stderr
        return
    assert done.returncode == 0, done.stderr
    mount.wait_version("example", 3)
    bits = [struct.unpack("<I", struct.pack("<f", 3 + i / 8))[0] >> 16 for i in range(30)]  # bfloat16 holds them all
    want = ("BF16", [5, 6], struct.pack("<30H", *bits))
    got = tensors_of(mount.file("example/3/model.safetensors"))
    assert got == {f"model.{name}.weight": want for name in ("by_rows", "by_columns", "everywhere")}, got


LARGE = 48 << 20  # records come in several batches


@pytest.mark.parametrize("who", ["mounts", "agents", "trainers"])
@olds
def test_while_it_is_written(old, who, monkeypatch):
    "where mount, agent or rank is older, nothing is sent of a version before it is whole, or nobody reads it; its bytes are right"
    monkeypatch.setenv("PREFER", "latency")
    monkeypatch.setenv("WSYNC_COMPARE", "check")
    mounts, agents, trainers = (old if who == role else NEW for role in ("mounts", "agents", "trainers"))
    agent = agents.Agent()
    one = rank(trainers, agent, 0, 1, elements=LARGE)
    mount = mounts.Mount(agent.url, "cache=1G,threads=2" + (",provisional=on" if mounts is NEW else ""))
    for version in range(1, 6):
        stops = trainers is NEW and version > 3
        one.send(f"stop 600 {version}" if stops else f"offload {version}")
        if stops:
            wait_for(lambda: open(f"/proc/{one.pid}/stat").read().rsplit(")", 1)[1].split()[0] == "T", "the rank to stop", 60)
            coming = agent.get("/v1/models")["models"][0].get("coming")
            assert bool(coming) == (who == "mounts"), coming
            os.kill(one.pid, signal.SIGCONT)
        assert one.answer() == f"offloaded {version}"
        assert one.ask(f"wait {version}") == f"published {version}"
        same_ranks(mount, version, LARGE)
        assert "while it was written" not in how(mount, version)[0], how(mount, version)


@olds_of(FIRST)
def test_symbols(old):
    "no function of the older release is missing; a newer one has a newer symbol version, so that linkers name it"
    def exported(build):
        lines = subprocess.run(["nm", "-D", "--defined-only", f"{build}/libwsync.so"], capture_output=True, text=True, check=True, timeout=20).stdout
        return dict(re.findall(r"\bT (wsync_\w+)@@(\S+)", lines))

    before, now = exported(old.build), exported(BUILD)
    assert before and now, (before, now)
    assert before.keys() <= now.keys(), before.keys() - now.keys()
    late = {name for name in now if name not in before}
    assert {name for name, version in now.items() if version != "WSYNC_0"} == late, "backends/trainer/libwsync.map"


@pairs
def test_spanning(mounts, trainers):
    "a trainer of one release that spans two nodes, and mounts of the other: each has the version that both parts make, by steps too"
    first = trainers.Agent(*(("--nodes",) if trainers is not FIRST else ()))  # 0.1.0 was asked nothing
    agents = [first, trainers.Agent("--primary", first.url)]
    trainer = [rank(trainers, a, i, 2) for i, a in enumerate(agents)]
    urls = ",".join(a.url for a in agents)
    readers = [mounts.Mount(urls), trainers.Mount(urls)]
    if mounts is NEW:
        readers.append(mounts.Mount(urls, f"copies=1,{DELTAS}"))
    for version in range(1, 6):
        offload(trainer, version)
        for mount in readers:
            same_ranks(mount, version)
            assert "2 parts" in how(mount, version)[0], how(mount, version)
