"""This release and earlier ones side by side: each has its command, agents, mounts and engines.

@pairs runs a test of two parameters with (older, this release) and (this release, older), for each older one; the parameters are named by
their roles. Older ones are 0.1.0, and the last state of this release that others may run: what it can, and 0.1.0 cannot, has @pairs_of(BEFORE);
what 0.1.0 alone lacks has @olds_of(FIRST). BEFORE moves on, here and below `old-releases` in the Makefile, once a later state is in use.
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
FIRST = built("v0.1.0")
BEFORE = built("v0.2.0-dev.586")
OLDER = (FIRST, BEFORE)


def names_of(test, n):
    """Of the parameters that are releases: the first ones."""
    return ", ".join(list(inspect.signature(test).parameters)[:n])


def pairs_of(*older):
    """Runs a test of (one, other) with each of these releases as the first, and as the second, beside this one."""
    both = [pair for old in older for pair in ((old, NEW), (NEW, old))]
    return lambda test: pytest.mark.parametrize(names_of(test, 2), both, ids=[f"{a.name} and {b.name}" for a, b in both])(test)


def olds_of(*older):
    """Runs a test of (old) with each of these releases beside this one."""
    return lambda test: pytest.mark.parametrize(names_of(test, 1), older, ids=[r.name for r in older])(test)


pairs, olds = pairs_of(*OLDER), olds_of(*OLDER)


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
