"""wsync.vllm without vLLM: which versions are loaded, the answers, and failed loads. tests/real tests it on real servers."""
import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import threading
import types

import pytest
import world
import wsync
from wsync.read._layout import MAX_NAMED, Difference, LayoutError
from wsync.vllm import Extension, _cpu_reload, _loader, register
from wsync.vllm._path import version_path
from wsync.vllm._ranks import Ranks

TENSORS = {"a.weight": ("F32", [2, 3]), "b.weight": ("BF16", [4])}


class Config(types.SimpleNamespace):
    """The parts of vLLM's configuration that the loader reads."""

    def __init__(self, model, world_size=1, rank=0, backend="uni"):
        super().__init__(model_config=types.SimpleNamespace(model=model, model_weights="", revision=None, quantization=None),
                         parallel_config=types.SimpleNamespace(world_size=world_size, rank=rank, distributed_executor_backend=backend),
                         load_config=types.SimpleNamespace(download_dir=None), lora_config=None)


class Model:
    """Records the paths that were loaded."""

    def __init__(self):
        self.loads = []

    @staticmethod
    def parameters():
        return iter(())

    @staticmethod
    def modules():
        return iter(())


class Loader(_loader.Loader):
    """Replaces vLLM's loading: records the path, and fails for paths in ``bad``."""

    bad = ()

    def _fill(self, weights):
        self._model.loads.append(weights.path)
        if weights.path in self.bad:
            raise ValueError("no such parameter")


@pytest.fixture
def begun(monkeypatch):
    """value: whether vLLM's load is begun and not finished; undone: the models whose tensors were given back; lost: what its
    reload loses."""
    state = types.SimpleNamespace(value=False, undone=[], lost=[])
    monkeypatch.setattr(_loader, "load_in_progress", lambda _: state.value)
    monkeypatch.setattr(_loader, "restore_kernel_tensors", state.undone.append)
    monkeypatch.setattr(_loader, "lost_parameters", lambda model, layout: state.lost)
    return state


@pytest.fixture
def loader(begun):
    start = world.checkpoint(TENSORS, seed=1)
    return Loader(Model(), Config(start)), start


def test_layout():
    """names, dtypes and shapes are compared over all files, in the order of names"""
    one = wsync.open(world.checkpoint({**TENSORS, "c": ("U8", [1])}), "numpy")
    two = wsync.open(world.checkpoint({"b.weight": ("BF16", [2, 2]), "a.weight": ("BF16", [2, 3]), "x": ("U8", [1])},
                                      files={"model-1.safetensors": ["x", "b.weight"], "model-2.safetensors": ["a.weight"]}), "numpy")
    assert one.layout() == {"a.weight": ("F32", (2, 3)), "b.weight": ("BF16", (4,)), "c": ("U8", (1,))}
    difference = Difference.between(two.layout(), one.layout())
    assert str(difference) == ("missing c; extra x; differs a.weight: BF16 [2,3], was F32 [2,3]; "
                               "differs b.weight: BF16 [2,2], was BF16 [4]")
    assert difference.as_json() == {"missing": ["c"], "extra": ["x"], "differing": {
        "a.weight": "BF16 [2,3], was F32 [2,3]", "b.weight": "BF16 [2,2], was BF16 [4]"}}
    assert difference and not Difference.between(one.layout(), one.layout())


def test_long_difference():
    """a long list is cut with a count in the message; the exception has the complete list"""
    difference = Difference.between({}, {f"t{i:04}": ("U8", (1,)) for i in range(MAX_NAMED + 5)})
    text = str(LayoutError("/new", "/old", difference))
    assert text.startswith("/new has not the tensors of /old: missing t0000; ") and text.endswith("; and 5 more")
    assert len(LayoutError("/new", "/old", difference).difference.missing) == MAX_NAMED + 5


def test_load(loader):
    """the next version is compared with the loaded one; vLLM's reload without a path reloads that one"""
    loader, start = loader
    two = world.checkpoint(TENSORS, seed=2)
    assert loader.serving()["path"] == start and loader.serving()["tensors"] == 2
    link = world.unique("current")
    os.symlink(two, link)
    assert loader.load(link) == {"path": two, "model": None, "version": None, "run": None, "digest": None, "tensors": 2, "rank": 0, "broken": None,
                                 "strategy": "disk", "fallback": None}
    assert loader._config.model_config.model == two and loader._model.loads == [two]


