#!/usr/bin/env python3
"""A soak: versions a step each second for hours, with deltas and switches, and daemons that are upgraded while others work.

An agent; three mounts, of which the third pulls from the second; a reference engine at each, which follows what is published; a rank
whose tensors are computed, so that every byte that a mount shows can be checked. Every minute one version is read whole on each mount and
compared, and what each daemon takes (memory of its own, descriptors, threads) and how long steps took from the offload to the last
engine are a row of build/soak.jsonl. Every UPGRADE seconds one daemon in turn is ended and started again from OTHER, or from the build
again, whichever it did not run.

    make soak SECONDS=7200          OTHER=/path/to/another/wsync UPGRADE=600 STEP=1 ELEMENTS=8388608 CACHE=1G

Each mount has CACHE for versions, so that it evicts old ones soon: else its memory and its descriptors, one a version, would grow for
as long as there is memory.

It can be stopped and begun again: rows are added, and the table at the end compares the first and the last of all runs with the same
settings. It ends with 1 where a byte was wrong or an engine was left behind for longer than BEHIND seconds; growth it prints, for a person."""
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
os.environ.setdefault("PREFER", "auto")
from ranks import Rank, expected  # noqa: E402
from relay import Relay  # noqa: E402
from world import *  # noqa: E402

SECONDS, UPGRADE, STEP = (float(os.environ.get(n, d)) for n, d in (("SECONDS", 7200), ("UPGRADE", 600), ("STEP", 1)))
ELEMENTS, BEHIND = int(os.environ.get("ELEMENTS", 8 << 20)), float(os.environ.get("BEHIND", 60))
OTHER, CACHE = os.environ.get("OTHER", WSYNC), os.environ.get("CACHE", "1G")
ROWS = os.path.join(BUILD, "soak.jsonl")
EVERY = 60  # seconds: a look


def taken(pid):
    """What a process takes. Memory that is shared with others, as versions are, is not its own."""
    with open(f"/proc/{pid}/status") as f:
        status = dict(line.split(":", 1) for line in f)
    return {"own_mb": round(int(status["RssAnon"].split()[0]) / 1024, 1), "threads": int(status["Threads"]), "fds": len(os.listdir(f"/proc/{pid}/fd"))}


class Daemons:
    """The agent and the mounts by name, each with how it is started again."""

    def __init__(self):
        self.command = {}
        self.of = {}
        self.agent_place = {"port": free_port(), "sock": unique("agent") + ".sock"}
        self.start("agent", WSYNC)
        self.relay_port = free_port()
        self.paths = {name: unique("mnt") for name in ("mount1", "mount2", "mount3")}
        for name, path in self.paths.items():
            os.makedirs(path)
            self.start(name, WSYNC)

    def start(self, name, command):
        self.command[name] = command
        make = {"agent": lambda kind: kind(**self.agent_place),
                "mount1": lambda kind: kind(self.of["agent"].url, f"prefetch,cache={CACHE}", path=self.paths[name]),
                "mount2": lambda kind: kind(self.of["agent"].url, f"prefetch,cache={CACHE}", port=self.relay_port, path=self.paths[name]),
                "mount3": lambda kind: kind(f"http://127.0.0.1:{self.relay_port},{self.of['agent'].url}", f"prefetch,cache={CACHE}", path=self.paths[name])}[name]
        kind = {"agent": Agent, "mount2": Relay}.get(name, Mount)
        self.of[name] = make(type(kind.__name__, (kind,), {"command": command}))

    def upgrade(self, name):
        self.of[name].end()
        self.start(name, OTHER if self.command[name] == WSYNC else WSYNC)

    def mounts(self):
        return [self.of[name] for name in self.paths]


def served(engine):
    """The version that it says it serves; 0: it did not answer this time, as on a machine that is busy with other things."""
    try:
        return int(engine.serves())
    except OSError:
        return 0


