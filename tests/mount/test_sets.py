# beside others
# timeout: 480, takes: 80
# sanitizers: thread
"""Sets: the target of engines, their draft model and their adapters in one switch, with one pause and one way back; and releases of them."""
import json
import os
import subprocess
import urllib.error
import urllib.request

from adapters import listed, lora
from world import *

DRAFT = {f"draft.{i}.weight": ("BF16", [64, 64]) for i in range(3)}


class World:
    """Versions 1 of actor, draft and lora; engines of actor that serve all three."""

    def __init__(self, n=2, options=""):
        need_fuse()
        self.agent = Agent()
        self.folder, self.draft = checkpoint(MEDIUM, seed=1), checkpoint(DRAFT, seed=1)
        for version in (1, 2):
            self.publish(version)
        self.mount = Mount(self.agent.url, options)
        for model in ("actor", "draft", "lora"):
            self.mount.wait_version(model, 2)
        self.engines = {}
        for i in range(n):
            self.start(f"e{i}")

    def drafts(self):
        return "--draft-model-path", self.draft, "--weight-transfer"

    def publish(self, version):
        self.agent.publish("actor", version, checkpoint(MEDIUM, seed=version))
        self.agent.publish("draft", version, checkpoint(DRAFT, seed=version))
        self.agent.publish("lora", version, lora(version))

    def start(self, name, *args, add=True):
        old = self.engines.get(name)
        if old:
            old.end()
        e = self.engines[name] = Engine(self.folder, *self.drafts(), *args, api="vllm", port=old.port if old else None)
        if add and not old:
            self.mount.write(f"engine add {name} vllm {e.url} adapters=lora draft=draft", "actor/ctl")

    def load(self, words):
        self.mount.write(f"load {words}", "ctl")

    def served(self):
        return self.served_by(self.engines)

    def served_by(self, names):
        return {name: (e.serves(), draft_of(e), sorted(listed(e))) for name, e in self.engines.items() if name in names}

    def versions(self):
        return {model: self.mount.text(f"{model}/version").strip() for model in ("actor", "draft", "lora")}

    def pauses(self, name="e0"):
        return sum(" paused model=" in line and f"engine={name} " in line for line in self.mount.text("events").splitlines())


def draft_of(engine):
    return engine.ask("/weight_checker" if engine.api == "vllm" else "/weights_checker", {"action": "checksum"})["draft_checksum"]


def sums():
    "Checksums of the versions 1 and 2 of the draft."
    return {v: Engine(checkpoint(DRAFT, seed=v), api="vllm").checksum() for v in (1, 2)}


def test_set():
    "target, draft and adapters of two engines in one switch and one pause, and back by another one"
    w, drafts = World(), sums()
    w.load("actor=1 draft=1 lora=1")
    assert w.served() == {name: ("1", drafts[1], ["lora@1"]) for name in w.engines}, w.served()
    assert w.versions() == {"actor": "1", "draft": "1", "lora": "1"} and w.pauses() == 1
    w.load("lora=2 draft=2 actor=2")
    assert w.served() == {name: ("2", drafts[2], ["lora@1", "lora@2"]) for name in w.engines}, w.served()
    assert w.pauses() == 2 and "draft-version=2@" in w.mount.engines()["e0"] and w.mount.engines("draft")["e1"].startswith("serving 2@"), w.mount.engines()
    w.load("actor=previous draft=previous")
    assert {(v, d) for v, d, _ in w.served().values()} == {("1", drafts[1])} and w.versions() == {"actor": "1", "draft": "1", "lora": "2"}
    assert all(e.generate() for e in w.engines.values())


