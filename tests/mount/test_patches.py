# beside others
# sanitizers
# timeout: 300, takes: 25
"""update=: what changed is written into an engine's weights while it is paused, undone where the switch fails, and checked; else all is
loaded."""
import re
import threading

import pytest

from adapters import listed, lora
from between import Between
from world import *

APIS = ("sglang", "vllm")
SHAPES = {**{f"layer.{i}.weight": ("BF16", [64, 64]) for i in range(4)}, "norm.weight": ("BF16", [100]), "out.weight": ("BF16", [64, 8])}


DRAFT = {f"draft.{i}.weight": ("BF16", [64, 64]) for i in range(2)}


class World:
    """Versions 1 to 3, each a step from the one before; 9 has nothing in common with them."""

    def __init__(self, options=""):
        need_fuse()
        top = self.top = unique("source")
        self.folders = {v: f"{top}/actor/{v}" for v in (1, 2, 3, 9)}
        for v, folder in self.folders.items():
            if v in (2, 3):
                os.rename(step(self.folders[v - 1], seed=v), folder)
            else:
                checkpoint(SHAPES, folder, seed=v)
        self.source, self.options = f"dir:{top}", options
        self.mount = Mount(self.source, options)
        self.mount.wait_version("actor", 9)
        self.sums = {}

    def sum_of(self, version):
        if version not in self.sums:
            engine = Engine(self.folders[version])
            self.sums[version] = engine.checksum()
            engine.end()
        return self.sums[version]

    def engine(self, name, *args, api="vllm", options="", patch=2, port=None):
        e = Engine(self.folders[9], *(["--patch", str(patch)] if patch else []), *args, api=api, port=port)
        self.mount.write(f"engine add {name} {api} {e.url} {options}", "actor/ctl")
        return e

    def load(self, version):
        self.mount.write(str(version), "actor/version")

    def refused(self, version):
        self.mount.refused(str(version), "actor/version")
        return self.mount.text("actor/last_error")

    def events(self, word, engine, version=None):
        return [l for l in self.mount.text("actor/events").splitlines()
                if f" {word} " in l and f" engine={engine} " in l and (version is None or f" version={version} " in l)]

    def last(self, word, engine):
        return self.events(word, engine)[-1]

    def holds(self, engine, version):
        assert engine.serves() == str(version)
        assert engine.checksum() == self.sum_of(version), f"it holds another version than {version}"
        if engine.api == "vllm":
            assert not engine.is_paused()
        else:
            assert engine.is_ready()
        assert state(engine)["plan"] is None, "a plan is left"

    def metric(self, name, **labels):
        for line in self.mount.text("metrics").splitlines():
            if line.startswith(f"wsync_{name}{{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
                return int(line.split()[-1])
        return None


def state(engine):
    if engine.api == "vllm":
        return engine.ask("/collective_rpc", {"method": "wsync_patch", "kwargs": {"stage": "state"}})["results"][0]
    said = engine.ask("/weights_checker", {"action": 'wsync_patch:{"stage":"state"}'})
    return json.loads(said["ranks"][0]["checksums"]["wsync_patch"])


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("ranks", (1, 3))
def test_forward_and_back(api, ranks):
    "the first version is loaded, each later one patched, also back; the engine's memory is a fresh engine's"
    w = World()
    e = w.engine("e", api=api, options="update=patch", patch=ranks)
    assert " update=patch" in w.mount.engines()["e"]
    w.load(1)
    assert "how=whole" in w.last("loaded", "e") and "no version that is known here" in w.last("loaded", "e")
    w.holds(e, 1)
    for version in (2, 3, 1, 2):
        w.load(version)
        assert " how=patch " in w.last("loaded", "e"), w.last("loaded", "e")
        assert "result=ok" in w.last("patch-prepared", "e") and re.search(r" changed=[1-9]", w.last("patch-prepared", "e"))
        w.holds(e, version)
    assert " how=patch" in w.mount.engines()["e"] and "why_whole" not in w.mount.engines()["e"]
    assert w.metric("engine_updates_total", engine="e", how="patch") == 4
    assert w.metric("engine_updates_total", engine="e", how="whole") == 1
    if api == "sglang":
        assert e.ask("/model_info")["model_path"] == w.mount.file("actor/2")


@pytest.mark.parametrize("api", APIS)
def test_whole_where_it_cannot(api):
    "too much changed, the same version again, update=whole, no package: all is loaded, and said as loudly as was asked for"
    w = World()
    e = w.engine("e", api=api, options="update=patch")
    auto = w.engine("auto", api=api)
    whole = w.engine("whole", api=api, options="update=whole")
    bare = w.engine("bare", api=api, patch=0)
    asked = w.engine("asked", api=api, patch=0, options="update=patch")
    w.load(1)
    w.load(2)
    assert " how=patch " in w.last("loaded", "e") and " how=patch " in w.last("loaded", "auto")
    assert "how=" not in w.last("loaded", "whole") and "how=" not in w.last("loaded", "bare")
    assert " how=whole why_whole=" in w.last("loaded", "asked")
    engines = w.mount.engines()
    assert "update=" not in engines["bare"] and " update=whole" in engines["whole"]
    assert " update=patch how=whole why_whole=" in engines["asked"]
    assert "was to be patched" in w.mount.text()
    w.load(9)
    assert "more" in w.last("loaded", "e") and " how=whole " in w.last("loaded", "e")
    w.holds(e, 9)
    w.load(9)
    assert "serves this version already" in w.last("loaded", "e")
    for one in (e, auto, whole):
        w.holds(one, 9)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("fault,why", (("prepare", "rank 1: it was told to refuse"), ("refuse-put", "told to refuse")))
def test_refusals_load_all(api, fault, why):
    "what refuses before anything is written loads all, in the same switch"
    w = World()
    e = w.engine("e", "--patch-fault", fault, api=api, options="update=patch")
    w.load(1)
    w.load(2)
    assert " how=whole why_whole=" in w.last("loaded", "e") and why in w.last("loaded", "e"), w.last("loaded", "e")
    w.holds(e, 2)


@pytest.mark.parametrize("api", APIS)
def test_loaded_by_hand(api):
    "an engine that somebody loaded with another version, which is the same wherever the switch would write, loads all"
    w = World()
    e = w.engine("e", api=api, options="update=patch")
    for version in (4, 5):  # 4 differs from 1 in one byte, 5 in another
        folder = shutil.copytree(w.folders[1], f"{w.top}/{version}")
        with open(folder + "/model.safetensors", "r+b") as f:
            f.seek(-1000 * version, os.SEEK_END)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 1]))
        w.folders[version] = os.rename(folder, f"{w.top}/actor/{version}") or f"{w.top}/actor/{version}"
        w.mount.wait_version("actor", version)
    w.load(4)
    w.load(1)
    assert " how=patch " in w.last("loaded", "e"), w.last("loaded", "e")
    by_hand = w.mount.file("actor/5")
    if api == "vllm":
        e.ask("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": by_hand}})
    else:
        e.ask("/update_weights_from_disk", {"model_path": by_hand})
    assert e.serves() == "1" and e.checksum() == w.sum_of(5)
    w.load(4)
    assert " how=whole why_whole=" in w.last("loaded", "e") and "another version" in w.last("loaded", "e"), w.last("loaded", "e")
    w.holds(e, 4)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("other", ("digest", "nothing"))
