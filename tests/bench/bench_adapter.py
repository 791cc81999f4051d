"""A LoRA adapter of 100 MB from the offload's begin to readable on 8 mounts, each on a host of its own (a network namespace) whose link has
10 Gbit/s either way: by trees that the mounts make themselves (topology=auto), and by all of them from the agent. Each step changes all of it, so
that it comes whole. One link takes 0.08 s for 100 MB, and the trainer's own takes 8 times that where all mounts pull from it; here all hosts
share this machine's cores, which move each byte of 8 mounts once or twice through TCP and hash it. So there is a floor beside it: the same
bytes by plain TCP over the same links, into memory and no more, from host to host as each passes on what came, and from one host to all.

ADAPTER_MOUNTS, _MB, _MBIT in the environment: other sizes."""
import os
import socket
import statistics
import struct
import sys
import threading
import time

os.environ.setdefault("SANITIZER", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import pytest

from adapters import GOOD, MODULE
from network import Network
from package import package
from rows import row
from world import *

MOUNTS, MEGABYTES, MBIT = (int(os.environ.get(f"ADAPTER_{name}", value)) for name, value in (("MOUNTS", 8), ("MB", 100), ("MBIT", 10000)))
ROUNDS, PORT, FLOOR_PORT, RANK, WIDTH = 7, 18900, 18950, 64, 2048
SECONDS = 0.3


def trainer(agent):
    """A publisher of an adapter, and the function that changes all of it."""
    import numpy
    import wsync

    class Adapter(wsync.Source):
        kind = "fsdp"

        def __init__(self):
            pairs = MEGABYTES * 1000000 // (2 * RANK * WIDTH * 4)
            self.tensors = {f"{MODULE.format(i, 'q')}.lora_{half}.default.weight": numpy.random.default_rng(i).random(
                (RANK, WIDTH) if half == "A" else (WIDTH, RANK), numpy.float32) for i in range(pairs) for half in "AB"}

        def held(self):
            return wsync.tensors(self.tensors).held()

        def options(self):
            return {"adapter": "default"}

        def files(self):
            return {"adapter_config.json": json.dumps(GOOD | {"r": RANK}).encode()}

        def step(self):
            for tensor in self.tensors.values():
                numpy.multiply(tensor, numpy.float32(1.001), out=tensor)

    source = Adapter()
    size = sum(t.nbytes for t in source.tensors.values())
    pub = wsync.Publisher("actor-lora", source, agent=f"unix:{agent.sock}", start_agent=False, rank=0, world_size=1, threads=2)
    at_end(pub.close)
    return pub, source.step, size


def pull(mount, version):
    """Until the version's files are complete in the mount's memory."""
    while not os.path.isdir(mount.file("actor-lora", version)):
        time.sleep(0.001)
    mount.write(f"pull {version}", "actor-lora/ctl")


def cpu_seconds(pids):
    """All processes together, the kernel's part too, which is most of it."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as f:
            total += sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


def steps(mounts, agent, pub, step, first):
    """Medians over ROUNDS: seconds until the first and the last mount have it, seconds of the offload alone, and of CPU; the last version."""
    pids = [agent.pid, os.getpid(), *(m.pid for m in mounts)]
    seen = []
    for version in range(first, first + ROUNDS + 2):  # two touch the memory
        step()
        before, ready, began = cpu_seconds(pids), [], time.monotonic()
        pulls = [threading.Thread(target=lambda m=m: (pull(m, version), ready.append(time.monotonic() - began))) for m in mounts]
        for t in pulls:
            t.start()
        pub.offload(version)
        offloaded = time.monotonic() - began
        for t in pulls:
            t.join()
        seen.append((min(ready), max(ready), offloaded, cpu_seconds(pids) - before))
    return [statistics.median(x) for x in zip(*seen[2:])], version


def receive(arrived, listener, onwards, size):
    """A host of the floor: takes one connection, keeps size bytes, sends them on as they come, if there is a next host, and tells the time, and what CPU it took."""
    memory, came = memoryview(bytearray(size)), 0
    memory[::4096] = bytes(len(memory[::4096]))  # it is mapped
    source, _ = listener.accept()
    idle = time.process_time()
    following = socket.create_connection(onwards) if onwards else None
    while came < size:
        n = source.recv_into(memory[came:came + (1 << 20)])
        if n == 0:
            os._exit(1)
        if following:
            following.sendall(memory[came:came + n])
        came += n
    os.write(arrived, struct.pack("dd", time.monotonic(), time.process_time() - idle))
    os._exit(0)


def floor(net, names, size, passed_on):
    """Medians: seconds from the first byte sent until all hosts have all, by plain TCP, and seconds of CPU."""
    data, seen = bytes(os.urandom(1 << 20)) * (size // (1 << 20) + 1), []
    for turn in range(ROUNDS):
        done, arrived = os.pipe()
        places, pids = [(net.address(name), FLOOR_PORT + turn) for name in names], []
        for i, (name, place) in enumerate(zip(names, places)):
            with net.inside(name):
                with socket.create_server(place) as listener:
                    pid = os.fork()
                    if pid == 0:
                        receive(arrived, listener, places[i + 1] if passed_on and i + 1 < len(names) else None, size)
                    pids.append(pid)
        with net.inside("trainer"):
            sockets = [socket.create_connection(place) for place in (places[:1] if passed_on else places)]
        time.sleep(0.2)  # all memory is mapped
        began, idle = time.monotonic(), time.process_time()
        senders = [threading.Thread(target=s.sendall, args=(memoryview(data)[:size],)) for s in sockets]
        for s in senders:
            s.start()
        ends = [struct.unpack("dd", os.read(done, 16)) for _ in names]
        seen.append((max(end for end, _ in ends) - began, sum(cpu for _, cpu in ends) + time.process_time() - idle))
        for s, c in zip(senders, sockets):
            s.join()
            c.close()
        for pid in pids:
            os.waitpid(pid, 0)
        os.close(done)
        os.close(arrived)
    return [statistics.median(x) for x in zip(*seen)]


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    sys.path.insert(0, package())
    names, first = ["trainer", *(f"n{i}" for i in range(MOUNTS))], 1
    with scope():
        try:
            net = Network(names)
            for name in names:
                for sends in (False, True):
                    net.slow(name, MBIT, sends=sends, burst="4mb")
            with net.inside("trainer"):
                agent = Agent("--insecure", host=net.address("trainer"))
            pub, step, size = trainer(agent)
        except (pytest.skip.Exception, ImportError) as why:
            print(f"  skipped: {why}")
            return
        plain = {passed_on: floor(net, names[1:], size, passed_on) for passed_on in (True, False)}
        print(f"  plain TCP: {size / 1e6:.0f} MB on all {MOUNTS} after {plain[True][0]:.3f} s where each passes it on, {plain[False][0]:.3f} s from one to all, "
              f"and {plain[True][1] / os.cpu_count():.3f} and {plain[False][1] / os.cpu_count():.3f} s of these cores; load {os.getloadavg()[0]:.1f}", flush=True)
        step()
        pub.offload(first)
        took = {}
        for how in ("from the agent", "by trees"):
            with scope():
                mounts = []
                for i in range(MOUNTS):
                    with net.inside(f"n{i}"):
                        tree = f",topology=auto,serve={net.address(f'n{i}')}:{PORT},serve-insecure" if how == "by trees" else ""
                        mounts.append(Mount(agent.url, f"cache={size * 3}{tree}"))
                for m in mounts:
                    m.wait_version("actor-lora", first)
                time.sleep(4)  # they hear of their parents
                took[how], first = steps(mounts, agent, pub, step, first + 1)
            earliest, last, offloaded, work = took[how]
            link = size * 8 / (MBIT * 1e6)
            print(f"  {how}: {size / 1e6:.0f} MB, offloaded in {offloaded:.3f} s, on the first mount after {earliest:.3f} s, on all {MOUNTS} after {last:.3f} s; "
                  f"the limit is {link * (MOUNTS if how == 'from the agent' else 1):.3f} s of the links, and {work / os.cpu_count():.3f} s of these cores; "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)
        row("adapter-floor", min(took for took, _ in plain.values()), "s", 0, SECONDS, at_most=True)
        row("adapter-ready", min(last for _, last, *_ in took.values()), "s", 0, SECONDS, at_most=True)


main()
