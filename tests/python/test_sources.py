"""The sources for trainers' frameworks, tested with stand-ins of the frameworks' objects: which memory is read, and which must not be.
tests/real has the frameworks themselves."""
import enum
import json
import os
import subprocess
import sys
import types
from concurrent import futures

import numpy
import pytest
import world
import wsync


class Tensor:
    """The parts of a torch tensor that wsync uses, over a numpy array."""

    is_cpu = True
    requires_grad = True

    def __init__(self, array):
        self.array = array
        self.dtype, self.shape = array.dtype, array.shape

    def is_conj(self):
        return False

    is_neg = is_conj

    def stride(self):
        return tuple(s // self.dtype.itemsize for s in self.array.strides)

    def is_contiguous(self):
        return self.array.flags.c_contiguous

    def numel(self):
        return self.array.size

    def untyped_storage(self):
        return types.SimpleNamespace(nbytes=lambda: self.array.nbytes)

    def data_ptr(self):
        return self.array.__array_interface__["data"][0] if self.array.size else 0

    def detach(self):
        return self

    def reshape(self, *shape):
        return Tensor(self.array.reshape(*shape))

    view = reshape

    def narrow(self, dim, start, length):
        assert dim == 0
        return Tensor(self.array[start : start + length])


class Module:
    """A module tree with named parameters and buffers."""

    def __init__(self, parameters, modules=(), buffers=()):
        self._parameters, self._modules, self._buffers = dict(parameters), dict(modules), dict(buffers)
        self._non_persistent_buffers_set, self._forward_pre_hooks = set(), {}

    def modules(self):
        return [m for _, m in self.named_modules()]

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, m in self._modules.items():
            yield from m.named_modules(f"{prefix}.{name}" if prefix else name)

    def _named(self, what, prefix=""):
        for at, m in self.named_modules(prefix):
            for name, t in getattr(m, what).items():
                yield (f"{at}.{name}" if at else name), t

    def named_parameters(self, prefix=""):
        return self._named("_parameters", prefix)

    def named_buffers(self, prefix=""):
        return self._named("_buffers", prefix)

    def parameters(self):
        return [p for _, p in self.named_parameters()]


@pytest.fixture
def agent():
    return world.Agent()


def publisher(agent, source, **options):
    return wsync.Publisher("actor", source, agent=f"unix:{agent.sock}", start_agent=False, rank=0, world_size=1, **options)


def published(pub, version):
    pub.offload(version)
    weights = pub.weights(version, "numpy")
    return {name: weights[name].tolist() for name in weights}


def test_checkout():
    """the package can be imported from a checkout that `make` has built; in an unbuilt one the error says what to do"""
    root = os.environ["ROOT"]
    env = {k: v for k, v in os.environ.items() if k != "WSYNC_LIBRARY"}
    done = subprocess.run([sys.executable, "-c", "import wsync; print(wsync.__version__)"], env=dict(env, PYTHONPATH=os.path.join(root, "backends/python")),
                          cwd="/", text=True, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if os.path.exists(os.path.join(root, "build/libwsync.so")):
        assert done.stdout.strip() == wsync.__version__, done.stderr
    else:
        assert "run `make` in the checkout" in done.stderr


def test_older_library(tmp_path):
    """a library that lacks a function of the package's wsync.h is refused with its name and both releases"""
    path = tmp_path / "libwsync.so"
    (tmp_path / "old.c").write_text('const char *wsync_version(void) { return "0.0.7"; }')
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, tmp_path / "old.c"], check=True, timeout=60)
    done = subprocess.run([sys.executable, "-c", "import wsync"], env=dict(os.environ, WSYNC_LIBRARY=str(path)), text=True, timeout=60, stderr=subprocess.PIPE)
    release = ".".join(wsync.__version__.split(".")[:2])
    for words in ("ImportError", f"{path} is libwsync 0.0.7", "has no wsync_abandon and ", f"wsync.h ({release}) declares", "WSYNC_LIBRARY"):
        assert words in done.stderr, (words, done.stderr)


# --- torch ---


def test_running_means(agent):
    """running means that differ between ranks are refused, since a version would mix one rank's mean with another's variance; equal ones pass"""
    models = [Module({"weight": Tensor(numbers(3, 0))}, (), {"running_mean": Tensor(numbers(3, rank))}) for rank in range(2)]
    with world.scope():
        pubs = [world.entered(wsync.Publisher("actor", wsync.fsdp(m, conversions=False), agent=f"unix:{agent.sock}", start_agent=False,
                                                    rank=rank, world_size=2)) for rank, m in enumerate(models)]  # fmt: skip
        with futures.ThreadPoolExecutor() as pool:
            errors = [f.exception(60) for f in [pool.submit(p.offload, 1) for p in pubs]]
        assert ["elements 0 to 2 of running_mean differ between rank 1 and rank 0" in str(e) for e in errors if e] == [True], errors
        models[1]._buffers["running_mean"].array[:] = models[0]._buffers["running_mean"].array
        with futures.ThreadPoolExecutor() as pool:
            assert [f.exception(60) for f in [pool.submit(p.offload, 2) for p in pubs]] == [None, None]


# --- DeepSpeed ---

State = enum.Enum("OffloadStateTypeEnum", ["lp_params", "hp_params"])


class Zero3:
    """ZeRO-3's optimizer on one rank. Its accessor returns copies, all at one address, as if freed memory were reused."""

    def __init__(self, masters, swappable=False):
        self.flat = Tensor(numpy.concatenate(masters))
        self.fp32_partitioned_groups_flat = [Tensor(numpy.zeros(1, numpy.float32)), self.flat]
        starts = numpy.cumsum([0, *(len(m) for m in masters)])
        self.grad_position = {i: [1, int(starts[i]), len(m)] for i, m in enumerate(masters)}
        self.offloaded_states = set()
        self.swappable = swappable
        self.arena = numpy.zeros(64, numpy.float32)

    def get_param_id(self, p):
        return p.ds_id

    def _swappable_optimizer_subgroup(self, group):
        return self.swappable and group == 1

    def get_local_fp32_param(self, p):
        _, start, n = self.grad_position[p.ds_id]
        self.arena[:n] = self.flat.array[start : start + n]
        return Tensor(self.arena[:n])


