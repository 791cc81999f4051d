"""Offload and delta in one pass: how long an offload holds the trainer up (stall), when the delta is there, and when a mount has the
version, by what the publisher prefers (wsync_config.prefer); beside them a mount that pulls whole versions. OLD in the environment is
the build/ folder of another commit, whose agent, trainer and mount give one row more: what a stall was."""
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_delta_step
import world
from bench_delta_step import *

ROUNDS = 7


class Preferring(Trainer):
    """A trainer that goes on with the versions of the one before."""

    def __init__(self, agent, model, prefer, version):
        os.environ["PREFER"] = prefer
        super().__init__(agent, model)
        self.version = version

    def next_version(self, share):
        """When it began and ended."""
        self.step("step", share)
        self.version += 1
        return map(float, self.tell(f"offload {self.version}", "offloaded")[1:])

    def stall(self, share):
        """Seconds that an offload takes which nobody waits for."""
        began, ended = self.next_version(share)
        time.sleep(1)  # the agent makes its delta: an older trainer cannot say when
        return ended - began

    def measure(self, mount, share):
        """Seconds to the offload's end, and to the version at the mount."""
        began, ended = self.next_version(share)
        wait_for(lambda: os.path.isdir(mount.file(f"actor/{self.version}")), "the version", 60)
        mount.write(f"pull {self.version}", "actor/ctl")
        return ended - began, time.monotonic() - began


def measured(agent, model, prefer, version, options, share=SHARE, rounds=ROUNDS):
    """Medians of the stall and of publish to ready copies; the next version's number."""
    with scope():
        trainer = Preferring(agent, model, prefer, version)
        mount = Mount(f"unix:{unique('nobody')}.sock", f"cache={int(trainer.bytes * 2.6)},{options}")
        mount.write(f"add actor {agent.url}", "ctl")
        took = []
        for i in range(rounds + 4):  # the first four fill slots and cache, and are not counted
            took.append(trainer.measure(mount, share))
        how = " ".join(trainer.tell(f"how {trainer.version}", "how"))
        stall, ready = (statistics.median(t[k] for t in took[4:]) for k in (0, 1))
        print(f"    {prefer:8} {share:.3f}: stall {stall:.3f} s, ready {ready:.3f} s; {how}", flush=True)
        return stall, ready, trainer.version


def one_model(name):
    with scope():
        agent = Agent("--slots", "2")
        suffix = "" if name == "1.7b" else "-0.6b"
        stall_full, full, version = measured(agent, name, "stall", 0, "delta-cache=0")
        stall, ready, version = measured(agent, name, "stall", version, "")
        by_latency, ready_by_latency, version = measured(agent, name, "latency", version, "")
        by_auto, ready_by_auto, version = measured(agent, name, "auto", version, "")
        row(f"one-pass-latency-stall{suffix}", by_latency, "s", stall, 1.5, at_most=True)
        row(f"one-pass-latency-step{suffix}", ready_by_latency, "s", full, 0.45, at_most=True)
        row(f"one-pass-auto-stall{suffix}", by_auto, "s", stall, 1.25, at_most=True)
        row(f"one-pass-auto-step{suffix}", ready_by_auto, "s", full, 0.5, at_most=True)
        row(f"one-pass-ready-copies{suffix}", ready_by_latency, "s", ready, 0.75, at_most=True)
        if name != "1.7b":
            for what, share in (("0.1%", 0.001), ("10%", 0.1)):
                _, before, version = measured(agent, name, "stall", version, "", share, 3)
                _, after, version = measured(agent, name, "auto", version, "", share, 3)
                row(f"one-pass-auto-step{suffix}-{what}", after, "s", before, 1, at_most=True)
    if not os.environ.get("OLD"):
        print("  skipped: prefer=stall against an older build wants OLD=ITS/build")
        return
    olds, news = [], []
    for _ in range(3):  # in turns
        for build, out in ((os.environ["OLD"], olds), (BUILD, news)):
            with scope():
                bench_delta_step.TRAINER = os.path.join(build, "tests/tools/trainer")
                world.Process.command = os.path.join(build, "wsync")
                agent = Agent("--slots", "2")
                trainer = Preferring(agent, name, "stall", 0)
                out += [trainer.stall(SHARE) for _ in range(8)][3:]
    row(f"one-pass-stall-stall{suffix}", statistics.median(news), "s", statistics.median(olds), 1, at_most=True)


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    with open("/proc/meminfo") as f:
        available = int(next(line.split()[1] for line in f if line.startswith("MemAvailable"))) << 10
    one_model("0.6b")
    if available > 20 << 30:
        one_model("1.7b")
    else:
        print("  skipped: the larger model takes 20 GiB of memory")


if __name__ == "__main__":
    main()
