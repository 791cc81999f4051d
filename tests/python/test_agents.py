import os
import shutil
import signal
import socket
import subprocess
import tempfile
import sys
import urllib.error
import urllib.request
import warnings

import pytest
import world
import wsync
import wsync.lib._agents as agents


@pytest.fixture
def place(monkeypatch):
    """A socket path and an HTTP port for agents that the test starts; the fixture ends them."""
    path = world.unique("run") + "/agent.sock"
    monkeypatch.setenv("WSYNC_LISTEN", f"127.0.0.1:{world.free_port()}")
    monkeypatch.setattr(agents, "_warned", True)

    def end():
        pid = agents._agent_pid(path)
        if pid:
            os.kill(pid, signal.SIGTERM)
            world.wait_for(lambda: agents._agent_pid(path) is None and ended(pid), "the agent's end")

    world.at_end(end)
    return path


def ended(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except FileNotFoundError:
        return True


RANK = "import sys, wsync, warnings; warnings.simplefilter('ignore'); print(wsync.ensure(sys.argv[1])); import wsync.lib._agents as a; print(a._agent_pid(sys.argv[1][5:]))"


def test_exactly_one(place):
    """many ranks that start at once share one agent, which outlives them, is not their child and accepts a version"""
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, f"unix:{place}"], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    said = {r.communicate(timeout=60)[0] for r in ranks}
    assert all(r.returncode == 0 for r in ranks) and len(said) == 1, said
    address, pid = said.pop().split()
    assert address == f"unix:{place}" and not ended(int(pid))
    with open(f"/proc/{pid}/stat") as f:
        _, parent, _, session = f.read().rsplit(")", 1)[1].split()[:4]
    assert int(parent) not in {r.pid for r in ranks} | {os.getpid()} and int(session) != os.getsid(0)
    assert wsync.ensure(address) == address and agents._agent_pid(place) == int(pid)
    world.wsync("publish", "--agent", address, "--model", "actor", "--version", 1, world.checkpoint(world.SMALL))
    with open(os.path.join(os.path.dirname(place), "agent.log")) as f:
        assert "serving" in f.read()


def test_agent_is_not_pinned(place):
    """a rank pinned to one core starts an agent that may use all cores, and stays pinned itself"""
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("this machine has one core")
    try:
        os.sched_setaffinity(0, {min(mine)})
        wsync.ensure(f"unix:{place}")
        assert os.sched_getaffinity(0) == {min(mine)}
    finally:
        os.sched_setaffinity(0, mine)
    assert len(os.sched_getaffinity(agents._agent_pid(place))) > 1