def test_refused(loader):
    """a version with a missing or extra tensor, another shape or dtype, or without files is not loaded, and the error lists why"""
    loader, start = loader
    for change, why in (({"b.weight": None}, "missing b.weight"), ({"c": ("U8", [1])}, "extra c"),
                        ({"a.weight": ("F32", [3, 2])}, r"differs a.weight: F32 \[3,2\], was F32 \[2,3\]"),
                        ({"a.weight": ("F16", [2, 3])}, r"differs a.weight: F16 \[2,3\], was F32 \[2,3\]")):
        path = world.checkpoint({k: v for k, v in {**TENSORS, **change}.items() if v})
        with pytest.raises(_loader.Refused, match=f"{path} was not loaded and nothing has changed: LayoutError: .*{start}: {why}$"):
            loader.load(path)
        assert loader.check(path)["ok"] is False and loader.check(path)["error"] is None
    with pytest.raises(_loader.Refused, match="nothing has changed: FileNotFoundError"):
        loader.load("/nowhere/42")
    assert "No such file" in loader.check("/nowhere/42")["error"]
    path = world.checkpoint(TENSORS)
    os.truncate(path + "/model.safetensors", 100)
    with pytest.raises(_loader.Refused, match="nothing has changed: FormatError"):
        loader.load(path)
    assert loader._model.loads == [] and loader.serving()["path"] == start
    assert loader.check(start) == {"ok": True, "error": None, "missing": [], "extra": [], "differing": {}}


def test_forced(loader):
    """force_layout loads another layout, which later versions are compared with; only then partly filled layers are checked"""
    loader, start = loader
    path = world.checkpoint({"a.weight": ("F32", [3, 2])})
    assert loader.load(path, force_layout=True)["path"] == path and loader._check_partial
    with pytest.raises(_loader.Refused, match="extra b.weight"):
        loader.load(start)
    loader.load(start, force_layout=True)
    assert not loader._check_partial and loader.load(world.checkpoint(TENSORS)) and not loader._check_partial


def test_lost(loader, begun):
    """what vLLM's reload would leave of the version before is refused before anything changes"""
    found, start = loader
    begun.lost = ["experts.w13_weight"]
    with pytest.raises(_loader.Refused, match=r"nothing has changed: .*loses 1 of .*experts.w13_weight"):
        found.load(world.checkpoint(TENSORS, seed=2))
    assert found._model.loads == [] and found.serving()["path"] == start and found.serving()["broken"] is None


def test_undone(loader):
    """after a load that fails midway the previous version is loaded again, and a good version can be loaded next"""
    loader, start = loader
    bad, good = world.checkpoint(TENSORS), world.checkpoint(TENSORS)
    loader.bad = (bad,)
    with pytest.raises(_loader.Refused, match=f"{bad} was not loaded: ValueError: no such parameter. {start} was loaded again and is served"):
        loader.load(bad)
    assert loader._model.loads == [bad, start] and loader.serving()["path"] == start and not loader.serving()["broken"]
    loader.bad = (bad, start)
    with pytest.raises(_loader.Refused, match="no version: ValueError: no such parameter: load a complete version"):
        loader.load(bad)
    assert "no such parameter" in loader.serving()["broken"]
    assert loader.load(good)["broken"] is None


def test_previous_version_is_gone(loader):
    """if the previous version's files are gone or have changed, no reply claims that it was loaded again"""
    loader, start = loader
    bad = world.checkpoint(TENSORS)
    loader.bad = (bad,)
    world.checkpoint({"other": ("U8", [1])}, folder=start)
    with pytest.raises(_loader.Refused, match=f"no version: {start} is another one now: missing a.weight"):
        loader.load(bad)
    os.unlink(start + "/model.safetensors")
    with pytest.raises(_loader.Refused, match=f"no version: {start} cannot be loaded again: FormatError"):
        loader.load(bad)
    assert loader._model.loads == [bad, bad]


