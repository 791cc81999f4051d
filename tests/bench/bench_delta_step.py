"""A training step from the trainer's memory to a ready file on a mount: by deltas in place, by deltas into copies (as when an engine has the
previous version open), with and without room for a third version, and by full pulls, at loopback speed and at 10 Gbit/s; then to a
loaded engine, compared with copying the version into /dev/shm; and compared with one memcpy of the model. Also the bandwidth that a
pull and a patch take from another process that reads memory."""
import mmap
import re
import socket
import statistics
import subprocess
import sys
import threading
import time

import os

os.environ.setdefault("SANITIZER", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cores import two_cores
from rows import row
from world import *

SHARE, ROUNDS, STREAMS = 0.015, 5, 6
MOMENT = 0.7  # in which a trainer computes its next step, and a mount reserves memory
TRAINER = os.path.join(BUILD, "tests/tools/trainer")


class Trainer:
    def __init__(self, agent, model, prefix=()):
        self.process = subprocess.Popen([*prefix, TRAINER, f"unix:{agent.sock}", "actor", model], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        at_end(self.end)
        self.bytes = int(self.answer("ready")[0])
        self.version = 0

    def answer(self, word):
        line = self.process.stdout.readline().split()
        assert line and line[0] == word, line
        return line[1:]

    def tell(self, text, word):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return self.answer(word)

    def step(self, kind="step", share=SHARE):
        if self.version:
            self.tell(f"{kind} {share}", "stepped")

    def offload(self):
        """Offloads the next version; returns when the offload began."""
        self.version += 1
        return float(self.tell(f"offload {self.version}", "offloaded")[1])

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)


def line_of(mount, version):
    return next(l for l in mount.text("actor/status").splitlines() if l.startswith(f"version.{version} "))


def publish_to_ready(trainer, mount, kind="step", share=SHARE):
    trainer.step(kind, share)
    began = trainer.offload()
    wait_for(lambda: os.path.isdir(mount.file(f"actor/{trainer.version}")), "the version", 60)
    mount.write(f"pull {trainer.version}", "actor/ctl")
    return time.monotonic() - began


def look(mount, version):
    """Opens the version as an engine would: the next one must be patched into a copy."""
    with open(mount.file(f"actor/{version}/model.safetensors"), "rb") as f:
        f.read(1)


def way(mount, version):
    """F: pulled whole, p: patched in place, c: patched into a copy."""
    how = re.search(r'how="([^"]*)"', line_of(mount, version)).group(1)
    return "F" if "full" in how else "p" if "in place" in how else "c"


def steps(agent, trainer, options, source=None, kind="step", share=SHARE, rounds=ROUNDS, then=None, opens=False, room=2.6,
          start=lambda kind, *args: kind(*args)):
    """Medians of publish to ready, and of publish to the step after that; how each arrived. opens: each version is opened before the next one,
    with a pause between two. room: for that many versions. start: starts the mount."""
    with scope():
        mount = start(Mount, f"unix:{unique('nobody')}.sock", f"cache={int(trainer.bytes * room)},{options}")
        mount.write(f"add actor {source or ''}{agent.url}", "ctl")
        ready, after, ways = [], [], ""
        for i in range(rounds + 3):  # the first three fill the cache and are not counted
            seconds = publish_to_ready(trainer, mount, kind, share)
            if i >= 3:
                ready.append(seconds)
                if then:
                    after.append(seconds + then(mount))
            ways += way(mount, trainer.version)
            if opens:
                look(mount, trainer.version)
                time.sleep(MOMENT)
        print(f"    {statistics.median(ready):.3f} s: {ways[:3]} {ways[3:]}", flush=True)
        return statistics.median(ready), statistics.median(after) if after else None


def memcpy_in_shm(n):
    paths = [f"/dev/shm/wsync-bench-{os.getpid()}-{i}" for i in range(2)]
    try:
        maps = []
        for p in paths:
            fd = os.open(p, os.O_RDWR | os.O_CREAT)
            os.ftruncate(fd, n)
            maps.append(mmap.mmap(fd, n))
            os.close(fd)
        maps[0][:] = bytes(1) * n
        times = []
        for _ in range(4):
            start = time.monotonic()
            maps[1][:] = memoryview(maps[0])
            times.append(time.monotonic() - start)
        return statistics.median(times[1:])  # the first one touches the memory
    finally:
        for p in paths:
            os.unlink(p)


def copy_by_sendfile(source, target, n):
    """Six streams over loopback from one file to another, the usual way without wsync."""
    out = os.open(target, os.O_RDWR | os.O_CREAT)
    os.ftruncate(out, n)
    memory = memoryview(mmap.mmap(out, n))
    fd = os.open(source, os.O_RDONLY)
    listener = socket.create_server(("127.0.0.1", 0))

    def send(i):
        s = socket.create_connection(listener.getsockname())
        at, end = n * i // STREAMS, n * (i + 1) // STREAMS
        s.sendall(i.to_bytes(8, "little"))
        while at < end:
            at += os.sendfile(s.fileno(), fd, at, min(end - at, 1 << 30))
        s.close()

    def receive():
        s, _ = listener.accept()
        i = int.from_bytes(s.recv(8, socket.MSG_WAITALL), "little")
        at, end = n * i // STREAMS, n * (i + 1) // STREAMS
        while at < end:
            at += s.recv_into(memory[at:end], min(end - at, 8 << 20))
        s.close()

    threads = [threading.Thread(target=receive) for _ in range(STREAMS)] + [threading.Thread(target=send, args=(i,)) for i in range(STREAMS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    os.close(fd)
    os.close(out)


def loads(engine, path):
    start = time.monotonic()
    engine.ask("/update_weights_from_disk", {"model_path": path, "weight_version": "x"})
    return time.monotonic() - start


def to_loaded(agent, trainer, rounds=3):
    """Until an engine has loaded it: by a delta through the mount; by a copy into /dev/shm."""
    with scope():
        first = checkpoint(SMALL)
        engine = Engine(first)
        _, by_mount = steps(agent, trainer, "", rounds=rounds,
                            then=lambda m: loads(engine, m.file(f"actor/{trainer.version}")))
        folder = f"/dev/shm/wsync-bench-{os.getpid()}"
        os.makedirs(folder)
        at_end(lambda: subprocess.run(["rm", "-rf", folder], check=False))
        # The trainer's shared memory: the bytes of one version, which is all that counts here.
        run_id = agent.get(f"/v1/actor/{trainer.version}/manifest")["run"]
        subprocess.run(["curl", "-sf", "-o", folder + "/source",
                        f"{agent.url}/v1/actor/{trainer.version}/files/model.safetensors?run={run_id}"], check=True)
        size = os.path.getsize(folder + "/source")
        os.makedirs(folder + "/copy")
        times = []
        for _ in range(rounds + 1):
            trainer.step()
            began = trainer.offload()
            copy_by_sendfile(folder + "/source", folder + "/copy/model.safetensors", size)
            loads(engine, folder + "/copy")
            times.append(time.monotonic() - began)
        return by_mount, statistics.median(times[1:])


def neighbour(agent, trainer):
    """How fast another process reads memory while idle, during a full pull, and during a patch."""
    n = 256 << 20
    memory = mmap.mmap(-1, n)
    memory[:] = b"x" * n
    rates = {"idle": [], "pull": [], "patch": []}
    for what, options in (("pull", "delta-cache=0"), ("patch", "")):
        with scope():
            mount = Mount(agent.url, f"cache={int(trainer.bytes * 2.6)},nice=10,{options}")
            for i in range(6):
                trainer.step()
                trainer.offload()
                wait_for(lambda: os.path.isdir(mount.file(f"actor/{trainer.version}")), "the version", 60)
                time.sleep(0.5)
                working = threading.Thread(target=lambda: mount.write(f"pull {trainer.version}", "actor/ctl"))
                working.start()
                time.sleep(0.002)
                while True:
                    start = time.monotonic()
                    memory.find(b"y")
                    took = time.monotonic() - start
                    if not working.is_alive():
                        break
                    if i >= 2:
                        rates[what].append(n / took / 1e9)
                working.join()
                start = time.monotonic()
                memory.find(b"y")
                rates["idle"].append(n / (time.monotonic() - start) / 1e9)
    idle = statistics.median(rates["idle"])
    for what in ("pull", "patch"):
        if rates[what]:
            row(f"neighbour-{what}", statistics.median(rates[what]), "GB/s", idle, 0)


def one_model(name):
    with scope():
        agent = Agent("--slots", "2")
        trainer = Trainer(agent, name)
        suffix = "" if name == "1.7b" else "-0.6b"
        full, _ = steps(agent, trainer, "delta-cache=0")
        delta, _ = steps(agent, trainer, "")
        row(f"delta-step{suffix}", delta, "s", full, 0.6, at_most=True)
        opened, _ = steps(agent, trainer, "", opens=True, room=3.6)
        row(f"delta-step-opened{suffix}", opened, "s", delta, 1.15, at_most=True)
        row(f"delta-step-opened-vs-full{suffix}", opened, "s", full, 1, at_most=True)
        tight, _ = steps(agent, trainer, "", opens=True)
        row(f"delta-step-opened-tight{suffix}", tight, "s", full, 1, at_most=True)
        slow_full, _ = steps(agent, trainer, "delta-cache=0", "fault:rate=1250:", rounds=3)
        slow, _ = steps(agent, trainer, "", "fault:rate=1250:", rounds=3)
        row(f"delta-step-slow-link{suffix}", slow, "s", slow_full, 0.2, at_most=True)
        slow_opened, _ = steps(agent, trainer, "", "fault:rate=1250:", rounds=3, opens=True, room=3.6)
        row(f"delta-step-opened-slow-link{suffix}", slow_opened, "s", slow_full, 0.4, at_most=True)
        if name == "1.7b":
            by_mount, by_copy = to_loaded(agent, trainer)
            row("publish-to-loaded", by_mount, "s", by_copy, 0.45, at_most=True)
        else:
            row("publish-to-ready-copies", delta, "s", memcpy_in_shm(trainer.bytes), 2.5, at_most=True)
            for what, kind, share in (("0.1%", "step", 0.001), ("10%", "step", 0.1), ("mix", "mix", SHARE)):
                seconds, _ = steps(agent, trainer, "", kind=kind, share=share, rounds=3)
                row(f"delta-step{suffix}-{what}", seconds, "s", full, 1, at_most=True)
            neighbour(agent, trainer)


def slow_link_on_cores(agent, model, prefer, version, options, cores):
    """The median of publish to ready, and the next version's number: agent and trainer on the first core, the mount on the second."""
    theirs, mounts = cores
    with scope():
        trainer = Trainer(agent, model, [*theirs.prefix, "env", f"PREFER={prefer}"])
        trainer.version = version
        ready, _ = steps(agent, trainer, options, "fault:rate=1250:", rounds=3, start=mounts.start, room=3.6)  # two are kept
        print(f"    {prefer}: {' '.join(trainer.tell(f'how {trainer.version}', 'how'))}", flush=True)
        return ready, trainer.version


def on_one_core_each(name):
    """With a slow link, and as on two hosts; whole versions are pulled from a trainer that compares nothing."""
    try:
        cores = two_cores()
    except OSError as e:
        print(f"  skipped: delta-step-slow-link-cgroups: no cpuset cgroup can be made here: {e}")
        return
    agent = cores[0].start(Agent, "--slots", "2")
    full, version = slow_link_on_cores(agent, name, "stall", 0, "delta-cache=0", cores)
    delta, _ = slow_link_on_cores(agent, name, "latency", version, "provisional=on", cores)
    # 0.3 is for 2.5 GHz; at 2.8 GHz 0.2 is wanted.
    row(f"delta-step-slow-link-cgroups{'' if name == '1.7b' else '-0.6b'}", delta, "s", full, 0.3, at_most=True)


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    with open("/proc/meminfo") as f:
        available = int(next(line.split()[1] for line in f if line.startswith("MemAvailable"))) << 10
    with scope():
        one_model("0.6b")
        with scope():
            on_one_core_each("0.6b")
        if available > 20 << 30:
            one_model("1.7b")
            with scope():
                on_one_core_each("1.7b")
        else:
            print("  skipped: the larger model takes 20 GiB of memory")


if __name__ == "__main__":
    main()
