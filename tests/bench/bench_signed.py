"""Signed versions (1.2 GB, 1.5 % changed a step): a step by a delta, and a whole pull, of a mount with verify-key= from an agent that
signs, compared with the same without keys. A whole pull waits until the agent has hashed all of the version."""
import statistics
import sys

import os

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench_delta_step import *

TURNS = 2


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    key = unique("key")
    seconds = {(what, signed): [] for what in ("delta", "pull") for signed in (False, True)}
    wsync("key", "new", "--out", key)
    for turn in range(TURNS):
        for signed in (False, True) if turn % 2 else (True, False):
            with scope():
                agent = Agent("--slots", "2", *(["--sign-key", key] if signed else []))
                trainer = Trainer(agent, "0.6b")
                option = f"verify-key={key}.pub" if signed else "streams=4"
                seconds["delta", signed].append(steps(agent, trainer, option, rounds=7)[0])
                seconds["pull", signed].append(steps(agent, trainer, option + ",delta-cache=0")[0])
    for what, name, target in ("delta", "signed-delta-step", 1.15), ("pull", "signed-pull", 0):
        row(name, statistics.median(seconds[what, True]), "s", statistics.median(seconds[what, False]), target, at_most=bool(target))


main()
