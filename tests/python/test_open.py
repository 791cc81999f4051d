import gc
import json
import os
import subprocess
import sys
import threading

import numpy
import pytest
import safetensors.numpy
import world
import wsync

SHARDS = {"model-00001-of-00002.safetensors": ["a.weight", "b.weight"],
          "model-00002-of-00002.safetensors": ["model.layers.10.x", "model.layers.2.x", "nested/name"]}


def raw(path):
    return {name: (dtype, tuple(shape), data) for name, (dtype, shape, data) in world.tensors_of(path).items()}


def same(weights, folder):
    """Asserts that every tensor has the expected bits and shape."""
    want = {}
    for file in sorted(f for f in os.listdir(folder) if f.endswith(".safetensors")):
        want.update(raw(os.path.join(folder, file)))
    assert set(weights) == set(want) and len(weights) == len(want)
    for name, (_, shape, data) in want.items():
        assert weights[name].shape == shape and weights[name].tobytes() == data and bytes(weights.raw(name)) == data
    return True


def test_mounted(mounted):
    """a mounted version has the published tensors, number and lineage; after opening `current`, a switch does not change it"""
    mount, folders = mounted
    for version, folder in folders.items():
        with wsync.open(mount.file("actor", version), "numpy") as weights:
            assert same(weights, folder) and weights.version == version
            assert weights.run == json.loads(mount.read("actor", version, ".wsync/manifest.json"))["run"]
    assert wsync.open(mount.file("actor/latest"), "numpy").version == 2
    assert wsync.open(mount.file("actor/1/model.safetensors"), "numpy").version == 1
    weights = wsync.open(folders[1], "numpy")
    assert weights.version is None and weights.run is None


def test_survives_umount(mounted):
    """tensors stay valid and unchanged after close, a collection and umount"""
    mount, folders = mounted
    weights = wsync.open(mount.file("actor/1"), "numpy")
    tensors = {name: weights[name] for name in weights}
    weights.close()
    with pytest.raises(ValueError, match="closed"):
        weights["a.weight"]
    del weights
    gc.collect()
    world.wsync("umount", "--lazy", mount.path)
    world.wait_for(lambda: not mount.mounted(), "the umount")
    for name, (_, _, data) in raw(folders[1] + "/model.safetensors").items():
        assert tensors[name].tobytes() == data


def test_no_copies():
    """tensors of a file are read-only views of one mapping, and a file is read only when a tensor is accessed"""
    path = world.checkpoint({f"layer.{i}": ("F32", [1024, 1024]) for i in range(16)}) + "/model.safetensors"

    def in_core(kind):
        with open("/proc/self/smaps") as f:
            lines = iter(f)
            for line in lines:
                if path in line:
                    return next(int(l.split()[1]) for l in lines if l.startswith(kind + ":"))
        return None

    weights = wsync.open(path, "numpy")
    tensors = [weights[name] for name in weights]
    assert in_core("Size") >= 64 << 10 and in_core("Rss") == 0
    assert all(t.tobytes() for t in tensors) and in_core("Rss") >= 64 << 10 and in_core("Anonymous") == 0
    addresses = [t.__array_interface__["data"][0] for t in tensors]
    assert [b - a for a, b in zip(addresses, addresses[1:])] == [4 << 20] * 15
    with pytest.raises(ValueError, match="read-only"):
        tensors[0][0, 0] = 1
    again = weights["layer.0"]
    assert again.__array_interface__["data"][0] == addresses[0]
    del weights, tensors, again
    gc.collect()
    assert in_core("Size") is None, "the last tensor is gone and the file is still mapped"