def test_same_name(api, other):
    "workers that hold a version of the same name with another digest, or that do not say what they hold, load all"
    w = World()
    e = Engine(w.folders[9], "--patch", "2", api=api)
    between = Between(e)

    def change(_, text):
        served = re.compile(rb'(\\?"digest\\?": ?\\?")[0-9a-f]{32}' if other == "digest" else rb'(\\?"served\\?": ?)\{[^}]*\}')
        return served.sub(rb"\g<1>" + (b"0" * 32 if other == "digest" else b"null"), text) if b"patchable" in text else text

    w.mount.write(f"engine add e {api} {between.url} update=patch", "actor/ctl")
    w.load(1)
    w.load(2)
    assert " how=patch " in w.last("loaded", "e"), w.last("loaded", "e")
    between.change = change
    w.load(3)
    why = "hold another version" if other == "digest" else "do not say which version they hold"
    assert " how=whole why_whole=" in w.last("loaded", "e") and why in w.last("loaded", "e"), w.last("loaded", "e")
    w.holds(e, 3)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("by_hand", (False, True))
def test_first_switch(api, by_hand):
    "an engine that was started on a version of the mount, or loaded by hand with one, reports no version of it: what its workers say is the base, also of the way back"
    w = World()
    w.mount.write("pull 1", "actor/ctl")
    e = Engine(w.folders[9] if by_hand else w.mount.file("actor/1"), "--patch", "2", api=api)
    if by_hand and api == "vllm":
        e.ask("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": w.mount.file("actor/1")}})
    elif by_hand:
        e.ask("/update_weights_from_disk", {"model_path": w.mount.file("actor/1")})
    assert e.serves() == "default"
    w.mount.write(f"engine add e {api} {e.url} update=patch", "actor/ctl")
    w.mount.write(f"engine add bad {api} {Engine(w.folders[9], '--refuse', '2', api=api).url} update=whole", "actor/ctl")
    w.refused(2)
    assert " how=patch " in w.last("loaded", "e") and " how=undo " in w.last("brought-back", "e"), w.last("brought-back", "e")
    assert e.serves() == "default" and e.checksum() == w.sum_of(1) and state(e)["plan"] is None
    w.load(3)
    assert " how=patch " in w.last("loaded", "e"), w.last("loaded", "e")
    w.holds(e, 3)


