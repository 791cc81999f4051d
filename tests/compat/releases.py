"""This release and earlier ones side by side: each has its command, agents, mounts and engines.

@pairs runs a test of two parameters twice, with (0.1.0, this release) and (this release, 0.1.0); the parameters are named by their roles.
To test another release too, add a line below `old-releases` in the Makefile, and its name to OLDER.
A new feature that crosses processes or a disk needs a test here: the other side works without it, or the error says what is missing."""
import inspect
import os
import sys

import world
import pytest

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
    """An earlier release. Without the history to build it from, the file's tests are skipped."""
    folder = os.path.join(os.environ["ROOT"], "build/compat", name)
    if os.path.exists(folder + "/missing"):
        with open(folder + "/missing") as f:
            pytest.skip(f.read().strip(), allow_module_level=True)
    if not os.path.exists(folder + "/whole"):
        sys.exit(f"{name} was not built: `make old-releases` says why")
    return Release(name[1:], folder + "/build")


NEW = Release("this release", BUILD)
OLDER = [built("v0.1.0")]


def names_of(test, n):
    """Of the parameters that are releases: the first ones."""
    return ", ".join(list(inspect.signature(test).parameters)[:n])


def pairs(test):
    """Runs a test of (one, other) with each older release as the first, and as the second."""
    both = [pair for old in OLDER for pair in ((old, NEW), (NEW, old))]
    return pytest.mark.parametrize(names_of(test, 2), both, ids=[f"{a.name} and {b.name}" for a, b in both])(test)


def olds(test):
    """Runs a test of (old) with each older release beside this one."""
    return pytest.mark.parametrize(names_of(test, 1), OLDER, ids=[r.name for r in OLDER])(test)


@pytest.fixture(autouse=True)
def mountable():
    need_fuse()


def same(mount, version, folder, model="actor"):
    """Asserts that the mounted version has the source's tensors and other files, byte by byte."""
    mount.wait_version(model, version)
    for name in sorted(os.listdir(folder)):
        content = tensors_of if name.endswith(".safetensors") else bytes_of
        got, want = (content(path) for path in (mount.file(model, version, name), os.path.join(folder, name)))
        assert got == want, f"{mount.command}: {model}/{version}/{name} is not what was published"


def bytes_of(path):
    with open(path, "rb") as f:
        return f.read()


def how(mount, version, model="actor"):
    """How a version arrived, from the mount's status: `tcp full`, `tcp delta from 1: ...`; and the bytes transferred."""
    line = mount.status(model)[f"version.{version}"]
    return line.split('how="')[1].split('"')[0], int(line.split(" moved=")[1].split()[0])