def zero3(masters, **options):
    zero, parameters = Zero3(list(masters.values()), **options), {}
    for i, (name, master) in enumerate(masters.items()):
        p = Tensor(numpy.zeros(0, numpy.float16))
        p.ds_id, p.ds_shape, p._z3_optimizer = i, master.shape, zero
        p.ds_zero_partition_rank, p.ds_zero_partition_world_size = 0, 1
        p.ds_tensor = Tensor(master.astype(numpy.float16))
        p.ds_tensor.ds_numel = len(master)
        parameters[name] = p
    return types.SimpleNamespace(module=Module(parameters), optimizer=zero)


def numbers(n, start):
    return numpy.arange(start, start + n, dtype=numpy.float32)


def test_masters_are_the_optimizers_own(agent, monkeypatch):
    """ZeRO-3's masters are read from the optimizer's partition, not from its accessor's temporary copies"""
    utils = types.ModuleType("deepspeed.utils")
    utils.safe_get_local_fp32_param = lambda p: p._z3_optimizer.get_local_fp32_param(p)
    monkeypatch.setitem(sys.modules, "deepspeed", types.ModuleType("deepspeed"))
    monkeypatch.setitem(sys.modules, "deepspeed.utils", utils)
    masters = {"a": numbers(5, 1), "b": numbers(3, 100), "c": numbers(5, 1000)}
    engine = zero3(masters)
    engine.module._parameters["c"].requires_grad = False
    with publisher(agent, wsync.deepspeed(engine, master=True)) as pub:
        for version in (1, 2):
            assert published(pub, version) == {"a": (masters["a"] + version - 1).tolist(), "b": (masters["b"] + version - 1).tolist(),
                                               "c": masters["c"].tolist()}
            engine.optimizer.flat.array += 1


def test_deepspeed_refuses(agent):
    """masters on NVMe, offloaded states and an unknown optimizer are refused"""
    masters = {"a": numbers(5, 1)}
    with publisher(agent, wsync.deepspeed(zero3(masters, swappable=True), master=True)) as pub, pytest.raises(NotImplementedError, match="master of a is swapped to NVMe"):
        pub.offload(1)
    engine = zero3(masters)
    del engine.optimizer.grad_position
    with publisher(agent, wsync.deepspeed(engine, master=True)) as pub, pytest.raises(NotImplementedError, match="a: this release of DeepSpeed"):
        pub.offload(1)
    engine = zero3(masters)
    with publisher(agent, wsync.deepspeed(engine)) as pub:
        engine.optimizer.offloaded_states = {State.hp_params}
        pub.offload(1)
        engine.optimizer.offloaded_states = {State.lp_params}
        with pytest.raises(RuntimeError, match="lp_params elsewhere: call engine.reload_states"):
            pub.offload(2)
        engine.optimizer.offloaded_states = set()
        pub.offload(2)


def test_deepspeed_quantised(agent):
    """weights that ZeRO++ or deepspeed.linear keeps quantised are refused by name"""
    engine = zero3({"a": numbers(5, 1)})
    engine.module._parameters["a"].ds_tensor.ds_quant_scale = Tensor(numbers(1, 1))
    with publisher(agent, wsync.deepspeed(engine)) as pub, pytest.raises(NotImplementedError, match="a is kept quantised by ZeRO .zero_quantized_nontrainable_weights"):
        pub.offload(1)

    class QuantizedParameter(Tensor):
        pass

    model = Module({"b": QuantizedParameter(numbers(5, 1))})
    with publisher(agent, wsync.deepspeed(model)) as pub, pytest.raises(NotImplementedError, match="b is a QuantizedParameter, kept quantised by deepspeed.linear"):
        pub.offload(1)


@pytest.mark.parametrize("master", [False, True])
def test_mics(agent, monkeypatch, master):
    """MiCS, of releases before 0.19: a partition is of its shard group, which is smaller than ds_process_group; parameters and masters"""
    dist = types.SimpleNamespace(get_rank=lambda group: group[0], get_world_size=lambda group: group[1])
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(distributed=dist, Tensor=enum.Enum))
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    whole = numbers(9, 1)
    with world.scope():
        pubs = []
        for rank in range(4):
            mine = numpy.concatenate([whole, numpy.full(1, -1, numpy.float32)])[rank % 2 * 5 :][:5]
            engine = zero3({"a": mine})
            p = engine.module._parameters["a"]
            del p.ds_zero_partition_rank, p.ds_zero_partition_world_size
            p.ds_shape, p.ds_process_group = whole.shape, (rank, 4)
            p.comm = types.SimpleNamespace(param_shard_rank=rank % 2, param_shard_size=2)
            pubs.append(world.entered(wsync.Publisher("actor", wsync.deepspeed(engine, master=master), agent=f"unix:{agent.sock}", start_agent=False,
                                                      rank=rank, world_size=4)))  # fmt: skip
        with futures.ThreadPoolExecutor() as pool:
            assert [f.exception(60) for f in [pool.submit(p.offload, 1) for p in pubs]] == [None] * 4
        assert pubs[0].weights(1, "numpy")["a"].tolist() == whole.tolist()


# --- DeepSpeed's AutoTP ---


