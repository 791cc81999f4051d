"""Trees that build themselves: many mounts with topology=auto, each on a host of its own (a network namespace) with a slow link, that pull at
the same time: a version; a version in the middle of whose pull a fifth of the mounts is killed; a delta; a version and a delta of a trainer
that spans two nodes.

How long the last mount takes is compared with one mount alone at the agent, and what the agents sent with what that one mount received. A row is
about the trees, so the links have to be what takes the time: all mounts share this machine's cores. How that was chosen:
- A mount passes a block on once it has all of it. In a version of B blocks (4 MiB) the last mount of trees that are d deep is ready
  1 + 4 (d - 1) / B after one alone at best, as the four stripes of a link come at the same time: 1.13 for 16 mounts and 256 MB, 1.26 for 64 and
  192 MB; of two trainer nodes 1 + 8 (d - 1) / B, as two parts come at the same time. With a model that is smaller one would measure that alone.
- Each mount hashes and copies what it gets, some 0.5 s of a core for 1 GB, and sends as much: 16 links of 80 Mbit/s are 0.16 GB/s.
- In a delta a mount reads, hashes and writes all of the version for each tenth of it that comes, so links are slower there by DELTA_SLOWER: then
  patching, by all mounts together, is a tenth of the link's time. The version before comes by faster links.

TOPOLOGY_MOUNTS, _MBIT, _MB, _RACKS and _SHARE in the environment: other sizes; _ONLY: cases with that in their names. Some 6 minutes where nothing
else runs; for 64 mounts, which take 14 GB of memory: TOPOLOGY_MOUNTS=64 TOPOLOGY_MBIT=20 TOPOLOGY_MB=192, one case at a time."""
import os
import random
import re
import sys
import threading
import time

