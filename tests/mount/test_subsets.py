# beside others
# sanitizers: address
# timeout: 600, takes: 110
"""Mounts that have only some tensors of a model (-o need=): whole checkpoints of those, in memory of their own size."""
import errno
import json
import os
import re
import time

import pytest

from span import Span
from world import *

EXPERTS, ROWS = 8, 1024  # a tensor of 2 MiB; so an expert is a block and a half
PARTS = ("down_proj", "gate_proj", "up_proj")


def moe(layers=1, experts=EXPERTS, rows=ROWS):
    tensors = {"lm_head.weight": ("BF16", [300, 64]), "model.embed_tokens.weight": ("BF16", [300, 64])}
    for n in range(layers):
        for e in range(experts):
            tensors |= {f"model.layers.{n}.mlp.experts.{e}.{p}.weight": ("BF16", [rows, 1024]) for p in PARTS}
        tensors |= {f"model.layers.{n}.mlp.gate.weight": ("BF16", [experts, 64]), f"model.layers.{n}.self_attn.q_proj.weight": ("BF16", [64, 64])}
    return dict(sorted(tensors.items()))


TENSORS = moe()
SHARDS = {"model-00001-of-00003.safetensors": [n for n in TENSORS if ".experts." not in n],
          "model-00002-of-00003.safetensors": [n for n in TENSORS if re.search(r"\.experts\.[0-4]\.", n)],
          "model-00003-of-00003.safetensors": [n for n in TENSORS if re.search(r"\.experts\.[5-7]\.", n)]}


def is_of(name, experts):
    found = re.search(r"\.experts\.(\d+)\.", name)
    return not found or int(found.group(1)) in experts


def all_of(folder):
    """{name: (dtype, shape, bytes)} of all files of a folder."""
    found = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            found |= tensors_of(os.path.join(folder, name))
    return found


def same(mount, version, folder, is_needed, model="actor"):
    """The mount's version is a checkpoint of what is needed of the folder's, and of nothing else."""
    at = mount.file(model, version)
    want = {n: t for n, t in all_of(folder).items() if is_needed(n)}
    have = all_of(at)
    assert sorted(have) == sorted(want)
    assert have == want, [n for n in want if have[n] != want[n]][:3]
    files = {f for f in os.listdir(at) if f.endswith(".safetensors")}
    if len(files) > 1:
        with open(os.path.join(at, "model.safetensors.index.json")) as f:
            index = json.load(f)["weight_map"]
        assert {f: sorted(n for n in index if index[n] == f) for f in files} == {f: sorted(tensors_of(os.path.join(at, f))) for f in files}
    for f in os.listdir(folder):
        if not f.endswith(".safetensors") and "index" not in f:
            with open(os.path.join(folder, f), "rb") as g:
                assert mount.read(model, version, f) == g.read()
    return files


def line(mount, version, model="actor"):
    return mount.status(model)[f"version.{version}"]


def number(mount, version, what):
    return int(re.search(rf" {what}=(\d+)", line(mount, version)).group(1))


def pull(mount, version, model="actor"):
    wait_for(lambda: os.path.isdir(mount.file(model, version)), f"{model}/{version}")
    mount.write(f"pull {version}", f"{model}/ctl")
    return line(mount, version, model)


class Run:
    def __init__(self, tensors=TENSORS, files=None, *args):
        need_fuse()
        self.agent = Agent(*args)
        self.folders = {}
        self.publish(1, checkpoint(tensors, seed=1, files=files))

    def publish(self, version, folder):
        self.folders[version] = folder
        self.agent.publish("actor", version, folder)

    def step(self, share=0.001):
        newest = max(self.folders)
        self.publish(newest + 1, step(self.folders[newest], newest + 1, share=share))
        wait_for(lambda: self.delta(newest + 1), "the delta")
        return newest + 1

    def delta(self, version):
        found = self.agent.get(f"/v1/actor/{version}/manifest")["deltas"]
        return found and found[0]["state"] == "whole" and found[0]["bytes"]

    def size(self, version=1):
        return sum(os.path.getsize(os.path.join(self.folders[version], f)) for f in os.listdir(self.folders[version]))


