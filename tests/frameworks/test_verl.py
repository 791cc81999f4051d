# timeout: 300, takes: 40
"""wsync.verl in verl's own registry, driven by the bodies of verl's workers in the order of its CheckpointEngineManager: what each rollout worker
is given equals what the trainer's ranks gather. Without Ray's processes and without its rollout servers, which want GPUs.
`make test-frameworks ARGS=verl`."""
import asyncio
import importlib.util
import os
import sys
from types import SimpleNamespace

import pytest

import world
from package import package

if importlib.util.find_spec("verl") is None:
    pytest.skip("verl is not installed: PyPI could not be reached, or `.ci/deps verl` has not run", allow_module_level=True)
sys.path.insert(0, package())

import torch  # noqa: E402
from verl.checkpoint_engine.base import CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker  # noqa: E402
from verl.utils.import_utils import import_external_libs  # noqa: E402
from verl.workers.engine_workers import ActorRolloutRefWorker  # noqa: E402


class Gathering:
    """The trainer's engine of one rank: its weights of a step, each in the same memory, as a gather may give them."""

    def __init__(self):
        self.step, self.taken, self.fails_at = 0, 0, None

    def weights(self):
        numbers = torch.Generator().manual_seed(self.step)
        return {"model.embed.weight": torch.randn(300, 70, generator=numbers).bfloat16(), "model.norm.weight": torch.randn(70, generator=numbers),
                "model.steps": torch.arange(6) + self.step, "model.scalar": torch.tensor(0.5 + self.step)}

    def get_per_tensor_param(self):
        def gather():
            self.taken = 0
            for i, (name, tensor) in enumerate(self.weights().items()):
                if i == self.fails_at:
                    raise RuntimeError("a gather failed")
                self.taken += 1
                yield name, tensor.clone()

        return gather(), None


class Server:
    """In the place of a rollout server's adapter: keeps what it is given."""

    async def update_weights(self, weights, global_steps=None, wire_format=None, **_):
        assert wire_format == "named_tensors"
        self.got = {name: tensor async for name, tensor in weights}


def actor(rank):
    worker = ActorRolloutRefWorker.__new__(ActorRolloutRefWorker)
    worker.config = SimpleNamespace(rollout=SimpleNamespace(checkpoint_engine=SimpleNamespace(backend="wsync")))
    worker.actor = SimpleNamespace(engine=Gathering())
    worker.checkpoint_engine = CheckpointEngineRegistry.new("wsync", is_master=rank == 0, bucket_size=1 << 20)
    return worker


def rollout(path):
    worker = CheckpointEngineWorker.__new__(CheckpointEngineWorker)
    worker.server_adapter = Server()
    worker.checkpoint_engine = CheckpointEngineRegistry.new("wsync", bucket_size=1 << 20, mount=path, timeout=30)
    return worker


def call(worker, name, *args, **kw):
    return getattr(type(worker), name).__wrapped__(worker, *args, **kw)


async def update(manager, actors, rollouts, step):
    """CheckpointEngineManager.build_process_group and update_weights, from the fourth to the sixth of its steps."""
    both = actors + rollouts
    for told, some in zip(manager.build_topology(len(actors), len(rollouts), [call(w, "execute_checkpoint_engine", "prepare") for w in both]), (actors, rollouts)):
        assert all(len(v) == len(some) for v in told.values())
        for i, worker in enumerate(some):
            call(worker, "execute_checkpoint_engine", "init_process_group", **{k: v[i] for k, v in told.items()})
    done = await asyncio.gather(*[call(w, "update_weights", global_steps=step, mode="auto") for w in actors],
                                *[call(w, "update_weights", global_steps=step) for w in rollouts], return_exceptions=True)
    for worker in both:
        call(worker, "execute_checkpoint_engine", "finalize")
    return done


def test_updates(monkeypatch):
    "two ranks and two workers, three updates of which two have one number; one whose gather fails; one after it, of another shape"
    world.need_fuse()
    agent = world.Agent()
    monkeypatch.setenv("WSYNC_AGENT", f"unix:{agent.sock}")
    import_external_libs("wsync.verl")
    manager = CheckpointEngineManager(SimpleNamespace(backend="wsync", custom_backend_module="wsync.verl"), None, []).backend_cls
    path = world.unique("mnt")
    actors, rollouts = [actor(r) for r in range(2)], [rollout(path) for _ in range(2)]

    def updated(step):
        assert asyncio.run(update(manager, actors, rollouts, step)) == [{}, {}, None, None]
        expected = actors[0].actor.engine.weights()
        for worker in rollouts:
            got = worker.server_adapter.got
            assert set(got) == set(expected)
            for name, tensor in expected.items():
                assert got[name].dtype == tensor.dtype and got[name].shape == tensor.shape and torch.equal(got[name], tensor), name
        assert [a.actor.engine.taken for a in actors] == [len(expected)] * 2

    try:
        updated(0)
        first = rollouts[0].server_adapter.got
        kept = {name: tensor.clone() for name, tensor in first.items()}
        for number, step in ((1, 1), (1, 2)):
            for a in actors:
                a.actor.engine.step = step
            updated(number)
        assert all(torch.equal(first[name], kept[name]) for name in kept)  # a view outlives its version
        for worker in rollouts:
            worker.checkpoint_engine._timeout = 0.5
        actors[0].actor.engine.fails_at = 2
        failed = asyncio.run(update(manager, actors, rollouts, 2))
        assert "a gather failed" in str(failed[0]) and failed[1] == {} and all(isinstance(e, TimeoutError) for e in failed[2:]), failed
        actors[0].actor.engine.fails_at = None
        for worker in rollouts:
            worker.checkpoint_engine._timeout = 30
        updated(3)
    finally:
        for worker in actors + rollouts:
            worker.checkpoint_engine.close()
