# beside others
# timeout: 425, takes: 115
"""A trainer and three inference nodes, each in its own network namespace, joined by a bridge in another one: links are slowed down, cut
and restored while versions are released. A proxy between a mount and its engines or the agent (between.py) holds requests back
until the test continues."""
import os
import subprocess
import time

from between import LOADS, Between
from network import Network
from world import *

SILENT = 15  # seconds after which a mount counts as lost
BACK = 25  # seconds in which a mount catches up once its link is back
NODES = ("n0", "n1", "n2")
REPORTS = ("/v1/actor/",)  # what a mount requests for its model; the poll covers all models


class Nodes:
    """An agent with versions 1 and 2 of actor; on each node a mount that follows, with an engine of either kind; 1 is released. Loads of
    each node's engines can be held; the nodes in `between` reach the agent through a proxy that can hold the files of version 2."""

    def __init__(self, between=()):
        need_fuse()
        self.net = Network(("trainer", *NODES))
        self.token = unique("token")
        with open(self.token, "w") as f:
            f.write("secret\n")
        self.folders = {v: checkpoint(MEDIUM, seed=v) for v in (1, 2, 3)}
        with self.net.inside("trainer"):
            self.agent = Agent("--token-file", self.token, host="10.77.0.1")
        self.publish(1)
        self.mounts, self.engines, self.loads, self.links = {}, {}, {}, {}
        for node in NODES:
            with self.net.inside(node):
                self.links[node] = Between(self.agent, "/2/files/") if node in between else self.agent
                mount = self.mounts[node] = Mount(self.links[node].url, f"host={node},token-file={self.token},insecure")
                mount.wait_version("actor", 1)
                self.engines[node] = [Engine(self.folders[1], api=api) for api in ("sglang", "vllm")]
                self.loads[node] = [Between(e, *LOADS) for e in self.engines[node]]
            for e in self.loads[node]:
                mount.write(f"engine add {e.api} {e.api} {e.url}", "actor/ctl")
            mount.write("follow", "actor/policy")
        wait_for(lambda: all(self.stands(n)["engines"] == 2 and self.stands(n)["follows"] for n in NODES), "the mounts")
        out = self.release(1)
        assert "released: 3 mounts, " in out, out
        self.publish(2)

    def publish(self, version):
        self.agent.publish("actor", version, self.folders[version])

    def get(self, path):
        with self.net.inside("trainer"):
            return self.agent.get(path, Authorization="Bearer secret")

    def stands(self, node):
        found = [m for m in self.get("/v1/actor/mounts") if m["mount"].startswith(node + ":")]
        return found[0] if found else {"engines": 0, "follows": None, "silent": None, "loaded": None}

    def start(self, *args):
        """Starts a command on the trainer's node."""
        with self.net.inside("trainer"):
            p = subprocess.Popen([WSYNC, args[0], "--agent", self.agent.url, "--token-file", self.token, "--insecure",
                                  *map(str, args[1:])], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return p

    def end(self, p, seconds=60, good=True):
        try:
            out = p.communicate(timeout=seconds * SLOW)[0]
        except subprocess.TimeoutExpired:
            p.kill()
            raise AssertionError(f"{p.args} did not end: {p.communicate()[0]} {self.get('/v1/releases')}") from None
        assert (p.returncode == 0) == good, out
        return out

    def begin(self, version, seconds=60):
        return self.start("release", "--wait", seconds * SLOW, "actor", version)

    def release(self, version):
        return self.end(self.begin(version))

    def state(self, node):
        """The node's state in the latest release, from the agent's list."""
        return [m["state"] for m in self.get("/v1/releases")[0]["mounts"] if m["mount"].startswith(node + ":")][0]

    def serve(self, version):
        """The nodes both of whose engines serve the version and answer."""
        found = []
        for node in NODES:
            with self.net.inside(node):
                if all(e.serves() == str(version) for e in self.engines[node]):
                    found.append(node)
        return tuple(found)

    def answer(self):
        """No engine is paused: a paused one would hold the request until its resume."""
        for node in NODES:
            with self.net.inside(node):
                for e in self.engines[node]:
                    e.generate()

    def hold_loads(self, node, hold):
        for load in self.loads[node]:
            load.hold = hold

    def is_loading(self, node):
        return all(load.held for load in self.loads[node])

    def say(self, nodes, version):
        """Whether the agent's list shows the nodes as present and serving the version."""
        stands = [self.stands(n) for n in nodes]
        return all(not s["silent"] and s["loaded"] and s["loaded"]["version"] == version for s in stands)

    def back(self, nodes, version):
        """After their links are back, the nodes catch up by themselves, in time, and the agent shows it."""
        start = time.monotonic()
        wait_for(lambda: self.serve(version) == NODES, f"{nodes} to serve {version}", BACK)
        wait_for(lambda: self.say(NODES, version), f"the agent's word of {nodes}", BACK)
        took = time.monotonic() - start
        print(f"# {' '.join(nodes)} caught up {took:.1f} s after the link was back", flush=True)
        assert took < BACK * SLOW, took
        self.answer()


def test_cut_while_preparing():
    "a node whose link is cut while it prepares is left out and named, the others continue; it catches up when its link is back"
    nodes = Nodes()
    for mount in nodes.mounts.values():
        mount.wait_version("actor", 2)
    time.sleep(1)
    assert nodes.serve(1) == NODES  # nothing moves before the release
    out = nodes.release(2)
    assert "released: 3 mounts, " in out and nodes.serve(2) == NODES, out
    nodes.answer()

    nodes.publish(3)
    nodes.mounts["n1"].wait_version("actor", 3)
    nodes.net.slow("n1", 3)  # 24 MB would take a minute: its link is cut before
    release = nodes.begin(3)
    wait_for(lambda: nodes.mounts["n1"].text("actor/3/.wsync/state").startswith("pulling"), "n1 to pull")
    wait_for(lambda: nodes.state("n0") == nodes.state("n2") == "prepared", "the others to be ready")
    assert nodes.state("n1") == "waiting" and nodes.get("/v1/releases")[0]["phase"] == "preparing"
    assert nodes.serve(2) == NODES
    nodes.net.cut("n1")
    start = time.monotonic()
    out = nodes.end(release)
    took = time.monotonic() - start
    print(f"# released without n1 {took:.1f} s after its link was cut", flush=True)
    assert "released: 2 mounts, " in out and "left out" in out and "n1:" in out, out
    assert took < (SILENT + 5) * SLOW, took
    assert nodes.serve(3) == ("n0", "n2") and nodes.serve(2) == ("n1",) and nodes.stands("n1")["silent"]
    nodes.answer()
    nodes.net.fast("n1")
    nodes.net.mend("n1")
    nodes.back(["n1"], 3)


def test_cut_after_commit():
    "nodes that are cut off after the commit, before they learn of it or have loaded, are named and catch up"
    nodes = Nodes(between=["n0"])
    nodes.links["n0"].hold = True
    release = nodes.begin(2)
    wait_for(lambda: nodes.state("n1") == nodes.state("n2") == "prepared", "n1 and n2 to be ready")
    assert nodes.state("n0") == "waiting"
    nodes.net.lose("n1")
    nodes.hold_loads("n2", True)
    nodes.links["n0"].hold = False
    wait_for(lambda: nodes.is_loading("n2"), "n2 to load")
    assert nodes.get("/v1/releases")[0]["phase"] == "committed"
    nodes.net.cut("n2")
    nodes.hold_loads("n2", False)
    out = nodes.end(release)
    assert "released: 1 mount, " in out and "left out" in out and "n1:" in out and "n2:" in out, out
    assert nodes.stands("n1")["silent"] and nodes.stands("n2")["silent"]
    assert nodes.serve(1) == ("n1",)
    wait_for(lambda: nodes.serve(2) == ("n0", "n2"), "n2, which has what it needs")
    nodes.answer()
    nodes.net.find("n1")
    nodes.net.mend("n2")
    nodes.back(["n1", "n2"], 2)


def test_short_cut():
    "reports lost during a short cut are sent again: the release ends with all nodes"
    nodes = Nodes(between=NODES)
    lost = lambda node: "did not take a report" in nodes.mounts[node].text()
    n1, engine = nodes.mounts["n1"], nodes.loads["n1"][1]
    n1.write("engine remove vllm", "actor/ctl")
    n1.write(f"engine add vllm vllm {engine.url} mounts=n0", "actor/ctl")
    nodes.links["n0"].hold = True
    release = nodes.begin(2)
    wait_for(lambda: "for-mount=n0" in n1.text("actor/events"), "n1 to wait for n0")
    nodes.links["n1"].cut = REPORTS
    wait_for(lambda: lost("n1"), "its report to be lost")
    assert nodes.state("n1") == "waiting"
    nodes.links["n1"].cut = ()
    nodes.hold_loads("n2", True)
    nodes.links["n0"].hold = False
    wait_for(lambda: nodes.is_loading("n2"), "n2 to load", 60)
    nodes.links["n2"].cut = REPORTS
    nodes.hold_loads("n2", False)
    wait_for(lambda: lost("n2"), "its report to be lost")
    assert nodes.state("n2") == "prepared"
    nodes.links["n2"].cut = ()
    out = nodes.end(release)
    assert "released: 3 mounts, " in out and "left out" not in out, out
    nodes.back(["n1", "n2"], 2)


def test_trainer_cut():
    "while the trainer is cut off every node keeps serving; then the fleet is complete again"
    nodes = Nodes()
    nodes.net.cut("trainer")
    wait_for(lambda: all(nodes.stands(n)["silent"] for n in NODES), "all nodes to be silent", SILENT + 5)
    assert nodes.serve(1) == NODES
    nodes.answer()
    for mount in nodes.mounts.values():
        assert mount.text("actor/version") == "1\n" and os.readlink(mount.file("actor/current")) == "1"
        assert tensors_of(mount.file("actor/1/model.safetensors")) == tensors_of(nodes.folders[1] + "/model.safetensors")
    out = nodes.end(nodes.start("wait", "--loaded", "all", "--timeout", 1, "actor", 1), good=False)
    assert "is not loaded" in out, out
    nodes.publish(3)  # no node knows of it yet
    nodes.net.mend("trainer")
    nodes.end(nodes.start("wait", "--loaded", 3, "--timeout", BACK * SLOW, "actor", 1))
    nodes.back(NODES, 1)
    nodes.end(nodes.start("wait", "--loaded", "all", "--timeout", 5 * SLOW, "actor", 1))
    out = nodes.release(3)
    assert "released: 3 mounts, " in out and nodes.serve(3) == NODES, out
    nodes.end(nodes.start("wait", "--loaded", "all", "--timeout", 5 * SLOW, "actor", 3))
