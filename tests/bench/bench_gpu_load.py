"""From a mounted file to device memory: the stock safetensors reader (torch) and our own loader, compared with the best pinned copy."""
import os
import statistics
import subprocess
import sys

os.environ.setdefault("SANITIZER", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from rows import row
from world import *

MEGABYTES = int(os.environ.get("BENCH_MB", "3400"))
REPEATS = 5
STOCK = """
import sys, time
import safetensors.torch, torch
torch.zeros(1, device="cuda")
for i in range(int(sys.argv[2]) + 1):
    begin = time.monotonic()
    held = safetensors.torch.load_file(sys.argv[1], device="cuda")
    torch.cuda.synchronize()
    if i:
        print(time.monotonic() - begin)
    del held
"""


def stock(path):
    """Seconds of the stock reader, or why there are none. It uses the machine's torch: the benchmarks install none."""
    for python in ("python3", os.environ["PYTHON"]):
        result = subprocess.run([python, "-c", STOCK, path, str(REPEATS)], capture_output=True, text=True, timeout=600)
        if result.returncode == 0:
            return statistics.median(map(float, result.stdout.split())), ""
    return None, (result.stderr.strip().splitlines() or ["it failed"])[-1]


def own(path):
    result = subprocess.run([os.path.join(BUILD, "tests/tools/load_gpu"), path, str(REPEATS)], capture_output=True, text=True, timeout=600)
    lines = result.stdout.strip().splitlines()
    if result.returncode or lines[-1] != "right":
        return None, None, lines[-1] if lines else result.stderr
    turns = [tuple(map(float, line.split())) for line in lines[:-1]]
    return statistics.median(t[0] for t in turns), statistics.median(t[1] for t in turns), ""


def measure(path, where):
    size = os.path.getsize(path) / 1e9
    pinned, loaded, why = own(path)
    if pinned is None:
        print(f"  skipped: {why}", flush=True)
        return
    row(f"{where}-to-gpu", size / loaded, "GB/s", size / pinned, 0.9)
    seconds, why = stock(path)
    if seconds is None:
        print(f"  {where}-to-gpu-stock: not measured: {why}", flush=True)
    else:
        row(f"{where}-to-gpu-stock", size / seconds, "GB/s", size / pinned, 0.3)


def main():
    with scope():
        folder = checkpoint({f"layers.{i}.weight": ("BF16", [1024, 2048]) for i in range(MEGABYTES * 1000000 // 4194304)})
        if not os.path.exists("/dev/fuse"):
            print("  no /dev/fuse here: the checkpoint's own file is read instead of the mount's", flush=True)
            return measure(os.path.join(folder, "model.safetensors"), "file")
        agent = Agent()
        agent.publish("actor", 1, folder, timeout=600)
        mount = Mount(agent.url)
        mount.wait_version("actor", 1)
        wsync("pull", "--mount", mount.path, "actor", "1", timeout=600)
        measure(mount.file("actor/1/model.safetensors"), "mount")


main()