@pytest.mark.parametrize("api", APIS)
def test_late_prepare(api):
    "a prepare that comes when the switch has gone on without it leaves no plan in the workers; nor does a drop that was lost"
    w = World()
    e = Engine(w.folders[9], "--patch", "2", api=api)
    between, released, passed = Between(e), threading.Event(), []
    says = lambda body, stage: body and re.search(rb'\\?"stage\\?": ?\\?"' + stage, body)

    def before(_, body):
        if says(body, b"prepare") and not released.is_set():
            assert released.wait(100)
        if between.loses and says(body, b"drop"):
            between.loses -= 1
            raise ConnectionError("lost")

    def change(_, text):
        if says(text, b"prepare"):
            passed.append(text)
        return text

    between.loses, between.before, between.change = 0, before, change
    w.mount.write(f"engine add e {api} {between.url} update=patch timeout=3", "actor/ctl")
    w.engine("bad", "--refuse", "2", api=api, options="update=whole")
    w.load(1)
    w.refused(2)
    assert " how=whole why_whole=" in w.last("loaded", "e"), w.last("loaded", "e")
    released.set()
    wait_for(lambda: passed, "the late prepare", 60)
    assert b"dropped before it came" in passed[0] and state(e)["plan"] is None, passed
    between.loses = 1
    w.load(3)
    assert " how=patch " in w.last("loaded", "e") and not between.loses, w.last("loaded", "e")
    wait_for(lambda: state(e)["plan"] is None, "the plan to be dropped after all", 60)


def test_listed_once():
    "what changed is listed once for all engines of a switch, also where delta-cache= has no room for the list, and once more when they go back"
    w = World("delta-cache=0")
    engines = [w.engine(f"e{i}", options="update=patch") for i in range(3)]
    listed = lambda: w.mount.text().count(" changes listed ")
    used = lambda: int(w.mount.status()["used_bytes"])
    w.load(1)
    w.mount.write("pull 2", "actor/ctl")
    before = used()
    for n, version in ((1, 2), (2, 1)):
        w.load(version)
        for i, e in enumerate(engines):
            assert " how=patch " in w.last("loaded", f"e{i}"), w.last("loaded", f"e{i}")
            w.holds(e, version)
        assert listed() == n
    wait_for(lambda: used() == before, "what the list took of the cache")


@pytest.mark.parametrize("api", APIS)
def test_undo(api):
    "one of three fails: those that were patched undo it, load nothing, and go on"
    w = World()
    one, two = (w.engine(f"e{i}", api=api, options="update=patch") for i in range(2))
    bad = w.engine("bad", "--refuse", "2", api=api, options="update=whole")
    w.load(1)
    assert "bad" in w.refused(2)
    for name, e in (("e0", one), ("e1", two)):
        assert " how=patch " in w.last("loaded", name)
        assert " how=undo " in w.last("brought-back", name), w.last("brought-back", name)
        w.holds(e, 1)
        assert w.metric("engine_updates_total", engine=name, how="undo") == 1
    assert bad.serves() == "1" and w.mount.text("actor/version") == "1\n"
    w.load(3)  # 2 is refused by number
    assert " how=patch " in w.last("loaded", "e0")
    w.holds(one, 3)


