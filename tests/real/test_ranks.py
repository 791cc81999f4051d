# timeout: 900
"""Two FSDP2 ranks over gloo, one of which is killed in the middle of an offload: readers see complete versions only, the last one stays
served, and the restarted torchrun continues. KILLS, KILLS_SEED."""
import importlib.util
import os
import random
import subprocess
import sys

import pytest

from package import package
from world import Agent, Mount, need_fuse, unique, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
KILLS = int(os.environ.get("KILLS", "10"))
SEED = int(os.environ.get("KILLS_SEED", random.SystemRandom().randrange(1 << 32)))


def right(version):
    import numpy as np

    shapes = {}
    for i in range(6):
        a, b = (1023, 1021) if i % 2 else (1021, 1023)
        shapes |= {f"{i}.weight": [a, b], f"{i}.bias": [a]}
    whole = {n: np.arange(int(np.prod(s))) % 4093 + version for n, s in shapes.items()}
    return {n: ("F32", shapes[n], a.astype(np.float32).tobytes()) for n, a in whole.items()}


def torchrun(agent, first, victim, share):
    """Runs torchrun, which must end with an error; returns its output."""
    home = unique("home")
    os.makedirs(home)
    env = dict(os.environ, PYTHONPATH=package(), WSYNC_AGENT=f"unix:{agent.sock}", HOME=home, OMP_NUM_THREADS="1", TORCHDYNAMO_DISABLE="1",
               CUDA_VISIBLE_DEVICES="", GLOO_SOCKET_IFNAME="lo")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
               os.path.join(HERE, "trainers", "killed_ranks.py"), str(first), str(victim), str(share)]
    r = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    assert r.returncode, "no rank was killed"
    return r.stdout


def test_killed():
    "FSDP2 ranks are killed in the middle of an offload, KILLS times"
    need_fuse()
    for name in ("torch", "numpy"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: PyPI could not be reached, or `.ci/deps real` has not run")
    from ranks import Reader

    class Whole(Reader):
        def right(self, version):
            return right(version)

    r = random.Random(SEED)
    agent = Agent()
    mount = Mount(f"unix:{agent.sock}")
    reader = Whole(mount, "actor", 0)
    newest = through = gloo = middle = 0
    while through < KILLS:
        said = torchrun(agent, newest + 1, r.randrange(2), r.random() * 0.5)
        models = agent.get("/v1/models")["models"]
        now = models[0]["newest"] if models else 0
        if "Signal 9 (SIGKILL)" not in said and "exitcode  : -9" not in said:
            gloo += 1  # gloo aborts by itself occasionally
            assert gloo < 4, said[-6000:]
            newest = now
            continue
        assert now in (newest + 2, newest + 3), (now, newest, said[-6000:])
        assert now in [v["version"] for v in models[0]["versions"]]
        wait_for(lambda: now in reader.versions or reader.wrong, f"version {now} at the reader")
        middle += now == newest + 2
        newest, through = now, through + 1
    reader.stop()
    print(f"# seed {SEED}: {through} kills, {middle} of them before all had committed, up to version {newest}; the reader saw {len(reader.versions)} versions in "
          f"{sum(reader.versions.values())} reads, {reader.refused} were gone; gloo ended {gloo} times by itself", flush=True)
