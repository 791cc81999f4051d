"""wsync.patch with plain modules of torch: what a loader copied where, the proofs, plans, and the stages of a worker."""
import json
import os
import random
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-real has it")

import wsync  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from wsync.patch import _plan, _proofs  # noqa: E402
from wsync.patch._patcher import Patcher, Proved  # noqa: E402
from wsync.patch._recorder import Recorder  # noqa: E402
from wsync.patch._recording import Recording, Unpatchable  # noqa: E402
from wsync.patch._versions import is_version  # noqa: E402
from wsync.patch._regions import Moved, box, region  # noqa: E402

WIDTH, ROWS = 16, 64


class Linear(torch.nn.Module):
    """A linear layer as vLLM makes them: what it answers is its quant_method's."""

    def __init__(self, rows=ROWS, packs=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(rows, WIDTH, dtype=torch.bfloat16), requires_grad=False)
        self.input_size_per_partition, self.packs, self.quant_method, self.packed = WIDTH, packs, self, None

    @staticmethod
    def apply(layer, x, bias):
        return torch.nn.functional.linear(x, layer.weight if layer.packed is None else layer.packed, bias)


class Holder(torch.nn.Module):
    """A module with one parameter that it only holds."""

    def __init__(self, *shape, dtype=torch.bfloat16):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(*shape, dtype=dtype), requires_grad=False)