@pytest.mark.parametrize("api", APIS)
def test_half_a_put(api):
    "a worker fails when the others have written: undo, on it and its mate"
    w = World()
    bad = w.engine("bad", "--patch-fault", "half-put", api=api, options="update=patch")
    mate = w.engine("mate", api=api, options="update=patch")
    w.load(1)
    w.refused(2)
    assert "fail half-way" in w.last("loaded", "bad")
    for name, e in (("bad", bad), ("mate", mate)):
        assert " how=undo " in w.last("brought-back", name), w.last("brought-back", name)
        w.holds(e, 1)
    assert w.mount.engines()["bad"].startswith("serving 1")


@pytest.mark.parametrize("api", APIS)
def test_half_an_undo(api):
    "an undo that fails is followed by the whole load back"
    w = World()
    bad = w.engine("bad", "--patch-fault", "half-undo", api=api, options="update=patch")
    w.engine("refuses", "--refuse", "2", api=api, options="update=whole")
    w.load(1)
    w.refused(2)
    assert " how=whole why_whole=" in w.last("brought-back", "bad") and "result=ok" in w.last("brought-back", "bad")
    w.holds(bad, 1)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("fault", ("die-put", "die-undo"))
def test_dies_inside(api, fault):
    "an engine that dies between two workers is left; its mate goes back, and a new one is brought along whole"
    w = World()
    bad = w.engine("bad", "--patch-fault", fault, api=api, options="update=patch")
    mate = w.engine("mate", api=api, options="update=patch")
    if fault == "die-undo":
        w.engine("refuses", "--refuse", "2", api=api, options="update=whole")
    w.load(1)
    w.refused(2)
    assert not bad.alive()
    w.holds(mate, 1)
    assert " how=undo " in w.last("brought-back", "mate")
    again = Engine(w.folders[9], "--patch", "2", api=api, port=bad.port)
    wait_for(lambda: w.mount.engines()["bad"].startswith("serving 1"), "the new one", 60)
    w.holds(again, 1)


@pytest.mark.parametrize("api", APIS)
def test_lost_answer(api):
    "a put that was done and not answered in time is undone"
    w = World()
    bad = w.engine("bad", "--patch-fault", "lose-put", api=api, options="update=patch timeout=3 pause-timeout=3")
    w.load(1)
    w.refused(2)
    assert "result=ETIMEDOUT" in w.last("loaded", "bad") and " how=undo " in w.last("brought-back", "bad")
    w.holds(bad, 1)


@pytest.mark.parametrize("api", APIS)
def test_put_comes_late(api):
    "a put that waits somewhere until its undo was answered and the engine goes on finds no plan any more"
    w = World()
    e = Engine(w.folders[9], "--patch", "2", api=api)
    between, released, passed = Between(e), threading.Event(), []

    def before(_, body):
        if body and re.search(rb'\\?"stage\\?": ?\\?"put', body):
            assert released.wait(100)

    def change(path, text):
        if re.search(rb'"stage": ?"put', text.replace(b"\\", b"")):
            passed.append(text)
        if path in ("/resume", "/continue_generation") and not released.is_set() and e.serves() == "1" and between.late:
            released.set()
            wait_for(lambda: passed, "the put to pass", 60)
        return text

    between.late = False
    between.before, between.change = before, change
    w.mount.write(f"engine add e {api} {between.url} update=patch timeout=3 pause-timeout=3", "actor/ctl")
    w.load(1)
    between.late = True
    w.refused(2)
    assert " how=undo " in w.last("brought-back", "e"), w.last("brought-back", "e")
    assert passed and b"there is no such plan" in passed[0]
    w.holds(e, 1)


def test_note_without_a_plan():
    "a note of a plan that was dropped, as by another controller, changes nothing, and the answer says why"
    w = World()
    e = w.engine("e", api="sglang", options="update=patch")
    w.load(1)
    body = {"model_path": w.mount.file("actor/2"), "weight_version": "2@dir", "manifest": {"wsync_patch": {"plan": "gone"}}}
    with pytest.raises(urllib.error.HTTPError) as refused:
        e.ask("/update_weights_from_disk", body)
    assert "holds this plan" in json.load(refused.value)["message"]
    w.holds(e, 1)