@pytest.mark.parametrize("files", [None, SHARDS], ids=["one file", "shards"])
def test_rank(files):
    "one rank of an expert-parallel engine: its experts and all else, as a checkpoint that names nothing more; only its blocks come"
    r = Run(files=files)
    for rank, experts in ((0, {0, 1}), (3, {6, 7})):
        with scope():
            mount = Mount(r.agent.url, f"need=ep:{rank}/4")
            assert "needed of" in pull(mount, 1)
            names = same(mount, 1, r.folders[1], lambda n: is_of(n, experts))
            assert all(n in (files or {"model.safetensors": 0}) or len(names) < len(files) for n in names)
            share = sum(len(mount.read("actor", 1, f)) for f in os.listdir(mount.file("actor", 1)) if f not in ("tensors", ".wsync")) / r.size()
            assert share < 0.5 and number(mount, 1, "moved") < 0.55 * r.size() and int(mount.status()["used_bytes"]) < 0.5 * r.size()
            about = json.loads(mount.read("actor", 1, "wsync@subset.json"))
            assert about == {"source_digest": r.agent.get("/v1/actor/1/manifest")["digest"], "need": f"ep:{rank}/4",
                             "tensors": len(TENSORS) - 18, "left_out": 18}
            mount.write("verify 1", "actor/ctl")


def test_patterns():
    "patterns of names; the files of which nothing is left are gone, and the others are numbered anew"
    r = Run(files=SHARDS)
    for need, is_needed, names in (
            ("lm_head.*;re:model\\..*q_proj", lambda n: n.startswith("lm_head") or "q_proj" in n, ["model.safetensors"]),
            ("actor=*.experts.?.up_proj.weight", lambda n: "up_proj" in n, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]),
            ("*", lambda n: True, sorted(SHARDS))):
        with scope():
            mount = Mount(r.agent.url, f"need={need}")
            pull(mount, 1)
            assert sorted(same(mount, 1, r.folders[1], is_needed)) == names
            assert os.path.exists(mount.file("actor/1/model.safetensors.index.json")) == (len(names) > 1)


def test_deltas():
    "several versions: deltas are applied to what is needed, in memory of its own size, and what they do not lead to comes whole"
    r = Run(files=SHARDS)
    mount = Mount(r.agent.url, f"need=ep:1/4,{DELTAS}")
    is_needed = lambda n: is_of(n, {2, 3})
    pull(mount, 1)
    same(mount, 1, r.folders[1], is_needed)
    for _ in range(3):
        version = r.step()
        before = r.agent.get("/v1/status")["bytes_sent"] if "bytes_sent" in r.agent.get("/v1/status") else None
        said = pull(mount, version)
        assert "delta from" in said and "the rest whole" not in said, said
        same(mount, version, r.folders[version], is_needed)
        assert number(mount, version, "moved") < 0.1 * r.size(), (said, before)
    same(mount, max(r.folders) - 1, r.folders[max(r.folders) - 1], is_needed)
    mount.write(f"verify {max(r.folders)}", "actor/ctl")


def test_stream():
    "open=stream: a tensor can be read while the rest comes"
    r = Run()
    mount = Mount(r.agent.url, "need=ep:0/2,open=stream")
    wait_for(lambda: os.path.isdir(mount.file("actor/1")), "version 1")
    same(mount, 1, r.folders[1], lambda n: is_of(n, range(4)))


def test_restart():
    "a mount that is started again has the same; so does one with other patterns"
    r = Run()
    path = unique("mnt")
    os.makedirs(path)
    for need, experts in (("ep:0/2", range(4)), ("ep:0/2", range(4)), ("ep:1/2", range(4, 8))):
        mount = Mount(r.agent.url, f"need={need}", path=path)
        pull(mount, 1)
        same(mount, 1, r.folders[1], lambda n: is_of(n, experts))
        mount.end()


