# beside others
# timeout: 240, takes: 35
"""Bytes that readers have obtained never change, also where no lease shows the readers: pages in a pipe, or a kernel without leases."""
import fcntl
import mmap
import os

import pytest

from crowd import Group
from world import *

WEIGHTS = "model.safetensors"


def same(mount, version, folder):
    assert tensors_of(mount.file("actor", version, WEIGHTS)) == tensors_of(os.path.join(folder, WEIGHTS))


class Pipe:
    """Holds pages of a file, as many as fit: spliced, not copied; the file is closed again."""

    def __init__(self, path):
        self.out, into = os.pipe()
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 1 << 20)
        fd = os.open(path, os.O_RDONLY)
        self.size = 0
        with contextlib.suppress(BlockingIOError):
            while n := os.splice(fd, into, 1 << 20, flags=os.SPLICE_F_NONBLOCK):
                self.size += n
        os.close(fd)
        os.close(into)
        assert self.size >= 1 << 16

    def read(self):
        with open(self.out, "rb") as f:
            return f.read()


def pull(mount, version, **kw):
    mount.wait_version("actor", version, **kw)
    mount.write(f"pull {version}", "actor/ctl")
    return mount.status("actor")[f"version.{version}"]


@pytest.mark.parametrize("how", ("passthrough", "link", "cached"))
def test_pipe(how):
    "pages spliced into a pipe before their file was closed are never patched"
    need_fuse()
    agent, folder = Agent(), checkpoint(LARGE, seed=1)
    agent.publish("actor", 1, folder)
    mount = Mount(agent.url, f"reads={how},{DELTAS}")
    pull(mount, 1)
    want = mount.read("actor/1", WEIGHTS)
    pipe = Pipe(mount.file("actor/1", WEIGHTS))
    for version in range(2, 6):
        folder = step(folder, version)
        agent.publish("actor", version, folder)
        pull(mount, version)
    same(mount, 5, folder)
    assert pipe.read() == want[:pipe.size]



def test_slots():
    "a slot whose memory readers had is never filled again: spliced pages stay"
    need_fuse()
    agent, folder = Agent("--slots", "3"), checkpoint(LARGE, seed=1)
    agent.publish("actor", 1, folder)
    mount = Mount(f"unix:{agent.sock}")
    assert 'how="ipc"' in pull(mount, 1)
    want = mount.read("actor/1", WEIGHTS)
    pipe = Pipe(mount.file("actor/1", WEIGHTS))
    for version in range(2, 6):
        mount.write(f"drop {version - 1}", "actor/ctl")
        folder = step(folder, version)
        agent.publish("actor", version, folder, timeout=120)
        assert 'how="ipc"' in pull(mount, version)
        same(mount, version, folder)
    assert pipe.read() == want[:pipe.size]


def test_idle_mount():
    "a mount by unix: without readers gives the trainer its slots back"
    need_fuse()
    agent, folder = Agent(), checkpoint(SMALL)
    agent.publish("actor", 1, folder)
    mount = Mount(f"unix:{agent.sock}")
    assert 'how="ipc"' in pull(mount, 1)
    agent.publish("actor", 2, folder)
    assert 'how="ipc"' in pull(mount, 2)
    for version in range(3, 7):  # these have no readers
        agent.publish("actor", version, folder)
    mount.wait_version("actor", 6)
    pull(mount, 6)
    same(mount, 6, folder)


def test_narrow_memory():
    "if --memory leaves no room for a third slot, a unix: mount keeps a copy, and the trainer continues"
    need_fuse()
    agent, folder = Agent("--memory", "8M"), checkpoint(MEDIUM)  # two slots of 1.6 MB fit beside another model's
    agent.publish("other", 1, checkpoint({"w": ("U8", [4 << 20])}))
    agent.publish("actor", 1, folder)
    mount = Mount(f"unix:{agent.sock}")
    for version in range(2, 6):
        assert 'how="ipc full' in pull(mount, version - 1)
        same(mount, version - 1, folder)
        folder = step(folder, version)
        agent.publish("actor", version, folder)


def test_two_slots():
    "with --slots 2 both belong to the trainer: a unix: mount gets copies, which the agent logs once"
    need_fuse()
    agent, folder = Agent("--slots", "2"), checkpoint(MEDIUM)
    agent.publish("actor", 1, folder)
    mount = Mount(f"unix:{agent.sock}")
    for version in range(2, 6):
        assert 'how="ipc full' in pull(mount, version - 1)
        same(mount, version - 1, folder)
        folder = step(folder, version)
        agent.publish("actor", version, folder)
    assert agent.text().count("of 2 slots (agent --slots) readers may keep 0") == 1, agent.text()