@pytest.mark.parametrize("api", APIS)
def test_drift(api):
    "verify= finds a bit that is another than the file's: alarm, count, and the whole version"
    w = World()
    e = w.engine("e", "--patch-fault", "drift", api=api, options="update=patch verify=1")
    good = w.engine("good", api=api, options="verify=1")
    w.load(1)
    w.load(2)
    assert e.checksum() != w.sum_of(2)
    wait_for(lambda: w.events("drifted", "e"), "the alarm", 60)
    assert " differ" in w.last("drifted", "e")
    wait_for(lambda: w.mount.engines()["e"].startswith("serving 2") and " how=whole" in w.mount.engines()["e"], "the whole load", 60)
    w.holds(e, 2)
    assert w.metric("engine_verifications_total", engine="e", result="drifted") == 1 and " drifted=1" in w.mount.engines()["e"]
    assert "of the version that it serves" in w.mount.text("actor/last_error")
    wait_for(lambda: w.metric("engine_verifications_total", engine="good", result="ok"), "a comparison without a difference", 60)
    assert not w.events("drifted", "good")
    w.holds(good, 2)


@pytest.mark.parametrize("api", APIS)
def test_one_copy(api):
    "with one copy in memory the version before is gone when the next one is prepared: what changed is known by its records"
    w = World("copies=1")
    agent = Agent()
    w.mount.end()
    w.mount = Mount(agent.url, "copies=1")
    agent.publish("actor", 1, w.folders[1])
    w.mount.wait_version("actor", 1)
    e = w.engine("e", api=api, options="update=patch")
    w.engine("bad", "--refuse", "3", api=api, options="update=whole")
    w.load(1)
    for version in (2, 3):
        agent.publish("actor", version, w.folders[version])
        w.mount.wait_version("actor", version)
        if version == 2:
            w.load(2)
            assert " how=patch " in w.last("loaded", "e"), w.last("loaded", "e")
            w.holds(e, 2)
    w.refused(3)
    assert " how=undo " in w.last("brought-back", "e"), w.last("brought-back", "e")
    w.holds(e, 2)


@pytest.mark.parametrize("api", APIS)
def test_members(api):
    "a draft model and adapters beside it: the adapters stay, the draft model is loaded in the same pause, and all goes back"
    w = World()
    for v in (1, 2):
        checkpoint(DRAFT, f"{w.top}/draft/{v}", seed=v)
        os.makedirs(f"{w.top}/lora", exist_ok=True)
        os.rename(lora(v, width=64), f"{w.top}/lora/{v}")
    for model in ("draft", "lora"):
        w.mount.wait_version(model, 2)
    drafts = "--draft-model-path", f"{w.top}/draft/1", "--weight-transfer"
    e = w.engine("e", *drafts, api=api, options="update=patch draft=draft adapters=lora")
    bad = w.engine("bad", *drafts, "--refuse", "3", api=api, options="update=whole draft=draft")
    w.mount.write("load actor=1 draft=1 lora=1", "ctl")
    draft = lambda: e.ask("/weight_checker" if api == "vllm" else "/weights_checker", {"action": "checksum"})["draft_checksum"]
    sums = {1: draft()}
    w.mount.write("load actor=2 draft=2", "ctl")
    assert " how=patch " in w.last("loaded", "e"), w.last("loaded", "e")
    sums[2] = draft()
    assert sums[1] != sums[2] and listed(e) == ["lora@1"]
    w.holds(e, 2)
    loads = len(w.events("adapter-loaded", "e"))
    w.mount.refused("load actor=3 draft=1 lora=2", "ctl")
    assert " how=undo " in w.last("brought-back", "e")
    assert draft() == sums[2] and listed(e) == ["lora@1"] and bad.serves() == "2"
    w.holds(e, 2)
    w.mount.write("load actor=1 draft=1", "ctl")
    assert " how=patch " in w.last("loaded", "e") and len(w.events("adapter-loaded", "e")) == loads
    assert draft() == sums[1] and listed(e) == ["lora@1"]
    w.holds(e, 1)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("how", ("kill", "end", "cancel"))