os.environ.setdefault("SANITIZER", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy
import pytest

from network import Network
from ranks import Rank, Refused, ask_all, expected
from rows import row
from world import *

N = int(os.environ.get("TOPOLOGY_MOUNTS", "16"))
MBIT = float(os.environ.get("TOPOLOGY_MBIT", "80"))
MEGABYTES = int(os.environ.get("TOPOLOGY_MB", "256"))
RACKS = int(os.environ.get("TOPOLOGY_RACKS", "1"))
SHARE = float(os.environ.get("TOPOLOGY_SHARE", "0.3"))  # of the elements that a delta changes
ONLY = os.environ.get("TOPOLOGY_ONLY", "")
DELTA_SLOWER = 16
PORT = 18863
TENTHS = 10


class Links:
    "How much of the mounts' links is used while something runs: with Links(net, mbit, n): ... of mounts on the first n nodes"

    def __init__(self, net, mbit, n):
        self.net, self.rate, self.n, self.stop, self.seen = net, mbit * 1e6 / 8, n, threading.Event(), []

    def __enter__(self):
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def look(self):
        while not self.stop.wait(0.2 if self.seen else 0):
            self.seen.append((time.monotonic(), self.net.moved()))

    def __exit__(self, *why):
        self.stop.set()
        self.thread.join()
        if why[0]:
            return
        self.seen.append((time.monotonic(), self.net.moved()))
        for way, what in enumerate(("received", "sent")):
            print(f"  used of the mounts' links, by tenths of the time, {what}: {' '.join(f'{self.used(way, k):.0%}' for k in range(TENTHS))}", flush=True)

    def used(self, way, tenth):
        begin, end = self.seen[0][0], self.seen[-1][0]
        at = [min(self.seen, key=lambda s: abs(s[0] - begin - (end - begin) * k / TENTHS)) for k in (tenth, tenth + 1)]
        bytes_moved = sum(at[1][1][f"n{i}"][way] - at[0][1][f"n{i}"][way] for i in range(self.n))
        return bytes_moved / self.n / self.rate / max(at[1][0] - at[0][0], 1e-9)


def limit(net, mbit):
    for name in net.names:
        for sends in (False, True):
            net.slow(name, mbit, sends=sends, burst="256kb")


def changed(folder, seed):
    """A checkpoint like the one in `folder` with SHARE of its 16-bit elements changed by one: world's step(), for large ones."""
    out = unique("step")
    os.makedirs(out)
    generator = numpy.random.default_rng(seed)
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            data = numpy.frombuffer(f.read(), dtype=numpy.uint8).copy()
        if name.endswith(".safetensors"):
            begin = 8 + int(data[:8].view(numpy.uint64)[0])
            begin += begin % 2
            n = (len(data) - begin) // 2
            elements = data[begin : begin + 2 * n].view(numpy.uint16)
            elements += (generator.random(n, dtype=numpy.float32) < SHARE).astype(numpy.uint16)
        data.tofile(os.path.join(out, name))
    return out


def sent(net, agents):
    "agents: {node: agent}"
    total = 0
    for node, agent in agents.items():
        with net.inside(node), urllib.request.urlopen(agent.url + "/metrics", timeout=60) as r:
            total += int(re.search(r"^wsync_agent_sent_bytes_total (\d+)$", r.read().decode(), re.M).group(1))
    return total


def settle(mount, version):
    "as wait_version, with more time: many mounts share this machine's cores"
    wait_for(lambda: os.path.isdir(mount.file("actor", version)), f"actor/{version}", 120)


def pull_all(mounts, version, during=lambda: None):
    """When each was ready, in seconds; None: it was killed."""
    took = [None] * len(mounts)
    start = time.monotonic()

    def pull(i):
        try:
            mounts[i].write(f"pull {version}", "actor/ctl")
            took[i] = time.monotonic() - start
        except OSError:
            pass

    threads = [threading.Thread(target=pull, args=(i,)) for i in range(len(mounts))]
    for t in threads:
        t.start()
    during()
    for t in threads:
        t.join()
    return took


def measured(net, agents, mbit, mounts, version, during=lambda: None):
    "when each was ready, and what the agents sent"
    before = sent(net, agents)
    with Links(net, mbit, len(mounts)):
        took = pull_all(mounts, version, during)
    return took, sent(net, agents) - before


def report(name, what, took, alone, bytes_sent, size, is_timed=True):
    ready = sorted(t for t in took if t is not None)
    print(f"  {what}: {len(ready)} ready; first {ready[0]:.2f} s, median {ready[len(ready) // 2]:.2f} s, last {ready[-1]:.2f} s = "
          f"{ready[-1] / alone:.2f} of one mount alone ({alone:.2f} s); the agent sent {bytes_sent / size:.2f} of it; load {os.getloadavg()[0]:.1f}", flush=True)
    if name and is_timed:
        row(name, ready[-1], "s", alone, 1.5, at_most=True)
    if name:
        row(name + "-sent", bytes_sent / 1e6, "MB", size / 1e6, 1.2, at_most=True)


def members(net, sources, options, n=N):
    "a mount on each node, which takes part and serves others"
    mounts = []
    for i in range(n):
        with net.inside(f"n{i}"):
            address = f"{net.address(f'n{i}')}:{PORT}"
            mounts.append(Mount(sources, f"{options},topology=auto,rack=r{i % RACKS},serve={address},serve-insecure"))
    return mounts


def begin(net, mounts, version):
    "until all have heard of the version, and of their parents"
    for m in mounts:
        settle(m, version)
    time.sleep(4)


class OneNode:
    "an agent, and versions as large as MEGABYTES, with room for one in each mount: many mounts share this memory"

    def __init__(self, net):
        self.net = net
        with net.inside("trainer"):
            self.agent = Agent("--insecure", "--delta-cache", 1 << 30, host=net.address("trainer"))
        self.agents = {"trainer": self.agent}
        self.n = max(1, MEGABYTES * 1000000 // 2097152)
        self.folders = {}

    def publish(self, version, base=None):
        self.folders[version] = (changed(self.folders[base], version) if base else
                                 checkpoint({f"v{version}.{i}.weight": ("BF16", [1024, 1024]) for i in range(self.n)}, seed=version))
        self.agent.publish("actor", version, self.folders[version], timeout=300)
        self.size = sum(os.path.getsize(os.path.join(self.folders[version], f)) for f in os.listdir(self.folders[version]))
        self.options = f"cache={self.size * 13 // 10},keep=1,streams=4,insecure"

    def check(self, mounts, version):
        wanted = tensors_of(self.folders[version] + "/model.safetensors")
        for m in mounts:
            assert tensors_of(m.file("actor", version, "model.safetensors")) == wanted, f"{m.path} has other bytes"


def full(net):
    "a version; then another one, in the middle of whose pull a fifth of the mounts is killed"
    world = OneNode(net)
    limit(net, MBIT)
    world.publish(1)
    with scope(), net.inside("n0"):
        alone = Mount(world.agent.url, world.options)
        settle(alone, 1)
        (one,), size = measured(net, world.agents, MBIT, [alone], 1)
    mounts = members(net, world.agent.url, world.options)
    begin(net, mounts, 1)
    with net.inside("trainer"):
        print(wsync("topology", "--agent", world.agent.url, "actor", timeout=60).stdout, flush=True)
    took, more = measured(net, world.agents, MBIT, mounts, 1)
    report("topology-full", "full", took, one, more, size)

    world.publish(2)
    begin(net, mounts, 2)
    victims = set(random.sample(range(N), N // 5))

    def kill_some():
        for i in victims:
            time.sleep(one * 0.8 / len(victims) * random.random() * 2)
            mounts[i].kill()
            mounts[i].detach()

    took, more = measured(net, world.agents, MBIT, mounts, 2, kill_some)
    others = [m for i, m in enumerate(mounts) if i not in victims]
    for i, m in enumerate(mounts):
        assert i in victims or took[i] is not None, f"mount {i} has not got it: {m.text('last_error')}"
    world.check(others, 2)
    report("topology-killed", f"full, {len(victims)} killed; the others have the trainer's bytes", [t for i, t in enumerate(took) if i not in victims], one, more, size,
           is_timed=False)


def delta(net):
    "a delta, by links that are slower"
    world = OneNode(net)
    limit(net, 10 * MBIT)
    world.publish(1)
    mounts = members(net, world.agent.url, world.options)
    begin(net, mounts, 1)
    pull_all(mounts, 1)
    with scope(), net.inside("n0"):
        alone = Mount(world.agent.url, world.options)
        settle(alone, 1)
        pull_all([alone], 1)
        world.publish(2, base=1)
        wait_for(lambda: "delta whole model=actor base=1 version=2" in world.agent.text(), "the delta", 60)
        settle(alone, 2)
        limit(net, MBIT / DELTA_SLOWER)
        (one,), size = measured(net, world.agents, MBIT / DELTA_SLOWER, [alone], 2)
    begin(net, mounts, 2)
    took, more = measured(net, world.agents, MBIT / DELTA_SLOWER, mounts, 2)
    report("topology-delta", f"delta of {size / 1e6:.1f} MB", took, one, more, size)
    world.check(mounts, 2)


def two_trainer_nodes(net):
    "a version in two parts, and a delta to the next, of two agents, for half as many mounts"
    elements, n = MEGABYTES * 1000000 // 2, max(1, N // 2)
    agents = {}
    limit(net, MBIT)
    with net.inside("trainer"):
        agents["trainer"] = Agent("--insecure", "--nodes", host=net.address("trainer"))
    with net.inside("second"):
        agents["second"] = Agent("--insecure", "--primary", agents["trainer"].url, "--primary-insecure", host=net.address("second"))
    ranks = [Rank(a, "actor", i, 2, elements, "timeout=300000") for i, a in enumerate(agents.values())]

    def publish(version):
        for command in ("offload", "wait"):
            answers = ask_all(ranks, f"{command} {version}", 300)
            assert not any(isinstance(a, Refused) for a in answers), answers

    publish(1)
    sources = ",".join(a.url for a in agents.values())
    options = f"cache={elements * 36 // 5},keep=1,streams=4,insecure"  # parts are patched beside the version before
    with scope(), net.inside("n0"):
        alone = Mount(sources, options)
        settle(alone, 1)
        (one,), size = measured(net, agents, MBIT, [alone], 1)
        publish(2)
        settle(alone, 2)
        time.sleep(3)
        (one_delta,), delta_size = measured(net, agents, MBIT, [alone], 2)
    mounts = members(net, sources, options, n)
    begin(net, mounts, 2)
    took, more = measured(net, agents, MBIT, mounts, 2)
    report("topology-span-full", f"two trainer nodes, {size / 1e6:.0f} MB, cold", took, one, more, size)
    publish(3)
    begin(net, mounts, 3)
    took, more = measured(net, agents, MBIT, mounts, 3)
    # The ranks' changes are regular, and compress to nearly nothing: no row.
    report(None, f"two trainer nodes, delta of {delta_size / 1e6:.1f} MB", took, one_delta, more, delta_size)
    wanted = expected(3, elements)
    for m in mounts:
        assert tensors_of(m.file("actor/3/model.safetensors")) == wanted


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    with scope():
        names = ["trainer", "second", *(f"n{i}" for i in range(N))]
        try:
            net = Network(names)
            limit(net, MBIT)
        except pytest.skip.Exception as why:
            print(f"  skipped: {why}")
            return
        for case in (full, delta, two_trainer_nodes):
            if ONLY in case.__name__:
                with scope():
                    case(net)


main()