def test_way_back():
    "where one engine does not take the draft, or the adapter, or the target, all go back in all of them, and run"
    w, drafts = World(), sums()
    w.load("actor=1 draft=1 lora=1")
    before = w.served()
    for args, word in ((("--refuse-adapter", "lora@2"), "does not have the adapters of version 2: adapter lora@2"), (("--refuse", "2"), "did not load version 2"),
                       (("--die-at", "draft"), "did not load the draft model of version 2")):
        w.start("e1", *args)
        wait_for(lambda: w.mount.engines()["e1"].startswith("stale"), "the restarted engine to be seen")
        w.mount.write("engine sync e1", "actor/ctl") if "--die-at" not in args else None
        refused = w.mount.refused("load actor=2 draft=2 lora=2", "ctl")
        assert refused in ("EREMOTEIO", "ECONNRESET", "EHOSTUNREACH", "ETIMEDOUT"), (refused, args)
        said = w.mount.text("last_error")
        assert "engine e1 (" in said and word in said, said
        alive = [name for name, e in w.engines.items() if e.alive()]
        assert {name: now for name, now in w.served_by(alive).items()} == {name: before[name] for name in alive}, (args, w.served_by(alive))
        assert w.versions() == {"actor": "1", "draft": "1", "lora": "1"}
        assert not any(w.engines[name].is_paused() for name in alive), args


def test_whole():
    "a set that moves a target without its draft is refused before anything is pulled; one whose draft fits is not"
    w, drafts = World(n=1), sums()
    for words, file in (("2", "actor/version"), ("load actor=2 lora=2", "ctl")):
        assert w.mount.refused(words, file) == "EINVAL"
        said = w.mount.text(os.path.dirname(file), "last_error")
        assert "engine e0 also serves draft (draft=), of which none is loaded: add draft=N" in said, said
    assert "pulling model=actor" not in w.mount.text("events") and w.pauses() == 0
    w.mount.write("2", "draft/version")  # alone, with one pause of its own
    assert draft_of(w.engines["e0"]) == drafts[2] and w.engines["e0"].serves() != "2" and w.pauses() == 1
    assert not w.engines["e0"].is_paused() and w.mount.engines()["e0"].startswith("serving"), w.mount.engines()
    w.mount.write("2", "actor/version")  # it is of that number
    assert w.engines["e0"].serves() == "2" and draft_of(w.engines["e0"]) == drafts[2]
    assert w.mount.refused("1", "actor/version") == "EINVAL" and "of which 2 is loaded" in w.mount.text("actor/last_error")
    w.mount.write("2", "actor/version")  # the same again moves nothing


def test_draft_refused():
    "a draft that one engine refuses goes back on the others; one of an engine that cannot load drafts is refused before any pause"
    w, drafts = World(), sums()
    w.mount.write("1", "draft/version")
    w.start("e1", "--refuse", "2")
    wait_for(lambda: w.mount.engines()["e1"].startswith("serving"), "the restarted engine to be seen")
    assert w.mount.refused("2", "draft/version") == "EREMOTEIO"
    assert "did not load the draft model of version 2" in w.mount.text("draft/last_error"), w.mount.text("draft/last_error")
    assert [draft_of(e) for e in w.engines.values()] == [drafts[1]] * 2 and not any(e.is_paused() for e in w.engines.values())
    other = Engine(w.folder, "--draft-model-path", w.draft, api="vllm")
    w.mount.write(f"engine add other vllm {other.url} draft=draft", "actor/ctl")
    paused = w.pauses()
    assert w.mount.refused("2", "draft/version") == "EPROTO" and "--weight-transfer-config" in w.mount.text("draft/last_error"), w.mount.text("draft/last_error")
    assert w.pauses() == paused and [draft_of(e) for e in w.engines.values()] == [drafts[1]] * 2


def test_sglang():
    "an SGLang with our plug-in loads its draft by itself and in sets; one without it is refused, since its load would feed the target's files to it"
    w, drafts = World(n=0), sums()
    e, plain = Engine(w.folder, *w.drafts()), Engine(w.folder, "--draft-model-path", w.draft)
    assert w.mount.refused(f"engine add plain sglang {plain.url} draft=draft", "actor/ctl") == "EPROTO"
    assert "feed the target's files" in w.mount.text("actor/last_error"), w.mount.text("actor/last_error")
    inside = Engine(w.folder, "--draft-model-path", w.folder)
    w.mount.write(f"engine add inside sglang {inside.url} draft=draft", "actor/ctl")
    assert w.mount.refused("2", "draft/version") == "EPROTO" and "(MTP)" in w.mount.text("draft/last_error"), w.mount.text("draft/last_error")
    assert inside.is_ready()
    w.mount.write("engine remove inside", "actor/ctl")
    w.mount.write(f"engine add s sglang {e.url} draft=draft", "actor/ctl")
    w.mount.write("commit rolling=1", "actor/ctl")
    w.mount.write("2", "draft/version")  # alone
    assert draft_of(e) == drafts[2] and e.serves() == "default" and e.is_ready()
    e.kill()
    e = Engine(w.folder, *w.drafts(), port=e.port)
    wait_for(lambda: draft_of(e) == drafts[2] and e.is_ready(), f"the draft of one that was started anew: {w.mount.engines()}")
    w.load("actor=1 draft=1")
    assert draft_of(e) == drafts[1] and e.serves() == "1"
    w.load("actor=2 draft=2")
    assert draft_of(e) == drafts[2] and e.serves() == "2"


