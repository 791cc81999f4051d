# beside others
# timeout: 640, takes: 165
"""Trees of mounts that build themselves (topology=auto): what comes by whom, parents that die, hang or lie, mounts that come while the
agent is away, tokens that go nowhere else."""
import http.server
import re
import signal
import sys
import threading

from between import Between
from network import Network
from ranks import Rank, ask_all, expected
from world import *

TENSORS = {f"layers.{i}.weight": ("BF16", [1024, 1024]) for i in range(10)}  # 21 MB: more blocks than stripes


ELEMENTS = 1 << 24  # of what ranks publish: 50 MB


class Member(Mount):
    """A mount that takes part, and serves others."""

    def __init__(self, source, options="", port=None, **kw):
        self.port = port or free_port()
        super().__init__(source, f"topology=auto,rack=r1,serve=127.0.0.1:{self.port}" + (f",{options}" if options else ""), **kw)

    def name(self):
        return f"{socket.gethostname()}:{self.path}"


def published(*args):
    need_fuse()
    agent = Agent(*args, makes_token=True)
    folder = checkpoint(TENSORS, seed=1)
    agent.publish("actor", 1, folder)
    return agent, folder


def topology(agent, *args):
    """{mount: parents by stripe}"""
    reply = json.loads(wsync("topology", "--agent", agent.url, *args, "--json", "actor").stdout)
    return {m["mount"]: m["parents"] for m in reply["mounts"]}


def wait_tree(agent, members, *args):
    def is_there():
        tree = topology(agent, *args)
        return sorted(tree) == sorted(m.name() for m in members) and all(tree.values())

    wait_for(is_there, "a tree of all mounts", 30)
    return topology(agent, *args)


def wait_parents(mount, tree, agents=1):
    """Until the mount has heard of its parents: so many sources are up beside the agents."""
    n = len({p for p in tree[mount.name()] if p})
    wait_for(lambda: len(re.findall(r"^source \S+ up", mount.text("status"), re.M)) >= agents + n, f"{n} parents", 30)


def sent(agent, **auth):
    if not auth:
        token = open(f"/run/wsync/{agent.url.rsplit(':', 1)[1]}.token").read().strip()
        auth = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(agent.url + "/metrics", headers=auth)
    with urllib.request.urlopen(request, timeout=20 * SLOW) as r:
        return int(re.search(r"^wsync_agent_sent_bytes_total (\d+)$", r.read().decode(), re.M).group(1))


def same(mount, folder, version):
    return tensors_of(mount.file("actor", version, "model.safetensors")) == tensors_of(folder + "/model.safetensors")


def pull_all(mounts, version):
    threads = [threading.Thread(target=m.write, args=(f"pull {version}", "actor/ctl")) for m in mounts]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def check_tree(tree):
    "no ring in any stripe, and the agent has one child of each"
    for stripe in range(4):
        assert [parents[stripe] for parents in tree.values()].count(None) == 1, tree
        for mount in tree:
            seen = set()
            while mount:
                assert mount not in seen, tree
                seen.add(mount)
                mount = tree[mount][stripe]


def test_tree():
    "five mounts have a tree in each stripe, which `wsync topology` draws; whole versions and deltas come by it"
    agent, folder = published()
    members = [Member(agent.url) for _ in range(5)]
    for m in members:
        m.wait_version("actor", 1)
    tree = wait_tree(agent, members)
    check_tree(tree)
    for m in members:
        wait_parents(m, tree)
    drawn = wsync("topology", "--agent", agent.url, "actor").stdout
    assert drawn.count(agent.url) == 4 and all(drawn.count(m.name()) == 4 for m in members), drawn
    before = sent(agent)
    pull_all(members, 1)
    size = sum(f["size"] for f in json.loads(members[0].read("actor/1/.wsync/manifest.json"))["files"])
    print(f"# the agent sent {(sent(agent) - before) / size:.2f} versions to {len(members)} mounts", flush=True)
    assert sent(agent) - before < 2.5 * size
    assert all(same(m, folder, 1) for m in members)
    newer = step(folder, seed=2)
    agent.publish("actor", 2, newer)
    for m in members:
        m.wait_version("actor", 2)
    pull_all(members, 2)
    assert all(same(m, newer, 2) for m in members)
    members.pop().end()
    check_tree(wait_tree(agent, members))


def came_by(mount, version):
    return re.search(r' how="([^"]*)"', mount.status("actor")[f"version.{version}"]).group(1)


def is_expected(mount, version, elements=ELEMENTS):
    got = tensors_of(mount.file("actor", version, "model.safetensors"))
    return got == expected(version, elements)