def test_dtypes(tmp_path):
    """every NumPy dtype, scalars and empty tensors equal the safetensors package's; BF16 and 8-bit floats are ml_dtypes'"""
    import ml_dtypes

    tensors = {d: numpy.arange(6).astype(d).reshape(2, 3) for d in
               ("bool", "uint8", "int8", "int16", "uint16", "float16", "int32", "uint32", "float32", "float64", "int64", "uint64", "complex64")}
    tensors |= {"scalar": numpy.array(2.5, "float32"), "empty": numpy.zeros((0, 7), "float16"), "bf16": numpy.arange(4).astype(ml_dtypes.bfloat16)}
    safetensors.numpy.save_file(tensors, tmp_path / "x.safetensors", {"format": "np"})
    weights = wsync.open(tmp_path / "x.safetensors", "numpy")
    for name, want in tensors.items():
        assert weights[name].dtype == want.dtype and weights[name].shape == want.shape and numpy.array_equal(weights[name], want), name
    assert weights["scalar"].shape == () and float(weights["scalar"]) == 2.5
    assert weights.header_metadata() == {"format": "np"}
    assert {m.name: (m.dtype, m.shape) for m in weights.metadata()} == {n: (t.dtype, t.shape) for n, t in tensors.items()}
    eights = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"}
    header = {d: {"dtype": d, "shape": [1], "data_offsets": [i, i + 1]} for i, d in enumerate(eights)}
    header["odd"] = {"dtype": "F32", "shape": [1], "data_offsets": [5, 9]}  # not aligned for F32
    header["F4"] = {"dtype": "F4", "shape": [2], "data_offsets": [9, 10]}
    header["none"] = {"dtype": "I64", "shape": [3, 0], "data_offsets": [10, 10]}
    world.write_safetensors(tmp_path / "y.safetensors", header, b"\x38" * 5 + numpy.float32(1.5).tobytes() + b"\x21")
    weights = wsync.open(tmp_path / "y.safetensors", "numpy")
    for d, name in eights.items():
        assert weights[d].dtype == getattr(ml_dtypes, name) and weights[d].tobytes() == b"\x38"
    assert float(weights["odd"][0]) == 1.5 and weights["none"].shape == (3, 0) and bytes(weights.raw("F4")) == b"\x21"
    with pytest.raises(TypeError, match="F4"):
        weights["F4"]


def test_without_ml_dtypes():
    """without ml_dtypes a BF16 tensor is an ImportError that names it, and others are read; importing wsync imports neither framework"""
    folder = world.checkpoint(world.SMALL)
    code = f"""
import sys, wsync
assert not {{"torch", "numpy"}} & set(sys.modules), "imported for nothing"
sys.modules["ml_dtypes"] = None
w = wsync.open({folder!r})
assert w.framework == "numpy" and w["b.weight"].shape == (16,) and len(w.raw("a.weight")) == 64 * 32 * 2
try:
    w["a.weight"]
except ImportError as e:
    assert "ml_dtypes" in str(e) and e.name == "ml_dtypes"
else:
    sys.exit("BF16 without ml_dtypes")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_shards():
    """a sharded folder: tensors in the index's order, files mapped when needed, and the index must agree with the files"""
    folder = world.checkpoint(world.SMALL, files=SHARDS)
    weights = wsync.open(folder, "numpy")

    def mapped():
        with open("/proc/self/maps") as f:
            return {line.split()[-1] for line in f if folder in line}

    assert not mapped() and len(weights) == 5 and "nested/name" in weights and "x" not in weights and ("x",) not in weights
    weights["b.weight"].sum()
    assert mapped() == {f"{folder}/model-00001-of-00002.safetensors"}
    assert same(weights, folder) and list(weights) == [n for names in SHARDS.values() for n in names]
    with pytest.raises(KeyError):
        weights["x"]
    os.rename(folder, folder + ".away")  # the opened folder is used, not another one of the same name
    os.remove(folder + ".away/model.safetensors.index.json")
    assert same(wsync.open(folder + ".away", "numpy"), folder + ".away")