class TensorParallel_Layer(Module):
    """One of AutoTP's layers, which replaces a linear one: it knows its group, and its parameters say how they are cut."""

    def __init__(self, array, dim, sizes, rank, **more):
        start = sum(sizes[:rank])
        p = Tensor(numpy.take(array, range(start, start + sizes[rank]), dim))
        super().__init__({"weight": p})
        self.tp_world_size, self.tp_index = len(sizes), rank
        p.ds_is_replaced_module = True
        p.ds_autotp_universal_checkpoint_meta = {"partition_dim": dim, "partition_sizes": sizes, "logical_shape": array.shape, "sub_param_shard_widths": None,
                                                 "conversion": {"replicated": False, "unsupported_reason": None}, **more}  # fmt: skip


class LinearLayer(TensorParallel_Layer):
    """One whose cuts are known."""


def test_autotp(agent):
    """unequal rows, none on a rank, and columns that are equal where there are any"""
    rows, columns = numbers(14, 0).reshape(7, 2), numbers(12, 50).reshape(2, 6)
    with world.scope():
        pubs = []
        for rank in range(3):
            model = Module({"norm": Tensor(numbers(2, 7))}, {"up": LinearLayer(rows, 0, (5, 2, 0), rank),
                                                             "down": LinearLayer(columns, 1, (3, 3, 0), rank)})  # fmt: skip
            pubs.append(world.entered(wsync.Publisher("actor", wsync.deepspeed(model), agent=f"unix:{agent.sock}", start_agent=False,
                                                      rank=rank, world_size=3)))  # fmt: skip
        with futures.ThreadPoolExecutor() as pool:
            assert [f.exception(60) for f in [pool.submit(p.offload, 1) for p in pubs]] == [None] * 3
        weights = pubs[0].weights(1, "numpy")
        assert {n: weights[n].tolist() for n in weights} == {"norm": [7, 8], "up.weight": rows.tolist(), "down.weight": columns.tolist()}


def test_autotp_embedding(agent):
    """of an embedding AutoTP keeps the rank's columns in a layer of torch's own: they are not published as the whole"""
    half = Tensor(numbers(6, 0).reshape(3, 2))
    half.ds_autotp_universal_checkpoint_meta = {"partition_dim": 1, "partition_sizes": (2, 2), "logical_shape": (3, 4), "conversion": {"replicated": False}}
    model = Module({"norm": Tensor(numbers(2, 7))}, {"embed": Module({"weight": half})})
    with publisher(agent, wsync.deepspeed(model)) as pub, pytest.raises(NotImplementedError, match=r"embed.weight is a part that DeepSpeed's AutoTP has cut of \[3, 4\]"):
        pub.offload(1)


def test_autotp_refuses(agent):
    """a layer of AutoTP's that is not known, what AutoTP does not describe, several tensors in one, and pieces that are other than described; a group of one cuts nothing"""
    array = numbers(12, 0).reshape(6, 2)
    refused = lambda layer, words: pytest.raises(NotImplementedError, match="up.weight is in a (LinearLayer|TensorParallel_Layer) of DeepSpeed's AutoTP.*" + words)
    made = lambda **more: LinearLayer(array, 0, (3, 3), 0, **more)
    for layer, words in ((TensorParallel_Layer(array, 0, (3, 3), 0), "whose way of cutting is not known"), (made(sub_param_shard_widths=[[1, 1], [2, 2]]), "several tensors in one"), (made(partition_sizes=(4, 2)), r"holds \[4, 2\] of it, and it holds \[3, 2\]"),
                         (made(conversion={"replicated": False, "unsupported_reason": "grouped heads"}), "grouped heads")):  # fmt: skip
        with publisher(agent, wsync.deepspeed(Module({}, {"up": layer}))) as pub, refused(layer, words):
            pub.offload(1)
    layer = made()
    del layer._parameters["weight"].ds_autotp_universal_checkpoint_meta
    with publisher(agent, wsync.deepspeed(Module({}, {"up": layer}))) as pub:
        with refused(layer, "does not say how it is cut"):
            pub.offload(1)
        layer.tp_world_size = 1
        assert published(pub, 1) == {"up.weight": array[:3].tolist()}


def test_freed_storage(agent):
    """a tensor whose storage was freed is refused by name"""

    class Gone(Tensor):
        def data_ptr(self):
            return 0

    with publisher(agent, wsync.fsdp(Module({"w": Gone(numbers(3, 0))}), conversions=False)) as pub, pytest.raises(RuntimeError, match="w has no memory"):
        pub.offload(1)


# --- FSDP1 ---


class FullyShardedDataParallel(Module):
    def __init__(self, flat, inner):
        super().__init__({}, {"_fsdp_wrapped_module": inner})
        self._handle = types.SimpleNamespace(flat_param=flat)


def flat_of(tensors, padding=3):
    flat = Tensor(numpy.concatenate([*(t.reshape(-1) for t in tensors.values()), numpy.full(padding, -1, numpy.float32)]))
    flat._fqns, flat._shapes, flat._shard_param_infos, at = list(tensors), [t.shape for t in tensors.values()], [], 0
    for t in tensors.values():
        flat._shard_param_infos.append(types.SimpleNamespace(in_shard=True, offset_in_shard=at, numel_in_shard=t.size, intra_param_start_idx=0))
        at += t.size
    return flat


def test_flat_parameter(agent):
    """FSDP1 without use_orig_params: the flat parameter is split into the file's tensors, and is not one itself"""
    inside, outside = {"x.weight": numbers(6, 0).reshape(2, 3), "x.bias": numbers(2, 50)}, {"norm": numbers(4, 100)}
    layer = flat_of(inside)
    root = flat_of(outside)
    wrapped = FullyShardedDataParallel(layer, Module({"_flat_param": layer}))
    model = FullyShardedDataParallel(root, Module({"_flat_param": root}, {"layer": wrapped}))
    with publisher(agent, wsync.fsdp(model, conversions=False)) as pub:
        assert published(pub, 1) == {"layer.x.weight": inside["x.weight"].tolist(), "layer.x.bias": inside["x.bias"].tolist(),
                                     "norm": outside["norm"].tolist()}
    del root._shard_param_infos
    with publisher(agent, wsync.fsdp(model, conversions=False)) as pub, pytest.raises(NotImplementedError, match="the model is of FSDP1.*_shard_param_infos"):
        pub.offload(2)