def test_unknown_start(begun):
    """after a start with dummy weights there is no layout to compare: the first load checks layers, and cannot be undone"""
    empty = world.unique("empty")
    os.makedirs(empty)
    loader = Loader(Model(), Config(empty))
    assert loader.serving()["tensors"] is None and loader.serving()["path"] == empty
    bad = world.checkpoint(TENSORS)
    loader.bad = (bad,)
    with pytest.raises(_loader.Refused, match="it is not known which version that was before: load a complete version"):
        loader.load(bad)
    assert begun.undone == [loader._model]
    assert loader._check_partial and loader.load(world.checkpoint(TENSORS, seed=2))["tensors"] == 2


def test_hub(begun, monkeypatch):
    """after a start by a hub's name a version is compared with the files in the hub's cache"""
    folder = world.checkpoint(TENSORS)
    asked = []
    hub = types.SimpleNamespace(snapshot_download=lambda name, **kw: asked.append((name, kw["local_files_only"])) or folder)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    loader = Loader(Model(), Config("org/model"))
    assert loader.serving()["path"] == folder and asked == [("org/model", True)]


def test_reloaded_by_vllm(loader, begun):
    """vLLM's own reload of another path is noticed; a failed one does not count as served"""
    loader, start = loader
    other = world.checkpoint({"other": ("U8", [1])})
    loader._config.model_config.model = other
    begun.value = True
    assert loader.serving()["path"] == start
    begun.value = False
    assert loader.serving()["path"] == other and loader.check(start)["missing"] == ["other"]


def worker_of(path):
    """A worker with the extension added to its class as vLLM does it: after the class is created."""

    class Base:
        def __init__(self, config):
            self.vllm_config = config

    class Worker(Base):
        pass

    Worker.__bases__ += (Extension,)
    worker = Worker(Config(path))
    worker.model_runner = types.SimpleNamespace(get_model=lambda: model)
    model = Model()
    return worker


def test_started_from_a_link(begun):
    """the model path is inspected at the worker's start: it may be a link that points to another version later"""
    one, two = world.checkpoint(TENSORS, seed=1), world.checkpoint({"other": ("U8", [1])})
    link = world.unique("current")
    os.symlink(one, link)
    worker = worker_of(link)
    os.unlink(link)
    os.symlink(two, link)
    assert worker.wsync_serving()["path"] == one and worker.wsync_check(one)["ok"] and worker.wsync_check(two)["extra"] == ["other"]
    nowhere = worker_of("org/model")  # a hub model that is not downloaded yet: the worker starts all the same
    assert nowhere.wsync_start is None


def test_draft(begun):
    """a load does not change a draft model, and the reply says so"""
    worker = worker_of(world.checkpoint(TENSORS))
    assert "draft" not in worker.wsync_serving()
    worker.vllm_config.speculative_config = "ngram"
    assert worker.wsync_serving()["draft"] == "unknown"
    worker.model_runner.drafter = types.SimpleNamespace()
    assert "draft" not in worker.wsync_serving()
    worker.model_runner.drafter.model = Model()
    assert worker.wsync_serving()["draft"] == "unchanged"
    worker.model_runner.get_draft_model = lambda: None
    assert "draft" not in worker.wsync_serving()


class Named(Model):
    """A model whose parameters have names."""

    def __init__(self, **parameters):
        super().__init__()
        self.named = {name.replace("__", "."): p for name, p in parameters.items()}

    def parameters(self):
        return iter(self.named.values())

    def named_parameters(self, remove_duplicate=True):
        return iter(self.named.items())


