# beside others
# timeout: 900, takes: 70
"""Random sets of target, draft and adapters, with engines that fail at random and daemons that are killed; SET_ROUNDS rounds from the
printed seed (SET_SEED). A write moves all models of its set or none. After repairs all engines serve what is current of each, list the
same adapters, and none is paused."""
import os
import random
import shutil
import threading
import time

from adapters import listed, lora
from world import *

ROUNDS = amount("SET_ROUNDS", 30, 100)
SEED = int(os.environ.get("SET_SEED", random.SystemRandom().randrange(1 << 32)))
VERSIONS = (1, 2, 3)
MODELS = ("actor", "draft", "lora")
DRAFT = {"draft.weight": ("BF16", [64, 64])}
KEPT = 2


class Fleet:
    def __init__(self, r):
        self.r = r
        self.top = unique("source")
        for v in VERSIONS:
            checkpoint(MEDIUM, f"{self.top}/actor/{v}", seed=v)
            checkpoint(DRAFT, f"{self.top}/draft/{v}", seed=v)
            shutil.copytree(lora(v), f"{self.top}/lora/{v}")
        with scope():
            one = {v: Engine(f"{self.top}/actor/{v}", "--draft-model-path", f"{self.top}/draft/{v}", api="vllm") for v in VERSIONS}
            self.sums = {v: self.held(e) for v, e in one.items()}
        self.mount = Mount(f"dir:{self.top}")
        self.wait_versions()
        self.engines = {}
        for i in range(3):
            e = self.start(f"e{i}")
            self.mount.write(f"engine add e{i} vllm {e.url} adapters=lora:{KEPT} draft=draft", "actor/ctl")
        self.mount.write("load actor=1 draft=1 lora=1", "ctl")
        self.current = dict.fromkeys(MODELS, "1")

    def wait_versions(self):
        for model in MODELS:
            self.mount.wait_version(model, VERSIONS[-1])

    def held(self, engine):
        "(checksum of the target, of the draft)"
        said = engine.ask("/weight_checker", {"action": "checksum"})
        return said["per_engine_checksum"], said["draft_checksum"]

    def start(self, name, *args):
        old = self.engines.get(name)
        if old and old.alive():
            old.kill()
        self.engines[name] = Engine(f"{self.top}/actor/1", "--draft-model-path", f"{self.top}/draft/1", "--weight-transfer", *args, api="vllm",
                                    port=old.port if old else None)
        return self.engines[name]

    def faults(self):
        version = str(self.r.choice(VERSIONS))
        return self.r.choice(([], ["--refuse", version], ["--refuse-adapter", f"lora@{version}"], ["--refuse-adapter", f"lora@{version}", "--lie"],
                              ["--slow", "200"], ["--die-at", self.r.choice(("pause", "load", "reply", "adapter", "draft", "continue"))]))

    def words(self):
        "{model: version} of one write; now and then one that is not whole."
        which = self.r.choice((MODELS, MODELS, ("actor", "draft"), ("lora",), ("lora",), ("draft",), ("draft", "lora"), ("actor", "lora"), ("actor",)))
        version = self.r.choice(VERSIONS)
        return {model: str(version if model != "lora" else self.r.choice(VERSIONS)) for model in which}

    def lacks_draft(self, words):
        moves = words.get("actor", self.current["actor"]) != self.current["actor"]
        return moves and "draft" not in words and words["actor"] != self.current["draft"]

    def versions(self):
        return {model: self.mount.text(f"{model}/version").strip() for model in MODELS}

    def kill_soon(self):
        thread = threading.Thread(target=lambda: (time.sleep(self.r.random() * 0.2), self.mount.kill()))
        thread.start()
        return thread

    def round(self):
        if self.r.randrange(3) == 0:
            self.start(self.r.choice(list(self.engines)), *self.faults())
        words, ok = self.words(), False
        killer = self.kill_soon() if self.r.randrange(6) == 0 else None
        with contextlib.suppress(OSError):
            self.mount.write_once("load " + " ".join(f"{m}={v}" for m, v in words.items()), "ctl")
            ok = True
        if killer:
            killer.join()
            self.mount = Mount(f"dir:{self.top}", path=self.mount.path)
            self.wait_versions()
            wait_for(lambda: "none" not in self.versions().values(), "what was current")
        now, moved = self.versions(), self.current | words
        assert now in (self.current, moved), (now, words, self.current)  # all of it or nothing
        assert killer or now == (moved if ok else self.current), (now, words, ok, self.current)
        assert not (ok and self.lacks_draft(words)), (words, self.current)
        self.current = now
        self.settle(words)

    def settle(self, words):
        for name, e in self.engines.items():
            if not e.alive() or self.r.randrange(2):
                self.start(name)
        end = time.monotonic() + 60 * SLOW
        while not all([self.is_right(name) for name in self.engines]):
            assert time.monotonic() < end, (words, self.current, self.mount.engines(), {n: self.seen(n) for n in self.engines})

    def seen(self, name):
        e = self.engines[name]
        return (self.held(e), set(listed(e)), e.is_paused()) if e.alive() else None

    def is_right(self, name):
        "Does the engine hold what is current? If not: what an operator does."
        now, target = self.current, self.sums[int(self.current["actor"])][0]
        if not self.engines[name].alive():  # it dies on purpose, of what brings it along
            self.start(name)
        try:
            sums, adapters, paused = self.seen(name)
            same = {frozenset(listed(e)) for e in self.engines.values()}
            if sums == (target, self.sums[int(now["draft"])][1]) and f"lora@{now['lora']}" in adapters and len(adapters) <= KEPT and len(same) == 1 and not paused:
                return self.mount.engines()[name].split()[0] == "serving"
            if "adapters_error=" in self.mount.engines()[name]:  # it refuses one on purpose
                self.start(name)
            if sums != (target, self.sums[int(now["draft"])][1]) or paused or self.mount.engines()[name].split()[0] == "stale":
                self.mount.write_once(f"engine sync {name}", "actor/ctl")
        except OSError:
            if self.mount.engines()[name].split()[0] != "serving":  # it refuses a version on purpose
                self.start(name)
        time.sleep(0.05)
        return False


def test_rounds():
    "random sets, failing engines and killed daemons: all of a set or nothing, and the same on every engine"
    need_fuse()
    print(f"# SET_SEED={SEED} SET_ROUNDS={ROUNDS}", flush=True)
    fleet = Fleet(random.Random(SEED))
    for i in range(ROUNDS):
        try:
            fleet.round()
        except BaseException:
            print(f"# in round {i}\n{fleet.mount.text('events')[-6000:]}", flush=True)
            raise
