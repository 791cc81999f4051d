import json
import os
import signal
import subprocess
import sys
import tempfile
import threading

import ml_dtypes
import numpy
import pytest
import world
import wsync


@pytest.fixture
def agent():
    return world.Agent()


def publisher(agent, tensors, **options):
    return wsync.Publisher(options.pop("model", "actor"), tensors, agent=f"unix:{agent.sock}", start_agent=False, **options)


def test_arrays(agent):
    """arrays of every dtype, layout and rank are published bit for bit, also in the next version"""
    a = numpy.arange(60, dtype=numpy.float32).reshape(3, 4, 5)
    given = {
        "plain": a, "transposed": a.T, "reversed": a[::-1, ::-1], "part": a[1:, :, ::2], "scalar": numpy.float64(3.5) * numpy.ones(()),
        "empty": numpy.zeros((0, 3), numpy.int8), "bf16": a.astype(ml_dtypes.bfloat16), "f8": a.astype(ml_dtypes.float8_e4m3fn),
        "bool": a > 3, "i64": numpy.arange(-4, 4), "c64": numpy.ones(3, numpy.complex64), "repeated": numpy.broadcast_to(a[0, 0], (7, 5)),
        "one": numpy.broadcast_to(numpy.float32(2.5), (8, 4)), "many": numpy.broadcast_to(numpy.float32(1.5), (1 << 20,)),
    }  # fmt: skip
    with publisher(agent, given) as pub:
        for version in (1, 2):
            given["plain"] = given["plain"] + version
            pub.offload(version)
            weights = pub.weights(framework="numpy")
            assert (weights.version, weights.run) == (version, pub.run) and set(weights) == set(given)
            for name, want in given.items():
                assert weights[name].dtype == want.dtype and weights[name].shape == want.shape, name
                assert weights[name].tobytes() == want.tobytes(), name
        assert len(pub.run) > 0


def test_ranks(agent):
    """three publishers as three ranks with parts described by DTensor placements"""
    whole = numpy.arange(70, dtype=numpy.float32).reshape(7, 10)
    errors = []

    class Rows(wsync.Source):
        kind = "fsdp"

        def __init__(self, rank):
            self.rank = rank

        def held(self):
            from wsync.publish._held import Held
            from wsync.lib._library import lib

            held, mine = Held(), whole[self.rank * 3 : self.rank * 3 + 3]
            held.kept.append(mine)
            held.meta.append(("w", mine.dtype, whole.shape, 0, ((lib.WSYNC_SHARD, 0, 0, 3, self.rank),), mine.shape, mine.strides, 1, 0, 0, 0))
            held.addresses.append(mine.__array_interface__["data"][0])
            return held

    pubs = [publisher(agent, Rows(r), rank=r, world_size=3, dtype="bfloat16") for r in range(3)]

    def go(pub, version):
        try:
            pub.offload(version)
        except Exception as e:  # noqa: BLE001
            errors.append(e)

    for version in (5, 6):
        whole += 1
        threads = [threading.Thread(target=go, args=(p, version)) for p in pubs]
        [t.start() for t in threads]
        [t.join(60) for t in threads]
        assert not errors, errors
        got = pubs[2].weights(version, "numpy")
        assert got["w"].dtype == ml_dtypes.bfloat16 and (got["w"] == whole.astype(ml_dtypes.bfloat16)).all()
    for p in pubs:
        p.close()


def test_commits_outlive_ranks(agent):
    """a rank that ends after its offload does not end the version that a slower rank still offloads"""
    pubs = [publisher(agent, {f"w{r}": numpy.full(5, r, numpy.float32)}, rank=r, world_size=2, timeout=20) for r in (0, 1)]

    def both(version):
        threads = [threading.Thread(target=p.offload, args=(version,)) for p in pubs]
        [t.start() for t in threads]
        [t.join(60) for t in threads]

    both(1)
    pubs[0].offload(2)
    pubs[0].close()
    pubs[1].offload(2)
    pubs[1].wait_published(2)
    assert set(pubs[1].weights(2, "numpy")) == {"w0", "w1"}
    pubs[1].close()


