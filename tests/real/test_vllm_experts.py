# timeout: 1800
"""A real vLLM whose experts are spread over two nodes, each with a mount of what it needs: answers as of one on the whole checkpoint."""
import os
import subprocess
import sys

import pytest

from checkpoints import EXPERTS
from servers import CLOSE, HERE, PROMPTS, VLLM, distance, need_real
from world import Agent, Mount, free_port, tensors_of, unique

MODEL, SIZE = "actor", 2


class Node(VLLM):
    """A node of a server: rank 0 has the routes. bind: (FROM, TO), as headless_node.py has it."""

    def __init__(self, folder, rank, port, bind=None):
        self.rank, self.coordinator, self.bind = rank, port, bind
        super().__init__(folder, *VLLM.uncached)

    def environment(self):
        return {**super().environment(), "OMP_NUM_THREADS": "1", "PYTHONPATH": HERE, "GLOO_SOCKET_IFNAME": "lo", "VLLM_HOST_IP": "127.0.0.1",
                **({"BIND": ":".join(self.bind)} if self.bind else {})}

    def command(self, folder):
        command = [*super().command(folder), "--tensor-parallel-size", str(SIZE), "--enable-expert-parallel", "--nnodes", str(SIZE),
                   "--node-rank", str(self.rank), "--master-addr", "127.0.0.1", "--master-port", str(self.coordinator),
                   "--worker-extension-cls", "cpu_experts.Extension"]
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


def test_nodes():
    "each node's mount has its own half of the experts; the answers are those of a server on the whole checkpoint, bit for bit"
    need_real("vllm")
    if os.environ.get("CI"):
        pytest.skip("it starts a vLLM of two nodes twice: minutes that the hour of CI does not have")
    folders = unique("checkpoints")
    subprocess.run([sys.executable, os.path.join(HERE, "checkpoints.py"), folders, "experts"], check=True, timeout=240, stdin=subprocess.DEVNULL)
    agent = Agent()
    for version in (1, 2):
        agent.publish(MODEL, version, os.path.join(folders, str(version)))
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