def test_absent():
    "a name outside: ENOENT, and the reason is in last_error"
    r = Run(files=SHARDS)
    mount = Mount(r.agent.url, "need=lm_head.*")
    pull(mount, 1)
    assert not os.path.exists(mount.file("actor/1/tensors/model.embed_tokens.weight"))
    assert "model.embed_tokens.weight" in mount.text("actor/last_error") and "need=lm_head.*" in mount.text("actor/last_error")
    assert os.path.exists(mount.file("actor/1/tensors/lm_head.weight"))
    assert not os.path.exists(mount.file("actor/1/model-00002-of-00003.safetensors"))
    assert "model-00002-of-00003.safetensors" in mount.text("actor/last_error")
    assert not os.path.exists(mount.file("actor/1/nothing"))
    assert "nothing" not in mount.text("actor/last_error").replace("nothing of", "")


def test_other_models():
    "what is needed is said by model"
    r = Run()
    other = checkpoint(SMALL, seed=5)
    r.agent.publish("critic", 1, other)
    mount = Mount(r.agent.url, "need=actor=lm_head.*,need=critic=a.*")
    for model, folder, is_needed in (("actor", r.folders[1], lambda n: n.startswith("lm_head")), ("critic", other, lambda n: n.startswith("a."))):
        pull(mount, 1, model)
        same(mount, 1, folder, is_needed, model)
    assert sorted(n for n in os.listdir(mount.path) if os.path.isdir(mount.file(n))) == ["actor", "critic"]


@pytest.mark.parametrize("need, said", [
    ("ep:0/4;nothing.*", "'nothing.*' matches none of its"),
    ("ep:0/64", "divides 8 experts among more ranks"),
    ("re:^x", "matches none"),
])
def test_unmatched(need, said):
    "patterns that match nothing, or too many ranks: the pull fails and names them"
    r = Run()
    mount = Mount(r.agent.url, f"need={need}")
    mount.wait_version("actor", 1)
    assert mount.refused("pull 1", "actor/ctl") == "EINVAL"
    assert said in mount.text("actor/last_error"), mount.text("actor/last_error")


def test_family():
    "ep: of a model without experts, or with all of a layer in one tensor, is refused with that"
    for tensors, said in ((SMALL, "is for models with experts"), ({"model.layers.0.mlp.experts.down_proj": ("BF16", [4, 8, 8])}, "has all experts of a layer in one")):
        with scope():
            r = Run(tensors)
            mount = Mount(r.agent.url, "need=ep:0/2")
            mount.wait_version("actor", 1)
            assert mount.refused("pull 1", "actor/ctl") == "EINVAL"
            assert said in mount.text("actor/last_error"), mount.text("actor/last_error")


@pytest.mark.parametrize("options, said", [
    ("need=", "a pattern is empty"),
    ("need=a;;b", "a pattern is empty"),
    ("need=a;re:", "a pattern is empty"),
    ("need=re:(", "no regular expression"),
    ("need=re:[", "no regular expression"),
    ("need=ep:4/4", "no rank"),
    ("need=ep:-1/4", "no rank"),
    ("need=ep:0", "no rank"),
    ("need=ep:0/0", "no rank"),
    ("need=" + "x" * 1025, "more than 1024 characters"),
    ("need=" + ";".join("x" * 65), "there may be 64 patterns"),
    ("need=actor@fp8-block128=x", "is a view"),
    ("need=a/b=x", "no model's name"),
    ("need=x,serve=127.0.0.1:1", "need and serve exclude each other"),
    ("need=x,derive=actor@fp8-block128", "need and derive=actor@fp8-block128 exclude each other"),
    ("need=critic=x,derive=actor@fp8-block128,derive=critic@fp8-block128", "need and derive=critic@fp8-block128 exclude each other"),
    ("need=x,need=y", "says twice what is needed of all models"),
])
def test_refused(options, said):
    "options that say nothing, or cannot hold together, are refused at the start"
    need_fuse()
    mount = Mount("http://127.0.0.1:1", options, wait=False)
    wait_for(lambda: not mount.alive(), "the refusal")
    assert mount.process.returncode != 0 and said in mount.text(), mount.text()