def test_wrappers(agent):
    """the name prefixes of DDP and torch.compile are removed; adapter layers are refused"""

    class DistributedDataParallel(Module):
        def __init__(self, module):
            super().__init__({}, {"module": module})
            self.module = module

    model = Module({}, {"layer": Module({"weight": Tensor(numbers(3, 0))})})
    with publisher(agent, wsync.fsdp(DistributedDataParallel(model), conversions=False)) as pub:
        assert published(pub, 1) == {"layer.weight": [0, 1, 2]}
        model._modules["layer"] = Module({}, {"base_layer": Module({"weight": Tensor(numbers(3, 0))})})
        with pytest.raises(NotImplementedError, match="layer.base_layer is in an adapter's layer.*merge_and_unload"):
            pub.offload(2)


def test_other_sources(agent):
    """what another source is for is refused, with its name: a Megatron model, partitions of ZeRO-3, an engine that is not there yet"""
    megatron = type("GPTModel", (type("MegatronModule", (Module,), {}),), {})({"embedding.word_embeddings.weight": Tensor(numbers(3, 0))})
    model = zero3({"a": numbers(2, 0)}).module
    for wrong, words in (Module({}, {"module": megatron}), r"Megatron-core.*wsync.megatron\(\)"), (model, r"ZeRO-3.*wsync.deepspeed\(\)"):
        with publisher(agent, wsync.fsdp(wrong, conversions=False)) as pub, pytest.raises(TypeError, match=words):
            pub.offload(1)
    for source in wsync.fsdp, wsync.deepspeed, wsync.megatron:
        with pytest.raises(TypeError, match="a torch module is wanted, not a NoneType.*on_train_begin"):
            source(None)


def test_vision_by_transformers_4(agent, monkeypatch):
    """transformers 4 has models of text and images in other names than their files; a table of the model's class has both"""
    torch = types.SimpleNamespace(Tensor=enum.Enum, empty=lambda shape, device: Tensor(numpy.empty(shape, numpy.float32)))
    for name, module in {"torch": torch, "transformers": types.ModuleType("transformers"), "transformers.core_model_loading": None,
                         "transformers.conversion_mapping": None, "transformers.modeling_utils": types.SimpleNamespace(VLMS=["qwen2_5_vl"])}.items():  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)

    class Qwen2_5_VLForConditionalGeneration(Module):
        _checkpoint_conversion_mapping = {"^visual": "model.visual", r"^model(?!\.(language_model|visual))": "model.language_model"}
        config = types.SimpleNamespace(model_type="qwen2_5_vl")

    part = lambda n: Module({"norm": Tensor(numbers(2, n))})
    model = Qwen2_5_VLForConditionalGeneration({}, {"model": Module({}, {"visual": part(0), "language_model": part(5)}), "lm_head": part(9)})
    with publisher(agent, wsync.fsdp(model)) as pub:
        assert published(pub, 1) == {"visual.norm": [0, 1], "model.norm": [5, 6], "lm_head.norm": [9, 10]}


# --- PEFT ---


class LoraConfig:
    """PEFT's, as far as a file of it goes."""

    def __init__(self, base="org/base", **more):
        self.base_model_name_or_path, self.more = base, more

    def to_dict(self):
        kind = enum.Enum("PeftType", {"LORA": "LORA"}, type=str)
        return {"peft_type": kind.LORA, "r": 2, "lora_alpha": 4, "target_modules": {"v", "q"}, "bias": "none", "inference_mode": False,
                "base_model_name_or_path": self.base_model_name_or_path, **self.more}


def layer(names, start, to_parameter=Tensor):
    """A linear layer with the adapters of these names: A of 2 x 3, B of 4 x 2."""
    at = {n: start + 100 * i for i, n in enumerate(names)}
    half = lambda k, shape: Module({}, {n: Module({"weight": to_parameter(numbers(shape[0] * shape[1], at[n] + k).reshape(shape))}) for n in names})
    return Module({}, {"base_layer": Module({"weight": Tensor(numbers(12, -50).reshape(4, 3))}), "lora_A": half(0, (2, 3)), "lora_B": half(50, (4, 2))})


def peft_model(names=("default",), config=None, **more):
    """A PeftModel of one adapted layer, and a layer that is not adapted."""
    model = Module({}, {"base_model": Module({}, {"model": Module({}, {"q": layer(names, 0, **more), "norm": Module({"weight": Tensor(numbers(3, 7))})})})})
    model.peft_config = {n: config or LoraConfig() for n in names}
    return model


def saved(start=0):
    """What PEFT saves of an adapter of such a model."""
    return {"base_model.model.q.lora_A.weight": numbers(6, start).reshape(2, 3).tolist(),
            "base_model.model.q.lora_B.weight": numbers(8, start + 50).reshape(4, 2).tolist()}


