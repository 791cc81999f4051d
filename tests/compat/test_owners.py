# beside others
# timeout: 180
"""A socket, an archive and a mount's folder have one owner, also if the second process is of another release."""
from releases import *


class Second(Process):
    """A process that must end by itself, with a reason."""

    def said(self):
        assert self.process.wait(60) not in (0, -9), self.process.returncode
        return self.text()


def second(release, *args):
    return type("Second", (Second,), {"command": release.command})(*args).said()


@pairs
def test_socket(first, other):
    "an agent does not take the socket of a live one, and takes that of a killed one"
    agent, folders = first.Agent(), {v: checkpoint(SMALL, seed=v) for v in (1, 2)}
    agent.publish("actor", 1, folders[1])
    assert agent.sock in second(other, "agent", "--listen", "none", "--socket", agent.sock)
    same(other.Mount(f"unix:{agent.sock}"), 1, folders[1])
    agent.kill()
    successor = other.Agent(sock=agent.sock)
    successor.publish("actor", 2, folders[2])
    same(first.Mount(f"unix:{agent.sock}"), 2, folders[2])


@pairs
def test_archive(first, other):
    "an agent does not write the archive of a live one"
    archive = unique("archive")
    first.Agent("--archive", archive)
    said = second(other, "agent", "--listen", "none", "--socket", unique("sock"), "--archive", archive)
    assert "another process writes the archive" in said, said


@pairs
def test_mount(first, other):
    "a later mount leaves a live one alone, and recovers the path of a killed one"
    agent, folder = other.Agent(), checkpoint(SMALL, seed=1)
    agent.publish("actor", 1, folder)
    mount = first.Mount(agent.url)
    same(mount, 1, folder)
    r = other.wsync("mount", "-o", f"state={TESTDIR}/state", agent.url, mount.path, check=False)
    assert r.returncode == 1 and "already and answers" in r.stderr, r
    same(mount, 1, folder)
    mount.kill()
    later = other.Mount(agent.url, path=mount.path)
    same(later, 1, folder)
    assert later.alive()
