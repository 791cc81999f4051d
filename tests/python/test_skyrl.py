"""wsync.skyrl with a stand-in for SkyRL: the selectors, the init info, the sender's calls in their order, chunks and shards bit for bit."""
import asyncio
import os
import sys
import threading
import types

import ml_dtypes
import numpy
import pytest
import world
import wsync
from wsync.vllm import _path

sys.path.insert(0, os.path.dirname(__file__))
import skyrl_stand_in as skyrl  # noqa: E402

BF16 = numpy.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def plugin(monkeypatch):
    """wsync.skyrl, imported anew beside the stand-in."""
    for name in [n for n in sys.modules if n.partition(".")[0] == "skyrl" or n == "wsync.skyrl"]:
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    skyrl.install()
    import importlib

    yield importlib.import_module("wsync.skyrl")
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "skyrl" or name == "wsync.skyrl":
            del sys.modules[name]
    vars(wsync).pop("skyrl", None)


class Model:
    """Parameters of float32, of which `step` changes some."""

    def __init__(self):
        self.params = {name: numpy.random.default_rng(i).standard_normal(shape).astype(numpy.float32)
                       for i, (name, (_, shape)) in enumerate(sorted(world.SMALL.items())) if name != "nested/name"}

    def step(self):
        for p in self.params.values():
            p.reshape(-1)[::7] += 1

    def state_dict(self):
        return dict(self.params)


def config(**engine):
    engine = types.SimpleNamespace(**{"weight_sync_backend": "nccl", "run_engines_locally": True, **engine})
    return types.SimpleNamespace(generator=types.SimpleNamespace(inference_engine=engine), trainer=types.SimpleNamespace(
        placement=types.SimpleNamespace(colocate_all=False), policy=types.SimpleNamespace(model=types.SimpleNamespace(lora=types.SimpleNamespace(rank=0)))))


def test_selection(plugin):
    """importing it has SkyRL choose wsync for any back end, but not where engines are colocated; also where the name was imported before"""
    sync = sys.modules["skyrl.backends.skyrl_train.weight_sync"]
    for backend in ("nccl", "gloo", "delta"):
        assert sync.get_transfer_strategy(backend, False) == "wsync" and sync.get_transfer_strategy_cls(backend, False) is plugin.Strategy
    assert sync.get_transfer_strategy("nccl", True) == "ipc" and sync.get_transfer_strategy_cls("nccl", True) is skyrl.WeightTransferStrategy
    assert sys.modules[plugin.UTILS].get_transfer_strategy("nccl", False) == "wsync"
    with pytest.raises(AttributeError, match="Nonsense"):
        plugin.Nonsense


def test_configuration(plugin):
    """releases that can fetch before the pause leave the pause to the sender; colocated engines are refused"""
    assert plugin.configure(config()).generator.inference_engine.weight_sync_backend == "delta"
    assert plugin.configure(config(offload_kv_for_weight_sync=True)).generator.inference_engine.weight_sync_backend == "nccl"
    lora, colocated = config(), config()
    lora.trainer.policy.model.lora.rank, colocated.trainer.placement.colocate_all = 8, True
    assert plugin.configure(lora).generator.inference_engine.weight_sync_backend == "nccl"
    with pytest.raises(ValueError, match="colocate_all=false"):
        plugin.configure(colocated)
    sys.modules["skyrl.backends.skyrl_train.inference_servers.remote_inference_client"].RemoteInferenceClient = skyrl.Client
    assert plugin.configure(config()).generator.inference_engine.weight_sync_backend == "nccl"


