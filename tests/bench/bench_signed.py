"""Signed versions (1.2 GB, 1.5 % changed a step): a step by a delta, and a whole pull, of a mount with verify-key= from an agent that
signs, compared with the same without keys, in turns. A whole pull waits until the agent has hashed all of the version; a step does not,
but that work begins beside it. It is over before the next turn."""
import statistics
import sys
import urllib.error

import os

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench_delta_step import *

WARM = 3  # rounds that fill the cache and are not counted


class World:
    def __init__(self, key):
        self.signs = key is not None
        self.agent = Agent("--slots", "2", *(["--sign-key", key] if key else []))
        self.trainer = Trainer(self.agent, "0.6b")
        self.option = f"verify-key={key}.pub," if key else ""

    def mount(self, options):
        mount = Mount(f"unix:{unique('nobody')}.sock", f"{self.option}cache={int(self.trainer.bytes * 2.6)},{options}")
        mount.write(f"add actor {self.agent.url}", "ctl")
        return mount

    def has_signed(self):
        try:
            return self.agent.get(f"/v1/actor/{self.trainer.version}/signature")["leaves"]
        except urllib.error.HTTPError as e:
            assert e.code == 503, e.code
            return False

    def step(self, mount):
        seconds = publish_to_ready(self.trainer, mount)
        if self.signs:
            wait_for(self.has_signed, "the tree", 60)
        return seconds


def compare(worlds, options, rounds):
    """Medians of the unsigned and the signed world."""
    with scope():
        mounts = [w.mount(options) for w in worlds]
        seconds, ways = [[], []], ["", ""]
        for i in range(WARM + rounds):
            for k in (0, 1) if i % 2 else (1, 0):
                taken = worlds[k].step(mounts[k])
                ways[k] += way(mounts[k], worlds[k].trainer.version)
                if i >= WARM:
                    seconds[k].append(taken)
        print(f"    unsigned {ways[0]} {' '.join(f'{s:.2f}' for s in seconds[0])}; signed {ways[1]} {' '.join(f'{s:.2f}' for s in seconds[1])}")
        return [statistics.median(s) for s in seconds]


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    key = unique("key")
    wsync("key", "new", "--out", key)
    with scope():
        worlds = [World(None), World(key)]
        unsigned, signed = compare(worlds, "streams=4", 9)
        row("signed-delta-step", signed, "s", unsigned, 1.15, at_most=True)
        unsigned, signed = compare(worlds, "delta-cache=0", 5)
        row("signed-pull", signed, "s", unsigned, 0)


main()