def test_draft_model(begun):
    """a draft model is loaded by itself: what it shares with the target is neither needed nor written, and the target stays as it was"""
    embedding, own = (types.SimpleNamespace(numel=lambda: 1, device=None) for _ in range(2))
    target_path, draft_path, other = (world.checkpoint({"embed_tokens.weight": ("U8", [2]), "fc.weight": ("U8", [n])}, seed=n) for n in (3, 4, 4))
    target, draft = Named(model__embed_tokens__weight=embedding), Named(model__embed_tokens__weight=embedding, model__fc__weight=own)
    config = Config(target_path)
    of_target = Loader(target, config)
    of_draft = Loader(draft, config, draft=_loader.Draft(types.SimpleNamespace(model=draft_path, model_weights="", revision=None, quantization=None), target))
    draft.named_modules = lambda: iter(())
    assert of_draft._needed() == {"model.fc.weight"}
    with wsync.open(other, "numpy") as weights:
        assert [name for name, _ in of_draft._pairs(weights)] == ["fc.weight"]
        assert [name for name, _ in of_target._pairs(weights)] == ["embed_tokens.weight", "fc.weight"]
    with pytest.raises(_loader.Refused, match="differs fc.weight"):  # the target's files
        of_draft.load(target_path)
    assert of_draft.load(other)["path"] == other and draft.loads == [other] and target.loads == []
    assert of_target.serving()["path"] == config.model_config.model == target_path
    assert of_target.load(target_path) and of_draft.serving()["path"] == other and draft.loads == [other]


@pytest.fixture
def backend_module(monkeypatch):
    """The back end's module, beside a stand-in for vLLM's base classes."""

    class Engine:
        def __init__(self, config, vllm_config, device, model):
            self.model, self.model_config = model, vllm_config.model_config

        def __class_getitem__(cls, _):
            return cls

    base = types.ModuleType("vllm.distributed.weight_transfer.base")
    base.WeightTransferEngine, base.WeightTransferInitInfo, base.WeightTransferUpdateInfo = Engine, object, object
    for name in ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, base.__name__, base)
    monkeypatch.delitem(sys.modules, "wsync.vllm._backend", raising=False)
    found = importlib.import_module("wsync.vllm._backend")
    monkeypatch.delitem(sys.modules, "wsync.vllm._backend")
    monkeypatch.setattr(_loader, "Loader", Loader)
    return found


def test_draft_session(begun, backend_module):
    """the back end loads the model that vLLM has set for the session, with that model's configuration"""
    start, other = world.checkpoint(TENSORS), world.checkpoint({"fc.weight": ("U8", [4])})
    target, draft = Named(), Named()
    backend = backend_module.Backend(None, Config(start), None, target)
    assert backend.supports_draft_weight_update
    own = backend._loader
    backend.model, backend.model_config = draft, types.SimpleNamespace(model=other, model_weights="", revision=None, quantization=None)
    assert backend._loader is not own and backend._loader.serving()["path"] == other
    backend.receive_weights(backend_module.UpdateInfo(weights_path=other, strategy="disk"))
    assert draft.loads == [other] and target.loads == []
    backend.model, backend.model_config = target, None
    assert backend._loader is own


def test_fetch_before_the_pause(begun, backend_module, monkeypatch):
    """fetch_weights, as SkyRL's worker calls it: by path, or by version below sync_dir or the root; nothing is loaded; what is not there is
    an error on the rank that may raise, and others answer; an update waits as long as it is told"""
    start, other = world.checkpoint(TENSORS), world.checkpoint(TENSORS, seed=2)
    model = Named()
    backend = backend_module.Backend(None, Config(start), None, model)
    folder, name = os.path.split(other)
    for kw in ({"uri": other}, {"sync_dir": folder}, {"uri": other, "sync_dir": "/nowhere"}):
        assert backend.fetch_weights(target_version=name, **kw) == {"status": "ok", "target_version": name}
    backend._root = folder
    assert backend.fetch_weights(name)["status"] == "ok" and model.loads == []
    empty = world.unique("empty")
    os.makedirs(empty)
    for kw, says in (({"uri": empty}, "no safetensors files"), ({"uri": "relative"}, "no absolute path"), ({"sync_dir": folder, "uri": None}, "target_version=''"), ({"sync_dir": 5}, "cannot be fetched")):
        with pytest.raises(RuntimeError, match=says):
            backend.fetch_weights(target_version="" if "uri" in kw and kw["uri"] is None else 1, **kw)
    monkeypatch.setattr(type(backend._loader.ranks), "may_raise", property(lambda _: False))
    assert backend.fetch_weights(1, uri=empty) == {"status": "error", "target_version": 1}
    late = world.unique("late")
    shutil.copytree(other, late + ".part")
    timer = threading.Timer(0.3, os.rename, (late + ".part", late))
    timer.start()
    backend.receive_weights(backend_module.UpdateInfo(weights_path=late, wait=60, strategy="disk"))
    timer.join()
    assert model.loads == [late]
    for wait in ("5", None, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="wait="):
            backend_module.UpdateInfo(weights_path=other, wait=wait)