def test_hostile_names():
    "patterns and names that take long to match one by one do not: stars, and numbers of experts beyond any"
    need_fuse()
    names = [f"{'a' * 200}{i}" for i in range(20)] + ["x.experts.18446744073709551615.w", "x.experts.99999999999999999999.w", "x.experts..w"]
    r = Run({n: ("U8", [3]) for n in names})
    mount = Mount(r.agent.url, "need=" + "*a" * 300 + "b;x.*")
    mount.wait_version("actor", 1)
    assert mount.refused("pull 1", "actor/ctl") == "EINVAL"
    assert "matches none" in mount.text("actor/last_error")


def test_spanning():
    "a trainer that spans nodes: its parts have no whole tensors, which is said"
    need_fuse()
    span = Span(sidecars=checkpoint({}, files={}))
    span.publish()
    mount = Mount(span.urls, "need=*.weight")
    wait_for(lambda: os.path.exists(mount.file("actor/status")) and "comes in parts" in mount.text("actor/status"), "the reason")
    assert "1" not in os.listdir(mount.file("actor"))


def test_archive():
    "from an archive: one version is there whole, others only as deltas"
    r = Run(TENSORS, None, "--archive", archive := unique("archive"))
    versions = [1, r.step(), r.step()]

    def archived():
        with open(archive + "/v1/models") as f:
            models = json.load(f)["models"]
        return models and [v["version"] for v in models[0]["versions"]] == versions

    wait_for(lambda: os.path.exists(archive + "/v1/models") and archived(), "the archive", 40)
    r.agent.end()
    mount = Mount(f"dir:{archive}", f"need=ep:0/4,{DELTAS}")
    is_needed = lambda n: is_of(n, {0, 1})
    pull(mount, 3)
    same(mount, 3, r.folders[3], is_needed)
    pull(mount, 2)
    same(mount, 2, r.folders[2], is_needed)


def test_switch():
    "an engine on a subset is switched; the gate compares subsets"
    r = Run()
    mount = Mount(r.agent.url, f"need=ep:0/4,{DELTAS}")
    pull(mount, 1)
    engine = Engine(mount.file("actor/1"))
    mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
    mount.write("1", "actor/version")
    version = r.step()
    pull(mount, version)
    mount.write(version, "actor/version")
    assert engine.serves() == str(version)
    missing = {n: t for n, t in TENSORS.items() if "lm_head" not in n}
    r.publish(version + 1, checkpoint(missing, seed=9))
    wait_for(lambda: os.path.isdir(mount.file("actor", version + 1)), "the next version")
    assert mount.refused(version + 1, "actor/version") == "EPROTO"
    assert "missing lm_head.weight" in mount.text("actor/last_error")
    assert engine.serves() == str(version)


def test_one_copy():
    "copies=1: the one copy of what is needed is patched from version to version, and back"
    r = Run()
    mount = Mount(r.agent.url, f"need=ep:0/4,copies=1,keep=3,{DELTAS}")
    is_needed = lambda n: is_of(n, {0, 1})
    pull(mount, 1)
    same(mount, 1, r.folders[1], is_needed)
    one = int(mount.status()["used_bytes"])
    for _ in range(2):
        version = r.step()
        said = pull(mount, version)
        assert "in place" in said and "the rest whole" not in said, said
        same(mount, version, r.folders[version], is_needed)
    assert int(mount.status()["used_bytes"]) < 1.6 * one
    r.agent.end()
    mount.write("pull 1", "actor/ctl")  # by what was kept: no source is there
    same(mount, 1, r.folders[1], is_needed)
    assert json.loads(mount.read("actor", 1, "wsync@subset.json"))["need"] == "ep:0/4"


