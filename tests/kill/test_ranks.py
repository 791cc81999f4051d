# sanitizers: address thread
# beside others
# timeout: 260
"""Ranks killed in the middle of an offload: readers see complete versions only, the last one stays served, the surviving ranks are told,
and the next offload works. RANKS_ROUNDS, RANKS_SEED."""
import os
import random
import sys

from world import *

try:
    from ranks import Rank, Reader, Refused, ask_all, describe, expected
except ImportError as e:
    print(f"1..0 # SKIP {e.name} is not installed, as PyPI could not be reached")
    sys.exit(0)

ROUNDS = amount("RANKS_ROUNDS", 20 if SANITIZER else 50, 50)
SEED = int(os.environ.get("RANKS_SEED", random.SystemRandom().randrange(1 << 32)))
ELEMENTS = 3 << 20  # 9 MB


class Trainer:
    """The ranks of a model; version numbers rise whatever happens to them."""

    def __init__(self, agent, mount, world, r):
        self.agent, self.mount, self.world, self.r = agent, mount, world, r
        self.version, self.told = 0, 0
        self.ranks = [self.rank(i) for i in range(world)]
        self.offload()
        mount.wait_version("actor", self.version)

    def rank(self, i):
        return Rank(self.agent, "actor", i, self.world, ELEMENTS)

    def offload(self, pending=()):
        """Offloads a version that must succeed; pending: ranks that have not yet answered for the previous one."""
        self.version += 1
        for r in self.ranks:
            r.send(f"offload {self.version}")
        told = self.answers(pending)
        answers = self.answers(self.ranks)
        assert answers == [f"offloaded {self.version}"] * self.world, answers
        answers = ask_all(self.ranks, f"wait {self.version}")
        assert answers == [f"published {self.version}"] * self.world, answers
        return told

    def newest(self):
        return self.agent.get("/v1/models")["models"][0]["newest"]

    def kill_at_progress(self, victim):
        self.ranks[victim].send(f"die {self.r.randrange(1001)} {self.version}")

    def kill_at_once(self, victim):
        """Kills the rank from outside when the offload has just begun, or has already ended."""
        self.ranks[victim].send(f"offload {self.version}")
        time.sleep(self.r.random() * 0.02 * SLOW)
        self.ranks[victim].kill()

    def round(self):
        last, self.version = self.version, self.version + 1
        victim = self.r.randrange(self.world)
        others = [r for r in self.ranks if r.rank != victim]
        kill = self.r.choice((self.kill_at_progress, self.kill_at_once))
        order = self.r.randrange(3)  # the others before it, at the same time, or after its end
        if order == 0:
            assert ask_all(others, f"offload {self.version}") == [f"offloaded {self.version}"] * len(others)
        if order == 1:
            for r in others:
                r.send(f"offload {self.version}")
        kill(victim)
        assert self.ranks[victim].reap() == -signal.SIGKILL
        newest = self.newest()
        assert newest in (last, self.version), (newest, last)
        self.check(newest)
        everybody = self.r.random() < 0.4  # the launcher ends and restarts all of them, or only the one
        for r in self.ranks if everybody else [self.ranks[victim]]:
            if r.rank != victim:
                r.kill()
            self.ranks[r.rank] = self.rank(r.rank)
        got_through = self.newest() == self.version
        for t in self.offload(others if order == 1 and not everybody else ()):
            if isinstance(t, Refused):
                known = {errno.ECANCELED: "abandoned: rank ", errno.EPROTO: f"while others write {self.version}"}
                assert known.get(t.errno, "?") in t.text and f"version {self.version - 1}" in t.text, t.text
                self.told += 1
            else:
                assert t == f"offloaded {self.version - 1}", t
        return got_through

    @staticmethod
    def answers(ranks):
        out = []
        for r in ranks:
            try:
                out.append(r.answer())
            except Refused as e:
                out.append(e)
        return out

    def check(self, version):
        """The version is still served by the agent itself."""
        versions = [v["version"] for v in self.agent.get("/v1/models")["models"][0]["versions"]]
        assert version in versions, (version, versions)


def killed(world, rounds):
    need_fuse()
    print(f"# {world} ranks, seed {SEED}", flush=True)
    agent = Agent()
    mount = Mount(f"unix:{agent.sock}" if world == 2 else agent.url)
    trainer = Trainer(agent, mount, world, random.Random(SEED + world))
    reader = Reader(mount, "actor", ELEMENTS)
    got_through = 0
    for i in range(rounds):
        try:
            got_through += trainer.round()
        except Exception:
            print(f"# round {i}, seed {SEED}\n# " + "\n# ".join(agent.text().splitlines()[-12:]) + f"\n# {agent.get('/v1/status')}", flush=True)
            raise
    middle = agent.text().count("version abandoned model=actor ")
    assert middle > 0, f"none of {rounds} kills hit the middle of an offload"
    wait_for(lambda: trainer.version in reader.versions or reader.wrong, "the last version at the reader")
    got = tensors_of(mount.file("actor", trainer.version, "model.safetensors"))
    want = expected(trainer.version, ELEMENTS)
    assert got == want, describe(trainer.version, got, want)
    print(f"# {rounds} kills, {middle} in the middle of an offload, {got_through} after their version was whole, {trainer.told} others told; the reader saw "
          f"{len(reader.versions)} versions in {sum(reader.versions.values())} reads, {reader.refused} were gone", flush=True)


def test_other_tensors():
    "a killed rank restarts with other tensors: the surviving ranks register again"
    agent = Agent()
    args = ("timeout=2000",) if not SANITIZER else ("timeout=10000",)
    small = 1 << 16
    ranks = [Rank(agent, "actor", i, 2, small, *args) for i in range(2)]
    assert ask_all(ranks, "offload 1") == ["offloaded 1"] * 2
    version = at_once = 1
    r = random.Random(SEED)
    for more in range(100, 112):
        version += 1
        ranks[0].send(f"{r.choice(('offload', 'die 500'))} {version}") if r.random() < 0.5 else None
        ranks[0].kill()
        ranks[0] = Rank(agent, "actor", 0, 2, small, *args, f"seed={more}")
        version += 1
        told = ask_all(ranks, f"offload {version}")  # if its end was not known yet, rank 1 may have continued with the old placement
        assert all(not isinstance(t, Refused) or t.errno in (errno.ECANCELED, errno.ETIMEDOUT) and "rank " in t.text for t in told), told
        through = told == [f"offloaded {version}"] * 2
        at_once += through
        if not through:
            version += 1
            assert ask_all(ranks, f"offload {version}") == [f"offloaded {version}"] * 2
        assert ask_all(ranks, f"wait {version}") == [f"published {version}"] * 2
        run = agent.get("/v1/models")["models"][0]["run"]
        path = unique("served")
        with urllib.request.urlopen(f"{agent.url}/v1/actor/{version}/files/model.safetensors?run={run}", timeout=20) as reply, open(path, "wb") as f:
            f.write(reply.read())
        got, want = tensors_of(path), expected(version, small, more)
        assert got == want, describe(version, got, want)
    print(f"# {at_once - 1} of 12 got through at once", flush=True)


def test_two():
    killed(2, ROUNDS - ROUNDS // 3)


def test_three():
    killed(3, ROUNDS // 3)


test_two.__doc__ = f"2 ranks, {ROUNDS - ROUNDS // 3} kills, a mount by the unix socket"
test_three.__doc__ = f"3 ranks, {ROUNDS // 3} kills, a mount by http"
