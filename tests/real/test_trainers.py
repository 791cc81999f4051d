#!/usr/bin/env python3
# timeout: 900
"""Ranks of real trainers publish through one agent, and the mounted files are what the frameworks say themselves:
full_tensor(), save_pretrained(), GatheredParameters, the Hugging Face model that Megatron's was filled from."""
import importlib.util
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
from package import package
from world import Agent, Mount, Skip, need_fuse, run, tensors_of, unique

RANKS_SECONDS = 240


def need(name):
    need_fuse()
    if importlib.util.find_spec(name) is None:
        raise Skip(f"{name} is not installed: PyPI could not be reached, or `.ci/deps real` has not run")


class Ground:
    """An agent and a mount, and what torchrun needs."""

    def __init__(self, stack):
        self.agent = Agent(stack)
        self.mount = Mount(stack, f"unix:{self.agent.sock}")
        self.expected = unique("expected")

    def ranks(self, n, script, *cases, env=None, check=True):
        """Runs the script's cases on n ranks; what they print. Gloo is tried twice: it aborts now and then."""
        home = unique("home")
        os.makedirs(home)
        env = dict(os.environ, PYTHONPATH=package(), WSYNC_AGENT=f"unix:{self.agent.sock}", EXPECTED=self.expected, HOME=home,
                   OMP_NUM_THREADS="1", TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo", **(env or {}))
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(n),
                   os.path.join(HERE, "trainers", script), *cases]
        r = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           timeout=RANKS_SECONDS)
        if check and r.returncode:
            raise AssertionError(f"{script} {' '.join(cases)}: {r.returncode}\n{r.stdout[-6000:]}")
        return r.stdout

    def compare(self, case):
        """Every version of a case, tensor by tensor, bit by bit. Returns how many tensors it has."""
        versions = sorted(os.listdir(os.path.join(self.expected, case)))
        assert versions
        for version in versions:
            folder = os.path.join(self.expected, case, version)
            want = {}
            for f in os.listdir(folder):
                if f.endswith(".safetensors"):
                    want.update(tensors_of(os.path.join(folder, f)))
            self.mount.wait_version(case, version)
            got = tensors_of(self.mount.file(case, version, "model.safetensors"))
            assert set(got) == set(want), (case, version, sorted(set(got) ^ set(want))[:6])
            for name, (dtype, shape, data) in want.items():
                assert got[name][:2] == (dtype, shape), (case, version, name, got[name][:2], dtype, shape)
                assert got[name][2] == data, f"{case} {version}: {name} differs"
            shutil.rmtree(folder)
        return len(want)


ground = None


def compared(stack, n, script, *cases, env=None):
    g = Ground(stack)
    g.ranks(n, script, *cases, env=env)
    for case in cases:
        assert g.compare(case) > 0


def test_fsdp_2(stack):
    "FSDP over 2 ranks: Shard(0) and (1), float32 to bfloat16, CPU offload, tied, root left unsharded, experts, FSDP1, DTensors"
    need("torch")
    compared(stack, 2, "fsdp_ranks.py", "fsdp", "dim1", "mixed", "offload", "tied", "unsharded", "moe", "mixtral", "fsdp1", "manual")


def test_fsdp_3(stack):
    "FSDP over 3 ranks: uneven shards, experts, FSDP1, DTensors that leave ranks empty"
    need("torch")
    compared(stack, 3, "fsdp_ranks.py", "fsdp", "moe", "fsdp1", "manual")


def test_fsdp_4(stack):
    "FSDP over 4 ranks: hybrid, over tensor parallelism, strided shards"
    need("torch")
    compared(stack, 4, "fsdp_ranks.py", "hsdp", "tp", "tp_hsdp", "manual")


def test_deepspeed_2(stack):
    "DeepSpeed over 2 ranks: stages 1, 2 and 3, parameters and masters, frozen, tied, offloaded, experts"
    need("deepspeed")
    compared(stack, 2, "deepspeed_ranks.py", "zero1", "zero1-master", "zero1-frozen", "zero2", "zero3", "zero3-master", "zero3-frozen",
             "zero3-tied", "zero3-offload", "zero3-moe")


def test_deepspeed_3(stack):
    "DeepSpeed over 3 ranks: partitions with padding"
    need("deepspeed")
    compared(stack, 3, "deepspeed_ranks.py", "zero2", "zero2-master", "zero3", "zero3-moe")


def test_deepspeed_4(stack):
    "DeepSpeed over 4 ranks: a second copy of the partitions in groups of 2"
    need("deepspeed")
    compared(stack, 4, "deepspeed_ranks.py", "zero3-hpz")


def test_megatron_1(stack):
    "Megatron on one rank: dense and experts"
    need("megatron.core")
    compared(stack, 1, "megatron_ranks.py", "tp1", "moe-tp1")


def test_megatron_2(stack):
    "Megatron over 2 ranks: tensor, pipeline, virtual pipeline and expert parallel, tied, with biases"
    need("megatron.core")
    compared(stack, 2, "megatron_ranks.py", "tp2", "tp2-bias", "pp2-tied", "vpp2", "moe-tp2", "moe-ep2")


def test_megatron_4(stack):
    "Megatron over 4 ranks: fewer key and value heads than ranks, tensor with pipeline and expert parallel"
    need("megatron.core")
    compared(stack, 4, "megatron_ranks.py", "tp4", "tp4-bias", "tp2-pp2", "tp2-pp2-tied", "moe-tp2-ep2", "moe-pp2-ep2")


if __name__ == "__main__":
    run(test_fsdp_2, test_fsdp_3, test_fsdp_4, test_deepspeed_2, test_deepspeed_3, test_deepspeed_4, test_megatron_1, test_megatron_2,
        test_megatron_4)
