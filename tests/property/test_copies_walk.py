# beside others
# timeout: 1200, takes: 200 (with LONG=1)
"""Random switches, stages, opens, failures and transfers that are cut, with one copy in memory (copies=1), of versions of one agent and of versions
in parts, of two; COPIES_ROUNDS rounds from the printed seed (COPIES_SEED). Whatever happens, engines and readers see the bytes of a version that was
published, and of the one they asked for."""
import hashlib
import mmap
import os
import random
import threading
import time

from one_copy import Cut
from span import Span
from world import *

ROUNDS = amount("COPIES_ROUNDS", 60, 150)
SEED = int(os.environ.get("COPIES_SEED", random.SystemRandom().randrange(1 << 32)))
LAYERS = {f"layer.{i}.weight": ("BF16", [1024, 1024]) for i in range(5)} | {"tail": ("U8", [12345])}  # three blocks


class Reader(threading.Thread):
    """Opens what is there, keeps it mapped for a while, and checks each byte at the end, as at the beginning."""

    def __init__(self, fleet, version, seconds):
        super().__init__()
        self.fleet, self.version, self.seconds, self.wrong = fleet, version, seconds, None
        self.start()

    def run(self):
        try:
            fd = os.open(self.fleet.mount.file("actor", self.version, "model.safetensors"), os.O_RDONLY)
        except OSError:
            return  # refused
        try:
            mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        except OSError:  # the daemon was killed
            os.close(fd)
            return
        os.close(fd)
        want = self.fleet.tensors[self.version]
        for _ in range(2):
            got = self.fleet.parse(bytes(mapped))
            if got != want:
                self.wrong = [n for n in want if got.get(n) != want[n]]
            time.sleep(self.seconds)
        mapped.close()


class Whole:
    """One agent, which has all of each version."""

    def __init__(self, r):
        self.r, self.agent, self.newest, self.folders = r, Agent(), 0, {}
        self.gates = [Cut(self.agent.url, 1 << 60, 1 << 60, False)]

    def publish(self):
        """The next version's folder; now and then no delta leads to it."""
        self.newest += 1
        if self.newest == 1 or self.r.randrange(6) == 0:
            self.folders[self.newest] = checkpoint(LAYERS, seed=self.newest + 100)
        else:
            self.folders[self.newest] = step(self.folders[self.newest - 1], self.newest, share=self.r.choice((0.001, 0.01, 0.03)))
        self.agent.publish("actor", self.newest, self.folders[self.newest])
        return self.folders[self.newest]


class Parts:
    """Two agents, each of which has a part."""

    def __init__(self, r):
        self.r, self.newest = r, 0
        self.span = Span(SIDECARS=checkpoint({}, files={}))
        self.gates = [Cut(a.url, 1 << 60, 1 << 60, False) for a in self.span.agents]

    def publish(self):
        share = 0.95 if self.r.randrange(6) == 0 else self.r.choice((0.001, 0.01, 0.1))
        self.newest = self.span.publish(*([f"step {share}"] if self.newest else []))
        del self.span.bytes[self.newest]
        return self.span.reference.file("actor", self.newest)