def test_frozen():
    "a draft model that no option names is never told anything, whatever its engine's target does"
    w = World(n=0)
    e = Engine(w.folder, *w.drafts(), api="vllm")
    w.mount.write(f"engine add f vllm {e.url}", "actor/ctl")
    before = draft_of(e)
    for words in ("actor=2 draft=2", "actor=1", "draft=1"):
        w.load(words)
    assert draft_of(e) == before and e.serves() == "1"


def test_restarts():
    "an engine that was restarted gets its target, its draft and its adapters again"
    w, drafts = World(), sums()
    w.mount.write("commit rolling=1", "actor/ctl")  # so that the reconciler brings it along
    w.load("actor=2 draft=2 lora=2")
    w.start("e0")
    wait_for(lambda: w.served()["e0"] == ("2", drafts[2], ["lora@2"]), f"e0 to be brought along: {w.served()}")
    wait_for(lambda: w.mount.engines()["e0"].startswith("serving 2"), "its state")


def test_draft_lost():
    "an engine that was started anew has lost its draft: a target that moves without it is refused, also where the draft's number fits"
    w, drafts = World(n=1), sums()
    w.load("actor=1 draft=2")
    assert w.served()["e0"][:2] == ("1", drafts[2])
    w.start("e0")
    wait_for(lambda: w.mount.engines()["e0"].split()[0] == "stale", "the engine to be seen as another")
    assert w.mount.refused("load actor=2", "ctl") == "EINVAL" and "add draft=N" in w.mount.text("last_error"), w.mount.text("last_error")
    w.load("actor=2 draft=2")
    assert w.served()["e0"][:2] == ("2", drafts[2])


def test_draft_without_target():
    "an engine that was started anew gets its draft again, also where no version of its target is current"
    w, drafts = World(n=1), sums()
    w.mount.write("commit rolling=1", "actor/ctl")
    w.mount.write("2", "draft/version")
    assert draft_of(w.engines["e0"]) == drafts[2]
    w.start("e0")
    wait_for(lambda: draft_of(w.engines["e0"]) == drafts[2], f"its draft: {w.mount.engines()}")
    wait_for(lambda: "draft-version=2@" in w.mount.engines()["e0"] and not w.engines["e0"].is_paused(), "its state")
    assert w.engines["e0"].serves() == "default" and w.mount.engines()["e0"].startswith("serving"), w.mount.engines()
    w.mount.write("commit all", "actor/ctl")
    w.start("e0")
    wait_for(lambda: "draft-version=unknown" in w.mount.engines()["e0"], "the new process to be seen")
    w.mount.write("engine sync e0", "actor/ctl")
    assert draft_of(w.engines["e0"]) == drafts[2]


def test_engines_without_a_process():
    "what an engine has is known to the next daemon also where it does not say which process it is, as it names what is current"
    w = World(n=0)
    for name in ("e0", "e1"):
        w.start(name, "--api-servers", "2")
    w.load("actor=2 draft=2 lora=2")
    for _ in range(3):  # the first look is before a version is current, now and then
        w.mount.end()
        w.mount = Mount(w.agent.url, path=w.mount.path)
        for model in ("actor", "draft", "lora"):
            w.mount.wait_version(model, 2)
        wait_for(lambda: w.versions() == {"actor": "2", "draft": "2", "lora": "2"}, "what was current")
        wait_for(lambda: all(line.startswith("serving") for line in w.mount.engines().values()), "a look at the engines")
        assert all("draft-version=2@" in line for line in w.mount.engines().values()), w.mount.engines()
    assert w.pauses() == 0


