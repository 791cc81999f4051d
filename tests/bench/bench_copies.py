"""Memory of a mount that holds one copy of a model (copies=1, 0.6b: 1.2 GB), at its most in a whole pull and steps by deltas, each of which
a reader has read, compared with the version's bytes; and of one that holds two. Agent, trainer and mounts share one host, and its memory."""
import os
import re
import sys

os.environ.setdefault("SANITIZER", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from bench_span import Trainer, pull, size_of
from rows import row
from world import *

STEPS = 4


def peak(mount):
    """Files in memory and the daemon's own."""
    with open(f"/proc/{mount.pid}/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))


def read(mount, version):
    """As an engine reads: every byte, which it keeps nowhere."""
    for name in os.listdir(mount.file("actor", version)):
        path = mount.file("actor", version, name)
        if os.path.isfile(path):
            with open(path, "rb", buffering=0) as f:
                while f.read(8 << 20):
                    pass


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    with open("/proc/meminfo") as f:
        available = int(next(line.split()[1] for line in f if line.startswith("MemAvailable"))) << 10
    if available < 12 << 30:
        print("  skipped: agent, trainer and mounts take 12 GiB of memory")
        return
    with scope():
        trainer = Trainer([Agent()])
        mounts = {copies: Mount(trainer.urls, f"cache={cache},copies={copies},{DELTAS}") for copies, cache in ((1, "1500M"), (2, "2700M"))}
        for _ in range(1 + STEPS):
            trainer.publish()
            for copies, mount in mounts.items():
                how = pull(mount, trainer.version)[2]
                assert trainer.version == 1 or "delta" in how, how
                read(mount, trainer.version)
        size = size_of(mounts[1], trainer.version)
        kept = int(re.search(r"way-back-bytes=(\d+)", mounts[1].text("actor/status")).group(1))
        print(f"    kept for going back: {kept / 1e6:.1f} MB", flush=True)
        row("copies-1-memory", peak(mounts[1]) / 1e9, "GB", size / 1e9, 1.1, at_most=True)
        row("copies-2-memory", peak(mounts[2]) / 1e9, "GB", size / 1e9, 2.3, at_most=True)


if __name__ == "__main__":
    main()