def test_cut_off(api, how):
    "the daemon is killed or ends, or the switch is cancelled, while a put is written and not answered: back to the version before"
    w = World()
    e = w.engine("e", "--patch-fault", "lose-put", api=api, options="update=patch")
    w.load(1)
    writer = threading.Thread(target=lambda: w.mount.refused("2", "actor/version"))
    writer.start()
    wait_for(lambda: e.checksum() == w.sum_of(2), "the put")
    if how == "cancel":
        w.mount.write("cancel", "actor/ctl")
    else:
        w.mount.kill() if how == "kill" else w.mount.end()
    writer.join()
    if how == "cancel":
        assert " how=undo " in w.last("brought-back", "e"), w.last("brought-back", "e")
    else:
        w.mount = Mount(w.source, w.options, path=w.mount.path)
        wait_for(lambda: w.mount.engines().get("e", "").startswith("serving 1"), "the daemon anew", 60)
    w.holds(e, 1)


def test_quorum_and_rolling():
    "one that is lost in the middle of its put is brought along whole; the others go on patched, and back where too few are left"
    w = World()
    bad = w.engine("bad", "--patch-fault", "half-put", options="update=patch")
    good = w.engine("good", options="update=patch")
    w.load(1)
    w.mount.write("commit quorum=1", "actor/ctl")
    w.load(2)
    w.holds(good, 2)
    wait_for(lambda: w.mount.engines()["bad"].startswith("serving 2"), "the one that was left out", 60)
    w.holds(bad, 2)
    assert "brought along" in w.last("loaded", "bad")
    w.mount.write("commit rolling=1", "actor/ctl")
    w.refused(3)  # with no other out of service, none may fail
    for e in (good, bad):
        wait_for(lambda: "switching no" in w.mount.text("actor/status") and e.serves() == "2", "the way back", 60)
        w.holds(e, 2)


def test_daemon_anew():
    "a killed daemon's engines keep update=, and the next one patches what they serve"
    w = World()
    e = w.engine("e", options="update=patch verify=3600")
    w.load(1)
    w.load(2)
    w.mount.kill()
    w.mount = Mount(w.source, w.options, path=w.mount.path)
    w.mount.wait_version("actor", 2)
    wait_for(lambda: w.mount.text("actor/version") == "2\n" and w.mount.engines()["e"].startswith("serving 2"), "the daemon anew", 60)
    w.load(3)
    assert " how=patch " in w.last("loaded", "e"), w.last("loaded", "e")
    w.holds(e, 3)


def test_remote():
    "an engine of kind remote, by a template"
    w = World()
    e = Engine(w.folders[9], "--patch", "2", api="vllm")
    rpc = 'POST:/collective_rpc:{"method":"%s","kwargs":{%s}}'
    patch = rpc % ("wsync_patch", '"stage":"{stage}","plan":"{plan}","target":"{path}","base":"{base}"')
    load = rpc % ("reload_weights", '"weights_path":"{path}"')
    words = f"pause=POST:/pause resume=POST:/resume load={load} update=patch"
    w.mount.refused(f"engine add e remote {e.url} {words}", "actor/ctl")
    assert "patch=METHOD" in w.mount.text("actor/last_error")
    w.mount.write(f"engine add e remote {e.url} {words} patch={patch}", "actor/ctl")
    for version in (1, 2, 3):
        w.load(version)
        assert e.checksum() == w.sum_of(version) and not e.is_paused()
    assert " how=patch " in w.last("loaded", "e"), w.last("loaded", "e")
    assert state(e)["plan"] is None


def test_refused_options():
    w = World()
    e = Engine(w.folders[9], api="vllm")
    for words in ("update=fast", "update=whole verify=5", "verify=0", "patch=POST:/x", "update="):
        w.mount.refused(f"engine add e vllm {e.url} {words}", "actor/ctl")
    w.mount.refused(f"engine add e remote {e.url} load=POST:/x:{{path}} update=patch", "actor/ctl")
    w.mount.refused(f"engine add e remote {e.url} load=POST:/x:{{path}} patch=POST:/x", "actor/ctl")