def stand_ins(monkeypatch, path):
    """An empty module at the path, and those above it, which stay where they are there."""
    names = path.split(".")
    for i in range(1, len(names) + 1):
        if i == len(names) or ".".join(names[:i]) not in sys.modules:
            monkeypatch.setitem(sys.modules, ".".join(names[:i]), types.ModuleType(names[i - 1]))
    return sys.modules[path]


def on(device):
    return types.SimpleNamespace(device_config=types.SimpleNamespace(device_type=device))


def test_int8_scales_are_kept(monkeypatch):
    """a kernel keeps the scales that it was made from, once, and on a CPU only"""
    module = stand_ins(monkeypatch, "vllm.model_executor.kernels.linear.scaled_mm.cpu")

    class Kernel:
        layer_param_names = ("weight", "weight_scale")

        def process_weights_for_onednn(self, layer):
            self.handler = "made"
            layer.weight = None

    module.CPUInt8ScaledMMLinearKernel = Kernel
    make = Kernel.process_weights_for_onednn
    _cpu_reload.mend_reloads(on("cuda"))
    assert Kernel.process_weights_for_onednn is make
    for _ in range(2):
        _cpu_reload.mend_reloads(on("cpu"))
    assert Kernel.process_weights_for_onednn.__wrapped__ is make
    kernel, layer, scale = Kernel(), types.SimpleNamespace(weight=1), object()
    layer.weight_scale = scale
    kernel.process_weights_for_onednn(layer)
    assert kernel.handler == "made" and kernel.wsync_kept == [None, scale]


def test_not_mended(loader, monkeypatch):
    """in a release whose kernels are elsewhere, neither wsync nor vLLM itself reloads what would be wrong from then on"""
    loader, start = loader
    reloads, path = [], world.checkpoint(TENSORS, seed=2)

    class Worker:
        def __init__(self, config):
            self.model_runner, self.vllm_config = types.SimpleNamespace(get_model=lambda: loader._model), config

        def reload_weights(self, weights_path):
            reloads.append(weights_path)

    stand_ins(monkeypatch, "vllm.v1.worker.gpu_worker").Worker = Worker
    monkeypatch.setattr(_cpu_reload, "_unmended", {})
    for name in ("kernels.linear.scaled_mm.cpu", "layers.fused_moe.experts.cpu_moe"):
        stand_ins(monkeypatch, f"vllm.model_executor.{name}")
    for _ in range(2):
        _cpu_reload.mend_reloads(on("cpu"))
    config = loader._config
    Worker(config).reload_weights("/a")
    loader.load(path)
    assert reloads == ["/a"] and loader._model.loads == [path]
    experts = types.SimpleNamespace(quantization=None), [type("FusedMoE", (), {})()]
    for what, (model_config, modules) in {"quantised weights": (types.SimpleNamespace(quantization="w8a8"), []), "experts": experts}.items():
        monkeypatch.setattr(Model, "modules", lambda _, modules=modules: iter(modules))
        monkeypatch.setattr(config.model_config, "quantization", model_config.quantization)
        with pytest.raises(RuntimeError, match=f"a model with {what} answers wrong .* start the server anew"):
            Worker(config).reload_weights("/b")
        with pytest.raises(_loader.Refused, match=f"nothing has changed: RuntimeError: a model with {what}"):
            loader.load(start)
    assert reloads == ["/a"] and loader._model.loads == [path] and loader.serving()["path"] == path


