"""GPU memory, on the stand-in driver (tests/fakes): publishing, sharing, mapping in another process; the loaders' strategies.
Tests that need a real GPU and torch are skipped without them."""
import importlib.metadata
import json
import logging
import os
import subprocess
import sys
import types
from weakref import WeakKeyDictionary

import ml_dtypes
import numpy
import pytest
import world
import wsync
from wsync.read import _gpu, _strategy

FAKE = os.path.join(os.environ.get("BUILD", "build"), "tests", "fakes", "libcuda.so.1")


@pytest.fixture
def driver():
    """Environment of child processes that use the stand-in driver; this process may have opened another driver already."""
    if not os.path.exists(FAKE):
        pytest.skip("built without CUDA's headers, so there is no stand-in driver")
    return {"WSYNC_LIBCUDA": FAKE, "WSYNC_FAKE_CUDA": "devices=2,delay=100,seed=5", "PYTHONPATH": os.pathsep.join(
        [os.path.dirname(os.path.abspath(__file__)), os.path.dirname(os.path.dirname(os.path.abspath(__file__))), *sys.path])}


@pytest.fixture
def agent():
    return world.Agent()


class Process:
    """A Python program in a child process, with line-based input and output."""

    def __init__(self, code, driver, *arguments):
        self.p = subprocess.Popen([sys.executable, "-c", code, *arguments], env={**os.environ, **driver}, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        world.at_end(lambda: (self.p.kill(), self.p.wait(), self.p.stdin.close(), self.p.stdout.close()))

    def says(self, want="ok"):
        line = self.p.stdout.readline().strip()
        assert line == want, (line, self.p.poll())

    def tell(self, line):
        self.p.stdin.write(line + "\n")
        self.p.stdin.flush()


COMMON = """
import os, sys, numpy, ml_dtypes, wsync
from gpu_memory import OnGpu
a = numpy.arange(60, dtype=numpy.float32).reshape(3, 4, 5)
def made(v, device=0):
    b = a + v
    return {"plain": b, "transposed": b.T, "part": b[1:, :, ::2], "bf16": b.astype(ml_dtypes.bfloat16), "scalar": numpy.array(v + 0.5),
            "i64": numpy.arange(v, v + 9), "long": numpy.arange(300000, dtype=numpy.float32) + v, "bool": b > 30}
def same(weights, want):
    assert set(weights) == set(want), (set(weights) ^ set(want))
    for name, w in want.items():
        got = weights[name]
        assert got.dtype == w.dtype and got.shape == w.shape and got.tobytes() == w.tobytes(), name
"""


def test_publishes_gpu_arrays(agent, driver):
    """arrays on two devices and on the host, in every layout, arrive in the slot byte for byte, for several versions"""
    p = Process(COMMON + """
given = {n: OnGpu(x, i % 2) for i, (n, x) in enumerate(made(1).items())}
given["host"] = numpy.ones(7, numpy.float32)
with wsync.Publisher("actor", given, agent=sys.argv[1], start_agent=False) as pub:
    for v in (1, 2, 3):
        given.update({n: OnGpu(x, i % 2) for i, (n, x) in enumerate(made(v).items())})
        pub.offload(v)
        same(pub.weights(framework="numpy"), {**made(v), "host": given["host"]})
        assert pub.gpu_report(), "nothing was said of the GPUs"
print("ok")
""", driver, f"unix:{agent.sock}")
    p.says()
    assert p.p.wait(20) == 0


def test_converts_on_the_gpu(agent, driver):
    """float32 on a GPU becomes bfloat16 in the file, with the same bits as the host's conversion"""
    p = Process(COMMON + """
x = numpy.random.default_rng(1).standard_normal((300, 70)).astype(numpy.float32)
with wsync.Publisher("actor", {"w": OnGpu(x), "t": OnGpu(x.T)}, agent=sys.argv[1], start_agent=False, dtype="bfloat16") as pub:
    pub.offload(1)
    same(pub.weights(framework="numpy"), {"w": x.astype(ml_dtypes.bfloat16), "t": x.T.astype(ml_dtypes.bfloat16)})
print("ok")
""", driver, f"unix:{agent.sock}")
    p.says()


SHARER = COMMON + """
pub = wsync.Publisher("actor", {n: OnGpu(x, i % 2) for i, (n, x) in enumerate(made(1).items())}, agent=sys.argv[1], start_agent=False,
                      share=sys.argv[2], timeout=20)
pub.offload(1)
pub.wait_published(1)
print("ok", flush=True)
for line in sys.stdin:
    try:
        if line.startswith("unshare"):
            pub.unshare(float(line.split()[1]))
        print("ok", flush=True)
    except wsync.Timeout as e:
        print("timeout", flush=True)
"""
READER = COMMON + """
weights = wsync.map_gpu(sys.argv[2] if len(sys.argv) > 2 else "actor", agent=sys.argv[1] or None, device="cpu", framework="numpy")
assert weights.version == 1 and weights.run and weights.model == "actor" and not weights.partial
same(weights, made(1))
assert [m.name for m in weights.metadata()] == list(weights) == sorted(made(1))
assert weights.layout()["bf16"] == ("BF16", (3, 4, 5))
print("ok", flush=True)
for line in sys.stdin:
    same(weights, made(1))
    weights.close()
    weights.close()
    try:
        weights["plain"]
    except ValueError:
        print("ok", flush=True)
"""


@pytest.mark.parametrize("share", ["cuda_ipc", "packed_cuda_ipc"])
def test_shares(agent, driver, share):
    """another process maps the shared version, byte for byte; unshare waits until that process has closed it or ended"""
    sharer = Process(SHARER, driver, f"unix:{agent.sock}", share)
    sharer.says()
    reader = Process(READER, driver, f"unix:{agent.sock}")
    reader.says()
    dying = Process(READER, driver, f"unix:{agent.sock}")
    dying.says()
    sharer.tell("unshare 0.3")
    sharer.says("timeout")
    reader.tell("close")
    reader.says()
    sharer.tell("unshare 0.3")
    sharer.says("timeout")
    dying.p.kill()
    dying.p.wait()
    sharer.tell("unshare 20")
    sharer.says()
    late = Process(COMMON + """
try:
    wsync.map_gpu("actor", agent=sys.argv[1], device="cpu", framework="numpy")
except wsync.Error as e:
    print("ok" if e.errno == 2 else e, flush=True)
""", driver, f"unix:{agent.sock}")
    late.says()


def test_by_path(agent, driver):
    """map_gpu accepts a mounted version's folder; a version that is not shared is ENOENT, with what to do"""
    world.need_fuse()
    mount = world.Mount(f"unix:{agent.sock}")
    sharer = Process(SHARER, driver, f"unix:{agent.sock}", "cuda_ipc")
    sharer.says()
    mount.wait_version("actor", 1)
    with open(mount.file("actor", 1, ".wsync", "cuda_ipc.json")) as f:
        told = json.load(f)
    assert told["model"] == "actor" and told["version"] == 1 and told["strategy"] == "cuda_ipc"
    reader = Process(READER, driver, "", mount.file("actor", 1))
    reader.says()
    agent.publish("other", 1, world.checkpoint(world.SMALL))
    mount.wait_version("other", 1)
    with pytest.raises(wsync.Error, match="is not shared on a GPU") as e:
        wsync.map_gpu(mount.file("other", 1))
    assert e.value.errno == 2


def test_refuses_bad_arguments(agent, tmp_path):
    """refused by name: an unknown share, on_demand without share, a path with a version, a damaged cuda_ipc.json"""
    for options, why in (({"share": "nccl"}, "share='nccl'"), ({"on_demand": True}, "on_demand without share")):
        with pytest.raises(ValueError, match=why):
            wsync.Publisher("actor", {"w": numpy.ones(3)}, agent=f"unix:{agent.sock}", start_agent=False, **options)
    with pytest.raises(ValueError, match="goes with a model's name"):
        wsync.map_gpu(tmp_path, version=3)
    (tmp_path / ".wsync").mkdir()
    for text in ("", "{", "[]", '{"model": 1}', '{"model": "a", "version": "1", "run": "r", "agent": "/x"}'):
        (tmp_path / ".wsync" / "cuda_ipc.json").write_text(text)
        with pytest.raises(wsync.FormatError, match="says nothing of a share"):
            wsync.map_gpu(tmp_path)


class OnOther:
    """A DLPack object on a device that wsync does not support."""

    def __dlpack_device__(self):
        return (10, 0)

    def __dlpack__(self, **_):
        raise AssertionError("its memory was requested")


def test_other_devices(agent):
    """other devices are refused by name; so are CUDA devices if libwsync has no driver"""
    with wsync.Publisher("actor", {"w": OnOther()}, agent=f"unix:{agent.sock}", start_agent=False) as pub:
        with pytest.raises(NotImplementedError, match=r"w is on DLPack's device \(10, 0\)"):
            pub.offload(1)
    code = """
import sys, wsync
class OnGpu:
    def __dlpack_device__(self): return (2, 0)
    def __dlpack__(self, **_): raise AssertionError
try:
    wsync.Publisher("actor", {"w": OnGpu()}, agent=sys.argv[1], start_agent=False).offload(1)
except NotImplementedError as e:
    print(e)
"""
    done = subprocess.run([sys.executable, "-c", code, f"unix:{agent.sock}"], env={**os.environ, "WSYNC_LIBCUDA": "/none", "PYTHONPATH": os.pathsep.join(sys.path)},
                          stdout=subprocess.PIPE, text=True, timeout=30, check=True)
    assert "w is on DLPack's device (2, 0), which libwsync cannot copy from: " in done.stdout, done.stdout


# --- pieces, without a driver ---


class Map:
    """A stand-in for _gpu._Map whose pieces are numpy arrays."""

    def __init__(self, tensors):
        self.pieces = tensors
        self.lib = wsync.lib._library.lib

    def version(self):
        return 7

    def run(self):
        return "r"

    def tensors(self):
        for name, dtype, shape, kind, where, _ in self.pieces:
            ffi = wsync.lib._library.ffi
            t = ffi.new("wsync_gpu_tensor *")
            keep = ffi.new("char[]", name.encode())
            t.name, t.dtype, t.n_dims = keep, getattr(self.lib, f"WSYNC_{dtype}"), len(shape)
            t.shape = shape
            t.piece.kind = getattr(self.lib, f"WSYNC_{kind}")
            if kind == "BOX":
                t.piece.offset, t.piece.size = where
            elif kind == "RANGE":
                t.piece.start, t.piece.count = where
            yield t

    def copy(self, index, address, n_bytes):
        import ctypes

        data = self.pieces[index][5].tobytes()
        assert len(data) == n_bytes, (index, len(data), n_bytes)
        ctypes.memmove(address, data, n_bytes)


def test_pieces():
    """boxes and ranges of several ranks, also empty and scalar tensors, are assembled; a tensor that lacks a part is not in the mapping"""
    whole = numpy.arange(70, dtype=numpy.float32).reshape(7, 10)
    pieces = [("box", "F32", (7, 10), "BOX", ((0, 0), (7, 4)), whole[:, :4]), ("box", "F32", (7, 10), "BOX", ((0, 4), (3, 6)), whole[:3, 4:]),
              ("box", "F32", (7, 10), "BOX", ((3, 4), (4, 6)), whole[3:, 4:]), ("empty", "BF16", (0, 3), "WHOLE", None, whole[:0]),
              ("partial", "F32", (7, 10), "BOX", ((0, 0), (6, 10)), whole[:6]), ("range", "F32", (7, 10), "RANGE", (0, 33), whole.reshape(-1)[:33]),
              ("range", "F32", (7, 10), "RANGE", (33, 37), whole.reshape(-1)[33:]), ("scalar", "F32", (), "WHOLE", None, whole[1, 1]),
              ("f4", "F4", (4,), "BOX", ((0,), (2,)), whole[:1, :1]), ("f4", "F4", (4,), "BOX", ((2,), (2,)), whole[:1, :1])]
    weights = _gpu.GpuWeights(Map(pieces), "/a", "m", "numpy", "cpu")
    assert weights.partial == ["partial"] and list(weights) == ["box", "empty", "range", "scalar", "f4"] and weights.version == 7
    assert (weights["box"] == whole).all() and (weights["range"] == whole).all() and weights["scalar"] == whole[1, 1]
    assert weights["empty"].shape == (0, 3) and weights["empty"].dtype == ml_dtypes.bfloat16
    with pytest.raises(TypeError):
        weights["f4"]
    with pytest.raises(KeyError):
        weights["partial"]
    assert [name for name, _ in zip(weights, range(2))] == ["box", "empty"]
    with pytest.raises(ValueError, match="NumPy's arrays are on 'cpu'"):
        _gpu.GpuWeights(Map(pieces), "/a", "m", "numpy", "cuda:0")


# --- strategies of loaders ---


@pytest.fixture
def shared(monkeypatch):
    """A version's folder, and a stand-in for what map_gpu returns for it."""
    path = world.checkpoint({"a": ("F32", [2]), "b": ("F32", [3])})
    os.makedirs(os.path.join(path, ".wsync"))
    with open(os.path.join(path, ".wsync", "cuda_ipc.json"), "w") as f:
        f.write("{}")
    found = types.SimpleNamespace(path=path, names=["a", "b"], partial=[], closed=0, error=None)

    class Gpu(dict):
        partial = property(lambda _: found.partial)

        def close(self):
            found.closed += 1

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.close()

    def map_gpu(at, **_):
        assert at == path
        if found.error:
            raise found.error
        return Gpu.fromkeys(found.names)

    monkeypatch.setattr(_strategy, "map_gpu", map_gpu)
    monkeypatch.setattr(_strategy, "open_weights", lambda at, framework: wsync.open(at, "numpy"))
    return found


def test_strategies(shared):
    """strategies are tried in order, with the reason why the earlier one failed; "auto" reports none for a version that is not shared"""
    log = logging.getLogger("test")

    def opened(strategy, path=shared.path, wanted=("a", "b")):
        o = _strategy.open_version(path, strategy, None, wanted, log)
        return o.strategy, o.fallback

    for strategy in (None, "auto", "cuda_ipc", "cuda_ipc,disk"):
        assert opened(strategy) == ("cuda_ipc", None)
    assert opened("disk") == ("disk", None) and opened("disk,cuda_ipc") == ("disk", None)
    plain = world.checkpoint({"a": ("F32", [2])})
    assert opened("auto", plain) == ("disk", None)
    shared.error = wsync.Error(18, "another namespace")
    for strategy in ("auto", "cuda_ipc, disk"):
        how, why = opened(strategy)
        assert how == "disk" and "another namespace" in why
    with pytest.raises(wsync.Error):
        opened("cuda_ipc")
    shared.error = None
    shared.names = ["a"]
    how, why = opened("auto")
    assert how == "disk" and "missing b" in why and shared.closed == 1
    assert opened("auto", wanted=None) == ("cuda_ipc", None)
    shared.names, shared.partial = ["a", "b"], ["c"]
    assert opened("auto")[0] == "disk" and shared.closed == 2
    for strategy in ("", "nccl", "disk,nccl", 3, ["disk"]):
        with pytest.raises(ValueError, match="strategy="):
            _strategy.parse(strategy)


def test_sglang_embeddings(monkeypatch):
    """a flush and a load clear SGLang's cache of image embeddings, and its internal state reports it; a refused flush does not"""
    from wsync import sglang

    cleared = []
    cache = types.SimpleNamespace(clear=lambda: cleared.append(1))
    monkeypatch.setitem(sys.modules, sglang.EMBEDDINGS[0], types.SimpleNamespace(embedding_cache=cache))
    monkeypatch.setitem(sys.modules, sglang.EMBEDDINGS[1], types.SimpleNamespace())
    sglang.after_flush(False, None)
    assert not cleared
    sglang.after_flush(True, None)
    assert cleared == [1]
    source = types.SimpleNamespace(model_or_path="/nowhere", prefix="", model_config=None)
    assert list(sglang.weights_iterator(lambda *_: iter((("a", 1),)), None, source)) == [("a", 1)] and cleared == [1, 1]
    said = types.SimpleNamespace(internal_state={"version": "0"})
    assert sglang.add_internal_state(said, None) is None and "released" not in said.internal_state["wsync"]
    for tags in (set(), {"weights", "kv_cache"}):  # as newer and as older releases keep them
        for scheduler in (types.SimpleNamespace(weight_updater=types.SimpleNamespace(offload_tags=tags)), types.SimpleNamespace(offload_tags=tags)):
            sglang.add_internal_state(said, scheduler)
            assert said.internal_state["wsync"].pop("released") == sorted(tags)
    assert said.internal_state["wsync"] == {"forgets_embeddings": True, "freezes_draft": False, "loads_draft": False, "patches": False,
                                            "process": sglang.PROCESS}


def test_sglang_draft(monkeypatch):
    """a load from disk leaves a draft model alone that was started on another checkpoint than the target; one in the target's gets it"""
    from wsync import sglang

    class Config:
        def __init__(self, is_draft_model):
            self.is_draft_model = is_draft_model

    monkeypatch.setattr(sglang, "_start_paths", WeakKeyDictionary())
    target, frozen, inside, unseen, loads = Config(False), Config(True), Config(True), Config(True), []

    def start(config, path):
        list(sglang.weights_iterator(lambda *_: iter(()), None, types.SimpleNamespace(model_or_path=path, prefix="", model_config=config)))

    def update(config, path):
        start(config, path)  # SGLang asks for the new files by the same iterator
        return sglang.update_from_disk(lambda *given: loads.append(given) or (True, "loaded"), types.SimpleNamespace(model_config=config), path, "auto")

    assert sglang.update_from_disk(lambda *_: 1 / 0, types.SimpleNamespace(model_config=frozen), "/target/2", "auto")[0] is False
    for config, path in ((target, "/target/1"), (frozen, "/draft/1"), (inside, "/target/1")):
        start(config, path)
    assert update(target, "/target/2") == (True, "loaded") and len(loads) == 1
    done, said = update(frozen, "/target/2")
    assert done and "left as it is" in said and len(loads) == 1
    assert update(inside, "/target/2") == (True, "loaded") and len(loads) == 2
    assert sglang.update_from_disk(lambda *_: 1 / 0, types.SimpleNamespace(model_config=unseen), "/target/2", "auto")[0] is False
    said = types.SimpleNamespace(internal_state={})
    for member, loads in ((sglang.UPDATE, False), (sglang.LOAD, False), (sglang.MANIFEST, True)):
        module, cls, name = member.rsplit(".", 2)
        monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(**{cls: types.SimpleNamespace(**{name: print})}))
        sglang.add_internal_state(said)
        assert said.internal_state["wsync"] == {"forgets_embeddings": True, "freezes_draft": True, "loads_draft": loads, "patches": False,
                                                "process": sglang.PROCESS}


