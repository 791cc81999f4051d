# beside others
# timeout: 415, takes: 100
"""A trainer on two nodes with two ranks each, and two inference nodes, each in its own network namespace: mounts must show the same
bytes as a single rank publishes of the same tensors."""
import errno
import json
import os
import subprocess
import time

from network import Network
from world import *

T0, T1 = "10.77.0.1", "10.77.0.2"  # the trainer's nodes; t0 has the primary agent
INFERENCE = ("i0", "i1")
SILENT = 8  # seconds after which an agent counts as lost
EMBEDDING = "model.embed_tokens.weight"


class Rank:
    """A rank of the C trainer. It answers each command with a line."""

    def __init__(self, sock, rank, world, **env):
        ranks = [rank, world] if world > 1 else []
        self.process = subprocess.Popen([f"{BUILD}/tests/tools/trainer", f"unix:{sock}", "actor", "tiny", *map(str, ranks)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | env)
        at_end(self.kill)
        assert self.answer().startswith("ready"), "the trainer"

    def kill(self):
        self.process.kill()
        self.process.wait()

    def say(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self):
        return self.process.stdout.readline().strip()


def say(ranks, command):
    """Sends a command to all of them at once; returns the answers."""
    for rank in ranks:
        rank.say(command)
    return [rank.answer() for rank in ranks]


class World:
    """Two agents with four ranks, and a fifth rank that has all tensors and publishes to a separate agent."""

    def __init__(self, archive=False, keys=()):
        need_fuse()
        self.keys = keys
        self.archives = [unique("archive"), unique("archive")] if archive else []
        self.net = Network(("t0", "t1", *INFERENCE))
        self.token = unique("token")
        with open(self.token, "w") as f:
            f.write("secret\n")
        self.env = {"SIDECARS": checkpoint({}, files={}), "BASE": checkpoint({"frozen": ("F32", [33, 5])}, seed=5, sidecars=False)}
        with self.net.inside("t0"):
            self.a0 = Agent("--token-file", self.token, "--nodes", *self.to_disk(0), host=T0)
        self.start_secondary()
        self.whole = Agent()
        self.ranks = [self.start_rank(r) for r in range(4)]
        self.alone = Rank(self.whole.sock, 0, 1, **self.env)
        self.reference = Mount(self.whole.url)

    def start_secondary(self, port=None, sock=None):
        with self.net.inside("t1"):
            self.a1 = Agent("--token-file", self.token, "--primary", self.a0.url, "--primary-insecure", *self.to_disk(1), host=T1,
                            port=port, sock=sock)

    def to_disk(self, i):
        return (["--archive", self.archives[i]] if self.archives else []) + (["--sign-key", self.keys[i]] if self.keys else [])

    def start_rank(self, r):
        return Rank((self.a0 if r < 2 else self.a1).sock, r, 4, **self.env)

    def restart_rank(self, r, version):
        """Starts a rank that has ended again, with the tensors that the others are about to offload."""
        self.ranks[r] = self.start_rank(r)
        for _ in range(version - 1):
            assert say([self.ranks[r]], "step 0.01")[0].startswith("stepped")

    def mount(self, node, urls=None, options="deadline=6"):
        with self.net.inside(node):
            return Mount(urls or f"{self.a0.url},{self.a1.url}", f"host={node},token-file={self.token},insecure,{options}")

    def step(self):
        """Changes the tensors of all ranks in the same way."""
        answers = say([*self.ranks, self.alone], "step 0.01")
        assert len(set(answers)) == 1, answers

    def publish(self, version):
        for answers in (say([*self.ranks, self.alone], f"offload {version}"), say([*self.ranks, self.alone], f"wait {version}")):
            assert not any(a.startswith("failed") for a in answers), answers

    def expect_same(self, mount, version):
        mount.wait_version("actor", version)
        self.reference.wait_version("actor", version)
        for name in ("model.safetensors", "config.json"):
            assert mount.read("actor", version, name) == self.reference.read("actor", version, name), (version, name)

    def get(self, node, agent, path):
        with self.net.inside(node):
            return agent.get(path, Authorization="Bearer secret")

    def parts(self):
        """The versions of each part, as the agents list them."""
        found = {}
        for node, agent in (("t0", self.a0), ("t1", self.a1)):
            for m in self.get(node, agent, "/v1/models")["models"]:
                if "part" in m:
                    found[m["name"]] = [v["version"] for v in m["versions"]]
        return found


def digest(mount, version):
    with open(mount.file("actor", version, ".wsync", "manifest.json")) as f:
        return json.load(f)["digest"]


def test_two_and_two():
    "two trainer nodes with two ranks each: both inference nodes have the whole version, byte by byte; the next one arrives by deltas"
    w = World()
    w.publish(1)
    mounts = [w.mount(node) for node in INFERENCE]
    for mount in mounts:
        mount.wait_version("actor", 1)
        assert sorted(n for n in os.listdir(mount.path) if n.startswith("actor")) == ["actor"]  # the parts themselves are not shown
        w.expect_same(mount, 1)
        assert tensors_of(mount.file("actor/1/model.safetensors")).keys() >= {EMBEDDING, "frozen"}
        assert "2 parts: tcp full; tcp full" in mount.status("actor")["version.1"]
    assert digest(mounts[0], 1) == digest(mounts[1], 1)
    whole = os.path.getsize(mounts[0].file("actor/1/model.safetensors"))
    held = [w.get(n, a, "/v1/status")["slot_bytes"] for n, a in (("t0", w.a0), ("t1", w.a1))]
    assert all(0.45 * whole < b < 0.6 * whole for b in held), (held, whole)  # each node holds its own part

    w.step()
    w.publish(2)
    for mount in mounts:
        w.expect_same(mount, 2)
        assert mount.status("actor")["version.2"].count("tcp delta from 1") == 2, mount.text("actor/status")
        w.expect_same(mount, 1)  # as before
    assert digest(mounts[0], 2) == digest(mounts[1], 2) != digest(mounts[0], 1)
    assert digest(mounts[0], 1) == digest(mounts[1], 1)
    for v in (3, 4, 5):
        w.step()
        w.publish(v)
    for mount in mounts:
        w.expect_same(mount, 5)


def test_release():
    "releases, reports and the ranks' waits for engines go through the primary, also from a rank on another node"
    w = World()
    w.publish(1)
    engines = []
    for node in INFERENCE:
        mount = w.mount(node)
        mount.wait_version("actor", 1)
        with w.net.inside(node):
            engines.append(Engine(mount.file("actor/1")))
        mount.write(f"engine add e sglang {engines[-1].url}", "actor/ctl")
        mount.write("follow", "actor/policy")
    stands = lambda: [m for m in w.get("t0", w.a0, "/v1/actor/mounts") if m["engines"] == 1 and m["follows"]]
    wait_for(lambda: len(stands()) == 2, "the mounts")
    w.step()
    w.publish(2)
    with w.net.inside("t1"):  # sent to the agent that is not the primary
        r = wsync("release", "--agent", w.a1.url, "--token-file", w.token, "--insecure", "--wait", 60 * SLOW, "actor", 2, check=False)
    assert r.returncode == 0 and "released: 2 mounts serve it" in r.stdout + r.stderr, r
    assert say(w.ranks, "loaded 2") == ["loaded 2"] * 4
    for node, engine in zip(INFERENCE, engines):
        with w.net.inside(node):
            assert engine.serves() == "2"


def test_late_part():
    "a release reaches a mount before one agent's listing of the version does: the mount waits for that part"
    w = World()
    w.publish(1)
    mount = w.mount("i0")
    mount.wait_version("actor", 1)
    with w.net.inside("i0"):
        engine = Engine(mount.file("actor/1"))
    mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
    mount.write("follow", "actor/policy")
    wait_for(lambda: [m for m in w.get("t0", w.a0, "/v1/actor/mounts") if m["engines"] == 1 and m["follows"]], "the mount")
    w.net.ip("t1", "route add blackhole 10.77.0.3")  # i0, which hears nothing of t1 from now on
    w.publish(2)
    wait_for(lambda: f"2 lacks part 2 of 2 (of the agent {T1}" in mount.text("actor/status"), "the first part")
    with w.net.inside("t0"):
        release = subprocess.Popen([WSYNC, "release", "--agent", w.a0.url, "--token-file", w.token, "--insecure", "--wait", str(60 * SLOW), "actor", "2"],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    time.sleep(1)
    assert release.poll() is None, release.stdout.read()
    w.net.ip("t1", "route del blackhole 10.77.0.3")
    said = release.communicate(timeout=90 * SLOW)[0]
    assert release.returncode == 0 and "released: 1 mount serves it" in said, said
    with w.net.inside("i0"):
        assert engine.serves() == "2"


def test_missing_agent():
    "a mount without one of the agents as its source shows no version, and says which part is missing and on which node it is"
    w = World()
    w.publish(1)
    for urls, missing in ((w.a0.url, f"part 2 of 2 (of the agent {T1}:{w.a1.port})"),
                          (w.a1.url, f"part 1 of 2 (of the agent {T0}:{w.a0.port})")):
        mount = w.mount("i0", urls)
        wait_for(lambda: os.path.isdir(mount.file("actor")), "the model")
        wait_for(lambda: missing in mount.text("actor/status"), "the status")
        assert not os.path.exists(mount.file("actor/1"))
        assert mount.refused("stage 1", "actor/ctl") == "ENOENT"
        said = mount.text("actor/last_error")
        assert missing in said and "URL" in said, said
        wait_for(lambda: missing in mount.text(), "the log")
    mount = w.mount("i1")
    w.expect_same(mount, 1)
    assert "lacking" not in mount.text("actor/status")


def test_slow():
    "a lookup in a version that must first be merged from its parts waits for them as long as a read would"
    w = World()
    w.publish(1)
    w.net.slow("t1", 4, sends=True)  # 7 MB take 15 s
    mount = w.mount("i0", options="deadline=120")
    start = time.monotonic()
    w.expect_same(mount, 1)
    assert time.monotonic() - start > 11, "the link was not slow"


def test_unix():
    "on one host the parts are merged from the agents' own memory"
    w = World()
    w.publish(1)
    mount = w.mount("t0", f"unix:{w.a0.sock},unix:{w.a1.sock}")
    w.expect_same(mount, 1)
    assert "2 parts: ipc; ipc" in mount.status("actor")["version.1"], mount.text("actor/status")
    leases = lambda: [s["leases"] for m in w.get("t0", w.a0, "/v1/status")["models"] for s in m["slots"]]
    wait_for(lambda: sum(leases()) == 0, "the slots to be free again")
    for v in (2, 3, 4):
        w.step()
        w.publish(v)
    w.expect_same(mount, 4)
    w.expect_same(mount, 1)


def test_relay():
    "a mount that merged the parts is a source of whole versions, beside the agents too"
    w = World()
    with w.net.inside("i0"):
        serve = f"10.77.0.3:{free_port()}"
    first = w.mount("i0", options=f"deadline=6,serve={serve},serve-token-file={w.token}")
    only = w.mount("i1", f"http://{serve}")
    beside = w.mount("i1", f"http://{serve},{w.a0.url},{w.a1.url}")
    for v in (1, 2):
        w.publish(v)
        for mount in (first, only, beside):
            w.expect_same(mount, v)
        assert digest(first, v) == digest(only, v) == digest(beside, v)
        w.step()
    assert "parts" not in only.status("actor")["version.2"]
    assert sorted(n for n in os.listdir(only.path) if n.startswith("actor")) == ["actor"]


def test_archives():
    "each agent archives its part; the folders together are a source, also of versions stored as deltas"
    w = World(archive=True)
    for v in (1, 2, 3):
        w.publish(v)
        on_disk = lambda: [w.get(n, a, "/v1/models") and os.path.isdir(f"{d}/v1/actor@{i}.2/{v}")
                           for i, (n, a, d) in enumerate((("t0", w.a0, w.archives[0]), ("t1", w.a1, w.archives[1])))]
        wait_for(lambda: all(on_disk()), f"version {v} on both disks")
        w.step()
    both = Mount(f"dir:{w.archives[0]},dir:{w.archives[1]}")
    for v in (3, 2):
        w.expect_same(both, v)
    one = Mount(f"dir:{w.archives[1]}")
    wait_for(lambda: os.path.isdir(one.file("actor")) and "lacks part 1 of 2" in one.text("actor/status"), "what lacks")
    lacking = one.status("actor")["lacking"]
    assert json.loads(wsync("status", "--json", one.path).stdout)["models"][0]["lacking"] == lacking
    assert f"lacking: {lacking}" in wsync("status", one.path).stdout


def test_agent_killed():
    "an agent that dies during a pull is named in time; the trainer is told; both recover"
    w = World()
    w.publish(1)
    w.net.slow("t1", 10, sends=True)  # 7 MB take 6 s
    mount = w.mount("i0")
    mount.wait_version("actor", 1)
    reader = subprocess.Popen(["cat", mount.file("actor/1/model.safetensors")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True)
    wait_for(lambda: "actor@0.2 version=1 how" in mount.text(), "the other part")
    w.a1.kill()
    start = time.monotonic()
    out = reader.communicate(timeout=60 * SLOW)[1]
    assert reader.returncode and (os.strerror(errno.EHOSTUNREACH) in out or os.strerror(errno.ETIMEDOUT) in out), out
    assert time.monotonic() - start < 30 * SLOW
    said = mount.status("actor")["version.1"]
    assert "failed" in said and f"{T1}:{w.a1.port}" in said, said

    say(w.ranks[:2], "step 0.01")
    start = time.monotonic()
    say(w.ranks[:2], "offload 2")
    told = say(w.ranks[:2], "wait 2")
    assert all(a.startswith("failed") and f"{T1}:{w.a1.port}" in a for a in told), told
    assert time.monotonic() - start < (SILENT + 25) * SLOW  # in time, without a hang
    for rank in w.ranks[2:]:
        rank.kill()
    w.start_secondary(port=w.a1.port, sock=w.a1.sock)
    w.ranks[2:] = [w.start_rank(2), w.start_rank(3)]
    say([*w.ranks[2:], w.alone], "step 0.01")
    w.publish(3)
    subprocess.run(["tc", "-n", f"{w.net.prefix}t1", "qdisc", "del", "dev", "eth0", "root"], check=True)
    w.expect_same(mount, 3)


def test_primary_killed():
    "when the primary agent dies no version is half published: the other node's ranks are told, and a new trainer continues with a new primary"
    w = World()
    w.publish(1)
    mount = w.mount("i0")
    w.expect_same(mount, 1)
    w.ranks[0].say("begin 2")
    assert w.ranks[0].answer() == "begun 2"
    w.a0.kill()
    start = time.monotonic()
    say(w.ranks[2:], "offload 2")
    told = say(w.ranks[2:], "wait 2")
    assert all(a.startswith("failed") and w.a0.url in a for a in told), told
    assert time.monotonic() - start < (SILENT + 25) * SLOW
    for rank in w.ranks:
        rank.kill()
    with w.net.inside("t0"):
        w.a0 = Agent("--token-file", w.token, "--nodes", host=T0, port=w.a0.port, sock=w.a0.sock)
    w.ranks = [w.start_rank(r) for r in range(4)]
    w.step()
    w.publish(2)
    w.expect_same(mount, 2)


def test_rank_killed():
    "a rank killed in the middle of an offload makes both nodes abandon the version; the previous one stays; the next one works"
    w = World()
    w.publish(1)
    mount = w.mount("i0")
    w.expect_same(mount, 1)
    for victim, version in ((3, 2), (0, 3)):  # on the other node, and on the primary's
        w.step()
        w.ranks[victim].say(f"begin {version}")
        others = [r for i, r in enumerate(w.ranks) if i != victim]
        for rank in others:
            rank.say(f"offload {version}")
        assert w.ranks[victim].answer() == f"begun {version}"
        w.ranks[victim].kill()
        answers = [r.answer() for r in others]
        told = say(others, f"wait {version}")
        assert all(a.startswith("failed") and f"rank {victim}" in a for a in told), (answers, told)
        assert all(version not in vs and version - 1 in vs for vs in w.parts().values()), w.parts()
        w.restart_rank(victim, version)
        w.publish(version)
        w.expect_same(mount, version)
        w.expect_same(mount, version - 1)


def test_rank_restarted():
    "a rank that restarts between versions is not affected by a finished round at its next offload, on either node"
    w = World()
    w.publish(1)
    mount = w.mount("i0")
    w.expect_same(mount, 1)
    for version, victim in enumerate((0, 3, 0), 2):
        w.step()
        w.ranks[victim].kill()
        w.restart_rank(victim, version)
        w.publish(version)
        w.expect_same(mount, version)


def test_skipped_version():
    "a version that one rank skips is abandoned, on whichever node; the next one works at once"
    w = World()
    w.publish(1)
    mount = w.mount("i0")
    w.expect_same(mount, 1)
    for version, missing in ((3, 2), (5, 0), (7, 3)):
        others = [rank for i, rank in enumerate(w.ranks) if i != missing]
        w.step()
        assert all(a.startswith("offloaded") for a in say(others, f"offload {version - 1}"))
        w.ranks[missing].say(f"offload {version}")  # the other ranks join it when they learn of the abandonment
        told = say(others, f"wait {version - 1}")
        assert all(a.startswith("failed 125 ") and f"rank {missing} went on to version {version}" in a for a in told), told
        say(others + [w.alone], f"offload {version}")
        assert w.ranks[missing].answer().startswith("offloaded")
        told = say([*w.ranks, w.alone], f"wait {version}")
        assert all(a.startswith("published") for a in told), told
        w.expect_same(mount, version)


def test_disagreement():
    "nodes that offload different versions publish neither, and the error names each node's version; the next one works"
    w = World()
    w.publish(1)
    mount = w.mount("i1")
    w.expect_same(mount, 1)
    for i, rank in enumerate(w.ranks):
        rank.say(f"offload {5 if i < 2 else 6}")
    for rank in w.ranks:
        rank.answer()
    told = say(w.ranks[:2], "wait 5") + say(w.ranks[2:], "wait 6")
    assert all(a.startswith("failed") and "different versions" in a and T1 in a for a in told), told
    assert set(sum(w.parts().values(), [])) == {1}, w.parts()
    w.step()
    w.publish(7)
    w.expect_same(mount, 7)


def test_cut_apart():
    "trainer nodes that lose contact abandon the version in progress, in time and with a name; reconnected they continue"
    w = World()
    w.publish(1)
    mount = w.mount("i0")
    w.expect_same(mount, 1)
    w.net.lose("t1")
    start = time.monotonic()
    for rank in w.ranks:
        rank.say("offload 2")
    for rank in w.ranks:
        rank.answer()
    told = say(w.ranks, "wait 2")
    took = time.monotonic() - start
    assert all(a.startswith("failed") for a in told) and took < (SILENT + 25) * SLOW, (told, took)
    assert f"{T1}:{w.a1.port}" in told[0] and T0 in told[2], told
    print(f"# told {took:.1f} s after the link was lost", flush=True)
    w.net.find("t1")
    wait_for(lambda: (w.get("t0", w.a0, "/v1/status")["models"][0]["nodes"]["whole"] and
                      w.get("t1", w.a1, "/v1/status")["models"][0]["nodes"]["whole"]), "the nodes to be together", 30)
    w.step()
    w.publish(3)
    w.expect_same(mount, 3)


def test_whole_again():
    "a trainer that restarts on one node publishes whole versions that replace those in parts, and back again"
    w = World()
    w.publish(1)
    mount = w.mount("i0")
    w.expect_same(mount, 1)
    for rank in w.ranks:
        rank.kill()
    w.ranks = [Rank(w.a0.sock, r, 2, **w.env) for r in range(2)]
    w.step()
    w.publish(2)
    w.expect_same(mount, 2)
    assert "parts" not in mount.status("actor")["version.2"]
    wait_for(lambda: w.get("t0", w.a0, "/v1/status")["slot_bytes"] < 1.2 * os.path.getsize(mount.file("actor/2/model.safetensors")),
             "the memory of the part")
    for rank in w.ranks:
        rank.kill()
    w.ranks = [w.start_rank(r) for r in range(4)]
    for rank in w.ranks:
        assert say([rank], "step 0.01")[0].startswith("stepped")
    w.step()
    w.publish(3)
    w.expect_same(mount, 3)
    assert "2 parts" in mount.status("actor")["version.3"]


def test_signed():
    "each agent signs its part; a mount that trusts both merges what was checked, also of deltas, and one that trusts one of them refuses"
    keys = [unique("node") + ".key" for _ in range(2)]
    for key in keys:
        wsync("key", "new", "--out", key)
    world = World(keys=keys)
    world.publish(1)
    both = world.mount("i0", options=f"deadline=6,verify-key={keys[0]}.pub:{keys[1]}.pub,{DELTAS}")
    world.expect_same(both, 1)
    one = world.mount("i1", options=f"deadline=6,verify-key={keys[0]}.pub")
    one.wait_version("actor", 1)
    assert one.refused("pull 1", "actor", "ctl") == "EBADMSG", one.text("actor/last_error")
    assert "not trusted" in one.text("actor/last_error"), one.text("actor/last_error")
    world.step()
    world.publish(2)
    world.expect_same(both, 2)
