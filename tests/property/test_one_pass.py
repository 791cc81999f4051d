# sanitizers: address thread
# timeout: 300, takes: 60
"""Ranks that compare while they copy (prefer="latency"), at random: steps of all sizes, ranks killed in the middle, registrations anew, an
agent killed, readers that hold the older slot, and a delta cache that is too small. After each version every byte of its slot is read and
compared, as the agent believes the ranks' hashes; the ranks also read all blocks back (WSYNC_COMPARE=check). ONE_PASS_ROUNDS,
ONE_PASS_SEED."""
import os
import random
import re
import resource
import sys
import urllib.request

from world import *

try:
    from ranks import Rank, Refused, ask_all, describe, expected
except ImportError as e:
    print(f"1..0 # SKIP {e.name} is not installed, as PyPI could not be reached")
    sys.exit(0)

ROUNDS = amount("ONE_PASS_ROUNDS", 25 if SANITIZER else 60, 1500)
SEED = int(os.environ.get("ONE_PASS_SEED", random.SystemRandom().randrange(1 << 32)))
ELEMENTS = 9 << 20  # 27 MB: some blocks that one rank fills alone
os.environ["PREFER"] = "latency"
os.environ["WSYNC_COMPARE"] = "check"


class Trainer:
    def __init__(self, world, r, *options):
        self.world, self.r, self.options = world, r, options
        self.agent = Agent(*options)
        self.version, self.more, self.killed, self.how = 0, None, 0, []
        self.ranks = [self.rank(i) for i in range(world)]

    def rank(self, i):
        more = (f"seed={self.more}",) if self.more is not None and i == 0 else ()
        return Rank(self.agent, "actor", i, self.world, ELEMENTS, "run=one", "timeout=60000", *more)

    def restart(self, which):
        for i in which:
            if not self.ranks[i].process.stdout.closed:
                self.ranks[i].kill()
            self.ranks[i] = self.rank(i)

    def offload(self):
        """A version that must succeed. Numbers that were skipped change more: each of them one element of 64."""
        self.version += self.r.choice((1, 1, 1, 2, 5, 30))
        answers = ask_all(self.ranks, f"offload {self.version}")
        assert answers == [f"offloaded {self.version}"] * self.world, answers
        answers = ask_all(self.ranks, f"wait {self.version}")
        assert answers == [f"published {self.version}"] * self.world, answers
        self.how.append(max((rank.ask("how -") for rank in self.ranks), key=lambda h: sum(map(int, re.findall(r"(\d+) (?:blocks|whole)", h)))))
        for rank in self.ranks:
            assert "did not hold" not in rank.log(), rank.log()
        self.check(self.version)

    def check(self, version):
        path = os.path.join(TESTDIR, "whole")
        with urllib.request.urlopen(f"{self.agent.url}/v1/actor/{version}/files/model.safetensors?run=one", timeout=60) as r, open(path, "wb") as f:
            f.write(r.read())
        got, want = tensors_of(path), expected(version, ELEMENTS, self.more)
        assert got == want, describe(version, got, want)

    def die(self):
        """A rank is killed while it copies; the others' version is abandoned, or was whole already."""
        self.version += 1
        victim = self.r.randrange(self.world)
        others = [rank for rank in self.ranks if rank.rank != victim]
        for rank in others:
            rank.send(f"offload {self.version}")
        self.ranks[victim].send(f"die {self.r.randrange(1001)} {self.version}")
        self.ranks[victim].reap()
        self.restart([victim])
        self.version += 1
        for rank in self.ranks:
            rank.send(f"offload {self.version}")
        for rank in others:  # for the version before
            try:
                rank.answer(120)
            except Refused:
                pass
        for rank in self.ranks:
            assert rank.answer(120) == f"offloaded {self.version}"
        assert ask_all(self.ranks, f"wait {self.version}") == [f"published {self.version}"] * self.world
        self.check(self.version)
        self.killed += 1

    def register_anew(self):
        """Rank 0 comes back with other tensors: all register, and nothing is known of the slots."""
        self.more = self.r.randrange(1000)
        self.restart([0])

    def restart_all(self):
        self.restart(range(self.world))

    def lose_agent(self):
        """The ranks connect to the next one, whose slots are empty."""
        self.agent.kill()
        self.agent = Agent(*self.options, port=self.agent.port, sock=self.agent.sock)


