#!/usr/bin/env python3
"""A campaign of faults: `make campaign`, or tests/kill/campaign.py once everything is built. Not run in CI.

An agent, two mounts in a chain, four engines (SGLang's and vLLM's API, three of which are patched), ranks that publish two models without end, readers of
all kinds, each on a host of its own (network namespaces). All of them are killed, sent SIGTERM, stopped and continued, detached
lazily, cut off, squeezed by a memory cgroup, started again with another clock, at random and at the same time; every so
often all faults end, and then everything must heal: a version that is published is served by all engines, none is paused,
mounts are whole and right in all ways to read, nothing is left behind. A byte that is not of the version that was opened is a
failure at any time, and so is an engine whose weights are not those that it says it serves; errors are not, while things are broken.

CAMPAIGN_SECONDS  how long (1800), and what the last healing takes
CAMPAIGN_SEED     of all random choices; it is printed. What is under way when a fault comes is the machine's choice
CAMPAIGN_CLOCK=1  the machine's own clock is set back and forth, too: only on a machine of its own
SAN=address       with that sanitizer's build

A failure keeps logs, events and what was read in build/campaign."""
import collections
import glob
import importlib.machinery
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KEPT = os.path.join(ROOT, "build/campaign")


def supervise():
    """Runs this script as tests/run runs a test, and checks what it leaves behind."""
    loader = importlib.machinery.SourceFileLoader("tests_run", os.path.join(ROOT, "tests/run"))
    run = importlib.util.module_from_spec(importlib.util.spec_from_loader("tests_run", loader))
    loader.exec_module(run)
    folder = tempfile.mkdtemp(prefix="wsync-campaign.")
    python = subprocess.check_output([os.path.join(ROOT, ".ci/python")], text=True).strip()
    began = time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_BOOTTIME)
    process = subprocess.Popen([python, os.path.abspath(__file__)], cwd=ROOT, env=run.environment(folder, os.environ.get("SAN", ""), python),
                               stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        process.terminate()
        code = process.wait()
    if os.environ.get("CAMPAIGN_CLOCK") == "1":  # it may have ended within a step
        time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_BOOTTIME) + began)
    if code or glob.glob(folder + "/sanitizer.*"):
        shutil.rmtree(KEPT, ignore_errors=True)
        os.makedirs(KEPT)
        for path in glob.glob(folder + "/*.log") + glob.glob(folder + "/wrong.*") + glob.glob(folder + "/sanitizer.*"):
            shutil.copy(path, KEPT)
    left, said = run.clean(process.pid, folder)
    if left:
        print(f"left behind: {', '.join(left)}")
    if said:
        print(f"a sanitizer reported (build/campaign):\n{said[:8000]}")
    good = not (code or left or said)
    print("the campaign passed" if good else f"THE CAMPAIGN FAILED ({code}); logs are in build/campaign")
    sys.exit(0 if good else 1)


if __name__ == "__main__" and "TESTDIR" not in os.environ:
    supervise()

from crowd import *

