# timeout: 900
"""A real vLLM (on its CPU) loads versions from the memory that a trainer shares on GPUs (stand-in driver): its answers equal those of a vLLM
started on the version. What is not shared comes from the files, with the reason, or is refused."""

import pytest

from servers import VLLM, Refused, WithWsync
from sharing import Shared, Trainer

DAMAGED = "model.layers.1.mlp.down_proj.weight"


class World(Shared):
    def __init__(self):
        super().__init__(VLLM, WithWsync, "--weight-transfer-config", '{"backend": "wsync"}', "--worker-extension-cls", "wsync.vllm.Extension")

    def load(self, path, strategy):
        return self.server.load(path, strategy=strategy)[0]


def refused(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Refused as e:
        return str(e)
    raise AssertionError("it was taken")


def trainer(w, share):
    return Trainer(w.agent, w.target, share, w.folder(1))


def loads(w, share):
    t = trainer(w, share)
    for name in (2, 1, 2):
        path = w.share(t, name)
        said = w.load(path, "cuda_ipc")
        assert said["strategy"] == "cuda_ipc" and said["fallback"] is None and said["path"] == path and said["version"] == w.next, said
        w.check(name)
        t.ask(unshare=5)  # no process has it open any more
    said = w.load(w.path(1), "auto")
    assert said["strategy"] == "disk" and said["fallback"] is None, said
    w.check(1)


@pytest.fixture(scope="module")
def w():
    return World()


def test_cuda_ipc(w):
    "cuda_ipc: versions from the trainer's own memory, a fresh server's answers bit for bit, no memory is kept"
    loads(w, "cuda_ipc")


def test_packed(w):
    "packed_cuda_ipc: the same from the trainer's buffers"
    loads(w, "packed_cuda_ipc")


def test_fallback(w):
    "auto and cuda_ipc,disk: a version that is not or only partly shared comes from the files, and the reply says why; cuda_ipc alone refuses"
    w.load(w.path(2), "disk")
    said = w.load(w.path(1), "cuda_ipc,disk")
    assert said["strategy"] == "disk" and "is not shared on a GPU" in said["fallback"], said
    w.check(1)
    said = refused(w.load, w.path(2), "cuda_ipc")
    assert "is not shared on a GPU" in said and "nothing has changed" in said, said
    t = trainer(w, "cuda_ipc")
    path = w.share(t, 2, host=[DAMAGED])
    said = refused(w.load, path, "cuda_ipc")
    assert f"missing {DAMAGED}" in said and "nothing has changed" in said, said
    w.check(1)
    said = w.load(path, "auto")
    assert said["strategy"] == "disk" and f"missing {DAMAGED}" in said["fallback"], said
    w.check(2)
    assert "strategy=" in refused(w.load, path, "nccl")
    w.check(2)


def test_backend(w):
    "the weight-transfer back end accepts the strategy in its update_info; a shared version of another layout is refused, and undone"
    t = trainer(w, "cuda_ipc")
    path = w.share(t, 1)
    w.server.update({"path": path, "strategy": "cuda_ipc"})
    w.check(1)
    for name, why in (("shape", f"differs {DAMAGED}"), ("extra", f"extra {DAMAGED}.scale")):
        said = refused(w.server.update, {"path": w.share(t, name), "strategy": "cuda_ipc"})
        assert why in said and "nothing has changed" in said, said
        w.check(1)
    t.ask(unshare=5)