def test_bad_folders():
    """incomplete folders are refused by name: a missing shard, an index that disagrees or leads out of the folder, no weights"""
    def index(change, error, at_open=True):
        folder = world.checkpoint(world.SMALL, files=SHARDS)
        path = folder + "/model.safetensors.index.json"
        with open(path) as f:
            told = json.load(f)
        change(folder, told["weight_map"])
        with open(path, "w") as f:
            json.dump(told, f)
        with pytest.raises(wsync.FormatError, match=error):
            weights = wsync.open(folder, "numpy")
            assert not at_open
            weights.metadata()

    index(lambda folder, m: os.remove(folder + "/model-00002-of-00002.safetensors"), "missing")
    index(lambda folder, m: m.update({"a.weight": "../x.safetensors"}), "../x.safetensors, which is missing")
    index(lambda folder, m: m.update({"a.weight": "config.json"}), r"no \*.safetensors file")
    index(lambda folder, m: m.update({"a.weight": 7}), "index.json: .*a string should be")
    index(lambda folder, m: m.pop("b.weight"), "00001-of-00002.safetensors: .*holds tensor .b.weight., which .*index.json does not place", at_open=False)
    index(lambda folder, m: m.update({"more": "model-00001-of-00002.safetensors"}), "00001-of-00002.safetensors: .*places tensor .more. .*does not hold", at_open=False)
    folder = world.checkpoint(world.SMALL, files=SHARDS)
    os.remove(folder + "/model.safetensors.index.json")
    os.remove(folder + "/model-00001-of-00002.safetensors")
    with pytest.raises(wsync.FormatError, match="00001-of-00002.safetensors is missing: .* 2 such files"):
        wsync.open(folder)
    os.remove(folder + "/model-00002-of-00002.safetensors")
    with pytest.raises(wsync.FormatError, match="no .*safetensors"):
        wsync.open(folder)
    with open(folder + "/model.safetensors.index.json", "w") as f:
        f.write("[]")
    with pytest.raises(wsync.FormatError, match="index.json: .*an object should be"):
        wsync.open(folder)
    with pytest.raises(FileNotFoundError):
        wsync.open(folder + "/nowhere")
    folder = world.checkpoint({"t": ("U8", [1])})
    os.link(folder + "/model.safetensors", folder + "/again.safetensors")
    with pytest.raises(wsync.FormatError, match="again.safetensors.*model.safetensors|model.safetensors.*again.safetensors"):
        wsync.open(folder)
    with pytest.raises(ValueError, match="torch.*numpy"):
        wsync.open(folder, "jax")