def test_daemons():
    "the next daemon knows which draft an engine has, where the same process answers; and costs no pause"
    port = free_port()
    w, drafts = World(options=f"listen=127.0.0.1:{port},insecure"), sums()

    def ready():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready/draft", timeout=60) as r:
                return [e["ready"] for e in json.load(r)["engines"]]
        except urllib.error.HTTPError as e:
            return [e["ready"] for e in json.load(e)["engines"]]
        except OSError:
            return None

    def another():
        w.mount.end()
        w.mount = Mount(w.agent.url, f"listen=127.0.0.1:{port},insecure", path=w.mount.path)
        for model in ("actor", "draft", "lora"):
            w.mount.wait_version(model, 2)
        wait_for(lambda: w.versions() == {"actor": "2", "draft": "2", "lora": "2"}, "what was current")

    w.load("actor=2 draft=2 lora=2")
    assert ready() == [True, True]
    another()
    wait_for(lambda: ready() == [True, True], f"the draft to be known: {w.mount.engines()}")
    assert w.pauses() == 0 and all("draft-version=2@" in line for line in w.mount.engines().values()), w.mount.engines()
    w.mount.end()
    w.start("e0", add=False)
    w.mount = Mount(w.agent.url, f"listen=127.0.0.1:{port},insecure", path=w.mount.path)
    for model in ("actor", "draft", "lora"):
        w.mount.wait_version(model, 2)
    wait_for(lambda: w.versions() == {"actor": "2", "draft": "2", "lora": "2"}, "what was current")
    wait_for(lambda: w.mount.engines()["e0"].startswith("stale"), "the other process to be seen")
    assert ready() == [False, True] and "draft-version=unknown" in w.mount.engines()["e0"], w.mount.engines()
    w.mount.write("engine sync e0", "actor/ctl")
    assert ready() == [True, True] and w.served()["e0"][:2] == ("2", drafts[2])


def test_killed_first():
    "the daemon is killed in a set that has a model without a version before: the next one goes forward to all of it"
    need_fuse()
    top = unique("top")
    for model, version in (("actor", 1), ("actor", 2), ("critic", 1)):
        checkpoint(MEDIUM, f"{top}/{model}/{version}", seed=version)
    mount = Mount(f"dir:{top}")
    mount.wait_version("actor", 2)
    mount.wait_version("critic", 1)
    engines = [Engine(f"{top}/actor/1", api="vllm"), Engine(f"{top}/actor/1", "--slow", "3000", api="vllm")]
    mount.write(f"engine add a vllm {engines[0].url}", "actor/ctl")
    mount.write(f"engine add b vllm {engines[1].url}", "critic/ctl")
    mount.write("1", "actor/version")
    write = subprocess.Popen(["sh", "-c", f"echo load actor=2 critic=1 > {mount.file('ctl')}"], stderr=subprocess.DEVNULL)
    at_end(lambda: (write.kill(), write.wait()))
    wait_for(lambda: "loaded model=actor version=2" in mount.text("events"), "one engine to have it")
    mount.kill()
    mount.log.close()
    mount.detach()
    mount = Mount(f"dir:{top}", path=mount.path)
    mount.wait_version("critic", 1)
    wait_for(lambda: [mount.text(f"{m}/version") for m in ("actor", "critic")] == ["2\n", "1\n"], "the whole set")
    wait_for(lambda: [e.serves() for e in engines] == ["2", "1"] and not any(e.is_paused() for e in engines), "the engines")


