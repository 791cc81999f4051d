"""Reading through the mount: complete files, link mode, streaming, large folders, memory."""
import json
import os
import statistics
import sys
import time

os.environ.setdefault("SANITIZER", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rows import row
from world import *

MEGABYTES = int(os.environ.get("BENCH_MB", "1200"))


def large_checkpoint():
    """One file of about 1.2 GB with some hundred tensors."""
    n = MEGABYTES * 1000000 // 4194304
    return checkpoint({f"layers.{i}.weight": ("BF16", [1024, 2048]) for i in range(n)})


def reads(agent, options, names, path=None):
    mount = Mount(agent.url, options, path=path)
    mount.wait_version("actor", 1)
    wsync("pull", "--mount", mount.path, "actor", "1", timeout=300)
    rows = {r["name"]: r for r in json.loads(wsync("bench", "--json", "--repeat", "5", mount.file("actor/1/model.safetensors"), timeout=600).stdout)}
    for bench, (name, target) in names.items():
        row(name, rows[bench]["value"], "GB/s", rows[bench]["baseline"], target)
    mount.end()
    mount.detach()


def stream_first_byte(agent):
    """The time until the first tensor can be read, compared with the whole pull, on a mount without the version."""
    ratios, firsts, wholes = [], [], []
    for _ in range(3):
        mount = Mount(agent.url, "open=stream")
        mount.wait_version("actor", 1)
        start = time.monotonic()
        with open(mount.file("actor/1/model.safetensors"), "rb", buffering=0) as f:
            header = int.from_bytes(f.read(8), "little")
            f.seek(8 + header)
            f.read(4096)
            first = time.monotonic() - start
        wsync("wait", "--mount", mount.path, "actor", "1", timeout=300)
        whole = time.monotonic() - start
        firsts.append(first)
        wholes.append(whole)
        ratios.append(first / whole)
        mount.end()
        mount.detach()
    row("stream-first-byte", statistics.median(firsts), "s", statistics.median(wholes), 0.05, at_most=True)


def pull_ipc(agent):
    times = []
    for _ in range(5):
        mount = Mount(f"unix:{agent.sock}")
        mount.wait_version("actor", 1)
        start = time.monotonic()
        os.close(os.open(mount.file("actor/1/model.safetensors"), os.O_RDONLY))
        times.append((time.monotonic() - start) * 1000)
        assert int(mount.status()["moved_bytes"]) == 0
        mount.end()
        mount.detach()
    row("pull-ipc", statistics.median(times), "ms", None, 20, at_most=True)


def rss_mib(pid):
    """The process's private memory: weights are shared memory."""
    with open(f"/proc/{pid}/status") as f:
        return int(next(line.split()[1] for line in f if line.startswith("RssAnon"))) / 1024


def large_folder(agent):
    folder = checkpoint({f"model.layers.{i}.weight": ("U8", [16]) for i in range(100000)})
    agent.publish("big", 1, folder, timeout=300)
    mount = Mount(agent.url)
    mount.wait_version("big", 1)
    wsync("pull", "--mount", mount.path, "actor", "1", timeout=300)
    tensors = mount.file("big/1/tensors")
    start = time.monotonic()
    names = os.listdir(tensors)
    row("ls-100k", time.monotonic() - start, "s", None, 0.5, at_most=True)
    assert len(names) == 100000
    opens = []
    for name in names[::1000]:
        start = time.monotonic()
        os.close(os.open(os.path.join(tensors, name), os.O_RDONLY))
        opens.append((time.monotonic() - start) * 1000)
    row("open-tensor-100k", statistics.median(opens), "ms", None, 0.1, at_most=True)
    time.sleep(1)
    row("rss", rss_mib(mount.pid) + rss_mib(agent.pid), "MiB", None, 64, at_most=True)
    print(f"    mount {rss_mib(mount.pid):.0f} MiB, agent {rss_mib(agent.pid):.0f} MiB", flush=True)


def main():
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        print("  skipped: no /dev/fuse, or not root")
        return
    with scope():
        agent = Agent()
        agent.publish("actor", 1, large_checkpoint(), timeout=300)
        reads(agent, "reads=passthrough", {"read-mount": ("read-mount", 0.95), "mmap-mount": ("mmap-mount", 0.95),
                                                  "read-mount-vs-shm": ("read-mount-vs-shm", None),
                                                  "mmap-mount-vs-shm": ("mmap-mount-vs-shm", None)})
        reads(agent, "reads=passthrough,run-as=nobody,state=none", {"read-mount": ("read-unprivileged", 0.95), "mmap-mount": ("mmap-unprivileged", 0.95)},
              open_to_all())
        reads(agent, "reads=link", {"read-mount": ("read-link", 0.98), "mmap-mount": ("mmap-link", 0.98)})
        stream_first_byte(agent)
        pull_ipc(agent)
        large_folder(agent)


main()
