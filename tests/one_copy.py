"""A trainer's run for mounts with one copy of a model (copies=1), and what cuts its connections."""
import os

from proxy import Gate
from world import *

ONE = f"copies=1,{DELTAS}"
THREE = {f"layer.{i}.weight": ("BF16", [1024, 1024]) for i in range(5)} | {"tail": ("U8", [12345])}  # blocks


def same(mount, version, folder):
    want, got = tensors_of(os.path.join(folder, "model.safetensors")), tensors_of(mount.file("actor", version, "model.safetensors"))
    assert want == got, [n for n in want if got.get(n) != want[n]][:3]


class Run:
    """A trainer's run: steps published one after the other."""

    def __init__(self, tensors=THREE, *args):
        need_fuse()
        self.agent = Agent(*args)
        self.folders = {1: checkpoint(tensors, seed=1)}
        self.agent.publish("actor", 1, self.folders[1])
        self.url = self.agent.url

    def step(self, **kw):
        newest = max(self.folders) + 1
        self.folders[newest] = step(self.folders[newest - 1], newest, **kw)
        self.agent.publish("actor", newest, self.folders[newest])
        wait_for(lambda: self.deltas(newest) and self.deltas(newest)[0]["state"] != "growing", "the delta")
        return newest

    def deltas(self, version):
        return self.agent.get(f"/v1/actor/{version}/manifest")["deltas"]


def pull(mount, version):
    wait_for(lambda: os.path.isdir(mount.file("actor", version)), f"version {version}")
    mount.write(f"pull {version}", "actor/ctl")
    return mount.status("actor")[f"version.{version}"]


def used(mount):
    return int(mount.status()["used_bytes"])


def copy_of(mount):
    return dict(word.split("=", 1) for word in mount.status("actor")["copies"].split()[1:])


class Cut(Gate):
    """Lets so many bytes of deltas through, then holds them back or, where cuts, ends their connections; and so many of files."""

    def __init__(self, url, of_deltas, of_files, cuts):
        self.of_deltas, self.cuts = of_deltas, cuts
        super().__init__(url, of_files)

    @staticmethod
    def is_of_files(first):
        return "delta" if b"/delta?" in first else "files" if b"/files/" in first else None

    def pass_on(self, data, sink, marked):
        if marked != "delta":
            super().pass_on(data, sink, marked)
            return
        n = min(len(data), self.of_deltas)
        self.of_deltas -= n
        sink.sendall(data[:n])
        if n < len(data):
            with self.changed:
                self.changed.wait_for(lambda: self.over or self.cuts or self.left > 1 << 40)
            if self.over or self.cuts:
                raise ConnectionAbortedError
            sink.sendall(data[n:])


def progress(mount, version):
    return dict(line.split(" ", 1) for line in mount.text(f"actor/{version}/.wsync/progress").splitlines())