def spanning(elements, n):
    """Two agents with a rank each and version 1, the header that they want, and so many mounts that have heard of their parents."""
    need_fuse()
    secret = unique("token")
    with open(secret, "w") as f:
        f.write("a-secret-of-the-fleet\n")
    auth = {"Authorization": "Bearer a-secret-of-the-fleet"}
    agents = [Agent("--token-file", secret, "--nodes")]
    agents.append(Agent("--token-file", secret, "--primary", agents[0].url))
    ranks = [Rank(agent, "actor", i, 2, elements) for i, agent in enumerate(agents)]
    for command in ("offload", "wait"):
        assert len(ask_all(ranks, f"{command} 1")) == 2
    members = [Member(",".join(a.url for a in agents), f"token-file={secret},peer-token-file={secret},{DELTAS}") for _ in range(n)]
    for m in members:
        m.wait_version("actor", 1)
    tree = wait_tree(agents[0], members, "--token-file", secret)
    check_tree(tree)
    for m in members:
        wait_parents(m, tree, 2)
    return agents, ranks, auth, members


def test_what_describes_parts():
    "what a mount has to know of a part before it knows where its bytes belong comes by trees like the rest: here it is most of the version"
    elements = 1 << 22  # 13 MB, of which each part's first block describes it
    agents, _, auth, members = spanning(elements, 7)
    before = sum(sent(a, **auth) for a in agents)
    pull_all(members, 1)
    more = sum(sent(a, **auth) for a in agents) - before
    size = sum(f["size"] for f in json.loads(members[0].read("actor/1/.wsync/manifest.json"))["files"])
    print(f"# the agents sent {more / size:.2f} versions to {len(members)} mounts", flush=True)
    assert all(is_expected(m, 1, elements) for m in members)
    assert more < 2.5 * size


def test_two_trainer_nodes():
    "a version in two parts comes by trees, too, whole and as deltas: both agents send it about once"
    agents, ranks, auth, members = spanning(ELEMENTS, 5)
    for version in (1, 2):
        before = sum(sent(a, **auth) for a in agents)
        pull_all(members, version)
        size = sum(f["size"] for f in json.loads(members[0].read(f"actor/{version}/.wsync/manifest.json"))["files"])
        more = sum(sent(a, **auth) for a in agents) - before
        print(f"# of version {version} the agents sent {more / size:.2f} to {len(members)} mounts", flush=True)
        assert all(is_expected(m, version) for m in members)
        assert more < 2.5 * size
        if version == 2:
            assert all(came_by(m, 2).count("delta from 1") == 2 for m in members), [came_by(m, 2) for m in members]
            break
        for command in ("offload", "wait"):
            assert len(ask_all(ranks, f"{command} 2")) == 2
        for m in members:
            m.wait_version("actor", 2)


def test_headers():
    "mounts that feed each other, and look at the headers only, do not wait for each other"
    need_fuse()
    agent = Agent(makes_token=True)
    tensors = {f"layers.{i}.weight": ("BF16", [64, 64]) for i in range(8)}
    folder = checkpoint(tensors, seed=1, files={f"model-{i}.safetensors": [name] for i, name in enumerate(tensors)})
    agent.publish("actor", 1, folder)
    members = [Member(agent.url) for _ in range(2)]
    for m in members:
        m.wait_version("actor", 1)
    tree = wait_tree(agent, members)
    check_tree(tree)
    assert all(set(parents) != {None} for parents in tree.values()), tree  # each is the other's parent in some stripe
    for m in members:
        wait_parents(m, tree)
    looks = [subprocess.Popen([sys.executable, "-c", "import os, sys; print(len(os.listdir(sys.argv[1])))", m.file("actor/1/tensors")],
                              stdout=subprocess.PIPE) for m in members]
    assert [int(p.communicate(timeout=15 * SLOW)[0]) for p in looks] == [8, 8]


@pytest.mark.parametrize("how", ["killed", "hung"])
def test_parent_fails(how):
    "a parent that is killed, or hangs, in the middle: the others go on with what they have, and have each byte right"
    agent, folder = published()
    members = [Member(agent.url) for _ in range(3)]
    for m in members:
        m.wait_version("actor", 1)
    tree = wait_tree(agent, members)
    for m in members:
        wait_parents(m, tree)
    top = next(m for m in members if tree[m.name()][0] is None)
    others = [m for m in members if m is not top]
    if how == "killed":
        threads = [threading.Thread(target=m.write, args=("pull 1", "actor/ctl")) for m in others]
        for t in threads:
            t.start()
        top.kill()
        top.detach()
        for t in threads:
            t.join()
    else:
        suspend(top.pid)
        at_end(os.kill, top.pid, signal.SIGCONT)
        pull_all(others, 1)
    assert all(same(m, folder, 1) for m in others)
    if how == "killed":
        check_tree(wait_tree(agent, others))


