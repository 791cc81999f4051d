# timeout: 300, takes: 60
# sanitizers: address
"""Agents with a supervisor: the agent dies while ranks publish and mounts read, and the next one goes on with its versions."""
import re
import threading

from crowded import crowded
from derived import VIEW, llama
from ranks import Rank, Reader, Refused, ask_all, expected
from service_manager import Manager
from sharing import Share, save
from span import Span, say
from world import *

ELEMENTS = 1 << 18
MANY = 1 << 21  # of a publisher that is often in the middle of a step
KILLS = int(os.environ.get("SUPERVISED_KILLS", "200" if os.environ.get("LONG") else "10"))
RECORD = b"wsync-kept-slot1"
RELEASE_AT, TEXT_AT = 16, 64  # in a record


class Supervised(Agent):
    """Its process is the supervisor; .daemon is the pid of the agent."""

    deaths = 1000

    def __init__(self, *args, **kw):
        os.environ["WSYNC_DEATHS"] = str(self.deaths)
        try:
            super().__init__("--supervised", *args, **kw)
        finally:
            del os.environ["WSYNC_DEATHS"]

    def children(self):
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as f:
            return [int(pid) for pid in f.read().split()]

    @property
    def daemon(self):
        return wait_for(self.children, "an agent")[0]

    def kill_daemon(self):
        """Returns when another one answers: the seconds until then."""
        before, began = self.daemon, time.monotonic()
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: self.alive() and [c for c in self.children() if c != before] and self.answers(), "the next agent")
        return time.monotonic() - began

    def listed(self, model):
        listing = self.get("/v1/models")
        return [m for m in listing["models"] + listing.get("views", []) if m["name"] == model]

    def versions(self, model="actor"):
        """{version: (run, digest)}"""
        return {v["version"]: (v["run"], v["digest"]) for m in self.listed(model) for v in m["versions"]}

    def newest(self, model="actor"):
        return self.listed(model)[0]["newest"]

    def kept(self):
        """Files that the supervisor keeps of slots: [(path, size, is a record)]."""
        out = []
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            path = f"/proc/{self.pid}/fd/{name}"
            to = os.readlink(path)
            if "(deleted)" not in to and "memfd" not in to:
                continue
            with open(path, "rb") as f:
                out.append((path, os.fstat(f.fileno()).st_size, f.read(len(RECORD)) == RECORD))
        return out

    def wait_kept(self, records):
        """The supervisor may not have received yet what it was sent."""
        wait_for(lambda: sum(is_record for _, _, is_record in self.kept()) == records, "what is kept")

    def overwrite(self, is_record, at, data, version=None):
        """Changes bytes of what is kept, of one version where that is given."""
        self.wait_kept(2)
        n = 0
        for path, size, record in self.kept():
            if record != is_record or size < at + len(data):
                continue
            with open(path, "r+b", buffering=0) as f:
                if version is None or f'"version":{version},'.encode() in f.read():
                    os.pwrite(f.fileno(), data, at)
                    n += 1
        assert n > 0, self.kept()


def test_versions_outlive_it():
    "the next agent serves the same versions with the same lineage and digests, and publishing goes on"
    agent = Supervised()
    folders = [checkpoint(SMALL, seed=i) for i in range(4)]
    agent.publish("actor", 1, folders[1], "--run", "one")
    agent.publish("actor", 2, folders[2])
    before = agent.versions()
    assert sorted(before) == [1, 2] and agent.get("/v1/status")["keeps_slots"]
    for _ in range(3):
        print(f"gap: {agent.kill_daemon():.3f} s")
        assert agent.versions() == before and agent.newest() == 2
    mount = Mount(agent.url)
    for version in (1, 2):
        mount.wait_version("actor", version)
        assert tensors_of(mount.file("actor", version, "model.safetensors")) == tensors_of(folders[version] + "/model.safetensors")
    with pytest.raises(AssertionError, match="not higher than the newest"):
        agent.publish("actor", 2, folders[3])
    agent.publish("actor", 3, folders[3])
    assert agent.versions()[3][0] == "one" and agent.newest() == 3


