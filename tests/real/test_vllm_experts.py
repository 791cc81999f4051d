# timeout: 1800, takes: 110
"""A real vLLM of a model with experts: reloaded on a CPU, and spread over two nodes, each with a mount of what it needs. Its answers are those
of one that was started on the whole checkpoint."""
import os
import subprocess
import sys

import pytest

from checkpoints import EXPERTS
from servers import CLOSE, HERE, PROMPTS, VLLM, WithWsync, distance, installed, need_real
from world import Agent, Mount, free_port, tensors_of, unique

MODEL, SIZE = "actor", 2
EXTENSION = ("--worker-extension-cls", "wsync.vllm.Extension")  # its reload packs experts on a CPU


class Node(WithWsync):
    """A node of a server: rank 0 has the routes. bind: (FROM, TO), as headless_node.py has it."""

    def __init__(self, folder, rank, port, bind=None):
        self.rank, self.coordinator, self.bind = rank, port, bind
        super().__init__(folder, *VLLM.uncached, *EXTENSION)

    def environment(self):
        return {**super().environment(), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join((HERE, self.target)), "GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1",
                **({"BIND": ":".join(self.bind)} if self.bind else {})}

    def command(self, folder):
        command = [*super().command(folder), "--tensor-parallel-size", str(SIZE), "--enable-expert-parallel", "--nnodes", str(SIZE),
                   "--node-rank", str(self.rank), "--master-addr", "127.0.0.1", "--master-port", str(self.coordinator),
                   "--worker-cls", "cpu_experts.Worker"]
        return [os.path.join(HERE, "headless_node.py"), *command[2:], "--headless"] if self.rank else command


class Server:
    """All nodes of a server, started with one command."""

    def __init__(self, folder, binds=()):
        port = free_port()
        self.nodes = [Node(folder, rank, port, dict(enumerate(binds)).get(rank)) for rank in range(SIZE)]
        self.first = self.nodes[0].wait()

    def end(self):
        for node in self.nodes:
            node.stop()


def publish():
    """Versions 1 and 2: their folders, and an agent that has them."""
    need_real("vllm")
    WithWsync.target = installed()
    folders = unique("checkpoints")
    subprocess.run([sys.executable, os.path.join(HERE, "checkpoints.py"), folders, "experts"], check=True, timeout=240, stdin=subprocess.DEVNULL)
    agent = Agent()
    for version in (1, 2):
        agent.publish(MODEL, version, os.path.join(folders, str(version)))
    return folders, agent


def test_reloads():
    "with wsync's extension a reload on a CPU is what a start is; without it a switch is refused before the pause, with the reason"
    folders, agent = publish()
    mount = Mount(agent.url)
    mount.wait_version(MODEL, 2)
    mended = WithWsync(mount.file(MODEL, 1), *VLLM.uncached, *EXTENSION)
    plain = VLLM(os.path.join(folders, "2"), *VLLM.uncached)
    want = {1: mended.wait().answers(), 2: plain.wait().answers()}
    assert distance(want[1], want[2]) > 10 * CLOSE
    mount.write(f"engine add e0 vllm {plain.url}", f"{MODEL}/ctl")
    for command, file in ((1, "version"), ("load 1 force-layout", "ctl")):
        assert mount.refused(command, f"{MODEL}/{file}") == "EPROTO"
        why = mount.text(f"{MODEL}/last_error")
        assert "leaves them unpacked" in why and " ".join(EXTENSION) in why, why
    assert plain.answers() == want[2]
    mount.write("engine remove e0", f"{MODEL}/ctl")
    mount.write(f"engine add e1 vllm {mended.url}", f"{MODEL}/ctl")
    for version in (2, 1, 2):
        mount.write(version, f"{MODEL}/version")
        assert mended.answers() == want[version], version
    mended.load(mount.file(MODEL, 1))  # by the extension's own method
    assert mended.answers() == want[1]
    plain.reload(os.path.join(folders, "1"))
    assert distance(plain.answers(), want[1]) > 10 * CLOSE, "vLLM itself reloads experts on a CPU now: the refusal can go"


def test_nodes():
    "each node's mount has its own half of the experts; the answers are those of a server on the whole checkpoint, bit for bit"
    if os.environ.get("CI"):
        pytest.skip("it starts a vLLM of two nodes twice: minutes that the hour of CI does not have")
    folders, agent = publish()
    mounts = [Mount(agent.url, f"need=ep:{rank}/{SIZE}") for rank in range(SIZE)]
    whole = tensors_of(os.path.join(folders, "1", "model.safetensors"))
    for rank, mount in enumerate(mounts):
        mount.wait_version(MODEL, 2)
        own = {n for n in whole
               if ".experts." not in n or int(n.split(".experts.")[1].split(".")[0]) // (EXPERTS // SIZE) == rank}
        assert tensors_of(mount.file(MODEL, 1, "model.safetensors")) == {n: whole[n] for n in own}
    plain, full = VLLM(os.path.join(folders, "1"), *VLLM.uncached), Server(os.path.join(folders, "1"))
    want = {1: full.first.answers()}
    plain.wait()
    apart = sorted(abs(x - y) for p in PROMPTS for x, y in zip(plain.score(p), full.first.score(p)))
    print(f"# a server of one rank and one of {SIZE} are {apart[len(apart) // 2]:.3f} apart at the median, {apart[-1]:.3f} at most", flush=True)
    # Rounding has a router take another expert here and there, which is up to 1.5; without half of the experts the median is 0.9.
    assert apart[len(apart) // 2] < CLOSE
    plain.stop()
    for version in (2, 1):
        full.first.reload(os.path.join(folders, str(version)))
        want[version], before = full.first.answers(), want.get(version)
        assert before in (None, want[version]), "a reload is not what a start is"
    assert distance(want[1], want[2]) > 10 * CLOSE
    full.end()
    # Both nodes read one path, which is the second's own mount for the second.
    subsets = Server(mounts[0].file(MODEL, 1), (None, (mounts[1].path, mounts[0].path))).first
    assert subsets.answers() == want[1]
    mounts[0].write(f"engine add e1 vllm {subsets.url}", f"{MODEL}/ctl")
    for version in (2, 1):
        mounts[0].write(version, f"{MODEL}/version")
        assert subsets.answers() == want[version], version