def test_init_info(plugin, monkeypatch):
    """create_init_info takes what releases pass; one payload a server, which are equal"""
    monkeypatch.delenv("WSYNC_MOUNT", raising=False)
    engine = config(run_engines_locally=False).generator.inference_engine
    info = plugin.Strategy.create_init_info(engine, inference_world_size=8)
    assert info.override_existing_receiver and info.root == "/wsync/actor" and not info.pauses
    monkeypatch.setenv("WSYNC_MOUNT", "/mnt/w/")
    monkeypatch.setenv("WSYNC_MODEL", "critic")
    engine.run_engines_locally, engine.weight_sync_backend = True, "delta"
    info = plugin.Strategy.create_init_info(engine, inference_world_size=8, base_model_path="org/base")
    assert (info.override_existing_receiver, info.root, info.model, info.pauses) == (False, "/mnt/w/critic", "critic", True)
    servers = info.for_servers(2, 4, dp_size=2)
    assert servers == [info] * 4 and all(s is not info for s in servers) and [s.to_api_payload() for s in servers] == [{}] * 4


@pytest.fixture
def engines(monkeypatch):
    """An agent, a mount, and serve(prefix), which starts two engines of vLLM's API on a checkpoint of a Model's names."""
    world.need_fuse()
    agent = world.Agent()
    mount = world.Mount(f"unix:{agent.sock}")
    monkeypatch.setenv("WSYNC_AGENT", f"unix:{agent.sock}")
    monkeypatch.setenv("WSYNC_MOUNT", mount.path)
    found = types.SimpleNamespace(agent=agent, mount=mount, servers=[])

    def serve(prefix=""):
        folder = world.checkpoint({prefix + name: ("BF16", list(p.shape)) for name, p in Model().params.items()})
        found.servers = [world.Engine(folder, "--weight-transfer", api="vllm") for _ in range(2)]
        return [e.url for e in found.servers]

    found.serve = serve
    return found


def loaded(engines, version, params, dtype=BF16):
    """All engines serve what the checkpoint of these parameters holds."""
    got = wsync.open(f"{engines.mount.path}/actor/{version}", "numpy")
    assert set(got) == set(params)
    for name, p in params.items():
        assert got[name].dtype == dtype and got[name].tobytes() == p.astype(dtype).tobytes(), name
    want = world.Engine(f"{engines.mount.path}/actor/{version}", api="vllm").checksum()
    said = [(e.checksum() == want, bool(e.generate()), e.is_paused()) for e in engines.servers]
    assert said == [(True, True, False)] * len(said)
    return True


def test_chunks(plugin, engines, monkeypatch):
    """SkyRL's own extractor: all of its chunks are taken, one after another; SkyRL pauses, and there is no route to fetch by"""
    model, client = Model(), skyrl.Client(engines.serve())
    sender = plugin.Strategy.create_sender(plugin.Strategy.create_init_info(config().generator.inference_engine), client)
    own = skyrl.FSDPWeightExtractor(model)

    async def sync(version):
        await client.pause_generation()
        await sender.send_chunks(own.extract_weights(BF16), weight_metadata=own.get_weight_metadata(BF16))
        await client.resume_generation()
        assert loaded(engines, version, model.params)

    for version in (1, 2):
        model.step()
        asyncio.run(sync(version))
        path = client.asked[2][1]["update_info"]["weights_path"]
        assert [route for route, _ in client.asked] == ["/pause", "/start_weight_update", "/update_weights", "/finish_weight_update", "/resume"]
        assert path.startswith(f"{engines.mount.path}/actor/{version}@") and client.asked[3][1] == {"weight_version": str(version)}
        client.asked.clear()
    assert own.gathered == 2 * len(model.params)
    with pytest.raises(ValueError, match="weight_metadata"):
        asyncio.run(sender.send_chunks(own.extract_weights(BF16)))
    assert own.gathered == 3 * len(model.params)  # the other ranks wait in the gather
    sender.teardown()
    monkeypatch.setenv("WSYNC_AGENT", "unix:/nowhere/agent.sock")
    with pytest.raises(wsync.Error, match="nowhere"):
        asyncio.run(sender.send_chunks(own.extract_weights(BF16), weight_metadata=own.get_weight_metadata(BF16)))
    assert own.gathered == 4 * len(model.params)
    sender.teardown()


