# beside others
# timeout: 900, takes: 200 (with LONG=1)
"""Random switches with engines that fail at random and daemons that are killed; SWITCH_ROUNDS rounds from the printed seed (SWITCH_SEED).
After each round all engines that answer serve one version, the one that `current` names, their memory holds it, and none is paused."""
import os
import random
import threading
import time

from world import *

ROUNDS = amount("SWITCH_ROUNDS", 250, 1000)
SEED = int(os.environ.get("SWITCH_SEED", random.SystemRandom().randrange(1 << 32)))
VERSIONS = (1, 2, 3)
PATCH_FAULTS = ("prepare", "refuse-put", "half-put", "die-put", "half-undo", "die-undo", "lose-put")


class Fleet:
    def __init__(self, r, options="", patches=False):
        self.r, self.options, self.patches = r, options, patches
        top = unique("source")
        self.folders = {v: f"{top}/actor/{v}" for v in VERSIONS}
        for v, folder in self.folders.items():
            if patches and v > 1:
                os.rename(step(self.folders[v - 1], seed=v), folder)
            else:
                checkpoint(SMALL, folder, seed=v)
        self.source = f"dir:{top}"
        self.sums = {api: {v: self.sum_of(f, api) for v, f in self.folders.items()} for api in ("sglang", "vllm")}
        self.others = set(os.listdir(f"{TESTDIR}/state")) if os.path.isdir(f"{TESTDIR}/state") else set()  # of mounts before
        self.mount = Mount(self.source, self.options)
        self.mount.wait_version("actor", VERSIONS[-1])
        self.engines = {}
        for i in range(3):
            self.start(f"e{i}", ("sglang", "vllm")[i % 2])
            e = self.engines[f"e{i}"]
            how = " update=patch timeout=6 pause-timeout=6" if patches else ""
            self.mount.write(f"engine add e{i} {e.api} {e.url}{how}", "actor/ctl")
        self.current = None
        self.patched_and_undone = [0, 0]

    def sum_of(self, folder, api):
        engine = Engine(folder, api=api)
        value = engine.checksum()
        engine.end()
        return value

    def start(self, name, api, port=None, *args):
        args = [*(args or self.faults()), *(["--patch", str(self.r.randrange(1, 4))] if self.patches else [])]
        self.engines[name] = Engine(self.folders[self.r.choice(VERSIONS)], *args, api=api, port=port)

    def faults(self):
        """Two of five engines are good; the others refuse a version, report a wrong one, are slow, or die at some step."""
        kind = self.r.randrange(5)
        if self.patches and self.r.randrange(2):
            return ["--patch-fault", self.r.choice(PATCH_FAULTS), *self.r.choice(([], ["--realistic"]))]
        if kind == 0:
            return ["--refuse", str(self.r.choice(VERSIONS)), "--realistic"]
        if kind == 1:
            return ["--slow", str(self.r.choice((50, 300)))]
        if kind == 2:
            return ["--refuse", str(self.r.choice(VERSIONS)), *self.r.choice(([], ["--lie"]))]
        if kind == 3 and self.r.randrange(2):
            return ["--die-at", self.r.choice(("pause", "open", "load", "reply", "continue"))]
        return ["--realistic"]

    def heal(self, name):
        """What an operator does with an engine that died or is broken: restarts it without the fault."""
        old = self.engines[name]
        if old.alive():
            old.kill()
        self.start(name, old.api, old.port, "--realistic")

    def kill_daemon_soon(self):
        def kill():
            time.sleep(self.r.random() * 0.15)
            self.mount.kill()

        thread = threading.Thread(target=kill)
        thread.start()
        return thread

    def has_committed(self):
        """Whether the settings name a current version; a daemon killed before it answers a write may already have stored it."""
        for name in set(os.listdir(f"{TESTDIR}/state")) - self.others:
            with open(f"{TESTDIR}/state/{name}", errors="replace") as f:
                if any(line.startswith("current ") for line in f) and not name.endswith((".lock", ".new")):
                    return True
        return False

    def count_events(self):
        """How many patches and undos there were: of each round, as the log is short and of one daemon."""
        events = self.mount.text("actor/events")
        self.patched_and_undone = [n + (how in events) for n, how in zip(self.patched_and_undone, (" how=patch ", " how=undo "))]

    def round(self):
        what, anew = self.r.randrange(10), None
        if what < 4:
            self.mount.write(f"commit {self.r.choice(('all', 'all', 'quorum=1', 'quorum=2', 'rolling=1'))}", "actor/ctl")
        elif what == 4:
            anew = self.r.choice(list(self.engines))
            self.heal(anew)
        elif what < 8:
            anew = self.r.choice(list(self.engines))
            old = self.engines[anew]
            old.kill()
            self.start(anew, old.api, old.port)
        killer = self.kill_daemon_soon() if self.r.randrange(6) == 0 else None
        version, ok = self.r.choice(VERSIONS), False
        try:
            self.mount.write(str(version), "actor/version")
            ok = True
        except OSError:
            pass
        if killer:
            killer.join()
            committed = self.has_committed()
            self.mount = Mount(self.source, self.options, path=self.mount.path)
            self.mount.wait_version("actor", VERSIONS[-1])
            if self.current or ok or committed:
                wait_for(lambda: self.mount.text("actor/version") != "none\n", "the current version")
        now = self.mount.text("actor/version").strip()
        if not killer:
            assert now == (str(version) if ok else self.current or "none"), (now, version, ok, self.current)
        self.count_events()
        before, self.current = self.current, None if now == "none" else now
        if not killer:
            self.check_words(before, ok, anew)
        self.settle()

    def states(self):
        return {l.split()[0]: l.split()[1:3] for l in self.mount.text("actor/engines").splitlines()}

    def check_words(self, before, ok, anew):
        """The mount's state of each engine is true before anything is repaired. A restarted engine may not have been queried yet if the
        switch failed early."""
        commit_all = "commit all" in self.mount.text("actor/status")
        rolled_back = not ok and commit_all
        wait_for(lambda: "switching no" in self.mount.text("actor/status"), "the reconciler's end")
        for name, (state, version) in self.states().items():
            e = self.engines[name]
            assert state not in ("paused", "loading") or not commit_all, (name, state)  # else the reconciler is working on it
            assert state == "serving" or not (ok and commit_all), (name, state)
            if state in ("paused", "loading") or (name == anew and not ok):
                continue
            if state != "serving" or not e.alive():
                assert state in ("serving", "broken", "unknown", "stale"), (name, state)
                continue
            try:
                serves = e.serves()
            except OSError:
                continue  # has just died
            assert serves == version, (name, serves, version)
            assert not ok or version == self.current, (name, version, self.current)
            assert not rolled_back or version in (before, "default") or not before, (name, version, before)
            if version.isdigit():
                assert e.checksum() == self.sums[e.api][int(version)], (name, version)
            e.generate()  # a paused engine would hold the request forever

    def settle(self):
        """Every engine that is not serving is reported as such; after repairs it serves the current version."""
        if not self.current:
            for name, e in self.engines.items():
                if e.alive() and self.states()[name][0] == "serving" and e.api == "vllm":
                    assert not e.is_paused(), name
            return
        for name, (state, _) in self.states().items():
            if state in ("broken", "unknown") and self.r.randrange(3):
                self.heal(name)
        for name in self.engines:
            if not self.engines[name].alive():
                self.heal(name)
        end = time.monotonic() + 60 * SLOW
        while not all([self.serves_current(name) for name in self.engines]):
            assert time.monotonic() < end, (self.current, self.states())
        for name, e in self.engines.items():
            assert e.checksum() == self.sums[e.api][int(self.current)], (name, self.current)
            if e.api == "vllm":
                wait_for(lambda: not e.is_paused(), f"{name} to run")  # the reconciler may be working on it

    def serves_current(self, name):
        """Whether the engine serves the current version, by its own answer and by the mount's; if not, does what an operator would do."""
        e, state = self.engines[name], self.states()[name]
        try:
            if e.serves() == self.current and state == ["serving", self.current]:
                return True
            self.mount.write(f"engine sync {name}", "actor/ctl")
        except OSError:
            if not e.alive() or self.states()[name][0] in ("broken", "unknown", "stale"):
                self.heal(name)
        return False


