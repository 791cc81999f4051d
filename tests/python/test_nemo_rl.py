"""wsync.nemo_rl, called as NeMo-RL calls it. NeMo-RL is not on PyPI; the calls are those of its repository at commit
7ea279abfbeb698b092856d0dab61e7cf39bc909 (2026-08-22): nemo_rl/utils/checkpoint_engines/base.py create_checkpoint_engine,
nemo_rl/weight_sync/checkpoint_engine_weight_synchronizer.py, and the workers' mixins nemo_rl/models/policy/workers/checkpoint_engine.py and
nemo_rl/models/generation/vllm/checkpoint_engine.py. Ray, policy and vLLM are not run."""
import asyncio
import importlib

import numpy
import pytest
import world
import wsync

BACKEND = "wsync.nemo_rl:Engine"


class Side:
    """The workers of the policy or of vLLM."""

    def __init__(self, n, **options):
        module, _, name = BACKEND.partition(":")
        # VllmCheckpointEnginePluginConfig's defaults, less the ratio of which the bucket's size is made
        options = {"release_after_refit": False, **options}
        self.engines = [getattr(importlib.import_module(module), name)(bucket_size=1 << 20, **options) for _ in range(n)]

    def prepare(self):
        return [{**engine.prepare(), "rank": rank} for rank, engine in enumerate(self.engines)]


class Run:
    """CheckpointEngineWeightSynchronizer."""

    def __init__(self, **rollout):
        self.policy, self.rollout, self.ready = Side(2), Side(2, **rollout), False

    def make_ready(self):
        if self.ready:
            return
        trainers, rollouts = self.policy.prepare(), self.rollout.prepare()
        topology = dict(train_world_size=len(trainers), rollout_world_size=len(rollouts), metadata=trainers + rollouts)
        for rank, engine in enumerate(self.policy.engines):
            engine.init_policy_process_group(worker_rank=rank, **topology)
        for rank, engine in enumerate(self.rollout.engines):
            assert engine.shard_expert_weights is False and engine.get_target_weight_layout() is None
            engine.init_rollout_process_group(rollout_rank=rank, **topology)
        self.ready = True

    async def _sync(self, weights):
        taken = [0] * len(self.policy.engines)

        def gather(rank):
            for name, tensor in weights.items():
                if tensor is None:
                    raise RuntimeError("a gather failed")
                taken[rank] += 1
                yield name, tensor.copy()

        async def received(engine):
            got, batches = {}, []
            async for batch in engine.receive_weight_batches():
                batches.append(sum(tensor.nbytes for _, tensor in batch))
                got.update((name, numpy.array(tensor)) for name, tensor in batch)
            return got, batches

        sent = await asyncio.gather(*(engine.send_weights(gather(rank)) for rank, engine in enumerate(self.policy.engines)), return_exceptions=True)
        got = await asyncio.gather(*(received(engine) for engine in self.rollout.engines), return_exceptions=True)
        return sent, got, taken

    def sync(self, weights):
        self.make_ready()
        return asyncio.run(self._sync(weights))

    def release(self):
        """shutdown, which release_after_refit calls after each refit."""
        for engine in self.policy.engines + self.rollout.engines:
            engine.finalize()
        self.ready = False

    def close(self):
        for engine in self.policy.engines + self.rollout.engines:
            engine.close()


def weights(step):
    numbers = numpy.random.default_rng(step)
    return {"model.embed.weight": numbers.standard_normal((300, 700), numpy.float32), "model.norm.weight": numbers.standard_normal(700, numpy.float32),
            "model.head.weight": numbers.standard_normal((300, 700), numpy.float32), "model.steps": numpy.arange(6) + step}


@pytest.fixture
def run(monkeypatch):
    world.need_fuse()
    agent = world.Agent()
    monkeypatch.setenv("WSYNC_AGENT", f"unix:{agent.sock}")
    run = Run(source=agent.url, mount=world.unique("mnt"), timeout=30)
    yield run
    run.close()


def updated(run, step):
    expected = weights(step)
    sent, got, taken = run.sync(expected)
    assert sent == [None, None] and taken == [len(expected)] * 2
    for tensors, batches in got:
        assert tensors.keys() == expected.keys() and all((tensors[n] == t).all() and tensors[n].dtype == t.dtype for n, t in expected.items())
        assert len(batches) > 1 and max(batches) <= 1 << 20, batches


def test_refits(run):
    "three refits after one preparation; two with release_after_refit, which prepares anew"
    for step in (1, 2, 3):
        updated(run, step)
    for step in (4, 5):
        run.release()
        updated(run, step)


def test_a_refit_that_fails(run):
    "a gather that fails raises where it failed, no worker is given an old version, and the next refit is whole"
    updated(run, 1)
    for engine in run.rollout.engines:
        engine._timeout = 0.5
    sent, got, _ = run.sync({**weights(2), "model.norm.weight": None})
    assert all("a gather failed" in str(e) for e in sent) and all(isinstance(e, wsync.Timeout) for e in got), (sent, got)
    for engine in run.rollout.engines:
        engine._timeout = 30
    updated(run, 3)


def test_order_and_options(run):
    "a worker that was told of nothing says so; an option that is none is refused by name"
    with pytest.raises(RuntimeError, match="init_rollout_process_group comes first"):
        asyncio.run(anext(run.rollout.engines[0].receive_weight_batches()))
    with pytest.raises(TypeError, match="modle"):
        Side(1, modle="actor")
