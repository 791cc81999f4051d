# sanitizers
# timeout: 400, takes: 20
"""Every way to read a mounted file, in every mode, returns the published bytes."""
import concurrent.futures
import os
import select
import subprocess
import sys

import pytest

from world import *

READERS = os.path.join(BUILD, "tests/tools/readers")
MODES = ["reads=passthrough", "reads=link", "reads=cached", "open=stream", "open=stream,reads=cached", "open=stream,reads=link"]


def world(options="", source=None, tensors=LARGE):
    need_fuse()
    agent = Agent()
    folder = checkpoint(tensors)
    agent.publish("actor", 1, folder)
    mount = Mount(source or agent.url, options)
    mount.wait_version("actor", 1)
    return agent, mount, folder


def reader(kind, path):
    r = subprocess.run([READERS, kind, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
    assert r.returncode == 0, f"{kind}: {r.stderr}"
    return r.stdout.strip()


def same_tensors(a, b):
    x, y = tensors_of(a), tensors_of(b)
    assert x.keys() == y.keys(), (x.keys(), y.keys())
    for name in x:
        assert x[name] == y[name], name


@pytest.mark.parametrize("options", MODES)
def test_modes(options):
    "all kinds of readers, in every mode"
    agent, mount, folder = world(options)
    path = mount.file("actor/1/model.safetensors")
    same_tensors(path, folder + "/model.safetensors")
    want = reader("engine", path)
    assert reader("direct", path) == want
    uring = reader("uring", path)
    assert uring == want or uring.startswith("skip"), uring
    assert subprocess.run(["cmp", path, path], timeout=60).returncode == 0
    assert subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M"], stderr=subprocess.DEVNULL, timeout=60).returncode == 0
    assert subprocess.run(["tar", "-C", mount.file("actor/1/"), "-ch", "-f", unique("tar"), "model.safetensors", "config.json"], timeout=60).returncode == 0
    wsync("verify", mount.file("actor/1"))
    assert json.loads(mount.read("actor/1/config.json"))["model_type"] == "test"


def test_many_at_once():
    "24 readers of all kinds on one file that is being pulled"
    for options in ("", "open=stream"):
        with scope():
            _, mount, _ = world(options)
            path = mount.file("actor/1/model.safetensors")
            with concurrent.futures.ThreadPoolExecutor(24) as pool:
                kinds = ["engine", "direct", "engine", "uring"] * 6
                seen = set(pool.map(lambda k: reader(k, path), kinds))
            seen = {s for s in seen if not s.startswith("skip")}
            assert len(seen) == 1, seen


def test_fio():
    "fio's 4 jobs read at random without errors"
    _, mount, _ = world()
    path = mount.file("actor/1/model.safetensors")
    r = subprocess.run(["fio", "--name=r", f"--filename={path}", "--readonly", "--rw=randread", "--bs=64k", "--numjobs=4",
                        "--size=8m", "--ioengine=psync", "--output-format=terse"], stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, timeout=60)
    assert r.returncode == 0, r.stdout


def test_stock_reader():
    "the stock safetensors reader gets every tensor"
    code = "import safetensors.numpy as s, sys; print(len(s.load_file(sys.argv[1])))"
    if subprocess.run([sys.executable, "-c", "import safetensors, numpy"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("the Python packages safetensors and numpy are not here (PyPI was not reached)")
    tensors = {f"t{i}": ("F32", [i + 1, 7]) for i in range(40)}
    _, mount, _ = world(tensors=tensors)
    r = subprocess.run([sys.executable, "-c", code, mount.file("actor/1/model.safetensors")], stdout=subprocess.PIPE, text=True)
    assert r.stdout.strip() == "40", r.stdout


def test_tensor_files_in_another_order():
    "each file of tensors/ is its tensor's, also where the files' names have another order than the tensors'"
    names = [f"a{c}{i}" for c in ".-/%" for i in range(20)]
    file_of = {n: n.replace("%", "%25").replace("/", "%2F") for n in names}
    assert sorted(file_of[n] for n in names) != [file_of[n] for n in sorted(names)]
    _, mount, folder = world(tensors={n: ("U8", [i + 1]) for i, n in enumerate(names)})
    for name, (_, _, data) in tensors_of(folder + "/model.safetensors").items():
        assert open(mount.file("actor/1/tensors", file_of[name]), "rb").read() == data, name
    assert sorted(os.listdir(mount.file("actor/1/tensors"))) == sorted(file_of.values())


def test_tensor_files():
    "tensors/ has the raw bytes of each tensor, with attributes"
    _, mount, folder = world(tensors=SMALL)
    source = tensors_of(folder + "/model.safetensors")
    names = sorted(os.listdir(mount.file("actor/1/tensors")))
    assert names == sorted(n.replace("/", "%2F") for n in source), names
    for name, (dtype, shape, data) in source.items():
        path = mount.file("actor/1/tensors", name.replace("/", "%2F"))
        assert open(path, "rb").read() == data, name
        assert os.stat(path).st_size == len(data)
        assert os.getxattr(path, "user.wsync.dtype").decode() == dtype
        assert json.loads(os.getxattr(path, "user.wsync.shape")) == shape
        assert os.getxattr(path, "user.wsync.file") == b"model.safetensors"
        offset = int(os.getxattr(path, "user.wsync.offset"))
        assert mount.read("actor/1/model.safetensors")[offset : offset + len(data)] == data
        assert len(os.getxattr(path, "user.wsync.xxh3")) == 16
        assert len(os.listxattr(path)) == 5
    try:
        os.getxattr(path, "user.nothing")
        raise AssertionError("an attribute that is not there was read")
    except OSError as e:
        assert e.errno == 61, e


def test_ipc():
    "a unix: source shares memory: no bytes are copied"
    need_fuse()
    agent = Agent()
    folder = checkpoint(LARGE)
    agent.publish("actor", 1, folder)
    mount = Mount(f"unix:{agent.sock}")
    mount.wait_version("actor", 1)
    same_tensors(mount.file("actor/1/model.safetensors"), folder + "/model.safetensors")
    assert int(mount.status()["moved_bytes"]) == 0, mount.status()
    assert "ipc" in mount.text("actor/status")


def test_dir():
    "a folder of checkpoints is a source, and new ones appear"
    need_fuse()
    root = unique("runs")
    os.makedirs(root)
    first = checkpoint(SMALL, f"{root}/1", seed=1)
    mount = Mount(f"dir:{root}")
    model = os.path.basename(root)
    mount.wait_version(model, 1)
    same_tensors(mount.file(model, "1/model.safetensors"), first + "/model.safetensors")
    second = checkpoint(SMALL, unique("part"), seed=2)
    os.rename(second, f"{root}/2")
    mount.wait_version(model, 2)
    same_tensors(mount.file(model, "2/model.safetensors"), f"{root}/2/model.safetensors")


def test_shards():
    "several shard files with their index"
    need_fuse()
    names = list(LARGE)
    files = {"model-00001-of-00002.safetensors": names[:6], "model-00002-of-00002.safetensors": names[6:]}
    folder = checkpoint(LARGE, files=files)
    agent = Agent()
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    for file in files:
        same_tensors(mount.file("actor/1", file), f"{folder}/{file}")
    index = json.loads(mount.read("actor/1/model.safetensors.index.json"))
    assert index["weight_map"] == {n: f for f, ns in files.items() for n in ns}
    assert len(os.listdir(mount.file("actor/1/tensors"))) == len(names)


def test_read_only():
    "nothing but control files can be written"
    _, mount, _ = world(tensors=SMALL)
    path = mount.file("actor/1/model.safetensors")
    for what in (lambda: open(path, "r+b"), lambda: open(path, "ab"), lambda: os.unlink(path), lambda: os.truncate(path, 0),
                 lambda: os.mkdir(mount.file("x")), lambda: open(mount.file("actor/1/new"), "w"), lambda: os.rename(path, path + "2"),
                 lambda: os.symlink("a", mount.file("actor/l")), lambda: os.chmod(path, 0o777), lambda: open(mount.file("status"), "r+b")):
        try:
            what()
        except OSError as e:
            assert e.errno in (30, 13, 1), e
        else:
            raise AssertionError("it was written")
    s = os.statvfs(mount.path)
    assert s.f_blocks > 0 and s.f_namemax == 255
    assert subprocess.run(["find", mount.path], stdout=subprocess.DEVNULL, timeout=30).returncode == 0


def test_poll():
    "events can be polled and followed"
    agent, mount, folder = world(tensors=SMALL)
    fd = os.open(mount.file("actor/events"), os.O_RDONLY)
    wait_for(lambda: b"known" in os.pread(fd, 1 << 20, 0), "the version's event")  # the version's folder appears a moment earlier
    seen = os.pread(fd, 1 << 20, 0)
    p = select.poll()
    p.register(fd, select.POLLIN)
    assert not [e for e in p.poll(0) if e[1] & select.POLLIN]
    agent.publish("actor", 2, folder)
    assert p.poll(20000), "no event was polled"
    os.lseek(fd, len(seen), os.SEEK_SET)
    assert b"version=2" in os.read(fd, 1 << 20)
    os.close(fd)


def test_100k():
    "a version of 100,000 tensors can be listed and opened"
    if SANITIZER:
        pytest.skip("too slow under a sanitizer")
    need_fuse()
    tensors = {f"layer.{i}.weight": ("U8", [8]) for i in range(100000)}
    agent = Agent()
    agent.publish("big", 1, checkpoint(tensors))
    mount = Mount(agent.url)
    mount.wait_version("big", 1)
    names = os.listdir(mount.file("big/1/tensors"))
    assert len(names) == 100000
    assert len(mount.read("big/1/tensors/layer.99999.weight")) == 8