@pytest.mark.parametrize("packs_itself", [False, True])
def test_experts_are_packed(monkeypatch, packs_itself):
    """a start and a reload pack a layer's experts once, also in a release whose reload does so itself, and on a CPU only"""
    packed = []

    class Experts:
        def process_weights_after_loading(self, layer):
            packed.append(layer)

    class Method:
        moe_kernel = None

        def _setup_kernel(self, layer, w13, w2):
            if self.moe_kernel is None or packs_itself:
                self.moe_kernel = self.moe_kernel or types.SimpleNamespace(fused_experts=Experts())
                self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    stand_ins(monkeypatch, "vllm.model_executor.layers.fused_moe.experts.cpu_moe").CPUUnquantizedExperts = Experts
    stand_ins(monkeypatch, "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method").UnquantizedFusedMoEMethod = Method
    set_up = Method._setup_kernel
    _cpu_reload.mend_reloads(on("cuda"))
    assert Method._setup_kernel is set_up
    for _ in range(2):
        _cpu_reload.mend_reloads(on("cpu"))
    method = Method()
    for load in range(1, 4):
        method._setup_kernel(layer="layer", w13=None, w2=None)
        assert packed == ["layer"] * load


def test_latents_are_kept(loader, monkeypatch):
    """what latent attention is packed from stays, where vLLM would replace it by an empty tensor; a model that started without is not reloaded"""
    loader, _ = loader
    full, empty = (types.SimpleNamespace(numel=lambda n=n: n) for n in (512, 0))

    class Attention:
        is_amx_bmm_enabled = True

        def __init__(self):
            self.kv_b_proj, self.packed = types.SimpleNamespace(weight=full), []

        def process_weights_after_loading(self, dtype):
            self.packed.append((self.kv_b_proj.weight, dtype))
            self.kv_b_proj.weight = empty

    monkeypatch.setattr(_cpu_reload, "_unmended", {})
    stand_ins(monkeypatch, "vllm.model_executor.layers.attention.mla_attention").MLAAttention = Attention
    before, pack = Attention(), Attention.process_weights_after_loading
    before.process_weights_after_loading("bf16")
    _cpu_reload.mend_reloads(on("cuda"))
    assert Attention.process_weights_after_loading is pack
    for _ in range(2):
        _cpu_reload.mend_reloads(on("cpu"))
    attention = Attention()
    for load in range(1, 4):
        attention.process_weights_after_loading("bf16")
        assert attention.kv_b_proj.weight is full and attention.packed == [(full, "bf16")] * load
    monkeypatch.setattr(_cpu_reload, "_unmended", {})
    monkeypatch.setattr(Model, "modules", lambda _: iter([attention]))
    loader.check_reload()
    monkeypatch.setattr(Model, "modules", lambda _: iter([attention, before]))
    with pytest.raises(RuntimeError, match="by an empty one.* start the server anew, with --worker-extension-cls"):
        loader.check_reload()


def test_undone_when_the_mount_dies(loader, monkeypatch):
    """if the mount fails during a load, the previous version is loaded without reading from it, and the other ranks learn of the error"""
    loader, start = loader
    bad = world.checkpoint(TENSORS)
    loader.bad = (bad,)
    manifest = wsync.Weights._manifest

    def dying(weights):
        if loader._model.loads:
            raise OSError(107, "Transport endpoint is not connected")
        return manifest(weights)

    monkeypatch.setattr(wsync.Weights, "_manifest", dying)
    with pytest.raises(_loader.Refused, match=f"{bad} was not loaded: ValueError: no such parameter. {start} was loaded again and is served"):
        loader.load(bad)


def test_ranks(monkeypatch):
    """an error on one rank is refused by all with the rank's number; only the last rank raises if workers are vLLM's own processes"""
    from wsync.vllm import _ranks

    ranks = Ranks(Config("", world_size=2, rank=0, backend="mp").parallel_config)
    monkeypatch.setattr(Ranks, "_groups", lambda self: ["tp"])
    monkeypatch.setattr(_ranks, "_all_gather", lambda _, errors: {**errors, 1: "it is not here"})
    assert ranks.agree(None) == "rank 1: it is not here" and ranks.agree("it is not here") == "it is not here"
    monkeypatch.setattr(_ranks, "_all_gather", lambda _, errors: {**errors, 1: None})
    assert ranks.agree(None) is None and ranks.agree("gone") == "rank 0: gone"
    may_raise = [Ranks(Config("", world_size=4, rank=rank, backend=backend).parallel_config).may_raise for backend in ("mp", "ray") for rank in range(4)]
    assert may_raise == [False, False, False, True] + [True] * 4
    assert Ranks(Config("").parallel_config).may_raise