def test_rounds():
    "random switches, failing engines and killed daemons: one version everywhere, and no engine is left paused"
    need_fuse()
    print(f"# SWITCH_SEED={SEED} SWITCH_ROUNDS={ROUNDS}", flush=True)
    walk(Fleet(random.Random(SEED)), ROUNDS)


def test_rounds_with_one_copy():
    "the same with one copy in memory"
    need_fuse()
    print(f"# SWITCH_SEED={SEED} SWITCH_ROUNDS={ROUNDS}", flush=True)
    walk(Fleet(random.Random(SEED), "copies=1"), ROUNDS // 2)


def test_rounds_with_patches():
    "the same with engines that write what changed into their weights, and fail in the middle of that"
    need_fuse()
    print(f"# SWITCH_SEED={SEED} SWITCH_ROUNDS={ROUNDS}", flush=True)
    fleet = Fleet(random.Random(SEED), patches=True)
    walk(fleet, ROUNDS // 2)
    events = fleet.patched_and_undone
    assert ROUNDS < 100 or min(events) > 0, f"of patches and undos there were {events}"


def walk(fleet, rounds):
    for i in range(rounds):
        try:
            fleet.round()
        except BaseException:
            print(f"# in round {i}\n{fleet.mount.text('actor/events')[-4000:]}", flush=True)
            raise