def test_peft(agent):
    """an adapter alone, in PEFT's names and files, also the second of a model and at the next step; its config is the same bytes each time"""
    world.need_fuse()
    mount = world.Mount(agent.url)
    model = peft_model(("default", "second"))
    with publisher(agent, wsync.peft(model)) as pub:
        for version in (1, 2):
            assert published(pub, version) == saved(version - 1)
            for half in "AB":
                model._modules["base_model"]._modules["model"]._modules["q"]._modules["lora_" + half]._modules["default"]._parameters["weight"].array += 1
    mount.wait_version("actor", 2)
    assert sorted(set(os.listdir(mount.file("actor", 2))) - {"tensors", ".wsync"}) == ["adapter_config.json", "adapter_model.safetensors"]
    config = json.loads(mount.read("actor", 2, "adapter_config.json"))
    assert config == {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q", "v"], "bias": "none", "inference_mode": True,
                      "base_model_name_or_path": "org/base"}
    assert mount.read("actor", 1, "adapter_config.json") == mount.read("actor", 2, "adapter_config.json")
    assert wsync.open(mount.file("actor", 2), framework="numpy")["base_model.model.q.lora_A.weight"].dtype == numpy.float32
    with publisher(agent, wsync.peft(model, "second", base_name="/wsync/base/1"), dtype="bfloat16", new_run=True) as pub:
        assert published(pub, 1) == saved(100)
        mount.wait_version("actor", 1)
        world.wait_for(lambda: "/wsync/base/1" in mount.text("actor", 1, "adapter_config.json"), "the new run's version")


def test_peft_astraflow():
    """AstraFlow's receivers are told the lora_config of an adapter that a trainer published, and take it whole, at each step"""
    receivers = pytest.importorskip("astraflow_receiver", reason="pyzmq is not installed")
    listener = f"127.0.0.1:{world.free_port()}"
    agent = world.Agent("--astraflow", f"actor={listener}")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
    model = peft_model()
    receiver = receivers.Receiver(f"http://{listener}", world.free_port())
    world.at_end(receiver.close)
    with publisher(agent, wsync.peft(model)) as pub:
        for version in (1, 2):
            assert published(pub, version) == saved(version - 1)
            info = receivers.call(f"http://{listener}/get_buffer_info")[1]
            assert info["lora_config"] == {**config, "target_modules": ["q", "v"]}, info
            if version == 1:
                receiver.register()
            assert receiver.notified(version)[0] == "full"
            got = {name: numpy.frombuffer(data, "<f4").reshape(shape).tolist() for name, (_, shape, data) in receiver.tensors().items()}
            assert got == saved(version - 1)
            for half in "AB":
                model._modules["base_model"]._modules["model"]._modules["q"]._modules["lora_" + half]._modules["default"]._parameters["weight"].array += 1
    for version, more, why in ((1, {"target_modules": r".*\.q"}, "target_modules is a pattern"), (2, {"use_rslora": True}, "use_rslora")):
        with publisher(agent, wsync.peft(peft_model(config=LoraConfig(**more))), new_run=True) as pub:
            assert published(pub, version) == saved()
        status, info = receivers.call(f"http://{listener}/get_buffer_info")
        assert status == 503 and why in info["error"], (status, info)


def test_peft_sharded(agent):
    """ZeRO-3's partitions and FSDP1's flat parameters of an adapter; the base is not even looked at"""

    class DeepSpeedEngine:
        def __init__(self, module):
            self.module = module

    class Untouchable(Tensor):
        def data_ptr(self):
            raise AssertionError("the base was read")

    def partition(array):
        p = Tensor(numpy.zeros(0, numpy.float32))
        p.ds_id, p.ds_shape, p.ds_zero_partition_rank, p.ds_zero_partition_world_size = 0, array.shape, 0, 1
        p.ds_tensor = Tensor(array.reshape(-1))
        p.ds_tensor.ds_numel = array.size
        return p

    model = peft_model(to_parameter=partition)
    model._modules["base_model"]._modules["model"]._modules["norm"]._parameters["weight"] = Untouchable(numbers(3, 0))
    with publisher(agent, wsync.peft(DeepSpeedEngine(model))) as pub:
        assert published(pub, 1) == saved()
    tensors = {"q.base_layer.weight": numbers(12, 5).reshape(4, 3), "q.lora_A.default.weight": numbers(6, 0).reshape(2, 3),
               "q.lora_B.default.weight": numbers(8, 50).reshape(4, 2)}
    flat = flat_of(tensors)
    sharded = FullyShardedDataParallel(flat, Module({"_flat_param": flat}))
    sharded.peft_config = {"default": LoraConfig()}
    with publisher(agent, wsync.peft(sharded), new_run=True) as pub:
        assert published(pub, 1) == saved()


def test_peft_refuses(agent):
    """no adapter, one that is not there, and what no engine loads of one"""
    with pytest.raises(TypeError, match="Module has no peft_config"):
        wsync.peft(Module({}))
    with pytest.raises(ValueError, match="no adapter 'third': the model has default, second"):
        wsync.peft(peft_model(("second", "default")), "third")
    with pytest.raises(ValueError, match="master=True is of a DeepSpeed engine"):
        wsync.peft(peft_model(), master=True)
    with pytest.raises(ValueError, match="an adapter has no base="):
        publisher(agent, wsync.peft(peft_model()), base="/nowhere")
    for more, words in (({"use_dora": True}, "DoRA"), ({"modules_to_save": ["lm_head"]}, "modules_to_save"), ({"bias": "all"}, "bias"), ({"r": 0}, "r of")):
        with pytest.raises(wsync.Error, match=words):
            publisher(agent, wsync.peft(peft_model(config=LoraConfig(**more))))
    model = peft_model()
    model._modules["base_model"]._modules["model"]._modules["q"]._modules["lora_magnitude_vector"] = Module({}, {"default": Module({"weight": Tensor(numbers(4, 0))})})
    with publisher(agent, wsync.peft(model)) as pub, pytest.raises(wsync.Error, match="lora_magnitude_vector.*publish the merged model"):
        pub.offload(1)


# --- Megatron ---


class Group:
    """A bucket group of two ranks; ``shard`` is the other rank's part. A gather copies the values from the time when it began."""

    def __init__(self, mine, shard):
        self.mine, self.shard, self.param_gather_handle, self.gathers = mine, shard, None, 0

    def begin(self):
        self.param_gather_handle = self.shard.copy()

    def start_param_sync(self, force_sync=False):
        assert force_sync
        if self.param_gather_handle is not None:
            self.mine[:], self.param_gather_handle = self.param_gather_handle, None
            return
        self.mine[:] = self.shard
        self.gathers += 1


