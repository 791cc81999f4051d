"""wsync.Publisher: the cost per parameter with many small ones; the cost of a step of two FSDP2 ranks, compared with gathering the whole
model and saving it to /dev/shm, as frameworks do that pass files to engines; and the gain by a broadcast's buckets."""
import json
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("SANITIZER", "")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
from package import package
from rows import row
from world import TESTDIR, Agent, scope

ROOT = os.environ["ROOT"]
N, BYTES, ROUNDS = 10000, 4096, 15


def small(agent):
    sys.path.insert(0, package())
    try:
        import numpy
        import wsync
    except ImportError as e:
        print(f"  offload-small-python: skipped: {e}")
        return
    tensors = {f"model.layers.{i}.weight": numpy.full(BYTES // 2, i % 1000, numpy.float16) for i in range(N)}
    with wsync.Publisher("small", tensors, agent=f"unix:{agent.sock}", start_agent=False, threads=2) as pub:
        times = []
        for version in range(1, ROUNDS + 4):
            began = time.perf_counter()
            pub.offload(version)
            times.append(time.perf_counter() - began)
            pub.wait_published(version)
        began = time.perf_counter()
        pub._source.held()
        reading = time.perf_counter() - began
    print(f"  of which reading the arrays' addresses and shapes: {reading * 1e6 / N:.2f} us")
    row("offload-small-python", statistics.median(times[3:]) * 1e6 / N, "us", None, 3, at_most=True)


def two_ranks(agent, script, name):
    """The figures that two torch ranks wrote to $FIGURES; None if there is no torch."""
    python = subprocess.check_output([os.path.join(ROOT, ".ci/python"), "real"], text=True).strip()
    if subprocess.run([python, "-c", "import torch, transformers, safetensors"], stderr=subprocess.DEVNULL).returncode:
        print(f"  {name}: skipped: no torch here; `.ci/deps real` fetches it")
        return None
    home, out = os.path.join(TESTDIR, "home"), os.path.join(TESTDIR, "figures.json")
    os.makedirs(home, exist_ok=True)
    env = dict(os.environ, PYTHONPATH=package(), WSYNC_AGENT=f"unix:{agent.sock}", HOME=home, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo",
               FIGURES=out, CUDA_VISIBLE_DEVICES="")
    subprocess.run([python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", os.path.join(HERE, script)],
                   env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, timeout=600)
    with open(out) as f:
        return {name: statistics.median(times) for name, times in json.load(f).items()}


def gather(agent):
    figures = two_ranks(agent, "gather_ranks.py", "gather-avoided")
    if figures:
        row("gather-avoided", figures["offload"], "s", figures["gather"], 0.2, at_most=True)


def buckets(agent):
    figures = two_ranks(agent, "broadcast_ranks.py", "broadcast-buckets")
    if figures:
        row("broadcast-buckets", figures["buckets"], "s", figures["tensors"], 0.5, at_most=True)


def main():

    with scope():
        agent = Agent()
        small(agent)
        gather(agent)
        buckets(agent)


main()
