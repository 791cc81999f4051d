# timeout: 2400, takes: 150 (with LONG=1: 400)
"""Random switches of a real vLLM by a mount: patches forwards and back, loads, undos, cancels, deadlines, daemons that are killed in each
step. WALK_STEPS steps from the printed seed (WALK_SEED). After each the parameters are, bit for bit, those of a vLLM that loaded the version
that it reports, and its log probabilities likewise."""
import collections
import json
import os
import random
import threading
import time

from between import Between
from families import change
from test_vllm_patch import PLAIN, Patched, families
from world import Engine, Mount, amount, wait_for

STEPS = amount("WALK_STEPS", 20, 200)
SEED = int(os.environ.get("WALK_SEED", random.SystemRandom().randrange(1 << 32)))
EVERY = 20  # steps between two comparisons of log probabilities
SPARSE, DENSE = 5, 6
VERSIONS = (1, 2, 3, 4, SPARSE, DENSE)
WAIT = 120


class Walk:
    def __init__(self, r):
        self.r, self.counts, self.seen, self.started = r, collections.Counter(), set(), time.monotonic()
        self.top = families("qwen3")
        os.rename(os.path.join(self.top, "qwen3"), os.path.join(self.top, "actor"))
        self.folders = {v: os.path.join(self.top, "actor", str(v)) for v in VERSIONS}
        change(self.folders[4], self.folders[SPARSE], SPARSE, share=1000)
        change(self.folders[SPARSE], self.folders[DENSE], DENSE, share=8)
        self.bits, self.answers = {}, {}
        loaded = Patched(self.folders[1], *PLAIN).wait()
        for v in VERSIONS:
            loaded.load(self.folders[v])
            self.bits[v], self.answers[v] = loaded.digests(), loaded.answers()
        loaded.stop()
        assert len({str(bits) for bits in self.bits.values()}) == len(VERSIONS) == len({str(said) for said in self.answers.values()})
        self.path = None
        self.start_mount()
        self.server = Patched(self.mount.file("actor", 1), *PLAIN).wait()
        self.between = Between(self.server)
        self.between.before = self.before
        self.at, self.then, self.fired = None, None, threading.Event()
        self.mount.write(f"engine add v vllm {self.between.url} update=patch", "actor/ctl")
        self.mount.write("1", "actor/version")
        self.current = 1
        self.check()

    def start_mount(self):
        self.mount = Mount(f"dir:{self.top}", path=self.path)
        self.path = self.mount.path
        for v in VERSIONS:
            self.mount.wait_version("actor", v)

    def before(self, path, body):
        """What a step does when the mount's request for a stage comes, before the engine gets it."""
        if self.at is None or not body or path != "/collective_rpc":
            return
        said = json.loads(body)
        if said.get("method") == "wsync_patch" and said["kwargs"].get("stage") == self.at:
            self.at = None
            self.then()
            self.fired.set()

    def when(self, stage, then):
        self.fired.clear()
        self.then, self.at = then, stage

    def load(self, text):
        """Whether the switch was made."""
        try:
            self.mount.write(text, "actor/ctl")
            return True
        except OSError:
            return False

    def settled(self):
        """Whether nothing is under way and the engine serves a version; what it says then."""
        if "switching no" not in self.mount.text("actor/status") or not self.mount.engines().get("v", "").startswith("serving "):
            return None
        said = self.server.stage("state")[0]  # a prepare that came after its switch had ended leaves a plan, which the next switch drops
        return (said["plan"] is None or not said["put"]) and int(self.server.serves())

    def check(self):
        now = wait_for(self.settled, "the engine to serve", WAIT)
        assert self.mount.text("actor/version").strip() == str(now)
        assert self.server.digests() == self.bits[now], f"its parameters are not those of {now}"
        self.server.done("verify")
        for line in self.mount.text("actor/events").splitlines():
            if line not in self.seen and " engine=v " in line:
                self.seen.add(line)
                if " how=whole " in line:
                    print("#  ", line, flush=True)
                for what in ("loaded", "brought-back"):
                    for how in ("patch", "whole", "undo"):
                        self.counts[f"{what} {how}"] += f" {what} " in line and f" how={how} " in f"{line} "
        return now

    def other(self):
        return self.r.choice([v for v in VERSIONS if v != self.current])

    def near(self):
        """A version that a patch leads to."""
        return self.r.choice([v for v in VERSIONS if v not in (self.current, DENSE)]) if self.current != DENSE else None

    # --- steps ---
    def switch(self):
        target = self.other()
        assert self.load(f"load {target}"), self.mount.text("actor/last_error")
        assert self.check() == target

    def by_hand(self):
        v = self.other()
        self.server.load(self.folders[v])
        assert self.server.digests() == self.bits[v]
        self.switch()

    def cut(self, stage, then, options=""):
        """A switch in which something happens; whichever version is served afterwards is whole."""
        target, before = self.near(), self.current
        if target is None:
            return self.switch()
        self.when(stage, then)
        made = self.load(f"load {target} {options}")
        hit = self.at is None
        self.at = None
        if hit:
            wait_for(self.fired.is_set, "what was to happen", WAIT)
        self.counts[f"{'hit' if hit else 'missed'} {stage}"] += 1
        print(f"#   to {target}, {'hit' if hit else 'missed'} in {stage}", flush=True)
        if not hit:
            print("#  ", *[line for line in self.mount.text("actor/events").splitlines() if " engine=v " in line][-2:], sep="\n#   ", flush=True)
        if not self.mount.alive():
            self.start_mount()
            assert self.check() in (before, target)
        else:
            assert self.check() == (target if made else before)

    def cancel(self):
        self.cut(self.r.choice(("prepare", "put")), lambda: self.mount.write("cancel", "actor/ctl"))

    def deadline(self):
        self.cut(self.r.choice(("prepare", "put")), lambda: time.sleep(2.5), "deadline=2")

    def kill(self):
        self.cut(self.r.choice(("prepare", "put", "drop")), self.mount.kill)

    def mate(self):
        self.with_mate(lambda: None)

    def kill_undo(self):
        self.with_mate(self.mount.kill)

    def with_mate(self, then):
        """A mate's put fails half-way: all go back."""
        mate = Engine(self.folders[self.current], "--patch", "2", "--patch-fault", "half-put", api="vllm")
        self.mount.write(f"engine add mate vllm {mate.url} update=patch", "actor/ctl")
        serves = lambda: self.mount.engines().get("mate", "").startswith(f"serving {self.current} ")
        if not serves():
            assert self.load(f"load {self.current}"), self.mount.text("actor/last_error")
            wait_for(serves, "the mate", WAIT)
        self.check()
        self.cut("undo", then)

        def removed():
            try:
                self.mount.write("engine remove mate", "actor/ctl")
                return True
            except OSError:
                return "mate" not in self.mount.engines()

        wait_for(removed, "the mate to be removed", WAIT)
        mate.end()
        self.check()

    STEPS = {"switch": 6, "by_hand": 1, "cancel": 2, "deadline": 1, "kill": 3, "mate": 2, "kill_undo": 1}

    def step(self, n):
        names = list(self.STEPS)
        name = names[n] if n < len(names) else self.r.choices(names, list(self.STEPS.values()))[0]
        self.counts[f"step {name}"] += 1
        print(f"# {n} {name} from {self.current}, after {time.monotonic() - self.started:.0f} s", flush=True)
        getattr(self, name)()
        self.current = self.check()
        if n % EVERY == EVERY - 1:
            assert self.server.answers() == self.answers[self.current], (n, name)
            self.counts["answers compared"] += 1
            print("#", self.summary(), flush=True)

    def summary(self):
        return ", ".join(f"{what}: {n}" for what, n in sorted(self.counts.items()) if n)


def test_walk():
    "each step ends in one version, by bit what a load of it is"
    print(f"# WALK_SEED={SEED} WALK_STEPS={STEPS}", flush=True)
    walk = Walk(random.Random(SEED))
    try:
        for n in range(STEPS):
            walk.step(n)
    finally:
        print("#", walk.summary(), flush=True)
    assert walk.counts["loaded patch"] and walk.counts["brought-back undo"] and all(walk.counts[f"hit {stage}"] for stage in ("put", "undo"))