def test_joiner_while_agent_is_away():
    "a mount that is started again while the agent is away has a version from the mounts that were its parents"
    agent, folder = published()
    a, b = Member(agent.url), Member(agent.url)
    for m in (a, b):
        m.wait_version("actor", 1)
    tree = wait_tree(agent, [a, b])
    wait_parents(b, tree)
    a.write("pull 1", "actor/ctl")
    path, port = b.path, b.port
    wait_for(lambda: remembers(b), "the settings")
    b.end()
    agent.kill()
    b = Member(agent.url, path=path, port=port)
    b.wait_version("actor", 1)
    assert same(b, folder, 1)
    assert re.search(rf"^source http://127.0.0.1:{a.port} up", b.text("status"), re.M), b.text("status")


def remembers(mount):
    "do the mount's settings name a parent? They are written a moment after each change, as NAME.new at first"
    for name in os.listdir(f"{TESTDIR}/state"):
        if os.path.basename(mount.path) in name and not name.endswith((".lock", ".new")):
            with open(f"{TESTDIR}/state/{name}") as f:
                return "peer " in f.read()
    return False


class Liar(http.server.ThreadingHTTPServer):
    """A mount that announces itself, and lies: it lists versions with other digests, and newer ones, and sends zeros."""

    daemon_threads = True

    def __init__(self, listing):
        self.listing, self.asked, self.tokens = listing, [], []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.server.asked.append(self.path)
                if self.headers["Authorization"]:
                    self.server.tokens.append(self.headers["Authorization"])
                body, status = b"{}", 200
                if "/events" in self.path or self.path.startswith("/v1/models"):
                    time.sleep(0.3 if "since=0" not in self.path else 0)
                    body = json.dumps(self.server.listing).encode()
                elif "/manifest" in self.path:
                    body = self.server.manifest
                elif "/deltas" in self.path:
                    body = b"[]"
                elif "/files/" in self.path and self.headers["Range"]:
                    a, b = map(int, re.match(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
                    body, status = bytes(b - a + 1), 206
                self.send_response(status)
                if status == 206:
                    self.send_header("Content-Range", f"bytes {a}-{b}/{self.server.size}")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):  # it is left in the middle
                    self.wfile.write(body)

            def log_message(self, *args):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        at_end(self.shutdown)


def fleet_of_a_liar():
    """An agent with actor/1 and a token, the version's folder, the token's file and header, and what it lists."""
    need_fuse()
    secret = unique("token")
    with open(secret, "w") as f:
        f.write("a-secret-of-the-fleet\n")
    agent = Agent("--token-file", secret)
    folder = checkpoint(TENSORS, seed=1)
    agent.publish("actor", 1, folder)
    auth = {"Authorization": "Bearer a-secret-of-the-fleet"}
    return agent, folder, secret, auth, agent.get("/v1/models", **auth)


@pytest.mark.parametrize("lie", ["digest", "bytes"])
def test_parent_lies(lie):
    "a parent that lies costs no more than its place: the bytes are the trainer's, its versions are not known, no token comes to it"
    agent, folder, secret, auth, listing = fleet_of_a_liar()
    model = listing["models"][0]
    version = model["versions"][0]
    version["via"] = [4711]  # as a mount
    if lie == "digest":
        version["digest"] = "0" * 32
    model["versions"].append({**version, "version": 2, "digest": "1" * 32})
    model["newest"] = 2
    liar = Liar(listing)
    with urllib.request.urlopen(urllib.request.Request(agent.url + f"/v1/actor/1/manifest?run={model['run']}", headers=auth)) as r:
        liar.manifest = r.read()
    liar.size = next(f["size"] for f in json.loads(liar.manifest)["files"] if f["name"] == "model.safetensors")
    announce(agent, auth, liar)
    mount = Mount(agent.url, f"topology=auto,rack=r1,token-file={secret}")
    mount.wait_version("actor", 1)
    wait_for(lambda: any("events" in p for p in liar.asked), "the mount to ask the liar")
    assert same(mount, folder, 1)
    assert not os.path.exists(mount.file("actor/2")) and mount.text("actor/1/.wsync/state").split()[0] == "ready"
    assert liar.tokens == [], liar.tokens
    if lie == "bytes":
        assert any("/files/" in p for p in liar.asked), liar.asked


@pytest.mark.parametrize("ring", [1, 3])
def test_hints_that_lead_back(ring):
    "what is to come from a mount that waits for it comes from the agent, and is not waited for"
    agent, folder, secret, _, _ = fleet_of_a_liar()
    ports = [free_port() for _ in range(ring)]
    members = []
    for i in range(ring):
        between = Between(agent)
        path = [f"http://127.0.0.1:{ports[(i + k) % ring]}" for k in (1, 2)]
        reply = json.dumps({"stripes": [path] * 4}).encode()
        between.change = lambda path, text, reply=reply: reply if path.endswith("/topology") else text
        members.append(Member(between.url, f"token-file={secret},peer-token-file={secret}", port=ports[i]))
    for m in members:
        m.wait_version("actor", 1)
        wait_for(lambda m=m: len(re.findall(r"^source \S+ up", m.text("status"), re.M)) >= 2, "the hints", 30)
    pull_all(members, 1)
    for m in members:
        assert same(m, folder, 1) and "errno" not in m.text("actor/last_error"), m.text("status")


class Cutter(http.server.ThreadingHTTPServer):
    """A mount that announces itself, has what the agent has, and ends the connection where a delta is asked for."""

    daemon_threads = True

    def __init__(self, agent, auth):
        self.cuts = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if "/delta?" in self.path:
                    self.server.cuts += 1
                    self.close_connection = True
                    return
                headers = {**auth, **{k: v for k, v in self.headers.items() if k == "Range"}}
                try:
                    with urllib.request.urlopen(urllib.request.Request(agent.url + self.path, headers=headers)) as r:
                        body, status, range_ = r.read(), r.status, r.headers["Content-Range"]
                except urllib.error.HTTPError as e:
                    body, status, range_ = e.read(), e.code, None
                self.send_response(status)
                if range_:
                    self.send_header("Content-Range", range_)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            def log_message(self, *args):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        at_end(self.shutdown)


def announce(agent, auth, server):
    "has the agent name the server as the parent of mounts; returns what ends that"
    stop = threading.Event()

    def post():
        body = json.dumps({"mount": "other:/m", "port": server.server_port, "rack": "r1", "link": 0}).encode()
        while not stop.is_set():
            urllib.request.urlopen(urllib.request.Request(agent.url + "/v1/actor/topology", body, auth), timeout=20 * SLOW).read()
            stop.wait(0.3)

    thread = threading.Thread(target=post)
    thread.start()
    at_end(thread.join)
    at_end(stop.set)
    wait_for(lambda: liar_is_alone(agent, auth), "its place")

    def end():
        stop.set()
        thread.join()

    return end


def test_release_of_a_liar():
    "what a parent calls released while the agent is away ends with the agent's own word, however large its number is"
    agent, folder, secret, auth, listing = fleet_of_a_liar()
    model = listing["models"][0]
    model["versions"][0]["via"] = [4711]
    liar = Liar(listing)
    liar.manifest, liar.size = b"{}", 0
    end = announce(agent, auth, liar)
    mount = Mount(agent.url, f"topology=auto,rack=r1,token-file={secret}")
    mount.wait_version("actor", 1)
    mount.write("follow-released", "actor/policy")
    wait_for(lambda: remembers(mount), "the settings")
    end()
    path = mount.path
    mount.end()
    agent.kill()
    model["released"] = {"by": (1 << 63) - 1, "version": 1, "run": model["run"]}
    liar.asked.clear()
    mount = Mount(agent.url, f"topology=auto,rack=r1,token-file={secret}", path=path)
    wait_for(lambda: len([p for p in liar.asked if "events" in p]) > 1, "the mount to ask the liar")
    agent = Agent("--token-file", secret, port=agent.port)
    for version in (1, 2):
        agent.publish("actor", version, folder)
    mount.wait_version("actor", 2)
    wsync("release", "--agent", agent.url, "--token-file", secret, "actor", "2", "--wait", str(30 * SLOW))
    assert mount.text("actor/version") == "2\n"


def test_parent_ends_during_a_delta():
    "a parent that ends while it sends a delta: another source has the delta, too, so no more than that comes"
    need_fuse()
    secret = unique("token")
    with open(secret, "w") as f:
        f.write("a-secret-of-the-fleet\n")
    agent = Agent("--token-file", secret)
    folder = checkpoint(TENSORS, seed=1)
    agent.publish("actor", 1, folder)
    auth = {"Authorization": "Bearer a-secret-of-the-fleet"}
    cutter = Cutter(agent, auth)
    announce(agent, auth, cutter)
    mount = Mount(agent.url, f"topology=auto,rack=r1,token-file={secret},{DELTAS}")
    mount.wait_version("actor", 1)
    wait_for(lambda: len(re.findall(r"^source \S+ up", mount.text("status"), re.M)) == 2, "the parent")
    mount.write("pull 1", "actor/ctl")
    newer = step(folder, seed=2)
    agent.publish("actor", 2, newer)
    mount.wait_version("actor", 2)
    mount.write("pull 2", "actor/ctl")
    assert same(mount, newer, 2)
    assert cutter.cuts > 0
    how = re.search(r' how="([^"]*)"', mount.status("actor")["version.2"]).group(1)
    assert "delta from 1" in how and "whole" not in how, how


def liar_is_alone(agent, auth):
    mounts = agent.get("/v1/actor/topology", **auth)["mounts"]
    return mounts and mounts[0]["parents"] == [None] * 4


def test_no_clear_text_unless_it_is_said():
    "a hint to http:// on another host is not followed without the option insecure, and everything comes from the agent"
    need_fuse()
    net = Network(["trainer", "n1", "n2"])
    with net.inside("trainer"):
        agent = Agent("--insecure", host="10.77.0.1")
    folder = checkpoint(SMALL, seed=1)
    agent.publish("actor", 1, folder)
    mounts = []
    for i, name in enumerate(["n1", "n2"]):
        with net.inside(name):
            mounts.append(Mount(agent.url, f"topology=auto,serve=10.77.0.{i + 2}:18863,serve-insecure"))
    refusal = re.compile(r"a parent that an agent named is not asked .*insecure")
    wait_for(lambda: any(refusal.search(m.text()) for m in mounts), "a hint that is not followed", 30)
    for m in mounts:
        m.wait_version("actor", 1)
        assert same(m, folder, 1)
        assert len(re.findall("^source ", m.text("status"), re.M)) == 1


@pytest.mark.parametrize("option", ["rack=r1", "peer-token-file=TOKEN", "rack=r1,topology=none"])
def test_what_is_for_trees_needs_them(option):
    "rack= and peer-token-file= without topology=auto are refused, with what to do"
    need_fuse()
    token = unique("token")
    with open(token, "w") as f:
        f.write("a-token\n")
    place = unique("mnt")
    os.makedirs(place)
    r = wsync("mount", "-o", option.replace("TOKEN", token), "http://127.0.0.1:1", place, check=False)
    assert r.returncode != 0 and re.search(rf"option {option.split('=')[0]} is for trees .* topology=auto", r.stderr), r.stderr


@pytest.mark.parametrize("option", ["topology=auto", "rack=r1", "serve=127.0.0.1:0", "config=/etc/wsync/none.conf"])
def test_export_takes_part_in_no_tree(option):
    "an export refuses options that would have no effect"
    r = wsync("export", "-o", option, "http://127.0.0.1:1", unique("none"), check=False)
    assert r.returncode != 0 and f"takes no {option if 'auto' in option else option.split('=')[0]}" in r.stderr, r.stderr


def test_better_sources_come_first():
    "a source on the same host, by a better strategy, is asked before parents; a parent before the agent's http"
    archive = unique("archive")
    agent, folder = published("--archive", archive)
    wait_for(lambda: os.path.exists(archive + "/v1/models") and '"version":1' in open(archive + "/v1/models").read().replace(" ", ""), "the archive")
    first = Member(agent.url)
    first.wait_version("actor", 1)
    first.write("pull 1", "actor/ctl")
    second = Member(f"dir:{archive},{agent.url}")
    second.wait_version("actor", 1, sources=2)
    tree = wait_tree(agent, [first, second])
    wait_parents(second, tree)
    assert any(tree[second.name()]), tree
    second.write("pull 1", "actor/ctl")
    assert " strategy=dir" in second.status("actor")["version.1"], second.status("actor")
    assert same(second, folder, 1)


def test_agent_without_trees():
    "an agent that knows of no trees, and a folder: the mount asks its sources as they are named"
    need_fuse()
    folder = checkpoint(SMALL, seed=1)
    archive = unique("archive")
    os.makedirs(archive + "/actor")
    os.rename(folder, archive + "/actor/1")
    mount = Mount(f"dir:{archive}", "topology=auto,rack=r1")
    mount.wait_version("actor", 1)
    assert same(mount, archive + "/actor/1", 1)
