"""The sources for trainers' frameworks, tested with stand-ins of the frameworks' objects: which memory is read, and which must not be.
tests/real has the frameworks themselves."""
import enum
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
    with pytest.raises(NotImplementedError, match="FullyShardedDataParallel"):
        wsync.megatron(FullyShardedDataParallel(chunk(weight)))
    with pytest.raises(NotImplementedError, match="mxfp8"):
        wsync.megatron(DistributedDataParallel(chunk(weight), [], reuse_grad_buf_for_mxfp8_param_ag=True))
    held = wsync.megatron(chunk(weight, {"expert_bias": Tensor(numbers(2, 5))})).held()
    assert [(m[0], m[-1]) for m in held.meta] == [("decoder.layers.0.router.weight", 3), ("decoder.layers.0.router.expert_bias", 3)]
