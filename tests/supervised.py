"""Supervised mounts and those who use them while daemons die."""
import mmap
import threading

from ranks import expected
from world import *

ELEMENTS = 1 << 16


def need_passthrough():
    need_fuse()
    agent = Agent()
    if Mount(agent.url).status()["reads"] != "passthrough":
        pytest.skip("no passthrough on this machine")


class Supervised(Mount):
    """Its process is the supervisor; .daemon is the pid of its daemon."""

    deaths = 1000

    def __init__(self, source, options="", **kw):
        os.environ["WSYNC_DEATHS"] = str(self.deaths)
        try:
            super().__init__(source, "supervised" + (f",{options}" if options else ""), **kw)
        finally:
            del os.environ["WSYNC_DEATHS"]

    @property
    def daemon(self):
        return int(wait_for(self.children, "a daemon")[0])

    def kill_daemon(self):
        """Returns when another one answers."""
        before = self.daemon
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: self.alive() and set(self.children()) - {str(before)}, "the next daemon")
        self.text("status")

    def children(self):
        with open(f"/proc/{self.pid}/task/{self.pid}/children") as f:
            return f.read().split()


class Strict(Supervised):
    deaths = 3


def published(kind=Supervised, options="", **kw):
    agent = Agent()
    folder = checkpoint(SMALL, seed=1)
    agent.publish("actor", 1, folder)
    mount = kind(agent.url, options, **kw)
    mount.wait_version("actor", 1)
    return agent, folder, mount


def has_ended(pid):
    """Whether or not anybody has collected it."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def same(path, folder):
    return tensors_of(path + "/model.safetensors") == tensors_of(folder + "/model.safetensors")


class User(threading.Thread):
    """Looks up, opens, reads, maps and lists again and again. .failed: what failed."""

    def __init__(self, mount, version):
        super().__init__(daemon=True)
        self.mount, self.version, self.failed, self.n, self.ended = mount, version, [], 0, False
        at_end(self.stop)
        self.start()

    def once(self):
        version = self.version()
        path = self.mount.file("actor", version, "model.safetensors")
        got = {n: bytes(t[2]) for n, t in tensors_of(path).items()}
        assert got == {n: t[2] for n, t in expected(version, ELEMENTS).items()}, "other bytes"
        with open(path, "rb") as f:
            with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
                assert len(m[:]) == os.fstat(f.fileno()).st_size
        assert "model.safetensors" in os.listdir(self.mount.file("actor", version))
        assert str(version) in os.listdir(self.mount.file("actor")) and "actor" in os.listdir(self.mount.path)

    def run(self):
        while not self.ended and len(self.failed) < 5:
            try:
                self.once()
            except Exception as e:
                self.failed.append(repr(e))
            self.n += 1

    def stop(self):
        self.ended = True
        self.join(60 * SLOW)
        assert not self.is_alive(), "a user of the mount hangs"
        assert not self.failed, self.failed
