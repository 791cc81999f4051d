# beside others
# timeout: 120, takes: 12
# sanitizers: address
"""What root's agent may still do once it serves: nothing that any user may not, and all that it does works without."""
import grp
import stat

import pytest

from world import *

TENSORS = {f"layer.{i}.weight": ("BF16", [512, 1024]) for i in range(9)}
DAC_OVERRIDE, NET_BIND_SERVICE, IPC_LOCK = (1 << n for n in (1, 10, 14))


@pytest.fixture(autouse=True)
def root():
    if os.geteuid():
        pytest.skip("only root has capabilities to give up")


def sets_of(agent):
    """{(permitted, effective, inheritable, bounding, ambient, no new privileges)} of all threads."""
    out = set()
    for thread in os.listdir(f"/proc/{agent.pid}/task"):
        try:
            with open(f"/proc/{agent.pid}/task/{thread}/status") as f:
                fields = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
        except (FileNotFoundError, ProcessLookupError):  # one that ended since it was listed
            continue
        out.add((*(int(fields["Cap" + name], 16) for name in ("Prm", "Eff", "Inh", "Bnd", "Amb")), int(fields["NoNewPrivs"])))
    return out


def only(keep):
    return {(keep, keep, 0, keep, 0, 1)}


def test_steps():
    "an agent without any capability fills a third slot, lends memory, takes it back, makes deltas and archives"
    need_fuse()
    archive = unique("archive")
    agent = Agent("--slots", "3", "--archive", archive, "--archive-every", "2", "--audit-log", unique("audit"))
    assert sets_of(agent) == only(0), sets_of(agent)
    folders = {1: checkpoint(TENSORS, seed=1)}
    mount, far = Mount(f"unix:{agent.sock}"), Mount(agent.url)
    held = []
    for version in range(1, 8):
        folders[version] = folders.get(version) or step(folders[version - 1], version, share=0.004)
        agent.publish("actor", version, folders[version])
        for m in (mount, far):
            m.wait_version("actor", version)
            assert tensors_of(m.file("actor", version, "model.safetensors")) == tensors_of(folders[version] + "/model.safetensors")
        held.append(open(mount.file("actor", version, "model.safetensors"), "rb"))
        if len(held) > 1:
            held.pop(0).close()
    assert len(agent.get("/v1/status")["models"][0]["slots"]) == 3, agent.get("/v1/status")
    held.pop().close()
    wait_for(lambda: os.path.exists(archive + "/v1/actor/7/manifest"), "version 7 in the archive")
    assert sets_of(agent) == only(0), sets_of(agent)


def test_memory():
    "versions lie in the huge-page tmpfs, which only a capability makes, where root has it"
    agent = Agent()
    agent.publish("actor", 1, checkpoint(TENSORS, seed=1))
    assert "no huge-page tmpfs" not in agent.text() or "CAP_SYS_ADMIN" in agent.text(), agent.text()
    with open(f"/proc/{agent.pid}/maps") as f:
        mapped = f.read()
    assert "no huge-page tmpfs" in agent.text() or "memfd:wsync" not in mapped, mapped


def test_group():
    "a socket for a group is made without the capability to give files away"
    group = next(g for g in grp.getgrall() if g.gr_gid not in (os.getgid(), *os.getgroups()))
    agent = Agent("--group", group.gr_name)
    at = os.stat(agent.sock)
    assert (at.st_gid, stat.S_IMODE(at.st_mode)) == (group.gr_gid, 0o660), at
    assert sets_of(agent) == only(0), sets_of(agent)


def test_archive_of_another_user():
    "for an archive in a folder of another user the agent keeps one capability, says so, and writes it"
    archive = unique("archive")
    os.mkdir(archive, 0o750)
    os.chown(archive, 65534, 65534)
    agent = Agent("--archive", archive)
    assert sets_of(agent) == only(DAC_OVERRIDE), sets_of(agent)
    assert f"keeps CAP_DAC_OVERRIDE, without which it cannot use path={archive}" in agent.text(), agent.text()
    agent.publish("actor", 1, checkpoint(TENSORS, seed=1))
    wait_for(lambda: os.path.exists(archive + "/v1/actor/1/manifest"), "version 1 in the archive")


def test_low_port():
    "for a port below 1024 it keeps the capability to listen there"
    for port in random.SystemRandom().sample(range(600, 1024), 20):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            break
    else:
        pytest.skip("no port below 1024 is free, or may be used")
    agent = Agent(port=port)
    assert sets_of(agent) == only(NET_BIND_SERVICE), sets_of(agent)


def test_other_user():
    "another user's agent has none to begin with, and gets none by what it executes"
    os.chmod(TESTDIR, 0o755)
    place = unique("place")
    os.mkdir(place)
    os.chown(place, 65534, 65534)
    shutil.copy(WSYNC, place + "/wsync")

    class Other(Agent):
        command = place + "/wsync"
        prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")

    with open(place + "/token", "w") as f:
        f.write("a token\n")  # with one it leaves no core, and its own /proc/self is root's
    agent = Other("--token-file", place + "/token", sock=place + "/sock")
    assert {(s[0], s[1], s[5]) for s in sets_of(agent)} == {(0, 0, 1)}, sets_of(agent)
    agent.publish("actor", 1, checkpoint(TENSORS, seed=1), "--agent-user", 65534)