def test_fork(agent):
    """a forked child can exit, cannot use its parent's publisher, and does not keep the killed parent's rank occupied"""
    code = """
import os, signal, sys, time, numpy, wsync
pub = wsync.Publisher("forked", {"w": numpy.ones(4)}, agent=sys.argv[1], start_agent=False, timeout=20)
pub.offload(1)
if sys.argv[2] == "child":
    child = os.fork()
    if child == 0:
        try:
            pub.offload(2)
        except wsync.Error as e:
            sys.exit(7 if "fork" in str(e) else 8)
        sys.exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    pub.offload(2)
elif sys.argv[2] == "orphan":
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
else:
    pub.offload(9)
"""

    def run(model, what, **more):
        text = code.replace('"forked"', f'"{model}"')
        return subprocess.run([sys.executable, "-c", text, f"unix:{agent.sock}", what], timeout=60, text=True, **more)

    done = run("forked", "child", stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    with tempfile.TemporaryFile("w+") as out:  # no pipe: the orphan would keep it open
        run("orphaned", "orphan", stdout=out)
        out.seek(0)
        child = int(out.read())
    code = code.replace("pub.offload(1)", "pub.offload(2)")
    try:
        again = run("orphaned", "again", stderr=subprocess.PIPE)
        assert again.returncode == 0, again.stderr
    finally:
        os.kill(child, signal.SIGKILL)


def test_two_threads(agent):
    """a call while another thread is in one is refused, and the other thread's call continues"""
    with publisher(agent, {"w": numpy.ones(4)}) as pub:
        pub.offload(1)
        waiting = threading.Thread(target=lambda: pytest.raises(wsync.Timeout, pub.wait_loaded, 1, timeout=1))
        waiting.start()
        world.wait_for(lambda: pub._lock.locked() or not waiting.is_alive(), "the other thread")
        with pytest.raises(RuntimeError, match="another thread"):
            pub.offload(2)
        waiting.join()
        pub.offload(2)


def test_interrupted(agent):
    """^C ends a call that waits for other ranks, and an unlimited wait; the publisher works afterwards"""
    code = """
import os, signal, sys, threading, time, numpy, wsync

def interrupted(call, *args, **kwargs):
    "Once, when the call has most likely come to its wait."
    armed = [True]
    def handler(*_):
        if armed.pop():
            raise KeyboardInterrupt
    signal.signal(signal.SIGINT, handler)
    pressing = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    pressing.start()
    try:
        call(*args, **kwargs)
    except KeyboardInterrupt:
        return "yes"
    return "no"

agent = sys.argv[1]
two = wsync.Publisher("pair", {"w": numpy.ones(4)}, agent=agent, start_agent=False, rank=0, world_size=2, timeout=3600)
print("offload", interrupted(two.offload, 1))
one = wsync.Publisher("alone", {"w": numpy.ones(4)}, agent=agent, start_agent=False)
one.offload(1)
print("wait", interrupted(one.wait_loaded, 1, timeout=None))
one.offload(2)
one.wait_published(2)
other = wsync.Publisher("pair", {"v": numpy.ones(2)}, agent=agent, start_agent=False, rank=1, world_size=2, timeout=60)
both = threading.Thread(target=other.offload, args=(2,))
both.start()
two.offload(2)
both.join()
two.wait_published(2)
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code, f"unix:{agent.sock}"], timeout=120, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout.split("\n") == ["offload yes", "wait yes", "done", ""], done.stdout + done.stderr


def test_conversion(agent, caplog):
    """the file's dtype comes from dtype=, config.json or the base; overflows of float16 are counted and logged once"""
    weights = {"a": numpy.array([1, 70000, -1e30, 2], numpy.float32), "step": numpy.array([3])}
    with publisher(agent, weights, dtype="float16") as pub:
        pub.offload(1)
        assert pub.overflows == 2 and "a" in caplog.text and "infinite" in caplog.text
        assert pub.weights(framework="numpy")["a"].dtype == numpy.float16 and pub.weights(framework="numpy")["step"].dtype == numpy.int64
    folder = world.unique("config")
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"torch_dtype": "bfloat16"}, f)
    with publisher(agent, weights, hf_config=folder, model="config") as pub:
        pub.offload(1)
        assert pub.weights(framework="numpy")["a"].dtype == ml_dtypes.bfloat16


def test_base(agent):
    """tensors that no rank holds come from base= and are listed; a shape that differs from the base's is refused by name"""
    base = world.checkpoint({"mine": ("BF16", [2, 3]), "mtp.head": ("BF16", [4]), "vision.tower": ("F32", [2])})
    given = {"mine": numpy.ones((2, 3), numpy.float32)}
    with publisher(agent, given, base=base) as pub:
        assert pub.frozen == []
        pub.offload(1)
        assert pub.frozen == ["mtp.head", "vision.tower"]
        weights = pub.weights(framework="numpy")
        assert set(weights) == {"mine", "mtp.head", "vision.tower"} and weights["mine"].dtype == ml_dtypes.bfloat16
        assert bytes(weights.raw("vision.tower")) == world.tensors_of(base + "/model.safetensors")["vision.tower"][2]
        given["mine"] = numpy.ones((3, 2), numpy.float32)
        with pytest.raises(wsync.Error, match=r"rank 0 of 1.*mine.*\[3, 2\].*\[2, 3\].*base"):
            pub.offload(2)
        del given["mine"]
        with pytest.raises(wsync.Error, match="no rank holds mine any more.*the base's"):
            pub.offload(2)
        given["mine"] = numpy.full((2, 3), 2, numpy.float32)
        pub.offload(2)
        assert pub.weights(2, "numpy")["mine"].tolist() == [[2] * 3] * 2


