"""Four mounts of one version, each on a separate host whose link sends 10 Gbit/s: as a chain of mounts that serve each other while they
fill, compared with all four pulling from the agent."""
import os
import statistics
import sys
import threading
import time

os.environ.setdefault("SANITIZER", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import pytest

from network import Network
from rows import row
from world import *

MEGABYTES = int(os.environ.get("BENCH_MB", "1200"))
MBIT = int(os.environ.get("BENCH_MBIT", "10000"))
MOUNTS, ROUNDS, PORT = 4, 4, 18900


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    with scope():
        names = ["trainer", *(f"n{i}" for i in range(MOUNTS))]
        try:
            net = Network(names)
            for name in names:
                net.slow(name, MBIT, sends=True, burst="4mb")
        except pytest.skip.Exception as why:
            print(f"  skipped: {why}")
            return
        with net.inside("trainer"):
            agent = Agent("--insecure", host="10.77.0.1")
        n = MEGABYTES * 1000000 // 4194304
        agent.publish("actor", 1, checkpoint({f"layers.{i}.weight": ("BF16", [1024, 2048]) for i in range(n)}), timeout=300)
        took = {}
        for how in ("star", "chain"):
            with scope():
                mounts = []
                for i in range(MOUNTS):
                    source = agent.url if how == "star" or i == 0 else f"http://10.77.0.{i + 1}:{PORT}"
                    with net.inside(f"n{i}"):
                        mounts.append(Mount(source, f"cache={MEGABYTES * 1200000},serve=10.77.0.{i + 2}:{PORT},serve-insecure"))
                took[how] = statistics.median([pull_all(mounts) for _ in range(ROUNDS + 1)][1:])  # the first run touches the memory
        row("relay", took["chain"], "s", took["star"], 0.6, at_most=True)


def pull_all(mounts):
    for m in mounts:
        m.wait_version("actor", 1)
    start = time.monotonic()
    pulls = [threading.Thread(target=m.write, args=("pull 1", "actor/ctl")) for m in mounts]
    for t in pulls:
        t.start()
    for t in pulls:
        t.join()
    took = time.monotonic() - start
    for m in mounts:
        m.write("drop 1", "actor/ctl")
    return took


main()
