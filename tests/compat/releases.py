"""This release and those before it, side by side: each has its command, and its agents, mounts and engines.

A test is test(stack, one, other) and runs twice by pairs(): with (0.1.0, this release) and (this release, 0.1.0); it names the two
by what they do in it. To test beside another release too: a line below `old-releases` in the Makefile, and its name in OLDER.
A new feature that crosses processes or a disk has its test here: that the other side works without it, or what is said."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import world
from world import *


class Release:
    def __init__(self, name, build):
        self.name, self.build = name, build
        self.command = os.path.join(build, "wsync")
        for kind in (world.Agent, world.Mount, world.Engine):
            setattr(self, kind.__name__, type(kind.__name__, (kind,), {"command": self.command}))

    def wsync(self, *args, **kw):
        return world.wsync(*args, command=self.command, **kw)


def built(name):
    """A release of before. Where there is no history to build it from, none of the script's tests can run."""
    folder = os.path.join(os.environ["ROOT"], "build/compat", name)
    if os.path.exists(folder + "/missing"):
        with open(folder + "/missing") as f:
            skip_all(f.read().strip())
    if not os.path.exists(folder + "/whole"):
        sys.exit(f"{name} was not built: `make old-releases` says why")
    return Release(name[1:], folder + "/build")


NEW = Release("this release", BUILD)
OLDER = [built("v0.1.0")]


def pairs(*tests):
    """test(stack, one, other): with each older release as its first side, and as its second."""
    return [of(test, *pair) for test in tests for old in OLDER for pair in ((old, NEW), (NEW, old))]


def olds(*tests):
    """test(stack, old): with each older release beside this one."""
    return [of(test, old) for test in tests for old in OLDER]


def of(test, *releases):
    def call(stack):
        need_fuse()
        test(stack, *releases)

    call.__doc__ = f"{test.__doc__} ({', '.join(r.name for r in releases)})"
    return call


def same(mount, version, folder, model="actor"):
    """What a mount shows of a version are the source's tensors, and its other files, byte by byte."""
    mount.wait_version(model, version)
    for name in sorted(os.listdir(folder)):
        content = tensors_of if name.endswith(".safetensors") else bytes_of
        got, want = (content(path) for path in (mount.file(model, version, name), os.path.join(folder, name)))
        assert got == want, f"{mount.command}: {model}/{version}/{name} is not what was published"


def bytes_of(path):
    with open(path, "rb") as f:
        return f.read()


def how(mount, version, model="actor"):
    """How a version came, by the mount's status: `tcp full`, `tcp delta from 1: ...`; and the bytes that were moved."""
    line = mount.status(model)[f"version.{version}"]
    return line.split('how="')[1].split('"')[0], int(line.split(" moved=")[1].split()[0])