class DistributedDataParallel(Module):
    def __init__(self, module, groups, **config):
        super().__init__({}, {"module": module})
        self.module, self.bucket_groups, self.expert_parallel_bucket_groups = module, groups, []
        self.ddp_config = types.SimpleNamespace(**{"use_distributed_optimizer": True, "overlap_param_gather": True, **config})
        for m in module.modules():
            m._forward_pre_hooks[0] = self._make_forward_pre_hook()

    def start_param_sync(self, force_sync=False):
        for g in self.bucket_groups:
            g.start_param_sync(force_sync=force_sync)

    def _make_forward_pre_hook(self):
        def hook(module, *_):
            pass

        return hook


def chunk(weight, buffers=()):
    layer = Module({}, {"router": Module({"weight": weight}, (), buffers)})
    layer.layer_number = 3
    decoder = Module({}, {"layers": Module({}, {"0": layer})})
    decoder.layers = [layer]
    model = Module({}, {"decoder": decoder})
    model.decoder = decoder
    return model


def test_late_gathers():
    """with overlap_param_gather an offload gathers the parameters; a gather that began before the last step is not enough"""
    shard, mine = numbers(4, 10), numbers(4, 0)
    group = Group(mine, shard)
    model = chunk(Tensor(mine))
    source = wsync.megatron(DistributedDataParallel(model, [group]))
    source.held()
    assert (mine == shard).all() and group.gathers == 1
    group.begin()
    shard += 5  # step()
    held = source.held()
    assert (mine == shard).all() and group.gathers == 2 and group.param_gather_handle is None
    assert [m[0] for m in held.meta] == ["decoder.layers.0.router.weight"] and held.meta[0][-1] == 3
    known = DistributedDataParallel(chunk(Tensor(numbers(4, 0))), [])
    for chunks in (model, [known, model], [model, known]):
        with pytest.raises(ValueError, match="overlap_param_gather.*not its .module"):
            wsync.megatron(chunks).held()


def test_megatron_refuses():
    """unsupported wrappers are refused; buffers are included"""

    class FullyShardedDataParallel(Module):
        def __init__(self, module):
            super().__init__({}, {"module": module})
            self.module = module

    weight = Tensor(numbers(2, 0))
    for name in ("FullyShardedDataParallel", "TorchFullyShardedDataParallel"):
        with pytest.raises(NotImplementedError, match=f"a {name}, whose layout.*use DistributedDataParallel"):
            wsync.megatron(type(name, (FullyShardedDataParallel,), {})(chunk(weight)))
    with pytest.raises(NotImplementedError, match="a MegatronFSDP whose buffers have no params.*this release"):
        wsync.megatron(type("MegatronFSDP", (FullyShardedDataParallel,), {})(chunk(weight)))
    with pytest.raises(NotImplementedError, match="router.weight is a GroupedTensor.*moe_single_grouped_weight"):
        wsync.megatron(chunk(type("GroupedTensor", (Tensor,), {})(numbers(2, 0)))).held()
    with pytest.raises(NotImplementedError, match="mxfp8"):
        wsync.megatron(DistributedDataParallel(chunk(weight), [], reuse_grad_buf_for_mxfp8_param_ag=True))
    held = wsync.megatron(chunk(weight, {"expert_bias": Tensor(numbers(2, 5))})).held()
    assert [(m[0], m[-1]) for m in held.meta] == [("decoder.layers.0.router.weight", 3), ("decoder.layers.0.router.expert_bias", 3)]


class Ranges:
    """A distributed optimizer of Megatron's: which range of each parameter this rank updates."""

    def __init__(self, ranges, others=()):
        self.model_param_gbuf_map = ranges
        self.buffers = [types.SimpleNamespace(param_index_map=dict.fromkeys([*ranges, *others]))]

    def _get_model_param_range_map(self, p):
        start, end = self.model_param_gbuf_map[p]
        return {"param": types.SimpleNamespace(start=start, end=end)}


def ranged_chunk(start, **attributes):
    """A layer's projection [3, 4], and a frozen norm; and the projection."""
    projection, norm = Tensor(numbers(12, start).reshape(3, 4)), Tensor(numbers(3, 70))
    for name, value in attributes.items():
        setattr(projection, name, value)
    norm.requires_grad = False
    fc2 = Module({"weight": projection})
    model = lora_chunk({"linear_fc2": fc2})
    model.decoder._modules["final_layernorm"] = Module({"weight": norm})
    return model, projection


def offloaded(agent, sources, version, **options):
    """Every rank's error, or None, and what was published."""
    with world.scope():
        pubs = [world.entered(wsync.Publisher("actor", s, agent=f"unix:{agent.sock}", start_agent=False, rank=rank, world_size=len(sources), **options))
                for rank, s in enumerate(sources)]
        with futures.ThreadPoolExecutor() as pool:
            errors = [f.exception(60) for f in [pool.submit(p.offload, version) for p in pubs]]
        if any(errors):
            return errors, {}
        weights = pubs[0].weights(version, "numpy")
        return errors, {name: weights[name].tolist() for name in weights}