def test_little_memory():
    "if the machine has no memory for a third slot a unix: mount gets copies, and the trainer continues"
    need_fuse()
    try:
        group = Group("agent")
    except OSError as e:
        pytest.skip(f"no memory cgroup can be made here: {e}")
    kind = type("Agent", (Agent,), {"prefix": ["sh", "-c", f'echo $$ >{group.path}/cgroup.procs && exec "$@"', "sh"]})
    agent, folder = kind(), checkpoint(LARGE)  # 25 MB
    for version in 1, 2:
        agent.publish("actor", version, folder)
    group.limit(group.usage() + (256 << 20) + (10 << 20))  # free memory that it leaves to others, less than a slot
    mount = Mount(f"unix:{agent.sock}")
    for version in range(3, 7):
        assert 'how="ipc full' in pull(mount, version - 1)
        folder = step(folder, version)
        agent.publish("actor", version, folder)
    assert agent.text().count("readers on this host get copies") == 1, agent.text()


def test_stuck_readers():
    "readers that never close, one of each version, do not stop the trainer: two have the agent's memory, the others copies"
    need_fuse()
    agent, folder, held = Agent(), checkpoint(MEDIUM), []
    agent.publish("actor", 1, folder)
    mount = Mount(f"unix:{agent.sock}")
    for version in range(1, 7):
        line = pull(mount, version)
        assert ('how="ipc full' if version > 2 else 'how="ipc"') in line, line
        with open(mount.file("actor", version, WEIGHTS), "rb") as f:
            mapped = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        same(mount, version, folder)
        held.append((mapped, mapped[:]))
        folder = step(folder, version)
        agent.publish("actor", version + 1, folder)
    for mapped, want in held:
        assert mapped[:] == want
        mapped.close()


def test_lost_engine():
    "an engine that has ended does not stop the trainer: the current version stays, the previous one is released"
    need_fuse()
    agent, folder = Agent(), checkpoint(SMALL)
    agent.publish("actor", 1, folder)
    mount = Mount(f"unix:{agent.sock}")
    mount.wait_version("actor", 1)
    engine = Engine(mount.file("actor/1"))
    mount.write(f"engine add e sglang {engine.url}", "actor/ctl")
    mount.write("1", "actor/version")
    agent.publish("actor", 2, folder)
    mount.wait_version("actor", 2)
    mount.write("2", "actor/version")
    engine.kill()
    agent.publish("actor", 3, folder)
    mount.wait_version("actor", 3)
    assert mount.refused("3", "actor/version") == "EHOSTUNREACH"
    for version in range(4, 7):
        agent.publish("actor", version, folder)
    assert mount.text("actor/version") == "2\n"
    same(mount, 2, folder)
    assert mount.refused("previous", "actor/version") == "ENOENT"


def test_without_leases():
    "if the kernel grants no leases a mount gets copies, which is logged once, and no version is overwritten while it is read"
    need_fuse()
    prefix = [os.path.join(BUILD, "tests/tools/without_leases")]
    blind = lambda kind: type(kind.__name__, (kind,), {"prefix": prefix})
    agent, folder = blind(Agent)("--slots", "2"), checkpoint(LARGE, seed=1)
    agent.publish("actor", 1, folder)
    mount = blind(Mount)(f"unix:{agent.sock}")
    line = pull(mount, 1)
    assert 'how="ipc full' in line, line
    want = mount.read("actor/1", WEIGHTS)
    with open(mount.file("actor/1", WEIGHTS), "rb") as f:
        mapped = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
    for version in range(2, 6):
        folder = step(folder, version)
        agent.publish("actor", version, folder)
        assert 'how="ipc' in pull(mount, version)
        same(mount, version, folder)
        assert mapped[:] == want
    assert agent.text().count("grants no leases") == 1, agent.text()
    mapped.close()


def test_memory():
    "a slot that must grow stays within --memory, or the version is refused"
    agent = Agent("--memory", "60M")
    folder = checkpoint(LARGE)  # 25 MB
    for version in 1, 2:
        agent.publish("actor", version, folder)
    larger = checkpoint({f"layer.{i}.weight": ("BF16", [1024, 1024]) for i in range(19)})  # 40 MB
    r = agent.publish("actor", 3, larger, check=False)
    assert r.returncode and "does not fit: --memory leaves" in r.stderr, (r.returncode, r.stderr)
    agent.publish("actor", 4, folder)  # a version that fits still works
    assert agent.get("/v1/status")["slot_bytes"] <= 60e6
