# timeout: 400, takes: 70
"""Versions that are fetched while they are written, at random: a rank offloads, stops in the middle, is killed, comes back in its run or in
another; mounts pull, drop, are stopped, end and begin; one has room for few versions. Every byte of each version that is read is one of
its run's. PROVISIONAL_SECONDS, PROVISIONAL_SEED."""
import contextlib
import os
import random
import select
import signal

import pytest

from world import *

try:
    from ranks import Rank, expected
except ImportError as e:
    pytest.skip(f"{e.name} is not installed, as PyPI could not be reached", allow_module_level=True)

SECONDS = amount("PROVISIONAL_SECONDS", 15.0, 60.0)
SEED = int(os.environ.get("PROVISIONAL_SEED", random.SystemRandom().randrange(1 << 32)))
ELEMENTS = 24 << 20  # records come in more than one batch
SIZE = 3 * ELEMENTS
os.environ["PREFER"] = "latency"
os.environ["WSYNC_COMPARE"] = "check"


class Walk:
    def __init__(self):
        self.random, self.agent = random.Random(SEED), Agent()
        self.run, self.version, self.counts = 0, 0, {}
        self.salts = {}  # of each version that was offloaded
        self.rank = self.new_rank()
        self.offload()
        self.mounts = [self.new_mount(options) for options in self.options()]

    def options(self):
        return "cache=1G,provisional=on", f"cache={SIZE * 9 // 4},provisional=on"

    def new_mount(self, options):
        mount = Mount(self.agent.url, options)
        wait_for(lambda: os.path.isdir(mount.file("actor")), "the model", 60)
        mount.write("pull", "actor/policy")
        return mount

    def new_rank(self, *more):
        return Rank(self.agent, "actor", 0, 1, ELEMENTS, f"run=run{self.run}", f"salt={self.run * 5000}", "timeout=60000", *more)

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def begins(self):
        self.version += 1
        self.salts.setdefault(self.version, set()).add(self.run * 5000)

    def offload(self):
        self.begins()
        assert self.rank.ask(f"offload {self.version}") == f"offloaded {self.version}"
        if self.random.random() < 0.7:
            assert self.rank.ask(f"wait {self.version}") == f"published {self.version}"

    def stop(self):
        "the rank stops in the middle; then it goes on, or is killed"
        self.begins()
        self.rank.send(f"stop {self.random.randrange(300, 990)} {self.version}")
        wait_for(lambda: self.has_stopped() or self.has_answered(), "the rank to stop", 60)
        if not self.has_stopped():  # it was told something else
            assert self.rank.answer() == f"offloaded {self.version}"
            return
        time.sleep(self.random.choice((0, 0.1, 0.6)))
        if self.random.random() < 0.3:
            self.pull()
        if self.random.random() < 0.3:
            self.rank.kill()
            self.comes_back()
            return
        os.kill(self.rank.pid, signal.SIGCONT)
        assert self.rank.answer() == f"offloaded {self.version}"

    def has_stopped(self):
        with open(f"/proc/{self.rank.pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "T"

    def has_answered(self):
        return bool(select.select([self.rank.process.stdout], [], [], 0)[0])

    def die(self):
        "the rank is killed in the middle"
        self.begins()
        self.rank.send(f"die {self.random.randrange(1000)} {self.version}")
        if self.rank.answer() is None:
            self.rank.reap()
            self.comes_back()

    def comes_back(self):
        if self.random.random() < 0.4:  # another run, which has the same numbers, or older ones
            self.run += 1
            self.version = max(0, self.version - self.random.randrange(1, 4))
            self.rank = self.new_rank("new-run")
            self.offload()
            return
        self.rank = self.new_rank()

    def newest(self, mount):
        with contextlib.suppress(OSError):
            return max((int(n) for n in os.listdir(mount.file("actor")) if n.isdigit()), default=None)
        return None

    def pull(self):
        "a mount pulls what is newest, and all of it is read"
        mount = self.random.choice(self.mounts)
        version = self.newest(mount)
        if version is None:
            return
        try:
            got = tensors_of(mount.file("actor", version, "model.safetensors"))
        except OSError:
            self.count("gone")
            return
        self.check(version, got)

    def check(self, version, got):
        got = {n: (g[0], g[1], bytes(g[2])) for n, g in got.items()}
        assert any(got == expected(version + salt, ELEMENTS) for salt in self.salts[version]), f"version {version} is wrong; PROVISIONAL_SEED={SEED}"

    def drop(self):
        "a mount drops some version"
        mount = self.random.choice(self.mounts)
        with contextlib.suppress(OSError):
            versions = [n for n in os.listdir(mount.file("actor")) if n.isdigit()]
            mount.write_once(f"drop {self.random.choice(versions or ['1'])}", "actor/ctl")

    def pause(self):
        "a mount is stopped while a version comes"
        mount = self.random.choice(self.mounts)
        suspend(mount.process.pid)
        try:
            self.offload()
        finally:
            os.kill(mount.process.pid, signal.SIGCONT)

    def begin_again(self):
        "a mount is killed, and another one comes"
        i = self.random.randrange(len(self.mounts))
        self.mounts[i].kill()
        self.mounts[i].detach()
        self.mounts[i] = self.new_mount(self.options()[i])

    def last(self):
        for _ in range(2):
            self.offload()
        if self.rank.ask(f"wait {self.version}") != f"published {self.version}":
            raise AssertionError("the last version was not published")
        for mount in self.mounts:
            wait_for(lambda: os.path.isdir(mount.file("actor", self.version)), f"version {self.version}", 60)
            mount.write(f"pull {self.version}", "actor/ctl")
            self.check(self.version, tensors_of(mount.file("actor", self.version, "model.safetensors")))


def test_walk():
    need_fuse()
    w = Walk()
    ways = {w.offload: 5, w.stop: 5, w.die: 2, w.pull: 7, w.drop: 1, w.pause: 1, w.begin_again: 0.4}
    end, early = time.monotonic() + SECONDS, set()
    try:
        while time.monotonic() < end:
            what = w.random.choices(list(ways), list(ways.values()))[0]
            w.count(what.__name__)
            what()
            for i, mount in enumerate(w.mounts):
                with contextlib.suppress(OSError):
                    early |= {(i, line.split()[0]) for line in mount.text("actor/status").splitlines() if "patched while it was written" in line}
        w.last()
    finally:
        print(f"# PROVISIONAL_SEED={SEED}: {w.counts}, {len(early)} patched while they were written", flush=True)