def test_shards(plugin, engines):
    """wsync's extractor: nothing is gathered; the version is fetched before the pause, the cache reset in it"""
    paused = []

    def fetch(path):
        paused.append([e.is_paused() for e in engines.servers])
        _path.fetch(path, 30)

    model, client = Model(), skyrl.FetchingClient(engines.serve("language_model."), fetch)
    engine = config(weight_sync_backend="delta").generator.inference_engine
    sender = plugin.Strategy.create_sender(plugin.Strategy.create_init_info(engine), client)
    own = skyrl.FSDPWeightExtractor(model, weight_prefix="language_model.")
    mine = plugin.Extractor(own)
    assert sender.handles_prefix_cache_reset and mine.get_weight_metadata(BF16) == own.get_weight_metadata(BF16)
    for version, reset in ((1, True), (2, False)):
        model.step()
        asyncio.run(sender.send_chunks(mine.extract_weights(BF16), weight_metadata=mine.get_weight_metadata(BF16), reset_prefix_cache=reset, later=1))
        assert loaded(engines, version, {"language_model." + n: p for n, p in model.params.items()})
        assert [route for route, _ in client.asked] == ["/fetch_weights", "/pause", *["/reset_prefix_cache"] * reset, "/start_weight_update",
                                                        "/update_weights", "/finish_weight_update", "/resume"]
        client.asked.clear()
    assert own.gathered == 0 and paused == [[False, False]] * 2
    chunk = next(iter(mine.extract_weights(BF16)))  # for whoever iterates it
    assert chunk.tensors[0].dtype == BF16 and own.gathered == 1
    sender.teardown()


def test_failure(plugin, engines):
    """an engine that cannot load is an error, the engines are resumed and can be updated again; what is not fetched is not paused for"""
    model = Model()
    refuse = threading.Event()

    def fetch(path):
        if refuse.is_set():
            raise OSError("not there")

    client = skyrl.FetchingClient(engines.serve(), fetch)
    engine = config(weight_sync_backend="delta").generator.inference_engine
    sender = plugin.Strategy.create_sender(plugin.Strategy.create_init_info(engine), client)
    mine = plugin.Extractor(skyrl.FSDPWeightExtractor(model))
    sender._init_info.root += "-nowhere"
    with pytest.raises(RuntimeError, match="nowhere"):
        asyncio.run(sender.send_chunks(mine.extract_weights(BF16)))
    assert [route for route, _ in client.asked][-2:] == ["/finish_weight_update", "/resume"] and not any(e.is_paused() for e in engines.servers)
    client.asked.clear()
    refuse.set()
    with pytest.raises(OSError, match="not there"):
        asyncio.run(sender.send_chunks(mine.extract_weights(BF16)))
    assert [route for route, _ in client.asked] == ["/fetch_weights"]
    refuse.clear()
    sender._init_info.root = sender._init_info.root.removesuffix("-nowhere")
    asyncio.run(sender.send_chunks(mine.extract_weights(BF16)))
    assert loaded(engines, 3, model.params)


def test_fetch(engines):
    """what a worker does before the pause: it waits until the version is there and the mount has all of it"""
    arrived = []
    path = f"{engines.mount.path}/actor/1"
    waiting = threading.Thread(target=lambda: arrived.append(_path.fetch(path, 60)))
    waiting.start()
    engines.agent.publish("actor", 1, world.checkpoint(world.SMALL, seed=5))
    waiting.join(60)
    progress = dict(line.split(" ", 1) for line in engines.mount.text("actor", "1", ".wsync", "progress").splitlines())
    assert arrived == [None] and 0 < int(progress["have_bytes"]) == int(progress["total_bytes"])
    with pytest.raises(OSError, match="has not appeared"):
        _path.fetch(f"{engines.mount.path}/actor/7", 0.1)
    empty = world.unique("empty")
    os.makedirs(empty)
    with pytest.raises(OSError, match="no safetensors"):
        _path.fetch(empty)
    assert not _path.appears(empty + "/no", 0) and _path.appears(empty, 0)
