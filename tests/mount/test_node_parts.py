# beside others
# timeout: 1200, takes: 150
"""A trainer on two nodes with two ranks each, and two inference nodes, each in its own network namespace: mounts must show the same
bytes as a single rank publishes of the same tensors."""
import contextlib
import errno
import http.client
import http.server
import json
import os
import subprocess
import threading
import time

from network import Network
from span import Rank, say
from world import *

T0, T1 = "10.77.0.1", "10.77.0.2"  # the trainer's nodes; t0 has the primary agent
INFERENCE = ("i0", "i1")
SILENT = 8  # seconds after which an agent counts as lost
EMBEDDING = "model.embed_tokens.weight"


class World:
    """Two agents with four ranks, and a fifth rank that has all tensors and publishes to a separate agent."""

    def __init__(self, archive=False, keys=(), primary=(), secondary=()):
        need_fuse()
        self.keys = keys
        self.of_primary, self.of_secondary = primary, secondary
        self.archives = [unique("archive"), unique("archive")] if archive else []
        self.net = Network(("t0", "t1", *INFERENCE))
        self.token = unique("token")
        with open(self.token, "w") as f:
            f.write("secret\n")
        self.env = {"SIDECARS": checkpoint({}, files={}), "BASE": checkpoint({"frozen": ("F32", [33, 5])}, seed=5, sidecars=False)}
        self.start_primary()
        self.start_secondary()
        self.whole = Agent()
        self.ranks = [self.start_rank(r) for r in range(4)]
        self.alone = Rank(self.whole.sock, 0, 1, **self.env)
        self.reference = Mount(self.whole.url)

    def start_primary(self, port=None, sock=None):
        with self.net.inside("t0"):
            self.a0 = Agent("--token-file", self.token, "--nodes", *self.to_disk(0), *self.of_primary, host=T0, port=port, sock=sock)

    def start_secondary(self, port=None, sock=None):
        with self.net.inside("t1"):
            self.a1 = Agent("--token-file", self.token, "--primary", self.a0.url, "--primary-insecure", *self.to_disk(1), *self.of_secondary, host=T1,
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
        assert mount.text("actor/2/.wsync/changed") == w.reference.text("actor/2/.wsync/changed") != ""
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
    assert r.returncode == 0 and "released: 2 mounts, " in r.stdout + r.stderr, r
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
    assert release.returncode == 0 and "released: 1 mount, " in said, said
    with w.net.inside("i0"):
        assert engine.serves() == "2"


def test_missing_agent():
    "a mount without one of the agents as its source shows no version, and says which part is missing and on which node it is"
    w = World()
    w.publish(1)
    for urls, missing in ((w.a0.url, f"part 2 of 2 (of the agent {T1}:{w.a1.port})"),
                          (w.a1.url, f"part 1 of 2 (of the agent {T0}:{w.a0.port})")):
        mount = w.mount("i0", urls)
        mount.wait_model()
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
    assert "2 parts: ipc full; ipc full" in mount.status("actor")["version.1"], mount.text("actor/status")
    leases = lambda: [s["leases"] for m in w.get("t0", w.a0, "/v1/status")["models"] for s in m["slots"]]
    wait_for(lambda: sum(leases()) == 0, "the slots to be free again")
    for v in (2, 3, 4):
        w.step()
        w.publish(v)
    w.expect_same(mount, 4)
    w.expect_same(mount, 1)


def test_relay():
    "a mount that has the parts is a source of them, beside the agents too, and of whole versions for older releases"
    w = World()
    with w.net.inside("i0"):
        serve = f"10.77.0.3:{free_port()}"
    first = w.mount("i0", options=f"deadline=6,serve={serve},serve-token-file={w.token},{DELTAS}")
    only = w.mount("i1", f"http://{serve}")
    beside = w.mount("i1", f"http://{serve},{w.a0.url},{w.a1.url}")
    for v in (1, 2):
        w.publish(v)
        for mount in (first, only, beside):
            w.expect_same(mount, v)
        assert digest(first, v) == digest(only, v) == digest(beside, v)
        w.step()
    assert "2 parts" in only.status("actor")["version.2"]
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
    wait_for(lambda: "failed" in mount.status("actor")["version.1"], "the pull's end", 30 * SLOW)
    said = mount.status("actor")["version.1"]
    assert f"{T1}:{w.a1.port}" in said, said

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


def test_primary_comes_back():
    "when the primary agent dies and comes back the ranks and the other node join again by themselves; the last version stays, and the lineage goes on"
    state = unique("primary") + "/agent.state"
    w = World(primary=("--state", state))
    w.publish(1)
    mount = w.mount("i0")
    w.expect_same(mount, 1)
    lineages = {v["run"] for m in w.get("t0", w.a0, "/v1/models")["models"] for v in m["versions"]}
    w.a0.kill()
    w.expect_same(mount, 1)
    with w.net.inside("t0"):
        w.a0 = Agent("--token-file", w.token, "--nodes", "--state", state, host=T0, port=w.a0.port, sock=w.a0.sock)
    w.step()
    for version in range(2, 7):  # an offload that met the agent's end is lost, and the next one is not
        told = say(w.ranks, f"offload {version}") and say(w.ranks, f"wait {version}")
        if not any(a.startswith("failed") for a in told):
            break
    assert not any(a.startswith("failed") for a in told), told
    assert not any(a.startswith("failed") for a in say([w.alone], f"offload {version}") + say([w.alone], f"wait {version}"))
    assert {v["run"] for m in w.get("t0", w.a0, "/v1/models")["models"] for v in m["versions"]} == lineages
    w.expect_same(mount, version)


def test_agents_come_back():
    "agents of both nodes that keep their state die and come back, one, the other, and both: ranks and nodes join again without a restart, the last version stays"
    states = [unique("agent") + "/agent.state" for _ in range(2)]
    w = World(primary=("--state", states[0]), secondary=("--state", states[1]))
    w.publish(1)
    mount = w.mount("i0")
    w.expect_same(mount, 1)
    lineage = {v["run"] for m in w.get("t1", w.a1, "/v1/models")["models"] for v in m["versions"]}
    assert len(lineage) == 1
    newest = 1
    for killed in ((0,), (1,), (0, 1)):
        for i in killed:
            (w.a0, w.a1)[i].kill()
        w.expect_same(mount, newest)
        if 1 in killed:
            w.start_secondary(port=w.a1.port, sock=w.a1.sock)
        if 0 in killed:
            w.start_primary(port=w.a0.port, sock=w.a0.sock)
        w.step()
        for version in range(newest + 1, newest + 7):  # an offload that met an agent's end is lost, and the next one is not
            told = say(w.ranks, f"offload {version}") and say(w.ranks, f"wait {version}")
            if not any(a.startswith("failed") for a in told):
                break
        assert not any(a.startswith("failed") for a in told), (killed, told)
        assert not any(a.startswith("failed") for a in say([w.alone], f"offload {version}") + say([w.alone], f"wait {version}"))
        w.expect_same(mount, version)
        for node, agent in (("t0", w.a0), ("t1", w.a1)):
            assert {v["run"] for m in w.get(node, agent, "/v1/models")["models"] for v in m["versions"]} == lineage, killed
        newest = version


def restart_secondary(w):
    w.a1.kill()
    w.start_secondary(port=w.a1.port, sock=w.a1.sock)


def test_agent_restarted_between():
    "an agent that is started anew between versions costs none of them: ranks of other nodes wait for those that come back to it"
    w = World()
    w.publish(1)
    mount = w.mount("i0")
    w.expect_same(mount, 1)
    for version in range(2, 6):  # on a machine that takes as long as an agent may be silent, the version is given up
        w.step()
        early = say([*w.ranks[:2], w.alone], f"offload {version}")
        restart_secondary(w)
        late = say(w.ranks[2:], f"offload {version}")
        told = say([*w.ranks, w.alone], f"wait {version}")
        if not any(a.startswith("failed") for a in early + late + told):
            break
    assert not any(a.startswith("failed") for a in early + late + told), (early, late, told)
    w.expect_same(mount, version)
    w.step()
    w.publish(version + 1)
    w.expect_same(mount, version + 1)


def test_agent_restarted_after_commit():
    "an agent that has a version in flight and is started anew loses that version, the ranks of the other node hear why, and the next one works"
    w = World()
    w.publish(1)
    mount = w.mount("i0")
    for version in (2, 4, 6):
        assert all(a.startswith("offloaded") for a in say(w.ranks[2:], f"offload {version}"))
        restart_secondary(w)
        say([*w.ranks[:2], w.alone], f"offload {version}")
        for rank in w.ranks[2:]:
            rank.say(f"offload {version + 1}")
        told = say(w.ranks[:2], f"wait {version}")
        assert all(a.startswith("failed") and f"{T1}:{w.a1.port}" in a for a in told), told
        answers = (say([*w.ranks[:2], w.alone], f"offload {version + 1}") + [r.answer() for r in w.ranks[2:]] +
                   say([*w.ranks, w.alone], f"wait {version + 1}"))
        assert not any(a.startswith("failed") for a in answers), answers
        w.expect_same(mount, version + 1)
        if not any("is silent" in a for a in told):  # else the machine took as long as an agent may be silent
            break
    assert all("was started anew" in a or "came back" in a for a in told), told


def test_agent_restarted_after_a_failure():
    "ranks whose agent was away go on with the next version: the one that others wrote meanwhile ends at once, with the reason"
    w = World()
    w.publish(1)
    mount = w.mount("i0")
    for version in (2, 4, 6):
        w.a1.kill()
        assert all(a.startswith("failed") for a in say(w.ranks[2:], f"offload {version}"))
        for rank in w.ranks[:2]:
            rank.say(f"offload {version}")
        w.start_secondary(port=w.a1.port, sock=w.a1.sock)
        for rank in w.ranks[2:]:
            rank.say(f"offload {version + 1}")
        for rank in w.ranks[:2]:
            rank.answer()
        told = say(w.ranks[:2], f"wait {version}")
        assert all(a.startswith("failed") and f"{T1}:{w.a1.port}" in a for a in told), told
        answers = (say([*w.ranks[:2], w.alone], f"offload {version + 1}") + [r.answer() for r in w.ranks[2:]] +
                   say([*w.ranks, w.alone], f"wait {version + 1}"))
        assert not any(a.startswith("failed") for a in answers), answers
        w.expect_same(mount, version + 1)
        if not any("is silent" in a for a in told):  # else the machine took as long as an agent may be silent
            break
    assert all("came back" in a for a in told), told


def test_agent_restarted_late():
    "ranks that come back with a version that was given up without them are told at once, and do not miss the next one"
    w = World()
    w.publish(1)
    mount = w.mount("i0")
    w.a1.kill()
    say(w.ranks[:2], "offload 2")
    wait_for(lambda: "a node is silent" in w.a0.text(), "the primary to see it", 60)
    told = say(w.ranks[:2], "wait 2")
    assert all(a.startswith("failed") and f"{T1}:{w.a1.port}" in a for a in told), told
    w.start_secondary(port=w.a1.port, sock=w.a1.sock)
    told = say(w.ranks[2:], "offload 2")
    assert all(a.startswith("failed") and "came too late with version 2" in a and f"{T1}:{w.a1.port}" in a for a in told), told
    w.publish(3)
    w.expect_same(mount, 3)


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


@pytest.mark.parametrize("copies", [2, 1])
def test_whole_again(copies):
    "a trainer that restarts on one node publishes whole versions that replace those in parts, and back again; with copies=1, too"
    w = World()
    w.publish(1)
    mount = w.mount("i0", options=f"deadline=6,copies={copies}")
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


def have(mount, version=1):
    return int(dict(l.split(" ", 1) for l in mount.text("actor", version, ".wsync/progress").splitlines())["have_bytes"])


def is_ready(mount, version=1):
    return mount.text("actor", version, ".wsync/state").split()[0] == "ready"


def relay(w, source=None, options="deadline=60"):
    """A mount on i0 that serves; .url is its source."""
    with w.net.inside("i0"):
        url = f"http://10.77.0.3:{free_port()}"
    mount = w.mount("i0", source, f"{options},serve={url[7:]},serve-token-file={w.token}")
    mount.url = url
    return mount


def how(mount, version):
    return mount.status("actor")[f"version.{version}"]


def test_stream():
    "a reader of a version in parts gets what has come, before the rest; names, sizes and tensors are there from the start"
    w = World()
    w.publish(1)
    other = w.mount("i1")
    w.expect_same(other, 1)
    for node in ("t0", "t1"):
        w.net.slow(node, 16, sends=True)  # 7 MB take 4 s
    mount = w.mount("i0", options="deadline=60,open=stream")
    mount.wait_version("actor", 1)
    want = w.reference.read("actor/1/model.safetensors")
    assert os.path.getsize(mount.file("actor/1/model.safetensors")) == len(want) and not is_ready(mount)
    assert EMBEDDING in os.listdir(mount.file("actor/1/tensors")) and not is_ready(mount)
    with open(mount.file("actor/1/model.safetensors"), "rb") as f:
        first = os.pread(f.fileno(), 1 << 20, 0)
        assert first == want[:1 << 20] and not is_ready(mount) and 0 < have(mount) < len(want)
        assert os.pread(f.fileno(), len(want), 0) == want
    wait_for(lambda: is_ready(mount), "the rest")
    w.expect_same(mount, 1)
    assert digest(mount, 1) == digest(other, 1)
    mount.write("verify 1", "actor/ctl")


def test_relay_of_parts():
    "a mount that serves offers the parts with their deltas: those behind it, who reach no agent, step by deltas, and have the same digest"
    w = World()
    w.publish(1)
    first = relay(w, options=f"deadline=60,{DELTAS}")
    leaf = w.mount("i1", first.url, f"deadline=60,{DELTAS}")
    for v in (1, 2, 3):
        if v > 1:
            w.step()
            w.publish(v)
        for mount in (first, leaf):
            w.expect_same(mount, v)
        assert digest(first, v) == digest(leaf, v)
        if v > 1:
            assert how(first, v).count("tcp delta from") == how(leaf, v).count("tcp delta from") == 2, (how(first, v), how(leaf, v))
    assert "2 parts" in how(leaf, 3)
    with w.net.inside("i1"):
        asked = urllib.request.Request(first.url + "/v1/models", headers={"Authorization": "Bearer secret"})
        listed = {m["name"]: m for m in json.load(urllib.request.urlopen(asked, timeout=30 * SLOW))["models"]}
    assert listed.keys() == {"actor", "actor@0.2", "actor@1.2"}
    assert [n.rsplit(":", 1)[0] for n in listed["actor@1.2"]["part"]["nodes"]] == [T0, T1], listed
    assert sorted(n for n in os.listdir(leaf.path) if n.startswith("actor")) == ["actor"]
    leaf.write("verify 3", "actor/ctl")


def test_parts_pass_through():
    "parts are passed on while they arrive: a leaf has blocks of the whole before the mount in between is complete"
    w = World()
    w.publish(1)
    for node in ("t0", "t1"):
        w.net.slow(node, 12, sends=True)
    first = relay(w)
    leaf = w.mount("i1", first.url, "deadline=60,open=stream")
    leaf.wait_version("actor", 1)
    leaf.write("pull 1 async", "actor/ctl")
    wait_for(lambda: os.path.isdir(leaf.file("actor/1")) and have(leaf) > 0, "a block at the leaf", 60)
    assert not is_ready(first), first.text("actor/1/.wsync/progress")
    w.expect_same(leaf, 1)
    w.expect_same(first, 1)
    assert digest(first, 1) == digest(leaf, 1)


def test_relay_that_lies():
    "wrong bytes of a part from a mount that serves are caught at the block; with the agents as sources the right ones come"
    w = World()
    w.publish(1)
    first = relay(w)
    w.expect_same(first, 1)
    with w.net.inside("i1"):
        leaf = Mount(f"unix:{unique('nobody')}.sock", f"host=i1,token-file={w.token},insecure,deadline=10")
    leaf.write(f"add actor fault:flip=100:{first.url}", "ctl")
    leaf.wait_version("actor", 1)
    assert leaf.refused("pull 1", "actor/ctl") == "EBADMSG"
    assert "not the manifest's" in leaf.text("actor/last_error"), leaf.text("actor/last_error")
    for agent in (w.a0, w.a1):
        leaf.write(f"add actor {agent.url}", "ctl")
    wait_for(lambda: leaf.text("status").count(" up transport=") >= 2, "the agents")
    time.sleep(1.1)  # a failure is remembered for a second
    w.expect_same(leaf, 1)
    assert int(leaf.status()["bad_blocks"]) > 0


def test_relay_ends():
    "a mount that serves parts dies in the middle: who pulls from it goes on with the agents, and loses no block"
    w = World()
    w.publish(1)
    for node in ("t0", "t1"):
        w.net.slow(node, 12, sends=True)
    first = relay(w)
    leaf = w.mount("i1", f"{first.url},{w.a0.url},{w.a1.url}", "deadline=60")
    leaf.wait_version("actor", 1)
    leaf.write("pull 1 async", "actor/ctl")
    wait_for(lambda: os.path.isdir(leaf.file("actor/1")) and have(leaf) > 0, "a block at the leaf", 60)
    first.kill()
    w.expect_same(leaf, 1)


def test_dropped():
    "a version whose parts others read is dropped: its memory goes when they have ended, and it can be pulled again"
    w = World()
    w.publish(1)
    first = relay(w)
    leaf = w.mount("i1", first.url)
    for _ in range(2):
        w.expect_same(leaf, 1)
        w.expect_same(first, 1)
        for mount in (leaf, first):
            mount.write("drop 1", "actor/ctl")
            wait_for(lambda m=mount: have(m) == 0, "the version without bytes")
    w.expect_same(leaf, 1)


def test_signed_relay():
    "signatures of parts are passed on by a mount without keys, and checked behind it, by deltas too"
    keys = [unique("node") + ".key" for _ in range(2)]
    for key in keys:
        wsync("key", "new", "--out", key)
    w = World(keys=keys)
    w.publish(1)
    first = relay(w, options=f"deadline=60,{DELTAS}")
    both = w.mount("i1", first.url, f"deadline=30,verify-key={keys[0]}.pub:{keys[1]}.pub,{DELTAS}")
    for v in (1, 2):
        if v > 1:
            w.step()
            w.publish(v)
        w.expect_same(first, v)
        w.expect_same(both, v)
    assert how(both, 2).count("tcp delta from") == 2, how(both, 2)
    one = w.mount("i1", first.url, f"deadline=6,verify-key={keys[1]}.pub")
    one.wait_version("actor", 2)
    assert one.refused("pull 2", "actor", "ctl") == "EBADMSG", one.text("actor/last_error")
    assert "not trusted" in one.text("actor/last_error"), one.text("actor/last_error")


def test_asked_at_any_moment():
    "a mount that serves is asked for blocks of parts at every moment of its pulls, by clients that do not wait: it brings each block once, and lives"
    w = World()
    w.publish(1)
    first = relay(w)
    first.wait_version("actor", 1)
    over = threading.Event()
    answered = []

    def ask():
        with w.net.inside("i1"):
            n = 0
            while not over.is_set():
                n += 1
                client = http.client.HTTPConnection(first.url[7:], timeout=0.02)
                with contextlib.suppress(OSError, http.client.HTTPException):
                    at = n // 2 % 2 << 22
                    client.request("GET", f"/v1/actor@{n % 2}.2/1/files/model.safetensors",
                                   headers={"Authorization": "Bearer secret", "Range": f"bytes={at}-{at + 10}"})
                    answered.append(client.getresponse().status)
                client.close()

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for c in clients:
        c.start()
    try:
        for _ in range(12):
            first.wait_version("actor", 1)
            first.write("pull 1", "actor/ctl")
            first.write("drop 1", "actor/ctl")
    finally:
        over.set()
        for c in clients:
            c.join()
    assert first.alive() and 206 in answered, (Process.text(first)[-1000:], set(answered))
    w.expect_same(first, 1)


class Pretender(http.server.BaseHTTPRequestHandler):
    """Says that it has what another source lists, and has nothing."""

    def do_GET(self):
        listing = self.path.startswith("/v1/models")
        body = self.server.listing if listing else b'{"error":"not here"}'
        if listing and "since=" in self.path:
            time.sleep(1)
        self.send_response(200 if listing else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def test_relay_that_has_nothing():
    "a source that lists parts and has none of them is left for the agents"
    w = World()
    w.publish(1)
    with w.net.inside("i1"):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pretender)
        port = server.server_address[1]
    listings = [w.get(n, a, "/v1/models") for n, a in (("t0", w.a0), ("t1", w.a1))]
    models = [m for l in listings for m in l["models"] if "part" in m]
    for m in models:
        for v in m["versions"]:
            v["via"] = [77]
    server.listing = json.dumps({"seq": 1, "agent": 77, "models": models}).encode()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    at_end(server.shutdown)
    leaf = w.mount("i1", f"http://127.0.0.1:{port},{w.a0.url},{w.a1.url}", "deadline=30")
    w.expect_same(leaf, 1)
    assert "2 parts" in how(leaf, 1)
    alone = w.mount("i1", f"http://127.0.0.1:{port}", "deadline=6")
    alone.wait_version("actor", 1)
    why = alone.refused("pull 1", "actor/ctl")  # its source is gone, or the version at it, as the pull noticed
    assert why in ("EHOSTUNREACH", "ESTALE"), alone.text("actor/last_error")
    assert "of 2 of actor/1 cannot be pulled" in alone.text("actor/last_error"), alone.text("actor/last_error")