def test_optimizer_ranges(agent, one_group, qwen3):
    """given the distributed optimizer, each rank writes what its shard has updated; nothing is gathered, and a hole is refused by name"""
    (a, mine), (b, other) = ranged_chunk(0), ranged_chunk(100)
    late = DistributedDataParallel(a, [])
    sources = lambda end, **more: [wsync.megatron(late, Ranges({mine: (0, 5)}), **more), wsync.megatron([b], types.SimpleNamespace(chained_optimizers=[
        types.SimpleNamespace(is_stub_optimizer=True), Ranges({other: (5, end)})]), **more)]
    errors, got = offloaded(agent, sources(12), 1, hf_config=qwen3)
    assert errors == [None, None]
    name = "model.layers.0.mlp.down_proj.weight"
    whole = numpy.concatenate([mine.array.reshape(-1)[:5], other.array.reshape(-1)[5:]]).reshape(3, 4)
    assert got == {name: whole.tolist(), "model.norm.weight": numbers(3, 70).tolist()}
    errors, _ = offloaded(agent, sources(11), 2, hf_config=qwen3)
    assert any(f"{name} is not whole: of its 12 elements the ranks hold 11" in str(e) for e in errors), errors
    with pytest.raises(NotImplementedError, match="linear_fc2.weight has no main_param.*master=True out"):
        sources(12, master=True)[0].held()
    for p, (start, end) in ((mine, (0, 5)), (other, (5, 12))):
        p.main_param, p._scale_inv = Tensor(numbers(end - start, 1000 + start).astype("float32")), 1
    errors, got = offloaded(agent, sources(12, master=True), 3, hf_config=qwen3)
    assert errors == [None, None] and got[name] == numbers(12, 1000).reshape(3, 4).tolist()
    with pytest.raises(NotImplementedError, match="linear_fc2.weight is a Tensor, kept in FP8.*master=True"):
        sources(12)[0].held()
    with pytest.raises(NotImplementedError, match="linear_fc2.weight is a Tensor, kept in FP8.*master=True"):
        wsync.megatron(b).held()
    with pytest.raises(ValueError, match="has 7 elements, and its range 6"):
        sources(11, master=True)[1].held()
    with pytest.raises(TypeError, match="Plain, which has no ranges.*use_distributed_optimizer"):
        wsync.megatron(b, type("Plain", (), {})())
    assert [m[0] for m in wsync.megatron(b, Ranges({}, [other])).held().meta] == ["decoder.final_layernorm.weight"]  # another rank has the range
    with pytest.raises(ValueError, match="linear_fc2.weight is trained, and the optimizer does not have it"):
        wsync.megatron(b, Ranges({mine: (0, 5)})).held()
    with pytest.raises(ValueError, match="master=True takes the masters"):
        wsync.megatron(b, master=True)
    reused = DistributedDataParallel(ranged_chunk(0)[0], [], reuse_grad_buf_for_mxfp8_param_ag=True)
    with pytest.raises(NotImplementedError, match="mxfp8.*master=True"):
        wsync.megatron(reused, Ranges({}))
    wsync.megatron(reused, Ranges({}), master=True)


def test_mtp_layers():
    """a tensor of multi-token prediction has its layer's own number, not that of the layer within; of a later stage's embedding no range is held"""
    model = chunk(Tensor(numbers(2, 0)))
    inner = Module({}, {"router": Module({"weight": Tensor(numbers(2, 2))})})
    inner.layer_number = 4
    layer = Module({"eh_proj": Tensor(numbers(2, 4))}, {"transformer_layer": inner})
    layer.layer_number = 1
    block = Module({}, {"layers": Module({}, {"0": layer})})
    block.layers = [layer]
    embedding = Tensor(numbers(4, 6))
    model._modules["embedding"] = Module({}, {"word_embeddings": Module({"weight": embedding})})
    model._modules["mtp"], model.mtp, model.pre_process = block, block, False
    found = lambda source: sorted((m[0], m[-1]) for m in source.held().meta)
    layers = [("decoder.layers.0.router.weight", 3), ("mtp.layers.0.eh_proj", 1), ("mtp.layers.0.transformer_layer.router.weight", 1)]
    assert found(wsync.megatron(model)) == sorted([*layers, ("embedding.word_embeddings.weight", 0)])
    ranges = Ranges({p: (0, 2) for _, p in model.named_parameters()})
    assert found(wsync.megatron(model, ranges)) == layers
    model.pre_process = True
    assert ("embedding.word_embeddings.weight", 0) in found(wsync.megatron(model, ranges))


def test_contradicting_ranks(agent, one_group, qwen3):
    """a layer that two stages hold and cut differently is refused by name, with both ranks"""
    (a, _), (b, other) = ranged_chunk(0), ranged_chunk(100)
    errors, _ = offloaded(agent, [wsync.megatron(a), wsync.megatron(b, Ranges({other: (5, 12)}))], 1, hf_config=qwen3)
    assert all("model.layers.0.mlp.down_proj.weight" in str(e) and "rank 0" in str(e) and "rank 1" in str(e) for e in errors), errors


def lora_of(outputs, inputs, start, **attributes):
    """Megatron-Bridge's layer with an adapter of rank 2."""
    adapter = Module({}, {"linear_in": Module({"weight": Tensor(numbers(2 * inputs, start).reshape(2, inputs))}),
                          "linear_out": Module({"weight": Tensor(numbers(2 * outputs, start + 50).reshape(outputs, 2))})})
    adapter.linear_in, adapter.linear_out = adapter._modules.values()
    adapter.dim, adapter.alpha, adapter.activation = 2, 8, type("Identity", (), {})()
    for name, value in attributes.items():
        setattr(adapter, name, value)
    return Module({}, {"to_wrap": Module({"weight": Tensor(numbers(inputs * outputs, 500).reshape(outputs, inputs))}), "adapter": adapter})


def lora_chunk(mlp):
    layer = Module({}, {"mlp": Module({}, mlp)})
    layer.layer_number = 1
    decoder = Module({}, {"layers": Module({}, {"0": layer})})
    decoder.layers = [layer]
    model = Module({}, {"decoder": decoder})
    model.decoder, model.config = decoder, types.SimpleNamespace(num_layers=1)
    return model


