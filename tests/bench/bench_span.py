"""A trainer of two ranks that spans two nodes, compared with the same two ranks on one: pulls of the same model (0.6b, 1.2 GB) from two agents
with a part each and from one agent with all of it; steps by deltas, from the offload's begin to the ready file; and the memory of a mount of the parts,
compared with the version's bytes, also where one copy is patched from step to step (copies=1). Agents, trainers and mounts share one host, and its memory."""
import os
import re
import statistics
import subprocess
import sys
import time

os.environ.setdefault("SANITIZER", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rows import row
from world import *

MODEL = os.environ.get("BENCH_MODEL", "0.6b")
SHARE, PULLS, STEPS, COPIES = 0.015, 9, 9, 3
MOMENT = 0.3  # in which a mount takes memory back, or reserves it
TRAINER = os.path.join(BUILD, "tests/tools/trainer")


class Trainer:
    """All ranks of one, on one or more agents; they answer each command together."""

    def __init__(self, agents):
        n = len(agents)
        self.ranks = [subprocess.Popen([TRAINER, f"unix:{a.sock}", "actor", MODEL, *([str(i), str(n)] if n > 1 else [])],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for i, a in enumerate(agents)]
        at_end(self.end)
        self.urls = ",".join(a.url for a in agents)
        self.answers("ready")
        self.version = 0

    def answers(self, word):
        lines = [r.stdout.readline().split() for r in self.ranks]
        assert all(l and l[0] == word for l in lines), lines
        return [l[1:] for l in lines]

    def tell(self, text, word):
        for r in self.ranks:
            r.stdin.write(text + "\n")
            r.stdin.flush()
        return self.answers(word)

    def publish(self):
        """The next version, a step from the last; returns when its first offload began."""
        if self.version:
            self.tell(f"step {SHARE}", "stepped")
        self.version += 1
        began = min(float(a[1]) for a in self.tell(f"offload {self.version}", "offloaded"))
        self.tell(f"wait {self.version}", "published")
        return began

    def end(self):
        for r in self.ranks:
            r.stdin.close()
            r.wait(60)


def pull(mount, version):
    """The seconds that it took, from its begin to the ready file, and how it came."""
    wait_for(lambda: os.path.isdir(mount.file("actor", version)), "the version", 60)
    start = time.monotonic()
    mount.write(f"pull {version}", "actor/ctl")
    end = time.monotonic()
    line = next(l for l in mount.text("actor/status").splitlines() if l.startswith(f"version.{version} "))
    return end - start, end, re.search(r'how="([^"]*)"', line).group(1)


def size_of(mount, version):
    folder = mount.file("actor", version)
    return sum(os.path.getsize(os.path.join(folder, n)) for n in os.listdir(folder) if os.path.isfile(os.path.join(folder, n)))


def pulls(trainers):
    """Medians of whole pulls of one version, in turns, into memory that the mounts had."""
    with scope():
        mounts = [Mount(t.urls, "cache=1300M,delta-cache=0") for t in trainers]
        took = [[] for _ in trainers]
        for _ in range(PULLS + 1):
            for t, m, all_took in zip(trainers, mounts, took):
                seconds, _, how = pull(m, t.version)
                all_took.append(seconds)
                assert "full" in how, how
                m.write(f"drop {t.version}", "actor/ctl")
                time.sleep(MOMENT)
        return [statistics.median(t[1:]) for t in took]


def steps(trainers):
    """Medians from the offload's begin to the ready file, in turns."""
    with scope():
        mounts = [Mount(t.urls, "cache=2600M") for t in trainers]
        took, hows = [[] for _ in trainers], ["" for _ in trainers]
        for i in range(STEPS + 3):  # the first three fill the cache
            for k, (t, m) in enumerate(zip(trainers, mounts)):
                began = t.publish()
                _, end, how = pull(m, t.version)
                if i >= 3:
                    took[k].append(end - began)
                    hows[k] += "F" if "full" in how else "p" if "in place" in how else "c"
                time.sleep(MOMENT)
        print(f"    {hows}", flush=True)
        return [statistics.median(t) for t in took]


def most_memory(mount):
    """The most that a mount had, files in memory and the daemon's own."""
    with open(f"/proc/{mount.pid}/status") as f:
        return next(int(l.split()[1]) << 10 for l in f if l.startswith("VmHWM"))


def peak(trainer):
    """The most memory that a mount had for its first version, and the version's bytes."""
    with scope():
        mount = Mount(trainer.urls, "cache=1300M,delta-cache=0")
        pull(mount, trainer.version)
        return most_memory(mount), size_of(mount, trainer.version)


def peak_of_one_copy(trainer):
    """The same of a mount with copies=1 that has read each version, and stepped; it must have patched all parts in place."""
    with scope():
        mount = Mount(trainer.urls, "copies=1")
        pull(mount, trainer.version)
        size = size_of(mount, trainer.version)
        for _ in range(COPIES):
            with open(mount.file("actor", trainer.version, "model.safetensors"), "rb") as f:
                f.read(1 << 20)
            trainer.publish()
            _, _, how = pull(mount, trainer.version)
            assert how.count("in place") == len(trainer.ranks), how
        return most_memory(mount), size


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    with open("/proc/meminfo") as f:
        available = int(next(line.split()[1] for line in f if line.startswith("MemAvailable"))) << 10
    if available < 16 << 30:
        print("  skipped: agents, trainers and mounts take 16 GiB of memory")
        return
    with scope():
        one, first = Agent(), Agent("--nodes")
        trainers = [Trainer([one, one]), Trainer([first, Agent("--primary", first.url)])]
        for t in trainers:
            t.publish()
        (one_most, _), (most, size) = peak(trainers[0]), peak(trainers[1])
        one, span = pulls(trainers)
        row("span-pull", span, "s", one, 1.15, at_most=True)
        one, span = steps(trainers)
        row("span-delta-step", span, "s", one, 1.3, at_most=True)
        row("span-memory", most / 1e9, "GB", size / 1e9, 1.1, at_most=True)
        most, size = peak_of_one_copy(trainers[1])
        row("span-copies-1-memory", most / 1e9, "GB", size / 1e9, 1.1, at_most=True)
        row("span-memory-vs-one", most / 1e9, "GB", one_most / 1e9, 1.1, at_most=True)


if __name__ == "__main__":
    main()