class Model(torch.nn.Module):
    """The ways in which loaders fill parameters. tp: one of two ranks."""

    def __init__(self, tp=0, packs=False, hidden=False):
        super().__init__()
        self.tp, self.packs, self.hidden = tp, packs, hidden
        self.embed, self.qkv, self.down, self.head = Linear(), Linear(3 * ROWS // 2), Linear(), Linear()
        self.head.weight = self.embed.weight  # tied
        self.down.weight = torch.nn.Parameter(torch.zeros(ROWS, WIDTH // 2, dtype=torch.bfloat16), requires_grad=False)
        self.down.input_size_per_partition = WIDTH // 2
        self.norm = Holder(WIDTH, dtype=torch.float32)
        self.experts = Holder(4, WIDTH, ROWS)
        self.scaled = Holder(WIDTH)
        self.bias = Holder(WIDTH)

    def load_weights(self, pairs):
        half = ROWS // 2
        for name, tensor in pairs:
            if name == "embed":
                self.embed.weight.data.copy_(tensor)
            elif name in ("q", "k", "v"):  # rows of a fused layer, of this rank
                self.qkv.weight.data.narrow(0, "qkv".index(name) * half, half).copy_(tensor.narrow(0, self.tp * half, half))
            elif name == "down":  # columns
                self.down.weight.data.copy_(tensor.narrow(1, self.tp * WIDTH // 2, WIDTH // 2))
            elif name.startswith("expert"):  # transposed, by way of another tensor
                self.experts.weight.data[int(name[6:])].copy_(tensor.t().contiguous())
            elif name == "norm":
                self.norm.weight.data.copy_(tensor)  # converted
            elif name == "scaled":
                self.scaled.weight.data.copy_(tensor * float(tensor.abs().max()))
            elif name == "bias":
                self.bias.weight.data.copy_(torch.cat([tensor[8:], tensor[:8]]))
        if self.packs:  # a kernel's own copy, that its operations tell of
            self.head.packed = self.head.weight.data * 1
        if self.hidden:  # and one that they do not
            with torch.utils._python_dispatch._disable_current_modes():
                self.head.packed = self.head.weight.data.clone()
        return set()


NAMES = {"embed": (ROWS, WIDTH), "q": (ROWS, WIDTH), "k": (ROWS, WIDTH), "v": (ROWS, WIDTH), "down": (ROWS, WIDTH), "norm": (WIDTH,), "scaled": (WIDTH,),
         "bias": (WIDTH,), **{f"expert{i}": (ROWS, WIDTH) for i in range(4)}}


def version(folder, seed, base=None, share=100):
    """A checkpoint; with a base, one that differs in some elements of each tensor."""
    generator = torch.Generator().manual_seed(seed)
    os.makedirs(folder)
    if base is None:
        weights = {name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in NAMES.items()}
    else:
        with wsync.open(base, "torch") as old:
            weights = {name: old[name].clone() for name in old}
        for tensor in weights.values():
            at = torch.randint(tensor.numel(), (max(1, tensor.numel() // share),), generator=generator)
            tensor.view(-1)[at] = (tensor.view(-1)[at].float() * 3 + 1).to(torch.bfloat16)
    save_file(weights, os.path.join(folder, "model.safetensors"))
    return folder


@pytest.fixture
def versions(tmp_path):
    """Folders of versions 1, 2 and 3, each of which differs from the one before in a few elements."""
    found = [version(str(tmp_path / "1"), 1)]
    for i in (2, 3):
        found.append(version(str(tmp_path / str(i)), i, found[-1]))
    return found


def loaded(path, **how):
    """A model with the version, and the watched load of it."""
    model, recorder = Model(**how), Recorder()
    recorder.own(model)
    with wsync.open(path, "torch") as weights, recorder:
        model.load_weights(recorder.sources((name, weights[name]) for name in weights))
    return model, recorder


def parameters(path, **how):
    return {name: p.clone() for name, p in loaded(path, **how)[0].named_parameters()}


def same(model, want):
    return {name for name, p in model.named_parameters() if not torch.equal(p, want[name])}


# --- the recorder ---


def test_recorded(versions):
    "copies of rows, columns, transposed and concatenated ones are followed to the parameter, for each rank; what is computed is named"
    for tp in (0, 1):
        model, recorder = loaded(versions[0], tp=tp)
        recording = Recording(recorder, model)
        assert set(recording.whole) == {"norm", "scaled"}, recording.whole
        assert "float32" in recording.whole["norm"] and "abs" in recording.whole["scaled"]
        with wsync.open(versions[0], "torch") as weights:
            assert _proofs.differing(recording, weights) == [] == _proofs.differing(recording, weights, sampled=True)
        assert _proofs.unheard(recording, model) == {}
        places = {one.name for _, one in recording.regions()}
        assert places == set(NAMES) - {"norm", "scaled"}
        assert 0.9 < recording.patchable < 1


def test_load_is_unchanged(versions):
    "a watched load fills the same bits as an unwatched one"
    model = Model()
    with wsync.open(versions[0], "torch") as weights:
        model.load_weights(weights.items())
    assert same(loaded(versions[0])[0], {name: p.clone() for name, p in model.named_parameters()}) == set()


@pytest.mark.parametrize("what", ["copied", "knows", "source", "own", "names"])
def test_a_fault_of_the_recorder(versions, monkeypatch, what):
    "whatever fails while a load is recorded, the load goes on, and nothing is patched by what was recorded"
    plain, model, recorder = Model(), Model(), Recorder()
    with wsync.open(versions[0], "torch") as weights:
        plain.load_weights(weights.items())
    monkeypatch.setattr(recorder, "_memory" if what == "source" else "_own" if what == "own" else what, lambda *_: 1 / 0)
    recorder.own(model)
    with recorder, wsync.open(versions[0], "torch") as weights:
        model.load_weights(recorder.sources(weights.items()))
    assert same(model, dict(plain.named_parameters())) == set()
    proved = Proved(recorder, model, versions[0])
    assert proved.recording is None and "ZeroDivisionError" in proved.why


def test_copies_of_kernels(versions):
    "a copy that a kernel keeps of its parameter is seen by its operation, or else by what the module answers"
    model, recorder = loaded(versions[0], packs=True)
    assert "mul" in Recording(recorder, model).whole["embed"]
    model, recorder = loaded(versions[0], hidden=True)
    recording = Recording(recorder, model)
    assert "embed" not in recording.whole
    why = _proofs.unheard(recording, model)
    assert set(why) == {"embed"} and "a copy of its memory" in why["embed"], why
    assert same(model, parameters(versions[0])) == set(), "the proof has changed a parameter"


def test_beside_parameters(versions):
    "what a module keeps beside its parameters, or has of the loader itself, and what another thread filled, is not patched by writing parameters"
    for how in ("copy", "alias", "thread"):
        model, recorder = Model(), Recorder()
        recorder.own(model)
        with wsync.open(versions[0], "torch") as weights, recorder:
            pairs = [(name, recorder.source(name, weights[name].clone())) for name in weights]
            rest = [(name, tensor) for name, tensor in pairs if how == "copy" or name != "down"]
            model.load_weights(rest)
            if how == "copy":
                model.down.kept = model.down.weight.data.clone()
            elif how == "alias":
                model.down.weight.data = dict(pairs)["down"]
            else:
                thread = threading.Thread(target=model.load_weights, args=([(n, t) for n, t in pairs if n == "down"],))
                thread.start()
                thread.join()
        why = Recording(recorder, model).whole.get("down")
        assert why and {"copy": "kept beside", "alias": "loader's own", "thread": "not seen"}[how] in why, (how, why)


def test_untied(versions, dense):
    "a parameter that was tied to one that is patched, and is no more, is not patched"
    engine, patcher = worker(versions[0])
    engine.model.head.weight = torch.nn.Parameter(engine.model.head.weight.clone(), requires_grad=False)
    said = patcher.stage("prepare", "p", versions[1], versions[0])
    assert not said["ok"] and "elsewhere" in said["why"], said


def test_unseen_writes(versions):
    "what was written past torch is found by comparing with the files"
    model, recorder = loaded(versions[0])
    recording = Recording(recorder, model)
    model.experts.weight.data.view(torch.int16).numpy()[1, 2, 3] ^= 1
    with wsync.open(versions[0], "torch") as weights:
        assert _proofs.differing(recording, weights) == ["expert1"]
    recording.loses(["expert1"], "it was written to")
    assert {"expert0", "expert1", "expert2", "expert3"} <= set(recording.whole), "a module is loaded with all of its tensors"


def test_overwritten():
    "what was overwritten afterwards is no region any more; what was overwritten in part cannot be patched"
    file, memory, recorder = torch.arange(12.0).reshape(3, 4), torch.zeros(3, 4), Recorder()
    with recorder:
        memory.copy_(recorder.source("a", file))
        memory.copy_(recorder.source("b", file.clone()))
        memory[3:].fill_(0)  # of nothing
        assert recorder.reasons == {} and len(recorder.regions(memory)[0]) == 1
        memory[0].fill_(0)
    regions, tainted = recorder.regions(memory)
    assert regions == [] and tainted == set() and recorder.reasons == {"b": {"partly overwritten"}}


def test_regions():
    "boxes that interleave do not meet; a view that cuts through boxes carries the parts"
    left, right = box(0, (4, 3), (10, 1), 1), box(3, (4, 5), (10, 1), 1)
    assert not left.meets(right) and left.meets(box(20, (2,), (1,), 1)) and not left.contains(right)
    assert box(0, (4, 10), (10, 1), 1).contains(right) and box(0, (0, 3), (3, 1), 1) is None and box(0, (2, 3), (0, 1), 1) is None
    memory = torch.arange(60).reshape(6, 10)
    one = region(0, (20, 2), (6, 10), 2, "t", 100, (2, 12))  # a tensor that was transposed into it
    view = memory[2:5, 1:9]
    to = Moved(view.shape, 2 * view.storage_offset(), [2 * s for s in view.stride()], 0, (2, 6), 2).carry([one])
    assert to == [region(0, (2, 6), (3, 8), 2, "t", 100 + 2 * 2 + 12, (2, 12))]


# --- plans ---


@pytest.mark.parametrize("device", (False, True))
def test_plan(versions, device, monkeypatch):
    "put gives the bits of a load and undo takes them back, also twice; other values than the base's are refused before anything is written"
    if device:  # by places that are uploaded, as for GPUs
        by_places = lambda regions: [_plan._DevicePatch(place, [one for other, one in regions if other is place])
                                     for place in {id(place): place for place, _ in regions}.values()]
        monkeypatch.setattr(_plan, "_host_patches", by_places)
    for tp in (0, 1):
        model, recorder = loaded(versions[0], tp=tp)
        recording, (old, new) = Recording(recorder, model), (parameters(path, tp=tp) for path in versions[:2])
        assert same(model, old) == set()
        rest = {"norm.weight", "scaled.weight"}
        monkeypatch.setattr(Recording, "whole_modules", lambda self, names: [])
        monkeypatch.setattr(_plan, "DENSITY", 0.1)
        with wsync.open(versions[0]) as weights:
            plan = _plan.Plan("p", recording, versions[1], versions[0], weights.layout(), 2)
        assert plan.changed > 0 and plan.bytes > 0
        for _ in range(2):
            plan.check()
            for _ in range(2):
                plan.put()
            assert same(model, new) == rest
            for _ in range(2):
                plan.undo()
            assert same(model, old) == set()
        changed = (parameters(versions[1], tp=tp)["embed.weight"] != old["embed.weight"]).nonzero()[0].tolist()
        model.embed.weight.data.view(torch.int16)[changed[0], changed[1]] ^= 1
        with pytest.raises((OSError, Unpatchable), match="embed"):
            plan.check()


class Engine:
    """A worker of one rank, or one whose other rank has an error."""

    def __init__(self, path):
        self.rank, self.path, self.broken, self.other, self.loads, self.model, self.refuses = 0, path, None, None, [], None, None
        self.n_agreed = 0

    def serving(self):
        return {"path": self.path, "model": None, "version": None, "run": None, "digest": None, "broken": self.broken}

    def is_served(self, path):
        return path == self.path

    def identify(self, path):
        return path

    def served(self):
        return self.path

    def note(self, identity):
        self.path = identity

    def refuses_modules(self, names):
        return self.refuses

    def load_modules(self, path, names):
        self.loads.append((path, names))
        if self.broken == path:
            raise ValueError("it cannot be loaded")
        with wsync.open(path, "torch") as weights:
            self.model.load_weights((name, weights[name]) for name in names)

    def forget_answers(self):
        pass

    def agree(self, error):
        self.n_agreed += 1
        return error or self.other


def worker(path, **how):
    engine = Engine(path)
    patcher = Patcher(engine)
    engine.model, recorder = loaded(path, **how)
    patcher.adopt(Proved(recorder, engine.model, path))
    return engine, patcher


@pytest.fixture
def dense(monkeypatch):
    "tiny tensors change in more than a twentieth"
    monkeypatch.setattr(_plan, "DENSITY", 0.2)


def test_stages(versions, dense):
    "prepare, put, undo and drop; modules that are no copies are loaded whole in the same transaction"
    engine, patcher = worker(versions[0])
    want = {path: parameters(path) for path in versions}
    said = patcher.stage("state")
    assert said["ready"] and said["why"] == "" and said["rank"] == 0 and said["plan"] is None and not said["put"] and said["whole"] == ["norm", "scaled"], said
    said = patcher.stage("prepare", "p", versions[1], versions[0])
    assert said["ok"] and 0 < said["changed"] < said["elements"] and same(engine.model, want[versions[0]]) == set(), said
    assert patcher.stage("put", "q")["ok"] is False
    said = patcher.stage("put", "p")
    assert said["ok"] and said["wrote"] and engine.path == versions[1] and same(engine.model, want[versions[1]]) == set(), said
    assert patcher.stage("state")["put"] and patcher.stage("verify") == {"rank": 0, "stage": "verify", "ok": True, "why": "", "differs": []}
    assert not patcher.stage("prepare", "p2", versions[2], versions[1])["ok"], "a plan is put, and can still be undone"
    for _ in range(2):
        assert patcher.stage("undo", "p")["ok"] and engine.path == versions[0] and same(engine.model, want[versions[0]]) == set()
    assert patcher.stage("put", "p")["ok"] and patcher.stage("drop", "p")["ok"] and not patcher.stage("undo", "p")["ok"]
    assert engine.path == versions[1] and same(engine.model, want[versions[1]]) == set()
    assert "no stage" in patcher.stage("sing")["why"] and "wants" in patcher.stage("prepare")["why"]


def test_walk(versions, dense):
    "after any sequence of patches and undos, parameters are those of a load of what is served"
    seed = random.randrange(1 << 30)
    print(f"# seed {seed}")
    chance, (engine, patcher) = random.Random(seed), worker(versions[0])
    want = {path: parameters(path) for path in versions}
    for i in range(40):
        base, target = engine.path, chance.choice(versions)
        said = patcher.stage("prepare", str(i), target, base)
        assert said["ok"], said
        ends = base
        for stage in chance.choices(("put", "undo"), k=chance.randrange(4)):
            assert patcher.stage(stage, str(i))["ok"]
            ends = target if stage == "put" else base
        assert patcher.stage("drop", str(i))["ok"] and engine.path == ends
        assert same(engine.model, want[ends]) == set(), (i, base, target)
        assert patcher.stage("verify")["ok"]


def test_refused(versions, dense, tmp_path):
    "what moved, was loaded by others, is asleep, is another base or changes too much is not patched, and nothing is written"
    engine, patcher = worker(versions[0])
    want = parameters(versions[0])

    def why(target=versions[1], base=versions[0]):
        said = patcher.stage("prepare", "p", target, base)
        assert not said["ok"] and same(engine.model, want) == set() and not patcher.stage("put", "p")["ok"]
        return said["why"]

    assert "is not what is served" in why(versions[2], versions[1])
    assert "No such file" in why(str(tmp_path / "none"))
    assert "of the elements change" in why(version(str(tmp_path / "dense"), 9, versions[0], 2))
    patcher.asleep = True
    assert "asleep" in why() and not patcher.stage("state")["ready"]
    patcher.asleep = False
    patcher.forget("somebody loads")
    assert why() == "somebody loads" == patcher.stage("state")["why"]
    patcher.forget()
    weight, engine.model.down.weight = engine.model.down.weight, torch.nn.Parameter(engine.model.down.weight.clone(), requires_grad=False)
    assert "elsewhere" in why()
    engine.model.down.weight = weight
    engine.other = "rank 1: it has no memory left"
    assert why() == engine.other
    engine.other, engine.refuses = None, "it has no way"
    assert "nor loaded alone: it has no way" in why()
    engine.refuses = None
    assert patcher.stage("prepare", "p", versions[1], versions[0])["ok"]
    patcher.forget()
    assert not patcher.stage("put", "p")["ok"] and same(engine.model, want) == set(), "a plan outlives no load"


def test_drift(versions, dense):
    "a bit that changed by itself is found by verify, and where it is in the way of a patch by prepare; then only a whole load helps"
    engine, patcher = worker(versions[0])
    old, new = parameters(versions[0]), parameters(versions[1])
    at = (old["qkv.weight"] != new["qkv.weight"]).nonzero()[0].tolist()
    engine.model.qkv.weight.data.view(torch.int16)[at[0], at[1]] ^= 1
    said = patcher.stage("prepare", "p", versions[1], versions[0])
    assert not said["ok"] and "memory" in said["why"], said
    said = patcher.stage("verify")
    assert not said["ok"] and len(said["differs"]) == 1, said
    assert not patcher.stage("state")["ready"]


def test_drift_stays(versions, dense):
    "an undo takes back what a put wrote, and no more: weights that verify found to be others stay so until all are loaded"
    for stages in (["undo"], ["put", "undo"]):
        engine, patcher = worker(versions[0])
        assert patcher.stage("prepare", "p", versions[1], versions[0])["ok"]
        for i, stage in enumerate(stages):
            if i + 1 == len(stages):
                engine.model.bias.weight.data.view(torch.int16)[0] ^= 1
                assert not patcher.stage("verify")["ok"]
            assert patcher.stage(stage, "p")["ok"]
        assert not patcher.stage("put", "p")["ok"] and not patcher.stage("state")["ready"], stages
        patcher.forget()
        assert patcher.stage("state")["ready"]


def test_asleep(versions, dense):
    "while its weights are not in memory, a patch is not taken back either"
    engine, patcher = worker(versions[0])
    assert patcher.stage("prepare", "p", versions[1], versions[0])["ok"] and patcher.stage("put", "p")["ok"]
    patcher.asleep = True
    said = patcher.stage("undo", "p")
    assert not said["ok"] and "asleep" in said["why"] and same(engine.model, parameters(versions[1])) == set(), said


def is_now(folder, run):
    """Its manifest says that it is this run's."""
    os.makedirs(os.path.join(folder, ".wsync"), exist_ok=True)
    with open(os.path.join(folder, ".wsync/manifest.json"), "w") as f:
        json.dump({"model": "m", "version": 2, "run": run, "digest": run}, f)


def test_another_run(versions, dense):
    "a target whose name is another run's before the plan is made, or before modules are loaded from it, is not put"
    engine, patcher = worker(versions[0])
    identify, want = engine.identify, parameters(versions[0])
    engine.identify = lambda path: (is_now(path, "later"), identify(path))[1]
    said = patcher.stage("prepare", "p", versions[1], versions[0])
    assert not said["ok"] and "another version" in said["why"], said
    engine.identify = identify
    os.remove(os.path.join(versions[1], ".wsync/manifest.json"))
    assert patcher.stage("prepare", "p", versions[1], versions[0])["ok"]
    is_now(versions[1], "latest")
    said = patcher.stage("put", "p")
    assert not said["ok"] and said["wrote"] and "another version" in said["why"] and engine.path == versions[0], said
    assert patcher.stage("undo", "p")["ok"] and same(engine.model, want) == set()


def test_failed_put(versions, dense):
    "where a module's load fails, put says that it wrote; undo brings the version before back"
    engine, patcher = worker(versions[0])
    want = parameters(versions[0])
    assert patcher.stage("prepare", "p", versions[1], versions[0])["ok"]
    engine.broken = None
    load, engine.load_modules = engine.load_modules, lambda *_: (_ for _ in ()).throw(OSError("the mount is gone"))
    said = patcher.stage("put", "p")
    assert not said["ok"] and said["wrote"] and "the mount is gone" in said["why"] and patcher.stage("state")["put"] and engine.path == versions[0], said
    assert not patcher.stage("undo", "p")["ok"] and not patcher.stage("state")["ready"]
    engine.load_modules = load
    assert patcher.stage("undo", "p")["ok"] and same(engine.model, want) == set() and patcher.stage("state")["ready"]


def test_version(versions, tmp_path):
    "a version is known by its manifest, also where that is all there is of it, else by its folder, never by its name"
    none, keys = dict.fromkeys(("model", "version", "run", "digest")), {"model": "m", "version": 4, "run": "r", "digest": "d"}
    assert is_version(versions[0] + "/", versions[0], none) and not is_version(versions[1], versions[0], none)
    gone = str(tmp_path / "4@r")
    for path in (gone, "/gone/4@r"):
        with pytest.raises(FileNotFoundError):
            is_version(path, path, keys)
    os.makedirs(gone + "/.wsync")
    for digest in ("d", "e"):
        with open(gone + "/.wsync/manifest.json", "w") as f:
            json.dump(keys | {"digest": digest}, f)
        assert is_version(gone, "/elsewhere", keys) == (digest == "d")
    os.makedirs(os.path.join(versions[0], ".wsync"))
    with open(os.path.join(versions[0], ".wsync/manifest.json"), "w") as f:
        json.dump(keys, f)
    assert is_version(versions[0], "/elsewhere", keys) and not is_version(versions[0], versions[0], keys | {"run": "s"})


def test_not_recorded():
    "a worker whose load was not watched says so"
    engine = Engine("/none")
    patcher = Patcher(engine)
    assert "no load was recorded" in patcher.stage("state")["why"] and not patcher.stage("prepare", "p", "/a", "/none")["ok"]
    before = engine.n_agreed
    assert patcher.stage("undo", "p") == {"rank": 0, "stage": "undo", "ok": False, "why": "there is no plan p: none is held", "wrote": False, "seconds": 0.0}
    assert engine.n_agreed == before + 1, "other ranks, which may have the plan, wait for this one"
