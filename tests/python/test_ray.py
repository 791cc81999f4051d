"""wsync.ray's mixins without Ray, and wsync.openrlhf with stand-ins for Ray and OpenRLHF; tests/frameworks has Ray and OpenRLHF themselves."""
import asyncio
import sys
import types

import numpy
import pytest
import world
import wsync
from wsync import ray as of_ray


@pytest.fixture
def agent(monkeypatch):
    world.need_fuse()
    agent = world.Agent()
    monkeypatch.setenv("WSYNC_AGENT", f"unix:{agent.sock}")
    monkeypatch.setenv("WSYNC_SOURCE", agent.url)
    monkeypatch.setenv("WSYNC_MOUNT", world.unique("mnt"))
    return agent


def weights(step):
    return {f"layers.{i}.weight": numpy.arange(6, dtype=numpy.float32).reshape(2, 3) + step + i for i in range(3)}


def same(got, step):
    got = dict(got)
    return got.keys() == weights(step).keys() and all((got[n] == t).all() and got[n].dtype == t.dtype for n, t in weights(step).items())


class Trainer(of_ray.Publishes):
    publish_options = {"model": "critic"}


class Rollout(of_ray.Receives):
    pass


def test_iterators(agent):
    "what is published is received, tensor by tensor and as a folder; a publisher that is opened anew has a lineage of its own"
    trainer, rollout = Trainer(), Rollout()
    first = trainer.publish(weights(1).items())
    assert first["model"] == "critic" and same(rollout.receive(first), 1)
    second = trainer.publish(weights(2).items())
    assert same(rollout.receive(second), 2)
    with wsync.open(rollout.folder(second), "numpy") as read:
        assert same(read.items(), 2)
    trainer.close_publisher()
    anew = trainer.publish(weights(3).items())
    assert anew["run"] != second["run"] and same(rollout.receive(anew), 3)
    with pytest.raises(wsync.Timeout, match="critic/3@"):
        next(rollout.receive({**second, "version": 3}, timeout=0.2))
    rollout.close_receiver()
    rollout.close_receiver()
    trainer.close_publisher()
    trainer.close_publisher()


def test_sources(agent):
    "a source is published as it is at each call; a version that fails is skipped"
    held = weights(1)
    source = wsync.tensors(lambda: held)
    trainer, rollout = Trainer(), Rollout()
    assert same(rollout.receive(trainer.publish(source)), 1)
    held = {**weights(2), "layers.1.weight": object()}
    with pytest.raises(TypeError, match="layers.1.weight"):
        trainer.publish(source)
    held = weights(3)
    told = trainer.publish(source)
    assert told["version"] == 3 and same(rollout.receive(told), 3)
    rollout.close_receiver()
    trainer.close_publisher()


# --- OpenRLHF ---


class Actor:
    """Of Ray, in this process: remote() calls at once and keeps what comes out."""

    def __init__(self, held):
        self.held = held

    def __getattr__(self, name):
        def remote(*args):
            try:
                return asyncio.run(getattr(self.held, name)(*args))
            except Exception as e:  # noqa: BLE001
                return e

        return types.SimpleNamespace(remote=remote)


def decorated(cls):
    """What ray.remote makes of a class, as far as wsync.openrlhf looks."""
    modified = type(cls.__name__, (cls,), {"__ray_actor_class__": cls})
    return types.SimpleNamespace(__ray_metadata__=types.SimpleNamespace(modified_class=modified))