def test_base_of_other_names(agent):
    """a model in names of its own beside a base is refused: the version would have the base's old values in the file's names. What is new
    beside a base is not: a layer, a head, biases; nor is a base of other shapes"""
    layers = {f"model.layers.{i}.{name}": ("F32", shape) for i in range(3) for name, shape in (("q", [2, 2]), ("up", [3, 2]), ("norm", [2]))}
    base = world.checkpoint(layers | {"model.embed": ("F32", [5, 2])})

    def held(specs):
        return {name: numpy.ones(shape, numpy.float32) for name, (_, shape) in specs.items()}

    given = held({name.replace("model.", ""): spec for name, spec in layers.items()} | {"model.embed": ("F32", [5, 2])})
    with publisher(agent, given, base=base) as pub, pytest.raises(wsync.Error, match=r"lacks 9 of the 10 tensors .*layers.0.norm here may be model.layers"):
        pub.offload(1)
    new = [{name.replace("layers.2", "layers.3"): spec for name, spec in layers.items() if ".2." in name}, {"lm_head": ("F32", [5, 2])},
           {f"model.layers.{i}.q.bias": ("F32", [2]) for i in range(3)}]
    for i, specs in enumerate(new):
        with publisher(agent, held(specs), base=base, model=f"new{i}") as pub:
            pub.offload(1)
            assert set(pub.frozen) == set(layers) | {"model.embed"}
    for part, specs in (("vision", {"vision": ("F32", [3])}), ("projector", {"projector.weight": ("F32", [2, 2]), "projector.bias": ("F32", [2])})):
        with publisher(agent, held(layers), base=world.checkpoint(specs), model=part) as pub:
            pub.offload(1)
            assert pub.frozen == sorted(specs)


def test_changed_model(agent):
    """a tensor that is resized, added or removed is noticed, and the model is registered again"""
    given = {"a": numpy.zeros(4, numpy.float32), "b": numpy.ones(2, numpy.float32)}
    with publisher(agent, lambda: given) as pub:
        pub.offload(1)
        given = {"a": numpy.full(6, 7, numpy.float32), "c": numpy.ones(1, numpy.int8)}
        pub.offload(2)
        weights = pub.weights(framework="numpy")
        assert set(weights) == {"a", "c"} and weights["a"].tolist() == [7] * 6


def test_waits(agent):
    """wait_delta returns whether there is a delta; wait_loaded names the missing mounts; calls of a closed publisher are refused"""
    given = {"a": numpy.zeros(1 << 20, numpy.float32)}
    pub = publisher(agent, given)
    pub.offload(1)
    assert pub.wait_delta() is False
    given["a"][5] = 1
    pub.offload(2)
    assert pub.wait_delta(2) is True
    with pytest.raises(wsync.Timeout, match="version 2 of actor was not loaded in time"):
        pub.wait_loaded(2, timeout=0.2)
    with pytest.raises(wsync.Error, match="3.*never begun"):
        pub.wait_published(3)
    pub.close()
    with pytest.raises(ValueError, match="closed"):
        pub.offload(3)


def test_slots_stay_whole(agent):
    """open weights() keep their bytes while any number of newer versions are published: the third is a copy"""
    given = {"a": numpy.full(1 << 20, 1.0, numpy.float32)}

    def step(version):
        given["a"][:] = version
        pub.offload(version)
        weights = pub.weights(framework="numpy")
        assert (weights["a"] == version).all()
        return weights

    with publisher(agent, given, timeout=0.5) as pub:
        first = step(1)
        for version in range(2, 7):
            step(version)
        held = [step(version) for version in range(7, 12)]
        assert (first["a"] == 1).all()
        assert all((weights["a"] == version).all() for version, weights in enumerate(held, 7))


