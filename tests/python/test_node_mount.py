"""wsync.mount: one mount a node however many processes ask, ended by the last of them; and what reads where nothing can be mounted."""
import os
import signal
import subprocess
import sys

import numpy
import pytest
import world
import wsync
import wsync.lib._agents as agents
import wsync.lib._mounts as mounts

USER = """
import sys, wsync
m = wsync.mount(sys.argv[1], sys.argv[2])
print(m.how, open(m.folder("actor", 1) + "/config.json").read() == sys.argv[3], flush=True)
sys.stdin.readline()
"""
CONFIG = '{"of": "a test"}'


@pytest.fixture
def node(monkeypatch, tmp_path):
    """(agent, folder for a mount, folder of the locks); nothing is left mounted."""
    monkeypatch.setattr(agents, "_default_socket", lambda: f"{tmp_path}/run/agent.sock")
    agent, folder = world.Agent(), world.checkpoint(world.SMALL)
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write(CONFIG)
    agent.publish("actor", 1, folder)
    yield agent, f"{tmp_path}/at", f"{tmp_path}/run"
    assert mounts._mounted(f"{tmp_path}/at") is None


class User:
    """A process that has the mount, until it is ended."""

    def __init__(self, agent, at):
        own = USER.replace("import sys, wsync\n", f"import sys, wsync\nimport wsync.lib._agents as a\na._default_socket = lambda: {os.path.dirname(at) + '/run/agent.sock'!r}\n")
        self.process = subprocess.Popen([sys.executable, "-c", own, agent.url, at, CONFIG], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        world.at_end(self.kill)

    def said(self):
        return self.process.stdout.readline()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def kill(self):
        self.process.kill()
        self.process.wait()


def daemon(at):
    return mounts._read_mark(mark_of(at))["pid"]


def mark_of(at):
    folder = os.path.join(os.path.dirname(at), "run")
    return os.path.join(folder, next(f for f in os.listdir(folder) if f.startswith("mount-") and "." not in f))


def test_one_for_all(node):
    """processes that ask at once get one mount; it lives until the last of them ends, and then its folder goes, too"""
    world.need_fuse()
    agent, at, _ = node
    users = [User(agent, at) for _ in range(4)]
    assert [u.said() for u in users] == ["mount True\n"] * 4
    with open("/proc/self/mountinfo") as f:
        assert sum(line.split()[4] == at for line in f) == 1
    pid = daemon(at)
    for user in users[:3]:
        user.end()
        assert mounts._mounted(at) == agent.url and daemon(at) == pid
    users[3].end()
    assert mounts._mounted(at) is None and mounts._began(pid) is None and not os.path.exists(at)


def test_starter_is_killed(node):
    """the mount of a process that was killed is found by the next one, which ends it"""
    world.need_fuse()
    agent, at, _ = node
    first = User(agent, at)
    first.said()
    pid = daemon(at)
    first.kill()
    assert mounts._mounted(at) == agent.url
    second = User(agent, at)
    assert second.said() == "mount True\n" and daemon(at) == pid
    second.end()
    assert mounts._mounted(at) is None


def test_of_others(node, monkeypatch):
    """a mount that somebody else made is used, and not ended; one of another source is refused; without a source it is taken as it is"""
    world.need_fuse()
    agent, at, _ = node
    os.mkdir(at)
    other = world.Mount(agent.url, path=at)
    with wsync.mount(agent.url, at) as found:
        assert found.how == "mount" and os.path.isdir(found.folder("actor", 1))
    with pytest.raises(wsync.Error, match="not http://127.0.0.1:1:"):
        wsync.mount("http://127.0.0.1:1", at)
    monkeypatch.setenv("WSYNC_MOUNT", at)
    with wsync.mount() as found:
        assert found.source == agent.url
    assert other.alive() and mounts._mounted(at) == agent.url
    world.wsync("umount", at)


def test_stopped(node, monkeypatch):
    """a daemon that does not answer is named after a bounded wait, and not ended; a forked child's close ends nothing"""
    world.need_fuse()
    agent, at, _ = node
    monkeypatch.setattr(mounts, "ANSWER_SECONDS", 1)
    mine = wsync.mount(agent.url, at)
    child = os.fork()
    if child == 0:
        mine.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert mounts._mounted(at) == agent.url
    pid = daemon(at)
    world.suspend(pid)
    try:
        with pytest.raises(wsync.Timeout, match=f"process {pid}, is stopped"):
            wsync.mount(agent.url, at)
    finally:
        os.kill(pid, signal.SIGCONT)
    mine.close()
    mine.close()
    with pytest.raises(ValueError, match="closed"):
        mine.folder("actor", 1)


def test_nothing_to_mount(node, monkeypatch):
    """without a source, a mount or an agent the error says what to give; a source that is none is told with the log's end"""
    world.need_fuse()
    _, at, _ = node
    monkeypatch.delenv("WSYNC_AGENT", raising=False)
    with pytest.raises(wsync.Error, match="say what to mount"):
        wsync.mount(path=at)
    with pytest.raises(wsync.Error, match="(?s)ended at once.*gopher"):
        wsync.mount("gopher://x", at)


def test_without_fuse(node, monkeypatch):
    """it says why nothing is mounted; versions are read from the agent's memory, or from an export's files; each tells lineages apart"""
    agent, at, _ = node
    monkeypatch.setattr(mounts, "_lacking", lambda: "/dev/fuse cannot be opened")
    with pytest.warns(RuntimeWarning, match="out of the memory of unix:"):
        memory = wsync.mount(f"unix:{agent.sock}", at)
    found = memory.files("actor", 1)
    run = found.manifest["run"]
    assert memory.how == "memory" and "model.safetensors" in " ".join(found.names())
    found.close()
    memory.files("actor", f"1@{run}").close()
    with pytest.raises(wsync.Timeout, match="has not appeared.*of another run"):
        memory.files("actor", "1@other", timeout=0.1)
    with pytest.raises(wsync.Error, match="has no path here"):
        memory.folder("actor", 1)
    with pytest.warns(RuntimeWarning, match="`wsync export` keeps"):
        export = wsync.mount(agent.url, at)
    assert export.how == "export" and os.listdir(export.folder("actor", f"1@{run}"))
    with wsync.mount(agent.url, at) as second:
        assert second.how == "export"
    assert os.path.isdir(export.folder("actor", 1))
    with pytest.raises(wsync.Timeout, match="of other has not appeared"):
        export.folder("actor", "1@other", timeout=0.1)
    pid = daemon(at)
    os.kill(pid, signal.SIGKILL)
    world.wait_for(lambda: mounts._began(pid) is None, "the export's end")
    with pytest.raises(wsync.Error, match="has ended; the end of"):
        export.folder("actor", 7, timeout=5)
    export.close()
    subprocess.run(["umount", "-l", at], stderr=subprocess.DEVNULL, check=False)


def test_handover():
    """an iterator is sent and received, bit for bit, by a version that was announced; an iterator that fails publishes nothing, and all of it
    was taken; a changed layout is copied anew"""
    from wsync._handover import Receiver, Sender

    agent = world.Agent()
    sender, receiver = Sender("actor", agent=f"unix:{agent.sock}"), Receiver(path=world.unique("mnt"))
    world.at_end(sender.close)
    world.at_end(receiver.close)
    reused = numpy.empty(70, numpy.float32)

    def pairs(step, fail=False):
        for i, name in enumerate(("b", "a")):
            reused[:] = numpy.arange(70) * step + i
            yield name, reused[: 70 - i]
            if fail:
                raise RuntimeError("a gather failed")

    def expected(step):
        return {name: (numpy.arange(70, dtype=numpy.float32) * step + i)[: 70 - i] for i, name in enumerate(("b", "a"))}

    for step in (1, 2):
        told = sender.announce()
        sender.send(pairs(step))
        got = dict(receiver.receive(told))
        assert set(got) == {"a", "b"} and all(numpy.array_equal(got[n], w) for n, w in expected(step).items())
    told = sender.announce()
    with pytest.raises(RuntimeError, match="a gather failed"):
        sender.send(pairs(3, fail=True))
    with pytest.raises(wsync.Timeout):
        next(receiver.receive(told, timeout=0.1))
    told = sender.announce()
    sender.send(iter([("c", numpy.ones(3, numpy.float32))]))
    assert list(dict(receiver.receive(told))) == ["c"] and told["version"] == 4