class Publisher(threading.Thread):
    """Offloads a version each 0.2 s by one rank that is never started anew; a step that falls into a gap is tried again with the next
    number. .newest: the last that was offloaded; .failed: sentences of those that were not."""

    def __init__(self, agent):
        super().__init__(daemon=True)
        self.rank = Rank(agent, "actor", 0, 1, MANY, "run=one")
        self.newest, self.failed, self.error, self.ended = 0, [], None, False
        self.offload(1)

    def begin(self):
        at_end(self.stop)
        self.start()

    def offload(self, version):
        self.rank.ask(f"offload {version}")
        self.newest = version

    def run(self):
        version = self.newest
        try:
            while not self.ended:
                version += 1
                try:
                    self.offload(version)
                except Refused as e:
                    self.failed.append(e.text)
                time.sleep(0.2)
        except BaseException as e:
            self.error = e

    def stop(self):
        self.ended = True
        self.join(60 * SLOW)
        assert not self.is_alive() and not self.error, self.error


@pytest.mark.parametrize("memory", ["tmpfs", "memfd"])
def test_killed_beside_a_publisher(memory, monkeypatch):
    "killed at random moments: no wrong byte, what is served stays as it is, and the publisher and the mount come back by themselves"
    need_fuse()
    monkeypatch.setenv("WSYNC_REGION", memory)
    agent = Supervised()
    publisher = Publisher(agent)
    mount = Mount(agent.url)
    mount.wait_version("actor", 1)
    publisher.begin()
    reader = Reader(mount, "actor", MANY)
    seen, gaps, kept = {}, [], 0
    for _ in range(KILLS):
        time.sleep(random.random() * 0.6)
        before = agent.versions()
        gaps.append(agent.kill_daemon())
        after = agent.versions()
        assert max(after) >= max(before), (before, after)
        kept += bool(set(before) & set(after))
        for version, what in [*before.items(), *after.items()]:
            assert seen.setdefault(version, what) == what
        offloaded = publisher.newest
        wait_for(lambda: publisher.error or publisher.newest > offloaded, "the publisher to come back")
    publisher.stop()
    last = publisher.newest
    wait_for(lambda: reader.versions.get(last) or reader.wrong, "the mount to come back")
    reader.stop()
    assert kept and "taken over from the agent before" in agent.text()
    others = [text for text in publisher.failed if not re.search("the agent at .* ended during|there is no connection to the agent|cannot reach the agent", text)]
    assert not others, others
    assert tensors_of(mount.file("actor", last, "model.safetensors")) == expected(last, MANY)
    gaps.sort()
    print(f"{len(gaps)} kills: gap {gaps[len(gaps) // 2]:.3f} s, at most {gaps[-1]:.3f} s; {len(publisher.failed)} steps failed")


def test_in_the_middle_of_a_step():
    "a version that was being written is dropped, and those before it stay; the same number may come again"
    agent = Supervised("--slots", "2", "--memory", "2000K")  # not enough for three: the rank gives back what it has mapped
    rank = Rank(agent, "actor", 0, 1, ELEMENTS, "run=one")
    rank.ask("offload 1")
    rank.ask("offload 2")
    rank.ask("wait 2")
    before = agent.versions()
    rank.send("stop 500 3")
    wait_for(lambda: 1 not in agent.versions() and stopped(rank.pid), "the slot of version 1 to be taken")
    agent.kill_daemon()
    assert agent.versions() == {2: before[2]}
    os.kill(rank.pid, signal.SIGCONT)
    with pytest.raises(Refused, match="ended during"):
        rank.answer()
    rank.ask("offload 3")
    rank.ask("wait 3")
    assert agent.versions()[2] == before[2] and agent.newest() == 3
    mount = Mount(agent.url)
    for version in (2, 3):
        mount.wait_version("actor", version)
        assert tensors_of(mount.file("actor", version, "model.safetensors")) == expected(version, ELEMENTS)


