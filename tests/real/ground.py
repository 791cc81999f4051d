"""The environment of real trainers' ranks: an agent, a mount, torchrun, and the comparison of mounted versions with expected ones."""
import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

from package import package
from world import Agent, Mount, need_fuse, tensors_of, unique

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS_SECONDS = 240


def need(name):
    need_fuse()
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: PyPI could not be reached, or `.ci/deps real` has not run")


class Ground:
    """An agent, a mount and torchrun's environment."""

    def __init__(self):
        self.agent = Agent()
        self.mount = Mount(f"unix:{self.agent.sock}")
        self.expected = unique("expected")

    def ranks(self, n, script, *cases, env=None, check=True, python=sys.executable):
        """Runs the script's cases on n ranks; returns their output. Gloo is tried twice: it aborts occasionally."""
        home = unique("home")
        os.makedirs(home)
        path = os.pathsep.join(filter(None, (package(), HERE, os.environ.get("PYTHONPATH"))))
        env = dict(os.environ, PYTHONPATH=path, WSYNC_AGENT=f"unix:{self.agent.sock}", EXPECTED=self.expected, HOME=home, OMP_NUM_THREADS="1",
                   TORCHDYNAMO_DISABLE="1", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo", **(env or {}))
        command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(n),
                   os.path.join(HERE, "trainers", script), *cases]
        r = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           timeout=RANKS_SECONDS)
        if check and r.returncode:  # what torchrun adds at the end says nothing more than that a rank has ended
            said = r.stdout.partition("elastic/multiprocessing/api.py")[0]
            raise AssertionError(f"{script} {' '.join(cases)}: {r.returncode}\n{said[-6000:]}")
        return r.stdout

    def compare(self, case):
        """Compares every version of a case, tensor by tensor, bit by bit. Returns the number of tensors."""
        versions = sorted(os.listdir(os.path.join(self.expected, case)))
        assert versions
        for version in versions:
            folder = os.path.join(self.expected, case, version)
            want = {}
            for f in os.listdir(folder):
                if f.endswith(".safetensors"):
                    want.update(tensors_of(os.path.join(folder, f)))
            self.mount.wait_version(case, version)
            name = next(n for n in ("model.safetensors", "adapter_model.safetensors") if os.path.exists(self.mount.file(case, version, n)))
            got = tensors_of(self.mount.file(case, version, name))
            assert set(got) == set(want), (case, version, sorted(set(got) ^ set(want))[:6])
            for name, (dtype, shape, data) in want.items():
                assert got[name][:2] == (dtype, shape), (case, version, name, got[name][:2], dtype, shape)
                assert got[name][2] == data, f"{case} {version}: {name} differs"
            shutil.rmtree(folder)
        return len(want)


def compared(n, script, *cases, **how):
    g = Ground()
    g.ranks(n, script, *cases, **how)
    for case in cases:
        assert g.compare(case) > 0