@pytest.fixture
def openrlhf(agent, monkeypatch):
    """wsync.openrlhf in an OpenRLHF that has the names of 0.11.2."""

    def get(found):
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found

    ray = types.ModuleType("ray")
    ray.get, ray.remote = get, lambda *args, **_: decorated(args[0]) if args else decorated

    class ActorPPOTrainer:
        def __init__(self, strategy, actor, vllm_engines=None):
            self.actor, self.vllm_engines = actor, vllm_engines
            self._init_vllm_sync_group("nccl")

        def _init_vllm_sync_group(self, backend):
            raise AssertionError("a group of NCCL was made")

    class PolicyModelActor:
        pass

    class RolloutRayActor:
        async def __init__(self, *args, **kwargs):
            self.options, self.calls = kwargs, []

        async def reset_prefix_cache(self):
            self.calls.append("reset_prefix_cache")

    ppo_actor, vllm_engine = types.ModuleType("ppo_actor"), types.ModuleType("vllm_engine")
    ppo_actor.ActorPPOTrainer, ppo_actor.PolicyModelActor = ActorPPOTrainer, decorated(PolicyModelActor)
    vllm_engine.RolloutRayActor = decorated(RolloutRayActor)
    package = types.ModuleType("openrlhf.trainer.ray")
    package.ppo_actor, package.vllm_engine = ppo_actor, vllm_engine
    for name, module in (("ray", ray), ("openrlhf", types.ModuleType("openrlhf")), ("openrlhf.trainer", types.ModuleType("openrlhf.trainer")),
                         ("openrlhf.trainer.ray", package), ("openrlhf.trainer.ray.ppo_actor", ppo_actor), ("openrlhf.trainer.ray.vllm_engine", vllm_engine)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "wsync.openrlhf", raising=False)
    import wsync.openrlhf as found

    monkeypatch.setattr(found, "deepspeed", lambda engine: wsync.tensors(lambda: engine.weights))
    found.install()
    return types.SimpleNamespace(module=found, ppo_actor=ppo_actor, vllm_engine=vllm_engine)


def new(cls, *args, **kwargs):
    """As Ray makes an actor whose constructor is asynchronous."""
    made = cls.__new__(cls)
    asyncio.run(cls.__init__(made, *args, **kwargs))
    return made


class LLM:
    """vLLM: reads what it is told to load; refuses the version in refuses."""

    refuses = None

    async def collective_rpc(self, method, kwargs=None):
        if method == "wsync_load":
            if kwargs["path"].split("/")[-1].partition("@")[0] == str(self.refuses):
                raise RuntimeError("the version was refused")
            with wsync.open(kwargs["path"], "numpy") as read:
                self.serves = {name: numpy.array(read[name]) for name in read}
        return [{"path": kwargs and kwargs["path"]}]


def test_openrlhf(openrlhf, monkeypatch):
    "the engines load what the actor's ranks hold by the worker extension, no group is made; an engine that refuses is an error, and the next sync goes on"
    monkeypatch.setenv("WSYNC_MODEL", "policy")
    rollouts = [new(openrlhf.vllm_engine.RolloutRayActor.__ray_metadata__.modified_class, worker_extension_cls="openrlhf's", model="m") for _ in range(2)]
    for rollout in rollouts:
        assert rollout.options == {"worker_extension_cls": "wsync.vllm.Extension", "model": "m"}
        rollout.llm = LLM()
    engine = types.SimpleNamespace(weights=weights(1))
    strategy = types.SimpleNamespace(args=types.SimpleNamespace(actor=types.SimpleNamespace(model_name_or_path="org/model")))
    trainer = openrlhf.ppo_actor.ActorPPOTrainer(strategy, types.SimpleNamespace(model=engine), vllm_engines=[Actor(r) for r in rollouts])
    trainer.broadcast_to_vllm()
    assert all(same(r.llm.serves.items(), 1) and r.calls == ["reset_prefix_cache"] for r in rollouts)
    rollouts[1].llm.refuses, engine.weights = 2, weights(2)
    with pytest.raises(RuntimeError, match="the version was refused"):
        trainer.broadcast_to_vllm()
    assert same(rollouts[1].llm.serves.items(), 1) and rollouts[1].calls == ["reset_prefix_cache"]
    engine.weights = weights(3)
    trainer.broadcast_to_vllm()
    assert all(same(r.llm.serves.items(), 3) for r in rollouts)
    for rollout in rollouts:
        rollout.close_receiver()
    trainer.close_publisher()


def test_openrlhf_names(openrlhf):
    "Ray's processes find the two classes by name in the module; another name is none"
    module = openrlhf.module
    assert openrlhf.ppo_actor.PolicyModelActor.__ray_metadata__.modified_class.__ray_actor_class__ is module.Policy
    assert openrlhf.vllm_engine.RolloutRayActor.__ray_metadata__.modified_class.__ray_actor_class__ is module.Rollout
    with pytest.raises(AttributeError, match="Critic"):
        module.Critic
