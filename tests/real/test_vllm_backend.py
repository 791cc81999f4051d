# timeout: 2100, takes: 120
"""wsync inside a real vLLM: the weight-transfer back end `wsync`, found by its entry point, and the worker extension, with two workers and
with one. Their answers equal those of a vLLM without wsync that was started on the same version."""
import glob
import json
import os

import pytest

from scenarios import MODEL, Ground
from servers import CLOSE, PROMPTS, VLLM, Proxy, Refused, WithWsync, distance, freeze, installed
from world import at_end, scope, unique

TWO = ("--tensor-parallel-size", "2")
DAMAGED = "model.layers.1.mlp.down_proj.weight"
WRONG = {"missing": f"missing {DAMAGED}", "extra": f"extra {DAMAGED}.scale", "shape": f"differs {DAMAGED}: BF16 [56,128], was BF16 [64,128]",
         "dtype": f"differs {DAMAGED}: F32 [64,128], was BF16 [64,128]", "head": "differs lm_head.weight: BF16 [992,64], was BF16 [1000,64]",
         "truncated": "it is cut off", "none": "No such file"}
KEY = "model.layers.0.self_attn.k_proj.weight"
LATE_SECONDS = 10  # the limit of every call, of loads by two workers too: a loaded machine needs more than 2 s for one
LATE = f"timeout={LATE_SECONDS} pause-timeout={LATE_SECONDS}"