SECONDS = float(os.environ.get("CAMPAIGN_SECONDS", "1800"))
SEED = int(os.environ.get("CAMPAIGN_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
ROUND = 40 * (2 if SANITIZER else 1)  # seconds of faults between two checks of recovery
HEAL = 90  # limit in seconds until everything has recovered; times SLOW


class Faults(Worker):
    """Injects faults into one place repeatedly: each of .kinds is (weight, name, function)."""

    def __init__(self, campaign, place, doing, pace, kinds):
        super().__init__(campaign, f"faults of {place.name}")
        self.place, self.doing, self.pace, self.random = place, doing, pace, campaign.fork()
        self.kinds = [k for k in kinds if k]
        self.hold = True
        at_end(self.stop)

    def step(self):
        time.sleep(self.random.expovariate(1 / self.pace))
        kind = self.random.choices(self.kinds, [k[0] for k in self.kinds])[0]
        middle = self.doing()
        self.campaign.note(kind[1], self.place.name, middle)
        kind[2](self.random)

    def a_while(self, r):
        time.sleep(2 * r.random() ** 3)


class Campaign:
    def __init__(self):
        self.random = random.Random(SEED)
        self.failure, self.lock = None, threading.Lock()
        self.began = time.monotonic()
        self.faults, self.middles, self.whats = collections.Counter(), collections.Counter(), collections.Counter()
        self.heals, self.longest_heal = 0, 0
        self.events = open(os.path.join(TESTDIR, "events.log"), "w", buffering=1)
        self.ground = ground = Ground(("agent", "one", "two"))
        ground.skipped |= {} if os.environ.get("CAMPAIGN_CLOCK") == "1" else {"step": "the machine's clock is not touched without CAMPAIGN_CLOCK=1"}
        self.agent = AgentPlace(ground, "agent", self.fork())
        self.agent.start()
        self.trainers = {m: Trainer(self, self.agent, m, self.fork()) for m in ELEMENTS}
        one = MountPlace(ground, "one", self.fork(), self.agent)
        two = MountPlace(ground, "two", self.fork(), self.agent, one)
        self.mounts = [one, two]
        for mount in self.mounts:
            mount.start()
        for trainer in self.trainers.values():
            trainer.start()
            trainer.settle()
        for mount in self.mounts:
            for model in ELEMENTS:
                wait_for(lambda: mount.versions(model), f"{model} at {mount.name}")
        self.engines = [EnginePlace(ground, mount, self.fork(), *words) for mount, *words in (
            (one, "e1", "actor", "sglang", "--patch", "2"), (two, "e2", "actor", "vllm", "--patch", "3"), (two, "e3", "actor", "sglang"),
            (two, "e4", "critic", "vllm", "--patch", "1"))]
        for e in self.engines:
            e.start()
            e.mount.write(f"engine add {e.name} {e.api} {e.url} timeout=20 pause-timeout=10", f"{e.model}/ctl")
        for mount in self.mounts:
            mount.write("follow", "actor/policy")
        self.readers = [Reader(self, i, self.mounts, self.trainers, self.fork()) for i in range(5)]
        self.auditor = Auditor(self, self.engines, self.fork())
        self.switcher = Switcher(self, two, "critic", self.fork())
        self.others = [*self.readers, self.auditor, self.switcher]
        self.injectors = [self.of_agent(), *(self.of_mount(m) for m in self.mounts), *(self.of_engine(e) for e in self.engines),
                          *(self.of_ranks(t) for t in self.trainers.values()), *(self.of_reader(r) for r in self.readers)]
        if os.environ.get("CAMPAIGN_CLOCK") == "1":
            self.injectors.append(self.of_clock())
        for w in self.others + self.injectors:
            w.hold = True
            w.start()

    def fork(self):
        return random.Random(self.random.getrandbits(64))

    def fail(self, text):
        with self.lock:
            if not self.failure:
                self.failure = text
        self.tell_event(f"FAILURE {text}")

    def tell_event(self, text):
        self.events.write(f"{time.monotonic() - self.began:.2f} {text}\n")

    def note(self, kind, name, middle):
        with self.lock:
            self.faults[kind] += 1
            self.middles[kind] += bool(middle)
            self.whats.update(middle)
        self.tell_event(f"{kind} of {name}{', in the middle of a ' + ', '.join(sorted(middle)) if middle else ''}")

    # --- faults ---
    def signals(self, place, weights, again=None):
        """By SIGKILL, SIGTERM and SIGSTOP; again: restarts the process."""
        again = again or place.start

        def kill(r):
            place.kill()
            time.sleep(r.random() ** 3)
            again()

        def term(r):
            place.end()
            time.sleep(r.random() ** 3)
            again()

        def stop(r):
            place.now.process.send_signal(signal.SIGSTOP)
            time.sleep(2 * r.random() ** 3)
            place.now.process.send_signal(signal.SIGCONT)

        return [(w, name, f) for w, (name, f) in zip(weights, (("kill", kill), ("term", term), ("stop", stop)))]

    def network(self, place):
        net, name = self.ground.network, place.host
        if not net:
            return []

        def cut(r):
            net.cut(name)
            time.sleep(3 * r.random() ** 2)
            net.mend(name)

        def lose(r):
            net.lose(name)
            time.sleep(3 * r.random() ** 2)
            net.find(name)

        def slow(r):
            net.slow(name, r.choice((2, 20, 200)))
            time.sleep(3 * r.random() ** 2)
            net.fast(name)

        return [(2, "link cut", cut), (2, "link silent", lose), (1, "link slow", slow)]

    def memory(self, place):
        """Limits memory to little more than is used: the kernel kills the process, or it gets by."""
        group = self.ground.groups.get(place.host)
        if not group:
            return None

        def squeeze(r):
            before = group.kills()
            with contextlib.suppress(OSError):  # its use has grown meanwhile
                group.limit(group.usage() + r.randrange(6 << 20))
            time.sleep(r.random())
            group.limit(None)
            if group.kills() > before:
                place.now.process.wait()  # a large process takes time to end
                self.note("killed for memory", place.name, ())
                place.now.scope.close()
                place.start()

        return (2, "memory", squeeze)

    def of_agent(self):
        def doing():
            out = {"offload"} if any(t.offloading for t in self.trainers.values()) else set()
            return out | ({"read"} if any(m.reading for m in self.mounts) else set())

        def lineage(r):
            for t in self.trainers.values():
                t.renew = t.renew or r.random() < 0.7

        def anew(r):
            """The agent loses all of its state, and the trainers resume from an older step."""
            self.agent.kill()
            lineage(r)
            self.agent.start()

        kinds = [*self.signals(self.agent, (1, 1, 10)), (1, "new lineage", lineage), (1, "kill, new lineage", anew)]
        return Faults(self, self.agent, doing, 1.0, kinds + self.network(self.agent) + [self.memory(self.agent)])

    def of_mount(self, mount):
        def lazily(r):
            if mount.detach():
                mount.leave()
                mount.start()

        def look_after(r):
            mount.reap()

        kinds = [*self.signals(mount, (2, 1, 6)), (2, "umount -l", lazily)]
        f = Faults(self, mount, mount.doing, 1.0, kinds + self.network(mount) + [self.memory(mount)])
        for i, (w, name, what) in enumerate(f.kinds):
            f.kinds[i] = (w, name, lambda r, what=what: (what(r), look_after(r)))
        return f

    def of_engine(self, engine):
        return Faults(self, engine, engine.doing, 1.5, self.signals(engine, (2, 1, 4)))

    def of_ranks(self, trainer):
        def any_rank(r):
            return r.choice(trainer.ranks)

        def by(number):
            def send(r):
                time.sleep(r.random() * 0.02)
                rank = any_rank(r)
                if rank:
                    rank.process.send_signal(number)

            return send

        def stop(r):
            rank = any_rank(r)
            if rank:
                rank.process.send_signal(signal.SIGSTOP)
                time.sleep(r.random() ** 3)
                rank.process.send_signal(signal.SIGCONT)

        place = collections.namedtuple("Ranks", "name")(f"a rank of {trainer.model}")
        doing = lambda: {"offload"} if trainer.offloading else set()
        return Faults(self, place, doing, 0.7, [(4, "kill", by(signal.SIGKILL)), (2, "term", by(signal.SIGTERM)), (4, "stop", stop)])

    def of_reader(self, reader):
        def kill(r):
            time.sleep(r.random() * 0.01)
            reader.process and reader.process.kill()

        def stop(r):
            process = reader.process
            if process:
                process.send_signal(signal.SIGSTOP)
                time.sleep(2 * r.random() ** 3)
                process.send_signal(signal.SIGCONT)

        place = collections.namedtuple("A", "name")(reader.name)
        return Faults(self, place, lambda: {"read"} if reader.reading else set(), 1.0, [(1, "kill", kill), (2, "stop", stop)])

    def of_clock(self):
        def step(r):
            by = r.choice((-1, 1)) * r.random() ** 2 * 86400
            time.clock_settime(time.CLOCK_REALTIME, time.time() + by)
            time.sleep(r.random())
            time.clock_settime(time.CLOCK_REALTIME, time.time() - by)

        place = collections.namedtuple("Clock", "name")("the machine's clock")
        return Faults(self, place, lambda: set(), 5.0, [(1, "clock step", step)])

    # --- checks after all faults have ended ---
    def storm(self, seconds):
        for t in self.trainers.values():
            t.hold = False
        for w in self.others + self.injectors:
            w.hold = False
        end = min(time.monotonic() + seconds, self.began + SECONDS)
        while time.monotonic() < end and not self.failure:
            time.sleep(0.1)
        for w in self.injectors + self.others:
            w.hold = True
        for w in self.injectors + self.others:
            self.check()
            w.quiet()

    def check(self):
        if self.failure:
            raise AssertionError(self.failure)

    def heal(self):
        """Ends all faults and checks, in turn, what must hold within HEAL seconds."""
        began = time.monotonic()
        for t in self.trainers.values():
            self.check()
            t.settle()
        self.check()
        for mount in self.mounts:
            wait_for(mount.reap, f"the end of the daemons that were detached from {mount.path}", HEAL)
            wait_for(lambda: mount.mounts() == ["fuse.wsync"], f"{mount.name} to be all that there is: {mount.mounts()}", HEAL)
            for model, t in self.trainers.items():
                wait_for(lambda: t.last in mount.versions(model), f"{model}/{t.last} at {mount.name}", HEAL)
        self.let_switch("critic", self.mounts[1])
        for e in self.engines:
            self.look_at(e, self.trainers[e.model])
        for i, mount in enumerate(self.mounts):
            for model, t in self.trainers.items():
                for way in WAYS:
                    reader = self.readers[i]
                    wait_for(lambda: reader.look(mount, model, t.last, way, 0) or way in reader.skipped,
                             f"{mount.name} to let {model}/{t.last} be read by {way}", HEAL)
        self.compare()
        self.heals += 1
        self.longest_heal = max(self.longest_heal, time.monotonic() - began)

    def let_switch(self, model, mount):
        said = ""

        def switch():
            nonlocal said
            try:
                mount.write("latest", model, "version")
                return True
            except OSError as e:
                said = f"{e}: {mount.text(model, 'last_error')}"
                return False

        try:
            wait_for(switch, f"{mount.name} to switch {model} to the latest version", HEAL)
        except AssertionError as e:
            raise AssertionError(f"{e}; it says {said}") from None

    def look_at(self, engine, trainer):
        """The engine serves the newest version by its own answer and by the mount's, and answers requests."""
        told, label = "", ""

        def serves():
            nonlocal told, label
            told = engine.mount.engines(engine.model).get(engine.name, "nothing")
            label = engine.label()
            return told.startswith(f"serving {trainer.last} ") and label == f"{trainer.last}@{trainer.run_id}"

        try:
            wait_for(serves, f"{engine.name} to serve {engine.model} {trainer.last}", HEAL)
            assert not engine.is_paused(), "it serves, and is paused"
            engine.generate()
        except (AssertionError, OSError) as e:
            raise AssertionError(f"{engine.name}: {e}; it says '{label}', its mount '{told}': "
                                 f"{engine.mount.text(engine.model, 'last_error')}{engine.mount.text(engine.model, 'status')}") from None

    def compare(self):
        """Engines hold the same weights as one that has just loaded the files, which readers have checked."""
        for model, t in self.trainers.items():
            with scope():
                fresh = EnginePlace(self.ground, self.mounts[0], self.random, "fresh", model, "sglang")
                fresh.start()
                want = fresh.checksum()
                for e in self.engines:
                    assert e.model != model or e.checksum() == want, f"WRONG WEIGHTS: {e.name} serves {model} {t.last} with others than its files have"

    def tell(self, ended):
        reads, errors = collections.Counter(), collections.Counter()
        for r in self.readers:
            reads.update(r.right)
            errors.update(r.errors)
            self.ground.skipped |= {f"reads by {k}": v for k, v in r.skipped.items()}
        total = sum(self.faults.values()) - self.faults["killed for memory"]
        print(f"# {ended}: seed {SEED}, {time.monotonic() - self.began:.0f} s{', ' + SANITIZER if SANITIZER else ''}")
        print(f"# {total} faults, {sum(self.middles.values())} of them in the middle of something ("
              + ", ".join(f"{n} of a {k}" for k, n in sorted(self.whats.items())) + ")")
        print("# " + ", ".join(f"{k} {n}" for k, n in self.faults.most_common()))
        print(f"# {sum(reads.values())} reads checked, {sum(r.bytes for r in self.readers) / 1e9:.1f} GB: "
              + ", ".join(f"{k} {n}" for k, n in reads.most_common()) + f"; {sum(errors.values())} ended with an error: "
              + ", ".join(f"{k} {n}" for k, n in collections.Counter({e: sum(v for (_, x), v in errors.items() if x == e) for _, e in errors}).most_common()))
        for t in self.trainers.values():
            print(f"# {t.model}: {t.published} versions published of {len(t.begun)} begun, {t.lineage + 1} lineages; refused: {dict(t.refused)}")
        print(f"# engines: {self.auditor.looks} looks at {len(self.auditor.sums)} labels, {self.switcher.done} switches by hand, refused: {dict(self.switcher.refused)}")
        print(f"# healed {self.heals} times, within {self.longest_heal:.1f} s")
        for what, why in self.ground.skipped.items():
            print(f"# skipped: {what}: {why}")
        sys.stdout.flush()


def main():
    need_fuse()
    print(f"# seed {SEED}", flush=True)
    campaign = None
    failed = False
    try:
        with scope():
            campaign = Campaign()
            campaign.heal()
            try:
                while time.monotonic() < campaign.began + SECONDS:
                    campaign.storm(ROUND)
                    campaign.check()
                    campaign.heal()
                    print(f"# {time.monotonic() - campaign.began:.0f} s: {sum(campaign.faults.values())} faults, healed", flush=True)
                campaign.check()
            except BaseException as e:
                campaign.fail(f"{e}")
                campaign.tell("FAILED")
                print(f"FAILURE: {campaign.failure}\nnot ok (seed {SEED})", flush=True)
                raise
    except BaseException:
        failed = True
        traceback.print_exc()
    if campaign and not campaign.failure:
        campaign.tell("done")
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # a thread may hang in the failed part


main()