def walk(world, rounds, *options):
    r = random.Random(SEED + world)
    print(f"# {world} ranks, seed {SEED}", flush=True)
    t = Trainer(world, r, *options)
    held = []
    for i in range(rounds):
        try:
            what = r.random()
            if what < 0.06:
                t.die()
            elif what < 0.09:
                t.register_anew()
            elif what < 0.11:
                t.restart_all()
            elif what < 0.125:
                t.lose_agent()
                held.clear()
            elif what < 0.2:  # a reader that is slow: its version's slot is not written meanwhile
                if held:
                    held.pop().close()
                else:
                    held.append(urllib.request.urlopen(f"{t.agent.url}/v1/actor/{t.version}/files/model.safetensors?run=one", timeout=60)
                                if t.version else open(os.devnull))
            t.offload()
        except Exception:
            print(f"# round {i}, seed {SEED}\n# " + "\n# ".join(t.agent.text().splitlines()[-12:]), flush=True)
            raise
    for h in held:
        h.close()
    lines = [h for h in t.how if "by lines" in h and " 0 blocks by lines" not in h]
    whole = [h for h in t.how if re.search(r"[1-9]\d* whole", h)]
    passes = len(t.how) - t.how.count("how copy")
    print(f"# {len(t.how)} versions of {t.version}: {len(lines)} by lines, {len(whole)} whole, {passes} by a pass; {t.killed} kills", flush=True)
    return t, lines, whole


def test_one_rank():
    "one rank, two slots"
    t, lines, whole = walk(1, ROUNDS)
    assert lines and whole, t.how


def test_two_ranks():
    "two ranks, three slots"
    t, lines, whole = walk(2, ROUNDS, "--slots", "3")
    assert lines and whole, t.how


def test_agent_uses_records():
    "the agent compares only what ranks did not"
    t = Trainer(1, random.Random(SEED))
    for _ in range(6):
        t.version += 1
        assert ask_all(t.ranks, f"offload {t.version}") == [f"offloaded {t.version}"]
        assert ask_all(t.ranks, f"wait {t.version}") == [f"published {t.version}"]
        wait_for(lambda: f"base={t.version - 1} version={t.version} " in t.agent.text() or t.version == 1, "the delta", 60)
    used = [int(n) for n in re.findall(r"delta whole .*from_ranks=(\d+)", t.agent.text())]
    assert len(used) == 5 and used[0] >= 4 and len(set(used)) == 1, used
    status = next(m for m in t.agent.get("/v1/status")["models"] if m["name"] == "actor")
    assert status["how"].startswith("pass, ") and "by lines" in status["how"], status


def test_child():
    "a child that is forked while a rank compares holds neither slot"
    t = Trainer(1, random.Random(SEED), "--slots", "2")
    for _ in range(3):
        t.offload()
    t.version += 1
    assert ask_all(t.ranks, f"fork {t.version}") == [f"offloaded {t.version}"]
    assert ask_all(t.ranks, f"wait {t.version}") == [f"published {t.version}"]
    assert "by lines" in t.ranks[0].ask("how -")
    for _ in range(3):
        t.offload()
    assert all("by lines" in how for how in t.how[-3:]), t.how


def test_few_descriptors():
    "a rank that has descriptors for one slot, and not for the version before, too, copies"
    agent = Agent()
    rank = Rank(agent, "actor", 0, 1, ELEMENTS, "run=one", f"shard={1 << 20}")

    def offload(version):
        assert rank.ask(f"offload {version}") == f"offloaded {version}"
        assert rank.ask(f"wait {version}") == f"published {version}"
        return rank.ask("how -")

    offload(1)
    assert "pass" in offload(2)
    most = len(os.listdir(f"/proc/{rank.pid}/fd")) + 4 + 2  # of the model's 4 files
    resource.prlimit(rank.pid, resource.RLIMIT_NOFILE, (most, most))
    assert [offload(3), offload(4)] == ["how copy"] * 2


def test_without_deltas():
    "without a delta cache, or with one that is too small, and where a rank prefers its own time"
    t = Trainer(1, random.Random(SEED), "--delta-cache", "0")
    for _ in range(4):
        t.offload()
    assert set(t.how) == {"how copy"}, t.how
    t = Trainer(1, random.Random(SEED), "--delta-cache", "64K")
    for _ in range(4):
        t.offload()
    assert any("pass" in h for h in t.how), t.how
    os.environ["PREFER"] = "stall"
    try:
        t = Trainer(1, random.Random(SEED))
        for _ in range(4):
            t.offload()
        assert set(t.how) == {"how"}, t.how
    finally:
        os.environ["PREFER"] = "latency"


def test_auto():
    "a publisher that may choose takes the pass once a reader takes deltas"
    need_fuse()
    os.environ["PREFER"] = "auto"
    try:
        t = Trainer(1, random.Random(SEED))
        for _ in range(4):
            t.offload()
        assert set(t.how) == {"how copy"}, t.how
        mount = Mount(t.agent.url, DELTAS)
        for _ in range(3):
            t.version += 1
            assert ask_all(t.ranks, f"offload {t.version}") == [f"offloaded {t.version}"]
            assert ask_all(t.ranks, f"wait {t.version}") == [f"published {t.version}"]
            mount.wait_version("actor", t.version)
            mount.write(f"pull {t.version}", "actor/ctl")
            t.how.append(t.ranks[0].ask("how -"))
            got, want = tensors_of(mount.file("actor", t.version, "model.safetensors")), expected(t.version, ELEMENTS)
            assert got == want, describe(t.version, got, want)
        assert "pass" in t.how[-1], (t.how, mount.text("actor/status"))
    finally:
        os.environ["PREFER"] = "latency"