class Soak:
    def __init__(self):
        self.daemons, self.version, self.wrong = Daemons(), 0, []
        self.rank = self.new_rank()
        self.engines, self.steps = [], []
        self.step()
        for mount in self.daemons.mounts():
            mount.wait_version("actor", 1)
            engine = Engine(mount.file("actor/1"))
            mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
            mount.write("1", "actor/version")
            mount.write("follow-published", "actor/policy")
            self.engines.append(engine)

    def new_rank(self):
        return Rank(self.daemons.of["agent"], "actor", 0, 1, ELEMENTS, "run=soak", "timeout=60000")

    def step(self):
        self.version += 1
        self.rank.ask(f"offload {self.version}")
        self.rank.ask(f"wait {self.version}")

    def wait_all(self, version, seconds):
        """Seconds until every engine served it, or a later one; None: not in time."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if all(served(e) >= version for e in self.engines):
                return time.monotonic() - began
            time.sleep(0.02)
        return None

    def timed_step(self):
        began = time.monotonic()
        self.step()
        took = self.wait_all(self.version, BEHIND)
        if took is None:
            self.wrong.append(f"version {self.version} was not served by all engines after {BEHIND} s: {[served(e) for e in self.engines]}")
        self.steps.append(time.monotonic() - began)

    def check(self):
        want = {n: w[2] for n, w in expected(self.version, ELEMENTS).items()}
        for mount in self.daemons.mounts():
            got = {n: bytes(g[2]) for n, g in tensors_of(mount.file("actor", self.version, "model.safetensors")).items()}
            if got != want:
                self.wrong.append(f"version {self.version} has other bytes at {mount.path}")

    def look(self, began):
        steps = sorted(self.steps) or [0]
        row = {"settings": [ELEMENTS, STEP, OTHER != WSYNC, CACHE], "second": round(time.monotonic() - began), "version": self.version, "step_median_s": round(steps[len(steps) // 2], 3),
               "step_max_s": round(steps[-1], 3), **{name: taken(d.pid) for name, d in self.daemons.of.items()}}
        self.steps = []
        with open(ROWS, "a") as f:
            f.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    def upgrade(self, n):
        name = ["mount1", "mount2", "mount3", "agent"][n % 4]
        print(f"# {name} is ended, and started again from {'OTHER' if self.daemons.command[name] == WSYNC and OTHER != WSYNC else 'the build'}", flush=True)
        self.daemons.upgrade(name)
        if name == "agent":  # it remembers no version: ranks come back by themselves, this one is a tool
            self.rank.kill()
            self.rank = self.new_rank()

    def run(self):
        began, looked, upgrades = time.monotonic(), 0.0, 0
        while (now := time.monotonic() - began) < SECONDS and not self.wrong:
            self.timed_step()
            if now >= looked + EVERY:
                looked = now
                self.check()
                self.look(began)
            if now >= (upgrades + 1) * UPGRADE:
                self.upgrade(upgrades)
                upgrades += 1
            time.sleep(max(0.0, STEP - (time.monotonic() - began - now)))
        self.check()
        self.look(began)


def table():
    with open(ROWS) as f:
        rows = [json.loads(line) for line in f]
    rows = [r for r in rows if r["settings"] == rows[-1]["settings"]]
    first, last = rows[min(1, len(rows) - 1)], rows[-1]  # the first minute warms up
    print(f"\n{len(rows)} looks; second {first['second']} and {last['second']}, versions {first['version']} and {last['version']}")
    print(f"{'':14}{'first':>10}{'last':>10}")
    for key in ("step_median_s", "step_max_s"):
        print(f"{key:14}{first[key]:10}{last[key]:10}")
    for name in ("agent", "mount1", "mount2", "mount3"):
        for key in ("own_mb", "fds", "threads"):
            print(f"{name + ' ' + key:14}{first[name][key]:10}{last[name][key]:10}")


def main():
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        sys.exit("soak: it mounts, which wants root and /dev/fuse")
    with Scope() as scope:
        Scope.of_tests.append(scope)
        soak = Soak()
        try:
            soak.run()
        except KeyboardInterrupt:
            print("# stopped", flush=True)
    table()
    for problem in soak.wrong:
        print(f"WRONG: {problem}")
    sys.exit(1 if soak.wrong else 0)


if __name__ == "__main__":
    main()
