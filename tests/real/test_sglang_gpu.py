# timeout: 900
"""A real SGLang (on its CPU) with the package installed: its own /update_weights_from_disk, called by the mount's switch, takes tensors from
the memory that a trainer shares on GPUs (stand-in driver), or from the files if that fails."""
import pytest

from scenarios import MODEL
from servers import SGLang, SGLangWithWsync
from sharing import Shared, Trainer
from world import scope

SAID = "is loaded from the memory that its trainer shares"


class World(Shared):
    def __init__(self):
        super().__init__(SGLang, SGLangWithWsync)

    def log(self):
        with open(self.server.log_path, errors="replace") as f:
            return f.read()


@pytest.fixture(scope="module")
def w():
    return World()


@pytest.fixture
def near(w):
    """The engine, on the near mount."""
    w.near.write(f"engine add e1 sglang {w.server.url}", f"{MODEL}/ctl")
    yield
    w.near.write("engine remove e1", f"{MODEL}/ctl")


def test_switch(w, near):
    "the mount's switch loads shared versions from the GPUs, with a fresh server's answers bit for bit; then the trainer gets its memory back"
    for share in ("cuda_ipc", "packed_cuda_ipc"):
        with scope():
            t = Trainer(w.agent, w.target, share, w.folder(1))
            for name in (2, 1):
                path = w.share(t, name)
                w.near.write(w.next, f"{MODEL}/version")
                assert f"{path} {SAID}" in w.log(), w.log()[-3000:]
                w.check(name)
                assert w.server.serves() == str(w.next)
                t.ask(unshare=5)
    w.server.call("/update_weights_from_disk", {"model_path": w.path(2)})
    assert f"{w.path(2)} {SAID}" not in w.log()
    w.check(2)


def test_partial(w, near):
    "a version with a tensor only in host memory is loaded from its files, and the log says why"
    w.server.call("/update_weights_from_disk", {"model_path": w.path(2)})
    t = Trainer(w.agent, w.target, "cuda_ipc", w.folder(1))
    path = w.share(t, 1, host=["model.norm.weight"])
    w.near.write(w.next, f"{MODEL}/version")
    assert f"{path} {SAID}" not in w.log() and "missing model.norm.weight" in w.log(), w.log()[-3000:]
    w.check(1)