def test_refuses_unpublishable(agent):
    """values that cannot be published are refused by name"""
    for tensors, error, says in (
        ({"x": numpy.array(["text"])}, TypeError, "x has the dtype"),
        ({"x": numpy.zeros(2, ">f4")}, TypeError, "x has the dtype >f4"),
        ({"x": [1, 2]}, TypeError, "x is a list"),
        ({"x": numpy.zeros((1,) * 9)}, ValueError, "x has 9 dimensions"),
        ({"x": numpy.zeros(3, numpy.dtype("f4,f2"))["f0"]}, ValueError, "x has strides"),
    ):
        with publisher(agent, tensors) as pub, pytest.raises(error, match=says):
            pub.offload(1)
    with pytest.raises(ValueError, match="int8"):
        publisher(agent, {}, dtype="int8")
    with pytest.raises(ValueError, match="both"):
        publisher(agent, {}, rank=1)
    with pytest.raises(wsync.Error, match="actor/x"):
        publisher(agent, {}, model="actor/x")


def test_dlpack(agent):
    """objects with DLPack, as JAX's arrays: here numpy arrays with their other interface hidden"""

    class OnlyDlpack:
        def __init__(self, a):
            self.a = a

        def __dlpack__(self):
            return self.a.__dlpack__()

        def __dlpack_device__(self):
            return self.a.__dlpack_device__()

    a = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    with publisher(agent, {"a": OnlyDlpack(a), "t": OnlyDlpack(a.T)}) as pub:
        pub.offload(1)
        weights = pub.weights(framework="numpy")
        assert (weights["a"] == a).all() and (weights["t"] == a.T).all()


def test_jax(agent):
    """JAX arrays on the CPU, also bfloat16; each step has new arrays"""
    jax = pytest.importorskip("jax")
    arrays = {"w": jax.numpy.arange(8, dtype=jax.numpy.float32), "b": jax.numpy.ones((2, 3), jax.numpy.bfloat16)}
    with publisher(agent, lambda: arrays) as pub:
        for version in (1, 2):
            arrays = {k: v + 1 for k, v in arrays.items()}
            pub.offload(version)
            for name, want in arrays.items():
                assert (pub.weights(framework="numpy")[name] == numpy.asarray(want)).all()


def test_stream(agent):
    """tensors that exist one after another: each is copied before the next is made; views and conversions; what is wrong gives the
    version up, after all of the iterator was taken, and the next one is published"""
    layout = [("a", "float32", (3, 4)), ("b", "bfloat16", [5]), ("c", "int8", (0, 2)), ("d", "float64", ())]
    memory = numpy.zeros(64, numpy.float32)

    def each(step, leave_out=None, extra=None):
        for name, _, shape in layout:
            if name == leave_out:
                continue
            if name == "a":  # transposed, in memory that the next tensor overwrites
                memory[:12] = numpy.arange(12) + step
                yield name, memory[:12].reshape(4, 3).T
            elif name == "b":
                memory[:10] = numpy.repeat(numpy.arange(5) + step, 2)
                yield name, memory[:10:2]
            else:
                yield name, numpy.full(shape, step, layout[2 if name == "c" else 3][1])
        if extra is not None:
            yield extra
        taken.append(step)

    taken = []
    with publisher(agent, {}) as pub:
        for step in (1, 2):
            pub.offload_stream(step, layout, each(step))
            got = pub.weights(framework="numpy")
            assert (got["a"] == (numpy.arange(12) + step).reshape(4, 3).T).all() and (got["b"].astype(int) == numpy.arange(5) + step).all()
            assert got["c"].shape == (0, 2) and got["d"] == step and got["b"].dtype == ml_dtypes.bfloat16
        for what, says in (({"leave_out": "b"}, "b"), ({"extra": ("e", memory)}, "not in the layout"), ({"extra": ("d", memory)}, "it has"),
                           ({"extra": ("d", numpy.zeros(()))}, "d")):
            with pytest.raises((wsync.Error, ValueError), match=says):
                pub.offload_stream(3, layout, each(3, **what))
            assert len(taken) == 3 and taken.pop() == 3
        with pytest.raises(ValueError, match="twice"):
            pub.offload_stream(3, layout + layout[:1], each(3))
        for version, wrong, error in ((-1, layout, ValueError), ("3", layout, TypeError), (3, [("a", "no dtype", (4, 3)), *layout[1:]], (TypeError, ValueError)), (3, 5, TypeError)):
            with pytest.raises(error):
                pub.offload_stream(version, wrong, each(3))
            assert len(taken) == 4 and taken.pop() == 3  # others wait in the iterator
        pub.offload_stream(3, layout[::-1], each(3))
        assert pub.weights(framework="numpy")["d"] == 3
    assert taken == [1, 2, 3, 3]