class Named:
    """A model of parameters by name, for what tells shared ones."""

    def __init__(self, **parameters):
        self.by_name = parameters

    def parameters(self):
        return iter(self.by_name.values())

    def named_parameters(self, remove_duplicate):
        assert not remove_duplicate
        return iter((name.replace("_weight", ".weight"), p) for name, p in self.by_name.items())


def test_sglang_draft_alone(monkeypatch):
    """a request that names a draft's files loads the draft model alone, without what it shares with the target; a version that lacks tensors is refused"""
    from wsync import sglang

    class Config:
        def __init__(self, is_draft_model):
            self.is_draft_model = is_draft_model

    class Said:
        def __init__(self, success, message, num_paused_requests=0):
            self.success, self.message = success, message

    monkeypatch.setattr(sglang, "_start_paths", WeakKeyDictionary())
    monkeypatch.setattr(sglang, "_loaded_names", WeakKeyDictionary())
    names = {"fc.weight": ("U8", [4]), "lm_head.weight": ("U8", [4])}
    first, second, lacks = world.checkpoint(names), world.checkpoint(names), world.checkpoint({"lm_head.weight": ("U8", [4])})
    head, loads = object(), []
    target, draft = Named(lm_head_weight=head), Named(fc_weight=object(), lm_head_weight=head)
    updaters = [types.SimpleNamespace(model_config=Config(is_draft), get_model=lambda model=model: model) for is_draft, model in ((False, target), (True, draft))]

    def load_one(updater, path, load_format, weight_name_filter=lambda name: True):
        loads.append((updater, path, [n for n in names if weight_name_filter(n)]))
        return True, "loaded"

    def load_all(manager, request):
        for updater in manager:
            done, said = sglang.update_from_disk(load_one, updater, request.model_path, "auto")
            if not done:
                return Said(False, said)
        return Said(True, "")

    def ask(manager, path, **manifest):
        loads.clear()
        return sglang.load_from_disk(load_all, manager, types.SimpleNamespace(model_path=path, manifest=manifest or None))

    for updater, path in zip(updaters, ("/target/1", first)):
        source = types.SimpleNamespace(model_or_path=path, prefix="", model_config=updater.model_config)
        list(sglang.weights_iterator(lambda *_: iter((n, None) for n in names), None, source))
    assert ask(updaters, "/target/2").success and loads == [(updaters[0], "/target/2", list(names))]
    assert ask(updaters, "/target/2", wsync_draft=second).success and loads == [(updaters[1], second, ["fc.weight"])]
    said = ask(updaters, "/target/2", wsync_draft=lacks)
    assert not said.success and "lacks 1 of its tensors: fc.weight" in said.message and loads == []
    said = ask(updaters, "/target/2", wsync_draft="/nowhere")
    assert not said.success and "has not changed" in said.message and loads == []
    said = ask(updaters[:1], "/target/2", wsync_draft=second)
    assert not said.success and said.message == "There is no draft model." and loads == []
    assert ask(updaters, "/target/3").success and loads == [(updaters[0], "/target/3", list(names))]