def test_warns_of_shared_cgroup(place, monkeypatch):
    """an agent in the trainer's cgroup causes one warning per process"""
    monkeypatch.setattr(agents, "_warned", False)
    with pytest.warns(RuntimeWarning, match="unit, a sidecar or a job step"):
        wsync.ensure(f"unix:{place}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wsync.ensure(f"unix:{place}")


def test_error_has_log(place, monkeypatch, tmp_path):
    """if the agent cannot start, the error has the last lines of its log"""
    other = world.Agent()
    monkeypatch.setenv("WSYNC_LISTEN", f"127.0.0.1:{other.port}")
    with pytest.raises(wsync.Error, match=f"(?s)ended at once.*{tmp_path}/log.*\n.*{other.port}"):
        wsync.ensure(f"unix:{place}", log=tmp_path / "log")
    with pytest.raises(wsync.Error, match="cannot open the agent's log"):
        wsync.ensure(f"unix:{place}", log=tmp_path / "no/log")


def test_default_address(place, monkeypatch, tmp_path):
    """$WSYNC_AGENT is the address; if /run is not writable, a folder of the user; a dead agent's socket is reused, a folder that others
    may write is refused"""
    found = world.Agent()
    monkeypatch.setenv("WSYNC_AGENT", f"unix:{found.sock}")
    assert wsync.ensure() == f"unix:{found.sock}"
    found.kill()
    assert os.path.exists(found.sock)
    monkeypatch.setenv("WSYNC_AGENT", f"unix:{place}")
    os.makedirs(os.path.dirname(place))
    os.rename(found.sock, place)
    assert wsync.ensure() == f"unix:{place}" and agents._agent_pid(place)
    monkeypatch.delenv("WSYNC_AGENT")
    monkeypatch.setattr(os, "access", lambda p, mode: str(p).startswith(str(tmp_path)))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert agents._default_socket() == f"{tmp_path}/wsync/agent.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert agents._default_socket() == f"/tmp/wsync-{os.getuid()}/agent.sock"
    with pytest.raises(wsync.Error, match="is the address right"):
        wsync.ensure("unix:/wsync-nowhere/agent.sock")
    assert not os.path.exists("/wsync-nowhere")
    with pytest.raises(ValueError, match="unix:/PATH"):
        wsync.ensure("http://127.0.0.1:1")
    os.chmod(tmp_path, 0o777)
    with pytest.raises(wsync.Error, match="another user"):
        wsync.ensure(f"unix:{tmp_path}/agent.sock")


def test_waits_are_bounded(place, monkeypatch, tmp_path):
    """the waits for another process's lock and for an agent that never answers end at the timeout"""
    import fcntl

    os.makedirs(os.path.dirname(place))
    with open(f"{place}.lock", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        with pytest.raises(wsync.Timeout, match="another process"):
            wsync.ensure(f"unix:{place}", timeout=0.2)
    stuck = tmp_path / "wsync"
    stuck.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\necho slow today\nexec sleep 100\n")
    stuck.chmod(0o755)
    monkeypatch.setattr(agents, "COMMAND", str(stuck))
    with pytest.raises(wsync.Timeout, match="slow today"):
        wsync.ensure(f"unix:{place}", timeout=1)
    pid = int((tmp_path / "pid").read_text())
    world.wait_for(lambda: ended(pid), "the end of the process that never answered")


def test_agent_of_another_user():
    """a user who names no agent is not given one that another user made in their name in /tmp, nor one in a folder that others may change"""
    if os.getuid() != 0:
        pytest.skip("needs root to be two users")
    mine = 60000 + os.getpid() % 5000
    folder = f"/tmp/wsync-{mine}"
    world.at_end(shutil.rmtree, folder, ignore_errors=True)
    squatter = socket.socket(socket.AF_UNIX)
    world.at_end(squatter.close)
    code = (f"import os; import wsync.lib._agents as a; os.setgroups([]); os.setgid({mine}); os.setuid({mine}); "
            "os.environ.pop('XDG_RUNTIME_DIR', None); os.environ.pop('WSYNC_AGENT', None); print(a._default_socket()); a.ensure(timeout=5)")
    for owner, mode in ((mine + 1, 0o755), (mine, 0o777)):
        os.mkdir(folder)
        squatter.close()
        squatter = socket.socket(socket.AF_UNIX)
        squatter.bind(folder + "/agent.sock")
        squatter.listen(8)
        os.chmod(folder + "/agent.sock", 0o666)
        os.chown(folder, owner, owner)
        os.chmod(folder, mode)
        r = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert r.stdout == f"{folder}/agent.sock\n", r
        assert r.returncode == 1 and f"{folder} belongs to user {owner} or could be changed by another user" in r.stderr, r.stderr
        shutil.rmtree(folder)


def test_command():
    """the bundled command is this build's, and its Python entry point runs it"""
    r = subprocess.run([sys.executable, "-c", "import sys; sys.argv = ['wsync', 'version']; from wsync.lib._command import main; main()"],
                       stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert r.stdout.startswith(f"wsync {wsync.__version__}")


def test_mounts_find_the_token(place):
    """an agent that a trainer starts asks for a token on loopback; a mount of the same account finds it, others are refused"""
    world.need_fuse()
    listen = os.environ["WSYNC_LISTEN"]
    token = f"/run/wsync/{listen.split(':')[1]}.token"
    world.at_end(lambda: os.path.exists(token) and os.unlink(token))
    address = wsync.ensure(f"unix:{place}")
    world.wsync("publish", "--agent", address, "--model", "actor", "--version", 1, world.checkpoint(world.SMALL))
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://{listen}/v1/models", timeout=20)
    world.Mount(f"http://{listen}").wait_version("actor", 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start an agent as another user")
def test_agent_of_another_account(monkeypatch):
    """an agent that another account runs is refused by name, also where root owns the folder, until that account is named"""
    other = 65534
    folder = tempfile.mkdtemp(prefix="wsync-test-", dir="/tmp")  # which that account reaches wherever TESTDIR lies
    world.at_end(shutil.rmtree, folder, ignore_errors=True)
    os.chmod(folder, 0o1777)
    place = f"{folder}/agent.sock"
    agent = subprocess.Popen([world.WSYNC, "agent", "--socket", place], user=other, group=other, extra_groups=[], stdout=subprocess.DEVNULL)
    world.at_end(agent.wait)
    world.at_end(agent.terminate)
    world.wait_for(lambda: os.path.exists(place), "the agent")
    for call in (lambda: wsync.ensure(f"unix:{place}"), lambda: wsync.Publisher("actor", wsync.tensors({}), agent=f"unix:{place}")):
        with pytest.raises(wsync.Error, match="run by nobody.*WSYNC_AGENT_USER=nobody"):
            call()
    for name in ("nobody", str(other)):
        monkeypatch.setenv("WSYNC_AGENT_USER", name)
        assert wsync.ensure(f"unix:{place}") == f"unix:{place}"
