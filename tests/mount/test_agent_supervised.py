# timeout: 300, takes: 60
# sanitizers: address
"""Agents with a supervisor: the agent dies while ranks publish and mounts read, and the next one goes on with its versions."""
import mmap
import threading

from ranks import Rank, Reader, Refused, expected
from world import *

ELEMENTS = 1 << 18
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

    def versions(self, model="actor"):
        """{version: (run, digest)}"""
        found = [m for m in self.get("/v1/models")["models"] if m["name"] == model]
        return {v["version"]: (v["run"], v["digest"]) for m in found for v in m["versions"]}

    def newest(self, model="actor"):
        return next(m for m in self.get("/v1/models")["models"] if m["name"] == model)["newest"]

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

    def overwrite(self, is_record, at, data, version=None):
        """Changes bytes of what is kept, of one version where that is given."""
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