def refused(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Refused as e:
        assert ": 500 " in str(e), e
        return str(e)
    raise AssertionError(f"{args} {kwargs} was taken")


class World(Ground):
    """Two workers on the mount's version 1, and the answers of a vLLM without wsync on version 2."""

    def __init__(self):
        super().__init__(VLLM)
        WithWsync.target = installed()
        with scope():  # one after the other, to save memory
            self.answers = {2: VLLM(self.folder(2), *VLLM.uncached, *TWO).wait().answers()}
        self.server = WithWsync(self.path(1), *VLLM.uncached, *TWO, "--weight-transfer-config", '{"backend": "wsync"}',
                                "--worker-extension-cls", "wsync.vllm.Extension").wait()
        self.answers[1] = self.server.answers()  # loaded by vLLM itself
        assert distance(self.answers[1], self.answers[2]) > 10 * CLOSE
        self.server.call("/init_weight_transfer_engine", {"init_info": {"root": self.mount.file(MODEL)}})

    def check(self, version):
        assert self.server.answers() == self.answers[version], f"other answers than a fresh server on {version}"
        assert not self.server.mapped(), self.server.mapped()  # the version's memory can be freed

    def same(self, version):
        """The same by one request, because there are many refusals."""
        score = self.server.score(PROMPTS[0])
        assert score == self.answers[version][:len(score)], f"other answers than a fresh server on {version}"

    def manifest(self, version):
        with open(os.path.join(self.path(version), ".wsync/manifest.json")) as f:
            return json.load(f)


@pytest.fixture(scope="module")
def w():
    return World()


def test_update(w):
    "start, update, finish: versions by number and by path, also with the lineage in it, a fresh server's answers bit for bit, no file stays mapped"
    for info, version in (({"target_version": 2}, 2), ({"path": w.path(1)}, 1), ({"path": w.folder(2)}, 2), ({"target_version": "1"}, 1),
                          ({"weights_path": f"{w.path(2)}@{w.manifest(2)['run']}", "wait": 60}, 2)):
        w.server.update(info)
        w.check(version)
        if "target_version" in info:
            assert w.server.serves() == str(version)


def test_serving(w):
    "the workers name their version as the mount does"
    for version in (1, 2):
        w.server.update({"target_version": version})
        manifest = w.manifest(version)
        for rank, said in enumerate(w.server.rpc("wsync_serving")):
            assert said == {"path": w.path(version), "model": MODEL, "version": version, "run": manifest["run"], "digest": manifest["digest"],
                            "tensors": 25, "rank": rank, "broken": None, "patches": True}, said


def test_refused(w):
    "back end: a tensor missing, extra, of another shape or dtype, a truncated file, no file: refused by name, with the answers of before"
    w.server.update({"target_version": 1})
    for name, why in WRONG.items():
        said = refused(w.server.update, {"path": w.folder(name)})
        assert why in said and "nothing has changed" in said, said
        assert w.server.rpc("check_health") == [None, None]  # each worker's own reply, not that of an earlier call
        w.same(1)
    said = refused(w.server.update, {"target_version": 999})
    assert "No such file" in said, said
    for info in ({}, {"path": w.path(2), "target_version": 2}, {"target_version": "../1"}, {"path": "relative"}, {"names": []}):
        refused(w.server.update, info)
    refused(w.server.call, "/init_weight_transfer_engine", {"init_info": {"root": "/nowhere"}})
    w.check(1)
    w.server.update({"target_version": 2})
    w.check(2)


def test_extension(w):
    "extension: the same by /collective_rpc; wsync_check reports it without an error"
    assert [said["version"] for said in w.server.load(w.path(1))] == [1, 1]
    w.check(1)
    for name, why in WRONG.items():
        said = refused(w.server.load, w.folder(name))
        assert why in said and "nothing has changed" in said, said
        for said in w.server.rpc("wsync_check", path=w.folder(name)):
            assert said["ok"] is False and (said["error"] or why.split()[1].strip(":") in str(said)), said
    assert w.server.rpc("wsync_check", path=w.path(2)) == [{"ok": True, "error": None, "missing": [], "extra": [], "differing": {}}] * 2
    assert "absolute" in refused(w.server.load, "relative")
    assert w.server.rpc("check_health") == [None, None]
    w.check(1)
    w.server.load(w.path(2))
    w.check(2)


def test_forced(w):
    "force_layout: another dtype is cast; a version that does not fill every parameter is undone, also where vLLM alone cannot recover"
    w.server.update({"target_version": 1})
    lacks_key(w)
    for name, why in (("missing", f"1 of the model's parameters: {DAMAGED}"), ("nokey", "1 of the model's layers: model.layers.0.self_attn.qkv_proj"),
                      ("extra", f"at tensor {DAMAGED}.scale"), ("shape", f"at tensor {DAMAGED}"), ("head", "at tensor lm_head.weight")):
        for said in (refused(w.server.update, {"path": w.folder(name), "force_layout": True}), refused(w.server.load, w.folder(name), force_layout=True)):
            assert why in said and "was loaded again and is served" in said, said
            w.same(1)
        w.check(1)
    w.server.update({"path": w.folder("dtype"), "force_layout": True})
    w.check(2)  # the same version, in wider numbers
    assert "was F32" in refused(w.server.update, {"target_version": 1})
    w.server.update({"target_version": 1, "force_layout": True})
    w.check(1)


def lacks_key(w):
    """Version 2 without a third of a fused layer."""
    from safetensors.torch import load_file, save_file

    if not os.path.isdir(w.folder("nokey")):
        os.makedirs(w.folder("nokey"))
        weights = load_file(os.path.join(w.folder(2), "model.safetensors"))
        save_file({k: v for k, v in weights.items() if k != KEY}, os.path.join(w.folder("nokey"), "model.safetensors"))


def test_mount(w):
    "the mount's own switch drives the extension, as an engine of kind remote"
    w.server.load(w.path(1))
    w.mount.write(f"engine add r1 remote {w.server.url} pause=POST:/pause?mode=keep resume=POST:/resume "
                  'load=POST:/collective_rpc:{"method":"wsync_load","kwargs":{"path":"{path}"}}', f"{MODEL}/ctl")
    at_end(lambda: w.mount.write("engine remove r1", f"{MODEL}/ctl"))
    for version in (1, 2):
        w.switch(version)
        w.check(version)


def test_late_question(w):
    "kind vllm, two workers: one is late before the pause, when it is asked about patches; the version is loaded, and no answer is another call's"
    w.server.load(w.path(1))
    proxy = Proxy(w.server)
    w.engine("asked", proxy, LATE)
    second = [pid for pid in w.server.workers() if "Worker" in name_of(pid)][1]
    proxy.before[VLLM.load_path] = lambda: (proxy.before.clear(), freeze([second], LATE_SECONDS + 2))
    for version in (2, 1):
        w.switch(version)
        w.check(version)
    assert not proxy.before, "nobody was late"
    assert w.server.rpc("check_health") == [None, None]


def test_plain_kind(w):
    "kind vllm, two workers: a late reply is waited for before the rollback; after a failed load no reply counts"
    w.server.load(w.path(1))
    proxy = Proxy(w.server)
    w.engine("two", proxy, f"{LATE} update=whole")  # nothing but loads comes by that route
    for version in (2, 1):
        w.switch(version)
        w.check(version)
    second = [pid for pid in w.server.workers() if "Worker" in name_of(pid)][1]
    proxy.before[VLLM.load_path] = lambda: (proxy.before.clear(), freeze([second], LATE_SECONDS + 2))
    assert w.refused(2) == "ETIMEDOUT" and "brought back" in w.last_error(), w.last_error()
    assert w.engines()["two"].startswith("serving 1 "), w.engines()
    assert w.server.rpc("check_health") == [None, None]
    w.check(1)
    version = w.another("shape")
    proxy.seen.clear()
    for text in (f"load {version} force-layout", "load 2"):  # the second load is a good one
        assert w.refused(text, f"{MODEL}/ctl") == "EREMOTEIO", w.last_error()
        assert w.engines()["two"].startswith("broken "), w.engines()
        assert "restart it" in w.engines()["two"], w.engines()
    assert "/resume" not in proxy.seen and w.server.call("/is_paused")["is_paused"] is True


def name_of(pid):
    with open(f"/proc/{pid}/comm") as f:
        return f.read()


def test_one_worker(w):
    "one worker, started with dummy weights: the first version is checked by what it fills; a failed reload by vLLM itself is repaired"
    w.server.stop()
    lacks_key(w)
    bare = unique("bare")
    os.makedirs(bare)
    for path in glob.glob(w.folder(1) + "/*.json") + glob.glob(w.folder(1) + "/*.jinja"):
        os.symlink(path, os.path.join(bare, os.path.basename(path)))
    server = WithWsync(bare, *VLLM.uncached, "--load-format", "dummy", "--worker-extension-cls", "wsync.vllm.Extension").wait()
    assert server.rpc("wsync_serving")[0]["tensors"] is None
    for name, why in (("missing", DAMAGED), ("nokey", "model.layers.0.self_attn.qkv_proj")):
        said = refused(server.load, w.folder(name))
        assert why in said and "load a complete version" in said, said
        assert server.rpc("wsync_serving")[0]["broken"]
        assert len(server.score(PROMPTS[0])) == len(PROMPTS[0]) - 1  # wrong answers, but it runs
    assert server.load(w.path(1))[0]["version"] == 1
    first = server.answers()
    assert distance(first, w.answers[1]) < CLOSE, distance(first, w.answers[1])
    server.load(w.path(2))
    assert distance(server.answers(), first) > 10 * CLOSE
    for name in ("missing", "shape", "none"):
        assert WRONG[name] in refused(server.load, w.folder(name))
    assert refused(server.reload, w.folder("head"))  # it stays paused, and vLLM's own reloads do not repair it
    assert "lm_head" in refused(server.load, w.folder("head"))
    assert server.load(w.path(1))[0]["broken"] is None
    assert server.answers() == first