def test_reboot():
    "an engine is not brought along with its target alone while the draft that was current is on its way"
    need_fuse()
    top, drafts = unique("top"), sums()
    checkpoint(MEDIUM, f"{top}/actor/1", seed=1)
    checkpoint(DRAFT, f"{top}/draft/1", seed=1)
    args = (f"{top}/actor/1", "--draft-model-path", checkpoint(DRAFT, seed=5), "--weight-transfer")
    mount, e = Mount(f"dir:{top}"), Engine(*args, api="vllm")
    mount.wait_version("draft", 1)
    mount.write(f"engine add e vllm {e.url} draft=draft", "actor/ctl")
    mount.write("commit rolling=1", "actor/ctl")
    mount.write("load actor=1 draft=1", "ctl")
    mount.end()
    e.end()
    os.rename(f"{top}/draft", f"{top}.away")
    e = Engine(*args, api="vllm", port=e.port)
    mount = Mount(f"dir:{top}", path=mount.path)
    mount.wait_version("actor", 1)
    wait_for(lambda: mount.text("actor/version") == "1\n" and mount.engines()["e"].startswith("stale"), "the engine to be seen")
    assert mount.refused("engine sync e", "actor/ctl") == "EAGAIN" and "is on its way here" in mount.text("actor/last_error"), mount.text("actor/last_error")
    os.rename(f"{top}.away", f"{top}/draft")
    wait_for(lambda: mount.engines()["e"].startswith("serving 1"), f"the set: {mount.engines()}")
    assert draft_of(e) == drafts[1] and sum(" paused model=actor" in line for line in mount.text("events").splitlines()) == 1, mount.text("events")


def test_runs():
    "a target of another run does not take the draft of the run before for its own, though it has the number"
    w, drafts = World(n=1), sums()
    w.load("actor=2 draft=2")
    w.agent.end()
    w.agent = Agent(port=w.agent.port)
    w.agent.publish("actor", 2, checkpoint(MEDIUM, seed=3))
    wait_for(lambda: any("@" in name for name in os.listdir(w.mount.file("actor"))), "the former run's to be superseded")
    assert w.mount.refused("2", "actor/version") == "EINVAL"
    assert "of which 2 of another run is loaded" in w.mount.text("actor/last_error"), w.mount.text("actor/last_error")
    w.mount.write("follow-published", "actor/policy")
    w.agent.publish("draft", 2, checkpoint(DRAFT, seed=1))
    wait_for(lambda: draft_of(w.engines["e0"]) == drafts[1], f"the new run's draft: {w.mount.engines()}")
    wait_for(lambda: w.mount.text("actor/version") == "2\n" and w.pauses() == 2, "both to be followed in one pause")


def test_followed():
    "a target that is followed waits for the draft of its number, and takes it along"
    w, drafts = World(n=1), sums()
    w.load("actor=1 draft=1 lora=1")
    for model in ("actor", "draft"):  # the draft's own policy costs no pause of its own
        w.mount.write("follow-published", f"{model}/policy")
    wait_for(lambda: w.versions() == {"actor": "2", "draft": "2", "lora": "1"}, f"both to be followed: {w.versions()}")
    assert w.pauses() == 2 and draft_of(w.engines["e0"]) == drafts[2]
    w.agent.publish("actor", 3, checkpoint(MEDIUM, seed=3))
    w.mount.wait_version("actor", 3)
    w.agent.publish("draft", 3, checkpoint(DRAFT, seed=3))
    wait_for(lambda: w.versions() == {"actor": "3", "draft": "3", "lora": "1"}, f"both to be followed: {w.versions()}")
    assert w.pauses() == 3 and w.mount.text("actor/last_error") == ""


def test_release():
    "one release of target, draft and adapters is one switch; one that lacks the draft is aborted by what the mount says"
    w, drafts = World(options="host=n0"), sums()
    w.load("actor=1 draft=1 lora=1")
    for model in ("actor", "draft", "lora"):
        w.mount.write("follow-released", f"{model}/policy")
    registered = lambda model: [m["follows"] for m in w.agent.get(f"/v1/{model}/mounts")] == [True]
    wait_for(lambda: all(registered(m) for m in ("actor", "draft", "lora")), "the mount to register")
    release = [WSYNC, "release", "--agent", w.agent.url, "--wait", str(30 * SLOW)]
    failed = subprocess.run([*release, "actor", "2"], capture_output=True, text=True, timeout=240)
    assert failed.returncode and "also serves draft" in failed.stdout + failed.stderr, failed.stdout + failed.stderr
    assert w.versions()["actor"] == "1" and w.pauses() == 1
    done = subprocess.run([*release, "actor=2", "draft=2", "lora=2"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert w.versions() == {"actor": "2", "draft": "2", "lora": "2"} and w.pauses() == 2
    assert w.served() == {name: ("2", drafts[2], ["lora@1", "lora@2"]) for name in w.engines}, w.served()