def stopped(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "T"


def test_delta_to_what_was_taken_over():
    "the first version after a death is a delta on the last one before it, and the rank copies what changed"
    agent = Supervised()
    rank = Rank(agent, "actor", 0, 1, ELEMENTS, "run=one")
    for version in (1, 2):
        rank.ask(f"offload {version}")
        rank.ask(f"wait {version}")
    mount = Mount(agent.url)
    mount.wait_version("actor", 2)
    mount.read("actor/2/model.safetensors")
    agent.kill_daemon()
    with pytest.raises(Refused):  # the connection has ended
        rank.ask("wait 2")
    rank.ask("offload 3")
    rank.ask("wait 3")
    wait_for(lambda: [d["base"] for d in agent.get("/v1/actor/3/manifest")["deltas"]] == [2], "a delta on version 2")
    mount.wait_version("actor", 3)
    assert tensors_of(mount.file("actor/3/model.safetensors")) == expected(3, ELEMENTS)


def test_what_was_deleted():
    "versions that the trainer's framework has deleted, and their views, stay so: mounts that come after the death do not show them"
    agent, root = Supervised("--derive", VIEW), unique("out")
    Share(agent, root)
    mount = Mount(agent.url)
    for version in (1, 2):
        source, folder = llama(seed=version), os.path.join(root, f"step_{version}")
        os.mkdir(folder)
        shutil.copy2(os.path.join(source, "config.json"), folder)
        save(source, folder, "model.safetensors")
        for model in ("actor", VIEW):
            mount.wait_version(model, version)
    shutil.rmtree(os.path.join(root, "step_1"))
    wait_for(lambda: not os.path.exists(mount.file("actor/1")), "the version to be hidden")
    for _ in range(2):
        agent.kill_daemon()
        assert sorted(agent.versions()) == sorted(agent.versions(VIEW)) == [1, 2]
        later = Mount(agent.url)
        for model in ("actor", VIEW):
            later.wait_version(model, 2)
            assert [n for n in os.listdir(later.file(model)) if n.isdigit()] == ["2"], model


@pytest.mark.parametrize("what", ["damaged", "another release"])
def test_record_that_is_not_trusted(what):
    "a record that is damaged, or another release's: the log says so, and the next agent begins without versions"
    agent = Supervised()
    for version in (1, 2):
        agent.publish("actor", version, checkpoint(SMALL, seed=version))
    if what == "damaged":
        agent.overwrite(True, TEXT_AT + 20, b"?", version=2)
    else:
        agent.overwrite(True, RELEASE_AT, b"0.0.9", version=2)
    agent.kill_daemon()
    assert agent.versions() == {}
    assert ("hash is wrong" if what == "damaged" else "by an agent of release 0.0.9") in agent.text(), agent.text()
    assert "nothing is taken over" in agent.text() and agent.kept() == []
    agent.publish("actor", 1, checkpoint(SMALL, seed=3))
    assert list(agent.versions()) == [1]


def test_bytes_that_are_not_the_versions():
    "a version whose bytes have changed is not served again; the others are, and no other bytes get its number"
    agent = Supervised()
    for version in (1, 2):
        agent.publish("actor", version, checkpoint({"w": ("U8", [1 << 22])}, seed=version, sidecars=False), "--run", "one")
    before = agent.versions()
    agent.wait_kept(2)
    [path] = [p for p, size, is_record in agent.kept() if size > 1 << 22 and read_at(p, 1 << 20) == byte_of(agent, 2, 1 << 20)]
    with open(path, "r+b", buffering=0) as f:
        os.pwrite(f.fileno(), bytes(1000), 1 << 20)
    agent.kill_daemon()
    assert agent.versions() == {1: before[1]} and agent.newest() == 2
    assert "1 blocks of model.safetensors are not the manifest's" in agent.text()
    with pytest.raises(AssertionError, match="not higher than the newest"):
        agent.publish("actor", 2, checkpoint({"w": ("U8", [1 << 22])}, seed=2, sidecars=False))


def read_at(path, at, n=64):
    with open(path, "rb") as f:
        return os.pread(f.fileno(), n, at)


def byte_of(agent, version, at, n=64):
    request = urllib.request.Request(f"{agent.url}/v1/actor/{version}/files/model.safetensors", headers={"Range": f"bytes={at}-{at + n - 1}"})
    with urllib.request.urlopen(request, timeout=20) as r:
        return r.read()


def test_what_is_kept_is_given_back():
    "memory of slots that are laid out anew, or of a model that is removed, is kept no longer"
    agent = Supervised("--memory", "40M")
    for version in range(1, 8):  # of 8 MiB, each laid out anew
        agent.publish("actor", version, checkpoint({"w": ("U8", [(8 << 20) + version])}, seed=version, sidecars=False))
        assert sum(is_record for _, _, is_record in agent.kept()) <= 2
        assert sum(size for _, size, _ in agent.kept()) < 40 << 20
    agent.kill_daemon()
    assert sorted(agent.versions()) == [6, 7]
    for version in range(8, 11):
        agent.publish("actor", version, checkpoint({"w": ("U8", [(8 << 20) + version])}, seed=version, sidecars=False))
    wsync("model", "remove", "actor", "--agent", f"unix:{agent.sock}")
    assert agent.kept() == []
    agent.kill_daemon()
    assert agent.get("/v1/models")["models"] == []


def test_beside_state_archive_view_and_key():
    "signed versions and views are taken over as they are; the archive, whose newest is older, and the state file are no hindrance"
    need_fuse()
    archive, key = unique("archive"), unique("run") + ".key"
    wsync("key", "new", "--out", key, "--name", "run")
    folders = [llama(seed) for seed in range(4)]
    agent = Supervised("--state", unique("state") + "/agent.state", "--archive", archive, "--archive-every", "1", "--derive", VIEW,
                       "--sign-key", key)
    for version in (1, 2):
        agent.publish("actor", version, folders[version])
        wait_for(lambda: version in agent.versions(VIEW), "the view")
    before, views = agent.versions(), agent.versions(VIEW)
    agent.kill_daemon()
    assert agent.versions() == before and agent.versions(VIEW) == views, agent.text()
    mount = Mount(agent.url, f"verify-key={key}.pub")
    for name, version in (("actor", 2), (VIEW, 2), ("actor", 1)):
        mount.wait_version(name, version)
        assert mount.read(name, version, "model.safetensors"), mount.text(name, "last_error")
    agent.publish("actor", 3, folders[3])
    mount.wait_version("actor", 3)
    assert tensors_of(mount.file("actor/3/model.safetensors")) == tensors_of(folders[3] + "/model.safetensors")
    wait_for(lambda: 3 in agent.versions(VIEW), "the view of the next version")
    wait_for(lambda: os.path.exists(archive + "/v1/actor/3/manifest"), "version 3 in the archive")
    agent.kill_daemon()
    assert agent.newest() == 3 and agent.newest(VIEW) == 3
    assert "read from the archive" not in agent.text()


def test_some_ranks():
    "ranks that share a version attach again, and their next version is whole; one lineage follows another"
    agent = Supervised()
    ranks = [Rank(agent, "actor", r, 3, ELEMENTS, "run=one") for r in range(3)]
    for version in range(1, 4):
        assert all(isinstance(a, str) for a in ask_all(ranks, f"offload {version}"))
        ranks[0].ask(f"wait {version}")
    before = agent.versions()
    agent.kill_daemon()
    assert agent.versions() == before
    for version in range(4, 6):
        assert all(isinstance(a, str) for a in ask_all(ranks, f"offload {version}"))
        ranks[0].ask(f"wait {version}")
    mount = Mount(agent.url)
    mount.wait_version("actor", 5)
    assert tensors_of(mount.file("actor/5/model.safetensors")) == expected(5, ELEMENTS)
    for r in ranks:
        r.end()
    agent.publish("actor", 1, checkpoint(SMALL), "--run", "two", "--new-run")
    agent.kill_daemon()
    assert agent.newest() == 1 and agent.versions()[1][0] == "two" and agent.versions()[5][0] == "one"


@pytest.mark.parametrize("node", [0, 1])
def test_trainer_that_spans_nodes(node):
    "an agent of one of two nodes dies: its parts are served again, and mounts read the versions whole; the next one is published by all ranks"
    span = Span("--supervised")
    for _ in range(2):
        span.publish("step 0.1")
    agent = span.agents[node]
    before = {a["name"]: a for a in agent.get("/v1/models")["models"]}
    [daemon] = Supervised.children(agent)
    os.kill(daemon, signal.SIGKILL)
    wait_for(lambda: set(Supervised.children(agent)) - {daemon} and agent.answers(), "the next agent")
    part = f"actor@{node}.2"
    after = {a["name"]: a for a in agent.get("/v1/models")["models"]}
    assert after[part] == before[part], agent.text()
    mount = Mount(span.urls)
    for version in (1, 2):
        mount.wait_version("actor", version)
        assert mount.read("actor", version, "model.safetensors") == span.bytes[version]
    for _ in range(10):  # until all ranks have seen that it died
        if not any(a.startswith("failed") for a in say(span.ranks, f"offload {span.newest + 1}")):
            break
        span.newest += 1
    answers = say(span.ranks, f"wait {span.newest + 1}")
    assert not any(a.startswith("failed") for a in answers), answers
    mount.wait_version("actor", span.newest + 1)
    assert mount.read("actor", span.newest + 1, "model.safetensors") == span.bytes[2]


def test_dies_too_often():
    "the third death within a minute ends it, with the reason"
    agent = type("Strict", (Supervised,), {"deaths": 3})()
    agent.publish("actor", 1, checkpoint(SMALL))
    for _ in range(2):
        agent.kill_daemon()
    os.kill(agent.daemon, signal.SIGKILL)
    assert agent.process.wait(30 * SLOW) == 1
    assert "has died 3 times within 60 s" in agent.text() and "its versions are gone" in agent.text()


@pytest.mark.parametrize("whose", ["supervisor", "agent"])
def test_ends(whose):
    "told to end, also after a death, both are gone"
    agent = Supervised()
    agent.publish("actor", 1, checkpoint(SMALL))
    agent.kill_daemon()
    daemon = agent.daemon
    os.kill(agent.pid if whose == "supervisor" else daemon, signal.SIGTERM)
    assert agent.process.wait(30 * SLOW) == 0
    assert not os.path.exists(f"/proc/{daemon}")


@pytest.mark.parametrize("kind", [Agent, Supervised])
def test_ignored_signals_are_no_end(kind):
    "signals that its parent had ignored, as nohup and shells' background do, end neither it nor the care for what dies later"
    agent = type("Ignoring", (kind,), {"prefix": ("env", "--ignore-signal=HUP", "--ignore-signal=INT")})()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    for sig in (signal.SIGHUP, signal.SIGINT):
        os.kill(agent.pid, sig)
    if kind is Supervised:
        agent.kill_daemon()
    agent.publish("actor", 2, checkpoint(SMALL, seed=2))
    assert [v["version"] for v in agent.get("/v1/models")["models"][0]["versions"]] in ([1, 2], [2, 1])


def test_supervisor_is_killed():
    "its agent serves on, and takes new versions"
    agent = Supervised()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    daemon = agent.daemon
    at_end(lambda: os.path.exists(f"/proc/{daemon}") and os.kill(daemon, signal.SIGKILL))
    agent.kill()
    agent.publish("actor", 2, checkpoint(SMALL, seed=2))
    agent.publish("actor", 3, checkpoint({"w": ("U8", [1 << 20])}, seed=3))
    assert sorted(agent.versions()) == [2, 3]


def test_next_one_cannot_start():
    "an agent after a death that cannot start, as a file of its options is not there just then, counts as one that died"
    key = unique("key")
    wsync("key", "new", "--out", key)
    agent = Supervised("--sign-key", key)
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    before = agent.versions()
    os.rename(key, key + ".away")
    os.kill(agent.daemon, signal.SIGKILL)
    wait_for(lambda: 'why="exit status 1"' in agent.text(), "an agent that cannot start")
    os.rename(key + ".away", key)
    wait_for(lambda: agent.alive() and agent.answers(), "the agent after that")
    assert agent.versions() == before


def test_no_room_for_a_process():
    "where the machine has no room for another process just when the agent dies, the next one is started a moment later"
    agent = crowded(Supervised)()
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    before = agent.versions()
    agent.kill_daemon()
    assert agent.versions() == before


def test_refusals():
    "an agent that refuses its options is not started again, and the exit status says so"
    r = wsync("agent", "--supervised", "--listen", "none", "--socket", "none", check=False)
    assert r.returncode == 1 and "give --listen or --socket" in r.stderr, r


class Managed(Supervised):
    """A service whose manager keeps descriptors, and starts it again when it is told to."""

    def __init__(self, manager, *args, **kw):
        self.manager = manager
        Agent.__init__(self, *args, **kw)

    @property
    def prefix(self):
        return self.manager.prefix

    def next(self):
        self.kill()
        return type(self)(self.manager, port=self.port, sock=self.sock)


def test_service_manager():
    "a service manager's store of descriptors does as well, without --supervised: what it is sent is all that the next agent needs"
    need_fuse()
    manager = Manager(unique("manager"))
    agent = Managed(manager)
    rank = Rank(agent, "actor", 0, 1, ELEMENTS, "run=one")
    for version in (1, 2):
        rank.ask(f"offload {version}")
        rank.ask(f"wait {version}")
    mount = Mount(f"unix:{agent.sock}")
    for step_ in range(3, 6):
        before = agent.versions()
        agent = agent.next()
        assert agent.versions() == before, agent.text()
        for _ in range(2):  # the connection has ended
            with contextlib.suppress(Refused):
                rank.ask(f"offload {step_}")
                break
        rank.ask(f"wait {step_}")
        mount.wait_version("actor", step_)
        assert tensors_of(mount.file("actor", step_, "model.safetensors")) == expected(step_, ELEMENTS)
    agent.end()
    assert manager.kept == [] and manager.refused == []


def test_descriptor_that_is_missing():
    "a version of which the store has lost a file is not served again, with the reason, and the others are"
    manager = Manager(unique("manager"))
    agent = Managed(manager)
    for version in (1, 2):
        agent.publish("actor", version, checkpoint(SMALL, seed=version), "--run", "one")
    before = agent.versions()
    agent.kill()
    manager.settle()
    name = next(name for name, fd in manager.kept if name.startswith("slot-") and b'"version":2,' in os.pread(fd, 1 << 20, 0))
    fd = dict(manager.kept)[name]
    file = next(n for n, _ in manager.kept if n.startswith("file-") and n.encode() in os.pread(fd, 1 << 20, 0))
    manager.forget(file)
    agent = agent.next()
    assert agent.versions() == {1: before[1]}
    assert f"the descriptor {file} was not kept" in agent.text(), agent.text()
    with pytest.raises(AssertionError, match="not higher than the newest"):
        agent.publish("actor", 2, checkpoint(SMALL, seed=3))
    agent.publish("actor", 3, checkpoint(SMALL, seed=3))
    manager.settle()
    assert sum(n.startswith("slot-") for n, _ in manager.kept) == 2, "what was not taken over is not kept either"


def test_store_that_does_not_answer():
    "an agent whose store is gone serves on, and the log says once that nothing outlives it"
    manager = Manager(unique("manager"))
    agent = Managed(manager)
    agent.publish("actor", 1, checkpoint(SMALL, seed=1))
    manager.close()
    for version in (2, 3, 4):
        agent.publish("actor", version, checkpoint({"w": ("U8", [(1 << 20) + version])}, seed=version))
    assert sorted(agent.versions()) == [3, 4] and not agent.get("/v1/status")["keeps_slots"]
    assert agent.text().count("nothing outlives this process") == 1