def test_sglang(shared, monkeypatch):
    """SGLang's iterator reads from the GPUs if the version is shared with all names of the previous load, else from the files"""
    from wsync import sglang

    class Config:
        """A stand-in for SGLang's model configuration: each model has its own."""

    config, draft = Config(), Config()
    own_files = types.SimpleNamespace(names=frozenset("ab"))
    monkeypatch.setattr(sglang, "_required_names", lambda source: sglang._names_by_prefix(source).get(source.prefix, own_files.names))
    source = types.SimpleNamespace(model_or_path=shared.path, prefix="m.", model_config=config)

    def own(loader, given, **_):
        yield from (("m.a", 1), ("m.b", 2))

    def names():
        return [(n, t) for n, t in sglang.weights_iterator(own, None, source)]

    assert names() == [("m.a", None), ("m.b", None)]
    shared.names = ["a"]
    assert names() == [("m.a", 1), ("m.b", 2)]
    shared.names = ["a", "b"]
    monkeypatch.setenv("WSYNC_STRATEGY", "disk")
    assert names() == [("m.a", 1), ("m.b", 2)]
    monkeypatch.setenv("WSYNC_STRATEGY", "cuda_ipc")
    shared.error = wsync.Error(2, "gone")
    with pytest.raises(wsync.Error):
        names()
    assert sglang._loaded_names[config] == {"m.": frozenset("ab")}
    shared.error, shared.names = None, ["a", "c"]  # a draft model with other names and the same prefix
    own_files.names = frozenset("ac")
    source.model_config = draft
    assert names() == [("m.a", None), ("m.c", None)]
    assert sglang._loaded_names[draft] == {"m.": frozenset("ac")} and sglang._loaded_names[config] == {"m.": frozenset("ab")}
    source.model_config = None  # nothing is recorded for a source without a configuration
    assert names() == [("m.a", None), ("m.c", None)] and len(sglang._loaded_names) == 2
    done = subprocess.run([sys.executable, "-c", "import sys, wsync.sglang; print('sglang' in sys.modules, 'torch' in sys.modules)"],
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout == "False False\n"


def test_entry_point():
    """SGLang finds the plug-in of an installed wheel"""
    from wsync.sglang import register

    found = [e for e in importlib.metadata.entry_points(group="sglang.srt.plugins") if e.name == "wsync"]
    assert [e.value for e in found] == ["wsync.sglang:register"] and found[0].load() is register


def test_real_gpu():
    """on a GPU: views of the trainer's memory, tensors assembled there, files loaded there"""
    torch = pytest.importorskip("torch", reason="torch is not installed beside these tests, and this machine has no GPU")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU")
    path = world.checkpoint({"a": ("F32", [300, 7]), "b": ("BF16", [5])})
    loaded, there = wsync.load_gpu(path), wsync.open(path, "torch")
    for name in there:
        assert loaded[name].is_cuda and torch.equal(loaded[name].cpu().view(torch.uint8), there[name].view(torch.uint8))