GOOD = {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}
BAD = {
    "length": (None, "cut off"),
    "JSON": (b"{no}", "JSON"),
    "deep": (b'{"a":' + b"[" * 100000, "JSON"),
    "list": (b"[1]", "begin with"),
    "twice": (b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}', "twice"),
    "beyond": ({"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}, "cut off"),
    "overlap": ({"a": GOOD, "b": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}, "overlap"),
    "gap": ({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}, "b": {"dtype": "U8", "shape": [2], "data_offsets": [6, 8]}}, "gap"),
    "trailing": ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, "4 bytes follow"),
    "dtype": ({"a": dict(GOOD, dtype="F7")}, "F7"),
    "dtype no text": ({"a": dict(GOOD, dtype=[])}, "dtype.*a string should be"),
    "shape": ({"a": dict(GOOD, shape=[9])}, "need 9 bytes"),
    "negative": ({"a": dict(GOOD, shape=[-8])}, "shape"),
    "true": ({"a": dict(GOOD, shape=[True] * 2)}, "shape"),
    "huge": ({"a": dict(GOOD, shape=[1 << 53, 1 << 53])}, "larger than any memory"),
    "nine": ({"a": dict(GOOD, shape=[1] * 8 + [8])}, "more than 8 numbers"),
    "backwards": ({"a": dict(GOOD, data_offsets=[8, 0])}, "begins at byte 8 .*ends before"),
    "one offset": ({"a": dict(GOOD, data_offsets=[8])}, "not two numbers"),
    "half": ({"a": {"dtype": "F4", "shape": [15], "data_offsets": [0, 8]}}, "whole byte"),
    "more keys": ({"a": dict(GOOD, more=1)}, "a key .more."),
    "no name": ({"": GOOD}, "empty name"),
    "surrogate": (b'{"\\ud800":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', "Unicode"),
    "UTF-8": (b'{"\xff":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', "JSON"),
    "metadata": ({"__metadata__": {"a": 1}, "a": GOOD}, "__metadata__"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_files(tmp_path, kind):
    """a malformed file is refused with its name and the reason"""
    header, error = BAD[kind]
    path = tmp_path / "model.safetensors"
    if header is None:
        path.write_bytes((1 << 20).to_bytes(8, "little") + b"{}")
    else:
        world.write_safetensors(path, header, b"\0" * 8)
    with pytest.raises(wsync.FormatError, match=f"(?s)model.safetensors: .*{error}"):
        wsync.open(path)


def test_sizes(tmp_path):
    """empty files, headers over the limit and folders of that name are refused; padding with spaces is fine"""
    path = tmp_path / "x.safetensors"
    for data in (b"", b"\0" * 7, b"\0" * 8, ((256 << 20) + 1).to_bytes(8, "little") + b"{}"):
        path.write_bytes(data)
        with pytest.raises(wsync.FormatError, match="no safetensors file"):
            wsync.open(path)
    world.write_safetensors(path, json.dumps({"a": GOOD}).encode() + b"   ", b"12345678")
    assert bytes(wsync.open(path).raw("a")) == b"12345678"
    path.unlink()
    path.mkdir()
    with pytest.raises(wsync.FormatError, match="no regular file"):
        wsync.open(tmp_path)


def test_threads():
    """many threads that read one mapping at the same time see the same bytes"""
    folder = world.checkpoint(world.SMALL, files=SHARDS)
    weights, failures = wsync.open(folder, "numpy"), []
    start = threading.Barrier(8)

    def read():
        start.wait(10)
        try:
            assert same(weights, folder)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failures and not any(t.is_alive() for t in threads)


def test_torch(mounted):
    """PyTorch: the same bits and dtypes, no copies; writes to a tensor stay in this process; tensors are valid after umount"""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    mount, folders = mounted
    weights = wsync.open(mount.file("actor/1"))
    assert weights.framework == "torch"
    tensors, want = dict(weights), raw(folders[1] + "/model.safetensors")
    assert tensors["a.weight"].dtype == torch.bfloat16 and tuple(tensors["a.weight"].shape) == (64, 32)
    tensors["b.weight"].fill_(7)
    assert torch.equal(weights["b.weight"], tensors["b.weight"]), "not the same memory"
    assert wsync.open(mount.file("actor/1"), "numpy")["b.weight"].tobytes() == want["b.weight"][2]
    weights.close()
    del weights
    gc.collect()
    world.wsync("umount", "--lazy", mount.path)
    for name in want.keys() - {"b.weight"}:
        assert bytes(tensors[name].view(torch.uint8).flatten().tolist()) == want[name][2]


def test_torch_dtypes(tmp_path):
    """PyTorch: scalars, empty tensors, 8- and 4-bit floats, and one at an odd address"""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    header = {"s": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}, "e": {"dtype": "BF16", "shape": [0, 3], "data_offsets": [4, 4]},
              "f8": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [4, 5]}, "odd": {"dtype": "F32", "shape": [1], "data_offsets": [5, 9]},
              "f4": {"dtype": "F4", "shape": [1, 2], "data_offsets": [9, 10]}, "f6": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [10, 13]}}
    world.write_safetensors(tmp_path / "x.safetensors", header, numpy.float32(2.5).tobytes() + b"\x38" + numpy.float32(1.5).tobytes() + b"\x21" + b"123")
    weights = wsync.open(tmp_path / "x.safetensors", "torch")
    assert weights["s"].shape == () and weights["s"].item() == 2.5 and weights["odd"].item() == 1.5
    assert tuple(weights["e"].shape) == (0, 3) and weights["e"].dtype == torch.bfloat16
    assert weights["f8"].dtype == torch.float8_e4m3fn and weights["f8"].float().item() == 1.0
    if hasattr(torch, "float4_e2m1fn_x2"):
        assert weights["f4"].dtype == torch.float4_e2m1fn_x2 and tuple(weights["f4"].shape) == (1, 1)
    with pytest.raises(TypeError, match="F6_E2M3"):
        weights["f6"]


def test_jax(mounted):
    """JAX accepts the arrays"""
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    mount, folders = mounted
    weights = wsync.open(mount.file("actor/1"), "numpy")
    array = jnp.asarray(weights["a.weight"])
    assert array.dtype == jnp.bfloat16 and numpy.asarray(array).tobytes() == raw(folders[1] + "/model.safetensors")["a.weight"][2]


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_fifo(name):
    """a FIFO in place of a file is refused and not waited for"""
    folder = world.unique("fifo")
    os.makedirs(folder)
    os.mkfifo(os.path.join(folder, name))
    with pytest.raises(wsync.FormatError, match="no regular file"):
        wsync.open(folder, "numpy")