@pytest.fixture
def one_group(monkeypatch):
    """Megatron's parallel_state, of groups of one rank."""
    state = types.ModuleType("megatron.core.parallel_state")
    for group in ("tensor_model", "expert_model", "expert_tensor"):
        setattr(state, f"get_{group}_parallel_rank", lambda: 0)
        setattr(state, f"get_{group}_parallel_world_size", lambda: 1)
    state.model_parallel_is_initialized = lambda: True
    core = types.ModuleType("megatron.core")
    core.parallel_state = state
    for name, module in (("megatron", types.ModuleType("megatron")), ("megatron.core", core), ("megatron.core.parallel_state", state)):
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def qwen3(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "num_attention_heads": 2, "head_dim": 2, "hidden_size": 3, "vocab_size": 9,
                                                      "intermediate_size": 4}))
    return str(tmp_path)


def test_megatron_without_groups(agent, one_group, qwen3):
    """before Megatron's parallel groups are there an offload is refused"""
    sys.modules["megatron.core.parallel_state"].model_parallel_is_initialized = lambda: False
    source = wsync.megatron(Module({"decoder.final_layernorm.weight": Tensor(numbers(3, 0))}))
    with publisher(agent, source, hf_config=qwen3) as pub, pytest.raises(RuntimeError, match="initialize_model_parallel first"):
        pub.offload(1)


def test_megatron_missing_chunks(agent, one_group, qwen3):
    """fewer model chunks than the rank has virtual pipeline stages are refused: nobody would write the others' layers"""
    norm = lambda: Module({"decoder.final_layernorm.weight": Tensor(numbers(3, 0))})
    chunks = [norm(), Module({})]
    for chunk in chunks:
        chunk.config = types.SimpleNamespace(num_layers=1)
    sys.modules["megatron.core.parallel_state"].get_virtual_pipeline_model_parallel_world_size = lambda: 2
    with publisher(agent, wsync.megatron(chunks[0]), hf_config=qwen3) as pub, pytest.raises(ValueError, match="2 virtual pipeline stages, and .* given 1"):
        pub.offload(1)
    with publisher(agent, wsync.megatron(chunks), hf_config=qwen3) as pub:
        assert published(pub, 1) == {"model.norm.weight": [0, 1, 2]}


def test_megatron_adapter(agent, one_group, qwen3):
    """the adapter of Megatron's layers alone, in PEFT's names, with a config made of what the layers have"""
    world.need_fuse()
    mount = world.Mount(agent.url)
    model = lora_chunk({"linear_fc1": lora_of(8, 3, 0), "linear_fc2": lora_of(3, 4, 200)})
    with publisher(agent, wsync.peft([model], base_name="org/base"), hf_config=qwen3) as pub:
        got = published(pub, 1)
    at, (fc1, fc2) = "base_model.model.model.layers.0.mlp.", (m._modules["adapter"] for m in model.decoder.layers[0]._modules["mlp"]._modules.values())
    matrix = lambda adapter, half: getattr(adapter, half)._parameters["weight"].array
    assert got == {at + "gate_proj.lora_A.weight": matrix(fc1, "linear_in").tolist(), at + "up_proj.lora_A.weight": matrix(fc1, "linear_in").tolist(),
                   at + "gate_proj.lora_B.weight": matrix(fc1, "linear_out")[:4].tolist(), at + "up_proj.lora_B.weight": matrix(fc1, "linear_out")[4:].tolist(),
                   at + "down_proj.lora_A.weight": matrix(fc2, "linear_in").tolist(), at + "down_proj.lora_B.weight": matrix(fc2, "linear_out").tolist()}
    mount.wait_version("actor", 1)
    assert sorted(set(os.listdir(mount.file("actor", 1))) - {"tensors", ".wsync"}) == ["adapter_config.json", "adapter_model.safetensors"]
    config = json.loads(mount.read("actor", 1, "adapter_config.json"))
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 8, ["down_proj", "gate_proj", "up_proj"]), config
    assert config["base_model_name_or_path"] == "org/base"
    for mlp, kind, words in (({}, TypeError, "no adapter"), ({"linear_fc2": lora_of(3, 4, 0, activation=1)}, NotImplementedError, "activation"),
                             ({"router": lora_of(3, 4, 0)}, NotImplementedError, "router.adapter is an adapter of a layer that is not known"),
                             ({"linear_fc1": lora_of(8, 3, 0), "linear_fc2": lora_of(3, 4, 0, dim=4)}, NotImplementedError, "differ in rank")):
        with pytest.raises(kind, match=words):
            wsync.peft(lora_chunk(mlp))
    with pytest.raises(ValueError, match="leave out adapter="):
        wsync.peft([model], "second")


def test_addresses_of_arrays(tmp_path):
    "an array's address is where its memory is now, in whatever order its elements lie, and whatever was in that object before"
    whole = numpy.arange(60, dtype=numpy.float32).reshape(6, 10)
    fixed = numpy.zeros(5, numpy.int8)
    fixed.flags.writeable = False
    arrays = {"c": whole, "fortran": numpy.asfortranarray(whole), "columns": whole[:, 2:4], "back": whole[::-1], "one": whole[3:4, 2:3], "scalar": numpy.array(7.0),
              "none": numpy.zeros((0, 3), numpy.float16), "fixed": fixed, "file": numpy.memmap(tmp_path / "file", numpy.uint8, "w+", shape=(100,))[7:],
              "wide": numpy.broadcast_to(numpy.float32(1), (3, 3)), "moves": numpy.ones(3, numpy.float64)}
    source = wsync.tensors(arrays)
    for _ in range(2):
        held = source.held()
        assert held.addresses == [a.__array_interface__["data"][0] for a in arrays.values()]
        assert [m[2] for m in held.meta] == [a.shape for a in arrays.values()]
        del held
        arrays["moves"].resize(1 << 20, refcheck=False)  # the same object, elsewhere