def test_changed_patterns():
    "engines outlive a mount: a switch to what leaves out a tensor that they were loaded with is refused, before they are paused"
    r = Run()
    path = unique("mnt")
    os.makedirs(path)
    mount = Mount(r.agent.url, "need=ep:0/2", path=path)
    pull(mount, 1)
    engine = Engine(mount.file("actor/1"))
    mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
    mount.write("1", "actor/version")
    mount.end()
    version = r.step()
    for need, is_refused in (("ep:0/4", True), ("ep:0/2;lm_head.*", False)):
        mount = Mount(r.agent.url, f"need={need}", path=path)
        wait_for(lambda: os.path.isdir(mount.file("actor", version)) and "e" in mount.engines(), "the settings")
        if is_refused:
            assert mount.refused(version, "actor/version") == "EPROTO"
            assert "mlp.experts.2.down_proj.weight" in mount.text("actor/last_error"), mount.text("actor/last_error")
            assert "need=ep:0/2" in mount.text("actor/last_error")
            assert engine.serves() == "1"
        else:
            mount.write(version, "actor/version")
            assert engine.serves() == str(version)
        mount.end()


def test_from_a_mount():
    "a mount that serves is a source of subsets: it sends the blocks and records that are asked for"
    r = Run()
    relay = Mount(r.agent.url, f"serve=127.0.0.1:{(port := free_port())},serve-insecure,{DELTAS}")
    pull(relay, 1)
    mount = Mount(f"http://127.0.0.1:{port}", f"need=ep:0/4,{DELTAS}")
    pull(mount, 1)
    version = r.step()
    pull(relay, version)
    assert "delta from 1" in pull(mount, version)
    same(mount, version, r.folders[version], lambda n: is_of(n, {0, 1}))
    assert number(mount, version, "moved") < 0.6 * r.delta(version)


def test_signed():
    "signed versions: what comes is checked by the source's signature"
    need_fuse()
    folder = unique("keys")
    os.makedirs(folder)
    wsync("key", "new", "--out", f"{folder}/key", "--name", "k")
    r = Run(TENSORS, None, "--sign-key", f"{folder}/key")
    mount = Mount(r.agent.url, f"need=ep:0/4,verify-key={folder}/key.pub,{DELTAS}")
    pull(mount, 1)
    same(mount, 1, r.folders[1], lambda n: is_of(n, {0, 1}))
    version = r.step()
    assert "delta from 1" in pull(mount, version)
    same(mount, version, r.folders[version], lambda n: is_of(n, {0, 1}))
    wsync("key", "new", "--out", f"{folder}/other", "--name", "o")
    with scope():
        mount = Mount(r.agent.url, f"need=ep:0/4,verify-key={folder}/other.pub")
        mount.wait_version("actor", 1)
        with pytest.raises(OSError):
            mount.write("pull 1", "actor/ctl")


def test_order_changes():
    "a version whose tensors lie in another order, under headers of the same size, is laid out anew and not mixed up"
    names = ["a.weight", "b.weight", "c.weight"]
    tensors = {n: ("BF16", [1024, 2048]) for n in names}
    r = Run(tensors)
    mount = Mount(r.agent.url, "need=b.*")
    pull(mount, 1)
    other = checkpoint(tensors, seed=7, files={"model.safetensors": ["c.weight", "a.weight", "b.weight"]})
    os.unlink(os.path.join(other, "model.safetensors.index.json"))
    r.publish(2, other)
    wait_for(lambda: os.path.isdir(mount.file("actor/2")), "version 2")
    for _ in range(3):  # the first try finds out that the layout is another
        try:
            mount.write("pull 2", "actor/ctl")
            break
        except OSError as e:
            assert e.errno == errno.ESTALE, e
            time.sleep(1)
    same(mount, 2, other, lambda n: n == "b.weight")


def test_in_a_tree():
    "topology=auto: a mount with a subset is told of mounts that have the whole version, and asks those"
    need_fuse()
    agent = Agent(makes_token=True)
    folder = checkpoint(TENSORS, seed=1)
    agent.publish("actor", 1, folder)
    servers = [Mount(agent.url, f"topology=auto,rack=r1,serve=127.0.0.1:{free_port()}") for _ in range(2)]
    mount = Mount(agent.url, "topology=auto,rack=r1,need=ep:0/4")
    wait_for(lambda: len(re.findall(r"^source \S+ up", mount.text("status"), re.M)) > 1, "a parent", 30)
    for m in servers:
        pull(m, 1)
    pull(mount, 1)
    same(mount, 1, folder, lambda n: is_of(n, {0, 1}))