def test_other_rank(loader, monkeypatch):
    """a version that another rank cannot load is undone on this rank too"""
    loader, start = loader
    two = world.checkpoint(TENSORS, seed=2)
    answers = iter([None, "rank 1: ValueError: cut off", None])
    monkeypatch.setattr(loader.ranks, "agree", lambda error: next(answers))
    with pytest.raises(_loader.Refused, match=f"{two} was not loaded: rank 1: ValueError: cut off. {start} was loaded again"):
        loader.load(two)
    assert loader._model.loads == [two, start] and loader.serving()["path"] == start


def test_needed():
    """every parameter is needed except those that vLLM's own check allows a checkpoint to lack"""

    class BaseKVCacheMethod:
        pass

    def parameter(n):
        return types.SimpleNamespace(numel=lambda: n)

    class Module:
        def __init__(self, own=None, method=None, **children):
            self.own, self.children = {k: parameter(n) for k, n in (own or {}).items()}, children
            if method:
                self.quant_method = method

        def named_modules(self, prefix=""):
            yield prefix, self
            for name, child in self.children.items():
                yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

        def named_parameters(self):
            for name, module in self.named_modules():
                for p, value in module.own.items():
                    yield (f"{name}.{p}" if name else p), value

    model = Module({"scale": 1}, linear=Module({"weight": 4, "qzeros": 0, "input_scale_ub": 1}, types.SimpleNamespace(uses_meta_device=False)),
                   online=Module({"weight": 4}, types.SimpleNamespace(uses_meta_device=True)), attn=Module({"k_scale": 1}, BaseKVCacheMethod()),
                   lora=Module(base_layer=Module({"weight": 2})))
    assert _loader.needed_parameters(model) == {"scale", "linear.weight", "lora.base_layer.weight"}
    assert _loader.needed_parameters(model, has_lora=True) == {"scale", "linear.weight", "lora.weight"}


def test_path():
    """an update names a path, or a version below the root; a version cannot lead out of it"""
    assert version_path(None, "/wsync/actor/42", None) == "/wsync/actor/42"
    assert [version_path("/wsync/actor", None, v) for v in (42, "42@r1", "current")] == [f"/wsync/actor/{v}" for v in ("42", "42@r1", "current")]
    for wrong in ((None, None, 42), ("/r", "/p", 42), ("/r", None, None), ("/r", "p", None), ("/r", 7, None), ("/r", None, ".."), ("/r", None, ""),
                  ("/r", None, "../x"), ("/r", None, True), ("/r", None, 4.2)):
        with pytest.raises(ValueError):
            version_path(*wrong)


def test_register(monkeypatch):
    """register may be called twice; an old vLLM, or none, is no error"""
    calls = []

    class Factory:
        @staticmethod
        def register_engine(name, module, of):
            if calls:
                raise ValueError("already registered")
            calls.append((name, module, of))

    for name in ("vllm", "vllm.distributed"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer", types.SimpleNamespace(WeightTransferEngineFactory=Factory))
    register()
    register()
    assert calls == [("wsync", "wsync.vllm._backend", "Backend")]
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer", None)
    register()


def test_entry_point():
    """vLLM finds the plug-in of an installed wheel, and importing it imports neither vLLM nor PyTorch"""
    found = [e for e in importlib.metadata.entry_points(group="vllm.general_plugins") if e.name == "wsync"]
    assert [e.value for e in found] == ["wsync.vllm:register"] and found[0].load() is register
    subprocess.run([sys.executable, "-c", "import sys, wsync.vllm; assert not {'vllm', 'torch', 'numpy'} & set(sys.modules)"], check=True, timeout=60)
    assert [n for n in dir(Extension) if not n.startswith("__")] == ["wsync_check", "wsync_load", "wsync_patch", "wsync_serving"]