class Fleet:
    def __init__(self, r, trainer):
        self.r, self.trainer = r, trainer
        self.folders, self.tensors, self.sums, self.newest = {}, {}, {}, 0
        self.publish()
        self.mount = None
        self.start_mount()
        self.engines = {}
        for i, api in enumerate(("sglang", "vllm")):
            self.engines[f"e{i}"] = Engine(self.folders[1], "--realistic", api=api)
            self.mount.write(f"engine add e{i} {api} {self.engines[f'e{i}'].url}", "actor/ctl")
        self.current, self.readers = None, []

    def start_mount(self):
        options = f"copies=1,keep={self.r.choice((2, 3))},deadline=2,threads=2,streams=2,{DELTAS}"
        cut = self.r.choice(("", "fault:cut=40:"))
        self.mount = Mount(",".join(cut + g.url for g in self.trainer.gates), options, path=self.mount.path if self.mount else None)
        self.mount.wait_version("actor", self.newest)

    @staticmethod
    def parse(raw):
        n = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + n])
        header.pop("__metadata__", None)
        digest = lambda begin, end: hashlib.blake2b(raw[8 + n + begin : 8 + n + end]).digest()
        return {k: (v["dtype"], v["shape"], digest(*v["data_offsets"])) for k, v in header.items()}

    def publish(self):
        folder = self.trainer.publish()
        self.newest = self.trainer.newest
        self.folders[self.newest] = folder
        with open(os.path.join(folder, "model.safetensors"), "rb") as f:
            self.tensors[self.newest] = self.parse(f.read())
        for api in ("sglang", "vllm"):
            with scope():
                self.sums[api, self.newest] = Engine(folder, api=api).checksum()

    def step(self):
        self.publish()
        self.mount.wait_version("actor", self.newest)
        if self.r.randrange(2):
            time.sleep(self.r.random() * 0.3)  # the delta may be there, or grow

    def there(self):
        """Versions with a name."""
        return [int(n) for n in os.listdir(self.mount.file("actor")) if n.isdigit()]

    def faults(self):
        kind = self.r.randrange(4)
        name = self.r.choice(list(self.engines))
        old = self.engines[name]
        args = [["--realistic"], ["--refuse", str(self.newest)], ["--refuse", str(self.newest), "--lie"],
                ["--die-at", self.r.choice(("pause", "open", "load", "reply", "continue"))]][kind]
        old.kill()
        self.engines[name] = Engine(self.folders[self.current or 1], *args, api=old.api, port=old.port)

    def cut(self):
        """The way to one agent: its deltas end in the middle, or hang, and files that are pulled whole, too."""
        gate = self.r.choice(self.trainer.gates)
        gate.cuts = self.r.randrange(2) == 0
        gate.of_deltas, gate.left = self.r.randrange(400000), self.r.choice((0, 1 << 20, 6 << 20))
        return gate

    def kill_soon(self):
        def kill():
            time.sleep(self.r.random() * 0.2)
            self.mount.kill()

        thread = threading.Thread(target=kill)
        thread.start()
        return thread

    def round(self):
        what = self.r.randrange(12)
        if what < 4:
            self.step()
        elif what == 4:
            self.faults()
        there = self.there()
        if not there:
            return
        version = self.r.choice(there)
        if self.r.randrange(3) == 0:
            self.readers.append(Reader(self, self.r.choice(there), self.r.choice((0, 0.1, 0.5, 2))))
        killer = self.kill_soon() if self.r.randrange(10) == 0 else None
        gate = self.cut() if self.r.randrange(5) == 0 else None
        command, file = self.r.choice(((str(version), "actor/version"), (str(version), "actor/version"), (f"stage {version}", "actor/ctl"),
                                       (f"pull {version}", "actor/ctl"), (f"drop {version}", "actor/ctl"),
                                       (f"load {version} deadline=1", "actor/ctl")))
        canceller = None
        if self.r.randrange(6) == 0:
            canceller = threading.Timer(self.r.random() * 0.1, self.cancel)
            canceller.start()
        try:
            self.mount.write(command, file)
        except OSError as e:
            print(f"# {command}: {e}", flush=True)
        if canceller:
            canceller.join()
        if gate:
            gate.cuts, gate.of_deltas = False, 1 << 60
            gate.open()
        if killer:
            killer.join()
            self.start_mount()
        self.readers = [r for r in self.readers if self.look(r)]
        now = self.mount.text("actor/version").strip()
        self.current = None if now == "none" else int(now)
        self.check()

    def cancel(self):
        with contextlib.suppress(OSError):
            self.mount.write("cancel", "actor/ctl")

    def look(self, reader):
        if reader.is_alive():
            return True
        assert not reader.wrong, (reader.version, reader.wrong)
        return False

    def check_engine(self, name, e):
        """Where it runs, it has the bytes of the version that it names; while it is paused it serves nobody, and may have loaded already."""
        for _ in range(20):
            serves, got = e.serves(), e.checksum()
            has = [v for (api, v), value in self.sums.items() if api == e.api and value == got]
            if not serves.isdigit() or int(serves) in has or (e.api == "vllm" and e.is_paused()):
                return
            if e.serves() == serves:  # it was not resumed with another meanwhile
                raise AssertionError(f"{name} says that it serves {serves}, and has {has or 'the bytes of none'}")

    def check(self):
        """What an engine that runs calls a version is that version; and so is what is in memory."""
        for name, e in self.engines.items():
            with contextlib.suppress(OSError):  # it has died
                self.check_engine(name, e)
        status = self.mount.status("actor")  # once: a version may be gone the next time
        holder = status.get("copies", "holds=none").split("holds=")[1].split()[0]
        if holder != "none" and status.get(f"version.{holder}", "gone").split()[0] in ("ready", "active"):
            try:
                self.mount.write(f"verify {holder}", "actor/ctl")
                got = self.parse(self.mount.read("actor", holder, "model.safetensors"))
            except OSError:
                return
            assert got == self.tensors[int(holder)], (holder, [n for n in got if got[n] != self.tensors[int(holder)].get(n)])

    def settle(self):
        """Every reader ends; engines are healed; the current version, or the newest, is served by all."""
        for r in self.readers:
            r.join()
            self.look(r)
        self.readers = []
        for name, e in list(self.engines.items()):
            e.kill()
            self.engines[name] = Engine(self.folders[1], "--realistic", api=e.api, port=e.port)
        target = str(self.newest)
        how = [""]

        def switched():
            try:
                self.mount.write(f"load {target}{how[0]}", "actor/ctl")
                return True
            except OSError as e:
                if "it any more" in str(e):  # no source has it, or a part of it: a killed daemon's copy, so nothing is left to compare with
                    how[0] = " force-layout"
                print(f"# settling: {e}", flush=True)
                if "to which it was told to go" in str(e):  # the copy is on its way back to what is served, whose layout the next try needs
                    time.sleep(3 * SLOW)
                return False

        wait_for(switched, f"a switch to {target}", 60)
        for e in self.engines.values():
            assert e.serves() == target and e.checksum() == self.sums[e.api, self.newest], target
        assert self.parse(self.mount.read("actor", target, "model.safetensors")) == self.tensors[self.newest]


@pytest.mark.parametrize("trainer", [Whole, Parts])
def test_rounds(trainer):
    "random switches, stages, pulls, drops, readers, faults, cuts and killed daemons with one copy: no byte is another version's"
    need_fuse()
    print(f"# COPIES_SEED={SEED} COPIES_ROUNDS={ROUNDS}", flush=True)
    r = random.Random(SEED)
    fleet = Fleet(r, trainer(r))
    for i in range(ROUNDS):
        try:
            fleet.round()
            if i % 25 == 24:
                fleet.settle()
        except BaseException:
            print(f"# in round {i}\n{fleet.mount.text('actor/events')[-6000:]}", flush=True)
            print(fleet.mount.text()[-4000:], flush=True)
            raise
    fleet.settle()
