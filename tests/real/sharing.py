"""A trainer that shares versions on the stand-in driver's GPUs, and the environment in which engines can open them."""
import json
import os
import subprocess
import sys

import pytest

from scenarios import MODEL, Ground
from servers import CLOSE, HERE, distance, installed
from world import BUILD, Mount, at_end, scope

FAKE = os.path.join(BUILD, "tests", "fakes", "libcuda.so.1")
DRIVER = {"WSYNC_LIBCUDA": FAKE, "WSYNC_FAKE_CUDA": "devices=2,delay=100,seed=9", "CUDA_VISIBLE_DEVICES": "0,1"}
TRAINER = """
import json, sys, numpy, wsync
from gpu_memory import OnGpu
given = {}
pub = wsync.Publisher(sys.argv[2], lambda: given, agent=sys.argv[1], start_agent=False, share=sys.argv[3], timeout=30, hf_config=sys.argv[4],
                      max_slots=8)
for line in sys.stdin:
    ask = json.loads(line)
    try:
        if "unshare" in ask:
            pub.unshare(ask["unshare"])
        else:
            with wsync.open(ask["folder"], "numpy") as weights:
                given = {n: w if n in ask["host"] else OnGpu(numpy.array(w), i % 2) for i, (n, w) in enumerate(weights.items()) if n not in ask["without"]}
            pub.offload(ask["version"])
            pub.wait_published(ask["version"])
        print("ok", flush=True)
    except Exception as e:
        print(repr(e), flush=True)
"""


def need_driver():
    """The runner does not build test programs for the real engines alone."""
    made = subprocess.run(["make", "-s", "-C", os.environ["ROOT"], os.path.relpath(FAKE, os.environ["ROOT"])], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False, timeout=120)
    if not os.path.exists(FAKE):
        pytest.skip(f"there is no stand-in driver (it wants CUDA's headers): {made.stdout.strip()[-200:]}")


class Trainer:
    def __init__(self, agent, target, share, folder):
        env = dict(os.environ, PYTHONPATH=os.pathsep.join((target, os.path.join(os.path.dirname(HERE), "python"))), **DRIVER)
        self.p = subprocess.Popen([sys.executable, "-c", TRAINER, f"unix:{agent.sock}", MODEL, share, folder], env=env, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        at_end(lambda: (self.p.kill(), self.p.wait(), self.p.stdin.close(), self.p.stdout.close()))

    def ask(self, **what):
        self.p.stdin.write(json.dumps(what) + "\n")
        self.p.stdin.flush()
        said = self.p.stdout.readline().strip()
        assert said == "ok", said

    def offload(self, version, folder, host=(), without=()):
        self.ask(version=version, folder=folder, host=list(host), without=list(without))


class Shared(Ground):
    """Versions 1 and 2 on one mount, an engine on 1, and the answers of fresh servers on each; shared versions on ``near``, a mount with
    the agent's socket as its source, which holds the slots that it loaded."""

    agent_options = ("--slots", "8")

    def __init__(self, kind, with_wsync, *options):
        need_driver()
        super().__init__(kind)
        self.near = Mount(f"unix:{self.agent.sock}")
        self.target = with_wsync.target = installed()
        with_wsync.more = DRIVER
        self.server = with_wsync(self.path(1), *kind.uncached, *options)
        with scope():  # both start at once
            self.answers = {2: kind(self.folder(2), *kind.uncached).wait().answers()}
        self.answers[1] = self.server.wait().answers()
        assert distance(self.answers[1], self.answers[2]) > 10 * CLOSE
        self.next = 10

    def check(self, version):
        assert self.server.answers() == self.answers[version], f"other answers than a fresh server on {version}"

    def share(self, trainer, name, **how):
        """A new version with that folder's tensors; its path on the near mount."""
        self.next += 1
        trainer.offload(self.next, self.folder(name), **how)
        self.near.wait_version(MODEL, self.next)
        return self.near.file(MODEL, self.next)
